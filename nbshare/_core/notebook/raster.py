"""Values of many results in an image of limited size, which omits no value.

If results have more pixels than the image, each pixel of the image shows a block of pixels::

    results ─► as they arrive: blocks of each, combined in cells ─► for a frame: blocks of the cells

Each result is read once. NaN counts as missing: a pixel shows the other values of its block.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# For each reduction: the function, and the value that changes nothing. NaN is ignored.
COMBINED: dict[str, tuple[np.ufunc, float]] = {
    "mean": (np.add, 0.0),
    "sum": (np.add, 0.0),
    "last": (np.add, 0.0),
    "min": (np.fmin, np.inf),
    "max": (np.fmax, -np.inf),
}
_LONG = 16  # longer blocks are reduced one by one, which is faster
_LARGEST = 1e30  # sums of larger values could overflow float32


@dataclass(frozen=True)
class Picture:
    """An image of all values so far.

    Attributes
    ----------
    pixels
        The values, NaN where there are none.
    low, high
        The smallest and the largest finite value, ``inf`` and ``-inf`` if there are none.
    is_there
        Flags of the pixels for which results have arrived, even if these are NaN.
    n_left_out
        Number of NaN values in pixels that show other values.
    """

    pixels: Floats
    low: float
    high: float
    is_there: NDArray[np.bool_]
    n_left_out: int


class Raster:
    """Cells, each of which combines values of one or several results.

    Parameters
    ----------
    n_cells
        Number of cells.
    shape
        Shape of a result.
    how
        One of LivePlot's reductions.
    steps
        Sides of the blocks that a result is divided into, along its first axes.
    """

    def __init__(
        self, n_cells: int, shape: tuple[int, ...], how: str, steps: Sequence[int]
    ) -> None:
        self._how, self._steps = how, tuple(steps)
        self._ufunc, self._neutral = COMBINED[how]
        self._sizes = sizes_of(shape, self._steps)
        cell = [-(-k // step) for k, step in zip_longest(shape, self._steps, fillvalue=1)]
        self._values = np.full((n_cells, *cell), self._neutral)
        self._n = np.zeros((n_cells, *[1] * len(shape)), np.int64)  # number of results or values
        self._is_of_parts = False  # whether `_n` counts values
        self._n_nan: NDArray[np.int64] | None = None  # number of values, if there are any
        self._newest = np.full(n_cells, -1)
        self._low, self._high = math.inf, -math.inf  # range of all finite values

    def add(self, cells: NDArray[np.intp], items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        """Combine results with those in their cells. `cells` and `items` are in ascending order."""
        is_nan, rows = self._split(rows)
        rows = self._blocks(rows)
        n_nan = None if is_nan is None else self._count_blocks(is_nan)
        firsts = np.flatnonzero(np.diff(cells, prepend=-1))
        n_each = np.diff(firsts, append=len(cells))
        mine = cells[firsts]
        if self._how == "last":
            lasts = firsts + n_each - 1
            is_newer = items[lasts] >= self._newest[mine]
            lasts, mine = lasts[is_newer], mine[is_newer]
            self._values[mine], self._n[mine], self._newest[mine] = rows[lasts], 1, items[lasts]
            if not (n_nan is None and self._n_nan is None):
                self._count_nan()[mine] = 0 if n_nan is None else n_nan[lasts]
            return
        self._n[mine] += n_each.reshape(-1, *[1] * (self._n.ndim - 1))
        _combine(self._values, mine, rows, firsts, self._ufunc)
        if n_nan is not None:
            _combine(self._count_nan(), mine, n_nan, firsts, np.add)

    def put(self, places: Sequence[slice], part: NDArray[Any]) -> None:
        """Put a part of the only result at its place."""
        if not self._is_of_parts:
            self._n, self._is_of_parts = np.zeros_like(self._values, np.int64), True
        is_nan, rows = self._split(part[np.newaxis])
        sides = list(zip(places, self._steps, strict=False))  # colours are whole
        phases = [place.start % step for place, step in sides]
        ends = [(place.start // step, (place.stop - 1) // step + 1) for place, step in sides]
        seen: Any = (slice(None), *itertools.starmap(slice, ends))
        self._n[seen] += sizes_of(part.shape, self._steps, phases)
        into = self._values[seen]
        self._ufunc(into, self._blocks(rows, phases), out=into)
        if is_nan is not None:
            self._count_nan()[seen] += self._count_blocks(is_nan, phases)

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest finite value, ``inf`` and ``-inf`` if there are none."""
        return self._low, self._high

    def is_full(self, n_cells: int) -> bool:
        """Return whether each of the first cells has a result."""
        return bool(self._n[:n_cells].all())

    def picture(self, steps: Sequence[int], *, is_combined: bool) -> Picture:
        """Return an image whose pixels are blocks of the cells.

        Parameters
        ----------
        steps
            Sides of the blocks, along the first axes of a result.
        is_combined
            Whether `low` and `high` are those of the combined values, not of the results.
        """
        n_valid = self._n if self._is_of_parts else self._n * self._sizes
        is_there: NDArray[np.bool_] = n_valid > 0
        n_left_out = 0
        if self._n_nan is not None:
            n_valid = n_valid - self._n_nan
            n_left_out = int(self._n_nan[n_valid > 0].sum())
        values = self._values
        if self._how in ("mean", "last"):
            values = values / np.maximum(n_valid, 1)
        elif self._how == "sum":  # a cell sums results, not the pixels of a block
            values = values / self._sizes
        if not (n_valid > 0).all():
            values = np.where(n_valid > 0, values, np.nan)
        low, high = extremes(values)[:2] if is_combined else (self._low, self._high)
        if any(step > 1 for step in steps):
            values, n_others = seen_from_afar(self._how, values, steps, axis=1)
            if not is_there.all():
                is_there = np.broadcast_to(is_there, self._values.shape)
                is_there = blocks(np.logical_or, is_there, steps, False, axis=1)
            n_left_out += n_others
        return Picture(values, low, high, np.broadcast_to(is_there, values.shape), n_left_out)

    def _split(self, rows: NDArray[Any]) -> tuple[NDArray[np.bool_] | None, NDArray[Any]]:
        """Return a mask of NaN, or None without NaN, and the values with NaN replaced.

        Neutral values replace NaN. The limits are widened to the finite values.
        """
        low, high, has_nan = extremes(rows)
        self._low, self._high = min(self._low, low), max(self._high, high)
        if not has_nan:
            return None, rows
        is_nan = np.isnan(rows)
        return is_nan, np.where(is_nan, rows.dtype.type(self._neutral), rows)

    def _blocks(self, rows: NDArray[Any], phases: Sequence[int] = ()) -> NDArray[Any]:
        is_large = max(-self._low, self._high) > _LARGEST
        dtype = np.result_type(rows.dtype, np.float64 if is_large else np.float32)
        return blocks(self._ufunc, rows, self._steps, self._neutral, phases, axis=1, dtype=dtype)

    def _count_blocks(
        self, is_nan: NDArray[np.bool_], phases: Sequence[int] = ()
    ) -> NDArray[np.int64]:
        return blocks(np.add, is_nan, self._steps, 0, phases, axis=1, dtype=np.int64)

    def _count_nan(self) -> NDArray[np.int64]:
        if self._n_nan is None:
            self._n_nan = np.zeros(self._values.shape, np.int64)
        return self._n_nan


def _combine(
    cells: NDArray[Any],
    mine: NDArray[np.intp],
    rows: NDArray[Any],
    firsts: NDArray[np.intp],
    ufunc: np.ufunc,
) -> None:
    """Combine rows with the cells `mine`. The rows of each cell begin at its index in `firsts`."""
    if len(mine) == 1:  # in place, because a cell may be large
        cell = cells[mine[0] : mine[0] + 1]
        if len(rows) > _LONG:
            rows = ufunc.reduce(rows, axis=0, keepdims=True, dtype=cells.dtype)
        for row in rows:
            ufunc(cell, row, out=cell)
        return
    if len(mine) < len(rows):
        rows = ufunc.reduceat(rows, firsts, axis=0, dtype=cells.dtype)
    cells[mine] = ufunc(cells[mine], rows)


def blocks(
    ufunc: np.ufunc,
    values: NDArray[Any],
    steps: Sequence[int],
    neutral: float,
    phases: Sequence[int] = (),
    *,
    axis: int = 0,
    dtype: Any = None,
) -> NDArray[Any]:
    """Combine the values of each block.

    Parameters
    ----------
    ufunc, neutral
        The function that combines two values, and the value that changes nothing.
    values
        The values.
    steps
        Sides of a block, along `axis` and the axes after it.
    phases
        Number of values that the first block lacks along each axis. Default: 0.
    axis
        The first axis that has blocks.
    dtype
        The dtype of the result. Default: the dtype of `values`.
    """
    dtype = values.dtype if dtype is None else dtype
    for k, (step, phase) in enumerate(zip_longest(steps, phases, fillvalue=0), axis):
        if step > 1:
            values = _along(ufunc, values, k, step, phase, neutral, dtype)
    return values


def seen_from_afar(
    how: str, values: Floats, steps: Sequence[int], axis: int = 0
) -> tuple[Floats, int]:
    """Return blocks of pixels, and the number of NaN in blocks that show other values.

    The sums of a reduction become means.
    """
    ufunc, neutral = COMBINED[how]
    sizes = sizes_of(values.shape[axis:], steps)
    if not np.isnan(values.min()):
        seen = blocks(ufunc, values, steps, neutral, axis=axis)
        return (seen / sizes if ufunc is np.add else seen), 0
    is_nan = np.isnan(values)
    filled = np.where(is_nan, neutral, values)
    seen = blocks(ufunc, filled, steps, neutral, axis=axis)
    n_nan = blocks(np.add, is_nan, steps, 0, axis=axis, dtype=np.int64)
    n_valid = sizes - n_nan
    if ufunc is np.add:
        seen = seen / np.maximum(n_valid, 1)
    return np.where(n_valid > 0, seen, np.nan), int(n_nan[n_valid > 0].sum())


def _along(
    ufunc: np.ufunc,
    values: NDArray[Any],
    axis: int,
    step: int,
    phase: int,
    neutral: float,
    dtype: Any,
) -> NDArray[Any]:
    n = values.shape[axis]
    if step > _LONG and axis == values.ndim - 1:
        firsts = np.maximum(np.arange(0, n + phase, step) - phase, 0)
        return np.asarray(ufunc.reduceat(values, firsts, axis=axis, dtype=dtype))
    shape = [*values.shape]
    shape[axis] = -(-(n + phase) // step)
    combined = np.full(shape, neutral, dtype)
    source, target = np.moveaxis(values, axis, 0), np.moveaxis(combined, axis, 0)
    for k in range(step):  # the k-th value of every block
        each = source[(k - phase) % step :: step]
        first = int(k < phase)
        into = target[first : first + len(each)]
        ufunc(into, each, out=into)
    return combined


def sizes_of(
    shape: Sequence[int], steps: Sequence[int], phases: Sequence[int] = ()
) -> NDArray[np.int64]:
    """Return the number of values in each block, in a shape that broadcasts.

    The first block along an axis lacks as many values as the axis's phase. The last may be shorter.
    """
    sizes = np.ones((), np.int64)
    for size, step, phase in zip_longest(shape, steps, phases, fillvalue=0):
        each = np.ones(1, np.int64)
        if step > 1:
            ends = np.minimum(np.arange(step, size + phase + step, step), size + phase)
            each = np.diff(ends, prepend=phase)
        sizes = sizes[..., np.newaxis] * each
    return sizes


def extremes(values: NDArray[Any]) -> tuple[float, float, bool]:
    """Return the smallest and the largest finite value, and whether there is a NaN.

    Without finite values, the limits are ``inf`` and ``-inf``.
    """
    low, high = values.min(), values.max()
    has_nan = bool(np.isnan(low))
    if not (np.isfinite(low) and np.isfinite(high)):
        finite = values[np.isfinite(values)]
        low, high = finite.min(initial=np.inf), finite.max(initial=-np.inf)
    return float(low), float(high), has_nan


def without(is_odd: NDArray[np.bool_], pixels: Floats) -> Floats:
    """Replace odd pixels with neighbours in the same row. The odd ones are drawn above them.

    Otherwise interpolation would fade out around odd pixels, or would have to be switched off.
    """
    if not is_odd.any():
        return pixels
    columns = np.arange(pixels.shape[1])
    before = np.maximum.accumulate(np.where(is_odd, -1, columns), axis=1)
    after = np.where(is_odd, len(columns), columns)[:, ::-1]
    after = np.minimum.accumulate(after, axis=1)[:, ::-1]
    taken = np.where(before >= 0, before, np.minimum(after, len(columns) - 1))
    filled: Floats = pixels[np.arange(len(pixels))[:, np.newaxis], taken]
    if (rest := ~np.isfinite(filled) & _like(is_odd, filled)).any():  # rows without any other
        finite = filled[np.isfinite(filled)]
        filled[rest] = finite.mean() if finite.size else 0
    return filled


def opaque(pixels: Floats, is_there: NDArray[np.bool_]) -> NDArray[Any]:
    """Return colours that are transparent where there is no result."""
    colours = np.clip(np.where(is_there, pixels, 0), 0, 1)
    alpha = colours[..., 3] if colours.shape[2] == 4 else 1.0
    return np.dstack([colours[..., :3], is_there.all(axis=2) * alpha])


def _like(flags: NDArray[np.bool_], pixels: Floats) -> NDArray[np.bool_]:
    return flags.reshape(*flags.shape, *[1] * (pixels.ndim - flags.ndim))
