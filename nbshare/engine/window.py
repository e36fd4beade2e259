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
from typing import Any

from nbshare import errors
from nbshare.engine.dispatcher import Dispatcher
from nbshare.engine.single import SingleRun
from nbshare.tracebacks import shown_shortly
from nbshare.worker.schedule import FAILED, ITEM

__all__ = ["TaskFuture", "Window"]


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


class Window:
    """Tasks of a call, and their futures.

    Parameters
    ----------
    run : SingleRun
        The call, not begun.
    engine : Dispatcher
        Whose it is.
    futures : list of TaskFuture
        Of its items.
    """

    def __init__(self, run: SingleRun, engine: Dispatcher, futures: list[TaskFuture]) -> None:
        self._run, self._engine = run, engine
        self.futures = dict(enumerate(futures))  # those that are not resolved
        self.start, self.stop, self.pace = run.start, run.stop, run.pace
        for i, future in enumerate(futures):
            future.enter(self, i)

    @property
    def is_over(self) -> bool:
        """Whether its workers are free."""
        return self._run.is_over

    def has_begun(self, i: int) -> bool:
        """Whether a worker has begun a task."""
        return self._run.call.board.is_claimed(i)

    def cancel(self) -> None:
        """Cancel the tasks that no worker has begun."""
        for future in list(self.futures.values()):
            future.cancel()

    def withdraw(self, i: int) -> bool:
        """Take a task back that no worker has begun; returns whether there was time for that."""
        return self._engine.withdraw(self._run.call, i)

    def resolve(self, show: Callable[[], object], *, is_over: bool) -> bool:
        """Resolve the futures whose results have come; returns whether any have.

        `is_over` was asked before: what came since is for the next look. So is what a worker is
        still at: it may have yet to say that there are prints. These are shown first, since who has
        a result has seen what its task has printed.
        """
        call, n_before = self._run.call, len(self.futures)
        state = call.board.done.tobytes()  # first: what is done later is for the next look
        present = () if is_over else call.board.slots[:, ITEM].tolist()
        done = [i for i in self.futures if state[i] and i not in present]
        self._engine.hear_prints(call)
        show()
        for i in done:
            if call.results.is_here(i) or self.futures[i].is_withdrawn:
                self._resolve(i)
        return len(self.futures) < n_before

    def release(self) -> list[int]:
        """Let go of the tasks that no worker has begun, of a call that was stopped."""
        if self._run.state != "stopped":
            return []
        tasks = [i for i in self.futures if not self.has_begun(i)]
        for i in tasks:
            self.futures.pop(i).exit()
        return tasks

    def fail(self) -> None:
        """Fail the tasks that have come to nothing."""
        while self.futures:
            future = self.futures.popitem()[1]
            if future.leave():
                future.set_exception(self._run.error or _ended_early())

    def _resolve(self, i: int) -> None:
        call, future = self._run.call, self.futures.pop(i)
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


def _ended_early() -> BaseException:
    return errors.WorkerDiedError(
        "the worker was ended before the task was done, by the executor's terminate_workers() or "
        "by nbshare.shutdown()"
    )
