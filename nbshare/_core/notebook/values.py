"""The base of nbshare's plots: results as numbers, each read once, with limits and labels."""

from __future__ import annotations

import datetime as dt
import math
import textwrap
import time
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.ticker import AutoLocator, FixedLocator, FuncFormatter, MaxNLocator
from numpy.typing import NDArray

from nbshare._core.interrupts import uninterrupted
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot, NothingYetError
from nbshare._core.notebook.pointer import Cells
from nbshare._core.notebook.raster import extremes
from nbshare._core.notebook.reading import Reader
from nbshare._core.store.cursor import Cursor

_BLOCK_BYTES = 8 * 2**20  # results are read in blocks of this size, in float64
BUDGET_S = 0.15  # time limit for one frame. The next frame reads the rest.
_ROBUST = (2, 98)  # percentiles of limits="robust"
MAX_EXACT = 2**53  # larger integers are rounded by float64
_WIDE, _TALL = 60, 40  # characters along an axis that Matplotlib's usual number of dates needs
# Characters that fit below and next to a plot of this size in pixels.
_ROOM, _WIDTH, _ROOM_BESIDE, _HEIGHT = 90, 760, 50, 440
_ABOVE_AND_BELOW = 110  # pixels of title, ticks and label, which grow with the user's letters
_MOST, _MOST_NAMES = 10, 12  # most ticks of an axis, and most names that are all written
_FEW_NAMES, _NAME = 4, 24  # names that are too few, and most characters in a line of one
_MOST_POINTS = 18  # the largest letters
_LETTER = 0.62  # width of a digit, in units of its height
_LEAST_STEP = 5.0  # characters from a name to the next if these are turned by 30°
_MOST_DECADES, _AT_THE_END = 4, 0.02  # limits of a linear scale
_ROUNDING = 100 * np.finfo(float).eps  # largest relative difference of numbers that count as equal
_LARGEST, _SMALLEST = 1e300, 1e-300  # ranges that the arithmetic of axes can represent
_DATES = np.datetime64("0001-01-01"), np.datetime64("10000-01-01")  # those of Matplotlib

# Lighter than the data, and readable on white and on the background of a dark theme.
GREY, TICKS, FRAME = "#777777", "#999999", "#BBBBBB"

Floats = NDArray[np.float64]


DURATIONS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


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
    partial, present
        The results so far, an array or a list with gaps, and flags of those that have arrived.
    like
        The first result and its reader, from `first_of`. Default: those of `partial`.
    """

    limits: tuple[float, float] | None = None  # range of the values, if set from outside
    _are_combined = False  # whether several values become one

    def __init__(
        self,
        axes: Axes,
        plot: LivePlot,
        inputs: Any,
        partial: Any,
        present: NDArray[np.bool_],
        *,
        like: tuple[NDArray[Any], Reader] | None = None,
    ) -> None:
        self._axes, self._inputs = axes, inputs
        self._n = len(present)
        self.cursor = Cursor(self._n)  # results that have been read
        first, self._reader = like or first_of(plot, partial, present)
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
        axes.xaxis.set_major_locator(_RoomyLocator())
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

    def draw_key_of_all(self, figure: Any, axes: list[Axes]) -> None:
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
        below, above = np.percentile(some, _ROBUST).tolist()
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
        if ((days < _DATES[0]) | (days >= _DATES[1])).any():
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


def longest_s(part: NDArray[Any]) -> float:
    """Return the longest of these durations in seconds, or 0 if they are not durations."""
    if part.dtype.kind != "m":
        return 0.0
    low, high, _ = extremes(as_reals(part))
    return max(-low, high, 0.0)


def unit_of(longest: float) -> str:
    """Return the unit for durations of up to so many seconds."""
    units = (unit for unit, seconds in DURATIONS.items() if longest >= seconds)
    return next(units, "ns") if longest else "s"


def name_of(zone: dt.tzinfo | None) -> str:
    """Return the name of a time zone, such as Asia/Tokyo or UTC+09:00, empty if there is none."""
    return "" if zone is None else str(zone)


def as_floats(part: NDArray[Any]) -> Floats:
    """Return values as float64: magnitudes of complex numbers, Matplotlib's days for dates."""
    return np.asarray(as_reals(part), np.float64)


def as_reals(part: NDArray[Any]) -> NDArray[Any]:
    """Return real values: magnitudes of complex numbers, days for dates, seconds for durations."""
    match part.dtype.kind:
        case "c":
            part = np.abs(part)
        case "M":
            part = date2num(part)  # type: ignore[no-untyped-call]
        case "m":
            part = part / np.timedelta64(1, "s")
    return part


def sampled(rows: NDArray[Any], n: int, seed: int = 0) -> NDArray[Any]:
    """Return n values of each row: a random one from each of n equal parts.

    Values at a fixed distance would all be alike in data with that period.
    """
    if rows.shape[1] <= n:
        return rows
    random = np.random.default_rng(seed).random((len(rows), n))
    places = ((np.arange(n) + random) * (rows.shape[1] / n)).astype(np.intp)
    return np.take_along_axis(rows, np.minimum(places, rows.shape[1] - 1), axis=1)


def within_years(low: float, high: float) -> tuple[float, float]:
    """Return a range of Matplotlib's days without those that it cannot show."""
    first, end = (float(day.astype(float)) for day in _DATES)
    return max(low, first), min(high, end - 1)


def named(label: str, unit: str) -> str:
    """Return a label with its unit in parentheses."""
    return f"{label} ({unit})" if label and unit else label or unit


def wrapped(label: str, axis: Axis) -> str:
    """Wrap a label into lines that fit along an axis."""
    room = max(1, int(room_of(axis)))
    return textwrap.fill(label, room) if len(label) > room else label


def write_label(axis: Axis, label: str) -> None:
    """Label an axis, in several lines if necessary."""
    axis.set_label_text(wrapped(label, axis), fontsize=points(10))


def room_of(axis: Axis) -> float:
    """Return the number of characters that fit along an axis of a plot or panel."""
    axes, place = axis.axes, axis.axes.get_subplotspec()
    grid, box = place.get_gridspec() if place else None, axes.figure.bbox
    wide, tall = box.width / (grid.ncols if grid else 1), box.height / (grid.nrows if grid else 1)
    if (aspect := axes.get_aspect()) != "auto":  # the axes may be smaller than their place
        slope = float(aspect) * axes.get_data_ratio()
        wide, tall = min(wide, tall / slope), min(tall, wide * slope)
    tall = max(tall - _ABOVE_AND_BELOW * (points(1) - 1), tall / 4)
    room = _ROOM * wide / _WIDTH if isinstance(axis, XAxis) else _ROOM_BESIDE * tall / _HEIGHT
    return float(room / points(1))


def write_names(axis: Axis, names: list[str]) -> None:
    """Write names at the places 0, 1, 2, … of an axis, or only some of them if they are many."""
    is_x = isinstance(axis, XAxis)
    room, n, step = room_of(axis) if is_x else math.inf, len(names), 1
    if n <= _MOST_NAMES:
        lines = int(min(room / max(n, 1) - 2, _NAME))
        is_turned = is_x and any(len(word) > lines for name in names for word in name.split())
        names = [_cut(name, 32) if is_turned else in_lines(name, max(lines, 8)) for name in names]
    else:  # every k-th
        names = [_cut(name, 32) for name in names]
        fits_in = room // (2 + max(map(len, names))) if is_x else _MOST
        if is_turned := fits_in < _FEW_NAMES:
            fits_in = room // _LEAST_STEP
        step = math.ceil(n / min(max(1, fits_in), _MOST))
    axis.set_major_locator(FixedLocator(range(0, n, step)))
    if is_turned:  # in one line each
        is_steep = room * step / n < _LEAST_STEP
        axis.axes.tick_params(axis="x", labelrotation=90 if is_steep else 30)
        for label in axis.get_ticklabels():
            label.set(ha="right", va="center" if is_steep else "top", rotation_mode="anchor")

    def name_at(place: float, _: object) -> str:
        k = round(place)
        return names[k] if k == place and 0 <= k < len(names) else ""

    axis.set_major_formatter(FuncFormatter(name_at))


def in_lines(name: str, width: int = _NAME) -> str:
    """Return a name in up to three lines of a width."""
    return "\n".join(textwrap.wrap(_cut(name, 3 * width), width))


def _cut(name: str, n: int) -> str:
    """Cut a long name in the middle, because names often differ in their last letters."""
    return name if len(name) <= n else f"{name[: n // 2]}…{name[n // 2 + 1 - n :]}"


class _RoomyLocator(AutoLocator):
    """Chooses as many ticks of an x axis as have room for their labels."""

    def __call__(self) -> Any:
        """Return the places of the ticks."""
        axis: Any = self.axis
        ticks = super().__call__()
        widest = max(map(len, axis.get_major_formatter().format_ticks(ticks)), default=1)
        letter = _LETTER * points(9) * axis.axes.figure.dpi / 72  # pixels
        most = int(axis.axes.bbox.width / (letter * (widest + 1)))
        if most >= len(ticks) - 1:
            return ticks
        self.set_params(nbins=max(most, 1))
        ticks = super().__call__()
        self.set_params(nbins="auto")
        return ticks


def write_whole(axis: Axis) -> None:
    """Place the ticks of an axis at whole numbers only."""
    axis.set_major_locator(MaxNLocator("auto", integer=True, steps=[1, 2, 5, 10]))


def write_dates(axis: Axis, zone: dt.tzinfo | None = None) -> None:
    """Format the numbers of an axis as dates in a time zone, or in UTC if there is none."""
    zone = zone or dt.UTC
    enough, each = (_WIDE, 10) if isinstance(axis, XAxis) else (_TALL, 4)
    most = max(3, int(room_of(axis) / each))
    # With more ticks at least, no interval of the locator might give so few.
    least = max(1, min((most - 1) // 2, 3))
    few = {"minticks": least, "maxticks": most} if most < enough / each else {}
    locator: Any = AutoDateLocator(tz=zone, **few)  # type: ignore[no-untyped-call]
    formatter: Any = ConciseDateFormatter(locator, tz=zone)  # type: ignore[no-untyped-call]
    axis.set_major_locator(locator)
    axis.set_major_formatter(formatter)


def remark_on(n_odd: int, n_outside: int, n_missing: int = 0) -> str:
    """Return the title's remark on values that are missing, not finite or outside the range."""
    remark = f", {n_missing:,} missing" if n_missing else ""
    remark += f", {n_odd:,} not finite" if n_odd else ""
    return remark + (f", {n_outside:,} outside" if n_outside else "")


def points(size: float) -> float:
    """Scale a font size by the user's font size, as far as a plot has room for its letters."""
    return size / 10 * min(float(mpl.rcParams["font.size"]), _MOST_POINTS)


def dress(axes: Axes) -> None:
    """Draw all that surrounds the data in grey."""
    axes.set_facecolor("none")
    look: dict[str, Any] = {"labelcolor": GREY, "labelsize": points(9), "pad": points(3.5)}
    axes.tick_params(which="both", color=TICKS, **look)
    axes.spines[:].set_color(FRAME)
    for axis in (axes.xaxis, axes.yaxis):
        axis.label.set_color(GREY)
        axis.get_offset_text().set_fontsize(points(9))


def span(finite: Floats, is_robust: bool = False) -> tuple[float, float]:
    """Return the range of all or most of the data. Its ends always differ."""
    finite = np.clip(finite, -_LARGEST, _LARGEST)
    low, high = np.percentile(finite, _ROBUST if is_robust else (0, 100)).tolist()
    if low == high:  # nearly all values are equal, so the range covers the others, too
        low, high = float(finite.min()), float(finite.max())
    largest = max(abs(low), abs(high))
    is_one = high - low <= max(_ROUNDING * largest, _SMALLEST)
    margin = (largest / 10 if largest > _SMALLEST else 0.5) if is_one else 0.0
    return low - margin, high + margin


def calm(low: float, high: float, margin: float = 0.0) -> tuple[float, float]:
    """Return rounded limits around a range, so that axes and colours rarely change.

    The limits depend only on the data, so the last frame keeps those of the frame before.
    """
    margin *= high - low
    low, high = low - margin, high + margin
    ticks = MaxNLocator(20, steps=[1, 2, 5, 10]).tick_values(low, high)
    return min(float(ticks[0]), low), max(float(ticks[-1]), high)  # ticks are rounded
