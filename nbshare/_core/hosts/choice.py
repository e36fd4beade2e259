"""The kinds of clusters that a value of ``backend=`` may be, and what they can do."""

from __future__ import annotations

import _thread
import asyncio
import importlib
import math
import pickle
import queue
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare._core.functions.modules import variables_of
from nbshare._core.hosts import carrier
from nbshare._core.hosts.carrier import PIECE, Carry
from nbshare._core.hosts.protocol import Hosts, News
from nbshare._core.hosts.travel import boot, traveller
from nbshare._core.system import processes

ASK_S = 0.5  # between questions to a cluster how many workers there are
BUSY_S = 1.0  # for it to answer
NO_WORKERS_S = 5.0  # for a Dask cluster that has lost all to start others
ENDS = "closing", "closed"  # the states of a Dask client or cluster that ends
END_S = 0.5  # for tasks of Ray to end that have said all
POLL_S = 0.02  # between looks at whether somebody else wakes a thread that waits for Ray


def hosts_for(backend: Any) -> Hosts | None:
    """Return the hosts that a value of ``backend=`` means, or None if it means none.

    Raises
    ------
    ImportError
        Ray is asked for, but not installed.
    ValueError
        An executor that has the workers of this machine, or sub-interpreters.
    """
    client = variables_of(sys.modules.get("distributed")).get("Client")
    if isinstance(client, type) and isinstance(backend, client):
        return DaskHosts(backend)
    if isinstance(backend, str) and (backend == "ray" or backend.startswith("ray://")):
        return RayHosts(backend)
    if not isinstance(backend, Executor):
        return None
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
    return ExecutorHosts(backend)


class ExecutorHosts(Hosts):
    """The machines behind an executor, one or several, of which nothing is known.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        The executor.
    """

    kind, n_places = "executor", math.inf

    def __init__(self, executor: Any) -> None:
        self.boot = boot()
        self._executor = executor
        self._tasks: dict[int, Any] = {}  # futures
        self._news: queue.SimpleQueue[int | News | None] = queue.SimpleQueue()

    def n_workers(self) -> int:
        """Return how many processors this machine has, as nobody knows."""
        return processes.usable_cpus()

    def check(self) -> None:
        """Do nothing. Its futures and `submit` raise errors."""

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Have it run a task anywhere."""
        self._tasks[number] = future = self._start(task, *args)
        future.add_done_callback(lambda _: self._news.put(number))

    def _start(self, *task: Any) -> Any:
        return self._executor.submit(*task)

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for what tasks tell, and return it."""
        news: list[News] = []
        with suppress(queue.Empty):
            one = self._news.get(timeout=timeout_s)
            while True:
                if isinstance(one, tuple):
                    news.append(one)
                elif one in self._tasks:
                    news.append(_outcome(one, self._tasks.pop(one).result))
                one = self._news.get_nowait()
        return news

    def wake(self) -> None:
        """End a wait."""
        self._news.put(None)

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:  # noqa: ARG002
        """Do nothing. Inputs go with a task, to each host."""
        return None

    def end(self, call: str) -> None:
        """Have hosts of this machine end a call. Others are only not given any more of it."""
        carrier.end(self.boot.name, call)
        for future in self._tasks.values():
            future.cancel()

    def close(self, call: str) -> None:  # noqa: ARG002
        """Forget all tasks."""
        for future in self._tasks.values():
            future.cancel()
        self._tasks.clear()


def _outcome(number: int, result: Callable[[], Any]) -> News:
    """Return what has become of a task."""
    try:
        return number, 0, _messages(result()), None
    except BaseException as error:  # noqa: BLE001 - each cluster has its own
        return number, 0, (), error


def _messages(result: Any) -> Sequence[Any]:
    if not result:
        error = ConnectionError(f"a host has lost its connection to nbshare: it gave {result!r}")
        return [[memoryview(b"error"), memoryview(pickle.dumps(error))]]
    last, *others = carrier.messages_in(result)
    return [*others, last]


class DaskHosts(ExecutorHosts):
    """The workers of a Dask cluster, as far as its client sees them. Each thread is a place.

    Parameters
    ----------
    client : distributed.Client
        The client.
    """

    kind = "dask"

    def __init__(self, client: Any) -> None:
        super().__init__(client)
        self._client = client
        self._seen_at = math.inf  # when there were workers. One that has none yet may start some
        self._asked_at = -math.inf
        self._inputs: list[Any] = []  # futures of the inputs
        self._numbers: list[int] = []
        self.check()
        client.subscribe_topic(f"nbshare-{self.boot.name}", _hear)

    def n_workers(self) -> int:
        """Return the number of threads of all workers."""
        return max(1, int(sum(self._client.nthreads().values())))

    def check(self) -> None:
        """Raise ConnectionError if the client is closed, or sees no workers any more."""
        client = self._client
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
        if (now := time.monotonic()) < self._asked_at + ASK_S:
            return
        self._asked_at = now
        with suppress(OSError):  # it is busy, or lost, which its status tells
            found = client.sync(client.scheduler.ncores, workers=None, callback_timeout=BUSY_S)
            self.n_places = sum(found.values())
        if self.n_places:
            self._seen_at = now
        elif now > self._seen_at + NO_WORKERS_S:
            raise ConnectionError(
                f"the Dask cluster of backend= has had no workers for {NO_WORKERS_S:.0f} s"
            )

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Have it run a task anywhere."""
        _inboxes[number] = self._news
        self._numbers.append(number)
        super().submit(number, task, *args)

    def _start(self, *task: Any) -> Any:
        result = _result_of(self._client, self._client.submit(*task, pure=False))
        return asyncio.run_coroutine_threadsafe(result, self._client.loop.asyncio_loop)

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Have pieces of the inputs on all workers. Return their keys."""
        pieces = range(0, len(data), PIECE)
        self._inputs += [None] * (len(pieces) - len(self._inputs))
        for k, start in enumerate(pieces):
            shard = self._inputs[k]
            if shard is None or shard.status != "finished":
                if is_stopped():
                    break
                piece = data[start : start + PIECE]
                self._inputs[k] = self._client.scatter([piece], hash=False)[0]
        return [shard.key for shard in self._inputs if shard is not None]

    def end(self, call: str) -> None:
        """Have all hosts end a call."""
        carrier.end(self.boot.name, call)
        _thread.start_new_thread(_end_on_dask, (self._client, self.boot.name, call))

    def close(self, call: str) -> None:
        """Forget all tasks, the inputs, and what is noted of the call."""
        for number in self._numbers:
            _inboxes.pop(number, None)
        super().close(call)
        noted = self._client.scheduler.set_metadata(keys=[f"nbshare-{self.boot.name}", call])
        asyncio.run_coroutine_threadsafe(noted, self._client.loop.asyncio_loop)
        for piece in filter(None, self._inputs):
            piece.release()
        self._inputs.clear()


async def _result_of(client: Any, future: Any) -> Any:
    """Return the result as soon as it is there, while others are stored."""
    try:
        return (await client.gather([future], asynchronous=True))[0]
    finally:
        future.release()


_inboxes: dict[int, Any] = {}  # by task of Dask


def _hear(event: Any) -> None:
    """Take a message that a worker of Dask has logged as an event."""
    number, first, messages = event[1]
    if (inbox := _inboxes.get(number)) is not None:
        inbox.put((number, first, carrier.messages_in(messages), None))


def _end_on_dask(client: Any, name: str, call: str) -> None:
    with suppress(Exception):  # it may be gone
        client.run(traveller().end, name, call, on_error="ignore")


class RayHosts(Hosts):
    """The nodes of the Ray cluster that this process is connected to. Each CPU is a place.

    Parameters
    ----------
    address : str
        Where to connect, if it is not yet, or "ray" for a cluster that is found, or a new one here.
    """

    kind, n_places = "ray", math.inf

    def __init__(self, address: str) -> None:
        self.boot = boot()
        self._ray: Any = importlib.import_module("ray")
        if not self._ray.is_initialized():
            self._ray.init(**({} if address == "ray" else {"address": address}))
        # Ray sends functions of functions by value. Its client, for ray://, knows no generators.
        self._is_streamed = not self._ray.util.client.ray.is_connected()
        how = {"num_returns": "streaming"} if self._is_streamed else {}

        def run(task: Carry, *args: Any) -> Any:
            return task(*args)

        def stream(task: Carry, *args: Any) -> Any:
            for message in task.stream(*args):
                yield pickle.PickleBuffer(message)  # which Ray does not copy

        remote = self._ray.remote(num_cpus=1, max_retries=0, **how)
        self._remote = remote(stream if self._is_streamed else run)
        self._tasks: dict[Any, tuple[int, int]] = {}  # their numbers, and those of messages heard
        self._inputs: list[Any] = []
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asked_at = -math.inf

    def n_workers(self) -> int:
        """Return the number of CPUs of all nodes."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def check(self) -> None:
        """Raise ConnectionError if Ray was shut down."""
        if not self._ray.is_initialized():  # and a task would start another cluster
            raise ConnectionError(
                "Ray was shut down: keep this process connected until the run has ended"
            )
        if (now := time.monotonic()) > self._asked_at + ASK_S:
            self._asked_at, self.n_places = now, self.n_workers()

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Have it run a task anywhere."""
        self._tasks[self._remote.remote(task, *args)] = number, 0

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for what tasks tell, and return it."""
        until_s = time.monotonic() + timeout_s
        while True:
            with suppress(queue.Empty):
                self._wakes.get(timeout=0 if self._tasks else timeout_s)
                return ()
            if not self._tasks:
                return ()
            self.check()
            left_s = max(0.0, min(POLL_S, until_s - time.monotonic()))
            tasks = list(self._tasks)
            ready, _ = self._ray.wait(tasks, num_returns=1, timeout=left_s, fetch_local=False)
            if ready or time.monotonic() >= until_s:
                return [self._hear(task) for task in ready]

    def _hear(self, task: Any) -> News:
        """Return the next message of a task, or its outcome."""
        number, place = self._tasks[task]
        if not self._is_streamed:
            del self._tasks[task]
            return _outcome(number, lambda: self._ray.get(task))
        try:
            message = self._ray.get(next(task))
        except StopIteration:
            del self._tasks[task]
            return number, place, (), None
        except BaseException as error:  # noqa: BLE001 - Ray has many
            del self._tasks[task]
            return number, place, (), error
        self._tasks[task] = number, place + 1
        return number, place, carrier.messages_in(message), None

    def wake(self) -> None:
        """End a wait."""
        self._wakes.put(None)

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Have the inputs in Ray's store. Return references to their pieces."""
        for start in range(len(self._inputs) * PIECE, len(data), PIECE):
            if is_stopped():
                break
            self._inputs.append(self._ray.put(np.array(data[start : start + PIECE])))
        return self._inputs

    def end(self, call: str) -> None:
        """Have hosts end a call, those of this machine at once. Others see it within a second.

        Not by `ray.cancel`: if a task ends meanwhile, Ray ends this process.
        """
        carrier.end(self.boot.name, call)
        if self._ray.is_initialized():
            store = importlib.import_module("ray.experimental.internal_kv")
            store._internal_kv_put(carrier.over(self.boot.name, call), b"")

    def close(self, call: str) -> None:  # noqa: ARG002
        """Forget all tasks, after the ends of those that are about to end."""
        end_at = time.monotonic() + END_S
        with suppress(Exception):  # Ray was shut down
            while self._tasks and (left_s := end_at - time.monotonic()) > 0:
                self.wait(left_s)
        self._tasks.clear()
        self._inputs.clear()
