"""Any executor as hosts, which only runs tasks."""

from __future__ import annotations

import math
import pickle
import queue
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nbshare._core.hosts import starting
from nbshare._core.hosts.carrier import Carry
from nbshare._core.hosts.messages import messages_in
from nbshare._core.hosts.protocol import Hosts, News
from nbshare._core.hosts.travel import boot
from nbshare._core.system import processes


class ExecutorHosts(Hosts):
    """The machines of an executor, about which nothing is known.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        The executor.
    """

    kind, n_places, news_nbytes = "executor", math.inf, math.inf

    def __init__(self, executor: Any) -> None:
        self.boot = boot()
        self._executor = executor
        self._tasks: dict[int, Any] = {}  # futures
        self._news: queue.SimpleQueue[int | News | None] = queue.SimpleQueue()

    def n_workers(self) -> int:
        """Return the number of usable CPUs of this machine, as a guess."""
        return processes.usable_cpus()

    def check(self) -> None:
        """Check nothing. Futures and `submit` raise errors."""

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Submit a task."""
        self._tasks[number] = future = self._start(task, *args)
        future.add_done_callback(lambda _: self._news.put(number))

    def _start(self, *task: Any) -> Any:
        return self._executor.submit(*task)

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for news of tasks. Return the news."""
        news: list[News] = []
        with suppress(queue.Empty):
            one = self._news.get(timeout=timeout_s)
            while True:
                if isinstance(one, tuple):
                    news.append(one)
                elif one in self._tasks:
                    news.append(outcome_of(one, self._tasks.pop(one).result))
                one = self._news.get_nowait()
        return news

    def wake(self) -> None:
        """End a wait of another thread."""
        self._news.put(None)

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:  # noqa: ARG002
        """Return None, because a task brings the inputs to each host."""
        return None

    def end(self, call: str) -> None:
        """Stop a call on this machine, and cancel its tasks elsewhere that have not begun."""
        starting.end(self.boot.name, call)
        for future in self._tasks.values():
            future.cancel()

    def close(self, call: str) -> None:  # noqa: ARG002
        """Drop all tasks, which `end` has cancelled."""
        self._tasks.clear()


def outcome_of(number: int, result: Callable[[], Any]) -> News:
    """Return the outcome of a task."""
    try:
        return number, 0, _messages(result()), None
    except BaseException as error:  # noqa: BLE001 - each cluster has its own
        return number, 0, (), error


def _messages(result: Any) -> Sequence[Any]:
    if not result:
        error = ConnectionError(f"a host has lost its connection: a task returned {result!r}")
        return [[memoryview(b"error"), memoryview(pickle.dumps(error))]]
    last, others = result
    return [*messages_in(others), *messages_in(last)]
