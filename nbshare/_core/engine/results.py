"""The caller's side of the results: partial ones, and the final ones."""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.create import empty
from nbshare._core.arrays.shared_array import shared_view
from nbshare._core.arrays.tiles import Mosaic, Tiles
from nbshare._core.engine.collect import GrowingArray, as_masked, collect, masked
from nbshare._core.engine.run import Request, tiles_of
from nbshare._core.memory import Segment, can_share, pool, segment_of
from nbshare._core.wire.board import FAILED, IN_LOG, IN_OUTPUT, KIND, Board, Page
from nbshare._core.wire.results import (
    ASK,
    IS_OBJECT,
    KINDS,
    OBJECTS,
    LogKey,
    LogReader,
    OutputSpec,
    Unloadable,
)
from nbshare._core.wire.rows import FilePlace, RowNumbers

LOAD_S = 0.02  # for unpickling objects before the waiting thread does other things
MOST_AHEAD = 10_000  # items that are looked at in this time
MOST_ERRORS = 10_000  # kept of items whose results have been taken


class _Missing:
    """Marks a missing result in a list of partial results.

    Test with ``x is nbshare.MISSING``. It counts as false.

    Examples
    --------
    Leave out what is missing from a list of partial results:

    >>> import nbshare
    >>> partial = ["a", nbshare.MISSING, "c"]
    >>> [x for x in partial if x is not nbshare.MISSING]
    ['a', 'c']

    The items that a stopped run still has to do:

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


class Output(NamedTuple):
    """Where the rows of an output are."""

    array: Any  # in this process: an ndarray, or a `Mosaic`
    segments: list[Segment]  # for workers; none if they write to files only
    place: Any  # in the segments, as workers need it
    is_fresh: bool = True  # missing rows are zero


def in_memory(spec: OutputSpec, n: int) -> Output:
    """Return an output of `n` rows in shared memory.

    Raises
    ------
    OutOfMemoryError
        If there is no room.
    """
    assert spec.dtype is not None
    shape = (n, *spec.shape)
    memory, is_fresh = pool.writable(math.prod(shape) * spec.dtype.itemsize)
    return output_of(shared_view(np.ndarray(shape, spec.dtype, buffer=memory)), is_fresh=is_fresh)


def output_of(array: npt.NDArray[Any], *, is_fresh: bool = True) -> Output:
    """Return an array in shared memory as an output."""
    found = segment_of(array)
    assert found is not None
    segment, offset = found
    return Output(array, [segment], (offset, array.strides), is_fresh)


def mosaic_of(items: Tiles, spec: OutputSpec, _: int) -> Output:
    """Return the output of tiles: one array, in which each has its place.

    Raises
    ------
    OutOfMemoryError
        If there is no room.
    ValueError
        If results have other further axes than the array that the caller gave.
    """
    assert spec.dtype is not None
    whole = items.layout.whole
    shape = *whole, *spec.shape[len(whole) :]
    array, is_fresh = items.out, True
    if array is None:
        memory, is_fresh = pool.writable(math.prod(shape) * spec.dtype.itemsize)
        array = shared_view(np.ndarray(shape, spec.dtype, buffer=memory))
    elif array.shape != shape:
        raise ValueError(f"out= has shape {array.shape}, but the results make one of {shape}")
    mosaic = Mosaic(array, items.layout)
    target, segments = mosaic.target()
    return Output(mosaic, segments, target, is_fresh)


def spec_given_by(out: Any) -> OutputSpec | None:
    """Return what results look like, by the argument ``out=``; None: the first result decides."""
    if isinstance(out, np.ndarray):
        return OutputSpec(out.dtype, out.shape[1:], None, is_given=True)
    return None if out is None else OBJECTS


class Results:
    """The caller's side: the results so far, as an array or a list.

    Parameters
    ----------
    board : Board
        Of the call.
    request : Request
        The checked arguments.

    Attributes
    ----------
    errors : dict
        The errors of failed items, by item.
    is_over : bool
        Whether all writers have ended.
    n_given : int
        Results that a loop has taken.
    is_iterated : bool
        Whether a loop takes results. Pages of an open board are freed when all theirs are taken.
    allocate : callable
        ``allocate(spec, n)`` returns the `Output` of a call with `n` items.
    adapt : callable
        ``adapt(spec)`` returns what can be stored of results with the spec.
    files : callable
        Returns the files that workers write results to; None for none.

    Notes
    -----
    One thread of the owner appends items. All may read at the same time; one at a time may iterate.
    """

    def __init__(self, board: Board, request: Request) -> None:
        self._board, self._request = board, request
        self._spec = spec_given_by(request.out)
        self.allocate: Callable[[OutputSpec, int], Output] = in_memory
        if (items := tiles_of(request)) is not None:
            self.allocate = partial(mosaic_of, items)
        self.adapt: Callable[[OutputSpec], OutputSpec] = lambda spec: spec
        self.files: Callable[[], FilePlace | None] = lambda: None
        self._output: Output | None = None
        self._rows: GrowingArray | None = None  # in its place, as long as the board is open
        self._n_rows = 0  # that it must have
        self._n_shown = 0  # of which a caller may have a view
        out = request.out
        if isinstance(out, np.ndarray):
            # A plain array is filled through shared memory: the caller copies finished rows.
            self._output = output_of(out if segment_of(out) else empty(out.shape, out.dtype))
        if self._spec is not None:  # decided already
            board.header[KIND] = IS_OBJECT if self._output is None else ASK
        self.logs = LogReader()
        # The first results, if objects, which no reader has yet; None while a thread has them.
        self._ahead: list[Any] | None = []
        self._lock = _thread.allocate_lock()  # for a moment, never while users' code runs
        self._filling = _thread.allocate_lock()
        self._copied: npt.NDArray[np.bool_] | None = None  # rows of the plain array of ``out=``
        self.errors: dict[int, BaseException] = {}
        self.is_over = False
        self.n_given = 0
        self.is_iterated = False
        self._given: dict[int, npt.NDArray[np.bool_]] = {}  # by page
        self._reader_s = 0.0  # what the reader took for one of the results of the last look
        self._reading: tuple[float, int] | None = None  # since when, and from which on, at a look

    @property
    def spec(self) -> OutputSpec | None:
        """What results look like; None before the first."""
        kind = self._board.header[KIND]
        if self._spec is None and kind > ASK:
            spec = KINDS[kind]
            if spec.dtype is not None and not self._board.is_open:
                self._output = output_of(shared_view(self._board.page(0).numbers(spec.dtype)))
            self._spec = spec  # last: other threads expect the output to be there then
        return self._spec

    @property
    def array(self) -> Any:
        """The output, an ndarray or a `Mosaic`; None if there is none, or none yet, or it grows."""
        return self._output.array if self.spec is not None and self._output is not None else None

    def decide(self, spec: OutputSpec) -> None:
        """Take the first result's spec and allocate the output, unless that is done already."""
        if self.spec is not None:
            return
        spec = self.adapt(spec)
        if spec.dtype is not None and self._board.is_open and not can_share():
            spec = OBJECTS  # private memory does not grow in place; `final` makes one array of them
        if spec.dtype is not None and self._board.is_open:
            self._rows = rows = GrowingArray(spec)
            rows.rows(0, self._n_rows)
        elif spec.dtype is not None:
            self._output = self.allocate(spec, self._board.n_items)
        self._spec = spec

    def place_for(self, spec: OutputSpec) -> tuple[Any, list[Segment]]:
        """Return the answer to a worker with a first result, and the segments that it may need."""
        self.decide(spec)
        files = self.files()
        if (array := self.output()) is None:
            return (self.spec, None, files), []
        output = self._output or output_of(array)
        return (self.spec, output.place, files), output.segments

    def reserve(self, n_more: int = 0) -> None:
        """Allocate rows for the results of the present items and some more, if results are rows.

        Raises
        ------
        OutOfMemoryError
            If there is none.
        """
        # First: one thread decides, another brings items; whichever is later makes the room.
        # A stage's worker may ask for fewer places than another one before it.
        self._n_rows = max(self._n_rows, self._board.n_there + n_more)
        if (rows := self._rows) is not None:
            rows.rows(0, self._n_rows)

    def rows(self, first: int, n: int) -> Any:
        """Return rows of the output, wherever it is; of an open board those of one page."""
        if (whole := self.output()) is not None:
            return whole[first : first + n]
        assert self._spec is not None
        assert self._spec.dtype is not None
        page = self._board.page(first)
        return page.numbers(self._spec.dtype)[first - page.first :][:n]

    def output(self) -> Any:
        """Return the output, as far as there is one."""
        return self.array if self._rows is None else self._rows.rows(0, self._rows.n)

    def _outcome(self, n: int) -> Any:
        """Return the rows of the first items in one array; None if results are objects."""
        spec = self.spec
        if spec is None or spec.dtype is None:
            return None
        if self._rows is not None:
            return shared_view(self._rows.rows(0, n))
        if (whole := self.array) is not None:
            return whole[:n] if n < len(whole) else whole
        array = empty((n, *spec.shape), spec.dtype)
        for page, low, high in self._board.parts(0, n):
            array[page.first + low : page.first + high] = self.rows(page.first + low, high - low)
        return array

    def clear_missing(self, torn: list[int]) -> None:
        """Zero the missing rows before the array is returned.

        In reused memory all of them hold old results. In fresh memory only `torn` ones do: a worker
        was killed while it wrote them, and they have not been run again.
        """
        array = self.output()
        if array is not None:
            done = self._board.done()
            rows: Any = np.flatnonzero(done[: len(array)] != IN_OUTPUT)
            if self._output is None or self._output.is_fresh:
                rows = [i for i in torn if done[i] != IN_OUTPUT]
            array[rows] = np.zeros((), array.dtype)

    def final(self, *, with_errors: bool = False) -> Any:
        """Return all results: one array if they fit, else a list.

        If it may be `with_errors`, the array is masked where items failed, and the list has the
        errors in their places.
        """
        n = self._board.n_items
        if self._board.is_open and self.n_given:
            raise RuntimeError(
                f"{self.n_given} results were consumed by iterating, and not kept, "
                "because a generator may never end. Collect them in the loop, or call "
                "result() without one."
            )
        if not self.has_objects:
            return self.partial() if with_errors else self._outcome(n)
        values = self.values(with_errors=with_errors)
        is_list = isinstance(self._request.out, str) or tiles_of(self._request) is not None
        results = values if is_list else collect(values, self.errors)
        return as_masked(results) if with_errors else results

    def partial(self) -> Any:
        """Return the results so far: a masked array, a list with gaps, or None before the first.

        Of tiles, return a `Mosaic` instead of the array.
        """
        if self.spec is None:
            return None
        if self.has_objects:
            return self.values(gaps=True)
        done = self._board.done()
        array = self._outcome(len(done))
        assert array is not None
        if isinstance(array, Mosaic):
            return Mosaic(array.whole, array.layout, done == IN_OUTPUT)
        if self._rows is not None:
            if self.is_iterated:  # its rows will go
                array = array.copy()
            else:
                self._n_shown = len(done)
        return masked(array, done != IN_OUTPUT, is_kept=self.is_over)

    @property
    def has_objects(self) -> bool:
        """Return whether some results are not in the output."""
        is_array = self.spec is not None and self.spec.dtype is not None
        return not is_array or any(IN_LOG in p.done.tobytes() for p in self._board.pages)

    def values(self, *, gaps: bool = False, with_errors: bool = False) -> list[Any]:
        """Return results and errors as a list; where one cannot be loaded raise, or leave a gap."""
        values = (self._take_ahead() if self.is_over else None) or []
        n_before, n = len(values), len(self._board.done())
        values += [MISSING] * (n - n_before)
        for i, value in self.load(np.arange(n_before, n)):
            values[i] = value
        unloadable = [i for i, value in enumerate(values) if type(value) is Unloadable]
        for i in unloadable:
            self._board.fail(i)  # a result that cannot be loaded is missing
            self.errors[i] = error = values[i].error
            values[i] = error if with_errors else MISSING
        if unloadable and not gaps and not with_errors:
            raise self.errors[unloadable[0]]
        return values

    def load_ahead(self) -> bool:
        """Unpickle objects for a short time while others run; return whether there were any."""
        if (spec := self.spec) is None or spec.dtype is not None or self.is_iterated:
            return False
        if (ahead := self._take_ahead()) is None:
            return False
        try:
            n_before, until_s = len(ahead), time.monotonic() + LOAD_S
            items = np.arange(n_before, min(n_before + MOST_AHEAD, self._board.n_there))
            for page, places in self._places(items):
                logged, entries = self._logged(page, places)
                n = int(np.append(logged == places[: len(logged)], False).argmin())  # no gaps
                for _, values in self.logs.load(page.first + logged[:n], entries[:, :n]):
                    ahead += values
                    if time.monotonic() > until_s:
                        break
                break  # those on the next page are for the next time
            return len(ahead) > n_before
        finally:
            self._ahead = ahead

    def _take_ahead(self) -> list[Any] | None:
        """Return the results loaded ahead, now this thread's; None if another has them."""
        with self._lock:
            ahead, self._ahead = self._ahead, None
        return ahead

    def load(self, items: npt.NDArray[np.int64]) -> Iterator[tuple[int, Any]]:
        """Yield the results and errors that are here, of some items, in any order.

        A result that cannot be loaded is an `Unloadable`. No value stays in a variable here: the
        caller may ask for the next one much later.
        """
        for page, places in self._places(items):
            states = page.states(places)
            for i in (page.first + places[states == FAILED]).tolist():
                if i in self.errors:
                    yield i, self.errors[i]
            if self.spec is not None:
                rows = (page.first + places[states == IN_OUTPUT]).tolist()
                yield from ((i, self._row(i)) for i in rows)
            logged, entries = self._logged(page, places)
            together = np.lexsort(entries[1::-1])  # what is in one batch is unpickled once
            loaded = self.logs.load(page.first + logged[together], entries[:, together])
            for some, values in loaded:
                values.reverse()
                for i in some:
                    yield i, values.pop()

    def _row(self, i: int) -> Any:
        """Return a row of the output."""
        value = self.rows(i, 1)[0]
        if isinstance(value, np.ndarray):
            return value.copy()
        return value.item() if self._spec and self._spec.number else value

    def _places(self, items: npt.NDArray[np.int64]) -> Iterator[tuple[Page, RowNumbers]]:
        """Yield the pages of some items, which are in order, and their places there."""
        start, stop = (int(items[0]), int(items[-1]) + 1) if len(items) else (0, 0)
        for page, low, high in self._board.parts(start, stop):
            places = items - page.first
            yield page, places[slice(*np.searchsorted(places, (low, high)))]

    def _logged(self, page: Page, places: RowNumbers) -> tuple[RowNumbers, RowNumbers]:
        """Return at which places results are in logs that are here, and their entries.

        A log comes with a message, after the ``done`` byte.
        """
        places = places[page.states(places) == IN_LOG]
        places = places[self.logs.has(page.index[0, places])]
        return places, page.index[:, places]

    def are_none(self) -> bool:
        """Whether the first results are None, as those of a function without ``return``."""
        first = np.arange(min(self._board.n_there, 100))
        for page, places in self._places(first):
            logged, entries = self._logged(page, places)
            if len(logged) < len(first) or (entries[2] >= 10_000).any():  # nothing large is loaded
                return False
        return all(value is None for _, value in self.load(first))

    # ------------------------------------------------------------------- one by one

    def new(self, keep: Callable[[], None] | None = None) -> Iterator[tuple[int, Any]]:
        """Yield the results that have come since the last time, kept before; for one reader."""
        self.is_iterated = True
        self._ahead = []
        self._reading = time.monotonic(), self.n_given
        for page in self._board.pages:
            new = page.first + np.flatnonzero((page.done != 0) & ~self._given_of(page))
            if keep is not None and len(new):
                keep()
            yield from map(self._taken, self.load(new))
        self._reader_s, self._reading = self.reader_s(), None

    def _taken(self, found: tuple[int, Any]) -> tuple[int, Any]:
        """Note that a result is given; return it with its item."""
        i, value = found
        if type(value) is Unloadable:
            raise value.error
        self.take(i)
        return found

    def _given_of(self, page: Page) -> npt.NDArray[np.bool_]:
        if page.first not in self._given:
            self._given[page.first] = np.zeros(page.n, np.bool_)
        return self._given[page.first]

    def take(self, i: int) -> None:
        """Note that the result of an item has been given, and will not be asked for again."""
        page = self._board.page(i)
        self._given_of(page)[i - page.first] = True
        self.n_given += 1

    def drop_logs(self) -> None:
        """Keep the logs no longer all of whose results have been given."""
        for key in self.logs.ended():
            if not any(self._has_left(key, page) for page in self._board.pages):
                self.logs.drop(key)

    def _has_left(self, key: LogKey, page: Page) -> bool:
        """Whether a log has results of items of a page that have not been given."""
        is_left = (page.done == IN_LOG) & (page.index[0] == key) & ~self._given_of(page)
        return bool(is_left.any())

    def is_all_given(self, page: Page) -> bool:
        """Whether the results of all items of a page have been given."""
        given = self._given.get(page.first)
        return given is not None and bool(given.all())

    def drop_page(self, page: Page) -> None:
        """Keep the results of a page no longer, which have all been given."""
        self._given.pop(page.first, None)
        errors = list(self.errors)  # first: the dispatcher adds more
        for i in errors if len(errors) > MOST_ERRORS else ():  # the source may never end
            if page.first <= i < page.first + page.n:
                del self.errors[i]
        if self._rows is not None:
            self._rows.drop(max(page.first, self._n_shown), page.first + page.n)

    def reader_s(self) -> float:
        """Return how long the reader takes for a result; 0 if unknown."""
        if (reading := self._reading) is None or self.n_given == reading[1]:
            return self._reader_s
        return (time.monotonic() - reading[0]) / (self.n_given - reading[1])

    def fill_out(self) -> None:
        """Copy new results to the plain array that the caller gave."""
        out = self._request.out
        if not isinstance(out, np.ndarray):  # first: it is asked at each turn
            return
        shared = self.array
        if shared is None or shared is out:
            return
        with self._filling:  # a later copy could overwrite what the caller has changed in `out`
            done = self._board.done() == IN_OUTPUT
            if self._copied is None:
                self._copied = np.zeros(len(out), np.bool_)
            new = np.flatnonzero(done & ~self._copied[: len(done)])
            if new.size:
                out[new] = shared[new]
                self._copied[new] = True
