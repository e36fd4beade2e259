"""Tasks that are queued one by one: what an executor runs.

::

    put(task, future) ──► queue ──► take a window of tasks ──► a call on them ──► …
                                       ▲                          │ all share their workers
                                       └── when workers will      └──► futures, as results come
                                           soon have nothing left

A window is an ordinary call whose items are tasks, so failures, dead and replaced workers are the
calls' business. What no worker has begun can still be cancelled: it is withdrawn from its window.

Tasks that come one by one join a window that is open: a new one takes a millisecond to begin. The
first gets one of its own, and so do those that were queued at once, since an open one takes longer
to begin and to end.

Workers ring when they have done a task, so that the thread which waits need not ask the dispatcher.

The thread that does this lives only while there is work. It is no daemon, so that the interpreter
waits for what is queued before it ends, as it does for the standard library's executors.
"""

from __future__ import annotations

import _thread
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nbshare import errors, threads
from nbshare.arrays.arena import Arena
from nbshare.arrays.inbox import ROOM, Inbox, Seen
from nbshare.engine.bell import Bell
from nbshare.engine.call import Call, Team
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.intake import MOST_BYTES
from nbshare.engine.local import dispatcher, is_ending
from nbshare.engine.placing import pack_fixed, place
from nbshare.engine.preparing import prepare, prepare_open
from nbshare.engine.prints import Prints
from nbshare.engine.request import Request
from nbshare.engine.single import SingleRun
from nbshare.engine.window import OpenWindow, Task, TaskFuture, Window
from nbshare.wire.context import current_context
from nbshare.wire.failures import text_of
from nbshare.wire.task import Arguments, run_task

__all__ = ["TaskQueue"]

WINDOW_S = 0.1  # work of all workers in a window: a new one costs half a millisecond
MOST_TASKS = 127  # of a window; so many are pickled one by one, and none can spoil another
FIRST_TASKS = 8  # of a window, while nobody knows how long tasks take
GROWTH = 8  # from one window to the next at most
LINGER_S = 0.1  # the thread waits for more tasks so long, and so does the interpreter's end
# A window stays open so long after the last task that has joined. Then a task comes late by the
# millisecond that a new one takes to begin; meanwhile its workers are there for nobody else.
OPEN_S = 0.05
REST_S = 0.005  # of the thread, while workers have enough to do
LOOK_S, LONGEST_LOOK_S = 0.001, 0.02  # between looks for results that nobody has told of


class TaskQueue:
    """Runs tasks on worker processes, in the order in which they come.

    Parameters
    ----------
    request : Request
        Workers and initializer; `run_task` is its function, and it has no items.
    new_prints : callable
        Returns where prints go of the tasks that are queued from now on.

    Raises
    ------
    UnsendableError
        If the initializer cannot be pickled.

    Notes
    -----
    For any thread. Futures are resolved in the queue's own, and their callbacks run there.
    """

    def __init__(self, request: Request, new_prints: Callable[[], Prints]) -> None:
        self._request = request
        self._new_prints, self._prints = new_prints, request.prints
        arena = Arena()
        fixed = pack_fixed(arena, request)
        self._fixed = fixed, place(arena)
        self._waiting: deque[Task] = deque()
        self._windows: list[Window] = []
        self._open_window: OpenWindow | None = None  # one of them
        self._seal_at = 0.0
        self._context = request.context
        self._engine: Dispatcher | None = None
        self._team = Team(request.max_workers)  # on that engine
        self._n_taken = 0
        self._size = FIRST_TASKS  # how many are given out beyond one for each worker
        self._task_s = REST_S  # what one took lately
        self._is_closed = False
        self._is_cancelling = self._is_stopping = False
        self._lock = _thread.allocate_lock()  # held to queue a task, and to end the thread
        self._fate = _thread.allocate_lock()  # see `TaskFuture`
        self._is_news = _thread.allocate_lock()  # held until a window is over
        self._bell: Bell | None = None  # the thread's
        self._thread: threading.Thread | None = None

    def put(
        self, func: Callable[..., Any], arguments: Arguments, *, more: bool = False
    ) -> TaskFuture:
        """Queue a task; returns the future of its result.

        If `more` follow at once, none need begin before `begin` is called.

        Raises
        ------
        RuntimeError
            After `close`, and when the interpreter is about to end.
        """
        with self._lock:
            self.check_open()
            if not self._waiting and not self._n_open():
                self._context = current_context()
                if self._thread is None or not self._prints.is_here:
                    self._prints.end()
                    self._prints = self._new_prints()
            if self._thread is None:
                self._start()
            future = TaskFuture(self._fate)
            self._waiting.append(Task(func, arguments, future, more))
        if not more:
            self.begin()
        return future

    def begin(self) -> None:
        """Begin what is queued; called by any thread."""
        if (bell := self._bell) is not None:
            bell.ring()

    def check_open(self) -> None:
        """Raise the `RuntimeError` of `put`, if it would."""
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if is_ending():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def _start(self) -> None:
        self._size, self._task_s = FIRST_TASKS, REST_S  # what was measured may be old
        self._bell = bell = Bell()
        thread = threading.Thread(
            target=self._live, args=[bell], name="nbshare executor", daemon=False
        )
        self._thread = thread
        try:
            threads.start(thread)
        except BaseException as error:  # an interrupt leaves a thread that begins
            self._thread = None
            if isinstance(error, RuntimeError):  # no more threads
                self._bell = None
            raise

    def close(self) -> None:
        """Take no more tasks."""
        with self._lock:
            self._is_closed = True
        self.begin()

    def cancel_waiting(self) -> None:
        """Cancel the tasks that no worker has begun, after `close`."""
        self._is_cancelling = True
        for task in list(self._waiting):
            task.future.cancel()
        for window in list(self._windows):
            window.cancel()

    def stop(self) -> None:
        """End the tasks under way too."""
        self._is_stopping = True
        for window in list(self._windows):
            window.stop()

    def wait(self) -> None:
        """Wait until nothing is left to do, after `close`."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    # ------------------------------------------------------------- in the queue's thread

    def _live(self, bell: Bell) -> None:
        look_s, is_rung = LOOK_S, True
        try:
            with self._lock:
                if self._thread is not threading.current_thread():  # who started it gave it up
                    return
            while (prints := self._prints_at_end(lingers=is_rung)) is None:
                has_news = self._resolve()
                self._open_windows()
                look_s = LOOK_S if has_news else min(2 * look_s, LONGEST_LOOK_S)
                is_polling = any(len(window.tasks) > 1 for window in self._windows)
                n_each = self._n_open() // self._request.max_workers
                if n_each > 2:  # or each task would wake it
                    self._is_news.acquire(timeout=min(REST_S, n_each / 2 * self._task_s))
                pause_s = look_s if is_polling else LINGER_S
                if self._open_window is not None:
                    pause_s = min(pause_s, max(0.0, self._seal_at - time.monotonic()))
                is_rung = bell.wait(pause_s)
            prints.end()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            self._fail(error)
            self._prints.end()
        finally:
            with self._lock:
                if self._bell is bell:
                    self._bell = None

    def _prints_at_end(self, *, lingers: bool) -> Prints | None:
        """Return the prints to end when there is nothing left to do; None while there is."""
        with self._lock:
            if self._waiting or self._windows or (lingers and not self._is_closed):
                return None
            self._thread = None
            return self._prints  # those of the next thread are others

    def _note_end(self) -> None:
        """Have the thread look though it waits for no bell; a window is over."""
        with suppress(RuntimeError):  # it has been told
            self._is_news.release()
        self.begin()

    def _resolve(self) -> bool:
        """Resolve the futures whose results have come; returns whether any have."""
        has_news = False
        for window in list(self._windows):
            is_over = window.is_over
            has_news |= window.resolve(is_over=is_over)
            if is_over:
                if not self._is_stopping:  # by `nbshare.shutdown`, then: other workers will do it
                    self._waiting.extendleft(reversed(window.release()))
                window.fail()
                self._windows.remove(window)
                if window is self._open_window:
                    self._open_window = None
                self._note_pace(*window.pace())
        return has_news

    def _note_pace(self, n_tasks: int, worked_s: float) -> None:
        if n_tasks:
            self._task_s = max(worked_s, 1e-9) / n_tasks
            wanted = WINDOW_S * self._request.max_workers / self._task_s
            self._size = max(1, int(min(wanted, GROWTH * self._size, MOST_TASKS)))

    def _open_windows(self) -> None:
        """See to it that workers have something to do, and soon will have."""
        is_idle = not self._n_open()
        if (window := self._open_window) is not None:
            is_late = time.monotonic() >= self._seal_at or (is_idle and self._is_closed)
            if is_late or window.holds_much:
                self._seal()
        if is_idle and self._waiting and not self._goes_on():
            self._seal()
            self._team.code = None  # the next window is the first of a map
        while self._waiting and (n := self._n_wanted()):
            if taken := self._take(n):
                comes_soon = time.monotonic() < self._seal_at
                are_few = len(taken) <= 2 * self._request.max_workers
                if comes_soon and (are_few or not taken[-1].is_of_many):
                    self._join(taken)
                else:
                    self._seal()
                    self._open(taken)
                self._seal_at = time.monotonic() + OPEN_S

    def _goes_on(self) -> bool:
        """Have tasks join the open window though there were none, if nothing has changed."""
        window = self._open_window
        return window is not None and window.goes_on(self._context, self._prints)

    def _n_wanted(self) -> int:
        n_workers, n_open = self._request.max_workers, self._n_open()
        if n_open >= n_workers + self._size:
            return 0
        return min(MOST_TASKS, max(self._size, n_workers - n_open))

    def _n_open(self) -> int:
        """Count the tasks that workers have been given, and are not resolved."""
        return sum(len(window.tasks) for window in list(self._windows))

    def _take(self, n: int) -> list[Task]:
        """Take tasks off the queue that have not been cancelled."""
        taken: list[Task] = []
        nbytes = 0
        while self._waiting and len(taken) < n and nbytes < MOST_BYTES:
            task = self._waiting.popleft()
            if not task.future.is_withdrawn:
                taken.append(task)
                nbytes += task.arguments.nbytes
        return taken

    def _open(self, taken: list[Task]) -> None:
        """Open a window of these tasks."""
        try:
            columns = [task.func for task in taken], [task.arguments for task in taken]
            engine, request = self._present_engine(), self._request_for(len(taken), columns)
            call = prepare(request, engine.warm_up, self._fixed, team=self._team)
        except BaseException as error:  # noqa: BLE001 - one cannot be sent, or memory is short
            if len(taken) == 1:
                _refuse(taken[0], error)
                return
            for one in taken:  # which of them it is
                self._open([one])
            return
        window = Window(self._run_of(call, engine), engine)
        self._windows.append(window)
        for task in taken:
            window.enter(task)
        self._n_taken += len(taken)
        window.start()
        self._look_after(window)

    def _join(self, taken: list[Task]) -> None:
        """Have tasks join the open window; without room there they get another."""
        seen: Seen = {}
        for task in taken:
            is_small = task.arguments.nbytes <= ROOM // 2
            is_new = self._open_window is None
            try:
                if is_small and self._has_joined(task, seen):
                    continue
                self._seal()
                seen.clear()  # that lies in the window before
                if is_new or not is_small or not self._has_joined(task, seen):
                    self._open([task])
            except BaseException as error:  # noqa: BLE001 - as above
                _refuse(task, error)
        if self._open_window is not None:
            self._open_window.begin()
            self._look_after(self._open_window)

    def _has_joined(self, task: Task, seen: Seen) -> bool:
        """Have a task join the open window, a new one if there is none; whether there is room."""
        engine = self._present_engine()
        if self._open_window is None:
            self._open_window = self._new_window(engine)
            self._windows.append(self._open_window)
        window = self._open_window
        if window.engine is not engine or not window.join(task, seen):
            return False
        self._n_taken += 1
        return True

    def _new_window(self, engine: Dispatcher) -> OpenWindow:
        inbox = Inbox(MOST_TASKS, 2)
        request = self._request_for(MOST_TASKS, ([], []))
        call = prepare_open(request, self._fixed, inbox, self._team)
        return OpenWindow(self._run_of(call, engine), engine, inbox)

    def _seal(self) -> None:
        """Have no more tasks join the open window."""
        window, self._open_window = self._open_window, None
        if window is None:
            return
        if window.n_taken:
            window.begin()
            window.seal()
        else:
            self._windows.remove(window)
            window.stop()

    def _present_engine(self) -> Dispatcher:
        engine = dispatcher()
        if engine is not self._engine:  # the code of its workers is its own
            self._engine, self._team = engine, Team(self._request.max_workers)
        return engine

    def _request_for(self, n: int, columns: tuple[list[Any], list[Any]]) -> Request:
        return self._request._replace(
            iterables=columns,
            n_tasks=n,
            first=self._n_taken,
            max_workers=min(self._request.max_workers, n),
            context=self._context,
            prints=self._prints,
        )

    def _run_of(self, call: Call, engine: Dispatcher) -> SingleRun:
        assert self._bell is not None
        call.tell, call.bell_fd = self._note_end, self._bell.fd
        return SingleRun(call, engine)

    def _look_after(self, window: Window) -> None:
        """See to it that whoever cancels or stops has not overlooked a window."""
        if self._is_cancelling:
            window.cancel()
        if self._is_stopping:
            window.stop()

    def _fail(self, error: BaseException) -> None:
        """Have nobody wait for what will not come."""
        self.stop()
        with self._lock:
            self._is_closed, self._thread = True, None
        tasks = [task for window in self._windows for task in window.tasks.values()]
        tasks += self._waiting
        self._open_window = None
        self._windows.clear()
        self._waiting.clear()
        for task in tasks:
            if task.future.leave():
                task.future.set_exception(error)


def _refuse(task: Task, error: BaseException) -> None:
    """Fail a task that cannot be sent."""
    if task.future.leave():
        error = _as_exception(error)
        if isinstance(error, errors.UnsendableError):  # the caller knows of no numbers
            call = text_of(run_task, (task.func, task.arguments))
            error.args = (call + "".join(str(error).partition(" cannot be sent")[1:]),)
        task.future.set_exception(error)


def _as_exception(error: BaseException) -> Exception:
    """Return why a task cannot be sent, without the frames that hold it."""
    if isinstance(error, Exception):
        return error.with_traceback(None)
    return errors.UnsendableError(
        f"a task cannot be sent to another process: pickling it raised {type(error).__name__}"
    )
