"""The running calls: assigns workers, handles messages and replaces lost workers.

::

    begin, assign_workers ──► send the call              ──►   claim chunks, run items,
                                                               write results and done flags
    hear                      allocate the output        ◄──   wanted: first result
                              note                       ◄──   failed / log / imported / finished
    …
    finish_ended ──► when all messages have arrived
"""

from __future__ import annotations

import _thread
import errno
import math
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from nbshare import errors
from nbshare._core.engine.call import MAX_REPLACED, Call
from nbshare._core.engine.prints import PrintPipes
from nbshare._core.engine.process import WorkerProcess
from nbshare._core.engine.workers import WorkerPool
from nbshare._core.functions.freshness import Stamp
from nbshare._core.memory import Segment
from nbshare._core.messages import without_frames
from nbshare._core.store.pages import SUSPECT
from nbshare._core.store.specs import OutputSpec
from nbshare._core.system import locks, processes
from nbshare._core.wire.board import LEAVES, LOADED, REACHED, RETRIED, SINCE, busy_since, give_back
from nbshare._core.wire.failures import Death, Failure

# Time for the running items of a stopped call, before their workers are killed. After an interrupt,
# the next call must work within 0.1 s. New workers take about 20 ms of this, and their imports the
# rest.
GRACE_S = 0.02
KILLED = -9  # the exit status after SIGKILL
MEMORY_CHECK_S = 0.5  # interval of checks of the workers' memory
# Workers that are starting at the same time. The server's channel holds some hundred requests.
MOST_STARTING = 32


class Calls:
    """All running calls.

    Parameters
    ----------
    pool : WorkerPool
        The workers.
    pipes : PrintPipes
        The pipes of the workers' output.
    lock : FileLock
        Held by workers while they claim items. This process then also holds `claiming`.

    Attributes
    ----------
    running : dict
        Running calls, by id.
    claiming : lock
        Excludes the other threads of this process, which `lock` does not exclude.

    Notes
    -----
    For the dispatcher's thread. `hear`, `lose` and `stop` only record events. At the end of a turn,
    `assign_workers` and `finish_ended` act on them, so no method is re-entered.
    """

    def __init__(self, pool: WorkerPool, pipes: PrintPipes, lock: locks.FileLock) -> None:
        self._pool, self._pipes, self.lock = pool, pipes, lock
        self.running: dict[int, Call] = {}
        self.claiming = _thread.allocate_lock()

    def begin(self, call: Call) -> None:
        """Begin a call, unless another thread has stopped it."""
        if call.is_over or call.id in self.running:  # an executor may submit it twice
            return
        try:
            call.code = self._pool.renew_if_stale(call, is_in_use=bool(self.running))
        except Exception as error:  # noqa: BLE001 - the call fails, not this thread
            call.note_failure(without_frames(error))
            call.finish(is_whole=False)
            return
        self.running[call.id] = call

    def stop(self, call: Call) -> None:
        """End a call early."""
        if call.is_over:
            return
        if call.id not in self.running:  # interrupted before it was submitted
            call.finish(is_whole=False)
            return
        call.halt()
        if call.kill_at is None:
            call.kill_at = time.monotonic() + GRACE_S

    def fail(self, call: Call, error: BaseException) -> None:
        """Record the first failure of a call, and stop the call."""
        if call.error is None and not call.results.is_final:
            call.note_failure(error)
            self.stop(call)

    # -------------------------------------------------------------- the effects on calls

    def finish_ended(self) -> None:
        """Finish the calls that have ended and whose messages have arrived."""
        for call in list(self.running.values()):
            call.has_begun = call.has_begun or any(w.is_ready for w in call.workers)
            is_complete = call.is_complete  # read once, because an item may end between two checks
            if is_complete or call.board.stopped:
                for worker in list(call.workers):
                    self.hear_all(worker)  # messages from before the items were done
            is_done = is_complete and call.error is None and not call.board.stopped
            if _has_ended(call, is_done=is_done):
                self._finish(call, is_whole=is_done)

    def _finish(self, call: Call, *, is_whole: bool) -> None:
        del self.running[call.id]
        self.read_prints(call)
        self._pipes.end_lines(call.request.prints)
        for worker in call.workers:  # they find no more items and become idle
            if worker.state == "working":
                worker.enter("released")
        call.workers.clear()
        call.finish(is_whole=is_whole)

    def assign_workers(self) -> None:
        """Assign workers to calls that can use more."""
        # Outdated workers end first, so that their numbers are free.
        self._pool.remove_outdated({call.code.generation for call in self.running.values()})
        for call in list(self.running.values()):
            self._assign_workers(call)

    @property
    def look_at(self) -> float:
        """Time of the next check of the workers' memory, on the monotonic clock."""
        looked = [call.looked_at for call in self.running.values() if _may_shrink(call)]
        return min(looked, default=math.inf) + MEMORY_CHECK_S

    def look_at_memory(self) -> None:
        """Limit the workers of each call to those that fit into memory."""
        for call in self.running.values():
            if _may_shrink(call) and call.look_at_memory():
                for worker in self._pool.idle:  # idle workers hold memory, too
                    self._pool.dismiss(worker)

    def _assign_workers(self, call: Call) -> None:
        try:
            while call.wants_worker:
                number = self._pool.number_for(call)
                if number is None or not self._may_assign(call, number):
                    return
                self._assign(call, number)
        except Exception as error:  # noqa: BLE001 - the call fails, and this thread continues
            if not call.workers:  # otherwise its workers continue
                self.fail(call, without_frames(error))

    def _may_assign(self, call: Call, number: int) -> bool:
        """Return whether a call may use the worker of a number now."""
        if self._pool.idle_worker(number) is not None:
            return True
        # Do not start a worker if others will be idle as soon as they notice that their call is
        # over.
        generation = call.code.generation
        detached = [
            worker
            for worker in self._pool
            if worker.state in ("released", "late") and worker.generation == generation
        ]
        n_own, n_wanted = len(call.workers), call.request.max_workers
        if sum(not worker.is_ready for worker in self._pool) >= MOST_STARTING:
            return False
        if not n_own:
            return not any(worker.state == "released" for worker in detached)
        return n_wanted - n_own > len(detached)

    def _assign(self, call: Call, number: int) -> None:
        """Assign the worker of a number to a call."""
        segments = call.segments
        files = [s if mode == "r+" else s.read_only() for s, mode in segments]
        fds = [call.board.segment.fd, *(file.fileno() for file in files)]
        if call.event_fd is not None:
            fds.append(call.event_fd)
        if call.items_event is not None:
            fds.append(call.items_event.fd)
        worker, slot = self._pool.assign(call, number, fds)
        worker.has_worked = True
        call.imported |= worker.imported
        worker.lend([segment for segment, _ in segments])
        call.workers[worker] = slot

    # ------------------------------------------------------------- messages of the workers

    def hear(self, worker: WorkerProcess) -> None:
        """Handle the next message of a worker.

        Raises
        ------
        BlockingIOError
            If there is no message.
        EOFError, OSError
            If the worker can no longer send messages.
        """
        try:
            message, fds = worker.channel.receive(wait=False)
            segments = [Segment.open(fd, "r+") for fd in fds]
        except OSError as error:
            # The descriptor cannot be received, so the results in its memory are lost.
            if error.errno == errno.EMFILE and (call := self._call_of(worker)) is not None:
                self.fail(call, type(error)(*error.args))
            raise
        self._handle(worker, message, segments)

    def hear_all(self, worker: WorkerProcess) -> None:
        """Handle all messages that a worker has sent. It may be dead."""
        with suppress(EOFError, OSError):
            while True:
                self.hear(worker)

    def _handle(self, worker: WorkerProcess, message: Any, segments: list[Segment]) -> None:
        match message:
            case ("ready", pid):
                self._pool.mark_ready(worker, pid)
            case ("imported", stamps):
                self._note_imports(worker, stamps)
            case ("finished", _, stamps, are_gone, is_spent):
                self._note_imports(worker, stamps)
                self._note_finished(worker, are_gone=are_gone, is_spent=is_spent)
            case (what, call_id, content):
                if (call := self.running.get(call_id)) is None:
                    return  # the call was stopped, and the worker is about to be killed
                if what == "wanted":
                    self._answer(worker, call, content)
                elif what == "log":
                    call.results.logs.add(content, segments[0])
                else:
                    self._note_failure(call, content, call.workers[worker])
                call.supply.wake()  # it may wait for this message

    def _call_of(self, worker: WorkerProcess) -> Call | None:
        """Return the running call that a worker works on."""
        for call in self.running.values():
            if worker in call.workers:
                return call
        return None

    def _note_imports(self, worker: WorkerProcess, stamps: Mapping[str, Stamp | None]) -> None:
        if (call := self._call_of(worker)) is not None:
            call.imported |= stamps
        self._pool.note_imports(worker, stamps)

    def _note_finished(self, worker: WorkerProcess, *, are_gone: bool, is_spent: bool) -> None:
        call = self._call_of(worker)
        worker.give_back(are_gone=are_gone)
        if worker.state == "ending":  # it was already asked to end
            return
        worker.enter("idle")
        if call is not None:
            slot = call.workers.pop(worker)
            self.read_prints(call)
            is_spent |= bool(call.board.row(slot)[LEAVES])
        if is_spent:
            self._pool.dismiss(worker)

    def _answer(self, worker: WorkerProcess, call: Call, wanted: OutputSpec | int) -> None:
        """Reply with the place of a first result, or with the number of blocks that fit."""
        answer: Any
        segments: list[Segment] = []
        try:
            if isinstance(wanted, int):
                answer = call.make_room(wanted)
            else:
                answer, segments = call.results.output.place_for(wanted)
        except Exception as error:  # noqa: BLE001 - the call fails, such as for lack of memory
            self.fail(call, without_frames(error))
            return
        worker.lend(segments)
        try:
            worker.channel.send(answer, [segment.fd for segment in segments], wait=False)
        except OSError:
            worker.child.kill()  # its death is handled later

    def _note_failure(self, call: Call, failure: Failure, slot: int) -> None:
        error = call.error_of(failure, slot + 1)
        if failure.item >= 0:
            call.note_error(error, range(failure.item, failure.item + 1))
        if failure.item < 0 or not call.request.policy.returns_errors:
            self.fail(call, error)

    def read_prints(self, call: Call) -> None:
        """Read the prints of workers before their call ends."""
        if call.board.has_printed:  # there may be unread output of a worker
            call.request.prints.is_any = True  # first, because other threads check both
            call.board.has_printed = 0  # first, because later output may not be read
            self._pipes.read_all()

    # -------------------------------------------------------------- the ends of the workers

    def lose(self, worker: WorkerProcess, *, timed_out: bool = False) -> None:
        """End a dead or late worker, and give its unfinished items to others."""
        worker.end()  # first, because its results and messages until then count
        ended_at = time.monotonic()
        self.hear_all(worker)
        call = self._call_of(worker)
        status = self._pool.remove(worker)
        if call is None:
            return
        unbegun, error = account_for_death(call, worker, status, ended_at if timed_out else None)
        if error is not None:
            self.fail(call, error)
        if call.board.stopped:
            return
        with self.claiming:
            give_back(call.board, unbegun, self.lock)
        if call.items_event is not None:
            call.items_event.set()
        call.supply.wake()
        # If the server dies, the workers that it has not started yet are lost.
        if call.n_replaced > call.request.max_workers + MAX_REPLACED and call.wants_worker:
            died = errors.WorkerDiedError(
                f"{call.n_replaced} workers in a row died before they began an item. The cause may "
                "be a module that they import, the initializer, a lack of memory, a limit on "
                f"processes, or sys.executable ({sys.executable!r}) if it lacks NumPy."
            )
            self.fail(call, died)

    def end(self, error: BaseException | None) -> None:
        """End all calls and all workers. The calls fail with `error` if it is given."""
        for call in self.running.values():
            call.note_failure(error)
            call.halt()
        try:
            self._pool.dismiss_all(busy=self._busy())
            for worker in self._pool:
                worker.child.kill()
            for worker in list(self._pool):
                worker.end()
                self.hear_all(worker)
                self._pool.remove(worker)
        finally:  # because other threads would wait forever
            self._pool.close()
            for call in list(self.running.values()):
                call.workers.clear()  # workers hold the call
                call.finish(is_whole=False)
            self.running.clear()

    def _busy(self) -> set[WorkerProcess]:
        """Return the workers that are running an item or loading the function."""
        return {
            worker
            for call in self.running.values()
            for worker, slot in call.workers.items()
            if not call.board.row(slot)[LOADED] or busy_since(call.board.row(slot)) is not None
        }


def _has_ended(call: Call, *, is_done: bool) -> bool:
    """Return whether a call has ended, because all its items are done or it was stopped."""
    if not (is_done or call.error is not None or call.board.stopped):
        return False
    return not any(_is_awaited(worker, call, is_done=is_done) for worker in call.workers)


def _is_awaited(worker: WorkerProcess, call: Call, *, is_done: bool) -> bool:
    """Return whether the end of a call must wait for a message of a worker.

    A call does not wait until all workers have noticed that no items are left, because that takes
    as long as a tiny call.
    """
    if not is_done or not worker.is_ready:
        return worker.is_ready
    return bool(worker.borrowed) or busy_since(call.board.row(call.workers[worker])) is not None


def _may_shrink(call: Call) -> bool:
    return call.request.max_workers > 1 and call.request.stage is None and not call.board.stopped


def account_for_death(
    call: Call, worker: WorkerProcess, status: int | None, timed_out_at: float | None
) -> tuple[range, BaseException | None]:
    """Remove a dead worker from its call. Return the items to run again, and a fatal error.

    Parameters
    ----------
    call : Call
        The call that the worker worked on.
    worker : WorkerProcess
        The dead worker.
    status : int or None
        Its exit status, if known.
    timed_out_at : float or None
        When the worker was killed because an item timed out, on the monotonic clock.
    """
    slot, board = call.workers.pop(worker), call.board
    row, policy, stage = board.row(slot).tolist(), call.request.policy, call.request.stage
    items, unbegun = board.items_of(slot), board.unbegun(slot)
    if board.is_open and (n_done := board.n_done()) > call.n_done_at_loss:
        call.n_replaced = 0  # an endless call counts since its last progress
        call.n_done_at_loss = n_done
    call.n_replaced += not items and timed_out_at is None
    call.clear_slot(slot)
    if not items:
        if stage is None or not row[LOADED] or board.stopped:
            return unbegun, None
        # Other stages may wait for a slot of the output ring that the worker held.
        doing = f"waited for a block in stage {stage!r}"
        return unbegun, call.error_of(Death(-1, status, worker.has_closed, doing), slot + 1)
    call.torn_rows += items
    culprits = items
    if timed_out_at is None and len(items) > 1 and row[REACHED] in items:
        culprits = range(row[REACHED], row[REACHED] + 1)
    end = Death(culprits.start, status, worker.has_closed)
    is_guilty = True
    if timed_out_at is not None and policy.timeout_s is not None:
        end = end._replace(timeout_s=policy.timeout_s)
        # Otherwise the worker had just gone on to this item. A block cannot run again.
        is_guilty = timed_out_at >= row[SINCE] / 1e9 + policy.timeout_s or stage is not None
    elif status == KILLED and call.workers and processes.n_killed() > call.n_killed:
        is_guilty = False  # the system was short of memory, and fewer workers may fit
        call.n_killed += 1
        call.most_fitting = len(call.workers)
    if is_guilty and board.stopped:
        return unbegun, None
    again = range(items.start, max(items.stop, unbegun.stop))
    if is_guilty and not _may_run_again(call, culprits):
        error = call.error_of(end, slot + 1)
        call.note_error(error, culprits)
        if not policy.returns_errors:
            return unbegun, error
        board.fail(culprits.start)  # other workers skip it
        again = range(board.first(again.start, again.stop, is_done=False), again.stop)
    return again, None


def _may_run_again(call: Call, items: range) -> bool:
    """Count a worker's death as a failure of its items. Return whether to run them again."""
    if len(items) > 1:
        attempts = call.board.attempts_to_count(items.start, items.stop)
        attempts |= SUSPECT  # the next attempt runs items one at a time, to find the guilty one
        return True
    is_run_again = call.may_retry(items.start)
    call.past_slots[-1][RETRIED] += is_run_again  # in its last worker's slot
    return is_run_again
