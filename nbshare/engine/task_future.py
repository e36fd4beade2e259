"""The future of a task, and what it fails with where no worker has a say."""

from __future__ import annotations

import _thread
from concurrent.futures import Future
from typing import Any

from nbshare import errors
from nbshare.arrays.arena import Arena
from nbshare.engine.call import Call
from nbshare.engine.dispatcher import Dispatcher
from nbshare.wire.task import Task

__all__ = ["TaskFuture", "ended_early", "refuse"]


class TaskFuture(Future[Any]):
    """A future that can be cancelled until a worker begins its task.

    ::

        waiting ──► in a call ──► begun ──► done
           │             │
           └─────────────┴──► cancelled: the queue passes it over; it is withdrawn from the call

    Parameters
    ----------
    fate : lock
        Of its queue: held while it is decided whether a task runs.
    """

    def __init__(self, fate: _thread.LockType) -> None:
        super().__init__()
        self._fate = fate
        self._place: tuple[Call, Dispatcher, int] | None = None  # while workers have it
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
            call, _, i = place
            return call.board.is_claimed(i) and not self.done()
        return super().running()

    def enter(self, call: Call, engine: Dispatcher, i: int) -> None:
        """Note who has the task from now on, or have it withdrawn if it was cancelled meanwhile."""
        with self._fate:
            self._place = call, engine, i
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
        if self._place is None:
            return True
        call, engine, i = self._place
        return engine.withdraw(call, i)


def refuse(task: Task, future: TaskFuture, error: BaseException) -> None:
    """Fail a task that cannot be sent."""
    if future.leave():
        if isinstance(error, errors.UnsendableError):
            error = _reason(task, error)
        future.set_exception(error.with_traceback(None))  # whose frames hold the task


def _reason(task: Task, error: errors.UnsendableError) -> errors.UnsendableError:
    """Return the error of what a task cannot be sent for: the caller knows it by its call only."""
    try:
        for part in (task.func, *task.args, *task.kwargs.values()):
            Arena().pack(part, repr(task))
    except errors.UnsendableError as named:
        return named
    return error


def ended_early() -> BaseException:
    """Return the error of a task whose worker was ended on purpose."""
    return errors.WorkerDiedError(
        "the worker was ended before the task was done, by the executor's terminate_workers() or "
        "by nbshare.shutdown()"
    )
