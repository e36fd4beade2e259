"""What has to be done at a time, though no worker says anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from nbshare.engine.call import Call
from nbshare.engine.prints import WARNING
from nbshare.engine.process import WorkerProcess
from nbshare.wire.board import reported
from nbshare.wire.orders import LONG_LOADING_S

__all__ = ["GRACE_S", "Deadlines"]

# For the items under way when a call is stopped; then their workers are ended. After an interrupt
# all is to be usable again within 0.1 s: new workers take some 20 ms, their imports the rest.
GRACE_S = 0.02
BEGIN_S = 2.0  # an idle worker turns to a call within a millisecond, unless it was stopped
TOLD_S = 0.5  # after which a worker has written down what it has been loading for long


class Lose(Protocol):
    """Ends a worker, and sees to what it has left."""

    def __call__(self, worker: WorkerProcess, *, is_late: bool = False) -> None:
        """End it; `is_late`: since its item takes too long."""


class Deadlines:
    """The deadlines of running calls.

    Parameters
    ----------
    calls : mapping
        Those that run.
    hear_all : callable
        Handles what a worker has sent.
    lose : callable
        Ends a worker.
    advance : callable
        Finishes a call if nobody works on it any more.
    replenish : callable
        Starts so many workers for the next call.

    Notes
    -----
    For the dispatcher's thread.
    """

    def __init__(
        self,
        calls: Mapping[int, Call],
        hear_all: Callable[[WorkerProcess], None],
        lose: Lose,
        advance: Callable[[Call], None],
        replenish: Callable[[int], None],
    ) -> None:
        self._calls = calls
        self._hear_all, self._lose, self._advance = hear_all, lose, advance
        self._replenish = replenish

    def times(self) -> Iterator[float]:
        """Yield when `enforce` has something to do, on the monotonic clock."""
        for call in self._calls.values():
            if call.kill_at is not None:
                yield call.kill_at
            elif call.request.policy.timeout_s is not None:
                yield from (self._due_s(call, worker) for worker in call.workers)
            yield from self._sleepers(call).values()
            yield from (due_s for due_s, _ in self._loading(call))

    def enforce(self) -> None:
        """End the workers whose time is up."""
        for call in list(self._calls.values()):
            if call.kill_at is not None:
                self._stop(call)
            elif call.request.policy.timeout_s is not None:
                self._end_timed_out(call)
            self._replace_sleepers(call)
            self._tell_of_loading(call)

    def _stop(self, call: Call) -> None:
        """End the workers that are still busy with a call that was stopped."""
        assert call.kill_at is not None
        if time.monotonic() < call.kill_at:
            return
        n_ended = 0
        for worker in list(call.workers):
            self._hear_all(worker)
            # One that is not ready has begun nothing, and will find the call over.
            if worker in call.workers and worker.is_ready:
                self._lose(worker)
                n_ended += 1
        self._advance(call)
        self._replenish(n_ended)

    def _end_timed_out(self, call: Call) -> None:
        """End and replace the workers that take too long for an item."""
        for worker in list(call.workers):
            if worker in call.workers and time.monotonic() >= self._due_s(call, worker):
                self._lose(worker, is_late=True)

    def _replace_sleepers(self, call: Call) -> None:
        """Replace workers that somebody has stopped while they were idle."""
        for worker, due_s in self._sleepers(call).items():
            if worker in call.workers and time.monotonic() >= due_s:
                self._lose(worker)

    def _tell_of_loading(self, call: Call) -> None:
        """Warn once of a worker that takes long to load the function; it may."""
        for due_s, slot in self._loading(call):
            if time.monotonic() >= due_s:
                call.has_told = True
                what = reported(call.board.row(slot).tolist())[1] or "loading the function"
                call.request.prints.add(
                    WARNING,
                    f"worker {slot + 1} has been {what} for {LONG_LOADING_S:g} s. It may take as "
                    "long as it needs; if it never ends, interrupt the run",
                )
                return

    @staticmethod
    def _loading(call: Call) -> Iterator[tuple[float, int]]:
        """Yield when to tell of workers that load the function, and their slots."""
        for slot in () if call.has_told else call.workers.values():
            if (since := call.board.loading_since(slot)) is not None:
                yield since + LONG_LOADING_S + TOLD_S, slot

    @staticmethod
    def _sleepers(call: Call) -> dict[WorkerProcess, float]:
        """Return the workers that have yet to turn to what they were given, and until when."""
        sleepers, entrance = {}, call.entrance
        # Those that wait at an open call for items are to take one that is there, or to leave.
        are_called = entrance is not None and (
            call.is_complete or call.board.has_waiting(entrance.items.n_items)
        )
        for worker, slot in call.workers.items():
            if not worker.is_ready:
                continue
            if not call.board.has_begun(slot):
                # One that is still at an earlier call others need not wait for.
                if not worker.is_behind or len(call.workers) == 1 or worker.is_stopped:
                    sleepers[worker] = worker.call_since + BEGIN_S
            elif entrance is not None and (since := call.board.idle_since(slot)) is not None:
                loads = bool(call.board.unbegun(slot))  # items that it has claimed
                if worker.is_stopped if loads else are_called:
                    sleepers[worker] = max(since, entrance.called_at) + BEGIN_S
        return sleepers

    @staticmethod
    def _due_s(call: Call, worker: WorkerProcess) -> float:
        """Return when a worker's item is due: of one that it has not begun, at the earliest."""
        timeout_s = call.request.policy.timeout_s
        assert timeout_s is not None
        since = call.board.busy_since(call.workers[worker])
        return (time.monotonic() if since is None else since) + timeout_s
