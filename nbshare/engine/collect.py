"""Results that came one by one, as one array or a tuple of arrays where they fit."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.apart import is_masked
from nbshare.arrays.create import empty
from nbshare.errors import MixedResultsWarning, warn
from nbshare.worker.output import OutputSpec, spec_for

__all__ = ["as_masked", "collect", "masked", "nothing", "stack"]


def masked(array: npt.NDArray[Any], missing: npt.NDArray[np.bool_], *, is_kept: bool = True) -> Any:
    """Return an array, not copied, with a mask of the rows that are missing.

    The mask of one that is kept can be assigned to; else it takes no memory, where a full one would
    cost a byte per value at every frame of a plot.
    """
    rows = missing.reshape(-1, *[1] * (array.ndim - 1))
    mask = np.broadcast_to(rows, array.shape)
    return np.ma.MaskedArray(np.asarray(array), mask.copy() if is_kept else mask, copy=False)


def nothing(out: Any, *, with_errors: bool) -> Any:
    """Return the result of no items."""
    if isinstance(out, str):
        return []
    array = np.empty(0) if out is None else out
    return as_masked(array) if with_errors else array


def as_masked(results: Any) -> Any:
    """Return an array as one that has a mask, of nothing; anything else as it is."""
    if not isinstance(results, np.ndarray) or is_masked(results):
        return results
    return masked(results, np.zeros(len(results), np.bool_))


def collect(values: list[Any]) -> Any:
    """Return results as one array in shared memory if they fit one, else as the list they are.

    Warns if they are numbers or arrays that differ.
    """
    specs = [spec_for(value) for value in values]
    if specs[0].dtype is None:
        return values
    stacked = _stack(values, specs)
    if stacked is not None:
        return stacked
    odd = _odd_one(specs)
    found = f"item 0 gave {_kind(values[0])}, item {odd} {_kind(values[odd])}"
    warn(
        f"results differ in kind, so they come as a list: {found if odd else 'no dtype holds all'}."
        ' Return one dtype and shape to get one array, or say out="list".',
        MixedResultsWarning,
    )
    return values


def _odd_one(specs: list[OutputSpec]) -> int:
    """Return the first result that is unlike that of item 0, above all one that fits no array."""
    wanted = specs[0]
    unfit = (i for i, s in enumerate(specs) if s.dtype is None or s.shape != wanted.shape)
    unlike = (i for i, s in enumerate(specs) if s.dtype != wanted.dtype)
    return next(chain(unfit, unlike), 0)


def stack(values: list[Any]) -> Any:
    """Return tuples of results as a tuple of arrays, ``out="stack"``.

    Where items failed, the arrays are masked. What fits no such tuple comes as the list it is.
    """
    there = [value for value in values if not isinstance(value, BaseException)]
    if not there or not all(isinstance(v, tuple) and len(v) == len(there[0]) for v in there):
        warn(
            'out="stack" takes functions that return tuples of one length; the results come as '
            "a list",
            MixedResultsWarning,
        )
        return values
    failed = np.array([isinstance(value, BaseException) for value in values])
    return tuple(_column(values, failed, k) for k in range(len(there[0])))


def _column(values: list[Any], failed: npt.NDArray[np.bool_], k: int) -> Any:
    """Return the k-th parts of results."""
    there = collect([v[k] for v, is_missing in zip(values, failed, strict=True) if not is_missing])
    if not failed.any():
        return there
    if isinstance(there, list):
        parts = iter(there)
        return [v if is_bad else next(parts) for v, is_bad in zip(values, failed, strict=True)]
    full = empty((len(values), *there.shape[1:]), there.dtype)
    full[~failed] = there
    return masked(full, failed)


def _stack(values: list[Any], specs: list[OutputSpec]) -> npt.NDArray[Any] | None:
    """Return one array in shared memory if every value survives the common dtype."""
    if any(s.dtype is None or s.shape != specs[0].shape for s in specs):
        return None
    try:
        dtype = np.result_type(*{s.dtype for s in specs if s.dtype is not None})
    except TypeError:
        return None
    array = empty((len(values), *specs[0].shape), dtype)
    with np.errstate(all="ignore"):  # of casts of what does not survive
        for row, value in enumerate(values):
            array[row] = value
            if not _survives(np.asarray(array[row]), np.asarray(value)):
                return None
    return array


def _survives(stored: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Whether a value can be had back from what was stored of it."""
    if stored.dtype.kind == "c" and value.dtype.kind != "c":
        stored = stored.real  # casting the whole would warn
    back = stored.astype(value.dtype)
    return np.array_equal(back, value, equal_nan=not issubclass(value.dtype.type, np.flexible))


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    if type(value) is int and spec_for(value).dtype is None:
        return "an int of more than 64 bits"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
