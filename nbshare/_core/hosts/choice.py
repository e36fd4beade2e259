"""The kinds of clusters that a value of ``backend=`` may be, and what they can do."""

from __future__ import annotations

import importlib
import math
import socket
import sys
import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import closing, suppress
from typing import Any

from nbshare._core.functions.modules import variables_of
from nbshare._core.hosts.protocol import Hosts
from nbshare._core.memory import need_linux
from nbshare._core.system import processes

# Executors whose processes or threads are on this machine.
NEAR = ("concurrent.futures", "loky", "joblib")
ANSWER_S = 10.0  # for a Dask client to give the result of a task that has ended
BUSY_S = 1.0  # for its scheduler to tell how many workers there are
NO_WORKERS_S = 5.0  # for a Dask cluster that has lost all to start others
ENDS = "closing", "closed"  # the states of a Dask client or cluster that ends


def hosts_for(backend: Any) -> Hosts | None:
    """Return the hosts that a value of ``backend=`` means, or None if it means none.

    Raises
    ------
    ImportError
        Ray is asked for, but not installed.
    ValueError
        An executor that has the workers of this machine, or sub-interpreters.
    NotBuiltYetError
        This system is not Linux.
    """
    client = variables_of(sys.modules.get("distributed")).get("Client")
    is_dask = isinstance(client, type) and isinstance(backend, client)
    is_ray = isinstance(backend, str) and (backend == "ray" or backend.startswith("ray://"))
    if not (is_dask or is_ray or isinstance(backend, Executor)):
        return None
    need_linux("backend= with a cluster", "use backend='threads'")
    if is_dask:
        return dask_hosts(backend)
    if is_ray:
        return ray_hosts(backend)
    if type(backend).__module__.startswith("nbshare"):
        raise ValueError(
            "backend= is an nbshare.Executor, whose workers are those of this machine: leave "
            "backend= out, and pass max_workers="
        )
    interpreters = sys.modules.get("concurrent.futures.interpreter")
    if interpreters is not None and isinstance(backend, interpreters.InterpreterPoolExecutor):
        raise ValueError(
            "backend= is an InterpreterPoolExecutor: NumPy refuses to run in sub-interpreters. "
            "Leave backend= out for processes, or pass backend='threads'"
        )
    return executor_hosts(backend)


def dask_hosts(client: Any) -> Hosts:
    """Return the workers of a cluster, as far as its client sees them. Each thread is a place."""
    from distributed.comm.addressing import get_address_host

    seen_at = math.inf  # when there were workers. A cluster that has none yet may start some

    def check() -> None:
        nonlocal seen_at
        states = client.status, getattr(client.cluster, "status", None)
        if any(str(state).endswith(ENDS) for state in states):
            raise ConnectionError(
                "the Dask client of backend=, or its cluster, is closed: keep it open until the "
                "run has ended"
            )
        if client.status != "running":  # what it submits would wait for ever
            raise ConnectionError(
                f"the Dask client of backend= has lost its scheduler (status: {client.status})"
            )
        now, has_workers = time.monotonic(), True
        with suppress(OSError):  # it is busy, or lost, which its status tells
            has_workers = client.sync(
                client.scheduler.ncores, workers=None, callback_timeout=BUSY_S
            )
        if has_workers:
            seen_at = now
        elif now > seen_at + NO_WORKERS_S:
            raise ConnectionError(
                f"the Dask cluster of backend= has had no workers for {NO_WORKERS_S:.0f} s"
            )

    check()
    return Hosts(
        n_workers=lambda: max(1, int(sum(client.nthreads().values()))),
        address=outward_address(get_address_host(client.scheduler.address)),
        submit=lambda *task: _DaskTask(client.submit(*task, pure=False)),
        check=check,
    )


class _DaskTask:
    """The future of a task of Dask, which never waits long for a client that may be closed."""

    def __init__(self, future: Any) -> None:
        self._future = future

    def add_done_callback(self, callback: Callable[[Any], object]) -> None:
        self._future.add_done_callback(callback)

    def cancel(self) -> None:
        self._future.release()

    def result(self) -> Any:
        return self._future.result(ANSWER_S)


def ray_hosts(address: str) -> Hosts:
    """Return the nodes of the cluster that this process is connected to. Each CPU is a place.

    `address` says where to connect, if it is not yet, or is "ray" for a cluster that is found, or a
    new local one.
    """
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(**({} if address == "ray" else {"address": address}))
    # Ray sends a function without a name by value.
    task_of_ray = ray.remote(num_cpus=1, max_retries=0)(lambda carry, *args: carry(*args))

    def check() -> None:
        if not ray.is_initialized():  # and a task would start another cluster
            raise ConnectionError(
                "Ray was shut down: keep this process connected until the run has ended"
            )

    def submit(*task: Any) -> Future[bytes]:
        reference = task_of_ray.remote(*task)
        future = reference.future()
        # Its own would not reach Ray. After Ray's end, `ray.cancel` would end this process.
        future.cancel = lambda: ray.is_initialized() and ray.cancel(reference)
        return future  # type: ignore[no-any-return]

    return Hosts(
        n_workers=lambda: max(1, int(ray.cluster_resources().get("CPU", 1))),
        address=str(ray.util.get_node_ip_address()),
        submit=submit,
        check=check,
    )


def executor_hosts(executor: Executor) -> Hosts:
    """Return the machines behind an executor, one or several."""
    is_near = type(executor).__module__.startswith(NEAR)
    return Hosts(
        n_workers=processes.usable_cpus,  # nobody knows
        address="127.0.0.1" if is_near else outward_address(),
        submit=executor.submit,
    )


def outward_address(towards: str = "192.0.2.1") -> str:
    """Return the address of this machine that another one sees, by default one far away."""
    with closing(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)) as sock:
        try:
            sock.connect((towards, 9))  # nothing is sent, but the system chooses the interface
        except OSError:  # no network
            return "127.0.0.1"
        return str(sock.getsockname()[0])
