"""``plot="image"``: the results so far as one picture, at the cost of the new ones only."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np

from nbshare.notebook.axes import named, tidy, write_dates
from nbshare.notebook.layout import Layout, choose_layout
from nbshare.notebook.values import FOLD_BUDGET_S, Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

    from nbshare.notebook.live_plot import LivePlot

_BLANK = "#E8E8E8"
_IN_TITLE = {
    "mean": "mean of",
    "sum": "sum of",
    "min": "minimum of",
    "max": "maximum of",
    "last": "the last of",
}


class Reduced:
    """The results present, reduced by cells of consecutive items; each is read once.

    Parameters
    ----------
    n
        Results in all.
    layout
        Their picture.
    how
        One of "mean", "sum", "min", "max", "last".
    """

    def __init__(self, n: int, layout: Layout, how: str = "mean") -> None:
        self._n, self._layout, self._how = n, layout, how
        self._forget()

    def _forget(self) -> None:
        self._seen = np.zeros(self._n, bool)
        self._counts = np.zeros(self._layout.n_cells, np.int64)
        self._newest = np.full(self._layout.n_cells, -1)
        self._cells: NDArray[np.float64] | None = None
        self._unfinished = False

    @property
    def n_shown(self) -> int:
        """Results that have been taken in."""
        return int(np.count_nonzero(self._seen))

    def add_new(self, values: Values, budget_s: float) -> None:
        """Take in the results present that were not there before, for about `budget_s`."""
        if self._unfinished:  # a KeyboardInterrupt fell into the lines below
            self._forget()
        sample = self._layout.sample
        n_elements = math.prod(values.shape) // math.prod(s.step or 1 for s in sample)
        for items in values.blocks(self._seen, max(1, n_elements), budget_s):
            rows = values.read(items, sample)
            if self._cells is None:
                empty = np.nan if self._how in ("min", "max", "last") else 0.0
                self._cells = np.full((self._layout.n_cells, *rows.shape[1:]), empty)
            self._unfinished = True
            self._add(self._cells, items, rows)
            self._seen[items] = True
            self._unfinished = False

    def _add(self, sums: NDArray[Any], items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        cells = items * self._layout.n_cells // self._n  # sorted, as items are
        firsts = np.flatnonzero(np.diff(cells, prepend=-1))
        lasts = np.append(firsts[1:], len(items)) - 1
        mine = cells[firsts]
        match self._how:
            case "last":
                newer = items[lasts] > self._newest[mine]
                sums[mine[newer]] = rows[lasts[newer]]
                self._newest[mine[newer]] = items[lasts[newer]]
            case "min":
                sums[mine] = np.fmin(sums[mine], np.fmin.reduceat(rows, firsts, axis=0))
            case "max":
                sums[mine] = np.fmax(sums[mine], np.fmax.reduceat(rows, firsts, axis=0))
            case _:
                sums[mine] += np.add.reduceat(rows, firsts, axis=0)
        self._counts[mine] += lasts - firsts + 1

    def pixels(self) -> NDArray[np.float64]:
        """Return the picture; NaN where there is no result yet."""
        assert self._cells is not None
        counts = self._counts.reshape(-1, *[1] * (self._cells.ndim - 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            divisor = counts if self._how == "mean" else (counts > 0) * 1.0
            shown = self._cells / divisor
        if self._layout.n_cells == 1 and self._cells.ndim > 2:
            return np.asarray(shown[0])
        if self._layout.columns:
            columns = self._layout.columns
            rows = math.ceil(len(shown) / columns)
            wrapped = np.full(rows * columns, np.nan)
            wrapped[: len(shown)] = shown
            return wrapped.reshape(rows, columns)
        return np.asarray(shown)


class ColourLimits:
    """The range of the colours: most of the data, and calm while they come in."""

    def __init__(self) -> None:
        self.low, self.high = math.nan, math.nan

    def follow(self, pixels: NDArray[np.float64], *, final: bool) -> None:
        """Move to the 2nd and 98th percentile, if they went away by a tenth of the range."""
        sample = pixels.ravel()[:: max(1, pixels.size // 100_000)]
        sample = sample[np.isfinite(sample)]
        if not sample.size:
            return
        low, high = np.percentile(sample, (2, 98))
        if low == high:  # nearly everything is one value: show the few others
            low, high = sample.min(), sample.max()
        if low == high:
            margin = abs(low) / 10 or 0.5
            low, high = low - margin, high + margin
        calm = (self.high - self.low) / 10
        moved = not (abs(low - self.low) <= calm and abs(high - self.high) <= calm)  # or NaN
        if final or moved:
            self.low, self.high = float(low), float(high)


class ImagePainter:
    """Draws the picture of a job into axes of ours.

    Parameters
    ----------
    axes
        Empty ones.
    plot
        What they are to show.
    """

    style: str | None = "default"  # the user's rcParams are for the user's own figures
    layout: Literal["constrained", "compressed"] = (
        "compressed"  # the colour bar stays beside axes of fixed aspect
    )

    def __init__(self, axes: Axes, plot: LivePlot) -> None:
        self._axes, self._plot = axes, plot
        self._limits = ColourLimits()
        self._layout: Layout | None = None
        self._white: float  # of colour images
        self._reduced: Reduced
        self._image: AxesImage

    @property
    def palette(self) -> list[int] | None:
        """The colours of the picture, R, G, B, …: those of the map, and greys for the rest."""
        if self._layout is not None and self._layout.coloured:
            return None
        colours = 255 * mpl.colormaps["viridis"](np.linspace(0, 1, 224))[:, :3]
        greys = np.linspace(0, 255, 32)[:, np.newaxis].repeat(3, axis=1)
        return [int(value) for value in np.concatenate([colours, greys]).round().ravel()]

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Bring the axes up to date; return how many results they show, and what of them."""
        values = Values(partial, present, self._plot.value, "image")
        layout = self._layout
        if layout is None:
            layout = choose_layout(values.n, values.shape, self._plot)
            self._white = 255 if values.dtype == np.uint8 else 1
            self._reduced = Reduced(values.n, layout, self._plot.reduction)
        self._reduced.add_new(values, math.inf if final else FOLD_BUDGET_S)
        pixels = self._reduced.pixels()
        if layout.coloured:
            pixels = np.clip(pixels / self._white, 0, 1)
        else:
            self._limits.follow(pixels, final=final)
        is_stack = layout.n_cells == 1 and len(values.shape) > 1
        if self._layout is None:
            name = f"{self._plot.reduction} of {{}}" if is_stack else "{}"
            self._image = self._first(pixels, layout, values, name.format(values.name))
            self._layout = layout
        self._image.set_data(pixels)
        if not layout.coloured and not math.isnan(self._limits.low):
            self._image.set_clim(self._limits.low, self._limits.high)
        return (
            self._reduced.n_shown,
            f"{_IN_TITLE[self._plot.reduction]} {{}}" if is_stack else "{}",
        )

    def _first(
        self, pixels: NDArray[np.float64], layout: Layout, values: Values, name: str
    ) -> AxesImage:
        axes, plot = self._axes, self._plot
        image = axes.imshow(
            pixels,
            cmap=mpl.colormaps["viridis"].with_extremes(bad=_BLANK),
            extent=layout.extent,
            aspect=layout.aspect,
            interpolation_stage="data",  # means of values, not of colours
        )
        axes.set_xlabel(named(plot.xlabel or layout.xlabel, plot.xunit))
        axes.set_ylabel(named(plot.ylabel or layout.ylabel, plot.yunit))
        tidy(axes)
        if plot.y is not None and len(plot.y) > 1 and plot.y[1] > plot.y[0]:
            axes.invert_yaxis()  # coordinates grow upwards
        for axis, coordinates in ((axes.xaxis, plot.x), (axes.yaxis, plot.y)):
            if coordinates is not None and coordinates.dtype.kind == "M":
                write_dates(axis)
        if not layout.coloured:
            beside = axes.inset_axes(
                (1.03, 0, 0.035, 1)
            )  # as high as the image, whatever its aspect
            bar = axes.figure.colorbar(image, cax=beside, extend="both")
            bar.ax.tick_params(color="#999999", labelcolor="#444444", labelsize=9)
            bar.outline.set_visible(False)
            bar.set_label(named(plot.label or name, plot.unit or values.unit))
        return image
