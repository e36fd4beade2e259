"""The base of nbshare's painters: results as numbers, each read once, with ranges and remarks."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.axes import (
    DATES,
    GREY,
    ROBUST,
    RoomyLocator,
    calm,
    dress,
    named,
    points,
    span,
    within_years,
)
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot, NothingYetError
from nbshare._core.notebook.pointer import Cells
from nbshare._core.notebook.raster import Floats
from nbshare._core.notebook.reading import (
    DURATIONS,
    Reader,
    as_reals,
    longest_s,
    name_of,
    unit_of,
)
from nbshare._core.store.cursor import Cursor

_BLOCK_BYTES = 8 * 2**20  # results are read in blocks of this size, in float64
BUDGET_S = 0.15  # time limit for one frame. The next frame reads the rest.
MAX_EXACT = 2**53  # larger integers are rounded by float64
_MOST_DECADES, _AT_THE_END = 4, 0.02  # limits of a linear scale


class OtherKindError(Exception):
    """Results that need another layout of the plot have arrived."""


class AnyPainter:
    """Draws one of the plots of a figure."""

    n_above = 0  # characters of a legend next to the title
    n_rows = 0  # rows of panels

    @property
    def ratio(self) -> float | None:
        """Width of an image for a height of 1, or None if the plot fills any place."""
        return None

    @property
    def problem(self) -> Exception | None:
        """An error that the user's ``value=`` raised for a result, or None."""
        return None

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Update the axes.

        Return the number of results shown, and a text with ``{}`` for that number.
        """
        raise NotImplementedError

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Read all results again, and show them on a scale with these limits."""

    def say(self, remark: str) -> None:
        """Write a remark above one of several plots."""

    def show_done(self) -> None:
        """Remove the places of results that will not arrive."""

    def cells(self) -> list[Cells]:
        """Return the values that the plot shows, with their places, for the pointer on a page."""
        return []


class Painter(AnyPainter):
    """Draws one of nbshare's kinds into its axes.

    Parameters
    ----------
    axes
        Empty Axes.
    plot
        The plot to draw.
    inputs
        The items of the run.
    n
        Number of results.
    like
        The first result and its reader, from `first_of`.
    """

    limits: tuple[float, float] | None = None  # range of the values, if set from outside
    _are_combined = False  # whether several values become one

    def __init__(
        self,
        axes: Axes,
        plot: LivePlot,
        inputs: Any,
        n: int,
        like: tuple[NDArray[Any], Reader],
    ) -> None:
        self._axes, self._inputs, self._n = axes, inputs, n
        self.cursor = Cursor(n)  # results that have been read
        first, self._reader = like
        self._dtype, self._shape = first.dtype, first.shape[1:]
        self._plot = plot
        kind, given = self._dtype.kind, np.asarray(plot.limits).dtype.kind
        if isinstance(plot.limits, tuple) and kind != given and (given in "mM" or kind == "M"):
            raise refusal(plot, "not of the kind of limits=({}, {})".format(*plot.limits))
        self._n_elements = math.prod(self._shape)
        if not self._n_elements:
            raise NothingYetError(
                f"plot={plot.kind!r} has nothing to draw in results of the shape {self._shape}"
            )
        self._n_not_positive = 0
        self._is_log = plot.scale == "log" and self._dtype.kind != "M" and self.categories is None
        self._duration = unit_of(self._reader.longest_s) if self._dtype.kind == "m" else ""
        dress(axes)
        axes.xaxis.set_major_locator(RoomyLocator())
        axes.grid(visible=False)  # because the user's style may draw the grid above an image

    @property
    def problem(self) -> Exception | None:
        """The error that the user's ``value=`` raised for a result, or None."""
        return self._reader.problem

    @property
    def categories(self) -> list[str] | None:
        """The names of the values 0, 1, 2, … of bools and texts, or None if they are numbers."""
        if self._are_combined:
            return None
        return ["False", "True"] if self._dtype.kind == "b" else list(self._reader.texts) or None

    def paint(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> tuple[int, str]:
        """Update the axes.

        Return the number of results shown, and a text with ``{}`` for that number.
        """
        self.take_in(partial, present, final=final)
        return int(np.count_nonzero(self.cursor.taken)), self.show(final=final)

    def take_in(self, partial: Any, present: NDArray[np.bool_], *, final: bool) -> None:
        """Read as many new results as time allows, in the last frame all of them."""
        step = max(1, _BLOCK_BYTES // (8 * self._n_elements))
        new = np.flatnonzero(self.cursor.new(present))
        until = time.monotonic() + (math.inf if final else BUDGET_S)
        for start in range(0, len(new), step):
            items = new[start : start + step]
            part = read(self._plot, self._reader, partial, items)
            self._check_kind(part)
            rows = self._reals(part)
            with uninterrupted():  # or they might be added twice
                self._add(items, rows)
                self.cursor.take(items)
            if time.monotonic() >= until:
                break

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value so far, ``inf`` and ``-inf`` if there are none."""
        raise NotImplementedError

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Prepare to read all results again, and show them on a scale with these limits."""
        if limits and self._duration:
            low, high = (end / DURATIONS[self._duration] for end in limits)
            limits = low, high
        self.limits, self.cursor = limits, Cursor(len(self.cursor.taken))
        self._reader.n_missing = self._reader.n_padded = self._n_not_positive = 0

    def say(self, remark: str) -> None:
        """Write a remark above one of several plots."""
        self._axes.set_title(remark, loc="left", fontsize=points(9), color=GREY)

    @property
    def _kind_of_values(self) -> dict[str, Any]:
        """The attributes of `Cells` for values that are not numbers."""
        are_dates = self._dtype.kind == "M"
        return {"categories": self.categories, "are_dates": are_dates, "zone": self._reader.zone}

    def draw_key_of_all(self, axes: list[Axes]) -> None:
        """Draw the colour bar or legend for all panels of a plot."""

    def _add(self, items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        """Add the values of these results to the plot's data."""
        raise NotImplementedError

    def show(self, *, final: bool) -> str:
        """Show the values read so far, and return a remark about them."""
        raise NotImplementedError

    def _range(self, finite: Floats, low: float, high: float) -> tuple[float, float]:
        """Return the range to show: the user's, or that of most or all of the values.

        The range from `low` to `high` may be wider than the finite values that are drawn.
        """
        limits = self._plot.limits
        if isinstance(limits, tuple):
            low, high = np.asarray(self._reals(np.asarray(limits)), float).tolist()
            return low, high
        if self.categories is not None:
            return 0.0, float(max(len(self.categories) - 1, 1))
        low, high = self.limits or (low, high)
        if self._dtype.kind == "M" and low == high:
            low, high = low - 0.5, high + 0.5
        is_robust = limits is not None and self.limits is None
        return span(finite if is_robust else np.array([low, high]), is_robust)

    def _ends(self, low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
        """Return the ends of the scale for a range: the user's exactly, otherwise rounded."""
        if isinstance(self._plot.limits, tuple):
            return low, high
        if self._is_log:
            low, high = calm(math.log10(low), math.log10(high), margin)
            return 10.0**low, 10.0**high
        ends = calm(low, high, margin)
        return within_years(*ends) if self._dtype.kind == "M" else ends

    def _positive(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return values with NaN in place of those that a logarithmic scale cannot show."""
        if not self._is_log:
            return rows
        is_bad = rows <= 0
        self._n_not_positive += int(np.count_nonzero(is_bad))
        return np.where(is_bad, np.nan, rows) if is_bad.any() else rows

    def _remark_on_scale(self, finite: Floats, low: float, high: float) -> str:
        """Return the title's remark on values that the scale shows badly or not at all.

        A logarithmic scale is suggested if half of the values are near the lower end of a linear
        scale, and robust limits if they would show a small part of it.
        """
        if self._n_not_positive:
            return f", {self._n_not_positive:,} not positive"
        is_bounded = self._is_log or self._plot.limits is not None or self.categories is not None
        if is_bounded or self._dtype.kind == "M" or not low < high:
            return ""
        some = finite[:: 1 + finite.size // 1000]
        decades = math.log10(high) - math.log10(low) if low > 0 else 0
        if decades >= _MOST_DECADES and np.median(some) <= _AT_THE_END * high:
            return f", values span {decades:.0f} decades (see scale='log')"
        below, above = np.percentile(some, ROBUST).tolist()
        if 0 < above - below < _AT_THE_END * (high - low) < math.inf:
            return ", outliers hide most values (see limits='robust')"
        return ""

    def _name(self, prefix: str = "") -> str:
        """Return the name of the results, the user's or a default, with the unit."""
        name = self._plot._of or self._reader.label or "result"
        name = f"|{name}|" if self._dtype.kind == "c" else name
        unit = self._reader.unit or self._duration or name_of(self._reader.zone)
        return named(self._plot.label or prefix + name, self._plot.unit or unit)

    def _reals(self, part: NDArray[Any]) -> NDArray[Any]:
        """Return values as real numbers, with durations in the unit of the axis."""
        reals = as_reals(part)
        if part.dtype.kind == "m" and self._duration:
            return np.asarray(reals / DURATIONS[self._duration])
        return reals

    def _check_kind(self, part: NDArray[Any]) -> None:
        """Raise an error if results do not fit the axes."""
        kinds = {self._dtype.kind, part.dtype.kind}
        if part.shape[1:] != self._shape:
            raise OtherKindError
        if self._dtype.kind == "m" == part.dtype.kind:
            if unit_of(self._reader.longest_s) != self._duration:
                raise OtherKindError
        elif len(kinds) > 1 and part.dtype.kind == "c" and kinds <= set("biufc"):
            raise OtherKindError
        elif len(kinds) > 1 and not kinds <= set("biufc"):
            raise refusal(self._plot, f"of several kinds, {self._dtype} and {part.dtype}")


def first_of(
    plot: LivePlot, partial: Any, present: NDArray[np.bool_], *, is_anew: bool = False
) -> tuple[NDArray[Any], Reader]:
    """Return an array of one that has the shape and dtype of results, and their reader.

    They are those of the first result that is not missing. With `is_anew`, all so far are read.
    """
    reader, there = Reader(plot.value), np.flatnonzero(present)
    first: NDArray[Any] | None = None
    start, step = 0, 1
    while start < len(there) and (is_anew or first is None or not first.size):
        items = there[start : start + step]
        start += step
        try:
            part = read(plot, reader, partial, items)
        except NothingYetError as error:
            nothing = error
            continue
        dtype = part.dtype if first is None or part.dtype.kind == "c" else first.dtype
        first = np.zeros((1, *part.shape[1:]), dtype)
        step = max(1, _BLOCK_BYTES // (8 * max(first.size, 1)))
    if first is None:
        raise nothing
    reader.n_missing = reader.n_padded = 0
    return first, reader


def read(plot: LivePlot, reader: Reader, partial: Any, items: NDArray[np.intp]) -> NDArray[Any]:
    """Read some results as one array of numbers or dates."""
    is_array = isinstance(partial, np.ndarray)
    data = np.ma.getdata(partial) if is_array else partial
    if is_array and plot.value is None and data.dtype.kind in "biufcMm":
        part = np.asarray(data[items])
    else:
        try:
            part = reader.read([data[i] for i in items.tolist()])
        except (TypeError, ValueError, OverflowError) as error:
            if reader.problem is error:
                raise
            is_huge = isinstance(error, OverflowError)
            raise refusal(plot, "too large for float64" if is_huge else str(error)) from None
    if part.dtype.kind == "V" and np.can_cast(part.dtype, np.float64):
        part = part.astype(np.float64)  # a dtype of ml_dtypes, such as bfloat16
    if part.dtype.kind not in "biufcMm":
        raise refusal(plot, f"arrays of dtype {part.dtype}")
    if part.dtype.kind == "M":
        days = part.astype("M8[D]")  # nanoseconds cannot represent these years
        if ((days < DATES[0]) | (days >= DATES[1])).any():
            raise refusal(plot, "dates outside of the years 1 to 9999")
    reader.longest_s = max(reader.longest_s, longest_s(part))
    return part


def refusal(plot: LivePlot, what: str) -> CannotDrawError:
    """Return the error for results that a plot cannot draw."""
    needed = "numbers or arrays of them, all with as many axes"
    return CannotDrawError(
        f"plot={plot.kind!r} needs results that are {needed}. These are {what}. The run "
        "continues without this plot. LivePlot(value=...) draws a part of each result, "
        "plot=callable(ax, partial) draws anything."
    )


def sampled(rows: NDArray[Any], n: int, seed: int = 0) -> NDArray[Any]:
    """Return n values of each row: a random one from each of n equal parts.

    Values at a fixed distance would all be alike in data with that period.
    """
    if rows.shape[1] <= n:
        return rows
    random = np.random.default_rng(seed).random((len(rows), n))
    places = ((np.arange(n) + random) * (rows.shape[1] / n)).astype(np.intp)
    return np.take_along_axis(rows, np.minimum(places, rows.shape[1] - 1), axis=1)


def remark_on(n_odd: int, n_outside: int, n_missing: int = 0) -> str:
    """Return the title's remark on values that are missing, not finite or outside the range."""
    remark = f", {n_missing:,} missing" if n_missing else ""
    remark += f", {n_odd:,} not finite" if n_odd else ""
    return remark + (f", {n_outside:,} outside" if n_outside else "")
