"""``plot="image"`` shows the results so far as one image, at the cost of the new ones only."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.colors import to_rgba_array
from matplotlib.patches import Patch, Polygon
from numpy.typing import NDArray

from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.values import (
    BUDGET_S,
    FRAME,
    GREY,
    Floats,
    Painter,
    as_floats,
    dress,
    named,
    remark_on,
    unmasked,
    whole_places,
    write_dates,
    write_names,
    write_whole,
)

_EXTENDS = {  # arrows of a colour bar, by whether its low and its high end cut results
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}
_HATCH: Any = {"hatch": "///", "facecolor": "none", "edgecolor": GREY, "alpha": 0.4, "linewidth": 0}
# Names for the key, and colours that the map does not have, for the colour-blind neither.
_ODD = {"NaN": FRAME, "inf": "#D55E00", "−inf": "#CC79A7"}
_MAX_SIDE = 1024  # pixels per side, as a screen shows no more
_MAX_SCALARS = 2**16
# Of the sides, with the same unit and otherwise. A longer image is a strip, and fills its place.
_MAX_RATIOS = {True: 4, False: 2}
_MAX_SHARP = 600  # pixels a side that the last frame shows as they are, each as a square
# How results become one, and what changes none. NaN makes NaN, as in a line.
_COMBINED: dict[str, tuple[np.ufunc, float]] = {
    "mean": (np.add, 0.0),
    "sum": (np.add, 0.0),
    "min": (np.minimum, np.inf),
    "max": (np.maximum, -np.inf),
}


@dataclass(frozen=True)
class ImageLayout:
    """How results of one shape become one image.

    Attributes
    ----------
    n_cells
        The results are reduced to this many, each of a run of consecutive items.
    extent, aspect, xlabel, ylabel
        Extent, aspect and labels of the axes, in items and elements, or in the user's coordinates.
    columns
        Cells side by side.
    """

    n_cells: int
    extent: tuple[float, float, float, float]
    aspect: float | Literal["auto"]
    xlabel: str = ""
    ylabel: str = ""
    columns: int = 1

    @property
    def outline(self) -> list[tuple[float, float]]:
        """Corners of the area that the cells fill. The last row of pixels may be shorter."""
        left, right, bottom, top = self.extent
        n_rows = math.ceil(self.n_cells / self.columns)
        n_last = self.n_cells - (n_rows - 1) * self.columns
        x, y = left + (right - left) * n_last / self.columns, bottom + (top - bottom) / n_rows
        return [(left, top), (right, top), (right, y), (x, y), (x, bottom), (left, bottom)]


def choose_layout(n: int, shape: tuple[int, ...], plot: LivePlot) -> ImageLayout:
    """Choose the layout for n results of a shape. Raise CannotDrawError if there is none."""
    x, y = plot.x, plot.y
    if len(shape) == 0 and x is not None and y is not None:
        if len(x) * len(y) != n:
            raise CannotDrawError(
                f"LivePlot(x=..., y=...) has {len(x)} columns and {len(y)} rows, which does "
                f"not make {n} items. The run continues without this plot."
            )
        return ImageLayout(n, *_scales(plot, len(y), len(x)), "x", "y", len(x))
    if len(shape) == 0:
        cells = min(n, _MAX_SCALARS)
        columns = math.ceil(math.sqrt(cells))
        per_row = columns * n / cells
        extent = (0.0, per_row, math.ceil(cells / columns) * per_row, 0.0)
        return ImageLayout(cells, extent, 1 / columns, "items, row by row", columns=columns)
    if len(shape) == 1:
        return ImageLayout(min(n, _MAX_SIDE), *_scales(plot, n, shape[0]), "element", "item")
    if len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4)):
        extent, aspect = _scales(plot, *shape[:2])
        return ImageLayout(1, extent, 1.0 if x is None and y is None else aspect)
    raise CannotDrawError(
        f"plot='image' draws results that are numbers, rows (k,), images (H, W) or colour images "
        f"(H, W, 3 or 4). These have the shape {shape}. The run continues without it. "
        "plot=callable(ax, partial) draws anything."
    )


def _scales(
    plot: LivePlot, height: int, width: int
) -> tuple[tuple[float, float, float, float], float | Literal["auto"]]:
    """Return the left, right, lower and upper edge, and the aspect. The first row is on top.

    Axes with the same unit have one scale, as on a map in km. Otherwise pixels are squares.
    """
    left, right = _edges("x", plot.x, width)
    top, bottom = _edges("y", plot.y, height)
    is_same = plot.x is not None and plot.y is not None and plot.xunit == plot.yunit != ""
    units = abs((right - left) / (bottom - top))
    ratio = units if is_same else width / height
    is_strip = max(ratio, 1 / ratio) > _MAX_RATIOS[is_same]
    return (left, right, bottom, top), "auto" if is_strip else units / ratio


def _edges(name: str, coordinates: Any, size: int) -> tuple[float, float]:
    """Return where the first pixel begins and the last one ends."""
    if coordinates is None:
        return -0.5, size - 0.5
    places = as_floats(coordinates)
    steps = np.diff(places)
    step = float(steps[0]) if steps.size else 1.0
    if len(places) != size or not np.allclose(steps, step, rtol=1e-3) or not step:
        raise CannotDrawError(
            f"LivePlot({name}=...) of an image needs {size} evenly spaced coordinates. It has "
            f"{len(places)}, {places.min():g} to {places.max():g}. The run continues without "
            "this plot."
        )
    return float(places[0]) - step / 2, float(places[-1]) + step / 2


class ImagePainter(Painter):
    """Draws results as one image, reduced by cells of consecutive items."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self._dtype.kind == "M":
            raise self._refusal("dates")
        axes, plot = self._axes, self._plot
        self._layout = layout = choose_layout(self._n, self._shape, plot)
        steps = [math.ceil(k / _MAX_SIDE) for k in self._shape[:2]]
        self._sample = tuple(slice(None, None, step) for step in steps)
        self._sampled = f", 1 pixel in {n}" if (n := math.prod(steps)) > 1 else ""
        cell = np.broadcast_to(0.0, self._shape)[self._sample].shape
        n_rows = math.ceil(layout.n_cells / layout.columns)
        self._pixels_shape = cell if len(cell) > 1 else (n_rows, -1)
        _, neutral = _COMBINED.get(plot.reduction, (None, 0.0))
        self._cells = np.full((n_rows * layout.columns, *cell), neutral)
        self._counts = np.zeros(len(self._cells), np.int64)
        self._newest = np.full(len(self._cells), -1)
        self._is_coloured = len(cell) == 3
        place: Any = {"extent": layout.extent, "aspect": layout.aspect}
        self._image = axes.imshow(
            self._pixels(),
            cmap=mpl.colormaps["viridis"].with_extremes(bad="none"),
            interpolation_stage="data",  # means of values, not of colours
            **place,
        )
        # Above it, pixels that are not finite. Below it, where results are missing.
        self._odd = axes.imshow(np.zeros((1, 1, 4)), interpolation="nearest", zorder=0.5, **place)
        self._hatch = axes.add_patch(Polygon(layout.outline, zorder=-1, **_HATCH))
        self._odd_names: list[str] = []
        self._dress()

    @property
    def _is_stack(self) -> bool:
        """Whether images are combined."""
        return len(self._shape) > 1

    @property
    def ratio(self) -> float | None:
        """Width of the image for a height of 1, or None if it fills any place."""
        left, right, bottom, top = self._layout.extent
        aspect = self._layout.aspect
        return None if aspect == "auto" else abs((right - left) / (bottom - top)) / aspect

    def _dress(self) -> None:
        """Label the axes."""
        axes, plot, layout = self._axes, self._plot, self._layout
        axes.set_xlabel(named(plot.xlabel or layout.xlabel, plot.xunit))
        axes.set_ylabel(named(plot.ylabel or layout.ylabel, plot.yunit))
        if plot.y is not None and len(plot.y) > 1 and plot.y[1] > plot.y[0]:
            axes.invert_yaxis()  # coordinates grow upwards
        for axis, coordinates in ((axes.xaxis, plot.x), (axes.yaxis, plot.y)):
            if coordinates is not None and coordinates.dtype.kind == "M":
                write_dates(axis)
            elif coordinates is None or coordinates.dtype.kind in "iu":
                write_whole(axis)
        for axis, names in ((axes.xaxis, plot._xnames), (axes.yaxis, plot._ynames)):
            if names is not None:
                write_names(axis, names)
        if not self._is_coloured:
            self._draw_bar("neither")

    def _draw_bar(self, extend: str) -> None:
        """Draw the colour bar, with an arrow at an end that cuts data."""
        axes, plot = self._axes, self._plot
        place = axes.inset_axes((1.03, 0, 0.035, 1))  # as high as the image, whatever its aspect
        self._bar = bar = axes.figure.colorbar(self._image, cax=place, extend=extend)
        dress(bar.ax)
        bar.outline.set_visible(False)
        is_combined = self._is_stack or self._layout.n_cells < self._n
        label = self._name(f"{plot.reduction} of " if is_combined else "")
        bar.set_label(label + self._sampled)
        if self._dtype.kind in "iu" and not is_combined:
            bar.set_ticks(whole_places())

    def _draw_key(self, names: list[str]) -> None:
        """Name the colours of pixels that are not finite."""
        self._odd_names = names
        key = self._axes.legend(
            handles=[Patch(color=_ODD[name], label=name) for name in names],
            loc="upper left",
            bbox_to_anchor=(1.03, 0),
            borderaxespad=0.6,
            borderpad=0,
            handlelength=1,
            frameon=False,
            fontsize=9,
            labelcolor=GREY,
        )
        key.set_visible(bool(names))

    def _add(self, items: NDArray[np.intp], rows: Floats) -> None:
        how = self._plot.reduction
        cells = items * self._layout.n_cells // self._n  # sorted, as items are
        firsts = np.flatnonzero(np.diff(cells, prepend=-1))
        mine, n_each = cells[firsts], np.diff(firsts, append=len(items))
        self._counts[mine] += n_each
        if how == "last":
            lasts = firsts + n_each - 1
            newer = lasts[items[lasts] >= self._newest[mine]]
            self._cells[cells[newer]], self._newest[cells[newer]] = rows[newer], items[newer]
        else:
            reduce, _ = _COMBINED[how]
            self._cells[mine] = reduce(self._cells[mine], reduce.reduceat(rows, firsts, axis=0))

    @property
    def _is_there(self) -> NDArray[np.bool_]:
        """A flag per pixel, True if it has a result."""
        counts = self._counts.reshape(-1, *[1] * (self._cells.ndim - 1))
        return np.broadcast_to(counts > 0, self._cells.shape).reshape(self._pixels_shape)

    def _pixels(self) -> Floats:
        """Return the image, with NaN where there is no result yet."""
        counts = self._counts.reshape(-1, *[1] * (self._cells.ndim - 1))
        divisor = np.maximum(counts, 1) if self._plot.reduction == "mean" else 1
        shown: Floats = np.where(counts, self._cells / divisor, np.nan)
        return shown.reshape(self._pixels_shape)

    def _show(self, *, final: bool) -> str:
        pixels, remark = self._pixels(), ""
        if self._is_coloured:
            pixels /= 255 if self._dtype.kind in "iu" else 1
            n_outside = np.count_nonzero((pixels < 0) | (pixels > 1))
            remark = self._sampled + remark_on(0, int(n_outside))
        elif (finite := pixels[np.isfinite(pixels)]).size:
            low, high = self._ends(*self._range(finite))
            self._image.set_clim(low, high)
            extend = _EXTENDS[bool(finite.min() < low), bool(finite.max() > high)]
            if self._bar.extend != extend:
                self._bar.remove()
                self._draw_bar(extend)
        self._show_odd(pixels)
        self._image.set_data(opaque(pixels) if self._is_coloured else pixels)
        if final and max(pixels.shape[:2]) <= _MAX_SHARP:
            self._image.set_interpolation("nearest")  # sharper, and half the bytes
        return (f"{self._plot.reduction} of {{}}" if self._is_stack else "{}") + remark

    def _show_odd(self, pixels: Floats) -> None:
        """Show where results are missing, and where they are not finite."""
        self._hatch.set_visible(not self._counts[: self._layout.n_cells].all())
        kinds = [np.isnan(pixels) & self._is_there, np.isposinf(pixels), np.isneginf(pixels)]
        if self._is_coloured:
            kinds = [np.any(kind, axis=2) for kind in kinds]
        names = [name for name, kind in zip(_ODD, kinds, strict=True) if kind.any()]
        if names != self._odd_names:
            self._draw_key(names)
        self._odd.set_visible(bool(names))
        if names:
            self._image.set_interpolation("nearest")  # else it fades out around them
            colours = np.concatenate([np.zeros((1, 4)), to_rgba_array([*_ODD.values()])])
            self._odd.set_data(colours[np.select(kinds, (1, 2, 3))])


class MosaicPainter(ImagePainter):
    """Draws the results of tiles, a `Mosaic`, at their places in one image."""

    _is_stack = False

    def __init__(self, *args: Any) -> None:
        *others, present = args
        self._first = int(present.argmax())
        super().__init__(*others, np.ones(1, np.bool_))  # laid out for the whole, one result
        self._counts = np.zeros_like(self._cells, np.int64)  # of each pixel
        self._taken = np.zeros(len(present), np.bool_)

    def _read(self, partial: Any, items: NDArray[np.intp]) -> NDArray[Any]:
        """Return the form of the whole."""
        tile, whole = self._tile(partial, self._first), partial.layout.whole
        if tile.dtype.kind not in "biufcm":
            raise self._refusal(f"arrays of dtype {tile.dtype}")
        shape = len(items), *whole, *tile.shape[len(whole) :]
        return np.broadcast_to(np.zeros((), tile.dtype), shape)

    def _tile(self, partial: Any, i: int) -> NDArray[Any]:
        value = self._plot.value
        return np.asarray(partial[i] if value is None else unmasked(value(partial[i])))

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Read new tiles, and show them."""
        until = time.monotonic() + (math.inf if final else BUDGET_S)
        for i in np.flatnonzero(present & ~self._taken).tolist():
            seen, pixels = [*self._sample], [slice(None)] * len(self._sample)
            places = zip(partial.layout.place(i), self._sample, strict=False)
            for axis, (part, sample) in enumerate(places):
                first, last = -(-part.start // sample.step), -(-part.stop // sample.step)
                seen[axis] = slice(first * sample.step - part.start, None, sample.step)
                pixels[axis] = slice(first, last)
            values = as_floats(self._tile(partial, i)[tuple(seen)])
            with uninterrupted():
                at: Any = (0, *pixels)
                self._cells[at], self._counts[at] = values, 1
                self._taken[i] = True
            if time.monotonic() >= until:
                break
        return int(np.count_nonzero(self._taken)), self._show(final=final)

    @property
    def _is_there(self) -> NDArray[np.bool_]:
        return self._counts.reshape(self._pixels_shape) > 0

    def _pixels(self) -> Floats:
        return np.where(self._counts > 0, self._cells, np.nan).reshape(self._pixels_shape)


def opaque(pixels: Floats) -> NDArray[Any]:
    """Return colours, with transparent ones where they are not finite."""
    is_finite: Any = np.isfinite(pixels).all(axis=2)
    colours = np.clip(np.where(is_finite[..., np.newaxis], pixels, 0), 0, 1)
    alpha = colours[..., 3] if colours.shape[2] == 4 else 1.0
    return np.dstack([colours[..., :3], is_finite * alpha])
