"""Tasks that workers have been given, and the futures that wait for them.

::

    waiting ──► in a window ──► begun ──► done
       │             │
       └─────────────┴──► cancelled: the queue passes it over; the window withdraws it
"""

from __future__ import annotations

import _thread
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from nbshare import errors
from nbshare.arrays.inbox import Inbox, Seen
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.intake import MOST_BYTES
from nbshare.engine.prints import Prints
from nbshare.engine.single import SingleRun
from nbshare.tracebacks import shown_shortly
from nbshare.wire.board import FAILED, ITEM, ROUND
from nbshare.wire.context import Context
from nbshare.wire.task import Arguments

__all__ = ["OpenWindow", "Task", "TaskFuture", "Window"]

MOST_LOGS = 4  # of an open window; each takes a descriptor


class TaskFuture(Future[Any]):
    """A future that can be cancelled until a worker begins its task.

    Parameters
    ----------
    fate : lock
        Of its queue: held while it is decided whether a task runs.
    """

    def __init__(self, fate: _thread.LockType) -> None:
        super().__init__()
        self._fate = fate
        self._place: tuple[Window, int] | None = None  # while workers have it
        self._has_left = False  # the queue
        self.is_withdrawn = False  # whoever has withdrawn it sees to all else

    def cancel(self) -> bool:
        """Cancel the task if no worker has begun it; returns whether it is cancelled."""
        with self._fate:
            if self.is_withdrawn:
                return True
            if self._has_left or not self._withdraw():
                return False
            self.is_withdrawn = True
        super().cancel()  # outside of the lock: callbacks run here
        self.set_running_or_notify_cancel()
        return True

    def running(self) -> bool:
        """Return whether a worker has begun the task, and not done it yet."""
        if place := self._place:
            return place[0].has_begun(place[1]) and not self.done()
        return super().running()

    def enter(self, window: Window, i: int) -> None:
        """Note who has the task from now on, or have it withdrawn if it was cancelled meanwhile."""
        with self._fate:
            self._place = window, i
            if self.is_withdrawn:
                self._withdraw()

    def exit(self) -> None:
        """Note that the task is queued again."""
        with self._fate:
            self._place = None

    def leave(self) -> bool:
        """Note that the task's fate is known; returns whether it has not been cancelled."""
        with self._fate:
            self._has_left, self._place = True, None
        return not self.is_withdrawn and self.set_running_or_notify_cancel()

    def _withdraw(self) -> bool:
        return self._place is None or self._place[0].withdraw(self._place[1])


class Task(NamedTuple):
    """One call of a function, and the future of its result."""

    func: Callable[..., Any]
    arguments: Arguments
    future: TaskFuture
    is_of_many: bool  # that were queued at once


class Window:
    """Tasks of a call, and their futures.

    Parameters
    ----------
    run : SingleRun
        The call, not begun.
    engine : Dispatcher
        Whose it is.
    """

    def __init__(self, run: SingleRun, engine: Dispatcher) -> None:
        self._run, self.engine = run, engine
        self.n_taken = 0
        self.tasks: dict[int, Task] = {}  # those that are not resolved, by item
        self.start, self.stop, self.pace = run.start, run.stop, run.pace

    def enter(self, task: Task) -> None:
        """Note the next task that it has."""
        i = self.n_taken
        self.tasks[i] = task
        self.n_taken += 1
        task.future.enter(self, i)

    @property
    def is_over(self) -> bool:
        """Whether its workers are free."""
        return self._run.is_over

    def has_begun(self, i: int) -> bool:
        """Whether a worker has begun a task."""
        return self._run.call.board.is_claimed(i)

    def cancel(self) -> None:
        """Cancel the tasks that no worker has begun."""
        for task in list(self.tasks.values()):
            task.future.cancel()

    def withdraw(self, i: int) -> bool:
        """Take a task back that no worker has begun; returns whether there was time for that."""
        return self.engine.withdraw(self._run.call, i)

    def resolve(self, *, is_over: bool) -> bool:
        """Resolve the futures whose results have come; returns whether any have.

        `is_over` was asked before: what came since is for the next look. So is what a worker is
        still at: it may have yet to say that there are prints. These are shown first, since who has
        a result has seen what its task has printed.
        """
        call, n_before = self._run.call, len(self.tasks)
        state = call.board.done.tobytes()  # first: what is done later is for the next look
        present = () if is_over else call.board.slots[:, ITEM].tolist()
        done = [i for i in self.tasks if state[i] and i not in present]
        self.engine.hear_prints(call, are_all=len(done) == len(self.tasks))
        call.request.prints.show()
        for i in done:
            if call.results.is_here(i) or self.tasks[i].future.is_withdrawn:
                self._resolve(i)
        return len(self.tasks) < n_before

    def release(self) -> list[Task]:
        """Let go of the tasks that no worker has begun, of a call that was stopped."""
        if self._run.state != "stopped":
            return []
        tasks = [self.tasks.pop(i) for i in list(self.tasks) if not self.has_begun(i)]
        for task in tasks:
            task.future.exit()
        return tasks

    def fail(self) -> None:
        """Fail the tasks that have come to nothing."""
        while self.tasks:
            future = self.tasks.popitem()[1].future
            if future.leave():
                future.set_exception(self._run.error or _ended_early())

    def _resolve(self, i: int) -> None:
        call, future = self._run.call, self.tasks.pop(i).future
        for column in call.request.iterables:  # an open window lasts
            column[i] = None
        if not future.leave():
            return
        try:
            value = call.results.get(i)
        except BaseException as error:  # noqa: BLE001 - unpickling runs users' code
            future.set_exception(shown_shortly(error))
            return
        if call.board.done[i] == FAILED:
            future.set_exception(shown_shortly(value))
        else:
            future.set_result(value)


class OpenWindow(Window):
    """A window that tasks join while workers are at those before them.

    Parameters
    ----------
    run : SingleRun
        The call, not begun. Its request's columns are lists, which are filled here.
    engine : Dispatcher
        Whose it is.
    inbox : Inbox
        Of the call.
    """

    def __init__(self, run: SingleRun, engine: Dispatcher, inbox: Inbox) -> None:
        super().__init__(run, engine)
        self._inbox = inbox
        self._n_told = 0  # tasks that workers have been told of

    def goes_on(self, context: Context, prints: Prints) -> bool:
        """Go on after it was idle, if its tasks will be as those of a new call; else say False."""
        call = self._run.call
        request = call.request
        if request.prints is not prints or request.context != context:
            return False
        if not self.engine.is_current(call):
            return False
        call.board.header[ROUND] += 1  # workers undo what tasks have changed in them
        return True

    @property
    def holds_much(self) -> bool:
        """Whether its results take much, or many descriptors, which they do until it is over."""
        logs = self._run.call.results.logs
        return logs.nbytes > MOST_BYTES or logs.n > MOST_LOGS

    def join(self, task: Task, seen: Seen) -> bool:
        """Take a task, if there is room for it; returns whether there is.

        Raises
        ------
        UnsendableError
            If it cannot be pickled.
        """
        call = self._run.call
        index = call.request.first + self.n_taken
        if not self._inbox.add((task.func, task.arguments), index, seen):
            return False
        for column, part in zip(call.request.iterables, task, strict=False):
            column.append(part)
        self.enter(task)  # first: what has been cancelled is withdrawn before anybody sees it
        self._inbox.publish()
        return True

    def begin(self) -> None:
        """Have workers do what has joined."""
        call, n_new, self._n_told = self._run.call, self.n_taken - self._n_told, self.n_taken
        if 0 < n_new == self.n_taken:
            self.start()
        elif n_new and (entrance := call.entrance) is not None:
            entrance.call()
            if call.wants_worker:
                self.engine.man(call)

    def seal(self) -> None:
        """Take no more tasks."""
        self.engine.complete(self._run.call)


def _ended_early() -> BaseException:
    return errors.WorkerDiedError(
        "the worker was ended before the task was done, by the executor's terminate_workers() or "
        "by nbshare.shutdown()"
    )
