"""The common part of nbshare's plots: results as numbers, each read once; limits, labels."""

from __future__ import annotations

import datetime as dt
import math
import time
from numbers import Number
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray
from PIL.Image import Image

from nbshare.interrupts import uninterrupted
from nbshare.notebook.live_plot import CannotDrawError, LivePlot

_BLOCK_BYTES = 8 * 2**20  # results are read in blocks of this size, in float64
_BUDGET_S = 0.15  # of one refresh; the next one reads the rest

# Lighter than the data, and readable on white as well as on the background of a dark theme.
GREY, TICKS, FRAME = "#777777", "#999999", "#BBBBBB"

Array = NDArray[np.float64]


class Painter:
    """Draws a plot into its axes.

    Parameters
    ----------
    axes
        Empty Axes.
    plot
        The plot to draw.
    inputs
        The items of the run.
    partial, present
        The results so far, an array or a list with gaps; and a flag for each that has arrived.
    """

    palette: Image | None = None  # all colours of the plot, if they are known
    limits: tuple[float, float] | None = None  # of the values; None: from these results

    def __init__(
        self, axes: Axes, plot: LivePlot, inputs: Any, partial: Any, present: NDArray[np.bool_]
    ) -> None:
        self._axes, self._plot, self._inputs = axes, plot, inputs
        self._n = len(present)
        self._taken = np.zeros(self._n, bool)  # which results have been read
        self._sample: tuple[slice, ...] = ()  # the part of each that is read
        first = self._read(partial, np.flatnonzero(present)[:1])
        self._dtype, self._shape = first.dtype, first.shape[1:]
        self._n_elements = math.prod(self._shape)
        if not self._n_elements:
            raise CannotDrawError(
                f"plot={plot.kind!r} has nothing to draw in results of the shape {self._shape}."
            )
        dress(axes)

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Update the axes.

        Return the number of results shown, and a text with ``{}`` for that number.
        """
        step = max(1, _BLOCK_BYTES // (8 * self._n_elements))
        new = np.flatnonzero(present & ~self._taken)
        until = time.monotonic() + (math.inf if final else _BUDGET_S)
        for start in range(0, len(new), step):
            items = new[start : start + step]
            part = self._read(partial, items)
            if part.shape[1:] != self._shape:
                raise self._refusal("arrays of several shapes")
            rows = as_floats(part[(slice(None), *self._sample)])
            with uninterrupted():  # or they might be added twice
                self._add(items, rows)
                self._taken[items] = True
            if time.monotonic() >= until:
                break
        return int(np.count_nonzero(self._taken)), self._show(final=final)

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Read all results again, and show them on a scale with these limits."""
        self.limits, self._taken[:] = limits, False

    def _add(self, items: NDArray[np.intp], rows: Array) -> None:
        """Read the values of some results."""
        raise NotImplementedError

    def _show(self, *, final: bool) -> str:
        """Show the values read so far; return what they are."""
        raise NotImplementedError

    def _name(self, prefix: str = "") -> str:
        """Return the name of the results, the user's or a default, with their unit."""
        name = "|result|" if self._dtype.kind == "c" else "result"
        unit = "s" if self._dtype.kind == "m" else ""
        return named(self._plot.label or prefix + name, self._plot.unit or unit)

    def _read(self, partial: Any, items: NDArray[np.intp]) -> NDArray[Any]:
        """Return some results as one array of numbers or dates."""
        is_array, value = isinstance(partial, np.ndarray), self._plot.value
        data = np.ma.getdata(partial) if is_array else partial
        if is_array and value is None:
            part = data[items]
        else:
            results = [data[i] for i in items.tolist()]
            part = self._stacked(results if value is None else list(map(value, results)))
        if part.dtype.kind not in "biufcMm":
            raise self._refusal(f"arrays of dtype {part.dtype}")
        return part

    def _stacked(self, results: list[Any]) -> NDArray[Any]:
        first = results[0]
        if isinstance(first, dt.date):
            return np.array(results, "datetime64[us]")
        if isinstance(first, np.ma.MaskedArray):
            results = [np.ma.filled(np.ma.asarray(result, float), np.nan) for result in results]
        elif not isinstance(first, Number | np.generic | np.ndarray):
            raise self._refusal(f"of type {type(first).__name__}")
        try:
            array = np.asarray(results)
            # Numbers of several kinds, or too large for NumPy's integers.
            return array.astype(float) if array.dtype == object else array
        except (TypeError, ValueError):
            raise self._refusal("arrays of several shapes or kinds") from None

    def _refusal(self, what: str) -> CannotDrawError:
        needed = "real numbers or arrays of them, all of one shape"
        return CannotDrawError(
            f"plot={self._plot.kind!r} needs results that are {needed}; these are {what}. The run "
            "continues without this plot; LivePlot(value=...) draws a part of each result, "
            "plot=callable(ax, partial) draws anything."
        )


def as_floats(part: NDArray[Any]) -> Array:
    """Return numbers as float64: the magnitude of complex ones, matplotlib's days of dates."""
    match part.dtype.kind:
        case "c":
            part = np.abs(part)
        case "M":
            part = date2num(part)  # type: ignore[no-untyped-call]
        case "m":
            part = part / np.timedelta64(1, "s")
    return np.asarray(part, np.float64)


def named(label: str, unit: str) -> str:
    """Return the label of an axis."""
    return f"{label} ({unit})" if label and unit else label or unit


def write_dates(axis: Axis) -> None:
    """Format the numbers of an axis as dates."""
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def dress(axes: Axes) -> None:
    """Draw everything around the data in grey."""
    axes.set_facecolor("none")
    axes.tick_params(color=TICKS, labelcolor=GREY, labelsize=9)
    axes.spines[:].set_color(FRAME)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(GREY)


def span(finite: Array, percentiles: tuple[float, float] = (0, 100)) -> tuple[float, float]:
    """Return the range of all or most of the data; its ends always differ."""
    low, high = np.percentile(finite, percentiles).tolist()
    if low == high:  # nearly all values are equal: show the others
        low, high = float(finite.min()), float(finite.max())
    margin = (abs(low) / 10 or 0.5) if low == high else 0.0
    return low - margin, high + margin


def calm(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
    """Return limits around a range, in steps, so that axes and colours rarely change.

    They depend on the data alone, so the last frame keeps those of the frame before.
    """
    margin *= high - low
    ticks = MaxNLocator(20, steps=[1, 2, 5, 10]).tick_values(low - margin, high + margin)
    return float(ticks[0]), float(ticks[-1])
