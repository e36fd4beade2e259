"""The queue of an executor's tasks.

::

    put(task, future) ──► queue ──► some join an open call ──► futures, as results arrive
                                       ▲
                                       └── when workers will soon run out of tasks

A task is an item of the call, so the call handles failures and dead workers. A task that no worker
has begun can still be withdrawn, and so be cancelled.

Workers set an event after each task, so the queue's thread need not poll the dispatcher.

That thread exists only while there are tasks. It is not a daemon, so at exit the interpreter waits
for queued tasks, as with the standard library's executors.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare import errors
from nbshare._core.arrays.arena import Arena
from nbshare._core.engine.call import Call, Supply
from nbshare._core.engine.dispatcher import Dispatcher
from nbshare._core.engine.feed import ItemFeed
from nbshare._core.engine.local import dispatcher, is_ending
from nbshare._core.engine.placing import place
from nbshare._core.engine.preparing import pack_fixed, prepare
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request
from nbshare._core.engine.supply import MOST_BYTES, Pace
from nbshare._core.functions.reference import refuse_async
from nbshare._core.interrupts import uninterrupted
from nbshare._core.memory import need_shared
from nbshare._core.source.changes import warn_of_changes
from nbshare._core.store.logs import Unloadable
from nbshare._core.system import waiting
from nbshare._core.tracebacks import shown_shortly
from nbshare._core.wire.board import ITEM, ROUND
from nbshare._core.wire.context import current_context
from nbshare._core.wire.orders import Task

LOAD_S = 0.1  # amount of work to submit beyond one task per worker
MOST_TASKS = 127  # most tasks to submit at a time, because they take memory
FIRST_TASKS = 8  # number of tasks to submit before their duration is known
# How long a call stays open for more tasks. The thread, and the interpreter's exit, wait as long. A
# later task needs a new call, which takes a millisecond to begin. But the workers of an open call
# are unavailable to other calls, so a call with longer tasks ends with its last task.
OPEN_S = 0.05
# Time limit for workers to leave a call, so that later calls find them idle. On a busy machine they
# need some 50 ms. A task that is submitted meanwhile waits, too.
END_S = 0.5
REST_S = 0.005  # longest pause of the thread while workers have enough tasks
ALWAYS = 1 << 60  # value of Board.few, so that workers set the event after each task


class TaskFuture(Future[Any]):
    """A future that can be cancelled until a worker begins its task.

    ::

        waiting ──► in a call ──► begun ──► done
           │             │
           └─────────────┴──► cancelled: the queue skips it; it is withdrawn from the call

    Parameters
    ----------
    fate : lock
        The queue's lock, held while a task joins or leaves a call, or is cancelled.
    """

    def __init__(self, fate: _thread.LockType) -> None:
        super().__init__()
        self._fate = fate
        self._place: tuple[Call, int] | None = None  # while the task is in a call
        self._has_left = False  # can no longer be cancelled
        self.is_withdrawn = False  # whichever thread withdrew it completes the cancellation

    def cancel(self) -> bool:
        """Cancel the task if no worker has begun it. Return whether it is cancelled."""
        with self._fate:
            if self.is_withdrawn:
                return True
            if self._has_left or not self._withdraw():
                return False
            self.is_withdrawn = True
        super().cancel()  # without the lock, because this runs callbacks
        self.set_running_or_notify_cancel()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Return the result, as `concurrent.futures.Future.result` does."""
        self._await(timeout)
        try:
            return super().result(0)
        finally:
            del self  # or the future and its error would keep each other alive

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return the error, as `concurrent.futures.Future.exception` does."""
        self._await(timeout)
        return super().exception(0)

    def _await(self, timeout_s: float | None) -> None:
        def done_within(seconds: float | None) -> bool:
            with suppress(TimeoutError, CancelledError):
                Future.exception(self, seconds)
            return self.done()

        # On Windows, an interrupt does not end a wait of the standard library.
        if not self.done():
            waiting.interruptible(done_within, timeout_s)

    def running(self) -> bool:
        """Return whether a worker has claimed the task and not finished it."""
        if place := self._place:
            call, i = place
            return call.board.is_claimed(i) and not self.done()
        return super().running()

    def enter(self, call: Call, i: int) -> None:
        """Record the place of the task in a call, or withdraw it if it was cancelled."""
        with self._fate:
            self._place = call, i
            if self.is_withdrawn:
                self._withdraw()

    def leave(self) -> bool:
        """Record that the task can no longer be cancelled. Return False if it already was."""
        with self._fate:
            self._has_left, self._place = True, None
        return not self.is_withdrawn and self.set_running_or_notify_cancel()

    def _withdraw(self) -> bool:
        if self._place is None:
            return True
        call, i = self._place
        return engine_of(call).withdraw(call, i)


def engine_of(call: Call) -> Dispatcher:
    """Return the dispatcher that runs a call of tasks."""
    assert isinstance(call.engine, Dispatcher)
    return call.engine


def refuse(task: Task, future: TaskFuture, error: BaseException) -> None:
    """Set the error of a task that cannot be sent."""
    if future.leave():
        if isinstance(error, errors.UnsendableError):
            error = _reason(task, error)
        future.set_exception(error.with_traceback(None))  # frames hold the task


def _reason(task: Task, error: errors.UnsendableError) -> errors.UnsendableError:
    """Return an error that names the task by its call, because a task has no index for the user."""
    try:
        for part in (task.func, *task.args, *task.kwargs.values()):
            Arena().pack(part, repr(task))
    except errors.UnsendableError as named:
        return named
    return error


class TaskQueue(Supply):
    """Runs tasks on worker processes, in the order of submission.

    Parameters
    ----------
    request : Request
        The checked arguments: number of workers, initializer, and `run_task` as the function.
    new_prints : callable
        Returns the `Prints` for the output of later tasks.

    Attributes
    ----------
    is_closed : bool
        Whether the queue refuses further tasks.

    Raises
    ------
    UnsendableError
        If the initializer cannot be pickled.

    Notes
    -----
    Thread-safe. A thread of the queue resolves futures and runs their callbacks.
    """

    def __init__(self, request: Request, new_prints: Callable[[], Prints]) -> None:
        self._request = request
        self._new_prints, self._prints = new_prints, request.prints
        arena = Arena()
        fixed = pack_fixed(arena, request)
        self._fixed = fixed, place(arena)
        self._waiting: deque[tuple[Task, TaskFuture]] = deque()
        self._call: Call | None = None  # the call that tasks join
        self._feed: ItemFeed | None = None  # the feed of the call, None while the call ends
        self._tasks: dict[int, tuple[Task, TaskFuture]] = {}  # its tasks, by item
        self._context = request.context
        self._func = 0  # id of the last function whose modules were compared with their files
        self._pace = Pace(REST_S, FIRST_TASKS)  # and tasks beyond one per worker
        self.is_closed = self._is_cancelling = self._is_stopping = False
        self._lock = _thread.allocate_lock()  # held to queue a task, and to end the thread
        self._fate = _thread.allocate_lock()  # see `TaskFuture`
        self._thread: threading.Thread | None = None

    def put(self, task: Task, *, more: bool = False) -> TaskFuture:
        """Queue a task. Return the future of its result.

        If `more` tasks follow immediately, the caller calls `wake` after the last one.

        Raises
        ------
        RuntimeError
            If `close` was called, or the interpreter is exiting.
        TypeError
            If the function is asynchronous.
        """
        func = id(getattr(task.func, "__func__", task.func))  # a method is a new object each time
        if func != self._func or not len(self):
            refuse_async(task.func)
            self._func = func
            warn_of_changes(task.func)
        with self._lock:
            self.check_open()
            if not self._waiting and not self._tasks:
                self._context = current_context()
                if self._thread is None or not self._prints.is_here:
                    self._prints.end()
                    self._prints = self._new_prints()
            if self._thread is None:
                self._start()
            future = TaskFuture(self._fate)
            self._waiting.append((task, future))
        if not more:
            self.wake()
        return future

    def __len__(self) -> int:
        """Return the number of unfinished tasks."""
        return len(self._waiting) + len(self._tasks)

    def check_open(self) -> None:
        """Raise RuntimeError if `put` would."""
        if self.is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if is_ending():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def _start(self) -> None:
        need_shared("a worker process", "use concurrent.futures.ThreadPoolExecutor")
        self._pace = Pace(REST_S, FIRST_TASKS)  # forget old measurements
        event = waiting.OwnerEvent()
        thread = threading.Thread(
            target=self._live, args=[event], name="nbshare executor", daemon=False
        )
        with uninterrupted():
            thread.start()
            self._thread, self._event = thread, event

    def close(self) -> None:
        """Refuse further tasks."""
        with self._lock:
            self.is_closed = True
        self.wake()

    def cancel_waiting(self) -> None:
        """Cancel the tasks that no worker has begun. Call `close` first."""
        self._is_cancelling = True
        for _, future in [*self._waiting, *list(self._tasks.values())]:
            future.cancel()

    def stop(self) -> None:
        """Stop the call, which ends running tasks too."""
        self._is_stopping = True
        if (call := self._call) is not None:
            call.stop()

    def join(self) -> None:
        """Wait until all tasks are done. Call `close` first."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():

            def ended_within(seconds: float | None) -> bool:
                thread.join(seconds)
                return not thread.is_alive()

            waiting.interruptible(ended_within, None)

    # ------------------------------------------------------------- in the queue's thread

    def _live(self, event: waiting.OwnerEvent) -> None:
        is_idle = False
        try:
            with self._lock:
                if self._thread is not threading.current_thread():  # two interrupts came together
                    return
            while (prints := self._prints_at_end(is_idle=is_idle)) is None:
                self._resolve()
                self._give_out()
                n_each = len(self._tasks) // self._request.max_workers
                if n_each > 2:  # because each task would wake it
                    time.sleep(min(REST_S, n_each / 2 * self._pace.item_s))
                is_idle = not event.wait(OPEN_S) and not self._tasks
                if is_idle and self._call is not None:
                    self._end_call(self._call)
            prints.end()
        except BaseException as error:  # noqa: BLE001 - no thread may wait forever
            self._fail(error)
            self._prints.end()
        finally:
            with self._lock:
                if self._event is event:
                    self._event = None

    def _prints_at_end(self, *, is_idle: bool) -> Prints | None:
        """Return the prints to end if no tasks are left, else None."""
        with self._lock:
            if self._waiting or self._call or not (is_idle or self.is_closed):
                return None
            self._thread = None
            return self._prints  # the next thread uses new ones

    def _resolve(self) -> None:
        """Resolve the futures whose results have arrived.

        A finished task that is still marked as running waits for the next turn, because its output
        may not be announced yet, and output must be shown before the result.
        """
        call = self._call
        if call is None:
            return
        is_over = call.is_over  # read first, because later results are for the next turn
        present = () if is_over else call.board.slots[:, ITEM].tolist()
        done = [i for i in self._tasks if call.board.state(i) and i not in present]
        if done or is_over:
            engine_of(call).hear_prints(call, are_all=len(done) == len(self._tasks))
        call.request.prints.show()
        if done and self._resolve_done(call, done):
            self._pace.look(call)
            self._pace.resize(LOAD_S * self._request.max_workers / self._pace.item_s, 1, MOST_TASKS)
            call.sweep()
        if is_over:
            self._note_over(call)

    def _resolve_done(self, call: Call, done: list[int]) -> bool:
        """Resolve the futures of finished tasks. Return whether there were any.

        A task whose result is in a log that has not arrived yet stays.
        """
        withdrawn = [i for i in done if self._tasks[i][1].is_withdrawn]
        for i in withdrawn:
            self._taken(call, i).leave()
        others = np.array(sorted(i for i in done if i in self._tasks), np.int64)
        n_before = len(self._tasks)
        for i, value in call.results.load(others):
            has_failed = i in call.results.errors
            future = self._taken(call, i)
            if not future.leave():
                continue
            if type(value) is Unloadable:
                future.set_exception(shown_shortly(value.error))
            elif has_failed:
                future.set_exception(shown_shortly(value))
            else:
                future.set_result(value)
        return bool(withdrawn) or len(self._tasks) < n_before

    def _taken(self, call: Call, i: int) -> TaskFuture:
        """Return the future of a finished task, and drop the task."""
        call.results.take(i)
        call.results.errors.pop(i, None)
        return self._tasks.pop(i)[1]

    def _note_over(self, call: Call) -> None:
        """Queue tasks again that no worker has begun, and fail those that were lost."""
        self._call = self._feed = None
        tasks, self._tasks = self._tasks, {}
        if call.state == "stopped" and not self._is_stopping:
            # `nbshare.shutdown` stopped the call, so new workers run the other tasks.
            unbegun = [tasks.pop(i) for i in list(tasks) if not call.board.is_claimed(i)]
            self._waiting.extendleft(reversed(unbegun))
        ended = (
            "the worker was killed before the task was done, by the executor's terminate_workers() "
            "or by nbshare.shutdown()"
        )
        for _, future in tasks.values():
            if future.leave():
                future.set_exception(call.error or errors.WorkerDiedError(ended))

    def _give_out(self) -> None:
        """Keep workers supplied with tasks."""
        call = self._call
        if call is not None and not self._tasks:
            is_awaited = not self.is_closed and self._pace.item_s < OPEN_S
            if not (self._goes_on(call) if self._waiting else is_awaited):
                self._end_call(call)
        while self._waiting and (n := self._n_wanted()):
            if taken := self._take(n):
                self._join(taken)

    def _end_call(self, call: Call) -> None:
        """Close the call, which has run out of tasks."""
        call.close()
        call.await_end(END_S)
        self._call = self._feed = None

    def _goes_on(self, call: Call) -> bool:
        """Return whether a call that has run out of tasks can take the next ones."""
        request, engine = call.request, engine_of(call)
        if request.prints is not self._prints or request.context != self._context:
            return False
        if call.is_over or engine is not dispatcher() or not engine.is_current(call):
            return False
        call.board.header[ROUND] += 1  # workers restore the settings that tasks have changed
        return True

    def _n_wanted(self) -> int:
        n_workers, n_open = self._request.max_workers, len(self._tasks)
        if n_open < n_workers:  # these begin while others are packed
            return n_workers - n_open
        return 0 if n_open >= n_workers + self._pace.size else min(MOST_TASKS, self._pace.size)

    def _take(self, n: int) -> list[tuple[Task, TaskFuture]]:
        """Remove tasks from the queue, up to `n`. Return those that were not cancelled."""
        taken: list[tuple[Task, TaskFuture]] = []
        nbytes = 0
        while self._waiting and len(taken) < n and nbytes < MOST_BYTES:
            task, future = self._waiting.popleft()
            if not future.is_withdrawn:
                taken.append((task, future))
                nbytes += task.nbytes
        return taken

    def _join(self, taken: list[tuple[Task, TaskFuture]]) -> None:
        """Add tasks to the open call, or to a new one."""
        call, n = self._call, 0
        joined: dict[int, tuple[Task, TaskFuture]] = {}
        for task, future in taken:
            try:
                call = call or self._new_call()
                assert self._feed is not None
                joined[self._feed.add([[task]])] = task, future
            except BaseException as error:  # noqa: BLE001 - of this task only
                refuse(task, future, error)
        if call is None:
            return
        assert self._feed is not None
        try:
            n = self._feed.flush()
        except BaseException as error:  # noqa: BLE001 - memory is short
            for task, future in joined.values():
                refuse(task, future, error)
            joined.clear()
        for i, (task, future) in joined.items():
            self._tasks[i] = task, future
            future.enter(call, i)  # a cancelled task has no result
        call.board.publish(n)
        if call.state == "starting" and not call.code.generation:
            call.start()
        else:
            call.engine.notify(call)
        if self._is_cancelling:  # a thread that cancels or stops may have missed these tasks
            self.cancel_waiting()
        if self._is_stopping:
            call.stop()

    def _new_call(self) -> Call:
        request = self._request._replace(context=self._context, prints=self._prints)
        self._call = call = prepare(request, dispatcher(), self._fixed)
        assert self._event is not None
        call.supply, call.event_fd = self, self._event.fd
        call.board.few = ALWAYS
        self._feed, self._pace = call.feed, Pace(self._pace.item_s, self._pace.size)
        return call

    def _fail(self, error: BaseException) -> None:
        """Set an error on all futures, which would otherwise wait forever."""
        self.stop()
        with self._lock:
            self.is_closed, self._thread = True, None
        tasks = [*self._tasks.values(), *self._waiting]
        self._call = self._feed = None
        self._tasks.clear()
        self._waiting.clear()
        for _, future in tasks:
            if future.leave():
                future.set_exception(error)
