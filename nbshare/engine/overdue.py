"""What has to be done at a time, though no worker says anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from nbshare.engine.call import Call
from nbshare.engine.process import WorkerProcess
from nbshare.engine.workers import WorkerPool
from nbshare.wire.board import busy_since, has_begun, idle_since, loading_since
from nbshare.wire.orders import LONG_LOADING_S

__all__ = ["Due", "next_deadline", "overdue"]

BEGIN_S = 2.0  # an idle worker turns to a call within a millisecond, unless it was stopped
TOLD_S = 0.5  # after which a worker has written down what it has been loading for long
IDLE_S = 300.0  # after which idle workers end: they keep the user's modules in memory


class Due(NamedTuple):
    """What has to be done, and when.

    Attributes
    ----------
    at_s : float
        On the monotonic clock.
    what : str
        What has happened to a worker:

        ==============  ====================================================================
        "stopped call"  it is still busy with a call that was stopped some time ago
        "timed out"     it takes too long for an item
        "asleep"        it has not turned to its call, or left it: somebody has stopped it
        "loading"       it takes long to load the function
        "idle"          it has had nothing to do for long
        "starting"      it is to be ready before long: has somebody stopped the server?
        "not started"   it should have been ready by then
        ==============  ====================================================================
    worker : WorkerProcess
        Which one.
    """

    at_s: float
    what: Literal[
        "stopped call",
        "timed out",
        "asleep",
        "loading",
        "idle",
        "starting",
        "not started",
    ]
    worker: WorkerProcess


def next_deadline(calls: Iterable[Call], pool: WorkerPool, now: float) -> float:
    """Return when something will have to be done if no worker says anything; maybe never."""
    return min((due.at_s for due in _deadlines(calls, pool, now)), default=math.inf)


def overdue(calls: Iterable[Call], pool: WorkerPool, now: float) -> list[Due]:
    """Return what has to be done at this time."""
    return [due for due in _deadlines(calls, pool, now) if due.at_s <= now]


def _deadlines(calls: Iterable[Call], pool: WorkerPool, now: float) -> Iterator[Due]:
    for call in calls:
        if call.kill_at is not None:
            for worker in call.workers:
                if worker.is_ready:  # else it has begun nothing, and will find the call over
                    yield Due(call.kill_at, "stopped call", worker)
            continue
        yield from _timeouts(call, now)
        yield from _sleepers(call)
        if not call.has_told:
            yield from _loading(call)
    for worker in pool:
        if not worker.is_ready:
            yield Due(worker.ready_by, "not started", worker)
            yield Due(worker.look_at, "starting", worker)
    for worker in pool.detached():
        # Then calls wait for it no longer. If somebody has stopped it, it will never come.
        if now < worker.late_at or worker.is_stopped:
            yield Due(worker.late_at, "asleep", worker)
    for worker, since in pool.idle_since.items():
        yield Due(since + IDLE_S, "idle", worker)


def _timeouts(call: Call, now: float) -> Iterator[Due]:
    """Yield when items are due: of a worker that has not begun one, at the earliest."""
    if (timeout_s := call.request.policy.timeout_s) is not None:
        for worker, slot in call.workers.items():
            since = busy_since(call.board.row(slot))
            yield Due((now if since is None else since) + timeout_s, "timed out", worker)


def _sleepers(call: Call) -> Iterator[Due]:
    """Yield until when workers have to turn to what they were given."""
    board, event = call.board, call.items_event
    # Those that wait at an open call for items are to take one that is there, or to leave.
    are_called = event is not None and (call.is_complete or board.has_waiting())
    for worker, slot in call.workers.items():
        if not worker.is_ready:
            continue
        if not has_begun(board.row(slot)):
            yield Due(worker.call_since + BEGIN_S, "asleep", worker)
        elif event is not None and (since := idle_since(board.row(slot))) is not None:
            loads = bool(board.unbegun(slot))  # items that it has claimed
            if worker.is_stopped if loads else are_called:
                yield Due(max(since, event.set_at) + BEGIN_S, "asleep", worker)


def _loading(call: Call) -> Iterator[Due]:
    for worker, slot in call.workers.items():
        if (since := loading_since(call.board.row(slot))) is not None:
            yield Due(since + LONG_LOADING_S + TOLD_S, "loading", worker)
