"""``plot="image"``: the results so far as one picture, at the cost of the new ones only."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import matplotlib as mpl
import numpy as np

from nbshare.notebook.base import CannotDrawError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage
    from numpy.typing import NDArray

_MAX_SIDE = 1024  # no picture has more pixels a side than a screen shows of it
_MAX_SCALARS = 2**16
_BLOCK_BYTES = 8 * 2**20  # results are taken in by blocks of this size, in float64
_FOLD_BUDGET_S = 0.15  # of one refresh; what is left over comes with the next
_BLANK = "#E8E8E8"


@dataclass(frozen=True)
class Layout:
    """How results of one shape become one picture.

    Attributes
    ----------
    n_cells
        The results are averaged in this many runs of consecutive items.
    sample
        Index into one result: every k-th pixel of what is larger than a screen.
    extent, aspect, xlabel, ylabel
        Of the axes, in items and elements.
    columns
        Cells side by side, for scalars; 0 for others.
    coloured
        The last axis is RGB or RGBA.
    """

    n_cells: int
    sample: tuple[slice, ...]
    extent: tuple[float, float, float, float]
    aspect: float | Literal["auto", "equal"]
    xlabel: str
    ylabel: str
    columns: int = 0
    coloured: bool = False


def choose_layout(n: int, shape: tuple[int, ...]) -> Layout:
    """Choose the picture for n results of a shape; CannotDrawError if there is none."""
    if math.prod(shape) > 0:
        if len(shape) == 0:
            cells = min(n, _MAX_SCALARS)
            columns = math.ceil(math.sqrt(cells))
            rows = math.ceil(cells / columns)
            per_row = columns * n / cells
            extent = (0.0, per_row, rows * per_row, 0.0)
            return Layout(cells, (), extent, 1 / columns, "items, row by row", "", columns)
        if len(shape) == 1:
            extent = (-0.5, shape[0] - 0.5, n - 0.5, -0.5)
            return Layout(min(n, _MAX_SIDE), _sampled(shape), extent, "auto", "element", "item")
        if len(shape) == 2 or (len(shape) == 3 and shape[2] in (3, 4)):
            extent = (-0.5, shape[1] - 0.5, shape[0] - 0.5, -0.5)
            coloured = len(shape) == 3
            return Layout(1, _sampled(shape[:2]), extent, "equal", "", "", coloured=coloured)
    raise CannotDrawError(
        f"plot='image' draws results that are numbers, rows (k,), images (H, W) or colour images "
        f"(H, W, 3 or 4); these have the shape {shape}. The map goes on without the picture; "
        "plot=callable(ax, partial) draws anything."
    )


def _sampled(shape: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(None, None, math.ceil(side / _MAX_SIDE)) for side in shape)


class RunningMean:
    """The mean of the results present, by cells of consecutive items; each is read once.

    Parameters
    ----------
    n
        Results in all.
    layout
        Their picture.
    """

    def __init__(self, n: int, layout: Layout) -> None:
        self._n, self._layout = n, layout
        self._forget()

    def _forget(self) -> None:
        self.n_shown = 0
        self._seen = np.zeros(self._n, bool)
        self._counts = np.zeros(self._layout.n_cells, np.int64)
        self._sums: NDArray[np.float64] | None = None
        self._unfinished = False

    def add_new(self, data: NDArray[Any], present: NDArray[np.bool_], budget_s: float) -> None:
        """Take in the results present that were not there before, for about `budget_s`."""
        if self._unfinished:  # a KeyboardInterrupt fell into the lines below
            self._forget()
        sampled = data[(slice(None), *self._layout.sample)]
        if self._sums is None:
            self._sums = np.zeros((self._layout.n_cells, *sampled.shape[1:]))
        new = np.flatnonzero(present & ~self._seen)
        step = max(1, _BLOCK_BYTES // (8 * math.prod(sampled.shape[1:])))
        until = time.monotonic() + budget_s
        for start in range(0, len(new), step):
            items = new[start : start + step]
            cells = items * self._layout.n_cells // self._n  # sorted, as items are
            firsts = np.flatnonzero(np.diff(cells, prepend=-1))
            values = np.asarray(sampled[items], np.float64)
            self._unfinished = True
            self._sums[cells[firsts]] += np.add.reduceat(values, firsts, axis=0)
            self._counts[cells[firsts]] += np.diff(firsts, append=len(cells))
            self._seen[items] = True
            self.n_shown += len(items)
            self._unfinished = False
            if time.monotonic() >= until:
                break

    def pixels(self) -> NDArray[np.float64]:
        """Return the picture; NaN where there is no result yet."""
        assert self._sums is not None
        counts = self._counts.reshape(-1, *[1] * (self._sums.ndim - 1))
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = self._sums / counts
        if self._layout.n_cells == 1 and self._sums.ndim > 2:
            return np.asarray(mean[0])
        if self._layout.columns:
            columns = self._layout.columns
            rows = math.ceil(len(mean) / columns)
            wrapped = np.full(rows * columns, np.nan)
            wrapped[: len(mean)] = mean
            return wrapped.reshape(rows, columns)
        return np.asarray(mean)


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
    """Draws the picture of a job into axes of ours."""

    style: str | None = "default"  # the user's rcParams are for the user's own figures
    layout: Literal["constrained", "compressed"] = (
        "compressed"  # the colour bar stays beside axes of fixed aspect
    )

    def __init__(self, axes: Axes, label: str) -> None:
        self._axes, self._label = axes, label
        self._limits = ColourLimits()
        self._layout: Layout | None = None
        self._mean: RunningMean
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
        """Bring the axes up to date; return how many results they show, and the title."""
        data = _real_numbers(partial, present)
        if self._layout is None:
            layout = choose_layout(len(data), data.shape[1:])
            self._mean = RunningMean(len(data), layout)
        else:
            layout = self._layout
        self._mean.add_new(data, present, math.inf if final else _FOLD_BUDGET_S)
        pixels = self._mean.pixels()
        if layout.coloured:
            pixels = np.clip(pixels / (255 if data.dtype == np.uint8 else 1), 0, 1)
        else:
            self._limits.follow(pixels, final=final)
        if self._layout is None:
            self._image = self._first(pixels, layout)
            self._layout = layout
        self._image.set_data(pixels)
        if not layout.coloured and not math.isnan(self._limits.low):
            self._image.set_clim(self._limits.low, self._limits.high)
        title = f"{self._mean.n_shown} of {len(data)}"
        if layout.n_cells == 1 and len(data.shape) > 2:
            title = f"mean of {title}"
        title = f"{self._label}: {title}" if self._label else title
        self._axes.set_title(title, loc="left", fontsize=11, parse_math=False)
        return self._mean.n_shown, title

    def _first(self, pixels: NDArray[np.float64], layout: Layout) -> AxesImage:
        axes = self._axes
        image = axes.imshow(
            pixels,
            cmap=mpl.colormaps["viridis"].with_extremes(bad=_BLANK),
            extent=layout.extent,
            aspect=layout.aspect,
            interpolation_stage="data",  # means of values, not of colours
        )
        axes.set_xlabel(layout.xlabel)
        axes.set_ylabel(layout.ylabel)
        axes.tick_params(color="#999999", labelcolor="#444444", labelsize=9)
        axes.spines[:].set_color("#BBBBBB")
        if not layout.coloured:
            bar = axes.figure.colorbar(image, ax=axes, pad=0.02, aspect=28, extend="both")
            bar.ax.tick_params(color="#999999", labelcolor="#444444", labelsize=9)
            bar.outline.set_visible(False)
        return image


def _real_numbers(partial: Any, present: NDArray[np.bool_]) -> NDArray[Any]:
    """Return the array under a partial result; CannotDrawError if it is no array of numbers."""
    if isinstance(partial, np.ndarray):
        data = np.ma.getdata(partial)
        if data.dtype.kind in "biuf":
            return data
        kind = f"arrays of dtype {data.dtype}"
    else:
        kind = f"of type {type(partial[int(np.argmax(present))]).__name__}"
    raise CannotDrawError(
        f"plot='image' needs results that are real numbers or arrays of them, all of one shape; "
        f"these are {kind}. The map goes on without the picture; plot=callable(ax, partial) "
        "draws anything."
    )
