"""Works on a call: claims chunks, runs items, and stores results and failures."""

from __future__ import annotations

import os
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from heapq import heappushpop
from itertools import chain
from typing import TYPE_CHECKING, Any

from nbshare._core.arrays.inputs import Inputs
from nbshare._core.functions.freshness import n_executed
from nbshare._core.functions.reference import with_keywords
from nbshare._core.memory import Segment
from nbshare._core.messages import noted
from nbshare._core.store.logs import LogKey
from nbshare._core.store.pages import ATTEMPTS
from nbshare._core.store.rows import Decided
from nbshare._core.store.specs import OutputSpec
from nbshare._core.store.writing import ResultStore
from nbshare._core.system import processes, waiting
from nbshare._core.wire.board import (
    BEGUN,
    DURATIONS,
    ENDED,
    ITEM,
    ITEM_STOP,
    LEAVES,
    LOADED,
    N_ITEMS,
    NO_ITEM,
    ONE,
    PEAK,
    PEAK_BEFORE,
    PID,
    REACHED,
    RETRIED,
    ROUND,
    SINCE,
    SLOWEST,
    STOP,
    WORKED,
    Board,
    Claims,
)
from nbshare._core.wire.failures import (
    ItemStopped,
    end_copy,
    end_fork,
    naming_shared,
    text_of,
    this_process,
)
from nbshare._core.wire.orders import CallOrder, Fixed
from nbshare._core.worker.chance import Draws
from nbshare._core.worker.items import (
    MOST_UNSEEN,
    FedItems,
    ItemBlocks,
    ItemSource,
    blocks_of,
    frozen,
    gather,
    indices_of,
    numbers,
    seeded,
)
from nbshare._core.worker.reports import Reporter
from nbshare._core.worker.state import initialized, note_imports

if TYPE_CHECKING:
    from nbshare._core.wire.folding import Folded
    from nbshare._core.worker.stages import Column

# Items that take less than TINY_S run in batches of at most TOGETHER_S, to share the cost of
# storing results. If a worker dies, only the range of its batch is known, and its items then run
# one by one.
TINY_S = 20e-6
SLOW_TINY_S = 100e-6  # for objects and files, because storing a result takes some 15 µs
TOGETHER_S = 1e-3
LOAD_ITEMS = 64  # items to load at a time
SHORTEST_S = 1e-8  # no function call takes less
PAUSE_S = 0.05  # the system often pauses a process for some ms, so that its items seem slow

_n_taken = [0]  # number of items that this process has claimed, in all calls


class _Stopped(Exception):  # noqa: N818 - not an error
    """Raised when the call has been stopped, or a failure ends it."""


class Caller:
    """The interface of a worker to its caller. By default, there is nothing to report."""

    def decide(self, spec: OutputSpec) -> Decided:
        """Return where to store results, from the spec of the first result."""
        raise NotImplementedError

    def add_log(self, key: LogKey, log: Segment) -> None:
        """Add a new log."""
        raise NotImplementedError

    def make_room(self, n: int) -> int:
        """Allocate places for the first `n` blocks of a stage. Return their number."""
        raise NotImplementedError

    in_process = True  # whether items run in the caller's process
    loading: AbstractContextManager[Any] = nullcontext()  # held while items are loaded

    def await_items(self) -> bool:
        """Wait a while for items. Return whether to continue waiting."""
        raise NotImplementedError

    def tidy_up(self) -> bool:
        """Restore the settings that items have changed. Return whether that succeeded."""
        return True

    def tell_news(self) -> None:
        """Announce that results are new, or that few items are left."""

    def tell_imports(self) -> bool:
        """Report newly imported modules. Return whether there are any."""
        return False

    def sends_prints(self) -> bool:
        """Send the prints of items so far. Return whether there is output to read."""
        return False

    def failed(self, i: int, error: BaseException, item: str) -> None:
        """Report that item `i` has failed."""
        raise NotImplementedError


class Work:
    """The part of one worker in a call.

    Parameters
    ----------
    order : CallOrder
        The function, its inputs and its options.
    board : Board
        The call's board.
    slot : int
        This worker's row of the board.
    inputs : sequence of Inputs
        The inputs with the function and the shared objects. The last inputs have the items.
    caller : Caller
        Receives first results, logs and failures.
    lock : context manager
        Held to claim a chunk.
    """

    def __init__(
        self,
        order: CallOrder,
        board: Board,
        slot: int,
        inputs: Sequence[Inputs],
        caller: Caller,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._policy, self._process = order.policy, this_process[0]
        self._board = board
        self._slot = board.row(slot)
        self._reporter = Reporter(board, slot)
        self._caller = caller
        if self._slot[PID] == 0:  # otherwise this worker was in the call before
            self._slot[PEAK_BEFORE] = processes.peak_bytes()
            self._slot[BEGUN], self._slot[PID] = time.monotonic_ns(), os.getpid()
        self._slot[LOADED] = 0
        inputs_of_all, items = inputs[0], inputs[-2 if order.is_fed else -1]
        self._func = self._loaded(inputs_of_all, order.fixed)
        self._is_folded = order.is_folded
        self._n_items_in: Callable[[range], int] = len  # the user's items in a chunk
        if self._is_folded:
            from nbshare._core.wire.folding import n_items_in  # late, only reduce= needs it

            self._n_items_in = n_items_in
            self._func = partial(_counting_retries, self._func, self._slot)
        self._fed = FedItems(inputs[-1], board) if order.is_fed else None
        for each in inputs:
            each.known = inputs_of_all.known
        self._blocks = blocks_of(items, order.sources, self._fed)
        self._sources = [ItemSource(items, self._blocks, *what) for what in order.sources.iterables]
        self._columns: list[Column] = [source.items for source in self._sources]
        if order.policy.seed is not None:
            self._func = partial(seeded, self._func, order.policy.seed)
            self._columns.insert(0, partial(indices_of, order.first))
        self._item_s = 0.0  # recent seconds per item
        self._is_odd = False  # whether results of this chunk are mostly stored one by one
        self._round = board.header[ROUND]
        is_unseeded = order.policy.seed is None and order.stage is None
        self._draws = Draws() if is_unseeded and not caller.in_process else None
        words = self._slot[SLOWEST:DURATIONS].tolist()
        self._slowest = list(zip(words[::2], words[1::2], strict=True))  # a heap of (ns, index)
        self._page = board.newest_page()
        self._block_of = self._blocks.block_of if self._blocks is not None else None
        # Not a method, because a reference cycle would keep the inputs alive.
        wait = partial(_await_items, self._blocks, self._fed, caller)
        self._claims = Claims(
            board, slot, lock, order.n_workers, order.chunksize, self._block_of, wait
        )
        agree = partial(board.agree, lock=lock)
        began_ns = partial(self._slot.__getitem__, SINCE)
        of_results = self._page, agree, caller.decide, caller.add_log, began_ns
        self._store = ResultStore(*of_results)
        self._claim: Callable[[float], range] = self._claims.claim
        if order.stage is not None:
            from nbshare._core.worker import stages  # imported late: only pipelines have them

            stage = inputs_of_all.load(order.stage)
            others = stage.sink, board, self._slot, caller.make_room
            blocks: stages.StageBlocks = (
                stages.LoadedBlocks(self._func, *others)
                if stage.source is None
                else stages.QueuedBlocks(self._func, stage.source, lock, *others)
            )
            self._func, self._columns, self._claim = blocks.func, blocks.columns, blocks.claim
            if stage.sink is not None:
                self._store = stages.PassingStore(blocks, *of_results)
        self._tell_imports()  # first, because a call may end once a worker has loaded the function
        self._slot[LOADED] = time.monotonic_ns()

    def _loaded(self, inputs: Inputs, fixed: Fixed) -> Callable[..., Any]:
        """Load the function, and the objects that are the same for all items."""
        try:
            self._namespaces = initialized(inputs, fixed)
            with self._namespaces as namespaces:
                func: Callable[..., Any] = inputs.load(fixed.func, is_named=fixed.are_named)
                namespaces.keep()
                if fixed.shared is not None:
                    with naming_shared():
                        shared = inputs.load(fixed.shared, is_named=fixed.are_named)
                        func = with_keywords(func, shared)
                    namespaces.keep()
            note_imports()
            return func
        finally:
            end_copy(self._process)

    def run(self) -> None:
        """Work until no items are left to claim."""
        while self.step():
            pass
        self.note_peak()

    @property
    def is_spent(self) -> bool:
        """Whether this process has reached its limit of items."""
        most = self._policy.max_tasks
        return most is not None and _n_taken[0] >= most

    def step(self) -> bool:
        """Claim a chunk and run it. Return whether the worker should continue."""
        end_copy(self._process)
        if self._slot[LEAVES]:
            return False
        if (most := self._policy.max_tasks) is not None:
            if self.is_spent:
                return False
            self._claims.most = 1 if self._is_folded else most - _n_taken[0]
        chunk = self._claim(self._item_s)
        _n_taken[0] += self._n_items_in(chunk)
        goes_on = bool(chunk) and self._run_claimed(chunk)
        self._slot[ENDED] = time.monotonic_ns()
        if self._board.n_unclaimed <= self._board.few:
            self._caller.tell_news()
        return goes_on

    def _run_claimed(self, chunk: range) -> bool:
        """Run a chunk as `_run_chunk` does, and detect unseeded draws of random numbers."""
        if not 0 <= chunk.start - self._page.first < self._page.n:
            self._board.forget_pages()
            self._page = self._board.page(chunk.start)
        self._store.turn_to(self._page, chunk.stop)
        if self._round != self._board.header[ROUND]:
            self._round = self._board.header[ROUND]
            if not self._caller.tidy_up():
                os._exit(1)  # the chunk has not begun, so another worker runs it
        self._is_odd = False
        if (draws := self._draws) is not None:
            draws.note()
        with self._reporter:
            goes_on = self._run_chunk(chunk)
        if draws is not None and draws.may_be():
            self._draws = None  # once
            if which := draws.drawn():
                self._board.note_draws(chunk, which)
        return goes_on

    def _tell_imports(self) -> None:
        if self._caller.tell_imports():
            self._board.has_imported = 1
            self._store.forget_code()

    def _run_chunk(self, chunk: range) -> bool:
        """Run the items of a chunk, tiny items in batches. Return whether to continue."""
        position = alone_until = chunk.start
        start_ns = time.monotonic_ns()
        try:
            while position < chunk.stop:
                if self._board.stopped:
                    raise _Stopped
                has_failures = self._board.has_failures
                if has_failures and self._has_ended_a_worker(position):
                    position += 1  # this item killed a worker, and these are the rest of its chunk
                    continue
                is_alone = position < alone_until
                n_together = 0 if is_alone else self._n_together(position)
                size = 1 if is_alone else n_together or LOAD_ITEMS
                items = self._apart(range(position, min(position + size, chunk.stop)))
                if has_failures and self._board.has_failed(items.start, items.stop):
                    items = items[:1]  # this item may have killed a worker that loaded several
                self._begin(items)  # if loading kills the worker, these items are to blame
                try:
                    with self._namespaces, self._caller.loading:
                        columns = [column(items) for column in self._columns]
                    if self._blocks is not None and len(apart := self._apart(items)) < len(items):
                        columns = [column[: len(apart)] for column in columns]
                        items = apart
                        self._blocks.rest()  # the other items are loaded again
                    end_copy(self._process)
                except BaseException as error:  # noqa: BLE001 - loading items runs users' code
                    if len(items) > 1:  # run one by one, to find the one at fault
                        alone_until = items.stop
                        continue
                    position += self._counts_as_done(position, error)
                else:
                    are_several = n_together and len(items) > 1  # for one, a batch costs more
                    run = self._run_together if are_several else self._run_singly
                    position += run(items, columns)
            # The time includes loading, but not the other steps, which would make tiny items seem
            # slow.
            self._note_time(len(chunk), time.monotonic_ns() - start_ns)
        except _Stopped:
            return False
        finally:
            self._tell_imports()
            if self._caller.sends_prints():
                self._board.has_printed = 1
            self._slot[ITEM] = NO_ITEM
        return True

    def _has_ended_a_worker(self, i: int) -> bool:
        return self._board.has_failed(i, i + 1) and bool(self._board.state(i))

    def _apart(self, items: range) -> range:
        return items if self._blocks is None else self._blocks.apart(items)

    def _begin(self, items: range) -> int:
        """Record the items that this worker is running. Return the time in ns."""
        slot = self._slot
        slot[SINCE] = since = time.monotonic_ns()
        slot[ITEM_STOP], slot[REACHED] = items.stop, NO_ITEM
        if waiting.IS_WEAKLY_ORDERED:
            waiting.before_marks()
        slot[ITEM] = items.start
        return since

    def _n_together(self, position: int) -> int:
        """Return how many items to run together, or 0 to run them one by one."""
        store = self._store
        if store.number is None and not store.takes_objects:
            return 0
        tiny_s = SLOW_TINY_S if store.is_slow else TINY_S
        if not 0 < self._item_s < tiny_s or self._is_odd:
            return 0
        n = int(TOGETHER_S / max(self._item_s, SHORTEST_S))
        if self._block_of is not None and len(block := self._block_of(position)) > LOAD_ITEMS:
            n = min(n, block.stop - position)  # so that a whole block is used without a copy
        # Items that have failed run one by one, so that the cause is known.
        return 0 if self._board.has_failed(position, position + n) else n

    def _run_singly(self, items: range, columns: list[Sequence[Any]]) -> int:
        """Run items one by one. Return how many are done."""
        # A line of the loop costs 40 ns, so ten lines add 1 % to items of 40 µs.
        slot, header, clock = self._slot, self._board.header, time.monotonic_ns
        func, put, process = self._func, self._store.put, self._process
        self._tell_imports()  # modules imported by loading the items
        modules, n_modules, n_before = sys.modules, len(sys.modules), n_executed[0]
        slot[ITEM_STOP] = ONE
        is_weak = waiting.IS_WEAKLY_ORDERED
        slowest = self._slowest
        slow_ns = slowest[0][0]
        n, began = 0, clock()
        since = began
        try:
            for i, args in zip(items, zip(*columns, strict=True), strict=True):
                if header[STOP]:
                    raise _Stopped
                slot[SINCE] = since
                if is_weak:
                    waiting.before_marks()
                slot[ITEM] = i
                try:
                    value = func(*args)
                    if this_process[0] is not process:
                        end_fork(None)
                    # Reported before the item is marked as done, because its result depends on
                    # these imports.
                    if len(modules) != n_modules or n_executed[0] != n_before:
                        self._tell_imports()
                        n_modules, n_before = len(modules), n_executed[0]
                    put(i, value)
                    value = None  # frees the memory of an array for the next one
                except BaseException as error:  # noqa: BLE001 - SystemExit is a failure too
                    return n + self._counts_as_done(i, error)
                n += 1
                now = clock()
                took_ns, since = now - since, now
                slot[DURATIONS + took_ns.bit_length()] += 1
                if took_ns > slow_ns:
                    self._note_slow(took_ns, i)
                    slow_ns = slowest[0][0]
        finally:
            self._note(n, since - began)
        return n

    def _run_together(self, items: range, columns: list[Sequence[Any]]) -> int:
        """Run tiny items, and store their results together. Return how many are done."""
        since = self._begin(items)
        try:
            return self._run_and_store(items, columns)
        finally:
            took_ns = time.monotonic_ns() - since
            if n_done := self._board.n_done_in(items.start, items.stop):
                each_ns = took_ns // n_done
                self._note_slow(each_ns, items.start)
                self._slot[DURATIONS + each_ns.bit_length()] += n_done
                self._note(n_done, took_ns)

    def _run_and_store(self, items: range, columns: list[Sequence[Any]]) -> int:
        values: list[Any] = []  # numbers, or frozen objects
        odd: list[Any] = []
        store, header, clock, slot = self._store, self._board.header, time.monotonic, self._slot
        until_s = clock() + 2 * TOGETHER_S
        # Checked about every 20 µs, because a long item may follow, and no item may begin after a
        # stop.
        every = max(1, min(MOST_UNSEEN, int(TINY_S / max(self._item_s, SHORTEST_S))))
        are_objects = store.takes_objects
        slot[REACHED] = items.start if every == 1 else NO_ITEM

        def goes_on() -> bool:
            if every == 1:
                slot[REACHED] += 1
            return clock() < until_s and not header[STOP]

        try:
            results = map(self._func, *columns)
            parts = (
                frozen(results, store.make_pickler)
                if are_objects
                else numbers(results, store.number)
            )
            try:
                is_end = gather(parts, values, odd, every, goes_on)
            finally:
                slot[REACHED] = NO_ITEM
                end_copy(self._process)
                self._tell_imports()
            if is_end and len(values) < len(items):
                raise StopIteration("raised by the function; its text is not kept for tiny items")
        except BaseException as error:  # noqa: BLE001
            n = len(values)
            if (n_stored := self._store_together(items[:n], values, are_objects)) != n:
                return n_stored
            n_more: int = self._counts_as_done(items[n], error)
        else:
            n = len(values)
            if (n_stored := self._store_together(items[:n], values, are_objects)) != n:
                return n_stored
            self._is_odd = are_objects and bool(odd) and n < MOST_UNSEEN
            n_more = self._store_singly(items[n:], odd, store.put)
        return n + n_more

    def _store_together(self, items: range, values: list[Any], are_objects: bool) -> int:
        """Store results of tiny items. Return how many are done."""
        store = self._store
        put_all = store.put_objects if are_objects else store.put_numbers
        if not values or put_all(items, values):
            return len(values)
        return self._store_singly(items, values, store.put_object if are_objects else store.put)

    def _store_singly(
        self, items: range, values: list[Any], put: Callable[[int, Any], None]
    ) -> int:
        """Store results one by one. Return how many are done."""
        for n, value in enumerate(values):
            try:
                put(items[n], value)
            except BaseException as error:  # noqa: BLE001 - pickling runs users' code
                if not self._counts_as_done(items[n], error):
                    return n
        return len(values)

    def _counts_as_done(self, i: int, error: BaseException) -> bool:
        """Record the failure of an item. Return whether it is done, else it runs again.

        Raises
        ------
        _Stopped
            If the failure ends the call.
        """
        end_copy(self._process)
        if issubclass(type(error), ItemStopped):  # `isinstance` would run code of its class
            raise _Stopped
        attempts = self._board.attempts_to_count(i, i + 1)
        attempts += 1
        if issubclass(type(error), Exception) and attempts[0] & ATTEMPTS <= self._policy.retries:
            self._slot[RETRIED] += 1
            return False
        if (n := int(attempts[0] & ATTEMPTS)) > 1:
            noted(
                error, f"The item failed in each of {n} attempts (retries={self._policy.retries})"
            )
        self._caller.failed(i, error, self._text_of(i))
        if not self._policy.returns_errors:
            raise _Stopped
        self._board.fail(i)
        return True

    def _text_of(self, i: int) -> str:
        """Return the text of an item for messages."""
        columns = self._columns[self._policy.seed is not None :]
        try:
            args = [column(range(i, i + 1))[0] for column in columns]
        except BaseException:  # noqa: BLE001 - the item itself cannot be loaded
            return "an item that cannot be loaded"
        return text_of(args)

    # For `Job.stats`.
    #

    @property
    def has_variables(self) -> bool:
        """Whether variables of its functions were sent, which are dropped after the call."""
        return self._namespaces.has_own

    def note_peak(self) -> None:
        """Record the peak memory of this process."""
        self._slot[PEAK] = processes.peak_bytes()

    def _note(self, n: int, worked_ns: int) -> None:
        if n:
            self._slot[WORKED] += worked_ns
            self._slot[N_ITEMS] += n
            self._note_time(n, worked_ns)  # long items may follow tiny ones

    def _note_time(self, n: int, took_ns: int) -> None:
        """Update the recent time per item. After a pause of tiny items, it doubles at most."""
        item_s, before_s = took_ns / n / 1e9, self._item_s
        if before_s < SLOW_TINY_S and took_ns / 1e9 < n * before_s + PAUSE_S:
            item_s = min(item_s, 2 * before_s or item_s)
        self._item_s = item_s

    def _note_slow(self, took_ns: int, i: int) -> None:
        """Record an item that may be among the slowest."""
        heappushpop(self._slowest, (took_ns, i))
        self._slot[SLOWEST:DURATIONS] = array("q", chain.from_iterable(self._slowest))


def _counting_retries(func: Callable[..., Folded], slot: Any, *block: Any) -> Folded:
    folded = func(*block)
    slot[RETRIED] += len(folded.retried)
    return folded


def _await_items(blocks: ItemBlocks | None, fed: FedItems | None, caller: Caller) -> bool:
    if blocks is not None:
        blocks.rest()
    if fed is not None:
        fed.rest()
    return caller.await_items()
