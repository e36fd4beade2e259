"""Places of results in an image: which rows and columns they fill, and the shape of the axes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from nbshare._core.notebook.coordinates import (
    Coordinates,
    cells_of,
    index,
    of_items,
    of_result,
    of_sorted_axis,
    of_users,
)
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.pointer import Along
from nbshare._core.notebook.reading import Reader

MAX_SIDE = 1024  # pixels per side, because a screen shows no more
_MAX_SCALARS = 2**16
_MOST_IN_ROW = 50  # most items with names that are drawn in one row
_FINE = 740, 1200  # pixels of an image at uneven coordinates, as in the last picture
# Ratios of the sides, by whether units are the same. A longer image is a strip and fills its place.
_MAX_RATIOS = {True: 4, False: 2}

Extent: TypeAlias = tuple[float, float, float, float]
_NO_AXIS = Coordinates(np.zeros(1), names=[""])


@dataclass(frozen=True)
class ImageLayout:
    """How results of one shape become one image.

    Attributes
    ----------
    n_cells
        The number of cells that results are reduced to, each of consecutive items.
    x, y
        Places of the columns and rows.
    aspect
        Aspect of the axes.
    columns
        Number of cells in a row.
    """

    n_cells: int
    x: Coordinates
    y: Coordinates
    aspect: float | Literal["auto"]
    columns: int = 1

    @property
    def extent(self) -> Extent:
        """Left, right, lower and upper edge, on the scales of the axes. The first row is on top."""
        return (*self.x.ends, *self.y.ends[::-1])

    @property
    def outline(self) -> list[tuple[float, float]]:
        """Corners of the area that the cells fill. The last row may have fewer cells."""
        left, right, bottom, top = self.extent
        n_rows = math.ceil(self.n_cells / self.columns)
        n_last = self.n_cells - (n_rows - 1) * self.columns
        x, y = left + (right - left) * n_last / self.columns, bottom + (top - bottom) / n_rows
        return [(left, top), (right, top), (right, y), (x, y), (x, bottom), (left, bottom)]


def choose_layout(
    n: int, shape: tuple[int, ...], plot: LivePlot, items: Any, reader: Reader
) -> ImageLayout:
    """Choose the layout of n results of a shape. The reader knows their names and axes.

    Raise CannotDrawError if there is no such layout.
    """
    coords = [*plot._coords.items()]
    has_own = plot.x is not None, plot.y is not None
    axes = reader.axes if len(reader.axes) == len(shape) else [None] * len(shape)
    if len(shape) == 0:
        if all(has_own):
            return _of_numbers(n, plot)
        if coords and not any(has_own):
            y = of_sorted_axis(*coords[0]) if len(coords) > 1 else _NO_AXIS
            x = of_sorted_axis(*coords[-1])
            return ImageLayout(n, x, y, _aspect(plot, x, y), len(x.values))
        if n <= _MOST_IN_ROW and (found := of_items(items, n)) is not None and found.names:
            return ImageLayout(n, found, _NO_AXIS, _aspect(plot, found, _NO_AXIS), n)
        cells = min(n, _MAX_SCALARS)
        columns = math.ceil(math.sqrt(cells))
        step = columns * n / cells  # items of a row
        x = index(columns, "items, row by row", n / cells, n / cells / 2)
        y = index(math.ceil(cells / columns), "", step, step / 2)
        return ImageLayout(cells, x, y, _aspect(plot, x, y), columns)
    if len(shape) == 1:
        x = of_result(axes[0], shape[0], "element")
        if plot.x is not None:
            x = of_users("x", plot.x, shape[0], "element")
        elif reader.names:
            x = Coordinates(np.arange(float(shape[0])), names=[*reader.names])
        y = index(n, "item")
        if plot.y is not None:
            y = of_users("y", plot.y, n, "item")
        elif len(coords) == 1:
            y = of_sorted_axis(*coords[0])
        elif (found := of_items(items, n)) is not None and found.is_sorted:
            y = found
        return ImageLayout(min(n, MAX_SIDE), x, y, _aspect(plot, x, y))
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4)):
        y, x = (of_result(*each) for each in zip(axes[:2], shape[:2], strict=True))
        x = x if plot.x is None else of_users("x", plot.x, shape[1], "")
        y = y if plot.y is None else of_users("y", plot.y, shape[0], "")
        is_strip = max(shape[:2]) > _MAX_RATIOS[True] * min(shape[:2])
        are_pixels = x.is_index and y.is_index and not is_strip
        return ImageLayout(1, x, y, 1.0 if are_pixels else _aspect(plot, x, y))
    raise CannotDrawError(
        "plot='image' draws results that are numbers, rows (k,), images (H, W), colour images (H, "
        f"W, 3 or 4), or volumes (D, H, W). The results have the shape {shape}. The run continues "
        "without this plot. LivePlot(value=...) draws a part of each result."
    )


def _of_numbers(n: int, plot: LivePlot) -> ImageLayout:
    """Return the layout of numbers at the user's coordinates."""
    assert plot.x is not None
    assert plot.y is not None
    width, height = len(plot.x), len(plot.y)
    if width * height != n:
        raise CannotDrawError(
            f"LivePlot(x=..., y=...) has {width} columns and {height} rows, which does not match "
            f"{n} items. The run continues without this plot."
        )
    x, y = of_users("x", plot.x, width, "x"), of_users("y", plot.y, height, "y")
    return ImageLayout(n, x, y, _aspect(plot, x, y), width)


def _aspect(plot: LivePlot, x: Coordinates, y: Coordinates) -> float | Literal["auto"]:
    """Return the aspect of the axes, or "auto" if the image fills its place.

    Axes with the same unit have the same scale, as on a map in km. Otherwise pixels are squares.
    """
    is_same = is_to_scale(plot) and x.is_log == y.is_log
    units = abs((x.ends[1] - x.ends[0]) / (y.ends[1] - y.ends[0]))
    ratio = units if is_same else len(x.values) / len(y.values)
    is_strip = max(ratio, 1 / ratio) > _MAX_RATIOS[is_same]
    return "auto" if is_strip else units / ratio


def is_to_scale(plot: LivePlot) -> bool:
    """Whether the axes have the same unit."""
    return plot.x is not None and plot.y is not None and plot.xunit == plot.yunit != ""


class Pixels:
    """The rows and columns of an image, whose pixels show blocks of the places of a layout.

    Parameters
    ----------
    layout
        The layout of the results.
    n, shape
        Number of results, and shape of each.
    steps
        Sides of the blocks, along the first axes of a result.

    Attributes
    ----------
    extent
        Edges of the image on the scales of the axes. The last blocks may stick out of the axes.
    sides
        The rows and columns that are drawn at equal distances, None for each once.
    """

    def __init__(
        self, layout: ImageLayout, n: int, shape: tuple[int, ...], steps: Sequence[int]
    ) -> None:
        self._layout = layout
        along = zip((layout.y, layout.x)[-len(steps) :], shape, steps, strict=False)
        blocks = [-(-k // step) * step / k if at.is_even else 1.0 for at, k, step in along]
        self.extent = scaled(layout.extent, blocks)
        # The row and the column of the data at which each pixel begins.
        self._firsts = [np.arange(len(at.values)) for at in (layout.y, layout.x)]
        if len(shape) == 1:
            self._firsts[0] = -(-np.arange(layout.n_cells) * n // layout.n_cells)
        for side, step in zip((1,) if len(shape) == 1 else (0, 1), steps, strict=False):
            self._firsts[side] = self._firsts[side][::step]
        self.sides = self._evenly()

    def _evenly(self) -> list[NDArray[np.intp] | None]:
        """Return which rows and columns the image draws at equal distances, None for each once.

        Matplotlib averages along both sides if one side has many rows or columns. Those of the
        other side are repeated if they are few or of unequal widths, so that they are not averaged
        too.
        """
        layout = self._layout
        sides = list(zip((layout.y, layout.x), self._firsts, _FINE, strict=True))
        counts = [len(first) for first in self._firsts]
        are_fine = [6 * k >= fine for k, fine in zip(counts, _FINE, strict=True)]
        if not any(are_fine) and layout.x.is_even and layout.y.is_even:
            return [None, None]
        return [
            cells_of(np.append(places.edges[:-1][first], places.edges[-1]), fine)
            if not places.is_even
            else None
            if is_fine
            else np.arange(k).repeat(fine // k // 2)
            for (places, first, fine), k, is_fine in zip(sides, counts, are_fine, strict=True)
        ]

    def along(self, side: int, label: str) -> Along:
        """Return the places and coordinates of the pixels along the rows (0) or columns (1)."""
        places = (self._layout.y, self._layout.x)[side]
        firsts, (_, right, bottom, _) = self._firsts[side], self.extent
        edges = np.linspace(places.ends[0], right if side else bottom, len(firsts) + 1)
        if not places.is_even:
            edges = np.append(places.edges[:-1][firsts], places.edges[-1])
        lasts = np.append(firsts[1:], len(places.values)) - 1
        return places.along(edges, firsts, lasts, label)


class EvenImage(AxesImage):
    """An image whose rows and columns are drawn at equal distances, some of them repeated.

    Attributes
    ----------
    sides
        The rows and columns to draw, None for all.
    """

    _A: Any
    sides: Sequence[NDArray[np.intp] | None] = (None, None)

    def make_image(self, *args: Any, **options: Any) -> Any:
        """Return the pixels to draw."""
        own, self._A = self._A, spread(self._A, self.sides)
        try:
            return super().make_image(*args, **options)
        finally:
            self._A = own


def spread(pixels: NDArray[Any], sides: Sequence[NDArray[np.intp] | None]) -> NDArray[Any]:
    """Return the given rows and columns of pixels, which may repeat. None stands for all."""
    rows, columns = sides
    pixels = pixels if rows is None else pixels[rows]
    return pixels if columns is None else pixels[:, columns]


def scaled(
    extent: tuple[float, float, float, float], sides: Sequence[float]
) -> tuple[float, float, float, float]:
    """Return an extent of scaled height and width, with the same upper left corner."""
    left, right, bottom, top = extent
    tall, wide = sides if len(sides) == 2 else (1.0, *sides, 1.0)[:2]
    return left, left + (right - left) * wide, top + (bottom - top) * tall, top
