"""The rows of a call's results. The first result decides where they are stored.

A call with an unknown number of items stores results in one segment that grows in place, so they
are never copied. The memory of results that a loop has consumed is freed, a system page at a time.
"""

from __future__ import annotations

import _thread
import math
import mmap
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.create import empty
from nbshare._core.arrays.shared_array import shared_view
from nbshare._core.engine.request import Request, tiles_of
from nbshare._core.memory import Segment, View, can_share, pool, segment_of
from nbshare._core.memory.warm import LARGEST_PIECE
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.pages import IN_OUTPUT
from nbshare._core.store.rows import Decided, FilePlace, RowsTarget, RowWriter
from nbshare._core.store.specs import ASK, IS_OBJECT, KINDS, OBJECTS, OutputSpec
from nbshare._core.system import sections
from nbshare._core.wire.board import KIND, Board

if TYPE_CHECKING:
    from nbshare._core.shapes.tiles import Tiles

FIRST_BYTES = 256 << 10  # first size of a growing output
GROWTH = 1.5  # factor between sizes. Unused parts take no memory


class Output(NamedTuple):
    """The rows of an output, and their place."""

    array: Any  # in this process, an ndarray or a `Mosaic`
    segments: list[Segment]  # for workers, empty if they only write to files
    place: Any  # in the segments: a `RowsTarget`, a `MosaicTarget` or None
    is_fresh: bool = True  # whether missing rows are zero


def in_memory(spec: OutputSpec, n: int) -> Output:
    """Return an output of `n` rows in shared memory.

    Raises
    ------
    OutOfMemoryError
        If memory is short.
    """
    assert spec.dtype is not None
    shape = (n, *spec.shape)
    memory, is_fresh = pool.writable(math.prod(shape) * spec.dtype.itemsize)
    return output_of(shared_view(np.ndarray(shape, spec.dtype, buffer=memory)), is_fresh=is_fresh)


def output_of(array: npt.NDArray[Any], *, is_fresh: bool = True) -> Output:
    """Return the `Output` of an array in shared memory."""
    found = segment_of(array)
    assert found is not None
    segment, offset = found
    target = RowsTarget(offset, array.dtype, array.shape[1:], array.strides)
    return Output(array, [segment], target, is_fresh)


def growing(
    dtype: np.dtype[Any], shape: tuple[int, ...], n: int, before: Segment | None = None
) -> Output:
    """Return an output of at least `n` rows that can grow. New rows are zero.

    Raises
    ------
    OutOfMemoryError
        If memory is short.
    """
    row_nbytes = math.prod(shape) * dtype.itemsize
    nbytes = n * row_nbytes
    if before is None:
        segment = Segment.create(max(nbytes, FIRST_BYTES), grows=True)
    else:
        segment = before.grown(nbytes, max(nbytes, int(GROWTH * before.nbytes)))
    n = max(n, segment.nbytes // max(1, row_nbytes))
    return output_of(shared_view(View(segment).array(dtype, (n, *shape))))


def mosaic_of(items: Tiles, spec: OutputSpec) -> Output:
    """Return the output of tiles, one array with a place for each.

    Raises
    ------
    OutOfMemoryError
        If memory is short.
    """
    from nbshare._core.shapes.tiles import Mosaic  # late, only tiles need it

    assert spec.dtype is not None
    whole = items.layout.whole
    shape = *whole, *spec.shape[len(whole) :]
    array, is_fresh = items.out, True
    if array is None:
        memory, is_fresh = pool.writable(math.prod(shape) * spec.dtype.itemsize)
        array = shared_view(np.ndarray(shape, spec.dtype, buffer=memory))
    mosaic = Mosaic(array, items.layout)
    target, segments = mosaic.target()
    return Output(mosaic, segments, target, is_fresh)


def spec_given_by(out: Any) -> OutputSpec | None:
    """Return the spec of results that ``out=`` requires, or None if the first result decides."""
    if isinstance(out, np.ndarray):
        return OutputSpec(out.dtype, out.shape[1:], None, is_given=True)
    return None if out is None else OBJECTS


class Keeper:
    """Keeps the results of a call, in memory. A subclass may store them elsewhere, too."""

    def start(self) -> None:
        """Begin to store results."""

    def expect(self, columns: Sequence[Any]) -> None:
        """Place stored results of the next items, before workers see these items.

        `columns` has the values of the iterables that sources supply.
        """

    def save(self) -> None:
        """Store the finished results."""

    def end(self, then: Callable[[BaseException | None], None]) -> None:
        """Store the remaining results after the last writer, then call back with any error."""
        then(None)

    def adapt(self, spec: OutputSpec) -> OutputSpec:
        """Return a spec that can be stored."""
        return spec

    def allocate(self, request: Request, spec: OutputSpec, n: int) -> Output:
        """Return the output of a call with `n` items.

        Raises
        ------
        OutOfMemoryError
            If memory is short.
        """
        tiles = tiles_of(request)
        return in_memory(spec, n) if tiles is None else mosaic_of(tiles, spec)

    def files(self) -> FilePlace | None:
        """Return the files to which workers also write results, or None."""
        return None


class OutputRows:
    """The results of a call that form one array.

    Parameters
    ----------
    board : Board
        The call's board.
    request : Request
        The checked arguments.

    Attributes
    ----------
    keeper : Keeper
        Where the results are kept.
    grows : bool
        Whether rows may be added, and consumed rows are freed.

    Notes
    -----
    One thread of the owner calls `decide`, and one appends items. All threads may read at the same
    time.
    """

    def __init__(self, board: Board, request: Request) -> None:
        self._board, self._request = board, request
        self._spec = spec_given_by(request.out)
        self.keeper = Keeper()
        self._output: Output | None = None
        self.grows = False
        self._n = 0  # required number of rows
        self._n_shown = 0  # number of rows of which a caller may hold a view
        self._lock = _thread.allocate_lock()
        self._copied = Cursor(0)  # rows of the plain array of ``out=``
        out = request.out
        if isinstance(out, np.ndarray):
            # A plain array is filled through shared memory, and the caller copies finished rows.
            self._output = output_of(out if segment_of(out) else empty(out.shape, out.dtype))
        if self._spec is OBJECTS:
            board.header[KIND] = IS_OBJECT
        elif self._spec is not None or board.is_open:  # pages do not store their numbers
            board.header[KIND] = ASK

    @property
    def can_grow(self) -> bool:
        """Whether the results can form one array. Private memory cannot grow."""
        return can_share() or not self._board.is_open

    @property
    def spec(self) -> OutputSpec | None:
        """The spec of results, or None before the first."""
        kind = self._board.header[KIND]
        if self._spec is None and kind > ASK:
            spec = KINDS[kind]
            if spec.dtype is not None:
                self._output = output_of(shared_view(self._board.page(0).numbers(spec.dtype)))
            self._spec = spec  # last, because other threads then expect the output to exist
        return self._spec

    @property
    def array(self) -> Any:
        """The output: an ndarray, a `Mosaic`, or None if there is none.

        On an open board, it may have more rows than items.
        """
        return self._output.array if self.spec is not None and self._output is not None else None

    def decide(self, spec: OutputSpec) -> None:
        """Set the spec of the results and allocate the output, at the first result only."""
        if self.spec is not None:
            return
        spec = self.keeper.adapt(spec)
        if not self.can_grow:
            spec = OBJECTS  # `Results` converts them to one array
        if spec.dtype is not None and self._board.is_open:
            self._output, self.grows = growing(spec.dtype, spec.shape, self._n), True
            self._grow()
        elif spec.dtype is not None:
            self._output = self.keeper.allocate(self._request, spec, self._board.n_items)
        self._spec = spec

    def place_for(self, spec: OutputSpec) -> tuple[Any, list[Segment]]:
        """Return the reply to a worker's first result, and the segments to send with it."""
        self.decide(spec)
        files = self.keeper.files()
        if (output := self._output) is None:
            return (self.spec, None, files), []
        return (self.spec, output.place, files), output.segments

    def decided_here(self, spec: OutputSpec) -> Decided:
        """Return the reply for workers in this process, which store results themselves."""
        (decided, place, files), _ = self.place_for(spec)
        rows = None if place is None else self.some
        return decided, rows, None if files is None else RowWriter(files)

    def reserve(self, n_more: int = 0) -> None:
        """Allocate rows for the items so far and `n_more`, if results are rows.

        Raises
        ------
        OutOfMemoryError
            If memory is short.
        """
        # `_n` is set first, because one thread decides and another appends items, and the later one
        # allocates. A stage's worker may request fewer places than another worker did before.
        self._n = max(self._n, self._board.n_there + n_more)
        self._grow()

    def _grow(self) -> None:
        with self._lock:
            if (output := self._output) is not None and self.grows and self._n > len(output.array):
                (segment,), array = output.segments, output.array
                self._output = growing(array.dtype, array.shape[1:], self._n, segment)

    def some(self, first: int, n: int) -> Any:
        """Return some rows of the output."""
        return self.array[first : first + n]

    def first(self, n: int) -> Any:
        """Return the rows of the first items, or None if results are objects."""
        array = self.array
        return array if array is None or n >= len(array) else array[:n]

    def keep(self, n: int) -> None:
        """Never free the first `n` rows, because a caller receives a view of them."""
        self._n_shown = max(self._n_shown, n)

    def free(self, start: int, stop: int) -> None:
        """Free the memory of rows. Rows with views are kept, and freed rows become zero."""
        with self._lock:
            if (output := self._output) is None or not self.grows:
                return
            row_nbytes, page = output.array[:1].nbytes, mmap.PAGESIZE
            first = -(-max(start, self._n_shown) * row_nbytes // page) * page
            end = stop * row_nbytes // page * page
            if first < end:
                with suppress(OSError, ValueError):  # some kinds of memory cannot be freed in part
                    sections.free(output.segments[0], first, end - first)

    def close(self) -> None:
        """Move a few rows from a growing segment to the slab, after the last writer.

        This saves a descriptor, because a segment needs one.
        """
        if not self.grows or (spec := self._spec) is None:
            return
        with self._lock:
            # More than the number of items, because the appending thread may be about to add some.
            rows = self.first(self._n)
            if rows.nbytes <= LARGEST_PIECE:
                small = in_memory(spec, len(rows))
                small.array[:] = rows
                self._output, self.grows = small, False

    def clear_missing(self, torn: list[int]) -> None:
        """Zero the missing rows before the array is returned.

        In reused memory, all missing rows hold old results. In fresh memory, only `torn` rows are
        not zero: their worker was killed while it wrote them, and their items did not run again.
        """
        if (array := self.array) is not None:
            done = self._board.done()
            rows: Any = np.flatnonzero(done[: len(array)] != IN_OUTPUT)
            if self._output is None or self._output.is_fresh:
                rows = [i for i in torn if done[i] != IN_OUTPUT]
            array[rows] = np.zeros((), array.dtype)

    def fill_out(self) -> None:
        """Copy new results to the plain array that the caller passed as ``out=``."""
        out = self._request.out
        if not isinstance(out, np.ndarray):  # checked first, because this is called often
            return
        shared = self.array
        if shared is None or shared is out:
            return
        with self._lock:  # a later copy could overwrite the caller's changes in `out`
            new = np.flatnonzero(self._copied.new(self._board.done() == IN_OUTPUT))
            if new.size:
                out[new] = shared[new]
                self._copied.take(new)
