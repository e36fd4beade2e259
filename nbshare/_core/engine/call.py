"""A call in the engine, from its start to the last message of its workers."""

from __future__ import annotations

import itertools
import pickle
import sys
import time
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nbshare._core.engine.outputs import Keeper
from nbshare._core.engine.placing import Placed
from nbshare._core.engine.request import Request
from nbshare._core.engine.results import Results
from nbshare._core.engine.run import OwnRun
from nbshare._core.engine.stats import (
    Fit,
    WorkerActivity,
    WorkerStats,
    activity_of,
    durations_of,
    loading_s,
    n_that_fit,
    stats_of,
)
from nbshare._core.functions.freshness import NO_CODE, Stamp
from nbshare._core.memory import Mode, Segment
from nbshare._core.store.pages import ATTEMPTS
from nbshare._core.system import processes, waiting
from nbshare._core.wire.board import DURATIONS, LEAVES, PEAK_BEFORE, PID, SLOWEST, Board
from nbshare._core.wire.failures import Death, Failure, name_of_item, note_on_iterables, text_of
from nbshare._core.wire.orders import CallOrder

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from nbshare._core.engine.feed import ItemFeed
    from nbshare._core.engine.process import WorkerProcess

MAX_REPLACED = 3  # workers that may die before their first item and be replaced, beyond max_workers

_numbers = itertools.count(1)


# The classes below are not dataclasses, because each would take 1 ms to define.


class Supply:
    """Supplies items to a running call. The base class supplies none, because all are there."""

    _event: waiting.OwnerEvent | None = None  # wakes the thread that supplies items
    error: BaseException | None = None  # with which the call fails when all items are done

    def start(self) -> None:
        """Start to supply items."""

    def wait(self, call: Call, timeout_s: float) -> None:
        """Supply items, and wait for the end of the call in the remaining time."""
        call.engine.wait(call, timeout_s)

    def bring(self) -> None:
        """Supply items if workers will need them soon."""

    def wake(self) -> None:
        """Wake the thread that supplies items. Any thread may call this, also after the end."""
        if (event := self._event) is not None:  # another thread may clear it
            event.set()


class Engine:
    """Runs calls: in worker processes, in threads, or in the thread that waits.

    Attributes
    ----------
    works_by_itself : bool
        Whether calls run while no thread waits for them.
    in_process : bool
        Whether only this process reads inputs and writes results, so that both can be private
        memory.
    is_closed : bool
        Whether the engine accepts no more calls.
    portion_s : float
        Amount of items to read from a generator at a time, in seconds of work of all workers, or of
        the loop over the results if that is slower.
    """

    works_by_itself = True
    in_process = False
    is_closed = False
    portion_s = 0.1

    def warm_up(self, n_workers: int) -> None:
        """Start processes early, while inputs are still being copied."""

    def submit(self, call: Call) -> None:
        """Begin a call."""
        raise NotImplementedError

    def notify(self, call: Call) -> None:
        """Wake workers after items were added to a call, or after the last item."""

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Wait for the end of a call. Return whether it is over."""
        return call.await_end(timeout_s)

    def stop(self, call: Call, error: BaseException | None = None) -> None:
        """End a call early, with an error if one is given. Thread-safe."""
        call.note_failure(error)
        call.board.stop()
        if call.state == "starting":  # it was never submitted
            call.finish(is_whole=False)


class Call(OwnRun):
    """A running call, with its shared memory, workers, results and outcome.

    The dispatcher's thread writes. Other threads read, wait and stop, and one of them consumes
    results.

    Parameters
    ----------
    request : Request
        The checked arguments.
    engine : Engine
        The engine that runs the call.
    board : Board
        The state shared with the workers.
    inputs : list of Placed
        The objects that are the same for all items, and the items, or one `Placed` for both.
    order : CallOrder
        The order for workers.
    feed : ItemFeed, optional
        The feed of items that arrive while the call runs.
    """

    has_begun = False

    def __init__(
        self,
        request: Request,
        engine: Engine,
        board: Board,
        inputs: list[Placed],
        order: CallOrder,
        feed: ItemFeed | None = None,
    ) -> None:
        super().__init__(request, board, Results(board, request))
        self.engine, self.inputs, self.order = engine, inputs, order
        self.has_processes = not engine.in_process and request.stage is None
        self.initializer_key = order.fixed.initializer_key
        self.id = next(_numbers)
        self.n_in_run = request.max_workers  # workers, including those of a pipeline's other stages
        self.begun_ns = time.monotonic_ns()
        self.code = NO_CODE  # the code that the workers run, while the call has workers
        self.imported: dict[str, Stamp | None] = {}  # stamps of user files, by path
        self.known_files: set[str] | None = None  # the files that workers may know, None for any
        self.workers: dict[WorkerProcess, int] = {}  # busy, with their slots
        self.past_slots: list[list[int]] = []  # slots of earlier workers
        self.n_replaced = 0  # workers in a row that died before their first item
        self.n_done_at_loss = 0  # items, at the last count
        self.torn_rows: list[int] = []  # items that were running when their worker died
        self.fitting: Fit | None = None  # the last check of how many workers fit into memory
        self.most_private = 0  # highest private memory of a worker, in bytes
        self.most_fitting = request.max_workers  # fewer after a lack of memory
        self.looked_at = time.monotonic()
        self.n_killed = sys.maxsize  # by the system, before this call
        self.kill_at: float | None = None  # when workers of a stopped call are ended
        self.feed = feed
        # Wakes waiting workers.
        self.items_event: waiting.WorkerEvent | None = None
        if board.is_open and not engine.in_process and request.stage is None:
            self.items_event = waiting.WorkerEvent()
        self.supply = Supply()  # the source of items, until its end
        self.event_fd: int | None = None  # the `OwnerEvent` that workers set when they have news
        self._texts: dict[int, str] = {}  # texts of items that are not kept

    # ------------------------------------------------------------------ for the job ----

    @property
    def n_items(self) -> int | None:
        """Number of items, or None while unknown."""
        return self.board.n_items if self.board.is_closed else None

    @property
    def keeper(self) -> Keeper:
        """Where the results are kept."""
        return self.results.output.keeper

    def stats(self) -> list[WorkerStats]:
        """Return the stats of the workers."""
        return stats_of(self.rows(), self.begun_ns, self.text_of)

    def rows(self) -> list[list[int]]:
        """Return the stats of all workers so far, as they are in the slots of the board."""
        return [*self.past_slots, *self.board.slots.tolist()]

    def durations(self) -> list[int]:
        """Return the histogram of durations, as `durations_of` does."""
        return durations_of(self.rows())

    def activity(self) -> list[WorkerActivity]:
        """Return the current activity of each worker."""
        return activity_of(self.board, self.text_of)

    def retried(self) -> npt.NDArray[np.int64]:
        """Return the indices of items that failed and were run again."""
        # Without retries, an item that failed has ended the call, and was not run again.
        return self.board.retried() if self.order.policy.retries else super().retried()

    def loading_s(self) -> float:
        """Return how many seconds a worker has been loading the function, 0.0 if none is."""
        return loading_s(self.board)

    def fit(self) -> Fit | None:
        """Return how many workers fit into memory if fewer than allowed, else None."""
        found = self.fitting
        return found if found and found.n < self.request.max_workers else None

    def item(self, i: int) -> tuple[Any, ...]:
        """Return the positional arguments of an item."""
        columns = self.request.iterables
        if self.request.stage is not None:
            raise LookupError(
                f"block {i} is not kept: it has passed through the slots of the pipeline. Run the "
                "loader in a loop to get it again."
            )
        if all(column is not None for column in columns):
            return self.request.at(i)
        fed = self.feed.item(i) if self.feed is not None else None
        if fed is None:
            raise LookupError(
                f"item {i} of a generator is not kept once it is done. To debug it, pass a list of "
                "such items."
            )
        return self.request.at(i, fed)

    def name_of(self, i: int, text: str | None = None) -> str:
        """Return the name of an item or block in messages. Pass its repr as `text` if known."""
        if self.request.stage is not None:
            return f"block {i} in stage {self.request.stage!r}"
        return name_of_item(i, self.text_of(i) if text is None else text)

    def drew(self) -> tuple[str, int]:
        """Return which items drew global random numbers, in words, and from which generators."""
        items, which = self.board.draws
        name = self.name_of(items.start) if items else ""
        return f"one of items {items[0]} to {items[-1]}" if len(items) > 1 else name, which

    def error_of(self, what: Failure | Death, worker: object) -> BaseException:
        """Return the error for the failure or death that a worker had."""
        text = what.item_repr if isinstance(what, Failure) else None
        error = what.as_error(self.name_of(what.item, text) if what.item >= 0 else "", worker)
        return note_on_iterables(error, self.request.iterables, text) if text else error

    def text_of(self, i: int) -> str:
        """Return the repr of an item.

        Return the name of the stage for a block, which is not kept.
        """
        if self.request.stage is not None:
            return f"in stage {self.request.stage!r}"
        try:
            return text_of(self.item(i))
        except LookupError:
            return self._texts.get(i, "")

    def _note_slowest(self) -> None:
        """Record the texts of the slowest items, because finished items are not kept.

        Each repr is created only once, because that of an array takes milliseconds.
        """
        items = {i for row in self.rows() for i in row[SLOWEST + 1 : DURATIONS : 2]}
        self._texts = {i: self._texts.get(i) or self.text_of(i) for i in items}

    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results since the previous call. For one reader."""
        n_before = self.results.given.n
        yield from self.results.new()
        if self.results.given.n > n_before:
            self.supply.wake()  # it may wait for results to be consumed

    def release(self) -> None:
        """Abandon the call, because nobody will read its results."""
        # In a forked child, the engine is closed, because the call belongs to the parent.
        is_endless = self.board.is_open and self.results.given.is_iterated
        if is_endless and not self.is_over and not self.engine.is_closed:
            self.stop()  # it would wait for a reader that no longer exists

    # --------------------------------------------------------------------------- its life

    def start(self) -> None:
        """Start the call."""
        self.keeper.start()
        self.engine.submit(self)
        self.supply.start()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, and supply items meanwhile. Return whether the call is over."""
        if self.results.is_final:  # its last results are being stored
            return self.await_end(timeout_s)
        self.supply.wait(self, timeout_s)
        return self.is_over

    def append(self, columns: Sequence[Sequence[Any]]) -> None:
        """Append items. For one thread.

        Raises
        ------
        UnsendableError
            If an item cannot be pickled.
        OutOfMemoryError
            If there is no room for the items, or for their results.
        """
        if (feed := self.feed) is not None:  # None once the call has ended
            self._note_slowest()
            self.results.output.reserve(len(columns[0]))
            self.keeper.expect(columns)
            feed.append(columns)
            self.engine.notify(self)

    def make_room(self, n: int) -> int:
        """Allocate places for at least the first `n` blocks of a stage. Return how many.

        Raises
        ------
        OutOfMemoryError
            If there is no room for the results.
        """
        n += n // 2
        n_more = n - self.board.n_there
        self.board.extend(n_more)
        self.results.output.reserve(n_more)
        return n

    def close(self, n: int | None = None) -> None:
        """Declare that no items follow the current ones, or the first `n`."""
        self.board.close(n)
        self.engine.notify(self)

    def sweep(self) -> None:
        """Free finished items, and pages whose results were consumed.

        For the thread that appends items.
        """
        if (feed := self.feed) is None:  # the call has just ended
            return
        feed.sweep()
        self.results.drop_logs()
        for page in self.board.pages:
            is_full = page.first + page.n <= self.board.n_there
            if is_full and self.results.given.of(page).taken.all() and not feed.has_any_of(page):
                self.board.drop_page(page)  # first, because it clears the marks
                self.results.drop_page(page)

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the call early, with an error if there is one."""
        self.engine.stop(self, error)

    # ------------------------------------------------------------------ for the dispatcher

    @cached_property
    def packed_order(self) -> bytes:
        """The order, pickled."""
        return pickle.dumps(tuple(self.order))  # a NamedTuple would take twice the time

    @property
    def segments(self) -> list[tuple[Segment, Mode]]:
        """The segments of the inputs, and how workers map them."""
        return [wanted for placed in self.inputs for wanted in placed.segments]

    @property
    def is_complete(self) -> bool:
        """Whether every item has a result, or an error that does not end the call."""
        return self.board.is_closed and self.board.n_done() == self.board.n_items

    @property
    def wants_worker(self) -> bool:
        """Whether the call can use one more worker."""
        board, n_employed = self.board, self.most_fitting
        if self.fitting is not None:
            n_employed = min(n_employed, self.fitting.n)
        if self.items_event is not None:
            n_employed = min(n_employed, board.n_there - board.n_done())
        # The workers of a stage wait for blocks themselves.
        has_more = board.n_unclaimed > 0 or (self.request.stage is not None and not board.is_closed)
        return has_more and len(self.workers) < n_employed and not board.stopped

    def free_slot(self, pid: int) -> int:
        """Return a slot for a worker: its previous slot in this call if that is free."""
        taken = set(self.workers.values())
        free = [slot for slot in range(self.board.n_slots) if slot not in taken]
        for slot in free:
            if self.board.row(slot)[PID] in (pid, 0):
                return slot
        self.clear_slot(free[0])
        return free[0]

    def clear_slot(self, slot: int) -> None:
        """Free a slot for another worker, and keep the stats of its last worker."""
        self.past_slots.append(self.board.row(slot).tolist())
        self.board.clear_slot(slot)

    def look_at_memory(self) -> bool:
        """Compute how many workers fit into memory, and ask the others to leave.

        Return whether a worker was asked to leave.
        """
        self.looked_at = time.monotonic()
        self.n_killed = min(self.n_killed, processes.n_killed())
        rows = {slot: self.board.row(slot) for slot in sorted(self.workers.values())}
        found = (processes.private_bytes(row[PID])[0] for row in rows.values() if row[PID])
        if not (known := [now for now in found if now]):
            return False
        # The system's figure for each process would also count mapped files.
        self.most_private = max(self.most_private, *known)
        n = n_that_fit(known, self.most_private, processes.available_bytes())
        self.fitting = Fit(min(n, self.most_fitting), self.most_private)
        for k, row in enumerate(rows.values()):
            row[LEAVES] = k >= self.fitting.n
        return len(rows) > self.fitting.n

    def private_peak(self) -> int:
        """Return the highest private memory of a live worker, in bytes."""
        peaks = [0]
        for row in self.rows():
            now, private, peak = processes.private_bytes(row[PID]) if row[PID] else (0, 0, 0)
            peaks.append(private if peak > row[PEAK_BEFORE] else now)
        return max(peaks)

    def halt(self) -> None:
        """Ask workers to claim and start no more items."""
        self.board.stop()
        if (event := self.items_event) is not None:
            event.set(self.request.max_workers)

    def note_failure(self, error: BaseException | None) -> None:
        """Keep an error to end the call with, unless there is one already."""
        self.error = self.error or error

    def may_retry(self, i: int) -> bool:
        """Count a lost run of an item as a failure. Return whether the item may run again."""
        attempts = self.board.attempts_to_count(i, i + 1)
        attempts += 1
        return bool(attempts[0] & ATTEMPTS <= self.request.policy.retries)

    def note_error(self, error: BaseException, items: range) -> None:
        """Keep the error of each item that failed."""
        self.results.errors.update(dict.fromkeys(items, error))

    def finish(self, *, is_whole: bool) -> None:
        """Finish the call after its last writer. `is_whole` is whether all items are done."""
        if self.results.is_final:  # its last results are being stored
            return
        self.results.is_final = True
        if is_whole or self.is_enough:
            self.note_failure(self.supply.error)
        try:
            if not is_whole or self.results.errors:
                self.results.output.clear_missing(self.torn_rows)
            self.results.output.close()
            if self.board.is_open:
                self._note_slowest()
        except Exception as problem:  # noqa: BLE001 - no thread may wait forever
            self.note_failure(problem.with_traceback(None))
        # Free them now, because a notebook's last traceback keeps this call alive.
        self.inputs.clear()
        self.feed = None
        self.items_event = None
        self.code = NO_CODE
        self._store_and_end(is_done=is_whole or self.is_enough)
        self.supply.wake()
        self.supply = Supply()

    def _store_and_end(self, *, is_done: bool) -> None:
        """Store the last results if there is a checkpoint, and wake all waiting threads."""

        def end(error: BaseException | None) -> None:
            self.note_failure(error)
            # Keeper and call refer to each other, so files would stay open until a garbage
            # collection.
            self.results.output.keeper = Keeper()
            self._end("failed" if self.error else "done" if is_done else "stopped")

        self.keeper.end(end)
