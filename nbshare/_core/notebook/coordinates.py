"""Places of items and pixels along an axis: numbers, dates, durations or names, even or uneven."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice, pairwise
from typing import Any

import numpy as np
from matplotlib.axis import Axis, XAxis
from matplotlib.ticker import NullLocator
from numpy.typing import NDArray

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.notebook.axes import named, room_of, write_dates, write_names, write_whole
from nbshare._core.notebook.live_plot import CannotDrawError
from nbshare._core.notebook.pointer import Along
from nbshare._core.notebook.raster import Floats
from nbshare._core.notebook.reading import (
    DURATIONS,
    Reader,
    ResultAxis,
    as_floats,
    described,
    is_number,
    is_place,
    name_of,
    names_of,
    names_of_items,
    unit_of,
)

_MOST_UNEVEN = 3.0  # the largest step on a log axis, in units of the smallest one
_DECADE = 10.0
_MOST_WRITTEN = 12  # most values that are shown as ticks
_MOST_UNITS = 100  # most units of a duration. For more, a larger unit is used
_LINE = 0.04  # the height of a line of text, in units of the axis


@dataclass(frozen=True)
class Coordinates:
    """The places of items or pixels on an axis.

    Attributes
    ----------
    values
        One value for each place, in the unit of the axis, or in days of Matplotlib for dates.
    label, unit, zone
        The name, unit and time zone of the values.
    names
        Names of values that are not numbers. Their places are 0, 1, 2, ...
    kind
        The kind of the dtype: M for dates, i for integers, and so on.
    is_index
        Whether the places are only indices.
    """

    values: Floats
    label: str = ""
    unit: str = ""
    zone: dt.tzinfo | None = None
    names: list[str] | None = None
    kind: str = "f"
    is_index: bool = False

    @cached_property
    def is_log(self) -> bool:
        """Whether the values span a decade or more, in steps that are more even on a log axis."""
        values = np.unique(self.values[np.isfinite(self.values)])
        if self.names or self.kind == "M" or self.is_index or len(values) < 3:
            return False
        if not 0 < values[0] * _DECADE <= values[-1] * (1 + 1e-9):
            return False
        on_log = _unevenness(np.log10(values))
        return on_log <= _MOST_UNEVEN and on_log < _unevenness(values)

    @property
    def is_sorted(self) -> bool:
        """Whether the values increase at each step, or decrease at each step."""
        steps = np.diff(self.values)
        return bool((steps > 0).all() or (steps < 0).all())

    @cached_property
    def is_even(self) -> bool:
        """Whether all steps are equal, on the scale of the axis."""
        if self.is_index or len(self.values) < 3:
            return True
        steps = np.diff(self.scaled(self.values))
        return bool(np.allclose(steps, steps[0], rtol=1e-3, atol=0))

    @property
    def ends(self) -> tuple[float, float]:
        """The start of the first pixel and the end of the last one, on the scale of the axis."""
        first, last = self.scaled(self.values[:2]), self.scaled(self.values[-2:])
        if len(first) == 1:
            return float(first[0]) - 0.5, float(first[0]) + 0.5
        return float(first[0] - np.diff(first)[0] / 2), float(last[1] + np.diff(last)[0] / 2)

    @property
    def edges(self) -> Floats:
        """The edges of pixels, halfway between the values, on the scale of the axis."""
        places = self.scaled(self.values)
        return np.concatenate([self.ends[:1], (places[1:] + places[:-1]) / 2, self.ends[1:]])

    def scaled(self, values: Any) -> Any:
        """Return values on the scale of the axis: their logarithms, or the values themselves."""
        return np.log10(values) if self.is_log else values

    def unscaled(self, places: Any) -> Any:
        """Return the values of places on the scale of the axis."""
        return 10.0**places if self.is_log else places

    def along(self, edges: Floats, firsts: Any, lasts: Any, label: str = "") -> Along:
        """Return the cells between `edges`, which are on the scale of the axis."""
        first, last = self.values[firsts], self.values[lasts]
        return Along(self.unscaled(edges), first, last, label, self.names)

    def title(self, label: str, unit: str) -> str:
        """Return the label of the axis. That of the user has precedence."""
        return named(label or self.label, unit or self.unit or name_of(self.zone))

    def scale(self, axis: Axis) -> None:
        """Choose the scale of an axis."""
        if self.is_log:
            getattr(axis.axes, f"set_{axis.axis_name}scale")("log")  # type: ignore[attr-defined]

    def write(self, axis: Axis) -> None:
        """Choose the ticks of an axis, which has its scale.

        One or two values, and uneven ones, become the ticks if there is room for their names.
        """
        if self.is_index and len(self.values) == 1:
            axis.set_ticks([])
        elif self.names is not None:
            write_names(axis, self.names)
        elif self.kind == "M":
            write_dates(axis, self.zone)
        else:
            is_whole = self.kind in "iu"
            are_few = len(self.values) < 3 and not self.is_index
            values = self.values[np.isfinite(self.values)]
            if (are_few or not self.is_even) and len(values) <= _MOST_WRITTEN:
                names = names_of(values.astype(int) if is_whole else values)
                if self._have_room(axis, values, names):
                    axis.set_ticks(values, labels=names)
                    axis.set_minor_locator(NullLocator())
                    return
            if is_whole and not self.is_log:
                write_whole(axis)

    def _have_room(self, axis: Axis, values: Floats, names: list[str]) -> bool:
        """Whether there is room to write all values."""
        places = self.scaled(values)
        order = np.argsort(places)
        steps = np.diff(places[order]) / (np.ptp(places) or 1)
        if not isinstance(axis, XAxis):
            return bool((steps > _LINE).all())
        sizes = [len(names[k]) for k in order.tolist()]
        needed = [(one + other) / 2 + 1.5 for one, other in pairwise(sizes)]
        return bool((steps * room_of(axis) > needed).all())


def index(n: int, label: str = "", step: float = 1.0, start: float = 0.0) -> Coordinates:
    """Return the places of items or pixels that are only numbered."""
    values = start + step * np.arange(n, dtype=float)
    return Coordinates(values, label if n > 1 else "", kind="i", is_index=True)


def of_array(values: NDArray[Any], label: str = "", reader: Reader | None = None) -> Coordinates:
    """Return coordinates of numbers, dates or durations, with the unit and zone of their reader."""
    unit, kind = reader.unit if reader else "", values.dtype.kind
    floats = as_floats(values)
    if kind == "m":
        unit = _unit_of(floats)
        floats = floats / DURATIONS[unit]
    return Coordinates(floats, label, unit, reader.zone if reader else None, kind=kind)


def of_axis(name: str, values: NDArray[Any]) -> Coordinates:
    """Return coordinates of a grid's axis. Values that are not numbers are names."""
    found = _read(values, len(values))
    if isinstance(found, tuple):
        return of_array(found[0], name, found[1])
    return Coordinates(np.arange(float(len(values))), name, names=found or names_of(values))


def of_sorted_axis(name: str, values: NDArray[Any]) -> Coordinates:
    """Return coordinates of an image's axis. Values that are unsorted or not numbers are names."""
    places = of_axis(name, values)
    if places.is_sorted:
        return places
    return Coordinates(np.arange(float(len(values))), name, names=names_of(values))


def of_result(axis: ResultAxis | None, n: int, label: str = "") -> Coordinates:
    """Return coordinates of n rows or columns of a result, from its axis if it has one."""
    if axis is None or axis.values is None or len(axis.values) != n:
        return index(n, axis.name if axis else label)
    places = of_sorted_axis(axis.name or label, axis.values)
    return replace(places, unit=places.unit or axis.unit)


def of_items(items: Any, n: int) -> Coordinates | None:
    """Return coordinates of the items of a run, or None if they have neither order nor names."""
    try:
        is_kept = hasattr(items, "__getitem__") and len(items) >= n > 0  # not those of a generator
    except TypeError:
        return None
    if not is_kept or getattr(items, "ndim", 1) != 1:
        return None
    found, (name, _) = _read(items, n), described(items)
    if isinstance(found, list):
        return Coordinates(np.arange(float(n)), name or "item", names=found)
    if found is None or not (found[0] != found[0][0]).any():
        return None
    return of_array(found[0], name or found[1].label or "input", found[1])


def of_users(name: str, values: NDArray[Any], n: int, label: str) -> Coordinates:
    """Return the user's coordinates of n columns or rows of an image."""
    places = of_array(values, label)
    if len(values) == n and np.isfinite(places.values).all() and places.is_sorted:
        return places
    raise CannotDrawError(
        f"LivePlot({name}=...) for an image must have {n} ascending or descending coordinates. It "
        f"has {len(values)}, {values[0]} to {values[-1]}. The run continues without this plot."
        if len(values)
        else f"LivePlot({name}=...) is empty. The run continues without this plot."
    )


def cells_of(edges: Floats, n: int) -> NDArray[np.intp]:
    """Return the cell that is shown by each of n equal parts of an axis.

    A cell is omitted only if it is narrower than two parts, and the middles of these parts are in
    other cells.
    """
    ends = edges if edges[0] < edges[-1] else -edges
    parts = np.linspace(ends[0], ends[-1], n + 1)
    cells = np.searchsorted(ends, (parts[:-1] + parts[1:]) / 2) - 1
    middles = (ends[:-1] + ends[1:]) / 2  # the middles of cells, which may be narrower than a part
    cells[np.searchsorted(parts, middles) - 1] = np.arange(len(middles))
    return cells


def _read(items: Any, n: int) -> tuple[NDArray[Any], Reader] | list[str] | None:
    """Return the first n items as finite numbers or dates, or as names, or None."""
    is_plain = isinstance(items, np.ndarray) and not (is_masked(items) or is_place(items))
    is_array = isinstance(items, range) or (is_plain and items.dtype.kind in "iufMm")
    listed = items if is_array else list(islice(iter(items), n))
    if not is_array and (names := names_of_items(listed)) is not None:
        return names
    reader = Reader(None)
    try:
        if is_array:
            values = np.asarray(items)[:n]
        elif all(is_number(item) or is_place(item) for item in listed):
            values = reader.read(listed)
        else:
            return None
    except (TypeError, ValueError, CannotDrawError):
        return None
    fits = values.shape == (n,) and values.dtype.kind in "iufMm" and np.isfinite(values).all()
    return (values, reader) if fits else None


def _unit_of(seconds: Floats) -> str:
    """Return the largest unit in which durations are integers, if they are not too large."""
    longest = max(-seconds.min(), seconds.max())
    for unit, size in DURATIONS.items():
        if longest < _MOST_UNITS * size and np.allclose(seconds / size, np.round(seconds / size)):
            return unit
    return unit_of(longest)


def _unevenness(values: Floats) -> float:
    """Return the ratio of the largest to the smallest step between values."""
    steps = np.diff(values)
    return float(steps.max() / steps.min())
