"""``plot="hist"``: how often which value has come."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from matplotlib.ticker import MaxNLocator

from nbshare.notebook.axes import COLOURS, CalmLimits, named, tidy, write_dates
from nbshare.notebook.base import CannotDrawError
from nbshare.notebook.values import PerItem, Values

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.patches import StepPatch
    from numpy.typing import NDArray

    from nbshare.notebook.live_plot import LivePlot

_MAX_VALUES = 2**20  # of all results; of more every k-th is counted
_MIN_BINS, _MAX_BINS = 10, 60
_MAX_WHOLE = 60  # integers of a smaller range have a bar each


class HistPainter:
    """Draws a histogram that grows.

    Parameters
    ----------
    axes
        Empty ones.
    plot
        What they are to show.
    """

    style: str | None = "default"  # the user's rcParams are for the user's own figures
    layout: Literal["constrained", "compressed"] = "constrained"
    palette = None

    def __init__(self, axes: Axes, plot: LivePlot) -> None:
        self._axes, self._plot = axes, plot
        self._limits = CalmLimits()
        self._numbers: PerItem | None = None
        self._bars: StepPatch

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Bring the axes up to date; return how many results they show, and what of them."""
        values = Values(partial, present, self._plot.value, "hist")
        if self._numbers is None:
            self._numbers = self._first(values)
        self._numbers.add_new(values, final=final)
        numbers = self._numbers.numbers[self._numbers.present].ravel()
        finite = numbers[np.isfinite(numbers)]
        self._limits.follow(finite, final=final)
        if finite.size:
            counts, edges = np.histogram(finite, self._edges(values, len(self._numbers.present)))
            self._bars.set_data(counts, edges)
            self._axes.set_xlim(edges[0], edges[-1])
            self._axes.set_ylim(0, 1.08 * counts.max())
        n_odd = numbers.size - finite.size
        return self._numbers.n_shown, f"{{}}, {n_odd} not finite" if n_odd else "{}"

    def _edges(self, values: Values, n: int) -> NDArray[np.floating]:
        low, high = self._limits.low, self._limits.high
        if values.dtype.kind in "biu" and high - low < _MAX_WHOLE and self._plot.bins is None:
            return np.arange(math.ceil(low), math.floor(high) + 2) - 0.5
        by_number = int(math.sqrt(n * math.prod(values.shape)))
        n_bins = self._plot.bins or min(max(by_number, _MIN_BINS), _MAX_BINS)
        return np.linspace(low, high, n_bins + 1)

    def _first(self, values: Values) -> PerItem:
        """Label the axes; decide how much of each result is counted."""
        n_elements = math.prod(values.shape)
        if not n_elements:
            raise CannotDrawError(
                f"plot='hist' has nothing to count in results of the shape {values.shape}."
            )
        plot, axes = self._plot, self._axes
        every = math.ceil(n_elements / max(1, _MAX_VALUES // values.n))
        tidy(axes)
        axes.set_xlabel(named(plot.label or values.name, plot.unit or values.unit))
        what = "values" if values.shape else "results"
        axes.set_ylabel(f"number of {what}" if every == 1 else f"number of {what}, 1 in {every}")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
        if values.is_date:
            write_dates(axes.xaxis)
        if values.dtype.kind == "b":
            axes.set_xticks([0, 1], ["False", "True"])
        self._bars = axes.stairs([0], [0, 1], fill=True, color=COLOURS[0])
        width = len(range(0, n_elements, every))
        return PerItem(values.n, width, lambda rows: rows.reshape(len(rows), -1)[:, ::every])
