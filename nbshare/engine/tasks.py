"""Tasks that are queued one by one: what an executor runs.

::

    put(task, future) ──► queue ──► take a window of tasks ──► a call on them ──► …
                                       ▲                          │ all share their workers
                                       └── when workers will      └──► futures, as results come
                                           soon have nothing left

A window is an ordinary call whose items are tasks, so failures, dead and replaced workers are the
calls' business. It is one task if tasks are slow, many if they are quick. What no worker has begun
can still be cancelled: it is withdrawn from its window.

Workers ring when they have done a task, so that the thread which waits need not ask the dispatcher.

The thread that does this lives only while there is work. It is no daemon, so that the interpreter
waits for what is queued before it ends, as it does for the standard library's executors.
"""

from __future__ import annotations

import _thread
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from nbshare import errors
from nbshare.arrays.arena import Arena
from nbshare.engine.bell import Bell
from nbshare.engine.call import Team, prepare
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.intake import MOST_BYTES
from nbshare.engine.local import dispatcher, is_ending
from nbshare.engine.placing import pack_fixed, place
from nbshare.engine.prints import Prints
from nbshare.engine.request import Request
from nbshare.engine.single import SingleRun
from nbshare.engine.task import Arguments
from nbshare.engine.window import TaskFuture, Window
from nbshare.worker.context import current_context

__all__ = ["TaskQueue"]

WINDOW_S = 0.1  # work of all workers in a window: a new one costs half a millisecond
MOST_TASKS = 127  # of a window; so many are pickled one by one, and none can spoil another
FIRST_TASKS = 8  # of a window, while nobody knows how long tasks take
GROWTH = 8  # from one window to the next at most
LINGER_S = 0.1  # the thread waits for more tasks so long, and so does the interpreter's end
REST_S = 0.005  # of the thread, while workers have enough to do
LOOK_S, LONGEST_LOOK_S = 0.001, 0.02  # between looks for results that nobody has told of


class _Task(NamedTuple):
    """One call of a function, and the future of its result."""

    func: Callable[..., Any]
    arguments: Arguments
    future: TaskFuture


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
        self._waiting: deque[_Task] = deque()
        self._windows: dict[Window, list[_Task]] = {}
        self._context = request.context
        self._engine: Dispatcher | None = None
        self._team = Team(request.max_workers)  # on that engine
        self._n_taken = 0
        self._size = FIRST_TASKS  # of the next window, if workers have enough to do
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
                self._prints.end()
                self._prints = self._new_prints()
            if self._thread is None:
                self._start()
            future = TaskFuture(self._fate)
            self._waiting.append(_Task(func, arguments, future))
        if not more:
            self.begin()
        return future

    def begin(self) -> None:
        """Begin what is queued; called by any thread."""
        if self._bell is not None:
            self._bell.ring()

    def check_open(self) -> None:
        """Raise the `RuntimeError` of `put`, if it would."""
        if self._is_closed:
            raise RuntimeError("cannot schedule new futures after shutdown")
        if is_ending():
            raise RuntimeError("cannot schedule new futures after interpreter shutdown")

    def _start(self) -> None:
        self._size = FIRST_TASKS  # what was measured may be old
        self._bell = bell = Bell()
        thread = threading.Thread(
            target=self._live, args=[bell], name="nbshare executor", daemon=False
        )
        self._thread = thread
        try:
            thread.start()
        except BaseException as error:  # an interrupt may leave a thread that has begun
            self._thread = None
            if isinstance(error, RuntimeError):  # no more threads
                bell.close()
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
            while not self._is_over(lingers=is_rung):
                has_news = self._resolve()
                self._open_windows()
                look_s = LOOK_S if has_news else min(2 * look_s, LONGEST_LOOK_S)
                is_polling = any(len(window.futures) > 1 for window in self._windows)
                if self._n_open() > 2 * self._request.max_workers:  # or each task would wake it
                    self._is_news.acquire(timeout=REST_S)
                is_rung = bell.wait(look_s if is_polling else LINGER_S)
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            self._fail(error)
        finally:
            bell.close()
            self._prints.end()

    def _is_over(self, *, lingers: bool) -> bool:
        with self._lock:
            if self._waiting or self._windows or (lingers and not self._is_closed):
                return False
            self._thread = None
            return True

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
            has_news |= window.resolve(self._prints.show, is_over=is_over)
            if is_over:
                if not self._is_stopping:  # by `nbshare.shutdown`, then: other workers will do it
                    tasks = self._windows[window]
                    self._waiting.extendleft(tasks[i] for i in reversed(window.release()))
                window.fail()
                del self._windows[window]
                self._note_pace(*window.pace())
        return has_news

    def _note_pace(self, n_tasks: int, worked_s: float) -> None:
        if n_tasks:
            task_s = max(worked_s, 1e-9) / n_tasks
            wanted = WINDOW_S * self._request.max_workers / task_s
            self._size = max(1, int(min(wanted, GROWTH * self._size, MOST_TASKS)))

    def _open_windows(self) -> None:
        """See to it that workers have something to do, and soon will have."""
        if not self._n_open():  # files may have been edited: the next window is the first of a map
            self._team.map_id = 0
        while self._waiting and (n := self._n_wanted()):
            if taken := self._take(n):
                self._open(taken)

    def _n_wanted(self) -> int:
        n_workers, n_open = self._request.max_workers, self._n_open()
        if n_open >= n_workers + self._size:
            return 0
        return min(MOST_TASKS, max(self._size, n_workers - n_open))

    def _n_open(self) -> int:
        """Count the tasks that workers have been given, and are not resolved."""
        return sum(len(window.futures) for window in list(self._windows))

    def _take(self, n: int) -> list[_Task]:
        """Take tasks off the queue that have not been cancelled."""
        taken: list[_Task] = []
        nbytes = 0
        while self._waiting and len(taken) < n and nbytes < MOST_BYTES:
            task = self._waiting.popleft()
            if not task.future.is_withdrawn:
                taken.append(task)
                nbytes += task.arguments.nbytes
        return taken

    def _open(self, taken: list[_Task]) -> None:
        """Open a window of tasks."""
        n = len(taken)
        request = replace(
            self._request,
            iterables=[[task.func for task in taken], [task.arguments for task in taken]],
            n_tasks=n,
            first=self._n_taken,
            max_workers=min(self._request.max_workers, n),
            context=self._context,
            prints=self._prints,
        )
        try:
            engine = dispatcher()
            if engine is not self._engine:  # the code of its workers is its own
                self._engine, self._team = engine, Team(self._request.max_workers)
            call = prepare(request, engine.warm_up, self._fixed, team=self._team)
        except BaseException as error:  # noqa: BLE001 - one cannot be sent, or memory is short
            if n > 1:  # which of them it is
                for one in taken:
                    self._open([one])
            else:
                self._n_taken += 1
                if taken[0].future.leave():
                    taken[0].future.set_exception(_as_exception(error))
            return
        self._n_taken += n
        assert self._bell is not None
        call.tell, call.bell_fd = self._note_end, self._bell.fd
        window = Window(SingleRun(call, engine), engine, [task.future for task in taken])
        self._windows[window] = taken
        window.start()
        if self._is_cancelling:  # who cancelled or stopped may not have seen this window
            window.cancel()
        if self._is_stopping:
            window.stop()

    def _fail(self, error: BaseException) -> None:
        """Have nobody wait for what will not come."""
        self.stop()
        with self._lock:
            self._is_closed, self._thread = True, None
        futures = [future for window in self._windows for future in window.futures.values()]
        futures += [task.future for task in self._waiting]
        self._windows.clear()
        self._waiting.clear()
        for future in futures:
            if future.leave():
                future.set_exception(error)


def _as_exception(error: BaseException) -> Exception:
    """Return why a task cannot be sent, without the frames that hold it."""
    if isinstance(error, Exception):
        return error.with_traceback(None)
    return errors.UnsendableError(
        f"a task cannot be sent to another process: pickling it raised {type(error).__name__}"
    )
