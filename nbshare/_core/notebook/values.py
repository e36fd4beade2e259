"""The common part of nbshare's plots: results as numbers, each read once, limits, labels."""

from __future__ import annotations

import datetime as dt
import math
import time
from numbers import Number
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot

_BLOCK_BYTES = 8 * 2**20  # results are read in blocks of this size, in float64
BUDGET_S = 0.15  # of one refresh, before the next one reads the rest
_ROBUST = (2, 98)  # percentiles of limits="robust"
MAX_EXACT = 2**53  # larger integers are rounded by float64
_ROOM, _MOST = 90, 10  # characters below a plot, and ticks of an axis
_LARGEST = 1e300  # beyond, the arithmetic of axes overflows

# Lighter than the data, and readable on white as well as on the background of a dark theme.
GREY, TICKS, FRAME = "#777777", "#999999", "#BBBBBB"

Floats = NDArray[np.float64]


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
        The results so far, an array or a list with gaps, and a flag for each that has arrived.
    """

    limits: tuple[float, float] | None = None  # of the values, if not from these results

    def __init__(
        self, axes: Axes, plot: LivePlot, inputs: Any, partial: Any, present: NDArray[np.bool_]
    ) -> None:
        self._axes, self._plot, self._inputs = axes, plot, inputs
        self._n = len(present)
        self._taken = np.zeros(self._n, bool)  # which results have been read
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
        until = time.monotonic() + (math.inf if final else BUDGET_S)
        for start in range(0, len(new), step):
            items = new[start : start + step]
            part = self._read(partial, items)
            if part.shape[1:] != self._shape:
                raise self._refusal("arrays of several shapes")
            kinds = {self._dtype.kind, part.dtype.kind}
            if len(kinds) > 1 and not kinds <= set("biuf"):
                raise self._refusal(f"of several kinds, {self._dtype} and {part.dtype}")
            rows = as_reals(part)
            with uninterrupted():  # or they might be added twice
                self._add(items, rows)
                self._taken[items] = True
            if time.monotonic() >= until:
                break
        return int(np.count_nonzero(self._taken)), self._show(final=final)

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Read all results again, and show them on a scale with these limits."""
        self.limits, self._taken[:] = limits, False

    def say(self, remark: str) -> None:
        """Write a remark above one of several plots."""
        self._axes.set_title(remark, loc="left", fontsize=9, color=GREY)

    def show_done(self) -> None:
        """Leave out the places of results that will not come."""

    def _add(self, items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        """Read the values of some results."""
        raise NotImplementedError

    def _show(self, *, final: bool) -> str:
        """Show the values read so far. Return what they are."""
        raise NotImplementedError

    def _range(self, finite: Floats, low: float, high: float) -> tuple[float, float]:
        """Return the range to show, the user's, or of most or all of the data.

        Those may be more than the finite values that are drawn.
        """
        limits = self._plot.limits
        if isinstance(limits, tuple):
            low, high = as_floats(np.asarray(limits)).tolist()
            return low, high
        is_robust = limits is not None
        return self.limits or span(finite if is_robust else np.array([low, high]), is_robust)

    def _ends(self, low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
        """Return the ends of the scale for a range, exactly the user's, or round ones."""
        return (low, high) if isinstance(self._plot.limits, tuple) else calm(low, high, margin)

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
        if not (is_number(first) or hasattr(first, "__array__") or is_row(first)):
            raise self._refusal(f"of type {type(first).__name__}")
        try:
            array = np.asarray(list(map(unmasked, results)))
            if array.dtype != object:
                return array
            return array.astype(float)  # of several kinds, or too large for NumPy's integers
        except (TypeError, ValueError):
            raise self._refusal("arrays of several shapes or kinds") from None

    def _refusal(self, what: str) -> CannotDrawError:
        needed = "real numbers or arrays of them, all of one shape"
        return CannotDrawError(
            f"plot={self._plot.kind!r} needs results that are {needed}. These are {what}. The run "
            "continues without this plot. LivePlot(value=...) draws a part of each result, "
            "plot=callable(ax, partial) draws anything."
        )


def is_number(result: Any) -> bool:
    """Whether a result is a single number."""
    return isinstance(result, Number | np.generic)


def is_row(result: Any) -> bool:
    """Whether a result is a tuple or list of numbers, such as ``(mean, std)``."""
    return isinstance(result, tuple | list) and all(map(is_number, result))


def as_floats(part: NDArray[Any]) -> Floats:
    """Return numbers as float64, with the magnitude of complex ones, matplotlib's days of dates."""
    return np.asarray(as_reals(part), np.float64)


def as_reals(part: NDArray[Any]) -> NDArray[Any]:
    """Return real numbers, with the magnitude of complex ones, matplotlib's days of dates."""
    match part.dtype.kind:
        case "c":
            part = np.abs(part)
        case "M":
            part = date2num(part)  # type: ignore[no-untyped-call]
        case "m":
            part = part / np.timedelta64(1, "s")
    return part


def sampled(rows: NDArray[Any], n: int, seed: int = 0) -> NDArray[Any]:
    """Return n values of each row, one from each of n equal parts, at random.

    Values at a fixed distance would all be alike, or all be missed, in data of the same period.
    """
    if rows.shape[1] <= n:
        return rows
    random = np.random.default_rng(seed).random((len(rows), n))
    places = ((np.arange(n) + random) * (rows.shape[1] / n)).astype(np.intp)
    return np.take_along_axis(rows, np.minimum(places, rows.shape[1] - 1), axis=1)


def named(label: str, unit: str) -> str:
    """Return the label of an axis."""
    return f"{label} ({unit})" if label and unit else label or unit


def write_names(axis: Axis, names: list[str]) -> None:
    """Write names at the places 0, 1, 2, … of an axis."""

    def name_at(place: float, _: object) -> str:
        k = round(place)
        return names[k] if k == place and 0 <= k < len(names) else ""

    # Next to each other, long ones are written less often.
    fits = _ROOM // (2 + max(map(len, names))) if isinstance(axis, XAxis) else _MOST
    axis.set_major_locator(whole_places(min(max(1, fits), _MOST)))
    axis.set_major_formatter(FuncFormatter(name_at))


def whole_places(most: int = _MOST) -> MaxNLocator:
    """Return what places ticks at whole numbers only."""
    return MaxNLocator(most, integer=True, steps=[1, 2, 5, 10])


def write_whole(axis: Axis) -> None:
    """Write whole numbers only."""
    axis.set_major_locator(whole_places())


def write_dates(axis: Axis) -> None:
    """Format the numbers of an axis as dates."""
    locator: Any = AutoDateLocator()  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]


def remark_on(n_odd: int, n_outside: int) -> str:
    """Return what a title says of the values that are not where they should be."""
    remark = f", {n_odd} not finite" if n_odd else ""
    return remark + (f", {n_outside} outside" if n_outside else "")


def dress(axes: Axes) -> None:
    """Draw everything around the data in grey."""
    axes.set_facecolor("none")
    axes.tick_params(color=TICKS, labelcolor=GREY, labelsize=9)
    axes.spines[:].set_color(FRAME)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set_color(GREY)


def unmasked(result: Any) -> Any:
    """Return a masked array's values, with NaN (NaT in dates) where it is masked.

    Anything else is unchanged.
    """
    if not is_masked(result):
        return result
    if not result.mask.any():
        return result.data
    masked: Any = result
    if masked.dtype.kind in "mM":
        return masked.filled(np.array("NaT", masked.dtype))
    return masked.astype(np.result_type(masked.dtype, np.float64)).filled(np.nan)


def span(finite: Floats, is_robust: bool = False) -> tuple[float, float]:
    """Return the range of all or most of the data, whose ends always differ."""
    finite = np.clip(finite, -_LARGEST, _LARGEST)
    low, high = np.percentile(finite, _ROBUST if is_robust else (0, 100)).tolist()
    if low == high:  # nearly all values are equal, so show the others
        low, high = float(finite.min()), float(finite.max())
    margin = (abs(low) / 10 or 0.5) if low == high else 0.0
    return low - margin, high + margin


def calm(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
    """Return limits around a range, in steps, so that axes and colours rarely change.

    They depend on the data alone, so the last frame keeps those of the frame before.
    """
    margin *= high - low
    ticks = MaxNLocator(20, steps=[1, 2, 5, 10]).tick_values(low - margin, high + margin)
    return min(float(ticks[0]), low), max(float(ticks[-1]), high)  # ticks are rounded
