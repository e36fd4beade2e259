"""``plot="image"`` shows the results so far as one image, at the cost of the new ones only.

`Raster` combines their values. Here they get their places, colours, axes and keys.
"""

from __future__ import annotations

import copy
import datetime as dt
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import matplotlib as mpl
import numpy as np
from matplotlib.colors import Colormap, ListedColormap, LogNorm, to_rgba_array
from matplotlib.patches import Patch, Polygon
from numpy.typing import NDArray

from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.png import N_MAP_COLOURS
from nbshare._core.notebook.pointer import Cells, pixels_along
from nbshare._core.notebook.raster import Picture, Raster, blocks
from nbshare._core.notebook.reading import Reader, places_of, unmasked
from nbshare._core.notebook.values import (
    BUDGET_S,
    FRAME,
    GREY,
    Floats,
    Painter,
    as_floats,
    as_reals,
    dress,
    name_of,
    named,
    points,
    refusal,
    remark_on,
    whole_places,
    wrapped,
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
_MAP, _DIVERGING_MAP = "viridis", "RdBu_r"
_LEAST_SIGNED = 0.2  # of the largest value, that the largest of the other sign is
_DIVERGING = {"PiYG", "PRGn", "BrBG", "PuOr", "RdGy", "RdBu", "RdYlBu", "RdYlGn", "Spectral"}
_DIVERGING |= {"coolwarm", "bwr", "seismic", "berlin", "managua", "vanimo"}
_MAX_SIDE = 1024  # pixels per side, as a screen shows no more
# Rows and columns on the screen itself, where interpolation would average extreme values.
_SCREEN = 370, 600
_MAX_COMBINED = 2**24  # pixels of images that are combined before blocks of them are
_MAX_SCALARS = 2**16
# Of the sides, with the same unit and otherwise. A longer image is a strip, and fills its place.
_MAX_RATIOS = {True: 4, False: 2}
_MOST_HIDDEN = 0.5  # of the range, before means of blocks are said to hide peaks
_MAX_SHARP = 600  # pixels a side that the last frame shows as they are, each as a square


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
        is_pixels = x is None and y is None
        is_strip = max(shape[:2]) > _MAX_RATIOS[True] * min(shape[:2])
        return ImageLayout(1, extent, 1.0 if is_pixels and not is_strip else aspect)
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

    _y_zone: dt.tzinfo | None = None
    _shown: tuple[Floats, NDArray[np.bool_]]  # pixels, and which of them have a result

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        if self._dtype.kind == "M":
            raise refusal(self._plot, "dates")
        self._place_rows()
        axes, plot = self._axes, self._plot
        self._layout = layout = choose_layout(self._n, self._shape, plot)
        self._is_coloured = len(self._shape) == 3
        self._is_combined = self._is_stack and self._n > 1 and not self._is_coloured
        self._has_peaks = plot.reduction in ("min", "max")
        most = _SCREEN[-len(self._shape) :] if self._has_peaks else (_MAX_SIDE, _MAX_SIDE)
        steps = [math.ceil(k / side) for k, side in zip(self._shape[:2], most, strict=False)]
        # Images that are combined are so pixel by pixel, if that takes no huge array.
        are_late = self._is_combined and math.prod(self._shape) <= _MAX_COMBINED
        self._steps: list[int] = [] if are_late else steps
        self._late_steps: list[int] = steps if are_late else []
        self._blocks = " × ".join(map(str, steps)) if max([1, *steps]) > 1 else ""
        self._raster = self._new_raster()
        # The last blocks of the image may stick out of the axes.
        sides = [_n_blocks(k, step) * step / k for k, step in zip(self._shape, steps, strict=False)]
        self._extent = _scaled(layout.extent, sides)
        aspect = layout.aspect if plot._is_keyed else "auto"  # panels fill their place
        place: Any = {"extent": self._extent, "aspect": aspect}
        self._image = axes.imshow(
            np.zeros((1, 1)),
            cmap=colour_map(plot.cmap or _MAP),
            norm=LogNorm(1, 10) if self._is_log and not self._is_coloured else None,
            interpolation="nearest" if self._has_peaks else None,
            interpolation_stage="data",  # means of values, not of colours
            **place,
        )
        # Above it, pixels that are not finite. Below it, where results are missing.
        self._odd = axes.imshow(np.zeros((1, 1, 4)), interpolation="nearest", zorder=0.5, **place)
        left, right, bottom, top = layout.extent
        axes.set(xlim=(left, right), ylim=(bottom, top))
        self._hatch = axes.add_patch(Polygon(layout.outline, zorder=-1, **_HATCH))
        self._odd_names: list[str] = []
        self._map = _MAP
        self._dress()

    def _place_rows(self) -> None:
        """Label rows (k,) by their items, if these are evenly spaced or have names."""
        if len(self._shape) != 1 or self._plot._coords or self._plot.y is not None:
            return
        places = places_of(self._inputs, self._n)
        if places is None or (places.names is None and not _is_even(places.values)):
            return
        self._plot = plot = copy.copy(self._plot)
        plot.y, plot._ynames, self._y_zone = places.values, places.names, places.zone
        plot.ylabel = plot.ylabel or ("item" if places.names else "input")
        plot.yunit = plot.yunit or places.unit or name_of(places.zone)

    def _new_raster(self) -> Raster:
        layout = self._layout
        n_cells = math.ceil(layout.n_cells / layout.columns) * layout.columns
        return Raster(n_cells, self._shape, self._plot.reduction, self._steps)

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Read all results again, and show them on a scale with these limits."""
        super().begin_anew(limits)
        self._raster = self._new_raster()

    @property
    def ends(self) -> tuple[float, float]:
        """The least and the greatest value so far, ``inf`` and ``-inf`` if there is none."""
        return self._raster.ends

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
        xlabel = plot.xlabel or ("" if self._reader.names else layout.xlabel)
        axes.set_xlabel(named(xlabel, plot.xunit))
        ylabel = plot.ylabel or ("" if plot._ynames == [""] else layout.ylabel)
        axes.set_ylabel(named(ylabel, plot.yunit))
        if plot.y is not None and len(plot.y) > 1 and plot.y[1] > plot.y[0]:
            axes.invert_yaxis()  # coordinates grow upwards
        for axis, coordinates in ((axes.xaxis, plot.x), (axes.yaxis, plot.y)):
            if coordinates is not None and coordinates.dtype.kind == "M":
                write_dates(axis, self._y_zone if axis is axes.yaxis else None)
            elif coordinates is None or coordinates.dtype.kind in "iu":
                write_whole(axis)
        parts = [*self._reader.names] if len(self._shape) == 1 and plot.x is None else None
        if self._shape:
            is_flat = len(self._shape) > 1
            height, width = self._shape[:2] if is_flat else (self._n, *self._shape)
            for axis, coordinates, n in ((axes.xaxis, plot.x, width), (axes.yaxis, plot.y, height)):
                if n == 1 and coordinates is None:
                    axis.set_ticks([])
        for axis, names in ((axes.xaxis, plot._xnames or parts), (axes.yaxis, plot._ynames)):
            if names:
                write_names(axis, names)
        self._has_bar = plot._is_keyed and not self._is_coloured
        if self._n == 1 == len(self._shape) and plot.y is None:
            axes.set_ylabel("")  # of the only row
        if self._has_bar:
            self._draw_bar("neither")

    def _draw_bar(self, extend: str) -> None:
        """Draw the colour bar, with an arrow at an end that cuts data."""
        # As high as the image, whatever its aspect.
        self._draw_bar_in(extend, cax=self._axes.inset_axes((1.03, 0, 0.035, 1)))

    def draw_key_of_all(self, figure: Any, axes: list[Any]) -> None:  # noqa: ARG002
        """Draw the colour bar for all panels of a plot."""
        self._draw_bar_in("neither", ax=axes, fraction=0.05, pad=0.02)

    def _draw_bar_in(self, extend: str, **place: Any) -> None:
        figure = self._axes.figure
        self._bar = bar = figure.colorbar(self._image, extend=extend, **place)
        dress(bar.ax)
        bar.outline.set_visible(False)
        is_combined = self._is_combination
        bar.set_label(wrapped(self._value_name))
        if self._dtype.kind == "b" and not is_combined:
            bar.set_ticks([0, 1], labels=["False", "True"])
        elif self._dtype.kind in "iu" and not is_combined and not self._is_log:
            bar.set_ticks(whole_places())

    @property
    def _is_combination(self) -> bool:
        """Whether a pixel shows several values."""
        return bool(self._is_stack or self._layout.n_cells < self._n or self._blocks)

    @property
    def _value_name(self) -> str:
        """What a pixel shows, with its unit."""
        blocks_of = f", blocks of {self._blocks}" if self._blocks else ""
        how = f"{self._plot.reduction} of " if self._is_combination else ""
        return self._name(how) + blocks_of

    def cells(self) -> list[Cells]:
        """Return the pixels, for the pointer on a page."""
        (pixels, is_there), shape = self._shown, self._shape
        left, right, bottom, top = self._layout.extent
        _, past_right, past_bottom, _ = self._extent
        n_rows, n_columns = pixels.shape[:2]
        height = n_rows if not shape else self._n if len(shape) == 1 else shape[0]
        width = shape[min(len(shape), 2) - 1] if shape else n_columns
        is_counted = not shape and self._plot.x is None
        table = Cells(
            self._axes,
            pixels_along(left, right, width, n_columns, past_right),
            pixels_along(top, bottom, height, n_rows, past_bottom),
            pixels,
            [self._value_name],
            [],
            is_there=np.all(is_there, axis=tuple(range(2, pixels.ndim))),
            how=self._plot.reduction,
            items=(self._n / self._layout.n_cells, self._n) if is_counted else None,
            are_flags=self._dtype.kind == "b" and not self._is_combination,
        )
        return [table]

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
            fontsize=points(9),
            labelcolor=GREY,
        )
        key.set_visible(bool(names))

    def _add(self, items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        rows = rows if self._is_coloured else self._positive(rows)
        self._raster.add(items * self._layout.n_cells // self._n, items, rows)

    def show(self, *, final: bool) -> str:
        """Show the values read so far. Return what they are."""
        layout = self._layout
        picture = self._raster.picture(self._late_steps, is_combined=self._is_combined)
        rows = (math.ceil(layout.n_cells / layout.columns), -1) if len(self._shape) < 2 else ()
        shape = rows or picture.pixels.shape[1:]
        pixels, is_there = picture.pixels.reshape(shape), picture.is_there.reshape(shape)
        self._shown = pixels, is_there
        n_left_out = max(0, picture.n_left_out - self._n_not_positive)
        remark = f", {n_left_out:,} NaN left out" if n_left_out else ""
        if self._is_coloured:
            pixels = pixels / (255 if self._dtype.kind in "iu" else 1)
            n_outside = np.count_nonzero((pixels < 0) | (pixels > 1))
            remark += f", blocks of {self._blocks}" if self._blocks else ""
            remark += remark_on(0, int(n_outside))
        elif picture.low <= picture.high:
            remark += self._colour(pixels, picture)
        is_odd = self._show_odd(pixels, is_there)
        if self._is_coloured:
            self._image.set_data(opaque(without(is_odd, pixels), is_there))
        else:
            self._image.set_data(without(is_odd, pixels))
        if final and max(pixels.shape[:2]) <= _MAX_SHARP:
            self._image.set_interpolation("nearest")  # sharper, and half the bytes
        return (f"{self._plot.reduction} of {{}}" if self._is_stack else "{}") + remark

    def _colour(self, pixels: Floats, picture: Picture) -> str:
        """Set the range of the colours, that of all values. Return a remark on those not seen."""
        finite = pixels[np.isfinite(pixels)]
        ends = self._range(finite, picture.low, picture.high)
        low, high = self._ends(*self._centred(*ends))
        self._image.set_clim(low, high)
        extend = _EXTENDS[bool(picture.low < low), bool(picture.high > high)]
        if self._has_bar and self._bar.extend != extend:
            self._bar.remove()
            self._draw_bar(extend)
        are_means = self._blocks or (self._layout.n_cells < self._n and not self._is_combined)
        remark = self._remark_on_scale(finite, picture.low, picture.high) if finite.size else ""
        if not (are_means and finite.size) or self._has_peaks or self._plot.limits:
            return remark
        below, above = finite.min() - picture.low, picture.high - finite.max()
        if below + above <= _MOST_HIDDEN * (picture.high - picture.low):
            return remark
        return (
            f"{remark}, peaks are averaged (see reduction='{'max' if above >= below else 'min'}')"
        )

    def _centred(self, low: float, high: float) -> tuple[float, float]:
        """Return a range with zero in its middle if colours diverge from it. Choose the colours.

        By default they do if values of both signs are of a similar size.
        """
        name = self._plot.cmap
        less, more = sorted((-low, high))
        if name is None:
            is_diverging = not self._is_log and less > _LEAST_SIGNED * more
            name = _DIVERGING_MAP if is_diverging else _MAP
            if name != self._map:
                self._map = name
                self._image.set_cmap(colour_map(name))
        else:
            is_diverging = str(getattr(name, "name", name)).removesuffix("_r") in _DIVERGING
        if is_diverging and more > 0 and not isinstance(self._plot.limits, tuple):
            return -more, more
        return low, high

    def _show_odd(self, pixels: Floats, is_there: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Show where results are missing, and where they are not finite. Return the latter."""
        self._hatch.set_visible(not self._raster.is_full(self._layout.n_cells))
        kinds = [np.isnan(pixels) & is_there, np.isposinf(pixels), np.isneginf(pixels)]
        if self._is_coloured:
            kinds = [np.any(kind, axis=2) for kind in kinds]
        names = [name for name, kind in zip(_ODD, kinds, strict=True) if kind.any()]
        if names != self._odd_names:
            self._draw_key(names)
        self._odd.set_visible(bool(names))
        places = np.select(kinds, (1, 2, 3))
        if names:
            steps = [math.ceil(k / side) for k, side in zip(places.shape, _SCREEN, strict=True)]
            seen = blocks(np.maximum, places, steps, 0)  # a single one is not lost
            sides = np.multiply(seen.shape, steps) / places.shape
            self._odd.set_extent(_scaled(self._extent, sides.tolist()))
            colours = np.concatenate([np.zeros((1, 4)), to_rgba_array([*_ODD.values()])])
            self._odd.set_data(colours[seen])
        return places > 0


class MosaicPainter(ImagePainter):
    """Draws the results of tiles, a `Mosaic`, at their places in one image."""

    _is_stack = False

    def __init__(
        self, axes: Any, plot: LivePlot, inputs: Any, partial: Any, present: NDArray[np.bool_]
    ) -> None:
        tile, whole = self._tile(plot, partial, int(present.argmax())), partial.layout.whole
        if tile.dtype.kind not in "biufcm":
            raise refusal(plot, f"arrays of dtype {tile.dtype}")
        shape = 1, *whole, *tile.shape[len(whole) :]
        first = np.broadcast_to(np.zeros((), tile.dtype), shape)
        # Laid out for the whole, one result.
        one = np.ones(1, np.bool_)
        super().__init__(axes, plot, inputs, partial, one, like=(first, Reader(plot.value)))
        self.taken = np.zeros(len(present), np.bool_)

    @staticmethod
    def _tile(plot: LivePlot, partial: Any, i: int) -> NDArray[Any]:
        value = plot.value
        return np.asarray(partial[i] if value is None else unmasked(value(partial[i])))

    def take_in(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> None:
        """Read new tiles, as many as there is time for, the last time all."""
        until = time.monotonic() + (math.inf if final else BUDGET_S)
        for i in np.flatnonzero(present & ~self.taken).tolist():
            tile = as_reals(self._tile(self._plot, partial, i))
            tile = tile if self._is_coloured else self._positive(tile)
            places = [*partial.layout.place(i)]
            places += [slice(0, k) for k in tile.shape[len(places) :]]
            with uninterrupted():
                self._raster.put(places, tile)
                self.taken[i] = True
            if time.monotonic() >= until:
                break


def without(is_odd: NDArray[np.bool_], pixels: Floats) -> Floats:
    """Return pixels with those of their row in place of odd ones, which are drawn above them.

    Without it, interpolation would fade out around them, or need to be switched off.
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
    """Return colours, with transparent ones where there is no result."""
    colours = np.clip(np.where(is_there, pixels, 0), 0, 1)
    alpha = colours[..., 3] if colours.shape[2] == 4 else 1.0
    return np.dstack([colours[..., :3], is_there.all(axis=2) * alpha])


def colour_map(name: str | Colormap) -> Colormap:
    """Return a colour map that fits into a palette, with colours that a file can have.

    So those of an image and its colour bar are rounded alike.
    """
    try:
        whole = mpl.colormaps[name] if isinstance(name, str) else name
    except KeyError as error:
        raise CannotDrawError(f"LivePlot(cmap={name!r}): {error.args[0]}") from None
    colours = whole((np.arange(N_MAP_COLOURS) + 0.5) / N_MAP_COLOURS)
    return ListedColormap(np.round(colours * 255) / 255).with_extremes(bad="none")


def _is_even(values: NDArray[Any]) -> bool:
    steps = np.diff(as_floats(values))
    return bool(steps.size and steps[0] and np.allclose(steps, steps[0], rtol=1e-3, atol=0))


def _like(flags: NDArray[np.bool_], pixels: Floats) -> NDArray[np.bool_]:
    return flags.reshape(*flags.shape, *[1] * (pixels.ndim - flags.ndim))


def _n_blocks(size: int, step: int) -> int:
    return -(-size // step)


def _scaled(
    extent: tuple[float, float, float, float], sides: Sequence[float]
) -> tuple[float, float, float, float]:
    """Return an extent whose height and width are multiplied, with the same upper left corner."""
    left, right, bottom, top = extent
    tall, wide = sides if len(sides) == 2 else (1.0, *sides, 1.0)[:2]
    return left, left + (right - left) * wide, top + (bottom - top) * tall, top
