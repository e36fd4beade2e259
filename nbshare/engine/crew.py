"""The workers of a process: those at work, those that wait for it, and when they are renewed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nbshare import errors
from nbshare.engine.call import NO_CODE, Call, Code
from nbshare.engine.events import Events
from nbshare.engine.prints import PrintPipes, Prints
from nbshare.engine.process import FORK_S, LOOK_S, Nursery, WorkerProcess
from nbshare.functions import Snapshot, Stamp, own_files, stamp_of
from nbshare.wire.context import Context

__all__ = ["Crew"]

NO_STAMP = Stamp(-1, -1, -1, -1)
START_S = 0.02  # a new worker takes as long, its imports not counted
IDLE_S = 300.0  # after which idle workers end: they keep the user's modules in memory


class Crew:
    """Starts workers, keeps the idle ones for the next call, ends those that are outdated.

    Parameters
    ----------
    events : Events
        Where the workers' messages and deaths are waited for.
    nursery : Nursery
        Where new ones come from.
    pipes : PrintPipes
        What they print into.
    calls : mapping
        Those that run.
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
        pipes: PrintPipes,
        calls: Mapping[int, Call],
        hear: Callable[[WorkerProcess], None],
        lose: Callable[[WorkerProcess], None],
    ) -> None:
        self._events, self._nursery, self._pipes = events, nursery, pipes
        self._calls = calls
        self._hear, self._lose = hear, lose
        self._members: dict[WorkerProcess, None] = {}
        self._idle: dict[WorkerProcess, float] = {}  # since when
        self._look_at = 0.0  # the server, if some worker is not ready by then
        self._code = NO_CODE  # of the newest generation
        self._born_under: Any = None  # environment and import path of this generation
        self._initializer: bytes | None = None  # that workers of this generation may have run
        self._stamps: dict[str, Stamp | None] = {}  # of the files that workers have imported
        self._watched: dict[str, Stamp | None] = {}  # of both; never changed, but replaced

    def __contains__(self, worker: WorkerProcess) -> bool:
        return worker in self._members

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(list(self._members))

    def renew_if_stale(self, context: Context, initializer: bytes | None) -> Code:
        """Have new workers if the environment, a file or the initializer is not theirs any more.

        Returns what the call's workers are to run, however late they start. A file that none of
        them has imported is among it until all have been through a call: after that nobody asks
        whether it has been edited before one does.

        Raises
        ------
        OSError
            If there is no memory for that, or no descriptor.
        """
        snapshot = self._code.snapshot
        if snapshot is not None:
            if snapshot.catch_up():  # of a worker that died before it could tell
                self._watch(snapshot)
            if self._is_fresh(context, initializer):
                self._initializer = initializer or self._initializer
                # Not while workers have yet to say what they import.
                are_idle = len(self._idle) == len(self._members) and not self._calls
                if are_idle and (unused := snapshot.stamps.keys() - self._stamps.keys()):
                    snapshot.drop(unused)
                    self._watch(snapshot)
                return self._code
        snapshot = Snapshot.of({*own_files(), *self._stamps})
        self._code = Code(self._code.generation + 1, snapshot)
        self._born_under, self._initializer = (context.environ, context.path), initializer
        self._stamps.clear()
        self._watch(snapshot)
        self.end_outdated()
        return self._code

    def is_current(self, code: Code, context: Context, initializer: bytes | None) -> bool:
        """Whether a call would run this code, if it began now; for any thread."""
        return code.generation == self._code.generation and self._is_fresh(context, initializer)

    def _is_fresh(self, context: Context, initializer: bytes | None) -> bool:
        return (
            self._born_under == (context.environ, context.path)
            and (initializer is None or self._initializer in (None, initializer))
            and all(stamp_of(path) == stamp for path, stamp in self._watched.items())
        )

    def note_imports(self, worker: WorkerProcess, stamps: Mapping[str, Stamp | None]) -> None:
        """Remember what a worker has imported."""
        snapshot = self._code.snapshot
        if worker.generation != self._code.generation or snapshot is None:
            return  # those of the newest have other versions
        for path, stamp in stamps.items():
            # Of two versions at least one is old: no file is like that.
            self._stamps[path] = stamp if self._stamps.get(path, stamp) == stamp else NO_STAMP
        if snapshot.catch_up() or stamps:
            self._watch(snapshot)

    def _watch(self, snapshot: Snapshot) -> None:
        self._watched = {**snapshot.stamps, **self._stamps}

    def put_to_work(
        self,
        message: Any,
        fds: Sequence[int],
        environ: Mapping[str, str],
        code: Code,
        prints: Prints,
        *,
        is_urgent: bool,
    ) -> WorkerProcess:
        """Give a message to an idle worker, to one that is about to be idle, or to a new one.

        `is_urgent`: nobody else works on it.

        Raises
        ------
        WorkerDiedError, OSError
            If none can be started, or told what to do.
        """
        while (free := self.free_worker(code.generation, is_urgent=is_urgent)) is not None:
            self._pipes.turn(free, prints)
            try:
                free.channel.send(message, fds, wait=False)
            except OSError as error:
                self.dismiss(free)
                if not isinstance(error, ConnectionError | BlockingIOError):
                    raise
                # It died while idle, or was stopped: nobody need notice.
            else:
                self._idle.pop(free, None)
                return free
        worker = self._start(environ, code)
        self._pipes.turn(worker, prints)
        try:
            worker.channel.send(message, fds, wait=False)
        except ConnectionError:
            pass  # it is dead already, and we shall hear of that
        except OSError:
            self.dismiss(worker)
            raise
        return worker

    def free_worker(self, generation: int, *, is_urgent: bool = False) -> WorkerProcess | None:
        """Return an idle worker, the last that became so, or one that is about to be idle.

        Such a one has just been started, or its call has ended without it: it will find nothing to
        do there, and then its next message. If it is urgent, also one that is late, but not yet by
        as much as a new one would be.
        """
        for worker in reversed(self._idle):
            if worker.generation == generation:
                return worker
        since = time.monotonic() - START_S if is_urgent else math.inf
        for worker in self._dispensable(generation):
            if not worker.is_behind or worker.call_since > since:
                return worker
        return None

    def late(self, generation: int) -> list[WorkerProcess]:
        """Return workers that will be free when they have caught up with calls that are over."""
        return [worker for worker in self._dispensable(generation) if worker.is_behind]

    def _dispensable(self, generation: int) -> Iterator[WorkerProcess]:
        """Yield workers whose call has ended, maybe without them, or that have had none."""
        for worker in self._members:
            if worker.call is None and worker.generation == generation:
                yield worker

    def replenish(self, n: int) -> None:
        """Start workers in the place of those that were ended with a call, for the next one."""
        with suppress(errors.WorkerDiedError):  # who needs them will be told
            for _ in range(n):
                self._start(self._born_under[0], self._code)

    def _start(self, environ: Mapping[str, str], code: Code) -> WorkerProcess:
        worker = self._nursery.start(environ, code)
        if (now := time.monotonic()) > self._look_at:
            self._look_at = now + LOOK_S
        self._members[worker] = None
        self._pipes.add(worker)
        self._events.watch(worker.channel.fileno(), partial(self._hear, worker))
        return worker

    def greet(self, worker: WorkerProcess, pid: int) -> None:
        """Note that a worker has started."""
        worker.greet(pid)
        for other in self._members:  # where many start at once each has its time
            other.ready_by = max(other.ready_by, worker.call_since + FORK_S)
        if worker.pidfd >= 0:  # else the end of its channel tells
            self._events.watch(worker.pidfd, partial(self._lose, worker))

    def rest(self, worker: WorkerProcess) -> None:
        """Keep a worker that has nothing to do, unless it is outdated."""
        self._idle[worker] = time.monotonic()
        if worker.generation != self._code.generation:
            self.end_outdated()

    def end_outdated(self) -> None:
        """End idle workers that run what no call does, and no call will."""
        outdated = [worker for worker in self._idle if worker.generation != self._code.generation]
        if outdated:
            wanted = {call.code.generation for call in self._calls.values()}
            for worker in outdated:
                if worker.generation not in wanted:
                    self.dismiss(worker)

    def dismiss(self, worker: WorkerProcess) -> int | None:
        """End a worker, if it lives, and return its exit status."""
        self._members.pop(worker, None)
        self._idle.pop(worker, None)
        self._events.unwatch(worker.channel.fileno())
        if worker.pidfd >= 0:
            self._events.unwatch(worker.pidfd)
        status = worker.bury()
        self._pipes.remove(worker)
        return status

    def close(self) -> None:
        """Give back what is kept for workers; there are none any more."""
        if self._code.snapshot is not None:
            self._code.snapshot.close()

    def deadlines(self) -> Iterator[float]:
        """Yield when `end_overdue` has something to do."""
        yield from (since + IDLE_S for since in self._idle.values())
        for worker in self._members:
            if not worker.is_ready:
                yield min(worker.ready_by, self._look_at)

    def end_overdue(self) -> None:
        """End workers that have been idle for long, and give up those that do not start."""
        now = time.monotonic()
        for worker, since in list(self._idle.items()):
            if now - since >= IDLE_S:
                self.dismiss(worker)
        awaited = [w for w in self._members if not w.is_ready]
        if awaited and now >= self._look_at:
            self._look_at = now + LOOK_S
            self._nursery.end_if_stopped()
        overdue = [w for w in awaited if now >= w.ready_by]
        for worker in overdue:
            self._hear(worker)  # it may have said so meanwhile, and be in an item
        overdue = [w for w in overdue if not w.is_ready and w in self._members]
        if overdue:
            self._nursery.distrust()
        for worker in overdue:
            self._lose(worker)
