"""Tiles of an array as the items of a run, and their results in one array, without seams."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.arrays.create import checked_int, empty
from nbshare._core.arrays.inputs import ArrayReference, Inputs, reference_to
from nbshare._core.functions.reference import bind_arguments
from nbshare._core.memory import Segment, View, file_of, segment_of
from nbshare._core.messages import one_of, warn
from nbshare._core.shapes.shaped import Adapted, ShapedItems, survives, users_function
from nbshare._core.tracebacks import shown_from_the_call
from nbshare.errors import MixedResultsWarning

EDGES = "shrink", "reflect", "symmetric", "edge", "constant"
MOST_AXES = 4

Slices = tuple[slice, ...]


@shown_from_the_call
def tiles(
    array: npt.NDArray[Any],
    shape: int | Sequence[int] = (512, 512),
    overlap: int | Sequence[int] = 16,
    *,
    edges: str = "shrink",
) -> Tiles:
    """Split an array into overlapping tiles, as items for `parallel_map`.

    Examples
    --------
    Filter an image in tiles. The result equals that of the whole image:

    >>> import numpy as np
    >>> import nbshare
    >>> def blur(part):
    ...     around = np.pad(part, 1, mode="edge")
    ...     return (around[:-2, 1:-1] + around[1:-1, :-2] + around[2:, 1:-1]) / 3
    >>> image = np.random.default_rng(1).random((300, 200))
    >>> blurred = nbshare.parallel_map(blur, nbshare.tiles(image, (128, 128), overlap=1))
    >>> bool((blurred == blur(image)).all())
    True

    An item, and the shape of its values:

    >>> items = nbshare.tiles(image, (128, 128), overlap=8)
    >>> len(items), items[0], items[0].values.shape
    (6, <tile 0:128, 0:128>, (136, 136))

    Parameters
    ----------
    array : ndarray
        An array, such as an image, a volume or a series. Workers share one copy of it. A
        SharedArray, or a `numpy.memmap` of 1 MiB or more, is not copied.
    shape : int or sequence of int, default (512, 512)
        Lengths of a tile along the first axes, at most 4, without the overlap. Further axes, such
        as colour channels, are not split.
    overlap : int or sequence of int, default 16
        Number of elements around a tile, on each side, that the function receives. It must be at
        least as large as the reach of the function, such as the radius of a filter. One number for
        each tiled axis, or one for all.
    edges : {"shrink", "reflect", "symmetric", "edge", "constant"}, default "shrink"
        Overlap at the edges of the array. With ``"shrink"`` there is no overlap, so the function
        treats these edges as edges of its argument. The other values extend the array like the mode
        of `numpy.pad` with this name, ``"constant"`` with zeros. Only tiles at an edge are then
        copied.

    Returns
    -------
    Tiles
        Tiles in row-major order. The function receives each as a read-only array, and must return
        an array for the tile, with or without the overlap. `parallel_map` removes the overlap and
        returns one array. Its tiled axes have the lengths of those of `array`; its further axes are
        those of the results.

    Raises
    ------
    TypeError
        If `array` is not an ndarray of a numeric or similar dtype, or a length is not an int.
    ValueError
        If `array` has no elements, if `shape` has more axes than `array` or more than 4, or if
        another value is not allowed.

    See Also
    --------
    parallel_map : accepts tiles as items. ``out=`` may be a SharedArray or a `numpy.memmap`.
    """
    return Tiles(array, shape, overlap, edges)


class Layout(NamedTuple):
    """How the first axes of an array are split into tiles."""

    whole: tuple[int, ...]  # lengths of these axes
    tile: tuple[int, ...]  # lengths of a tile, except of the last ones

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of tiles along the axes."""
        return tuple(-(-n // step) for n, step in zip(self.whole, self.tile, strict=True))

    def place(self, i: int) -> Slices:
        """Return the place of tile `i` in the array."""
        starts = np.multiply(np.unravel_index(i, self.counts), self.tile).tolist()
        sizes = zip(starts, self.tile, self.whole, strict=True)
        return tuple(slice(start, min(start + step, n)) for start, step, n in sizes)


class OutputForm(NamedTuple):
    """Dtype and further axes of ``out=``, which each result must fit."""

    dtype: np.dtype[Any]
    further: tuple[int, ...]  # lengths of the axes after the tiled ones


class Tile(NamedTuple):
    """One tile, as sent to a worker."""

    place: Slices  # in the array
    values: npt.NDArray[Any]  # with the overlap within the array
    missing: tuple[tuple[int, int], ...]  # elements of the overlap outside the array, by axis
    inside: Slices  # the tile without overlap, within the function's argument
    shape: tuple[int, ...]  # shape of all but the last tiles, without overlap
    edges: str
    out: OutputForm | None  # a result must fit it

    def __repr__(self) -> str:
        return f"<tile {', '.join(f'{part.start}:{part.stop}' for part in self.place)}>"

    def extended(self) -> npt.NDArray[Any]:
        """Return the argument of the user's function, with the overlap at edges."""
        if not any(map(any, self.missing)):
            return self.values
        pad: Any = np.pad  # type checkers do not know the mode
        extended: npt.NDArray[Any] = pad(self.values, self.missing, self.edges)
        extended.flags.writeable = False
        return extended

    def row(self, result: Any, given: tuple[int, ...]) -> npt.NDArray[Any]:
        """Return a result without the overlap, in the same shape for all tiles.

        Parameters
        ----------
        result : array_like
            The result of the user's function.
        given : tuple of int
            The shape of its argument.

        Raises
        ------
        ValueError, TypeError
            If the result has another shape, a mask, or values that ``out=`` cannot hold.
        """
        if is_masked(result):
            raise TypeError(
                "the result is a masked array, whose mask the array of all results cannot hold: "
                "return one without a mask, such as result.filled(numpy.nan)"
            )
        n, inner = len(self.place), tuple(part.stop - part.start for part in self.place)
        row = np.asarray(result)
        if row.shape[:n] == given[:n]:
            row = row[self.inside]
        elif row.shape[:n] != inner:
            raise ValueError(
                f"the result has shape {row.shape}, which does not fit the tile. Return an array "
                f"whose first axes have the lengths {given[:n]} (like the argument) or {inner} "
                "(without the overlap). To return one number per tile, pass the positions as items "
                "and the array in shared=."
            )
        if self.out is not None:
            row = self._as_out(row, self.out)
        if inner == self.shape:
            return row
        padded = np.zeros((*self.shape, *row.shape[n:]), row.dtype)
        padded[tuple(map(slice, inner))] = row
        return padded

    def _as_out(self, row: npt.NDArray[Any], out: OutputForm) -> npt.NDArray[Any]:
        """Return a row in the dtype of ``out=``. Raise if it does not fit."""
        n, further = len(self.place), row.shape[len(self.place) :]
        if further != out.further:
            raise ValueError(
                f"the result has axes of the lengths {further} after the first {n}, but those of "
                f"out= are {out.further}: pass an out= of the right shape, or return a result of "
                "another shape"
            )
        if not np.can_cast(row.dtype, out.dtype, "same_kind"):
            raise TypeError(
                f"the result has dtype {row.dtype}, which out= of dtype {out.dtype} cannot hold. "
                "Pass out= with a dtype that can, or convert the result in the function."
            )
        return row.astype(out.dtype, copy=False)


class OfTile(Adapted):
    """A function of the values of a tile."""

    def __call__(self, tile: Tile, /, **others: Any) -> Any:
        """Call the function. Return its result without the overlap."""
        given = tile.extended()
        return tile.row(super().__call__(given, **others), given.shape)


class Tiles(ShapedItems):
    """The tiles of an array, created by `nbshare.tiles`.

    Parameters
    ----------
    array : ndarray
        The array.
    shape, overlap : int or sequence of int
        Lengths of a tile, and widths of the overlap.
    edges : str
        The mode of the overlap at the edges of the array.

    Attributes
    ----------
    layout : Layout
        The places of the tiles in the array.
    out : ndarray or None
        The array for the results, in shared memory or in a mapped file. None for a new array.

    Examples
    --------
    A series in tiles, and the last of them:

    >>> import numpy as np
    >>> import nbshare
    >>> items = nbshare.tiles(np.arange(10.0), 4, overlap=1)
    >>> len(items), items[-1], items[-1].values
    (3, <tile 8:10>, array([7., 8., 9.]))

    The places of the tiles in an image:

    >>> [tile.place for tile in nbshare.tiles(np.zeros((6, 4)), (4, 4))]
    [(slice(0, 4, None), slice(0, 4, None)), (slice(4, 6, None), slice(0, 4, None))]

    Notes
    -----
    The tiles do not change, so any thread may use them. Do not change the array while the tiles are
    in use.
    """

    __module__ = "nbshare.types"

    def __init__(self, array: Any, shape: Any, overlap: Any, edges: str) -> None:
        if not isinstance(array, np.ndarray) or is_masked(array) or array.dtype.hasobject:
            raise TypeError(
                f"tiles() takes an ndarray of numbers, a SharedArray or a numpy.memmap, not "
                f"{_kind_of(array)}"
            )
        tile = _lengths("shape", shape, 1)
        if not len(tile) <= min(array.ndim, MOST_AXES):
            raise ValueError(
                f"tiles(shape={shape}) cuts {len(tile)} axes, but the array has the shape "
                f"{array.shape}: pass a length for each of its first axes, {MOST_AXES} at most"
            )
        if not array.size:
            raise ValueError(f"an array of shape {array.shape} has no elements to split into tiles")
        self._overlap = _lengths("overlap", overlap, 0)
        if len(self._overlap) == 1:
            self._overlap *= len(tile)
        if len(self._overlap) != len(tile):
            raise ValueError(
                f"overlap={overlap} is not allowed: tiles() needs one int, or one for each of the "
                f"{len(tile)} tiled axes"
            )
        if edges not in EDGES:
            raise ValueError(f"tiles(edges={edges!r}) is not allowed: pass {one_of(EDGES)}")
        self._edges = edges
        self.out: npt.NDArray[Any] | None = None
        self._form: OutputForm | None = None  # form of `out`
        self._array = array.view()
        self._array.flags.writeable = False
        whole = array.shape[: len(tile)]
        self.layout = Layout(whole, tuple(map(min, tile, whole)))

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"out": None}  # workers receive it with the place of the first result

    def __len__(self) -> int:
        return math.prod(self.layout.counts)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        place = self.layout.place(range(len(self))[i])
        seen, missing, inside = [], [], []
        for part, around, n in zip(place, self._overlap, self.layout.whole, strict=True):
            start, stop = max(0, part.start - around), min(n, part.stop + around)
            before, after = around - (part.start - start), around - (stop - part.stop)
            if self._edges == "shrink":
                before, after = 0, 0
            seen.append(slice(start, stop))
            missing.append((before, after))
            first = part.start - start + before
            inside.append(slice(first, first + part.stop - part.start))
        values = self._array[tuple(seen)]
        missing += [(0, 0)] * (values.ndim - len(place))
        inner = self.layout.tile
        return Tile(place, values, tuple(missing), tuple(inside), inner, self._edges, self._form)

    def __repr__(self) -> str:
        return f"<Tiles: {len(self)} of an array of shape {self._array.shape}>"

    def with_out(self, out: Any) -> tuple[Tiles, None]:
        """Return the same tiles, with the array of ``out=``.

        Raises
        ------
        TypeError, ValueError
            If workers cannot write to the array, or it has another shape.
        """
        if out is None:
            return self, None
        whole = self.layout.whole
        if not isinstance(out, np.ndarray) or is_masked(out) or out.dtype.hasobject:
            raise ValueError("the results of tiles form one array: out= takes an array, or None")
        if out.shape[: len(whole)] != whole:
            raise ValueError(
                f"out= has shape {out.shape}: for these tiles its first axes must have the lengths "
                f"{whole}, and its other axes those of one result"
            )
        if not out.flags.writeable:
            raise ValueError("out= is read-only. Pass an array that can be written to.")
        found = segment_of(out)
        if not (found[0].mode == "r+" if found is not None else file_of(out)):
            raise ValueError(
                "workers write the results of tiles to out= itself: pass an array from "
                "nbshare.empty or nbshare.zeros, or a numpy.memmap of mode 'r+' or 'w+'"
            )
        filling = copy.copy(self)
        filling.out, filling._form = out, OutputForm(out.dtype, out.shape[len(whole) :])
        return filling, None

    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> OfTile:
        """Return a function of one tile, which calls `func` with the values of the tile."""
        func = users_function(func)
        bind_arguments(func, [None], shared, extra)
        return OfTile(func)

    def as_json(self) -> dict[str, Any]:
        """Return the places of the tiles."""
        return {"tiles": self.layout._asdict()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> Tiles:
        """Return tiles at the places that a checkpoint keeps, without the values of the array."""
        whole, tile = stored["tiles"]["whole"], stored["tiles"]["tile"]
        return cls(np.broadcast_to(np.uint8(0), whole), tile, 0, EDGES[0])

    def shaped(self, results: Any) -> Any:
        """Return the result of `shaped_partly`. Warn if it is a list."""
        shaped = self.shaped_partly(results)
        if isinstance(shaped, list):
            warn(
                "the results of tiles differ in dtype or in their further axes, and no array holds "
                "all of them, so they are returned as a list. Return results of one dtype and "
                "shape to get an array.",
                MixedResultsWarning,
            )
        return shaped

    def shaped_partly(self, results: Any) -> Any:
        """Return the results of all tiles in one array, masked where tiles are missing."""
        whole = self.put_together(results)
        return whole.image() if isinstance(whole, Mosaic) else whole

    def put_together(self, results: Any) -> Mosaic | list[Any]:
        """Return the results of all tiles at their places, or in a list if no array holds all."""
        if isinstance(results, Mosaic):
            return results
        there: Any = None  # all
        if is_masked(results):
            there = ~np.ma.getmaskarray(results).reshape(len(self), -1).all(axis=1)
            results = results.data
        elif isinstance(results, list):  # several dtypes, or failures
            there = np.array([isinstance(result, np.ndarray) for result in results])
        finished = range(len(self)) if there is None else np.flatnonzero(there)
        found = [results[i] for i in finished]
        if not found:
            return Mosaic(np.zeros(self.layout.whole), self.layout, there)
        dtype = _dtype_of_all(found)
        further, *others = {result.shape[len(self.layout.whole) :] for result in found}
        if dtype is None or others:
            return [self._cut(i, result) for i, result in enumerate(results)]
        mosaic = Mosaic(empty((*self.layout.whole, *further), dtype), self.layout, there)
        for i, result in zip(finished, found, strict=True):
            mosaic[[i]] = result
        return mosaic

    def _cut(self, i: int, result: Any) -> Any:
        """Return the part of a row that is the result of a tile. Leave anything else unchanged."""
        if not isinstance(result, np.ndarray):
            return result
        return result[tuple(slice(part.stop - part.start) for part in self.layout.place(i))]


class Mosaic:
    """The tiles of an array, indexed like the rows of an array: row ``i`` is tile ``i``.

    Parameters
    ----------
    whole : ndarray
        The array.
    layout : Layout
        The places of the tiles.
    there : ndarray of bool, optional
        Mask of the tiles that have a result. Default: all.

    Notes
    -----
    Tiles at the ends may be smaller. Only the part of an assigned row that fits is stored.
    """

    def __init__(
        self, whole: npt.NDArray[Any], layout: Layout, there: npt.NDArray[np.bool_] | None = None
    ) -> None:
        self.whole, self.layout, self.there = whole, layout, there
        self.dtype = whole.dtype
        self._tiles = range(math.prod(layout.counts))

    def __len__(self) -> int:
        return len(self._tiles)

    def __getitem__(self, i: Any) -> Any:
        if not isinstance(i, slice):
            return self.whole[self.layout.place(self._tiles[i])]
        part = Mosaic(self.whole, self.layout)
        part._tiles = self._tiles[i]
        return part

    def __setitem__(self, i: Any, rows: Any) -> None:
        chosen = np.atleast_1d(np.arange(len(self))[i]).tolist()
        values = np.asarray(rows)
        for k, tile in enumerate(chosen):
            part = self[tile]
            value = values[k] if values.ndim > part.ndim else values
            part[...] = value[tuple(map(slice, part.shape[: value.ndim]))]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> npt.NDArray[Any]:
        """Return the rows, for tiles of the same shape."""
        n = len(self.layout.whole)
        rows = np.zeros((len(self), *self.layout.tile, *self.whole.shape[n:]), self.dtype)
        for row, i in zip(rows, range(len(self)), strict=True):
            part = self[i]
            row[tuple(map(slice, part.shape[:n]))] = part
        return rows

    def image(self) -> Any:
        """Return the array, masked where tiles are missing."""
        if self.there is None:
            return self.whole
        mask = np.zeros(self.whole.shape, np.bool_)
        for i in np.flatnonzero(~self.there):
            mask[self.layout.place(int(i))] = True
        return np.ma.MaskedArray(np.asarray(self.whole), mask, copy=False)

    def target(self) -> tuple[MosaicTarget, list[Segment]]:
        """Return the place of the array for workers, and the segment to send them, if any."""
        if (found := segment_of(self.whole)) is not None:
            reference = reference_to(self.whole, 0, found[1], "r+")
            return MosaicTarget(reference, self.layout), [found[0]]
        file = file_of(self.whole)
        assert file is not None
        whole = self.whole
        reference = ArrayReference(*file, whole.shape, whole.strides, whole.dtype, False, "r+")
        return MosaicTarget(reference, self.layout), []


class MosaicTarget(NamedTuple):
    """The array that a worker writes its tiles to."""

    reference: ArrayReference
    layout: Layout

    def rows(self, views: Sequence[View]) -> Callable[[int, int], Any]:
        """Return a function of the first tile and a number of tiles, which returns their places."""
        mosaic = Mosaic(Inputs(views).array(self.reference), self.layout)
        return lambda first, n: mosaic[first : first + n]


def _dtype_of_all(rows: Sequence[npt.NDArray[Any]]) -> np.dtype[Any] | None:
    """Return a dtype that preserves each value of some rows, or None."""
    try:
        dtype = np.result_type(*rows)
    except TypeError:
        return None
    with np.errstate(all="ignore"):  # for casts that lose values
        others = (row for row in rows if row.dtype != dtype)
        return dtype if all(survives(row.astype(dtype), row) for row in others) else None


def _lengths(name: str, given: Any, least: int) -> tuple[int, ...]:
    """Return lengths as a tuple of int."""
    values = given if isinstance(given, Sequence | np.ndarray) else [given]
    return tuple(checked_int(name, value, least) for value in values)


def _kind_of(array: Any) -> str:
    if isinstance(array, np.ndarray):
        return "a masked array" if is_masked(array) else "one of objects"
    return f"a {type(array).__name__}"
