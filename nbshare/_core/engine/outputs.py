"""The rows of a call's results, and their place from the first result on."""

from __future__ import annotations

import _thread
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.create import empty
from nbshare._core.arrays.shared_array import shared_view
from nbshare._core.arrays.tiles import Mosaic, Tiles
from nbshare._core.engine.collect import GrowingArray
from nbshare._core.engine.run import Request, tiles_of
from nbshare._core.memory import Segment, can_share, pool, segment_of
from nbshare._core.wire.board import IN_OUTPUT, KIND, Board
from nbshare._core.wire.results import ASK, IS_OBJECT, KINDS, OBJECTS, OutputSpec
from nbshare._core.wire.rows import FilePlace


class Output(NamedTuple):
    """The rows of an output, and their place."""

    array: Any  # in this process, an ndarray or a `Mosaic`
    segments: list[Segment]  # for workers, none if they write to files only
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


def mosaic_of(items: Tiles, spec: OutputSpec) -> Output:
    """Return the output of tiles, one array in which each has its place.

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
    """Return the spec of results by the argument ``out=``, or None if the first decides."""
    if isinstance(out, np.ndarray):
        return OutputSpec(out.dtype, out.shape[1:], None, is_given=True)
    return None if out is None else OBJECTS


class Medium:
    """Keeps results, in memory."""

    def adapt(self, spec: OutputSpec) -> OutputSpec:
        """Return what can be kept of results with a spec."""
        return spec

    def allocate(self, request: Request, spec: OutputSpec, n: int) -> Output:
        """Return the output of a call with `n` items.

        Raises
        ------
        OutOfMemoryError
            If there is no room.
        ValueError
            If results do not fit the array that the caller gave.
        """
        tiles = tiles_of(request)
        return in_memory(spec, n) if tiles is None else mosaic_of(tiles, spec)

    def files(self) -> FilePlace | None:
        """Return the files that workers write results to, too, or None."""
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
    medium : Medium
        Where they are kept.
    growing : GrowingArray or None
        The rows of an open board, which are in no other place.

    Notes
    -----
    One thread of the owner decides, one brings items. All may read at the same time.
    """

    def __init__(self, board: Board, request: Request) -> None:
        self._board, self._request = board, request
        self._spec = spec_given_by(request.out)
        self.medium = Medium()
        self._output: Output | None = None
        self.growing: GrowingArray | None = None
        self._n = 0  # rows that it must have
        self._filling = _thread.allocate_lock()
        self._copied: npt.NDArray[np.bool_] | None = None  # rows of the plain array of ``out=``
        out = request.out
        if isinstance(out, np.ndarray):
            # A plain array is filled through shared memory, and the caller copies finished rows.
            self._output = output_of(out if segment_of(out) else empty(out.shape, out.dtype))
        if self._spec is not None:  # decided already
            board.header[KIND] = IS_OBJECT if self._output is None else ASK

    @property
    def spec(self) -> OutputSpec | None:
        """The spec of results, or None before the first."""
        kind = self._board.header[KIND]
        if self._spec is None and kind > ASK:
            spec = KINDS[kind]
            if spec.dtype is not None and not self._board.is_open:
                self._output = output_of(shared_view(self._board.page(0).numbers(spec.dtype)))
            self._spec = spec  # last, because other threads expect the output to be there then
        return self._spec

    @property
    def array(self) -> Any:
        """The output, an ndarray or a `Mosaic`. None if there is none, or none yet, or it grows."""
        return self._output.array if self.spec is not None and self._output is not None else None

    def decide(self, spec: OutputSpec) -> None:
        """Take the first result's spec and allocate the output, unless that is done already."""
        if self.spec is not None:
            return
        spec = self.medium.adapt(spec)
        if spec.dtype is not None and self._board.is_open and not can_share():
            spec = OBJECTS  # private memory does not grow in place (`final` makes one array)
        if spec.dtype is not None and self._board.is_open:
            self.growing = rows = GrowingArray(spec)
            rows.rows(0, self._n)
        elif spec.dtype is not None:
            self._output = self.medium.allocate(self._request, spec, self._board.n_items)
        self._spec = spec

    def place_for(self, spec: OutputSpec) -> tuple[Any, list[Segment]]:
        """Return the answer to a worker with a first result, and the segments that it may need."""
        self.decide(spec)
        files = self.medium.files()
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
        # First, because one thread decides and another brings items. The later of them makes the
        # room. A stage's worker may ask for fewer places than another one before it.
        self._n = max(self._n, self._board.n_there + n_more)
        if (rows := self.growing) is not None:
            rows.rows(0, self._n)

    def some(self, first: int, n: int) -> Any:
        """Return rows of the output, in any place. Those of an open board are on one page."""
        if (whole := self.output()) is not None:
            return whole[first : first + n]
        assert self._spec is not None
        assert self._spec.dtype is not None
        page = self._board.page(first)
        return page.numbers(self._spec.dtype)[first - page.first :][:n]

    def output(self) -> Any:
        """Return the output, as far as there is one."""
        return self.array if self.growing is None else self.growing.rows(0, self.growing.n)

    def first(self, n: int) -> Any:
        """Return the rows of the first items in one array, or None if results are objects."""
        spec = self.spec
        if spec is None or spec.dtype is None:
            return None
        if self.growing is not None:
            return shared_view(self.growing.rows(0, n))
        if (whole := self.array) is not None:
            return whole[:n] if n < len(whole) else whole
        array = empty((n, *spec.shape), spec.dtype)
        for page, low, high in self._board.parts(0, n):
            array[page.first + low : page.first + high] = self.some(page.first + low, high - low)
        return array

    def clear_missing(self, torn: list[int]) -> None:
        """Zero the missing rows before the array is returned.

        In reused memory all of them hold old results. In fresh memory only `torn` ones do. A worker
        was killed while it wrote them, and they have not been run again.
        """
        array = self.output()
        if array is not None:
            done = self._board.done()
            rows: Any = np.flatnonzero(done[: len(array)] != IN_OUTPUT)
            if self._output is None or self._output.is_fresh:
                rows = [i for i in torn if done[i] != IN_OUTPUT]
            array[rows] = np.zeros((), array.dtype)

    def fill_out(self) -> None:
        """Copy new results to the plain array that the caller gave."""
        out = self._request.out
        if not isinstance(out, np.ndarray):  # first, because it is asked at each turn
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
