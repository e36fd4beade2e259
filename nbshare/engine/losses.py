"""What the death of a worker means for its call: which items it takes along, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from nbshare.engine.call import Call
from nbshare.engine.process import WorkerProcess
from nbshare.wire.board import ATTEMPTS, FAILED, SUSPECT
from nbshare.wire.failures import death_of, timed_out

__all__ = ["take_off"]

ErrorOf = Callable[[int, str], BaseException]


def take_off(
    call: Call, worker: WorkerProcess, status: int | None, late_at: float | None
) -> tuple[range, BaseException | None]:
    """Take a dead worker off its call; returns the items that others are to do, and a fatal error.

    Parameters
    ----------
    call : Call
        That it was at work on.
    worker : WorkerProcess
        The dead one.
    status : int or None
        Its exit status, if known.
    late_at : float or None
        When it was ended for having been at an item for too long, on the monotonic clock.
    """
    slot, board = call.workers.pop(worker), call.board
    items, unbegun = board.items_of(slot), board.unbegun(slot)
    busy_since = board.busy_since(slot) or 0.0
    # One that had not turned to the call, or waited at an open one, died while it was idle: that
    # says nothing of the call.
    call.n_unborn += not worker.is_ready
    is_loading = board.loading_since(slot) is not None
    has_worked = call.entrance is None and board.has_begun(slot)
    has_turned = is_loading or has_worked or bool(unbegun)
    call.n_replaced += not items and has_turned and late_at is None
    call.past_slots.append(board.row(slot).tolist())
    board.clear_slot(slot)
    call.free_slots.append(slot)
    if not items:
        return unbegun, None
    call.torn_rows += items
    error_of: ErrorOf = partial(death_of, worker.pid, status, worker.why)
    is_guilty, error = True, None
    timeout_s = call.request.policy.timeout_s
    if late_at is not None and timeout_s is not None:
        error_of = partial(timed_out, worker.pid, timeout_s)
        is_guilty = late_at >= busy_since + timeout_s  # else it had just left the late one for this
    are_open = not is_guilty
    if is_guilty and not board.stopped:
        are_open, error = _blame(call, items, error_of)
    if are_open:
        unbegun = range(items.start, max(items.stop, unbegun.stop))
    return unbegun, error


def _blame(call: Call, items: range, error_of: ErrorOf) -> tuple[bool, BaseException | None]:
    """Return whether items in whose middle a worker died are tried again, and a fatal error.

    `error_of` takes an item's index and text.
    """
    attempts = call.board.attempts_to_count(items.start, items.stop)
    if len(items) > 1:
        attempts |= SUSPECT  # next time they are run one by one, and the guilty one is known
        return True, None
    attempts += 1
    policy = call.request.policy
    if attempts[0] & ATTEMPTS <= policy.retries:
        return True, None
    error = error_of(call.request.first + items.start, call.request.text_of(items.start))
    call.note_error(error, items)
    if not policy.returns_errors:
        return False, error
    call.board.done[items.start] = FAILED
    return False, None
