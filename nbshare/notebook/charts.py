"""``plot="line"``, results against the items, and ``plot="hist"``, a histogram."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from nbshare.notebook.live_plot import CannotDrawError
from nbshare.notebook.values import GREY, Array, Painter, as_floats, calm, named, span, write_dates

# Okabe and Ito's colours, which the colour-blind tell apart too; each line has its own marker.
_COLOURS = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442", "#888888"
_MARKERS = "osD^vPX*"

_MAX_LINES = 8  # more could not be told apart: their mean is drawn
_MAX_MARKERS = 100  # of a line; beyond, only single points have one, since no line shows them
_MAX_POINTS = 2000  # more than the plot has pixels in a row

_MAX_VALUES = 2**20  # in a histogram; if there are more, every k-th is counted
_MAX_BINS = 100
_MAX_WHOLE = 60  # integers in a smaller range get a bar each


class LinePainter(Painter):
    """Draws lines against the items if these are numbers or dates."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        axes, plot = self._axes, self._plot
        self._x, self._order = self._choose_x()
        self._is_reduced = len(self._shape) > 1 or self._n_elements > _MAX_LINES
        width = 1 if self._is_reduced else self._n_elements
        self._numbers = np.full((self._n, width), np.nan)
        axes.grid(color="#999999", alpha=0.2)
        size = 3 if self._n > _MAX_MARKERS // 2 else 4
        looks = list(zip(_COLOURS, _MARKERS, strict=True))[:width]
        self._lines = [
            axes.plot([], [], marker=marker, ms=size, lw=1.5, color=colour, zorder=3)[0]
            for colour, marker in looks
        ]
        if width > 1:
            word = "result" if width < 4 else ""  # more have no room next to the title
            names = ["result[0]", *(f"{word}[{k}]" for k in range(1, width))]
            look: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (1, 1)}
            look |= {"borderaxespad": 0.2, "frameon": False, "fontsize": 9, "labelcolor": GREY}
            look |= {"handlelength": 1, "handletextpad": 0.5, "columnspacing": 1}
            axes.legend(self._lines, names, **look, ncols=width)
        axes.set_ylabel(self._name(f"{plot.reduction} of each " if self._is_reduced else ""))
        if self._dtype.kind == "M":
            write_dates(axes.yaxis)
        if self._dtype.kind == "b" and not self._shape:
            axes.set_yticks([0, 1], ["False", "True"])

    def _choose_x(self) -> tuple[Array, NDArray[np.intp]]:
        """Choose the x values and label their axis; return their order."""
        plot, axes = self._plot, self._axes
        x, name = plot.x, "input"
        if x is not None and len(x) != self._n:
            raise CannotDrawError(
                f"LivePlot(x=...) has {len(x)} values, but there are {self._n} items: pass one "
                "value per item. The run continues without this plot."
            )
        if x is None:
            x = along_x(self._inputs, self._n)
        if x is None:
            x, name = np.arange(self._n), "item"
        if x.dtype.kind == "M":
            write_dates(axes.xaxis)
        unit = plot.xunit or ("s" if x.dtype.kind == "m" else "")
        axes.set_xlabel(named(plot.xlabel or name, unit))
        floats = as_floats(x)
        order = np.argsort(floats, kind="stable")
        low, high = np.nanmin(floats), np.nanmax(floats)
        margin = 0.02 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)
        return floats[order], order

    def _add(self, items: NDArray[np.intp], rows: Array) -> None:
        rows, how = rows.reshape(len(rows), -1), self._plot.reduction
        if self._is_reduced:
            rows = rows[:, -1:] if how == "last" else getattr(rows, how)(axis=1, keepdims=True)
        self._numbers[items] = np.where(np.isfinite(rows), rows, np.nan)

    def _show(self, *, final: bool) -> str:  # noqa: ARG002
        for line, numbers in zip(self._lines, self._numbers[self._order].T, strict=True):
            x, y = thinned(self._x, numbers)
            line.set_data(x, y)
            marked = np.isfinite(y) if self._n <= _MAX_MARKERS else is_single(y)
            line.set_markevery(np.flatnonzero(marked).tolist())
        finite = self._numbers[np.isfinite(self._numbers)]
        if finite.size:
            self._axes.set_ylim(calm(*(self.limits or span(finite)), margin=0.03))
        return "{}"


def along_x(inputs: Any, n: int) -> NDArray[Any] | None:
    """Return the items as numbers or dates, if a line can be drawn against them."""
    is_kept = hasattr(inputs, "__getitem__") and len(inputs) >= n  # those of a generator are not
    if not is_kept or not isinstance(inputs[0], float | int | np.number | np.datetime64):
        return None
    try:
        x = np.asarray(inputs)[:n]
    except ValueError:  # numbers and lists
        return None
    fits = x.ndim == 1 and x.dtype.kind in "iufM" and np.isfinite(x).all() and (x != x[0]).any()
    return x if fits else None


def is_single(y: Array) -> NDArray[np.bool_]:
    """Return which points have no neighbour to draw a line to."""
    there = np.pad(np.isfinite(y), 1)
    single: NDArray[np.bool_] = there[1:-1] & ~there[:-2] & ~there[2:]
    return single


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the highest and lowest points of many: they look the same."""
    if len(x) <= 2 * _MAX_POINTS:
        return x, y
    starts = np.linspace(0, len(x), _MAX_POINTS, endpoint=False).astype(int)
    ends = np.stack([np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)], axis=1)
    return x[starts].repeat(2), ends.ravel()


class HistPainter(Painter):
    """Draws a histogram that grows."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        axes, n_elements = self._axes, self._n_elements
        self._every = math.ceil(n_elements / max(1, _MAX_VALUES // self._n))
        self._numbers = np.empty((self._n, math.ceil(n_elements / self._every)))
        what = "values" if self._shape else "results"
        sampled = "" if self._every == 1 else f", 1 in {self._every}"
        axes.set_xlabel(self._name())
        axes.set_ylabel(f"number of {what}{sampled}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
        if self._dtype.kind == "M":
            write_dates(axes.xaxis)
        if self._dtype.kind == "b":
            axes.set_xticks([0, 1], ["False", "True"])
        self._bars = axes.stairs([0], [0, 1], fill=True, color=_COLOURS[0])

    def _add(self, items: NDArray[np.intp], rows: Array) -> None:
        self._numbers[items] = rows.reshape(len(rows), -1)[:, :: self._every]

    def _show(self, *, final: bool) -> str:  # noqa: ARG002
        numbers = self._numbers[self._taken].ravel()
        finite = numbers[np.isfinite(numbers)]
        if finite.size:
            counts, edges = np.histogram(finite, self._edges(finite))
            self._bars.set_data(counts, edges)
            self._axes.set_xlim(calm(*(self.limits or (edges[0], edges[-1]))))
            self._axes.set_ylim(0, calm(0, counts.max(), margin=0.03)[1])
        n_odd = numbers.size - finite.size
        return f"{{}}, {n_odd} not finite" if n_odd else "{}"

    def _edges(self, finite: Array) -> NDArray[np.floating]:
        if self._dtype.kind in "biu" and np.ptp(finite) < _MAX_WHOLE and self._plot.bins is None:
            return np.arange(finite.min(), finite.max() + 2) - 0.5
        low, high = self.limits or span(finite)
        return np.linspace(low, high, (self._plot.bins or auto_bins(finite)) + 1)


def auto_bins(finite: Array) -> int:
    """Return how many bins NumPy's "auto" makes: the larger of two well-known numbers."""
    # With an outlier, NumPy itself would make the edges of billions of bins.
    by_sturges = math.log2(finite.size) + 1
    middle = np.subtract(*np.percentile(finite, (75, 25)))
    by_spread = np.ptp(finite) * finite.size ** (1 / 3) / (2 * middle) if middle else 0.0
    return math.ceil(min(max(by_sturges, by_spread), _MAX_BINS))
