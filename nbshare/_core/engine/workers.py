"""The pool of workers, and their renewal."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence

from nbshare._core.engine.call import Call
from nbshare._core.engine.events import Events
from nbshare._core.engine.prints import PrintPipes
from nbshare._core.engine.process import WorkerProcess, WorkerStarter
from nbshare._core.functions.freshness import (
    NO_CODE,
    CodeVersion,
    Snapshot,
    Stamp,
    own_modules,
    stamp_of,
)
from nbshare._core.functions.modules import own_files
from nbshare._core.memory import scratch_file
from nbshare._core.wire.context import Context

READ_S = 0.002  # interval of reading the output of workers that end
NO_STAMP = Stamp(-1, -1, -1, -1)


class WorkerPool:
    """Starts workers, keeps idle ones for the next call, and ends outdated ones.

    Parameters
    ----------
    events : Events
        The events that report messages and deaths of workers.
    starter : WorkerStarter
        Starts new workers.
    pipes : PrintPipes
        The pipes of the workers' output.

    Notes
    -----
    For the dispatcher's thread. Only `is_current` is thread-safe.
    """

    def __init__(self, events: Events, starter: WorkerStarter, pipes: PrintPipes) -> None:
        self._events, self._starter, self._pipes = events, starter, pipes
        self._members: dict[WorkerProcess, None] = {}
        self._code = NO_CODE  # the newest generation's
        self._context: Context | None = None  # the context of this generation
        self._initializer: bytes | None = None  # key of the one that may have run
        self._stamps: dict[str, Stamp | None] = {}  # stamps of the workers' imported files
        # Stamps of imported files and files of the snapshot. Replaced, never changed, because other
        # threads read it.
        self._watched: dict[str, Stamp | None] = {}
        self._given: frozenset[str] = frozenset()  # files from another machine
        self._own: Mapping[str, str] | None = None  # files of this process, when last listed

    def __iter__(self) -> Iterator[WorkerProcess]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    @property
    def n_busy(self) -> int:
        """Number of workers that are not idle."""
        return len(self._members) - len(self.idle)

    @property
    def idle(self) -> list[WorkerProcess]:
        """The workers that wait for a call."""
        return [worker for worker in self._members if worker.state == "idle"]

    def renew_if_stale(self, call: Call, *, is_in_use: bool) -> CodeVersion:
        """Renew the workers if the environment, a file or the initializer has changed.

        Return the code that all workers of the call run, however late they start. A changed file
        that no worker has imported is read again, unless a busy worker might be importing it.
        `is_in_use` is whether other calls run.

        Raises
        ------
        OSError
            If there is no memory or descriptor for a snapshot of the files.
        """
        changed, context = self._changed(), call.request.context
        is_in_use = is_in_use or self.n_busy > 0
        is_stale = bool(changed) and (is_in_use or not changed.isdisjoint(self._stamps))
        is_stale |= call.known_files is not None and not self._stamps.keys() <= call.known_files
        snapshot = self._code.snapshot
        if snapshot is None or is_stale or not self._suits(call):
            snapshot = Snapshot(scratch_file())
            if context.sources is not None:
                snapshot.add(context.sources)
            self._given = frozenset(snapshot.sources())
            self._code = CodeVersion(self._code.generation + 1, snapshot, context.environ)
            self._context, self._initializer = context, None
            changed, self._stamps, self._own = {*self._stamps} - self._given, {}, None
        self._initializer = call.initializer_key or self._initializer
        known = snapshot.sources().keys()
        changed |= self._stamps.keys() - known
        if self._own is not own_files():
            self._own = own_files()
            changed |= {*own_modules().values()} - known
        if changed:
            snapshot.keep(changed)
            self._watch(snapshot)
        return self._code

    def is_current(self, call: Call) -> bool:
        """Return whether a call that began now would run the same code. Thread-safe."""
        return (
            call.code.generation == self._code.generation
            and self._own is own_files()
            and self._suits(call)
            and not self._changed()
        )

    def _suits(self, call: Call) -> bool:
        context, before = call.request.context, self._context
        # The context is the same object, unless something has changed.
        is_same = before is context or (
            before is not None and _home_of(before) == _home_of(context)
        )
        return is_same and (
            call.initializer_key is None or self._initializer in (None, call.initializer_key)
        )

    def _changed(self) -> set[str]:
        return {path for path, stamp in self._watched.items() if stamp_of(path) != stamp}

    def note_imports(self, worker: WorkerProcess, stamps: Mapping[str, Stamp | None]) -> None:
        """Record the files that a worker has imported."""
        worker.imported |= stamps
        snapshot = self._code.snapshot
        if worker.generation != self._code.generation or snapshot is None:
            return  # the newest generation has other versions of the files
        for path in stamps.keys() - self._given:
            stamp = stamps[path]
            # If workers disagree, one version is old. An impossible stamp then renews all workers.
            self._stamps[path] = stamp if self._stamps.get(path, stamp) == stamp else NO_STAMP
        if stamps:
            self._watch(snapshot)

    def _watch(self, snapshot: Snapshot) -> None:
        kept = snapshot.sources().items()
        own = {path: file.stamp for path, file in kept if file and path not in self._given}
        self._watched = {**own, **self._stamps}

    def number_for(self, call: Call) -> int | None:
        """Return the number of the next worker of a call, or None to wait for a free one.

        With one run at a time, all numbers are below `max_workers`, whatever earlier runs have
        left: first an idle worker, then a new one, then one that will soon be idle or end. A call
        without a worker replaces a late one. Higher numbers are for simultaneous runs.
        """
        n, generation = call.n_in_run, call.code.generation
        idle = [w.index for w in self.idle if w.generation == generation]
        if idle and (first := min(idle)) < n:
            return first
        taken = {worker.index: worker for worker in self._members}
        new = next(k for k in range(len(taken) + 1) if k not in taken)
        ranked = [(new >= n, 1, new), *((True, 0, k) for k in idle)]
        ranked += ((k >= n, 2, k) for k, w in taken.items() if w.state not in ("working", "idle"))
        _, rank, number = min(ranked)
        if rank < 2:
            return number
        is_late = taken[number].is_ready and taken[number].state == "late"
        return number if is_late and not call.workers else None

    def assign(self, call: Call, number: int, fds: Sequence[int]) -> tuple[WorkerProcess, int]:
        """Send a call to the idle worker of a number, or to a new one.

        A new worker replaces a late one. Return the worker, and its slot of the board.

        Raises
        ------
        WorkerDiedError, OSError
            If no worker can be started or can receive the order.
        """
        while True:
            idle = self.idle_worker(number)
            worker = idle or self._start(call.code, number)
            self._pipes.turn(worker.output_fds, call.request.prints)
            slot = call.free_slot(worker.child.pid)
            try:
                # The order was pickled once for all workers.
                worker.channel.send((call.id, slot, call.packed_order), fds, wait=False)
            except OSError as error:
                is_lost = isinstance(error, ConnectionError)
                if is_lost and idle is None:
                    return worker, slot  # the worker is already dead, which is handled later
                self.remove(worker)
                if not is_lost:
                    raise
                # The worker died while idle, so no call is affected.
            else:
                worker.enter("working")
                return worker, slot

    def idle_worker(self, number: int) -> WorkerProcess | None:
        """Return the idle worker of a number, or None."""
        for worker in self._members:
            if worker.index == number and worker.state == "idle":
                return worker
        return None

    def _start(self, code: CodeVersion, number: int) -> WorkerProcess:
        for late in [worker for worker in self._members if worker.index == number]:
            self.remove(late)
        worker = self._starter.start(code, number)
        self._members[worker] = None
        self._pipes.add(worker.output_fds)
        self._events.watch(worker.channel.fileno(), worker)
        return worker

    def mark_ready(self, worker: WorkerProcess, pid: int) -> None:
        """Record that a worker has started, and watch for its death."""
        worker.is_ready = True
        worker.child.note(pid)
        if worker.child.fd >= 0:
            self._events.watch(worker.child.fd, worker)

    def remove(self, worker: WorkerProcess) -> int | None:
        """Kill a worker if it is alive, and remove it. Return its exit status."""
        if worker not in self._members:  # it was removed after its own message
            return None
        del self._members[worker]
        self._events.unwatch(worker.channel.fileno())
        if worker.child.fd >= 0:
            self._events.unwatch(worker.child.fd)
        status = worker.reap()
        self._pipes.remove(worker.output_fds)
        return status

    def remove_outdated(self, wanted: set[int]) -> None:
        """End the workers of outdated generations that have no call.

        `wanted` has the generations of running calls.
        """
        wanted.add(self._code.generation)
        # Starting workers end later, because only their end shows that they use no memory.
        for worker in list(self._members):
            is_free = worker.is_ready and worker.state not in ("working", "ending")
            if is_free and worker.generation not in wanted:
                self.dismiss(worker)

    def dismiss(self, worker: WorkerProcess) -> None:
        """Ask an idle worker to exit. It is killed if that takes too long."""
        if not worker.has_worked:  # it has run no user code, so it can be killed
            self.remove(worker)
            return
        worker.enter("ending")
        try:
            worker.channel.send(None, wait=False)
        except OSError:  # the worker is dead
            self.remove(worker)

    def dismiss_all(self, busy: Collection[WorkerProcess]) -> None:
        """End all workers that are not running an item, and wait until they have ended."""
        for worker in list(self._members):
            if worker.is_ready and worker.state != "ending" and worker not in busy:
                self.dismiss(worker)
        for worker in self._members:
            while _is_ending(worker) and not worker.child.await_end(READ_S):
                self._pipes.read_all()  # because a worker that prints much would wait

    def close(self) -> None:
        """Free the snapshot, after all workers have ended."""
        if self._code.snapshot is not None:
            self._code.snapshot.close()


def _is_ending(worker: WorkerProcess) -> bool:
    return worker.state == "ending" and time.monotonic() < worker.due_at


def _home_of(context: Context) -> Context:
    """Return the environment in which a worker imports modules.

    It excludes the variable in which pytest names the running test, so that tests share workers.
    """
    return context._replace(settings=b"", environ=context.environ | {"PYTEST_CURRENT_TEST": ""})
