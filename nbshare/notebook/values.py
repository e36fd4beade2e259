"""The results so far as numbers that can be drawn, each read once."""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Iterator
from numbers import Number
from typing import Any

import numpy as np
from matplotlib.dates import date2num
from numpy.typing import NDArray

from nbshare.notebook.base import CannotDrawError

_BLOCK_BYTES = 8 * 2**20  # results are taken in by blocks of this size, in float64
FOLD_BUDGET_S = 0.15  # of one refresh; what is left over comes with the next

Array = NDArray[np.float64]


class Values:
    """The results that are there, of any kind, as float64.

    Parameters
    ----------
    partial
        Of the job: a masked array, or a list with gaps.
    present
        Which results are there: one at least.
    value
        What is drawn of one result; None: the result.
    kind
        Of the plot, for messages.
    """

    def __init__(
        self,
        partial: Any,
        present: NDArray[np.bool_],
        value: Callable[[Any], Any] | None = None,
        kind: str = "image",
    ) -> None:
        self.n, self.present = len(partial), present
        self._value, self._kind = value, kind
        self._list: Any = partial
        self._data: NDArray[Any] | None = None
        if isinstance(partial, np.ndarray):
            self._list = np.ma.getdata(partial)
            self._data = self._list if value is None else None
        first = np.flatnonzero(self.present)[:1]
        sample = self._collect(first) if self._data is None else self._data
        self.dtype, self.shape = sample.dtype, sample.shape[1:]
        self.is_date = sample.dtype.kind == "M"
        if sample.dtype.kind not in "biufcMm":
            self._refuse(f"arrays of dtype {sample.dtype}")
        if self.is_date and kind == "image":
            self._refuse("dates")

    @property
    def name(self) -> str:
        """What is drawn, if the user calls it nothing else."""
        return "|result|" if self.dtype.kind == "c" else "result"

    @property
    def unit(self) -> str:
        """The unit that follows from the dtype, or none."""
        return "s" if self.dtype.kind == "m" else ""

    def read(self, items: Any, sample: tuple[slice, ...] = ()) -> Array:
        """Return some results, or every k-th element of them, as float64; NaN for no date."""
        if self._data is None:
            part = self._collect(items)[(slice(None), *sample)]
        else:
            part = self._data[(items, *sample)]
        return as_floats(part)

    def blocks(
        self, seen: NDArray[np.bool_], n_elements: int, budget_s: float
    ) -> Iterator[NDArray[np.intp]]:
        """Yield the items that are there and not seen, a block at a time, for about `budget_s`."""
        new = np.flatnonzero(self.present & ~seen)
        step = max(1, _BLOCK_BYTES // (8 * n_elements))
        until = time.monotonic() + budget_s
        for start in range(0, len(new), step):
            yield new[start : start + step]
            if time.monotonic() >= until:
                return

    def _collect(self, items: NDArray[np.intp]) -> NDArray[Any]:
        """Return results that are in no array of numbers as one."""
        results = [self._list[i] for i in items.tolist()]
        if self._value is not None:
            results = [self._value(result) for result in results]
        first = results[0]
        if isinstance(first, dt.date):
            return np.array(results, "datetime64[us]")
        if isinstance(first, np.ma.MaskedArray):
            results = [np.ma.filled(np.ma.asarray(result, float), np.nan) for result in results]
        elif not isinstance(first, Number | np.generic | np.ndarray):
            self._refuse(f"of type {type(first).__name__}")
        try:
            array = np.asarray(results)
        except ValueError:
            self._refuse("arrays of several shapes")
        if array.dtype == object:  # numbers of several kinds, or too large for NumPy's
            try:
                return array.astype(float)
            except (TypeError, ValueError):
                self._refuse("of several kinds")
        return array

    def _refuse(self, what: str) -> Any:
        needed = "real numbers or arrays of them, all of one shape"
        raise CannotDrawError(
            f"plot={self._kind!r} needs results that are {needed}; these are {what}. The map goes "
            "on without the picture; LivePlot(value=...) draws a part of each result, "
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


class PerItem:
    """A few numbers for each result, NaN until it is there; each result is read once.

    Parameters
    ----------
    n
        Results in all.
    width
        Numbers for each.
    reduce
        Makes an array ``(m, width)`` of m results.
    """

    def __init__(self, n: int, width: int, reduce: Callable[[Array], Array]) -> None:
        self._reduce = reduce
        self._seen = np.zeros(n, bool)
        self.numbers = np.full((n, width), np.nan)

    @property
    def n_shown(self) -> int:
        """Results that have been taken in."""
        return int(np.count_nonzero(self._seen))

    @property
    def present(self) -> NDArray[np.bool_]:
        """Which they are."""
        return self._seen

    def add_new(self, values: Values, *, final: bool) -> None:
        """Take in the results that were not there before."""
        budget_s = math.inf if final else FOLD_BUDGET_S
        for items in values.blocks(self._seen, max(1, math.prod(values.shape)), budget_s):
            self.numbers[items] = self._reduce(values.read(items))
            self._seen[items] = True
