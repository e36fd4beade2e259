"""The results of a call, as its owner reads them, during the run and at its end.

`store` defines who writes a result, and when it may be read.

Any number of threads may read at the same time, because `Results.load` keeps no state between two
calls. When an output grows, its rows stay in the same memory, so older arrays of the output stay
valid. A page of an open board is freed when a loop has consumed all its results. Its marks are
cleared before its results, so readers check a mark again after reading. Only one thread at a time
iterates over results (`Given`), and only one unpickles ahead, and claims these results under a
lock.
"""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.engine.collect import as_masked, collect, masked, read_only
from nbshare._core.engine.outputs import OutputRows
from nbshare._core.engine.request import Request, tiles_of
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.logs import LogKey, LogReader, Unloadable, are_mixed
from nbshare._core.store.pages import FAILED, IN_LOG, IN_OUTPUT, Page
from nbshare._core.store.rows import RowNumbers
from nbshare._core.wire.board import Board

LOAD_S = 0.02  # time limit for unpickling objects, per turn of the waiting thread
MOST_AHEAD = 10_000  # most items that are checked in this time
MOST_ERRORS = 10_000  # most errors that are kept for consumed items


class _Missing:
    """Marks a missing result in a list of partial results.

    Test with ``x is nbshare.MISSING``. It counts as false.

    Examples
    --------
    Remove the missing results from a list of partial results:

    >>> import nbshare
    >>> partial = ["a", nbshare.MISSING, "c"]
    >>> [x for x in partial if x is not nbshare.MISSING]
    ['a', 'c']

    List the items that a stopped run has not finished:

    >>> stars = ["Vega", "Deneb", "Altair"]
    >>> [star for star, x in zip(stars, partial) if x is nbshare.MISSING]
    ['Deneb']
    """

    def __repr__(self) -> str:
        return "nbshare.MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class Given:
    """The results that a loop has consumed.

    Attributes
    ----------
    n : int
        Number of these results.
    is_iterated : bool
        Whether a loop consumes results. Pages of an open board are freed when all results of a page
        are consumed.

    Notes
    -----
    One thread at a time consumes results. Any thread may read.
    """

    def __init__(self) -> None:
        self.n = 0
        self.is_iterated = False
        self._by_page: dict[int, Cursor] = {}
        self._reader_s = 0.0  # the reader's time per result, at the last check
        self._reading: tuple[float, int] | None = None  # start time and first result of a check

    def of(self, page: Page) -> Cursor:
        """Return the cursor of a page."""
        cursor = self._by_page.get(page.first)
        if cursor is None:  # in one step, because any thread may be the first
            cursor = self._by_page.setdefault(page.first, Cursor(page.n))
        return cursor

    def add(self, page: Page, i: int) -> None:
        """Record that the result of an item was consumed."""
        self.of(page).take(i - page.first)
        self.n += 1

    def forget(self, page: Page) -> None:
        """Forget a page that was freed."""
        self._by_page.pop(page.first, None)

    @contextmanager
    def look(self) -> Iterator[None]:
        """Measure how long the reader takes for the results that it gets in this block."""
        self.is_iterated = True
        self._reading = time.monotonic(), self.n
        yield
        self._reader_s, self._reading = self.reader_s(), None

    def reader_s(self) -> float:
        """Return the reader's time per result, 0 if unknown."""
        if (reading := self._reading) is None or self.n == reading[1]:
            return self._reader_s
        return (time.monotonic() - reading[0]) / (self.n - reading[1])


class Results:
    """The results so far, as an array or a list.

    Parameters
    ----------
    board : Board
        The call's board.
    request : Request
        The checked arguments.

    Attributes
    ----------
    output : OutputRows
        The results that form one array.
    logs : LogReader
        The other results.
    errors : dict
        The errors of failed items, by item.
    is_final : bool
        Whether all writers have ended.
    given : Given
        The results that a loop has consumed.

    Notes
    -----
    One thread of the owner appends items. All threads may read at the same time, but only one may
    iterate.
    """

    def __init__(self, board: Board, request: Request) -> None:
        self._board, self._request = board, request
        self.output, self.logs = OutputRows(board, request), LogReader()
        self.errors: dict[int, BaseException] = {}
        self.is_final = False
        self.given = Given()
        self._has_errors = request.policy.returns_errors  # errors take the places of results
        # The first results, if they are objects, that were loaded ahead, or None while a thread
        # claims them.
        self._ahead: list[Any] | None = []
        self._lock = _thread.allocate_lock()  # held for a moment, never while user code runs

    def final(self) -> Any:
        """Return all results, as one array if they fit, otherwise as a list.

        With ``on_error="return"``, the array is masked where items failed, and a list contains the
        errors.
        """
        n, with_errors = self._board.n_items, self._has_errors
        if self.errors and not with_errors:  # results that could not be loaded earlier
            raise self.errors[min(self.errors)]
        if self._board.is_open and self.given.n:
            raise RuntimeError(
                f"result() has nothing to return for {self.given.n} results, which were already "
                "consumed by iteration. They are not kept, because a generator may never end. "
                "Collect them in the loop, or call result() without iterating first."
            )
        if not self.has_objects:
            return self.partial() if with_errors else self.output.first(n)
        values = self.values()
        is_list = isinstance(self._request.out, str) or tiles_of(self._request) is not None
        results = values if is_list else collect(values, self.errors)
        return as_masked(results) if with_errors else results

    def partial(self) -> Any:
        """Return the results so far: a masked array, a list with gaps, or None before the first.

        For tiles, return a `Mosaic` instead of the array, or a list if no array can hold all.
        """
        if self.output.spec is None:
            return None
        if self.has_objects:
            values = self.values(gaps=True)
            if (tiles := tiles_of(self._request)) is not None:
                return tiles.put_together(values)
            if self.output.can_grow or self._request.out is not None:
                return values
            missing = [i for i, value in enumerate(values) if value is MISSING]
            return as_masked(collect(values, set(missing)))
        done = self._board.done()
        array, is_there = self.output.first(len(done)), done == IN_OUTPUT
        assert array is not None
        if not isinstance(array, np.ndarray):  # a `Mosaic`
            whole = array.whole if self.is_final else read_only(array.whole)
            return type(array)(whole, array.layout, is_there)
        if self.output.grows and self.given.is_iterated:
            array = array.copy()  # the rows will be freed
        else:
            self.output.keep(len(done))
        if self._board.is_open:
            is_there &= self._board.done()[: len(done)] == IN_OUTPUT
        return masked(array, ~is_there, is_kept=self.is_final)

    @property
    def has_objects(self) -> bool:
        """Whether some results are not in the output."""
        is_array = self.output.spec is not None and self.output.spec.dtype is not None
        return not is_array or any(IN_LOG in p.done.tobytes() for p in self._board.pages)

    def values(self, *, gaps: bool = False) -> list[Any]:
        """Return all results as a list, with gaps, or errors in the places of failed items."""
        with_errors = self._has_errors
        values = (self._take_ahead() if self.is_final else None) or []
        n_before, n = len(values), len(self._board.done())
        values += [MISSING] * (n - n_before)
        for some, found in self._batches(np.arange(n_before, n)):
            if some[-1] - some[0] == len(some) - 1:
                values[some[0] : some[-1] + 1] = found
            else:
                for i, value in zip(some.tolist(), found, strict=True):
                    values[i] = value
        is_whole = self.logs.all_loaded and not self.errors
        unloadable = [] if is_whole else [i for i, x in enumerate(values) if type(x) is Unloadable]
        for i in unloadable:
            self._board.fail(i)  # a result that cannot be loaded counts as missing
            self.errors[i] = error = values[i].error
            values[i] = error if with_errors else MISSING
        if unloadable and not gaps and not with_errors:
            raise self.errors[unloadable[0]]
        return values

    def load_ahead(self) -> bool:
        """Unpickle objects for a short time during the run. Return whether there were any."""
        if (spec := self.output.spec) is None or spec.dtype is not None or self.given.is_iterated:
            return False
        if (ahead := self._take_ahead()) is None:
            return False
        try:
            n_before, until_s = len(ahead), time.monotonic() + LOAD_S
            items = np.arange(n_before, min(n_before + MOST_AHEAD, self._board.n_there))
            for page, places in self._places(items):
                logged, entries = self._logged(page, places)
                n = int(np.append(logged == places[: len(logged)], False).argmin())  # no gaps
                for some, values in self.logs.load(page.first + logged[:n], entries[:, :n]):
                    if some[0] != len(ahead):  # a log was dropped
                        break
                    ahead += values
                    if time.monotonic() > until_s:
                        break
                break  # the next call reads the next page
            return len(ahead) > n_before
        finally:
            self._ahead = ahead

    def _take_ahead(self) -> list[Any] | None:
        """Claim the results loaded ahead. Return None if another thread holds them."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        return ahead

    def load(self, items: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield the available results and errors of some items, in any order.

        A result that cannot be loaded is an `Unloadable`. No variable of this generator keeps a
        value alive, because the caller may request the next one much later.
        """
        for some, values in self._batches(items):
            values.reverse()
            for i in some.tolist():
                yield i, values.pop()

    def _batches(self, items: RowNumbers) -> Iterator[tuple[RowNumbers, list[Any]]]:
        """Yield results as `load` does, but in batches: indices in order, and their results."""
        for page, places in self._places(items):
            states = page.states(places)
            for i in (page.first + places[states == FAILED]).tolist():
                if (error := self.errors.get(i)) is not None:  # else it could not be loaded
                    yield np.array([i]), [error if self._has_errors else Unloadable(error)]
            if self.output.spec is not None:
                for place in places[states == IN_OUTPUT].tolist():
                    row = [self._row(page.first + place)]
                    if page.done[place] == IN_OUTPUT:
                        yield np.array([page.first + place]), row
            logged, entries = self._logged(page, places)
            if are_mixed(entries):
                together = np.lexsort(entries[1::-1])  # sorted by batch
                logged, entries = logged[together], entries[:, together]
            yield from self.logs.load(page.first + logged, entries)

    def _row(self, i: int) -> Any:
        """Return a row of the output, as a copy or a Python number."""
        value = self.output.some(i, 1)[0]
        if isinstance(value, np.ndarray):
            return value.copy()
        spec = self.output.spec
        return value.item() if spec is not None and spec.number else value

    def _places(self, items: npt.NDArray[np.int64]) -> Iterator[tuple[Page, RowNumbers]]:
        """Yield the pages of some items, in order, and the items' places on each page."""
        start, stop = (int(items[0]), int(items[-1]) + 1) if len(items) else (0, 0)
        for page, low, high in self._board.parts(start, stop):
            places = items - page.first
            yield page, places[slice(*np.searchsorted(places, (low, high)))]

    def _logged(self, page: Page, places: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """Return the places of results whose logs have arrived, and their entries.

        A log arrives with a message, after the ``done`` byte.
        """
        places = places[page.states(places) == IN_LOG]
        is_range = len(places) > 0 and places[-1] - places[0] == len(places) - 1
        part = slice(places[0], places[-1] + 1) if is_range else places  # quicker to copy
        entries = page.index[:, part].copy()
        is_here = self.logs.has(entries[0]) & (page.done[places] == IN_LOG)
        return (places, entries) if is_here.all() else (places[is_here], entries[:, is_here])

    def are_none(self) -> bool:
        """Return whether the first results are None, as those of a function without ``return``."""
        first = np.arange(min(self._board.n_there, 100))
        for page, places in self._places(first):
            logged, entries = self._logged(page, places)
            if len(logged) < len(first) or (entries[2] >= 10_000).any():  # nothing large is loaded
                return False
        return len(first) > 0 and all(value is None for _, value in self.load(first))

    # ------------------------------------------------------------------- one by one

    def new(self) -> Iterator[tuple[int, Any]]:
        """Yield the results since the previous call."""
        self._ahead = []
        with self.given.look():
            for page in self._board.pages:
                new = page.first + np.flatnonzero(self.given.of(page).new(page.done != 0))
                if len(new):
                    self.output.keeper.save()  # before their memory is reused
                yield from map(partial(self._taken, page), self.load(new))

    def _taken(self, page: Page, found: tuple[int, Any]) -> tuple[int, Any]:
        """Record that a result was delivered. Return it with its item."""
        i, value = found
        if type(value) is Unloadable:
            raise value.error
        self.given.add(page, i)
        return found

    def take(self, i: int) -> None:
        """Record that the result of an item was delivered."""
        self.given.add(self._board.page(i), i)

    def drop_logs(self) -> None:
        """Drop logs whose results have all been delivered."""
        for key in self.logs.ended():
            if not any(self._has_left(key, page) for page in self._board.pages):
                self.logs.drop(key)

    def _has_left(self, key: LogKey, page: Page) -> bool:
        """Return whether a log has undelivered results of items on a page."""
        in_log = (page.done == IN_LOG) & (page.index[0] == key)
        return bool(self.given.of(page).new(in_log).any())

    def drop_page(self, page: Page) -> None:
        """Free the results on a page, which have all been delivered."""
        self.given.forget(page)
        errors = list(self.errors)  # copied, because the dispatcher adds errors
        for i in errors if len(errors) > MOST_ERRORS else ():  # the source may never end
            if page.first <= i < page.first + page.n:
                del self.errors[i]
        self.output.free(page.first, page.first + page.n)
