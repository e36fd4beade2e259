"""The workers of a process: those at work, those that wait for it, and when they are renewed."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from nbshare.engine.context import Context
from nbshare.engine.events import Events
from nbshare.engine.process import Nursery, WorkerProcess
from nbshare.functions import Stamp, stamp_of

__all__ = ["Crew"]

IDLE_S = 300.0  # after which idle workers end: they keep the user's modules in memory


class Crew:
    """Starts workers, keeps the idle ones for the next call, ends those that are outdated.

    Parameters
    ----------
    events : Events
        Where the workers' messages and deaths are waited for.
    nursery : Nursery
        Where new ones come from.
    hear, lose : callable
        Called with a worker that has sent a message, or has died.

    Notes
    -----
    For the dispatcher's thread.
    """

    def __init__(
        self,
        events: Events,
        nursery: Nursery,
        hear: Callable[[WorkerProcess], None],
        lose: Callable[[WorkerProcess], None],
    ) -> None:
        self._events, self._nursery = events, nursery
        self._hear, self._lose = hear, lose
        self._members: dict[WorkerProcess, None] = {}
        self._idle: dict[WorkerProcess, float] = {}  # since when
        self._generation = 0
        self._born_under: Any = None  # environment and import path of this generation
        self._initializer: bytes | None = None  # that workers of this generation may have run
        self._stamps: dict[str, Stamp | None] = {}  # of the files that workers have imported

    def __contains__(self, worker: WorkerProcess) -> bool:
        return worker in self._members

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._members))

    def renew_if_stale(self, context: Context, initializer: bytes | None) -> None:
        """Have new workers if the environment, a file or the initializer is not theirs any more."""
        born_under = (context.environ, context.path)
        edited = [path for path, stamp in self._stamps.items() if stamp_of(path) != stamp]
        is_initialized = initializer is None or self._initializer in (None, initializer)
        self._initializer = initializer or self._initializer
        if not edited and born_under == self._born_under and is_initialized:
            return
        self._born_under = born_under
        self._stamps.clear()
        self._generation += 1
        for worker in list(self._idle):
            self.dismiss(worker)

    def note_imports(self, stamps: Mapping[str, Stamp | None]) -> None:
        """Remember what a worker has imported."""
        self._stamps.update(stamps)

    def put_to_work(
        self, message: Any, fds: Sequence[int], environ: Mapping[str, str]
    ) -> WorkerProcess:
        """Give a message to an idle worker, to one that is about to be idle, or to a new one.

        Raises
        ------
        WorkerDiedError, OSError
            If none can be started.
        """
        while self._idle:
            worker, _ = self._idle.popitem()
            try:
                worker.channel.send(message, fds, wait=False)
            except OSError:  # it died while idle, or was stopped: nobody need notice
                self.dismiss(worker)
            else:
                return worker
        worker = self._latecomer() or self._start(environ)
        worker.channel.send(message, fds, wait=False)
        return worker

    def _latecomer(self) -> WorkerProcess | None:
        """Return a worker that was started for a call that has ended without it.

        It will find nothing to do there, and then its next message.
        """
        for worker in self._members:
            is_free = worker.call is not None and worker.call.is_over
            if is_free and worker.generation == self._generation:
                return worker
        return None

    def _start(self, environ: Mapping[str, str]) -> WorkerProcess:
        worker = self._nursery.start(environ, self._generation)
        self._members[worker] = None
        self._events.watch(worker.channel.fileno(), partial(self._hear, worker))
        return worker

    def greet(self, worker: WorkerProcess, pid: int) -> None:
        """Note that a worker has started."""
        worker.greet(pid)
        self._events.watch(worker.pidfd, partial(self._lose, worker))

    def rest(self, worker: WorkerProcess) -> None:
        """Keep a worker that has nothing to do, unless it is outdated."""
        if worker.generation == self._generation:
            self._idle[worker] = time.monotonic()
        else:
            self.dismiss(worker)

    def dismiss(self, worker: WorkerProcess) -> int | None:
        """End a worker, if it lives, and return its exit status."""
        self._members.pop(worker, None)
        self._idle.pop(worker, None)
        self._events.unwatch(worker.channel.fileno())
        if worker.pidfd >= 0:
            self._events.unwatch(worker.pidfd)
        return worker.bury()

    def deadlines(self) -> Iterator[float]:
        """Yield when `end_overdue` has something to do."""
        yield from (since + IDLE_S for since in self._idle.values())
        yield from (worker.ready_by for worker in self._members if not worker.is_ready)

    def end_overdue(self) -> None:
        """End workers that have been idle for long, and give up those that do not start."""
        now = time.monotonic()
        for worker, since in list(self._idle.items()):
            if now - since >= IDLE_S:
                self.dismiss(worker)
        overdue = [w for w in self._members if not w.is_ready and now >= w.ready_by]
        if overdue:
            self._nursery.distrust()
        for worker in overdue:
            self._lose(worker)
