"""Axes of nbshare's plots: their colours and letters, labels, ticks, and calm limits."""

from __future__ import annotations

import datetime as dt
import math
import textwrap
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis, XAxis
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.ticker import AutoLocator, MaxNLocator

from nbshare._core.notebook.raster import Floats

_WIDE, _TALL = 60, 40  # characters along an axis that Matplotlib's usual number of dates needs
# Characters that fit below and next to a plot of this size in pixels.
_ROOM, _WIDTH, _ROOM_BESIDE, _HEIGHT = 90, 760, 50, 440
_ABOVE_AND_BELOW = 110  # pixels of title, ticks and label, which grow with the user's letters
_MOST, _MOST_NAMES = 10, 12  # most ticks of an axis, and most names that are all written
_FEW_NAMES, _NAME = 4, 24  # names that are too few, and most characters in a line of one
_MOST_POINTS = 18  # the largest letters
_LETTER = 0.62  # width of a digit, in units of its height
_LEAST_STEP = 5.0  # characters from a name to the next if these are turned by 30°
ROBUST = (2, 98)  # percentiles of limits="robust"
_ROUNDING = 100 * np.finfo(float).eps  # largest relative difference of numbers that count as equal
_LARGEST, _SMALLEST = 1e300, 1e-300  # ranges that the arithmetic of axes can represent
DATES = np.datetime64("0001-01-01"), np.datetime64("10000-01-01")  # those of Matplotlib

# Lighter than the data, and readable on white and on the background of a dark theme.
GREY, TICKS, FRAME = "#777777", "#999999", "#BBBBBB"


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
    look: dict[str, Any] = {}
    if is_turned:  # in one line each
        is_steep = room * step / n < _LEAST_STEP
        axis.axes.tick_params(axis="x", labelrotation=90 if is_steep else 30)
        look |= {"ha": "right", "va": "center" if is_steep else "top", "rotation_mode": "anchor"}
    axis.set_ticks(range(0, n, step), labels=names[::step], **look)


def in_lines(name: str, width: int = _NAME) -> str:
    """Return a name in up to three lines of a width."""
    return "\n".join(textwrap.wrap(_cut(name, 3 * width), width))


def _cut(name: str, n: int) -> str:
    """Cut a long name in the middle, because names often differ in their last letters."""
    return name if len(name) <= n else f"{name[: n // 2]}…{name[n // 2 + 1 - n :]}"


class RoomyLocator(AutoLocator):
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


def within_years(low: float, high: float) -> tuple[float, float]:
    """Return a range of Matplotlib's days without those that it cannot show."""
    first, end = (float(day.astype(float)) for day in DATES)
    return max(low, first), min(high, end - 1)


def span(finite: Floats, is_robust: bool = False) -> tuple[float, float]:
    """Return the range of all or most of the data. Its ends always differ."""
    finite = np.clip(finite, -_LARGEST, _LARGEST)
    low, high = np.percentile(finite, ROBUST if is_robust else (0, 100)).tolist()
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


def colour_bar(axes: Axes | list[Axes], mappable: Any, label: str, **look: Any) -> Any:
    """Draw a colour bar next to axes, as high as their image, or one for several axes."""
    if isinstance(axes, list):
        place: dict[str, Any] = {"ax": axes, "fraction": 0.05, "pad": 0.02}
        figure: Any = axes[0].figure
    else:
        place, figure = {"cax": axes.inset_axes((1.03, 0, 0.035, 1))}, axes.figure
    bar = figure.colorbar(mappable, **place, **look)
    dress(bar.ax)
    bar.outline.set_visible(False)
    bar.set_label(label, fontsize=points(10))
    return bar
