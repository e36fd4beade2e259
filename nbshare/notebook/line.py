"""``plot="line"``: results against the items, open where they are missing."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from nbshare.notebook.axes import COLOURS, MARKERS, CalmLimits, named, tidy, write_dates
from nbshare.notebook.base import CannotDrawError
from nbshare.notebook.values import Array, PerItem, Values, as_floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.lines import Line2D
    from numpy.typing import NDArray

    from nbshare.notebook.live_plot import LivePlot

_MAX_LINES = 8  # more are drawn as one, of their mean: no eye can tell them apart
_MAX_MARKERS = 100  # of a line; else only single points have one, which no line would show
_MAX_POINTS = 2000  # more than the picture has pixels in a row

_ALONG_ITEM: dict[str, Callable[[Array], Array]] = {
    "mean": lambda rows: rows.mean(axis=1),
    "sum": lambda rows: rows.sum(axis=1),
    "min": lambda rows: rows.min(axis=1),
    "max": lambda rows: rows.max(axis=1),
    "last": lambda rows: rows[:, -1],
}


class LinePainter:
    """Draws lines that fill in.

    Parameters
    ----------
    axes
        Empty ones.
    plot
        What they are to show.
    inputs
        The items, if they are one sequence.
    """

    style: str | None = "default"  # the user's rcParams are for the user's own figures
    layout: Literal["constrained", "compressed"] = "constrained"
    palette = None

    def __init__(self, axes: Axes, plot: LivePlot, inputs: Any) -> None:
        self._axes, self._plot, self._inputs = axes, plot, inputs
        self._limits = CalmLimits()
        self._rows: PerItem | None = None
        self._lines: list[tuple[Line2D, Line2D]] = []
        self._order: NDArray[np.intp] | slice = slice(None)
        self._x: Array

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Bring the axes up to date; return how many results they show, and what of them."""
        values = Values(partial, present, self._plot.value, "line")
        if not math.prod(values.shape):
            raise CannotDrawError(
                f"plot='line' has nothing to draw in results of the shape {values.shape}."
            )
        first = self._rows is None
        if self._rows is None:
            self._rows = PerItem(values.n, *_reduction(values, self._plot.reduction))
            self._choose_x(values.n)
        self._rows.add_new(values, final=final)
        if first:
            self._dress(values)
        rows = self._rows.numbers[self._order]
        rows = np.where(np.isfinite(rows), rows, np.nan)
        self._limits.follow(rows, final=final)
        for column, (line, points) in zip(rows.T, self._lines, strict=True):
            x, y = thinned(self._x, column)
            line.set_data(x, y)
            marked = np.isfinite(y) if values.n <= _MAX_MARKERS else is_single(y)
            points.set_data(x[marked], y[marked])
        if not math.isnan(self._limits.low):
            margin = 0.05 * (self._limits.high - self._limits.low)
            self._axes.set_ylim(self._limits.low - margin, self._limits.high + margin)
        return self._rows.n_shown, "{}"

    def _choose_x(self, n: int) -> None:
        """Choose what the results are drawn against, and label the axis."""
        plot, axes = self._plot, self._axes
        x, name = plot.x, "input"
        if x is not None and len(x) != n:
            raise CannotDrawError(
                f"LivePlot(x=...) has {len(x)} values, and the map has {n} items: there has to be "
                "one for each. The map goes on without the picture."
            )
        if x is None:
            x = along_x(self._inputs, n)
        if x is None:
            x, name = np.arange(n), "item"
        if x.dtype.kind == "M":
            write_dates(axes.xaxis)
        self._x = as_floats(x)
        if (np.diff(self._x) < 0).any():
            self._order = np.argsort(self._x, kind="stable")
            self._x = self._x[self._order]
        unit = plot.xunit or ("s" if x.dtype.kind == "m" else "")
        axes.set_xlabel(named(plot.xlabel or name, unit))
        low, high = float(self._x[0]), float(self._x[-1])
        margin = 0.02 * (high - low) or 0.5
        axes.set_xlim(low - margin, high + margin)

    def _dress(self, values: Values) -> None:
        """Make the lines, label what they are."""
        plot, axes = self._plot, self._axes
        tidy(axes)
        axes.grid(color="#EEEEEE")
        width = 1 if self._rows is None else self._rows.numbers.shape[1]
        size = 3 if values.n > _MAX_MARKERS // 2 else 4
        for k in range(width):
            look: dict[str, Any] = {"color": COLOURS[k], "zorder": 3}
            (line,) = axes.plot([], [], lw=1.5, **look)
            (points,) = axes.plot(
                [], [], MARKERS[k], ms=size, label=str(k) if k else "element 0", **look
            )
            self._lines.append((line, points))
        if width > 1:
            above: dict[str, Any] = {
                "loc": "lower right",
                "bbox_to_anchor": (1, 1),
                "borderaxespad": 0.2,
            }
            axes.legend(**above, ncols=width, frameon=False, fontsize=9, handletextpad=0.1)
        of = values.name
        if math.prod(values.shape) > _MAX_LINES or len(values.shape) > 1:
            of = f"{plot.reduction} of each {of}"
        axes.set_ylabel(named(plot.label or of, plot.unit or values.unit))
        if values.is_date:
            write_dates(axes.yaxis)
        if values.dtype.kind == "b" and not values.shape:
            axes.set_yticks([0, 1], ["False", "True"])


def _reduction(values: Values, name: str) -> tuple[int, Callable[[Array], Array]]:
    """Return how many numbers stand for one result, and what makes them of some results."""
    n_elements = math.prod(values.shape)
    if len(values.shape) <= 1 and n_elements <= _MAX_LINES:
        return n_elements, lambda rows: rows.reshape(len(rows), n_elements)
    reduce = _ALONG_ITEM[name]
    return 1, lambda rows: reduce(rows.reshape(len(rows), n_elements))[:, np.newaxis]


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
    """Tell which points have no neighbour to draw a line to."""
    there = np.isfinite(y)
    before, after = np.append(False, there[:-1]), np.append(there[1:], False)
    single: NDArray[np.bool_] = there & ~before & ~after
    return single


def thinned(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the highest and lowest points of many, which make the same picture."""
    if len(x) <= 2 * _MAX_POINTS:
        return x, y
    starts = np.linspace(0, len(x), _MAX_POINTS, endpoint=False).astype(int)
    ends = np.stack([np.fmin.reduceat(y, starts), np.fmax.reduceat(y, starts)], axis=1)
    return x[starts].repeat(2), ends.ravel()
