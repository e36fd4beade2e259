"""The one thread that owns the workers, and the requests that other threads send to it.

::

    any thread                      dispatcher                          worker
    submit(call) ──► posted ──►  Calls.begin             ──►   claims chunks, runs items,
                                                               writes results and done flags
    call.wait()  ◄──────────     Calls.hear              ◄──   its messages

Between the call and "finished" no message is needed, so a dispatcher that waits for the interpreter
lock, while a plot is drawn, delays no worker. `Dispatcher._turn` lists all steps of the thread, and
none of them calls back into this module.
"""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable, Iterable, Iterator
from operator import attrgetter
from typing import Literal, NamedTuple

from nbshare._core.engine.call import Call, Engine
from nbshare._core.engine.calls import Calls
from nbshare._core.engine.events import Events
from nbshare._core.engine.prints import PrintPipes
from nbshare._core.engine.process import WorkerProcess, WorkerStarter, WorkerState
from nbshare._core.engine.workers import WorkerPool
from nbshare._core.messages import without_frames
from nbshare._core.system import locks
from nbshare._core.wire.board import busy_since

ATTEND_S = 0.01  # time limit for assigning idle workers (starting new ones takes longer)
HEAR_S = 1.0  # time limit for a dispatcher that must wait for the interpreter lock


class Dispatcher(Engine):
    """Runs calls on worker processes.

    Attributes
    ----------
    is_closed : bool
        Whether the dispatcher has ended, or is about to end.

    Notes
    -----
    The methods in the section "from any thread" are thread-safe. All others run in the thread that
    creates the dispatcher and calls `run`.
    """

    def __init__(self) -> None:
        self.is_closed = False
        self._error: BaseException | None = None  # the error that ended this thread
        self._events = Events()
        try:
            self._starter = WorkerStarter()
            self._pipes = PrintPipes(self._events)
        except OSError:
            self._events.close()
            raise
        self._pool = WorkerPool(self._events, self._starter, self._pipes)
        self._calls = Calls(self._pool, self._pipes, locks.FileLock(self._starter.lock_fd))
        self._closed = _thread.allocate_lock()
        self._closed.acquire()
        self._thread = 0  # the thread's id

    # ------------------------------------------------------------- from any thread

    @property
    def is_here(self) -> bool:
        """Whether this is the dispatcher's thread, where finalizers of users' objects may run."""
        return self._thread == _thread.get_ident()

    def warm_up(self, n_workers: int) -> None:
        """Start missing workers or their server, while the caller still copies inputs."""
        if not self._starter.is_up and (n_missing := n_workers - len(self._pool)) > 0:
            self._events.post(lambda: self._starter.warm_up(n_missing))

    def submit(self, call: Call) -> None:
        """Begin a call."""
        if call.request.prints.is_attended:  # this thread is about to wait
            self._events.post(lambda: self._begin(call))
        else:  # otherwise the dispatcher would have to wait for the interpreter lock
            self._attend(lambda: self._begin(call), ATTEND_S)

    def hear_prints(self, call: Call, *, are_all: bool) -> None:
        """Read the prints of a call's workers. If `are_all`, read unfinished lines too."""

        def hear() -> None:
            self._calls.read_prints(call)
            if are_all:
                self._pipes.end_lines(call.request.prints)

        if call.board.has_printed or call.request.prints.is_any:
            self._attend(hear, HEAR_S)

    def _attend(self, action: Callable[[], None], timeout_s: float) -> bool:
        """Run an action in the dispatcher's thread and wait. Return whether it finished in time."""
        done = _thread.allocate_lock()
        done.acquire()

        def attend() -> None:
            action()
            done.release()

        self._events.post(attend)
        return done.acquire(timeout=timeout_s)

    def stop(self, call: Call, error: BaseException | None = None) -> None:
        """End a call early. Its items stop running within 20 ms."""
        if error is not None:
            self._events.post(lambda: self._calls.fail(call, error))
            return
        call.halt()  # not posted, as the dispatcher may have to wait for the interpreter lock
        self._events.post(lambda: self._calls.stop(call))

    def shutdown(self, timeout_s: float = 2.0) -> None:
        """End all calls, workers and the server."""
        self._events.post(self._close)
        if not self.is_here and self._closed.acquire(timeout=timeout_s):
            self._closed.release()

    def withdraw(self, call: Call, i: int) -> bool:
        """Withdraw an item if no worker has claimed it. Return whether that succeeded."""
        with self._calls.claiming:
            # Checked here, because `_end` closes the lock's file.
            if self.is_closed or call.is_over:
                return False
            with self._calls.lock:
                is_withdrawn = call.board.withdraw(i)
        if is_withdrawn and call.is_complete:  # it was the last item, and there may be no workers
            self._events.wake()
        return is_withdrawn

    def notify(self, call: Call) -> None:
        """Wake workers after items were added to a call, or after the last item."""
        with self._calls.claiming:
            event = call.items_event
            if event is None or self.is_closed:  # the call is over, or will be
                return
        is_closed, n = call.board.is_closed, call.request.max_workers
        event.set(n if is_closed else min(n, call.board.n_unclaimed))
        if is_closed or call.wants_worker:
            self._events.wake()

    def is_current(self, call: Call) -> bool:
        """Return whether a new call would run the same code as a call whose items are done."""

        def hear() -> None:
            for worker in list(call.workers):
                self._calls.hear_all(worker)

        has_imported, call.board.has_imported = call.board.has_imported, 0
        # Workers report imports before their item is done, but the report may not have been read
        # yet.
        if (has_imported and not self._attend(hear, HEAR_S)) or call.is_over or self.is_closed:
            return False
        return self._pool.is_current(call)

    def forget(self) -> None:
        """Release the parent's workers, in a forked child."""
        if not self.is_closed:
            self.is_closed = True
            self._starter.forget()

    # ------------------------------------------------------------------- main loop

    def run(self) -> None:
        """Run until `shutdown`."""
        self._thread = _thread.get_ident()
        try:
            while not self.is_closed:
                self._turn()
        except BaseException as error:  # noqa: BLE001 - or other threads would wait forever
            self._error = without_frames(error)
        finally:
            self.is_closed = True
            try:
                self._end()
            finally:
                self._thread = 0  # another thread may reuse the id
                self._closed.release()

    def _turn(self) -> None:
        """Wait for events, and handle them."""
        due_s = next_deadline(self._calls.running.values(), self._pool, time.monotonic())
        look_s = self._calls.look_at
        events = self._events.wait(min(due_s, look_s))
        self._hear(events)
        if "posted" in events:
            self._events.do_posted()
        now = time.monotonic()
        if now >= due_s:
            self._do_overdue()
        if now >= look_s:
            self._calls.look_at_memory()
        self._calls.assign_workers()
        self._calls.finish_ended()  # last, because the waiting thread needs the interpreter lock

    def _hear(self, events: list[object]) -> None:
        """Handle messages, prints and deaths of workers."""
        for event in events:
            match event:
                case WorkerProcess():
                    try:
                        self._calls.hear(event)
                    except BlockingIOError:
                        # A process forked in C by a dead worker may hold its channel open.
                        if event.is_dead:
                            self._calls.lose(event)
                    except (EOFError, OSError):
                        event.note_closed()
                        self._calls.lose(event)
                case "printed":
                    self._pipes.read()

    def _do_overdue(self) -> None:
        """Act on all deadlines that have passed."""
        running = self._calls.running.values()
        for _, _, worker in overdue(running, self._pool, time.monotonic()):
            self._calls.hear_all(worker)  # messages sent while others had the interpreter lock
        for _, what, worker in overdue(running, self._pool, time.monotonic()):
            match what:
                case "stuck":
                    self._calls.lose(worker)
                case "timed out":
                    self._calls.lose(worker, timed_out=True)
                case "idle":
                    self._pool.dismiss(worker)
                case "ending":
                    self._pool.remove(worker)
                case "released":
                    worker.enter("late")

    # ----------------------------------------------------------- posted by other threads

    def _begin(self, call: Call) -> None:
        # Another thread may have closed the dispatcher since the call was submitted.
        if self._error is not None:
            call.note_failure(self._error)
            call.finish(is_whole=False)
        elif self.is_closed:
            self._calls.stop(call)
        else:
            self._calls.begin(call)

    def _close(self) -> None:
        self.is_closed = True

    def _end(self) -> None:
        try:
            self._calls.end(self._error)
        finally:  # closing the starter ends all workers, too
            with self._calls.claiming:  # another thread may hold its file's lock
                self._starter.close()
            self._pipes.close()
            self._events.close()


class Due(NamedTuple):
    """A deadline of a worker.

    Attributes
    ----------
    at_s : float
        When the deadline passes, on the monotonic clock.
    what : str
        The reason: "stuck" if the worker's call was stopped and the worker is still busy, "timed
        out" if its item takes too long, or the worker's state if the state lasts too long.
    worker : WorkerProcess
        The worker.
    """

    at_s: float
    what: Literal["stuck", "timed out"] | WorkerState
    worker: WorkerProcess


def next_deadline(calls: Iterable[Call], pool: WorkerPool, now: float) -> float:
    """Return the time of the next deadline, or infinity if there is none."""
    return min(map(attrgetter("at_s"), _deadlines(calls, pool, now)), default=math.inf)


def overdue(calls: Iterable[Call], pool: WorkerPool, now: float) -> list[Due]:
    """Return the deadlines that have passed."""
    return [due for due in _deadlines(calls, pool, now) if due.at_s <= now]


def _deadlines(calls: Iterable[Call], pool: WorkerPool, now: float) -> Iterator[Due]:
    for call in calls:
        if call.kill_at is not None:
            for worker in call.workers:
                if worker.is_ready:  # otherwise it runs no item yet
                    yield Due(call.kill_at, "stuck", worker)
            continue
        timeout_s = call.request.policy.timeout_s
        for worker, slot in call.workers.items():
            row = call.board.row(slot)
            if timeout_s is not None:  # for a worker without an item, the earliest possible time
                yield Due((busy_since(row) or now) + timeout_s, "timed out", worker)
    for worker in pool:
        yield Due(worker.due_at, worker.state, worker)
