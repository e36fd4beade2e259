"""The board of a call, in shared memory: the items of each worker, and the items that are done.

::

    header   next item, stop flag, number of ranges given back, kind of results, prints,
             whether any item has failed, how often items have arrived after a pause, whether
             anything has been imported, the number of items so far, their final number, at how few
             unclaimed items to tell the owner, whether some were done before the call, the
             first items that have drawn unseeded random numbers
    ranges   items that a dead worker had claimed and left for others
    slots    per worker: the items that it runs, since when; its chunk; its figures; the report of
             the item
    pages    of items (`store.pages`): one page if their number is known, else as many as it takes

Workers claim chunks themselves, larger ones of quick items, under a file lock that the kernel
releases if its holder dies (`Claims`). The caller only reads. A chunk never spans two pages.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, lru_cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import Segment, View, aligned, slab
from nbshare._core.store.pages import (
    ATTEMPTS,
    FAILED,
    IN_LOG,
    IN_OUTPUT,
    PAGE_ITEMS,
    Page,
    page_layout,
    placed,
)
from nbshare._core.system import sections, waiting

# Header words.
NEXT, STOP, RETURNED, KIND, PRINTED, FAILURES, ROUND, IMPORTED, N_THERE, TOTAL, FEW = range(11)
SKIPPED, DREW = 11, 12
NOT_KNOWN = -1  # the value of TOTAL

# The lowest bits of DREW: the generators that items drew from. The first item and the number of
# items are above.
NUMPY, PYTHON = 1, 2
DREW_BITS, DREW_MOST = 22, (1 << 20) - 1

HEADER_WORDS = 16
RETURNED_PER_SLOT = 2  # a dead worker leaves one range, and returned ranges are claimed first
LOOK_ITEMS = 4096  # number of items that are checked at once
TOUCHED = 64 << 10  # bytes of a board that a worker maps at once

# Words of a slot. Times are in ns of the monotonic clock, which all processes share.
ITEM, ITEM_STOP, SINCE, CHUNK_START, CHUNK_STOP = range(5)
# LEAVES: the owner has asked the worker to leave. PEAK_BEFORE: peak memory before the call.
PID, BEGUN, LOADED, ENDED, WORKED, N_ITEMS, PEAK, PEAK_BEFORE, LEAVES = range(5, 14)
REACHED = 14  # the running item of a batch, or NO_ITEM if unknown
RETRIED = 15  # how often an item failed and ran again
SLOWEST = 16  # N_SLOWEST pairs of ns and item
N_SLOWEST = 3
DURATIONS = SLOWEST + 2 * N_SLOWEST  # counts of items of 1, 2 to 3, 4 to 7, ... ns
REPORTED = DURATIONS + 56  # SINCE of the reporting item (see `reports`)
FRACTION, REPORT_TEXT = REPORTED + 1, REPORTED + 2  # the text takes the rest
SLOT_WORDS = 96  # whole cache lines, because two workers that write to one slow each other down

NOT_TOLD = 0  # a value of FRACTION
MILLIONTHS = 1_000_000  # the unit of stored fractions, which begin at 1
CUT = "…".encode()
NO_ITEM = -1
ONE = 0  # the value of ITEM_STOP for a single item

# Target time of a chunk. A claim costs 1.2 µs, which is negligible in 20 ms, and at the end no
# worker runs alone for longer.
CHUNK_S = 0.02
GROWTH = 8  # largest growth from chunk to chunk, because later items may not be as quick
LOAD_S = 1e-3  # a block of items that takes less runs in one worker
# Duration of a chunk of tiny items. Claiming one and the work around it take 40 µs, and 100 µs in a
# short call, whose code is not cached yet.
LEAST_S = 4e-4


class _Word:
    """Descriptor of one word of the board's header."""

    def __init__(self, place: int) -> None:
        self._place = place

    def __get__(self, board: Any, cls: type) -> int:
        return board.header[self._place]  # type: ignore[no-any-return]

    def __set__(self, board: Any, value: int) -> None:
        board.header[self._place] = value


# Cached, because it is called twice per call, and small boards are alike.


@lru_cache(16)
def board_layout(n_items: int | None, n_slots: int) -> tuple[int, ...]:
    """Return the offsets of the board's parts in bytes, that of the pages last."""
    sizes = [
        HEADER_WORDS * 8,
        RETURNED_PER_SLOT * n_slots * 16,
        n_slots * SLOT_WORDS * 8,
    ]
    offsets, end = placed(sizes)
    # Pages of an open board are freed, which is possible only for whole system pages.
    return *offsets, aligned(end, mmap.PAGESIZE if n_items is None else 64)


class Board:
    """The shared state of one call.

    Parameters
    ----------
    segment : Segment
        The memory, created by `Board.create`, or attached in a worker.
    offset : int
        Offset of the board in the segment, in bytes.
    n_items : int or None
        Number of items, or None if unknown. The segment then has no other contents.
    n_slots : int
        Number of workers that may take part, including replacements.

    Attributes
    ----------
    n_there : int
        Number of items that workers may claim or have claimed.
    next_item : int
        The first unclaimed item. Ranges that were given back are claimed before this item.
    n_skipped : int
        Number of items that this call does not run, because they are already done or run elsewhere.
    few : int
        Workers notify the owner when at most this number of items is unclaimed.
    has_printed, has_imported, has_failures : int
        1 if a worker has printed, if a worker has imported files, and if an item has failed.

    Notes
    -----
    Only one thread of the owner adds and frees pages.
    """

    n_there, next_item, n_skipped = _Word(N_THERE), _Word(NEXT), _Word(SKIPPED)
    few, has_printed = _Word(FEW), _Word(PRINTED)
    has_imported, has_failures = _Word(IMPORTED), _Word(FAILURES)

    def __init__(self, segment: Segment, offset: int, n_items: int | None, n_slots: int) -> None:
        self.segment, self.offset = segment, offset
        self.n_slots = n_slots
        self._memory = memoryview(segment)[offset:]
        self._array = View(self._memory).array
        self.is_open = n_items is None
        self.page_items = n_items or (PAGE_ITEMS if n_items is None else 1)
        self._places = board_layout(n_items, n_slots)
        self._page_nbytes = page_layout(self.page_items)[1]
        # A memoryview, because indexing a NumPy array takes three times as long.
        self.header = self._words(0, HEADER_WORDS)
        self._pages: dict[int, Page] = {}
        self._n_pages_gone = 0  # pages that the owner has freed
        self._retried_there = np.zeros(0, np.int64)  # items on those pages

    @classmethod
    def create(cls, n_items: int | None, n_slots: int, *, is_private: bool = False) -> Self:
        """Create an empty board. It can be in private memory."""
        end = board_layout(n_items, n_slots)[-1]
        if n_items is None:
            nbytes = end + page_layout(PAGE_ITEMS)[1]
            place = Segment.create(nbytes, is_private=is_private, grows=True), 0
        else:
            place = slab.take(end + page_layout(max(n_items, 1))[1])
        board = cls(*place, n_items, n_slots)
        board.slots[:, ITEM] = NO_ITEM
        board.header[TOTAL] = NOT_KNOWN if n_items is None else n_items
        board.n_there = n_items or 0
        return board

    @property
    def place(self) -> tuple[int, int | None, int]:
        """The arguments with which a worker attaches the board to its segment."""
        return self.offset, None if self.is_open else self.n_items, self.n_slots

    def touch(self) -> None:
        """Map the first pages of memory, so that fewer writes to the board cause page faults."""
        bytes(self._memory[: TOUCHED : mmap.PAGESIZE])

    # ------------------------------------------------------------------------ pages

    def page(self, i: int) -> Page:
        """Return the page of an item."""
        k = i // self.page_items
        return self._pages.get(k) or self._map_page(k)

    def newest_page(self) -> Page:
        """Return the page of the last item so far. Earlier pages may be freed."""
        return self.page(max(0, self.n_there - 1))

    def _map_page(self, k: int) -> Page:
        nbytes = self._page_nbytes
        start = self._places[-1] + k * nbytes
        if self.segment.is_private and k:  # in separate memory, freed with the page
            memory = memoryview(Segment.create(nbytes, is_private=True))
        else:
            if self.offset + start + nbytes > self.segment.nbytes:  # the owner has enlarged it
                self.segment = self.segment.whole("r+")
            memory = memoryview(self.segment)[self.offset :][start : start + nbytes]
        self._pages[k] = page = Page(memory, k * self.page_items, self.page_items)
        return page

    def forget_pages(self) -> None:
        """Release mapped pages in a worker process, which needs another page."""
        if self.segment.kind is None and len(self._pages) > 1:
            self._pages.clear()

    @property
    def pages(self) -> list[Page]:
        """The pages of this process, for its owner all that are not freed."""
        if not self.is_open and not self._pages:
            self._map_page(0)
        return list(self._pages.values())

    def extend(self, n: int) -> None:
        """Add pages for `n` more items."""
        start, stop = self.n_there, self.n_there + n
        for k in range(start // self.page_items, (stop - 1) // self.page_items + 1):
            if k not in self._pages:
                end = self._places[-1] + (k + 1) * self._page_nbytes
                if end > self.segment.nbytes and not self.segment.is_private:
                    self.segment = self.segment.grown(end, 2 * end)
                self._map_page(k)

    def drop_page(self, page: Page) -> None:
        """Free a page whose items are all done and whose results are not needed."""
        k, nbytes = page.first // self.page_items, self._page_nbytes
        if self.has_failures:
            self._retried_there = np.append(self._retried_there, _retried(page))
        del self._pages[k]
        page.done[:] = 0  # a worker that attaches now may map the page again
        self._n_pages_gone += 1
        if not self.segment.is_private:
            with suppress(OSError):  # some kinds of memory cannot be freed in part
                sections.free(self.segment, self._places[-1] + k * nbytes, nbytes)

    # ------------------------------------------------------------------------ items

    @property
    def n_items(self) -> int:
        """Number of items, or the number so far if items may follow."""
        total = self.header[TOTAL]
        return self.n_there if total == NOT_KNOWN else total

    @property
    def is_closed(self) -> bool:
        """Whether `n_items` is the final number of items."""
        return self.header[TOTAL] != NOT_KNOWN

    def publish(self, n: int) -> None:
        """Show `n` more items to workers."""
        if waiting.IS_WEAKLY_ORDERED:
            waiting.before_marks()
        self.n_there += n

    def close(self, n: int | None = None) -> None:
        """Declare that no items follow those so far, or the first `n`."""
        self.header[TOTAL] = self.n_there if n is None else n

    def parts(self, start: int, stop: int) -> list[tuple[Page, int, int]]:
        """Return the pages of some items, except freed pages, and the items on each."""
        parts = []
        for page in self.pages:
            low, high = max(start - page.first, 0), min(stop - page.first, page.n)
            if low < high:
                parts.append((page, low, high))
        return parts

    def state(self, i: int) -> int:
        """Return the ``done`` byte of an item."""
        page = self.page(i)
        state = int(page.done[i - page.first])
        if waiting.IS_WEAKLY_ORDERED and state:
            waiting.after_marks()
        return state

    def fail(self, i: int) -> None:
        """Mark an item as finally failed."""
        page = self.page(i)
        page.mark(i - page.first, FAILED)

    def done(self) -> npt.NDArray[np.uint8]:
        """Return the ``done`` bytes of all items, as a copy if the board is open.

        After this, the results of done items can be read.
        """
        n = self.n_items
        if not self.is_open:
            page = self.page(0)
            return (page.states() if waiting.IS_WEAKLY_ORDERED else page.done)[:n]
        done = np.zeros(n, np.uint8)
        for page, low, high in self.parts(0, n):
            done[page.first + low : page.first + high] = page.done[low:high]
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()
        return done

    def n_done(self) -> int:
        """Count the items that are done, in 20 µs for a million."""
        n_gone = self._n_pages_gone * self.page_items
        n = sum(int(np.count_nonzero(page.done)) for page in self.pages)
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()  # because if all are done, nobody checks again
        return n_gone + n

    def finished(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if it is done or has failed, or its page was freed."""
        finished = np.asarray(self.done() != 0)
        finished[: self._n_pages_gone * self.page_items] = True
        return finished

    def present(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if it has a result."""
        return np.isin(self.done(), (IN_OUTPUT, IN_LOG))

    def n_done_in(self, start: int, stop: int) -> int:
        """Count the items of a running chunk that are done."""
        # A worker runs the items of a chunk in order.
        if start >= stop:
            return 0
        page = self.page(start)
        return int(np.count_nonzero(page.done[start - page.first : stop - page.first]))

    def attempts_to_count(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the `attempts` words of items that have failed, for the caller to increment."""
        self.has_failures = 1
        page = self.page(start)
        return page.attempts[start - page.first : stop - page.first]

    def has_failed(self, start: int, stop: int) -> bool:
        """Return whether one of some items on one page has failed before."""
        # In the common case, the flag avoids reading, and so allocating, memory of `attempts`.
        if not self.has_failures:
            return False
        page = self.page(start)
        return bool(page.attempts[start - page.first : stop - page.first].any())

    def retried(self) -> npt.NDArray[np.int64]:
        """Return the items that failed and ran again."""
        if not self.has_failures:
            return self._retried_there
        return np.concatenate([self._retried_there, *map(_retried, self.pages)])

    # ----------------------------------------------------------------------- claims

    @property
    def returned(self) -> npt.NDArray[np.int64]:
        """The ranges of items that were given back."""
        return self._array(np.int64, (RETURNED_PER_SLOT * self.n_slots, 2), self._places[1])

    @property
    def n_unclaimed(self) -> int:
        """Number of unclaimed items. Each range given back counts as one item."""
        return self.n_items - self.next_item + self.header[RETURNED]

    def has_waiting(self) -> bool:
        """Return whether an item is neither claimed nor withdrawn."""
        return bool(self.header[RETURNED]) or self.next_claim() < self.n_there

    def withdraw(self, i: int) -> bool:
        """Mark an unclaimed item as failed. Return whether it was unclaimed.

        Call it while holding the lock, and only if every chunk has one item.
        """
        if self.is_claimed(i) or self.state(i):
            return False
        self.fail(i)
        return True

    def is_claimed(self, i: int) -> bool:
        """Return whether a worker has claimed an item."""
        return i < self.next_item

    def next_claim(self) -> int:
        """Return the first item that is neither claimed nor withdrawn. Hold the lock."""
        return self.first(self.next_item, self.n_there, is_done=False)

    def first(self, start: int, stop: int, *, is_done: bool) -> int:
        """Return the first item in a range that is done or not, or `stop` if there is none."""
        while start < stop:
            page = self.page(start)
            low = start - page.first
            done = page.done[low : min(low + LOOK_ITEMS, stop - page.first)]
            if bool(done[0]) == is_done:
                return start
            found = (done != 0) == is_done
            if found[k := int(found.argmax())]:
                return start + k
            start += len(done)
        return stop

    def stop(self) -> None:
        """Ask workers to claim and start no more items."""
        self.header[STOP] = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self.header[STOP])

    # ---------------------------------------------------------------------- results

    def agree(self, kind: int, lock: AbstractContextManager[Any]) -> int:
        """Return the kind of results of the call, set by the first worker that calls this."""
        if not self.header[KIND]:
            with lock:
                if not self.header[KIND]:
                    self.header[KIND] = kind
        return self.header[KIND]

    # ------------------------------------------------------------------------ slots

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The rows of all workers, as an array."""
        return self._array(np.int64, (self.n_slots, SLOT_WORDS), self._places[2])

    def row(self, slot: int) -> memoryview:
        """Return the words of one slot."""
        return self._words(self._places[2] + slot * SLOT_WORDS * 8, SLOT_WORDS)

    def _words(self, offset: int, n: int) -> memoryview:
        return self._memory[offset : offset + 8 * n].cast("q")

    def note_draws(self, items: range, which: int) -> None:
        """Record that items drew from global random numbers. Only the first record is kept."""
        if not self.header[DREW]:
            self.header[DREW] = items.start << DREW_BITS | min(len(items), DREW_MOST) << 2 | which

    @property
    def draws(self) -> tuple[range, int]:
        """The first items that drew global random numbers, and the generators."""
        word = self.header[DREW]
        start, n = word >> DREW_BITS, word >> 2 & DREW_MOST
        return range(start, start + n), word & 3

    def clear_slot(self, slot: int) -> None:
        """Clear a slot for another worker."""
        self.slots[slot] = 0
        self.slots[slot, ITEM] = NO_ITEM

    def items_of(self, slot: int) -> range:
        """Return the items that a worker is running: one, several tiny ones, or none."""
        start, stop = self.row(slot)[ITEM : ITEM_STOP + 1]
        if start == NO_ITEM:
            return range(0)
        stop = stop or start + 1
        return range(self.first(start, stop, is_done=False), stop)

    def unbegun(self, slot: int) -> range:
        """Return the items that a dead worker had claimed but not begun."""
        item, after, _, start, stop = self.row(slot)[ITEM : CHUNK_STOP + 1]
        if item != NO_ITEM:
            start = after or item + 1
        return range(self.first(start, stop, is_done=False), stop)


def _retried(page: Page) -> npt.NDArray[np.int64]:
    """Return the items of a page that failed and ran again."""
    places = np.flatnonzero(page.attempts)
    n = page.attempts[places] & ATTEMPTS
    is_again = (n > 1) | ((n == 1) & (page.done[places] != FAILED))
    return np.asarray(page.first + places[is_again])


class Claims:
    """Claims chunks of items for a worker.

    Parameters
    ----------
    board : Board
        The call's board.
    slot : int
        This worker's row.
    lock : context manager
        Held while a chunk is claimed.
    n_workers : int
        Number of workers that share the remaining items.
    chunksize : int or None
        Number of items of a chunk, or None to choose it by the measured time.
    block_of : callable, optional
        Returns the block of items that is loaded with an item. Chunks end between blocks, so that
        two workers rarely load the same block.
    wait : callable
        Waits a while for items, and returns whether to continue waiting.

    Attributes
    ----------
    chunk_s, least_s : float
        Target time of a chunk, and its minimum for the last items.
    most : int or None
        The maximum number of items of a chunk, or None for no limit.

    References
    ----------
    .. [1] S. F. Hummel, E. Schonberg, L. E. Flynn, "Factoring: A method for scheduling parallel
       loops", Communications of the ACM 35(8), 90-101, 1992 (chunks of half an even share).
    """

    chunk_s, least_s = CHUNK_S, LEAST_S
    most: int | None = None

    def __init__(
        self,
        board: Board,
        slot: int,
        lock: AbstractContextManager[Any],
        n_workers: int,
        chunksize: int | None,
        block_of: Callable[[int], range] | None,
        wait: Callable[[], bool],
    ) -> None:
        self._board = board
        self._slot = board.row(slot)
        self._lock = lock
        self._n_workers = n_workers
        self._chunksize = chunksize
        self._block_of, self._wait = block_of, wait
        self._last = 0

    def claim(self, item_s: float) -> range:
        """Claim the next chunk, after waiting if necessary. It is empty when no items are left.

        `item_s` is the recent time per item, in seconds.
        """
        while not (chunk := self._claim(item_s)):
            # The worker has no chunk now. Pages of its last chunk may be freed.
            self._slot[CHUNK_STOP] = self._slot[CHUNK_START]
            if chunk is not None or not self._wait():
                return range(0)
        return chunk

    def _claim(self, item_s: float) -> range | None:
        """Return a chunk, an empty one at the end, or None if more items may arrive."""
        board, header = self._board, self._board.header
        if header[NEXT] >= header[N_THERE] and not header[RETURNED]:
            is_over = header[STOP] or header[NEXT] == header[TOTAL]
            return range(0) if is_over else None  # without the lock, which takes five times as long
        with self._lock:
            if header[STOP]:
                return range(0)
            n_returned = header[RETURNED]
            if n_returned:
                start, stop = map(int, board.returned[n_returned - 1])
            else:
                start, n_there = board.next_claim(), header[N_THERE]
                if waiting.IS_WEAKLY_ORDERED:
                    waiting.after_marks()  # the items were written before the count
                if start >= n_there:
                    header[NEXT] = start  # the others were withdrawn
                    return range(0) if start == header[TOTAL] else None
                stop = self._stop(start, n_there, item_s)
                if header[SKIPPED]:
                    stop = board.first(start, stop, is_done=True)
            # The slot is set first: a worker that dies after this line has claimed nothing (see
            # `give_back`).
            self._slot[CHUNK_START], self._slot[CHUNK_STOP] = start, stop
            if n_returned:
                header[RETURNED] = n_returned - 1
            else:
                header[NEXT] = stop
        self._last = stop - start
        return range(start, stop)

    def _stop(self, start: int, n_there: int, item_s: float) -> int:
        page_end = start - start % self._board.page_items + self._board.page_items
        end = min(n_there, page_end)
        if self.most is not None:
            end = min(end, start + self.most)
        if self._chunksize is not None:
            return min(start + self._chunksize, end)
        n_left = n_there - start
        block = range(start, start + 1) if self._block_of is None else self._block_of(start)
        by_time = self.chunk_s / item_s if item_s > 0 else 1
        # Half of an even share of the rest, so that chunks shrink towards the end, and all workers
        # finish at about the same time.
        share = max(n_left / (2 * self._n_workers), by_time * self.least_s / self.chunk_s)
        if by_time * LOAD_S > len(block) * self.chunk_s:
            share = max(share, len(block))
        stop = start + max(1, int(min(by_time, share, GROWTH * self._last)))
        if stop >= end:
            return end
        if self._block_of is not None and stop >= block.stop:
            stop = max(block.stop, self._block_of(stop).start)
        return stop


def give_back(board: Board, items: range, lock: AbstractContextManager[Any]) -> None:
    """Return items of a dead worker, so that other workers claim them."""
    if not items:
        return
    header, returned = board.header, board.returned
    with lock:
        n = header[RETURNED]
        # The worker may have died during a claim, before it had claimed an item.
        if items.start < header[NEXT] and items.start not in returned[:n, 0]:
            returned[n] = items.start, items.stop
            header[RETURNED] = n + 1


def busy_since(row: Sequence[int]) -> float | None:
    """Return when a worker began its current item, in s of the monotonic clock, or None."""
    if row[ITEM] == NO_ITEM:
        return None
    if waiting.IS_WEAKLY_ORDERED:
        waiting.after_marks()
    return row[SINCE] / 1e9


def reported(row: Sequence[int]) -> tuple[float | None, str]:
    """Return the fraction (or None) and the text that the item of a worker has reported."""
    if row[REPORTED] != row[SINCE]:
        return None, ""
    fraction = None if row[FRACTION] == NOT_TOLD else (row[FRACTION] - 1) / MILLIONTHS
    data = np.array(row[REPORT_TEXT:], np.int64).tobytes()
    return fraction, data.rstrip(b"\0").decode("utf-8", "ignore")


def write_text(row: memoryview, text: str) -> None:
    """Write the text of a report to a worker's row."""
    place = row[REPORT_TEXT:].cast("B")
    nbytes = len(place)
    data = text[: nbytes + 1].encode("utf-8", "replace")
    if len(data) > nbytes:
        data = data[: nbytes - len(CUT)] + CUT
    place[:] = data.ljust(nbytes, b"\0")
