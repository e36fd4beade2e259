"""Supplies items of a source, such as a generator, to a running call.

::

    source ──► some items ──► Call.append ──► workers
                 ▲ └── when workers will soon run out of items, and results were consumed
"""

from __future__ import annotations

import _thread
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare._core.engine.call import Call, Supply
from nbshare._core.interrupts import start_thread
from nbshare._core.messages import is_interrupt
from nbshare._core.system import waiting
from nbshare._core.wire.board import N_ITEMS, WORKED
from nbshare._core.wire.failures import raised_by_source
from nbshare._core.wire.orders import nbytes_of

MOST_ITEMS = 1 << 14  # at a time
MOST_BYTES = 32 << 20  # limit of arrays and strings, at a time and read ahead
MOST_AHEAD = 3  # portions ahead of a loop over the results
GROWTH = 8  # largest factor from one portion to the next
SUPPLY_CHECK_S = 0.05  # interval of checks for items and consumed results without an event
THREADS_CHECK_S = 0.002  # the same for threads, which have no events

Item = tuple[Any, ...]  # one value of each iterable

_END: Item = ("the end",)


class Pace:
    """The measured time per item of a call, and the number of items to supply at a time.

    Parameters
    ----------
    item_s : float
        Assumed seconds per item, until they are measured.
    size : int
        Number of items to supply first.
    """

    def __init__(self, item_s: float, size: int) -> None:
        self.item_s, self.size = item_s, size
        self._mark = 0, 0  # at the start of the measurement: done items and their ns

    def look(self, call: Call) -> None:
        """Measure the time per item, over about the last `size` items."""
        rows = call.rows()
        n_done, worked_ns = (sum(row[word] for row in rows) for word in (N_ITEMS, WORKED))
        n_new = n_done - self._mark[0]
        if n_new > 0:
            self.item_s = max(1, worked_ns - self._mark[1]) / n_new / 1e9
            if n_new >= self.size:
                self._mark = n_done, worked_ns

    def resize(self, wanted: float, least: int, most: int) -> None:
        """Set the next size to `wanted`, but not much above the last size, within limits."""
        self.size = max(least, int(min(wanted, GROWTH * self.size, most)))


class SourceSupply(Supply):
    """Reads items slightly ahead of the workers, from a source that may be slow or endless.

    Parameters
    ----------
    call : Call
        The call, with an open board.
    source : iterator
        The source of items.
    in_background : bool
        Whether a separate thread supplies the items. Otherwise the waiting thread does.
    """

    def __init__(self, call: Call, source: Iterator[Item], *, in_background: bool) -> None:
        self._call, self._in_background = call, in_background
        if call.items_event is not None:  # there is no event within one process
            self._event = waiting.OwnerEvent()
            call.event_fd = self._event.fd
        self._intake = Intake(source, self.wake if call.engine.works_by_itself else None)
        request = call.request
        self._least = request.max_workers * (request.chunksize or 1)
        self._pace = Pace(0.0, 2 * self._least)
        self._bringing = _thread.allocate_lock()

    def start(self) -> None:
        """Start to supply items."""
        self._intake.want(2 * self._pace.size)
        if self._in_background:
            start_thread(self._live)

    def wake(self) -> None:
        """Wake the thread that supplies items. Thread-safe."""
        if self._call.results.is_final:  # although the last results may still be being stored
            self._intake.close()
        super().wake()

    def wait(self, call: Call, timeout_s: float) -> None:
        """Supply items, and wait."""
        if self._in_background:
            call.await_end(timeout_s)
            return
        self.bring()
        if call.engine.works_by_itself:
            self._rest(timeout_s)
        else:
            call.engine.wait(call, timeout_s)

    def _live(self) -> None:
        while not self._call.is_over:
            self.bring()
            self._rest(SUPPLY_CHECK_S)

    def _rest(self, timeout_s: float) -> None:
        if self._event is not None:
            self._event.wait(min(timeout_s, SUPPLY_CHECK_S))
        else:
            self._call.await_end(min(timeout_s, THREADS_CHECK_S))

    def bring(self) -> None:
        """Append the items that workers will need soon, if the source has yielded them."""
        if self._bringing.acquire(blocking=False):  # otherwise another thread supplies them
            try:
                self._bring()
            finally:
                self._bringing.release()

    def _bring(self) -> None:
        call = self._call
        if call.board.is_closed or call.board.stopped or call.is_over or self.error is not None:
            return
        if call.engine.is_closed:
            call.stop()
            return
        try:
            if call.results.given.is_iterated:
                call.sweep()
            while self._wants_more() and (items := self._intake.take(self._next_size())):
                self._append(items)
            if self._intake.is_exhausted and not call.board.stopped:  # else items may be missing
                self._close()
        except BaseException as error:  # an item cannot be sent, or memory is short
            if is_interrupt(error):
                raise
            if not call.board.stopped:
                self.error = error.with_traceback(None)  # later items would get wrong indices
                call.stop(self.error)

    def _wants_more(self) -> bool:
        """Return whether workers will need items soon, and more may be read."""
        board, results = self._call.board, self._call.results
        if self._intake.is_exhausted or board.stopped or self._call.is_over:
            return False
        size = self._pace.size
        if results.given.is_iterated and board.n_there - results.given.n > MOST_AHEAD * size:
            return False
        if not board.n_there or board.n_unclaimed <= 0 or self._are_all_done():
            return True
        if self._takes_much():
            return False
        if not self._pace.item_s:
            self._pace.look(self._call)
        return self._pace.item_s > 0 and board.n_unclaimed < size

    def _are_all_done(self) -> bool:
        """Return whether all items so far are done, and some were restored."""
        board = self._call.board
        return bool(board.n_skipped) and board.n_done() == board.n_there

    def _takes_much(self) -> bool:
        """Return whether unfinished items take too much memory."""
        if (feed := self._call.feed) is None:
            return True
        if feed.nbytes > MOST_BYTES:
            feed.sweep()
        return feed.nbytes > MOST_BYTES

    def _next_size(self) -> int:
        """Return how many items to append next, based on the measured time per item.

        Request twice as many from the source.
        """
        results, pace = self._call.results, self._pace
        pace.look(self._call)
        if pace.item_s:
            item_s = max(pace.item_s / self._call.request.max_workers, results.given.reader_s())
            most = MOST_ITEMS
            if results.given.is_iterated:  # the speed of the loop is unknown at first
                most = min(most, GROWTH * results.given.n)
            pace.resize(self._call.engine.portion_s / item_s, self._least, most)
        elif self._are_all_done():
            pace.resize(MOST_ITEMS, self._least, MOST_ITEMS)
        self._intake.want(2 * pace.size)
        self._call.board.few = pace.size // 2
        return pace.size

    def _append(self, items: list[Item]) -> None:
        call, n = self._call, len(items)
        out = call.request.out
        if isinstance(out, np.ndarray) and call.board.n_there + n > len(out):
            raise ValueError(f"out= has {len(out)} rows, but the iterable yields more items")
        columns = [list(column) for column in zip(*items, strict=True)]
        call.append(columns)

    def _close(self) -> None:
        call, n = self._call, self._call.board.n_there
        out = call.request.out
        if isinstance(out, np.ndarray) and n != len(out):
            self.error = ValueError(f"out= has {len(out)} rows, but the iterable yielded {n} items")
        elif self._intake.error is not None:
            self.error = raised_by_source(self._intake.error, n, by_other_thread=True)
        self._intake.close()
        call.close()


class Intake:
    """Items read ahead from a source that may be slow or endless.

    Parameters
    ----------
    source : iterator
        The source of items.
    tell : callable, optional
        If given, a thread reads ahead, and calls this when items arrive. Otherwise, items are read
        on request.

    Attributes
    ----------
    is_exhausted : bool
        Whether all items were returned.
    error : BaseException or None
        The error that the source raised, which ended it.
    """

    def __init__(self, source: Iterator[Item], tell: Callable[[], None] | None) -> None:
        self._source = itertools.chain(source, itertools.repeat(_END))
        self._items: deque[Item] = deque()
        self._tell = tell
        self._wanted = 0
        self._more = _thread.allocate_lock()  # released when there is room
        self._has_thread = self._is_closed = self.is_exhausted = False
        self.error: BaseException | None = None

    def want(self, n: int) -> None:
        """Set the number of items to read ahead."""
        self._wanted = n
        if self._tell is not None and not self._has_thread:
            self._has_thread = True
            try:
                # With the caller's context, such as NumPy's errstate.
                start_thread(contextvars.copy_context().run, self._work)
            except RuntimeError:  # no more threads are allowed, so `take` reads
                self._has_thread = False
        self._go_on()

    def take(self, n: int) -> list[Item]:
        """Return up to `n` items that have arrived."""
        if not (self._has_thread or self._items or self.is_exhausted):
            self._get(n)
        items: list[Item] = []
        nbytes = 0
        while len(items) < n and nbytes < MOST_BYTES and self._items:
            item = self._items.popleft()
            if item is _END:
                self.is_exhausted = True
                break
            items.append(item)
            nbytes += nbytes_of(item)
        self._go_on()
        return items

    def close(self) -> None:
        """Stop reading. A generator without other references is closed."""
        self._is_closed = True
        self._source = itertools.chain(())
        self._tell = None  # or its owner and this object would refer to each other
        self._go_on()

    def _get(self, n: int) -> None:
        try:
            # One by one, so that an item is available immediately, however long the next one takes.
            self._items.extend(itertools.islice(self._source, n))
        except BaseException as error:
            if is_interrupt(error):
                raise
            # Without this frame, which refers to this object, and so to the error.
            self.error = error.with_traceback(error.__traceback__ and error.__traceback__.tb_next)
            self._items.append(_END)

    def _go_on(self) -> None:
        if self._more.locked():
            with suppress(RuntimeError):  # another thread has released it
                self._more.release()

    def _work(self) -> None:
        n, largest = 1, 1  # the first item immediately
        last: Any = None  # the last item that was read
        while not self._is_closed and last is not _END:
            room = min(self._wanted, MOST_BYTES // largest + 1) - len(self._items)
            if room <= 0:
                self._more.acquire()
                continue
            was_empty = not self._items
            self._get(min(n, room))
            if was_empty and (tell := self._tell) is not None:
                tell()
            with suppress(IndexError):  # another thread has taken it
                last = self._items[-1]
                largest = max(largest, nbytes_of(last))
            n = min(2 * n, max(1, MOST_BYTES // (8 * largest)))
