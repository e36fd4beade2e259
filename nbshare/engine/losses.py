"""What the death of a worker means for its call: which items it takes along, and their errors."""

from __future__ import annotations

from nbshare.engine.call import Call
from nbshare.engine.process import WorkerProcess
from nbshare.wire.failures import death_of, timed_out
from nbshare.wire.page import ATTEMPTS, SUSPECT
from nbshare.wire.slots import LOADED, SINCE, has_begun, loading_since

__all__ = ["account_for_death"]


def account_for_death(
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
    row, policy, stage = board.row(slot).tolist(), call.request.policy, call.request.stage
    items, unbegun = board.items_of(slot), board.unbegun(slot)
    # One that had not turned to the call, or waited at an open one, died while it was idle: that
    # says nothing of the call.
    if board.is_open and (n_done := board.n_done()) > call.n_done_at_loss:
        call.n_replaced, call.n_unborn = 0, 0  # an endless call: count from its last progress
        call.n_done_at_loss = n_done
    call.n_unborn += not worker.is_ready
    has_worked = call.entrance is None and has_begun(row)
    has_turned = loading_since(row) is not None or has_worked or bool(unbegun)
    call.n_replaced += not items and has_turned and late_at is None
    call.past_slots.append(row)
    board.clear_slot(slot)
    call.free_slots.append(slot)
    error: BaseException
    if not items:
        if stage is None or not row[LOADED] or board.stopped:
            return unbegun, None
        # It may have had a slot of the ring behind it, which the other stages would wait for.
        doing = f"waited for a block in stage {stage!r}"
        return unbegun, death_of(worker.pid, status, worker.why, doing)
    call.torn_rows += items
    name, is_guilty = call.name_of(items.start), True
    if late_at is not None and policy.timeout_s is not None:
        error = timed_out(worker.pid, policy.timeout_s, name, items.start)
        # Else it had just left the late one for this. A block cannot be run again.
        is_guilty = late_at >= row[SINCE] / 1e9 + policy.timeout_s or stage is not None
    else:
        error = death_of(worker.pid, status, worker.why, f"worked on {name}", items.start)
    if is_guilty and board.stopped:
        return unbegun, None
    if is_guilty and not _may_run_again(call, items):
        call.note_error(error, items)
        if not policy.returns_errors:
            return unbegun, error
        board.fail(items.start)
        return unbegun, None
    return range(items.start, max(items.stop, unbegun.stop)), None


def _may_run_again(call: Call, items: range) -> bool:
    """Count the death of a worker as a failure of its items; returns whether to run them again."""
    attempts = call.board.attempts_to_count(items.start, items.stop)
    if len(items) > 1:
        attempts |= SUSPECT  # next time they are run one by one, and the guilty one is known
        return True
    attempts += 1
    return bool(attempts[0] & ATTEMPTS <= call.request.policy.retries)
