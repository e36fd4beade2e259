"""``plot="image"``, one image of the results so far, at the cost of the new ones only.

`Raster` combines their values, and `ImageLayout` has their places. This module adds colours, axes
and keys.
"""

from __future__ import annotations

import copy
import math
import time
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, to_rgba_array
from matplotlib.figure import SubFigure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch, Polygon
from numpy.typing import NDArray

from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.axes import (
    FRAME,
    GREY,
    colour_bar,
    points,
    room_of,
    wrapped,
    write_dates,
    write_label,
    write_names,
    write_whole,
)
from nbshare._core.notebook.layout import (
    MAX_SIDE,
    EvenImage,
    Pixels,
    choose_layout,
    is_to_scale,
    scaled,
    spread,
)
from nbshare._core.notebook.live_plot import LivePlot
from nbshare._core.notebook.png import colour_map
from nbshare._core.notebook.pointer import Cells
from nbshare._core.notebook.raster import Floats, Picture, Raster, blocks, opaque, without
from nbshare._core.notebook.reading import Reader, as_reals, unmasked
from nbshare._core.notebook.values import BUDGET_S, Painter, refusal, remark_on
from nbshare._core.store.cursor import Cursor

_EXTENDS = {  # arrows of a colour bar: whether results lie below it, and above it
    (False, False): "neither",
    (True, False): "min",
    (False, True): "max",
    (True, True): "both",
}
_HATCH: Any = {"hatch": "///", "facecolor": "none", "edgecolor": GREY, "alpha": 0.4, "linewidth": 0}
# Names for the key. The colours differ from the map's, also for the colour-blind.
_ODD = {"NaN": FRAME, "inf": "#D55E00", "−inf": "#CC79A7"}
_MAP, _DIVERGING_MAP = "viridis", "RdBu_r"
_LEAST_SIGNED = 0.2  # smallest ratio of the extremes of both signs at which colours diverge
_DIVERGING = {"PiYG", "PRGn", "BrBG", "PuOr", "RdGy", "RdBu", "RdYlBu", "RdYlGn", "Spectral"}
_DIVERGING |= {"coolwarm", "bwr", "seismic", "berlin", "managua", "vanimo"}
# Rows and columns on the screen. Interpolation of more would average extreme values.
_SCREEN = 370, 600
_MAX_COMBINED = 2**24  # most pixels of images that are combined first, then reduced to blocks
_MOST_HIDDEN = 0.5  # part of the range that means of blocks may hide without a remark
_MAX_SHARP = 600  # most pixels per side that the last frame shows as squares


class ImagePainter(Painter):
    """Draws results as one image, reduced by cells of consecutive items."""

    _bar: Any = None
    _is_signed = False
    _shown: tuple[Floats, NDArray[np.bool_]]  # pixels, and which of them have a result

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        axes, plot = self._axes, self._plot
        self._layout = layout = choose_layout(
            self._n, self._shape, plot, self._inputs, self._reader
        )
        self._is_coloured = len(self._shape) == 3
        self._is_combined = self._is_stack and self._n > 1 and not self._is_coloured
        self._has_peaks = plot.reduction in ("min", "max")
        most = _SCREEN[-len(self._shape) :] if self._has_peaks else (MAX_SIDE, MAX_SIDE)
        steps = [math.ceil(k / side) for k, side in zip(self._shape[:2], most, strict=False)]
        # Images are combined pixel by pixel if that needs no huge array.
        are_late = self._is_combined and math.prod(self._shape) <= _MAX_COMBINED
        self._steps: list[int] = [] if are_late else steps
        self._late_steps: list[int] = steps if are_late else []
        self._blocks = " × ".join(map(str, steps)) if max([1, *steps]) > 1 else ""
        self._has_cells = bool(
            (self._is_stack and self._n > 1) or layout.n_cells < self._n or self._blocks
        )
        self._check_categories()
        self._raster = self._new_raster()
        self._pixels = Pixels(layout, self._n, self._shape, steps)
        self._place_axes()
        look: Any = {"norm": LogNorm(1, 10)} if self._is_log and not self._is_coloured else {}
        look["cmap"] = colour_map(plot.cmap or _MAP)
        look["interpolation"] = "nearest" if self._has_peaks or self.categories else None
        self._image = self._add_image(EvenImage, interpolation_stage="data", **look)
        self._image.sides = self._pixels.sides
        # Above the image: pixels that are not finite. Below: a hatch where results are missing.
        self._odd = self._add_image(AxesImage, interpolation="nearest", zorder=0.5)
        on_scale: Any = {"transform": self._image.get_transform(), "zorder": -1}
        self._hatch = axes.add_patch(Polygon(layout.outline, **on_scale, **_HATCH))
        self._odd_names: list[str] = []
        self._map: str | int = _MAP  # or number of categories
        self._has_bar = plot._is_keyed and not self._is_coloured
        if self._has_bar:
            self._draw_bar("neither")

    def _add_image(self, kind: type[AxesImage], **look: Any) -> Any:
        """Add an image that fills the extent evenly, in the units of the axes' scales."""
        axes: Any = self._axes
        # Resampled, because pixels of the screen would otherwise be samples, not means.
        look |= {"origin": "upper", "extent": [*self._pixels.extent], "resample": True}
        image = kind(axes, **look)
        image.set_data(np.zeros((1, 1) if kind is EvenImage else (1, 1, 4)))
        image.set_transform(axes.transLimits + axes.transAxes)
        image.set_clip_path(axes.patch)
        axes.add_image(image)
        return image

    def _new_raster(self) -> Raster:
        layout = self._layout
        n_cells = math.ceil(layout.n_cells / layout.columns) * layout.columns
        return Raster(n_cells, self._shape, self._plot.reduction, self._steps)

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Prepare to read all results again, and show them on a scale with these limits."""
        super().begin_anew(limits)
        self._raster = self._new_raster()

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value so far, ``inf`` and ``-inf`` if there are none."""
        if not self._is_combined:
            return self._raster.ends
        picture = self._raster.picture((), is_combined=True)
        return picture.low, picture.high

    @property
    def _is_stack(self) -> bool:
        """Whether results are images, which are combined."""
        return len(self._shape) > 1

    def _check_categories(self) -> None:
        """Find whether each pixel shows a single bool or text, which has its own colour.

        Means of bools are numbers. A pixel that combines several texts shows the last one.
        """
        if self._reader.texts:
            if self._blocks:
                raise refusal(
                    self._plot,
                    f"arrays of strings with more than {MAX_SIDE} elements along an axis",
                )
            self._plot = copy.copy(self._plot)
            self._plot.reduction = "last"
        elif not self._has_peaks:
            box, layout = self._axes.bbox, self._layout
            is_fine = len(layout.y.values) > box.height or len(layout.x.values) > box.width
            has_means = self._has_cells and self._plot.reduction != "last"
            self._are_combined = is_fine or has_means or bool(self._blocks)

    @property
    def ratio(self) -> float | None:
        """Width of the image for a height of 1, or None if it fills any place."""
        left, right, bottom, top = self._layout.extent
        aspect: Any = self._axes.get_aspect()
        return None if aspect == "auto" else abs((right - left) / (bottom - top)) / aspect

    def _place_axes(self) -> None:
        """Label the axes, and show the area of the image."""
        axes, plot, layout = self._axes, self._plot, self._layout
        # First its shape, as texts are written for it.
        for axis, places in ((axes.xaxis, layout.x), (axes.yaxis, layout.y)):
            places.scale(axis)
        left, right = sorted(layout.x.unscaled(np.array(layout.x.ends)).tolist())
        bottom, top = sorted(layout.y.unscaled(np.array(layout.y.ends)).tolist())
        # Coordinates grow upwards, but the first row is on top if rows are only numbered.
        axes.set(xlim=(left, right), ylim=(top, bottom) if layout.y.is_index else (bottom, top))
        # Numbers and rows fill a small place, unless they are drawn to scale.
        is_alone = axes.get_subplotspec().get_gridspec().get_geometry() == (1, 1)  # type: ignore[union-attr]
        is_small = isinstance(axes.figure, SubFigure) or not is_alone
        fills = is_small and not (self._is_stack or is_to_scale(plot))
        axes.set_aspect("auto" if fills else layout.aspect)
        letters = sum(len(name) + 2 for name in layout.x.names or ())
        if not self._is_stack and letters > room_of(axes.xaxis):
            axes.set_aspect("auto")  # because the names need the whole width
        write_label(axes.xaxis, layout.x.title(plot.xlabel, plot.xunit))
        write_label(axes.yaxis, layout.y.title(plot.ylabel, plot.yunit))
        layout.x.write(axes.xaxis)
        layout.y.write(axes.yaxis)

    def draw_key_of_all(self, axes: list[Axes]) -> None:
        """Draw one colour bar for all panels of a plot."""
        if not self._is_coloured:
            self._draw_bar("neither", axes)

    def _draw_bar(self, extend: str, axes: Any = None) -> None:
        """Draw the colour bar, with an arrow at each end beyond which values lie."""
        name = wrapped(self._value_name, self._axes.yaxis)
        self._bar = bar = colour_bar(axes or self._axes, self._image, name, extend=extend)
        axis = bar.ax.yaxis
        if self._dtype.kind == "M":
            write_dates(axis, self._reader.zone)
        elif self._dtype.kind in "iu" and not self._has_cells and not self._is_log:
            write_whole(axis)
        if self.categories is not None:
            write_names(axis, self.categories)
        # Otherwise the bar would choose a locator and formatter of its own with the next colours.
        bar.locator, bar.formatter = axis.get_major_locator(), axis.get_major_formatter()

    @property
    def _value_name(self) -> str:
        """The name and unit of the values that pixels show."""
        blocks_of = f", blocks of {self._blocks}" if self._blocks else ""
        how = f"{self._plot.reduction} of " if self._has_cells else ""
        return self._name(how) + blocks_of

    def cells(self) -> list[Cells]:
        """Return the pixels for the pointer on a page."""
        (pixels, is_there), layout, plot = self._shown, self._layout, self._plot
        is_counted = not self._shape and layout.x.is_index
        x = layout.x.title(plot.xlabel, plot.xunit)
        y = layout.y.title(plot.ylabel, plot.yunit)
        table = Cells(
            self._axes,
            self._pixels.along(1, x),
            self._pixels.along(0, y),
            pixels,
            [self._value_name],
            [],
            is_there=np.all(is_there, axis=tuple(range(2, pixels.ndim))),
            how=self._plot.reduction,
            items=(self._n / layout.n_cells, self._n) if is_counted else None,
            **self._kind_of_values,
        )
        return [table]

    def _draw_key(self, names: list[str]) -> None:
        """Draw the key of the pixels that are not finite."""
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
        """Show the values read so far, and return a remark about them."""
        layout = self._layout
        picture = self._raster.picture(self._late_steps, is_combined=self._is_combined)
        rows = (math.ceil(layout.n_cells / layout.columns), -1) if len(self._shape) < 2 else ()
        shape = rows or picture.pixels.shape[1:]
        pixels, is_there = picture.pixels.reshape(shape), picture.is_there.reshape(shape)
        self._shown = pixels, is_there
        n_others = self._n_not_positive + self._reader.n_padded
        n_left_out = max(0, picture.n_left_out - n_others)
        remark = f", {n_left_out:,} NaN left out" if n_left_out else ""
        if not self._has_cells:
            remark += remark_on(0, 0, self._reader.n_missing)
        if self._is_coloured:
            if self._dtype.kind in "iu":
                has_16_bits = self._dtype == np.uint16 and picture.high > 255
                pixels = pixels / (65535 if has_16_bits else 255)
            n_outside = int(np.count_nonzero((pixels < 0) | (pixels > 1)))
            remark += f", blocks of {self._blocks}" if self._blocks else ""
            remark += f", as colours{remark_on(0, n_outside)}" if n_outside else ""
        elif picture.low <= picture.high:
            remark += self._colour(pixels, picture)
        else:
            remark += self._remark_on_scale(pixels, 0, 0)
        is_odd = self._show_odd(pixels, is_there)
        if self._is_coloured:
            self._image.set_data(opaque(without(is_odd, pixels), is_there))
        else:
            self._image.set_data(without(is_odd, pixels))
        if final and max(pixels.shape[:2]) <= _MAX_SHARP:
            self._image.set_interpolation("nearest")  # sharper, and half the bytes
        return (f"{self._plot.reduction} of {{}}" if self._is_stack else "{}") + remark

    def _colour(self, pixels: Floats, picture: Picture) -> str:
        """Set the range of the colours, and return a remark on values that the image hides."""
        if (categories := self.categories) is not None:
            self._colour_categories(categories)
            return ""
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

    def _colour_categories(self, names: list[str]) -> None:
        """Give each of these bools or texts a colour, and label the colour bar with them."""
        if self._map == len(names):
            return
        self._map = len(names)
        of_all = colour_map(self._plot.cmap or _MAP)(np.linspace(0, 1, len(names)))
        self._image.set_cmap(ListedColormap(of_all).with_extremes(bad="none"))
        self._image.set_clim(-0.5, len(names) - 0.5)
        if self._bar is not None:
            write_names(self._bar.ax.yaxis, names)

    def _centred(self, low: float, high: float) -> tuple[float, float]:
        """Choose the colour map, and return the range, centred on zero if colours diverge.

        By default, colours diverge once values of both signs are of similar size. The colours never
        change back, because that would confuse.
        """
        name = self._plot.cmap
        less, more = sorted((-low, high))
        self._is_signed |= less > _LEAST_SIGNED * more
        if name is None:
            is_diverging = self._is_signed and not self._is_log and self._dtype.kind != "M"
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
        """Mark pixels without a result or finite value, and return which are not finite."""
        self._hatch.set_visible(not self._raster.is_full(self._layout.n_cells))
        kinds = [np.isnan(pixels) & is_there, np.isposinf(pixels), np.isneginf(pixels)]
        if self._is_coloured:
            kinds = [np.any(kind, axis=2) for kind in kinds]
        names = [name for name, kind in zip(_ODD, kinds, strict=True) if kind.any()]
        if names != self._odd_names:
            self._draw_key(names)
        self._odd.set_visible(bool(names))
        odd = np.select(kinds, (1, 2, 3))
        if names:
            places = spread(odd, self._pixels.sides)
            steps = [math.ceil(k / side) for k, side in zip(places.shape, _SCREEN, strict=True)]
            seen = blocks(np.maximum, places, steps, 0)  # so that a single odd pixel is visible
            sides = np.multiply(seen.shape, steps) / places.shape
            self._odd.set_extent(scaled(self._pixels.extent, sides.tolist()))
            colours = np.concatenate([np.zeros((1, 4)), to_rgba_array([*_ODD.values()])])
            self._odd.set_data(colours[seen])
        return odd > 0


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
        # Laid out as one result, the whole.
        super().__init__(axes, plot, inputs, 1, (first, Reader(plot.value)))
        self.cursor = Cursor(len(present))

    @staticmethod
    def _tile(plot: LivePlot, partial: Any, i: int) -> NDArray[Any]:
        value = plot.value
        return np.asarray(partial[i] if value is None else unmasked(value(partial[i])))

    def take_in(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> None:
        """Read as many new tiles as time allows, in the last frame all of them."""
        until = time.monotonic() + (math.inf if final else BUDGET_S)
        for i in np.flatnonzero(self.cursor.new(present)).tolist():
            tile = as_reals(self._tile(self._plot, partial, i))
            tile = tile if self._is_coloured else self._positive(tile)
            places = [*partial.layout.place(i)]
            places += [slice(0, k) for k in tile.shape[len(places) :]]
            with uninterrupted():
                self._raster.put(places, tile)
                self.cursor.take(i)
            if time.monotonic() >= until:
                break
