"""Ray clusters as hosts."""

from __future__ import annotations

import importlib
import math
import pickle
import queue
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare._core.hosts import starting
from nbshare._core.hosts.carrier import PIECE, Carry, key_of
from nbshare._core.hosts.executor import outcome_of
from nbshare._core.hosts.messages import messages_in
from nbshare._core.hosts.protocol import Hosts, News
from nbshare._core.hosts.travel import boot

ASK_S = 0.5  # interval of requests for the number of CPUs
END_S = 0.5  # time limit for tasks that have sent everything to end
POLL_S = 0.02  # interval of checks whether another thread wakes this one


class RayHosts(Hosts):
    """The nodes of the Ray cluster to which this process is connected. A place is a CPU.

    Parameters
    ----------
    address : str
        The address of the cluster, or "ray" for a cluster that Ray finds, or starts on this
        machine.
    """

    kind, n_places, news_nbytes = "ray", math.inf, math.inf

    def __init__(self, address: str) -> None:
        self.boot = boot()
        self._ray: Any = importlib.import_module("ray")
        if not self._ray.is_initialized():
            self._ray.init(**({} if address == "ray" else {"address": address}))
        # Inner functions, because Ray sends these by value. Its client, for ray://, has no
        # generators.
        self._is_streamed = not self._ray.util.client.ray.is_connected()
        how = {"num_returns": "streaming"} if self._is_streamed else {}

        def run(task: Carry, *args: Any) -> Any:
            return task(*args)

        def stream(task: Carry, *args: Any) -> Any:
            for message in task.stream(*args):
                yield pickle.PickleBuffer(message)  # Ray does not copy this buffer

        remote = self._ray.remote(num_cpus=1, max_retries=0, **how)
        self._remote = remote(stream if self._is_streamed else run)
        self._tasks: dict[Any, tuple[int, int]] = {}  # numbers of tasks, and of messages heard
        self._inputs: list[Any] = []
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._asked_at = -math.inf
        self._store = importlib.import_module("ray.experimental.internal_kv")
        self._key = ""  # the key of the call in Ray's store

    def n_workers(self) -> int:
        """Return the number of CPUs of all nodes."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def check(self) -> None:
        """Raise ConnectionError if Ray was shut down."""
        if not self._ray.is_initialized():  # otherwise a task would start another cluster
            raise ConnectionError(
                "Ray was shut down. Keep this process connected until the run has ended."
            )
        if (now := time.monotonic()) > self._asked_at + ASK_S:
            self._asked_at, self.n_places = now, self.n_workers()

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Submit a task to any node."""
        if not self._key:
            self._key = key_of(self.boot.name, args[2])
            self._store._internal_kv_put(self._key, b"")
        self._tasks[self._remote.remote(task, *args)] = number, 0

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for news of tasks. Return the news."""
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
            return outcome_of(number, lambda: self._ray.get(task))
        try:
            message = self._ray.get(next(task))
        except StopIteration:
            del self._tasks[task]
            return number, place, (), None
        except BaseException as error:  # noqa: BLE001 - Ray has many
            del self._tasks[task]
            return number, place, (), error
        self._tasks[task] = number, place + 1
        return number, place, messages_in(message), None

    def wake(self) -> None:
        """End a wait of another thread."""
        self._wakes.put(None)

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Put the inputs into Ray's store. Return references to their pieces."""
        for start in range(len(self._inputs) * PIECE, len(data), PIECE):
            if is_stopped():
                break
            self._inputs.append(self._ray.put(np.array(data[start : start + PIECE])))
        return self._inputs

    def end(self, call: str) -> None:
        """Stop a call immediately on this machine, within a second on others.

        `ray.cancel` is not used, because Ray ends this process if a task ends at the same time.
        """
        starting.end(self.boot.name, call)
        self._leave_store()

    def _leave_store(self) -> None:
        if self._key and self._ray.is_initialized():
            self._store._internal_kv_del(self._key)

    def close(self, call: str) -> None:  # noqa: ARG002
        """Drop all tasks, after a short wait for those that are about to end."""
        self._leave_store()
        end_at = time.monotonic() + END_S
        with suppress(Exception):  # Ray was shut down
            while self._tasks and (left_s := end_at - time.monotonic()) > 0:
                self.wait(left_s)
        self._tasks.clear()
        self._inputs.clear()
