"""Draws ``plot="line"``, results against the items, and ``plot="hist"``, a histogram."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from numpy.typing import NDArray

from nbshare._core.notebook.axes import (
    GREY,
    calm,
    colour_bar,
    in_lines,
    named,
    points,
    room_of,
    within_years,
    write_dates,
    write_label,
    write_names,
    write_whole,
)
from nbshare._core.notebook.coordinates import (
    Coordinates,
    index,
    of_array,
    of_axis,
    of_items,
)
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot
from nbshare._core.notebook.pointer import Along, Cells
from nbshare._core.notebook.raster import COMBINED, Floats, extremes
from nbshare._core.notebook.reading import is_missing, is_number, names_of, parts_of
from nbshare._core.notebook.values import MAX_EXACT, Painter, read, refusal, remark_on, sampled
from nbshare._core.store.cursor import Cursor

# The colours of Okabe and Ito, which colour-blind people can tell apart. Light ones are darkened,
# so that all have a contrast of 3 on white and on black. Each line has its own marker.
_COLOURS = "#0072B2", "#C07F00", "#009E73", "#D55E00", "#2E93CF", "#C66FA0", "#968A00", "#888888"
_MARKERS = "osD^vPX*"
_EDGES = "#003B5C"  # edges of bars, darker than the bars, because the page may be white or black

# From blue to brown, for ordered values, with the same contrast.
_HUES = LinearSegmentedColormap.from_list(
    "hues", ["#0072B2", "#7A68C8", "#B85AA0", "#D05A5A", "#C06A00"]
)
_KEY: dict[str, Any] = {"frameon": False, "labelcolor": GREY, "handlelength": 1}
_KEY |= {"handletextpad": 0.5, "columnspacing": 1, "alignment": "left"}
_MAX_KEY = 10  # most lines with a legend. More lines have a colour bar
_SHARE_ABOVE = 0.5  # share of the width for a legend next to the title
MAX_LINES = 8  # lines. More are drawn as their mean, because they could not be told apart
_MAX_MARKERS = 100  # points of a line. On longer lines, only single points have a marker
_MAX_POINTS = 2000  # more than the plot has columns of pixels

# NaN and infinities, which no line can show: a test, a marker, and the edge of the axes for the
# marker.
_ODD: Any = (np.isnan, "x", 0), (np.isposinf, "^", 1), (np.isneginf, "v", 0)

_MAX_VALUES = 2**20  # most values in a histogram. Of more, a sample is counted
_MAX_BINS = 100
_MOST_EDGED = 60  # most bars with edges, because more would be too narrow
_MAX_WHOLE = 60  # integers in a smaller range get one bar each


class LinePainter(Painter):
    """Draws results as lines, against the items if these are numbers or dates."""

    _hue: tuple[str, NDArray[Any]] | None = None  # an axis of a grid, a line for each value
    _key: tuple[list[str], str] | None = None  # names of the lines, and the title of them

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        axes, plot = self._axes, self._plot
        names = [*self._reader.names]
        width = n_lines(self._shape, names)
        self._are_combined = self._n_elements > width
        if self._are_combined and self._reader.texts:
            raise refusal(plot, f"arrays of more than {MAX_LINES} texts")
        self._place(self._choose_places(width))
        self._n_left_out = 0
        self._numbers = np.full((self._n, width), np.nan)
        axes.grid(color="#999999", alpha=0.2)
        size = 3 if len(self._x) > _MAX_MARKERS // 2 else 4
        self._lines = [
            axes.plot([], [], marker=marker, ms=size, lw=1.5, color=colour, zorder=3)[0]
            for colour, marker in self._looks(width)
        ]
        look: dict[str, Any] = {"color": GREY, "s": 20, "clip_on": False, "zorder": 4}
        look["transform"] = axes.get_xaxis_transform()
        self._odd = [axes.scatter([], [], marker=marker, **look) for _, marker, _ in _ODD]
        if self._hue is not None:
            self._key = names_of(self._hue[1]), self._hue[0]
        elif width > 1:
            whole = plot._of or "result"
            word = whole if width < 4 else ""  # more names have no room next to the title
            title, named_by_axis = self._named_by_axis(width)
            names = names or named_by_axis
            names = names or [f"{whole}[0]", *(f"{word}[{k}]" for k in range(1, width))]
            self._key = names, title
        if plot._is_keyed and self._key:
            self._draw_key(*self._key)
        if plot.threshold is not None:
            self._draw_threshold(plot.threshold)
        name = self._name(f"{plot.reduction} of each " if self._are_combined else "")
        write_label(axes.yaxis, name)
        unit = plot.unit or self._reader.unit or self._duration
        self._names = [named(each, unit) for each in names] if len(names) == width else [name]
        if self._is_log:
            axes.set_yscale("log")
        elif self._dtype.kind == "M":
            write_dates(axes.yaxis, self._reader.zone)
        elif self._dtype.kind in "iu" and not self._are_combined:
            write_whole(axes.yaxis)

    def _draw_threshold(self, threshold: float) -> None:
        """Draw a dashed line at a value, and write the value at its left end."""
        if self.categories is not None or self._dtype.kind in "mM":
            raise refusal(self._plot, f"not numbers, as threshold={threshold!r} is")
        axes = self._axes
        axes.axhline(threshold, color=GREY, linestyle="--", linewidth=1)
        place: dict[str, Any] = {"xy": (0, threshold), "xycoords": axes.get_yaxis_transform()}
        place |= {"xytext": (3, 2), "textcoords": "offset points"}
        axes.annotate(f"{threshold:.6g}", color=GREY, fontsize=points(9), **place)

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value so far, ``inf`` and ``-inf`` if there are none."""
        return extremes(self._numbers)[:2]

    def _named_by_axis(self, width: int) -> tuple[str, list[str]]:
        """Return name and values, as texts, of the only axis of a result, if it has one."""
        axes = self._reader.axes or self._plot._axes
        if len(axes) != 1 or axes[0].values is None or len(axes[0].values) != width:
            return "", []
        return axes[0].name, names_of(axes[0].values)

    def _looks(self, width: int) -> list[tuple[Any, str]]:
        """Return colour and marker of each line."""
        values = np.arange(width) if self._hue is None else self._hue[1]
        are_ordered = self._hue is not None and values.dtype.kind in "iufM"
        if len(values) <= MAX_LINES and not are_ordered:
            return list(zip(_COLOURS, _MARKERS, strict=True))[: len(values)]
        markers = itertools.cycle(_MARKERS if len(values) <= _MAX_KEY else "o")
        return list(zip(_HUES(np.linspace(0, 1, len(values))), markers, strict=False))

    def draw_key_of_all(self, axes: list[Axes]) -> None:
        """Draw the legend or colour bar for all panels of a plot."""
        if self._key is None:
            return
        names, title = self._key
        if len(names) > _MAX_KEY:
            self._draw_bar(axes)
        else:
            place = {"loc": "outside right upper", "title": title}
            self._draw_legend(axes[0].figure, [*map(in_lines, names)], **place)

    def _draw_key(self, names: list[str], title: str) -> None:
        """Draw a legend, above the axes if there is room, otherwise next to them."""
        if len(names) > _MAX_KEY:
            self._draw_bar(self._axes)
            return
        place: dict[str, Any] = {"bbox_to_anchor": (1, 1), "borderaxespad": 0.2}
        n_above = sum(map(len, names)) + 3 * len(names)
        if n_above > _SHARE_ABOVE * room_of(self._axes.xaxis) or title:
            place |= {"loc": "upper left", "title": title}
            names = [*map(in_lines, names)]
        else:
            self.n_above = n_above
            place |= {"loc": "lower right", "ncols": len(names)}
        self._draw_legend(self._axes, names, **place)

    def _draw_legend(self, beside: Any, names: list[str], **place: Any) -> None:
        letters = {"fontsize": points(9), "title_fontsize": points(9)}
        key = beside.legend(self._lines, names, **_KEY, **letters, **place)
        key.get_title().set_color(GREY)

    def _draw_bar(self, axes: Any) -> None:
        assert self._key is not None
        names, title = self._key
        bar = colour_bar(axes, ScalarMappable(Normalize(0, len(names) - 1), _HUES), title)
        write_names(bar.ax.yaxis, names)

    @property
    def _table(self) -> tuple[NDArray[np.bool_], Floats]:
        """Flags and values, with a row for each x value and a column for each line."""
        width = 1 if self._hue is None else len(self._hue[1])
        there = self.cursor.taken.reshape(-1, width)[self._order]
        return there, self._numbers.reshape(len(there), -1)[self._order]

    def _choose_places(self, width: int) -> Coordinates:
        """Return the x values of the items: the user's, a grid's, or those of the items."""
        plot, coords = self._plot, [*self._plot._coords.items()]
        if plot.x is not None:
            if len(plot.x) != self._n:
                raise CannotDrawError(
                    f"LivePlot(x=...) has {len(plot.x)} values, but there are {self._n} items. "
                    "Pass one value per item. The run continues without this plot."
                )
            return of_array(plot.x, "input")
        if 0 < len(coords) <= (2 if width == 1 else 1):
            self._hue = coords[1] if len(coords) == 2 else None
            return of_axis(*coords[0])
        return of_items(self._inputs, self._n) or index(self._n, "item")

    def _place(self, places: Coordinates) -> None:
        """Prepare the x axis for places."""
        plot, self._places = self._plot, places
        write_label(self._axes.xaxis, places.title(plot.xlabel, plot.xunit))
        places.scale(self._axes.xaxis)
        places.write(self._axes.xaxis)
        order: Any = np.argsort(places.values, kind="stable")
        is_sorted = bool((order[:-1] < order[1:]).all())
        self._order = slice(None) if is_sorted else order  # a slice copies nothing
        self._x = places.values[self._order]
        self._show_x(self._x)

    def _show_x(self, x: Floats) -> None:
        x = self._places.scaled(x)
        finite = x[np.isfinite(x)]
        low, high = (finite.min(), finite.max()) if finite.size else (0.0, 0.0)
        margin = 0.02 * (high - low) or 0.5
        low, high = low - margin, high + margin
        if self._places.kind == "M":
            low, high = within_years(low, high)
        self._axes.set_xlim(self._places.unscaled(np.array([low, high])))

    def show_done(self) -> None:
        """Limit the x axis to the results, because no more will arrive."""
        self._show_x(self._x[self._table[0].any(axis=1)])

    def _add(self, items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        width = self._numbers.shape[1]
        rows = rows.reshape(len(rows), width, -1)
        numbers = self._reduced(rows) if self._are_combined else rows[..., 0]
        self._numbers[items] = self._positive(numbers)

    def _reduced(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return one number for each line of each row, without NaN."""
        how = self._plot.reduction
        is_nan, n = np.isnan(rows), rows.shape[2]
        if how == "last":
            lasts = n - 1 - np.argmin(is_nan[..., ::-1], axis=2, keepdims=True)
            return np.take_along_axis(rows, lasts, axis=2)[..., 0]
        n_nan = is_nan.sum(axis=2)
        self._n_left_out += int(n_nan[n_nan < n].sum())
        ufunc, neutral = COMBINED[how]
        rows = np.where(is_nan, neutral, rows)
        reduced = ufunc.reduce(rows, axis=2, dtype=float)
        if how == "mean":
            reduced /= np.maximum(n - n_nan, 1)
        return np.where(n_nan < n, reduced, np.nan)

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Prepare to read all results again, and show them on a scale with these limits."""
        super().begin_anew(limits)
        self._n_left_out = 0

    def show(self, *, final: bool) -> str:  # noqa: ARG002
        """Show the values read so far. Return a remark about them."""
        there, numbers = self._table
        is_finite = np.isfinite(numbers)
        finite = numbers[is_finite]
        for line, column in zip(self._lines, np.where(is_finite, numbers, np.nan).T, strict=True):
            x, y = thinned(self._x, column)
            line.set_data(x, y)
            marked = np.isfinite(y) if len(self._x) <= _MAX_MARKERS else is_single(y)
            line.set_markevery(np.flatnonzero(marked).tolist())
        n_odd = int(np.count_nonzero(there & ~is_finite))
        n_gaps = 0 if self._are_combined else self._reader.n_missing + self._reader.n_padded
        n_missing = min(n_odd - self._n_not_positive, n_gaps)
        for marks, (is_odd, _, edge) in zip(self._odd, _ODD, strict=True):
            are_marked = (there & is_odd(numbers)).any(axis=1) if n_odd > n_missing else slice(0)
            odd = self._places.scaled(self._x[are_marked])
            places = self._places.unscaled(apart(odd))
            marks.set_offsets(np.stack([places, np.full(len(places), edge)], axis=1))
        n_outside = 0
        if (categories := self.categories) is not None:
            write_names(self._axes.yaxis, categories)
        if finite.size or self.limits or self._is_log:
            ends = (finite.min(), finite.max()) if finite.size else (1.0, 10.0)
            ends = self._range(finite, *ends)
            if (threshold := self._plot.threshold) is not None:
                ends = min(ends[0], threshold), max(ends[1], threshold)
            low, high = self._ends(*ends, margin=0.03)
            self._axes.set_ylim(low, high)
            is_inside = (low <= numbers) & (numbers <= high) & np.isfinite(self._x)[:, np.newaxis]
            n_outside = int(np.count_nonzero(is_finite & ~is_inside))
        n_odd -= self._n_not_positive
        n_left_out = max(0, self._n_left_out - self._reader.n_padded)
        left_out = f", {n_left_out:,} NaN left out" if n_left_out else ""
        remark = left_out + self._remark_on_scale(finite, *self.ends)
        return "{}" + remark_on(n_odd - n_missing, n_outside, n_missing) + remark

    def cells(self) -> list[Cells]:
        """Return the points of all lines, for the pointer on a page."""
        has_place = np.isfinite(self._x)
        there, numbers = self._table
        there, numbers = there[has_place], numbers[has_place]
        is_there = np.broadcast_to(there, numbers.shape)
        x, values = self._x[has_place], numbers.T
        along = Along(x, x, x, names=self._places.names)
        if len(x) > 2 * _MAX_POINTS:  # the lowest and the highest of several points
            width = math.ceil(len(x) / _MAX_POINTS)
            firsts = np.arange(0, len(x), width)
            lasts = np.append(firsts[1:], len(x)) - 1
            middles = np.mean(self._places.scaled(np.stack([x[firsts], x[lasts]])), axis=0)
            edges = self._places.unscaled(middles)
            along = replace(along, edges=edges, firsts=x[firsts], lasts=x[lasts])
            ends = [ufunc.reduceat(values, firsts, axis=1) for ufunc in (np.fmin, np.fmax)]
            values = np.stack(ends, axis=2)
            is_there = np.logical_or.reduceat(is_there, firsts)
        names, rows = self._names, []
        if self._hue is not None:
            hue, of = self._hue
            rows = [f"{hue} = {value}" for value in names_of(of)]
        table = Cells(self._axes, along, None, values, names, rows, is_there.T)
        return [replace(table, joined_by=" to ", **self._kind_of_values)]


class TrendPainter(LinePainter):
    """Draws the result of ``reduce=`` against the number of items in it."""

    def follow(self, results: list[tuple[int, Any]], n_items: int | None) -> None:
        """Draw the results after some numbers of items, of `n_items` if known."""
        n, values = zip(*results, strict=True)
        part = read(self._plot, self._reader, list(values), np.arange(len(values)))
        self._check_kind(part)
        self._place(Coordinates(np.asarray(n, float), "items", kind="i", is_index=True))
        write_whole(self._axes.xaxis)  # also if there is only one
        self._numbers = np.asarray(self._reals(part), float).reshape(len(n), -1)
        self.cursor = Cursor(len(n))
        self.cursor.take(slice(None))
        self._axes.set_xlim(0, 1.02 * (n_items or max(n)))
        self.show(final=False)


def is_trend(plot: LivePlot, result: Any) -> bool:
    """Whether results of ``reduce=`` are a few numbers, to draw against the number of items."""
    shown = result if plot.value is None else plot.value(result)
    if (parts := parts_of(shown)) is not None:
        return all(is_number(part) or is_missing(part) for part in parts.values())
    return 0 < len(shown) <= MAX_LINES if isinstance(shown, tuple) else np.ndim(shown) == 0


def n_lines(shape: tuple[int, ...], names: Sequence[str]) -> int:
    """Return the number of lines for results of a shape, whose parts may have names."""
    if 0 < len(names) <= MAX_LINES:
        return len(names)
    n = math.prod(shape)
    return n if len(shape) < 2 and n <= MAX_LINES else 1


def is_single(y: Floats) -> NDArray[np.bool_]:
    """Return flags of points that have no neighbour to draw a line to."""
    there = np.pad(np.isfinite(y), 1)
    single: NDArray[np.bool_] = there[1:-1] & ~there[:-2] & ~there[2:]
    return single


def apart(x: Floats) -> Floats:
    """Return some of many places, such that a plot can show them next to each other."""
    x = x[np.isfinite(x)]
    width = np.ptp(x) / _MAX_POINTS if x.size else 0
    return x[np.unique(np.round(x / width), return_index=True)[1]] if width else x[:1]


def thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return the highest and lowest of many points, which look the same as all of them."""
    if len(x) <= 2 * _MAX_POINTS:
        return x, y
    width = math.ceil(len(x) / _MAX_POINTS)
    rows = np.pad(y, (0, -len(y) % width), constant_values=np.nan).reshape(-1, width)
    is_gap = np.isnan(rows)
    lowest = np.where(is_gap, np.inf, rows).argmin(axis=1)
    highest = np.where(is_gap, -np.inf, rows).argmax(axis=1)
    ends = np.sort([lowest, highest], axis=0) + np.arange(0, rows.size, width)
    kept = ends.T.ravel()
    return x[kept], y[kept]


class HistPainter(Painter):
    """Draws a histogram of the values so far."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        axes, n_elements = self._axes, self._n_elements
        self._n_each = min(n_elements, max(1, _MAX_VALUES // self._n))
        self._numbers = np.empty((self._n, self._n_each))
        self._low, self._high = math.inf, -math.inf  # range of all finite values
        self._n_odd = 0
        what = "values" if self._shape else "results"
        is_sample = self._n_each < n_elements
        of = f", 1 in {n_elements / self._n_each:.3g} at random" if is_sample else ""
        write_label(axes.xaxis, self._name())
        write_label(axes.yaxis, f"number of {what}{of}")
        write_whole(axes.yaxis)
        axes.set_ylim(0, 1)
        if self._is_log:
            axes.set_xscale("log")
        elif self._dtype.kind == "M":
            write_dates(axes.xaxis, self._reader.zone)
        elif self._dtype.kind in "iu":
            write_whole(axes.xaxis)
        self._bars = axes.stairs([0], [0, 1], fill=True, color=_COLOURS[0])
        self._counted: Any = None
        self._edges_between = axes.vlines([], 0, [], color=_EDGES, linewidth=0.8)

    def _add(self, items: NDArray[np.intp], rows: NDArray[Any]) -> None:
        rows = self._positive(rows.reshape(len(rows), -1))
        low, high, _ = extremes(rows)
        self._low, self._high = min(self._low, low), max(self._high, high)
        self._n_odd += int(np.count_nonzero(~np.isfinite(rows)))
        self._numbers[items] = sampled(rows, self._n_each, seed=int(items[0]))

    def begin_anew(self, limits: tuple[float, float] | None) -> None:
        """Prepare to read all results again, and show them on a scale with these limits."""
        super().begin_anew(limits)
        self._low, self._high, self._n_odd = math.inf, -math.inf, 0

    @property
    def ends(self) -> tuple[float, float]:
        """The smallest and the largest value so far, ``inf`` and ``-inf`` if there are none."""
        return self._low, self._high

    def show(self, *, final: bool) -> str:  # noqa: ARG002
        """Show the values read so far. Return a remark about them."""
        self._counted = None
        if (categories := self.categories) is not None:
            write_names(self._axes.xaxis, categories)
        numbers = self._numbers[self.cursor.taken].ravel()
        finite = inside = numbers[np.isfinite(numbers)]
        if finite.size:
            low, high = self._range(finite, self._low, self._high)
            inside = finite[(low <= finite) & (finite <= high)]
            counts, edges = np.histogram(inside, self._edges(inside, low, high))
            self._bars.set_data(counts, edges)
            self._counted = counts, edges
            higher = np.maximum(counts[1:], counts[:-1])
            lines = [[(x, 0), (x, y)] for x, y in zip(edges[1:-1], higher, strict=True)]
            self._edges_between.set_segments(lines if len(counts) <= _MOST_EDGED else [])
            half = self._half_of(edges)
            ends = self._ends(*(self.limits or (edges[0] + half, edges[-1] - half)))
            low, high = min(ends[0], edges[0]), max(ends[1], edges[-1])
            self._axes.set_xlim(within_years(low, high) if self._dtype.kind == "M" else (low, high))
            self._axes.set_ylim(0, calm(0, max(1, int(counts.max())), margin=0.03)[1])
        n_odd = self._n_odd - self._n_not_positive - self._reader.n_padded
        n_missing = min(n_odd, self._reader.n_missing)
        n_outside = finite.size - inside.size
        remark = self._remark_on_scale(finite, self._low, self._high)
        return "{}" + remark_on(n_odd - n_missing, n_outside, n_missing) + remark

    def cells(self) -> list[Cells]:
        """Return the bars, for the pointer on a page."""
        if self._counted is None:
            return []
        counts, edges = self._counted
        half = self._half_of(edges)
        along = Along(edges, edges[:-1] + half, edges[1:] - half, names=self.categories)
        return [Cells(self._axes, along, None, counts[np.newaxis], [self._axes.get_ylabel()], [])]

    def _half_of(self, edges: NDArray[np.floating]) -> float:
        """Return 0.5 if bars end halfway between whole numbers or days, otherwise 0."""
        are_between = edges[0] % 1 == 0.5 and (edges[1] - edges[0]) % 1 == 0
        return 0.5 if self._dtype.kind in "biuM" and are_between else 0.0

    def _edges(self, inside: Floats, low: float, high: float) -> NDArray[np.floating]:
        if self.categories is not None:
            return np.arange(len(self.categories) + 1) - 0.5
        are_days = self._dtype.kind == "M" and bool((inside % 1 == 0).all())
        is_whole = not self._is_log and (self._dtype.kind in "biu" or are_days)
        is_whole &= max(-low, high) < MAX_EXACT
        if is_whole and not isinstance(self._plot.limits, tuple):
            low, high = max(low, self._low), min(high, self._high)
        counted = np.log10(inside) if self._is_log else inside
        n_bins = self._plot.bins or (auto_bins(counted) if inside.size else 1)
        if self._low == self._high and self._plot.bins is None:
            n_bins |= 1  # so that the only value is in the middle of a bar
        if is_whole and self._plot.bins is None:  # all bars contain the same number of integers
            first, n = math.ceil(low), max(math.floor(high) - math.ceil(low) + 1, 1)
            each = 1 if high - low < _MAX_WHOLE else -(-n // n_bins)
            return first + each * np.arange(-(-n // each) + 1) - 0.5
        return (np.geomspace if self._is_log else np.linspace)(low, high, n_bins + 1)


def auto_bins(finite: Floats) -> int:
    """Return the number of bins of NumPy's "auto", the larger of two common rules."""
    # Computed here, because with an outlier, NumPy would create billions of bins.
    by_sturges = math.log2(finite.size) + 1
    middle = np.subtract(*np.percentile(finite, (75, 25)))
    by_spread = np.ptp(finite) * finite.size ** (1 / 3) / (2 * middle) if middle else 0.0
    return math.ceil(min(max(by_sturges, by_spread), _MAX_BINS))
