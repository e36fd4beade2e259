"""Results and items as arrays of numbers or dates, with their names, units and time zones.

Objects of other packages are recognized by their attributes, so no such package is imported.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import math
from collections.abc import Callable, Mapping, Sequence
from numbers import Number
from pathlib import PurePath
from typing import Any, NamedTuple

import numpy as np
from matplotlib.dates import date2num
from numpy.typing import NDArray

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.notebook.live_plot import NothingYetError
from nbshare._core.notebook.raster import Floats, extremes

# Units of durations, in seconds.
DURATIONS = {"d": 86400.0, "h": 3600.0, "min": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}
_MAX_NAMES = 20  # most names of a Series. A longer one is data over an index.
_MAX_TEXTS = 50  # because more bars or colours could not be told apart


class ResultAxis(NamedTuple):
    """The name, unit and coordinates of an axis of a result, None for a numbered axis."""

    name: str
    unit: str
    values: NDArray[Any] | None


class Reader:
    """Reads the results of one run, which must all be of the same kind as the first.

    A result that is missing, or for which ``value=`` raises, becomes NaN.

    Parameters
    ----------
    value
        The user's function that returns the part of a result to draw, or None.

    Attributes
    ----------
    names
        Names of the parts of a result, such as the keys of a dict, empty if it has none.
    label, unit
        The name of the results, if they have one, and the unit of quantities.
    axes
        The axes of a result, empty if they have neither names nor coordinates.
    zone
        The time zone of dates.
    texts
        Results that are texts, or members of an Enum, with the number for each.
    longest_s
        The longest duration so far, in seconds.
    n_missing, n_padded
        Number of values that were missing so far, and of those that pad shorter results.
    problem
        The last error that the user's function raised, or None.
    """

    def __init__(self, value: Callable[[Any], Any] | None) -> None:
        self._value = value
        self.names: tuple[str, ...] = ()
        self.label, self.unit, self.zone = "", "", None
        self.axes: list[ResultAxis] = []
        self.texts: dict[str, int] = {}
        self._are_texts: bool | None = None
        self._units: Any = None
        self._shape: tuple[int, ...] | None = None
        self._dtype: np.dtype[Any] = np.dtype(float)
        self.longest_s = 0.0
        self.n_missing = self.n_padded = 0
        self.problem: Exception | None = None

    def read(self, results: Sequence[Any]) -> NDArray[Any]:
        """Return results as one array, shorter ones with NaN at their ends, as in pandas.

        Raises
        ------
        TypeError, ValueError
            If the values do not fit into one array.
        CannotDrawError
            If all results so far are missing.
        """
        parts = [self._part(result) for result in results]
        kept = [part for part in parts if part is not None]
        if not kept and self._shape is None:
            raise self.problem or NothingYetError(
                "There is nothing to draw because all results so far are missing."
            )
        array = np.empty((0, *(self._shape or ())), self._dtype)
        if kept:
            array, n_padded = stacked(kept, self._shape)
            self.n_padded += n_padded
        self._shape, self._dtype = array.shape[1:], array.dtype
        if len(kept) == len(parts):
            return array
        filled = _gaps((len(parts), *self._shape), array.dtype)
        filled[[k for k, part in enumerate(parts) if part is not None]] = array
        self.n_missing += (len(parts) - len(kept)) * int(np.prod(self._shape))
        return filled

    def shown(self, result: Any) -> Any:
        """Return the part of a result to draw, or None if it is missing or ``value=`` raises."""
        if self._value is not None:
            try:
                result = self._value(result)
            except Exception as error:  # noqa: BLE001  a user's function may raise anything
                self.problem = error
                return None
        return None if is_missing(result) else result

    def _part(self, result: Any) -> Any:
        shown = self.shown(result)
        if shown is None:
            return None
        if self._shape is None:
            self._describe(shown)
        if (named := parts_of(shown)) is None:
            return self._plain(shown)
        self.names += tuple(name for name in named if name not in self.names)
        return self._row(shown, [named.get(name) for name in self.names])

    def _describe(self, first: Any) -> None:
        """Record the name, unit and axes of the first result, if it has any."""
        self.axes = axes_of(first)
        self.label, unit = described(first)
        self.unit = self.unit or unit

    def _plain(self, result: Any) -> Any:
        """Return a result as numbers, dates or durations of NumPy."""
        if isinstance(result, tuple | list | range):
            return self._row(result, result)
        if getattr(getattr(result, "dtype", None), "kind", "") == "O" and np.ndim(result) == 1:
            return self._row(result, np.asarray(result).tolist())
        are_texts = _is_text(result)
        if self._are_texts not in (None, are_texts):
            raise TypeError("texts and numbers")
        self._are_texts = are_texts
        if are_texts:
            return self._numbers_of(result)
        if _is_dated(result):
            return self._time(result)
        if (bare := self._bare(result)) is not None:
            return bare
        if not (is_number(result) or hasattr(result, "__array__")):
            raise TypeError(f"of type {type(result).__name__}")
        if is_masked(result):
            self.n_missing += int(np.count_nonzero(result.mask))
        dtype = getattr(result, "dtype", None)
        if getattr(dtype, "kind", "") in "biuf" and hasattr(dtype, "na_value"):  # a dtype of pandas
            n_missing = int(np.count_nonzero(result.isna()))
            self.n_missing += n_missing
            result = result.to_numpy(float, na_value=np.nan) if n_missing else result
        result = unmasked(result)
        return np.asarray(result) if hasattr(result, "__array__") else result

    def _row(self, result: Any, parts: Sequence[Any]) -> Any:
        """Return the parts of a result as a row. An error names the type of the result."""
        try:
            return self._filled(parts)
        except TypeError:
            raise TypeError(f"of type {type(result).__name__}") from None

    def _filled(self, parts: Sequence[Any]) -> Any:
        """Return parts as a row, with NaN in place of missing parts."""
        plain = [None if is_missing(part) else self._plain(_unnamed(part)) for part in parts]
        there = [part for part in plain if part is not None]
        if not there:
            return np.full(len(plain), np.nan)
        gap = None if _kind_of(there[0]) in "mM" else np.full(np.shape(there[0]), np.nan)
        self.n_missing += (len(plain) - len(there)) * np.size(there[0])
        row, n_padded = stacked([gap if part is None else part for part in plain])
        self.n_padded += n_padded
        return row

    def _numbers_of(self, result: Any) -> Any:
        """Return the number that stands for a text, or those for an array of texts."""
        whole = np.asarray(result.name if isinstance(result, enum.Enum) else result)
        for text in map(str, whole.ravel().tolist()):
            self.texts.setdefault(text, len(self.texts))
        if len(self.texts) > _MAX_TEXTS:
            raise TypeError(f"more than {_MAX_TEXTS} different texts")
        numbers = [self.texts[text] for text in map(str, whole.ravel().tolist())]
        return np.reshape(numbers, whole.shape)

    def _time(self, time: Any) -> np.datetime64 | np.timedelta64:
        if isinstance(time, dt.time):  # a time of day
            time = dt.datetime.combine(dt.date.min, time.replace(tzinfo=None)) - dt.datetime.min
        if isinstance(time, dt.timedelta):
            return np.timedelta64(time)
        if _is_period(time):  # a period of pandas
            time = time.to_timestamp()
        zone = getattr(time, "tzinfo", None)
        if zone is not None:
            self.zone = self.zone or zone
            time = time.astimezone(dt.UTC).replace(tzinfo=None)
        return np.datetime64(time, "us")

    def _bare(self, quantity: Any) -> Any:
        """Return a quantity's numbers in the unit of the first one, None of anything else."""
        if hasattr(quantity, "to_value") and hasattr(quantity, "unit"):  # a quantity of astropy
            if self._units is None:
                self._units, self.unit = quantity.unit, str(quantity.unit)
            return quantity.to_value(self._units)
        if hasattr(quantity, "m_as") and hasattr(quantity, "units"):  # a quantity of pint
            if self._units is None:
                self._units, self.unit = quantity.units, f"{quantity.units:~}"
            return quantity.m_as(self._units)
        return None


def stacked(parts: Sequence[Any], least: tuple[int, ...] | None = None) -> tuple[NDArray[Any], int]:
    """Return parts as one array, and the number of NaN at the ends of shorter ones.

    Parameters
    ----------
    parts
        Numbers or arrays, at least one.
    least
        Shape that each part has at least. Default: any.
    """
    try:
        array = np.asarray(parts)
        if array.dtype == object:  # numbers of several kinds, or too large for NumPy's integers
            array = array.astype(complex if "c" in map(_kind_of, parts) else float)
        if least in (None, array.shape[1:]):
            return array, 0
    except ValueError:
        pass  # they have several shapes
    arrays = [np.asarray(part) for part in parts]
    shapes = [array.shape for array in arrays] + ([] if least is None else [least])
    if not shapes[0] or len({*map(len, shapes)}) > 1:
        raise ValueError("arrays of several shapes or kinds")
    padded = _gaps((len(arrays), *np.max(shapes, axis=0)), np.result_type(*arrays))
    for row, array in zip(padded, arrays, strict=True):
        row[tuple(map(slice, array.shape))] = array
    return padded, padded.size - sum(array.size for array in arrays)


def _gaps(shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array of NaN, or NaT, that can hold values of a dtype."""
    is_time = dtype.kind in "mM"
    dtype = dtype if is_time else np.result_type(dtype, np.float32)
    gap: Any = np.array("NaT" if is_time else np.nan, dtype)
    return np.full(shape, gap, dtype)


def axes_of(result: Any) -> list[ResultAxis]:
    """Return the axes of an xarray array, a Series or a table. Return [] for anything else."""
    if hasattr(result, "dims") and hasattr(result, "coords"):
        return [_axis(name, result.coords.get(name)) for name in result.dims]
    axes = result.axes if hasattr(result, "iloc") else []
    return [
        _axis(each.name, None if type(each).__name__ == "RangeIndex" else each) for each in axes
    ]


def _axis(name: Any, values: Any) -> ResultAxis:
    long_name, unit = described(values)
    name = long_name or ("" if name is None else str(name))
    return ResultAxis(name, unit, None if values is None else np.asarray(values))


def described(data: Any) -> tuple[str, str]:
    """Return the name and the unit of an object of xarray, pandas or polars, empty without."""
    attrs = getattr(data, "attrs", None)
    if not isinstance(attrs, Mapping):
        if not hasattr(data, "dtype") or isinstance(data, np.ndarray | np.generic):
            return "", ""
        attrs = {}
    names = getattr(data, "names", None) if getattr(data, "nlevels", 1) > 1 else None
    name = attrs.get("long_name") or getattr(data, "name", None)
    if names:
        name = ", ".join(str(name) for name in names if name is not None)
    is_name = isinstance(name, str | int) and not isinstance(name, bool)
    return str(name) if is_name else "", str(attrs.get("units", ""))


def is_missing(result: Any) -> bool:
    """Return whether a result stands for a missing one: None, masked, or pandas' NaT or NA."""
    is_pandas = type(result).__name__ in ("NaTType", "NAType")
    return result is None or result is np.ma.masked or is_pandas


def parts_of(result: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a result by name, or None if it has no parts or is a row."""
    if (named := named_parts(result)) is not None or type(result) is not tuple:
        if named is not None and len(named) == 1:
            ((name, only),) = named.items()
            if (inner := parts_of(only)) is not None:  # such as {"fit": {"mean": 1, "std": 2}}
                return {f"{name}.{part}": value for part, value in inner.items()}
        return named
    sorts = {_sort_of(part) for part in result} - {"missing"}
    is_row = len(sorts) < 2 and "other" not in sorts
    return None if is_row else {f"result[{k}]": part for k, part in enumerate(result)}


def _unnamed(part: Any) -> Any:
    """Return the parts of a part as a list, or the part itself if it has none."""
    parts = parts_of(part)
    return part if parts is None else [*parts.values()]


def _sort_of(part: Any) -> str:
    if is_missing(part):
        return "missing"
    if _is_text(part) and not getattr(part, "ndim", 0):
        return "text"
    if is_place(part) and not getattr(part, "ndim", 0):
        return "place"
    return "number" if is_number(part) else "other"


def named_parts(result: Any) -> Mapping[Any, Any] | None:
    """Return the parts of a result by name, or None if they have no names."""
    if isinstance(result, Mapping) or (hasattr(result, "keys") and hasattr(result, "data_vars")):
        return {str(name): part for name, part in result.items()}
    if isinstance(result, tuple) and hasattr(result, "_fields"):
        return dict(zip(result._fields, result, strict=True))
    if dataclasses.is_dataclass(result) and not isinstance(result, type):
        return {f.name: getattr(result, f.name) for f in dataclasses.fields(result)}
    if names := getattr(getattr(result, "dtype", None), "names", None):
        return {name: result[name] for name in names}
    if hasattr(result, "iloc") and result.ndim == 2:
        kinds = {dtype.kind for dtype in result.dtypes}
        are_alike = kinds <= set("biufc") or (len(kinds) == 1 and "O" not in kinds)
        columns = {str(name): result.iloc[:, k] for k, name in enumerate(result.columns)}
        return None if are_alike else columns
    if hasattr(result, "iloc"):
        index = list(result.index[: _MAX_NAMES + 1])
        if index and len(index) <= _MAX_NAMES and all(isinstance(name, str) for name in index):
            return dict(zip(index, result.tolist(), strict=True))
    return None


def is_number(result: Any) -> bool:
    """Return whether a result is a single number, also as an array without axes."""
    is_array = hasattr(result, "__array__") and getattr(result, "ndim", 1) == 0
    return is_array or isinstance(result, Number | np.generic)


def unmasked(result: Any) -> Any:
    """Return a masked array's values, with NaN (NaT for times) where it is masked.

    Anything else is returned unchanged.
    """
    if not is_masked(result):
        return result
    if not result.mask.any():
        return result.data
    masked: Any = result
    if masked.dtype.kind in "mM":
        return masked.filled(np.array("NaT", masked.dtype))
    return masked.astype(np.result_type(masked.dtype, np.float64)).filled(np.nan)


def names_of(values: NDArray[Any], digits: Sequence[int] = (3, 6, 17)) -> list[str]:
    """Return values as texts with few digits: exact if possible, otherwise distinct."""
    if values.dtype.kind == "M":
        days = values.astype("M8[D]")
        return [str(x) for x in (days if (days == values).all() else values.astype("M8[s]"))]
    if values.dtype.kind != "f":
        return [_name_of(x) or str(x) for x in values.tolist()]
    written = {n: [_short(x, n) for x in values.tolist()] for n in digits}
    exact = (
        n
        for n in digits[:-1]
        if np.allclose(np.array(written[n], float), values, rtol=1e-9, atol=0, equal_nan=True)
    )
    n_values = len(set(values.tolist()))
    apart = (n for n in digits if len(set(written[n])) == n_values)
    n = next(exact, None) or next(apart, digits[-1])
    if any("e" in name for name in written[n]):  # one notation for all
        return [_as_power(x, n) for x in values.tolist()]
    return written[n]


def _as_power(x: float, digits: int) -> str:
    number, _, power = f"{x:.{digits - 1}e}".partition("e")
    return f"{float(number):.{digits}g}e{int(power)}" if math.isfinite(x) and x else f"{x:g}"


def _short(x: float, digits: int) -> str:
    text = f"{x:.{digits}g}"
    return f"{float(text):.0f}" if "e+0" in text and abs(x) < 1e6 else text  # 2150, not 2.15e+03


def _kind_of(part: Any) -> str:
    return np.asarray(part).dtype.kind


def is_place(item: Any) -> bool:
    """Return whether a date, duration or quantity has a place on an axis."""
    return _is_dated(item) or hasattr(item, "to_value") or hasattr(item, "m_as")


def names_of_items(items: Sequence[Any]) -> list[str] | None:
    """Return the names of items, such as texts, None if one of them has no name."""
    names = [
        "" if is_missing(item) or (isinstance(item, float) and math.isnan(item)) else _name_of(item)
        for item in items
    ]
    return None if None in names or not any(names) else [str(name) for name in names]


def _name_of(item: Any) -> str | None:
    """Return the name of a text, path, function or combination, None of a number and others."""
    match item:
        case enum.Enum() | PurePath():
            return item.name
        case str() | bool() | np.bool_():
            return str(item)
        case complex():
            return f"{item:.6g}"
        case tuple():
            parts = [_name_of(part) or _written(part) for part in item]
            return ", ".join(parts) if all(parts) else None
    is_interval = hasattr(item, "closed") and hasattr(item, "left")  # an Interval of pandas
    return str(item) if is_interval else getattr(item, "__name__", None)


def _written(part: Any) -> str:
    if isinstance(part, float):
        return f"{part:.6g}"
    return str(part) if is_number(part) or is_place(part) else ""


def _is_text(result: Any) -> bool:
    kind = getattr(getattr(result, "dtype", None), "kind", "")
    return isinstance(result, str | enum.Enum) or kind in ("U", "T")


def _is_dated(item: Any) -> bool:
    return isinstance(item, dt.date | dt.time | dt.timedelta) or _is_period(item)


def _is_period(item: Any) -> bool:
    return hasattr(item, "to_timestamp") and hasattr(item, "ordinal")


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
