"""Combines results into arrays, if they fit."""

from __future__ import annotations

import math
from collections.abc import Container
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.arrays.create import empty
from nbshare._core.messages import warn
from nbshare._core.shapes.shaped import survives
from nbshare._core.store.specs import OutputSpec, spec_for
from nbshare.errors import MixedResultsWarning

BLOCK_NBYTES = 1 << 20  # bytes of the values that are copied and compared together


def masked(array: npt.NDArray[Any], missing: npt.NDArray[np.bool_], *, is_kept: bool = True) -> Any:
    """Return an array with a mask of its missing rows, without copying the array.

    If the array `is_kept`, array and mask are writable. Otherwise both are read-only, because
    workers still fill the array, and the mask takes no memory. A full mask would take a byte per
    value in every frame of a plot.
    """
    rows = missing.reshape(-1, *[1] * (array.ndim - 1))
    mask = np.broadcast_to(rows, array.shape)
    values = np.asarray(array if is_kept else read_only(array))
    return np.ma.MaskedArray(values, mask.copy() if is_kept else mask, copy=False)


def read_only(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a read-only view of an array that workers still fill."""
    view = array.view()
    view.flags.writeable = False
    return view


def as_masked(results: Any) -> Any:
    """Return an array as a masked array without masked values, and other objects unchanged."""
    if not isinstance(results, np.ndarray) or is_masked(results):
        return results
    return masked(results, np.zeros(len(results), np.bool_))


def collect(values: list[Any], failed: Container[int] = ()) -> Any:
    """Return results as one array in shared memory if they fit, else as a list.

    The array is masked where items `failed`, even if all failed. Warns if the results are numbers
    or arrays that do not fit one array.
    """
    first = next((i for i in range(len(values)) if i not in failed), None)
    if first is None and values:  # all failed: assume a function that returns numbers
        return masked(empty(len(values)), np.ones(len(values), np.bool_))
    if first is None or spec_for(values[first]).dtype is None:
        return values
    there = [i for i in range(first, len(values)) if i not in failed]
    specs = {i: spec_for(values[i]) for i in there}
    stacked = _stack(values, specs)
    if stacked is not None:
        return stacked
    odd = _odd_one(specs)
    found = "no dtype can hold all of them"
    if odd is not None:
        found = f"item {first} is {_kind(values[first])}, item {odd} {_kind(values[odd])}"
    warn(
        f"results differ in type, dtype or shape, so they are returned as a list: {found}. Return "
        'results of one dtype and shape to get an array, or pass out="list".',
        MixedResultsWarning,
    )
    return values


def _odd_one(specs: dict[int, OutputSpec]) -> int | None:
    """Return the index of a result that differs from the first, by its shape if possible."""
    wanted = next(iter(specs.values()))
    unfit = (i for i, s in specs.items() if s.dtype is None or s.shape != wanted.shape)
    unlike = (i for i, s in specs.items() if s.dtype != wanted.dtype)
    return next(chain(unfit, unlike), None)


def stack(values: list[Any]) -> Any:
    """Return results that are tuples as a tuple of arrays, for ``out="stack"``.

    Arrays are masked where items failed. If the results are not tuples of one length, return the
    list.
    """
    there = [value for value in values if not isinstance(value, BaseException)]
    if not there or not all(isinstance(v, tuple) and len(v) == len(there[0]) for v in there):
        warn(
            'out="stack" requires tuples of one length as results. The results are returned as a '
            "list.",
            MixedResultsWarning,
        )
        return values
    failed = {i for i, value in enumerate(values) if isinstance(value, BaseException)}
    places = range(len(there[0]))
    parts = ([v if i in failed else v[k] for i, v in enumerate(values)] for k in places)
    return tuple(collect(part, failed) for part in parts)


def _stack(values: list[Any], specs: dict[int, OutputSpec]) -> Any:
    """Return the values as one array in shared memory, or None if they do not fit.

    They fit if they have one shape, and a common dtype holds all of them exactly. Values without an
    entry in `specs` are masked.
    """
    groups: dict[OutputSpec, list[int]] = {}
    for i, spec in specs.items():
        groups.setdefault(spec, []).append(i)
    shape, *others = {s.shape for s in groups}
    dtypes = {s.dtype for s in groups}
    if others or None in dtypes:
        return None
    try:
        dtype = np.result_type(*dtypes)
    except TypeError:
        return None
    array = empty((len(values), *shape), dtype)
    missing = np.ones(len(values), np.bool_)
    with np.errstate(all="ignore"):  # for casts that lose values
        for spec, places in groups.items():
            assert spec.dtype is not None
            size = max(1, BLOCK_NBYTES // max(1, spec.dtype.itemsize * math.prod(shape)))
            for block in (places[k : k + size] for k in range(0, len(places), size)):
                rows = np.array([values[i] for i in block], spec.dtype)
                array[block] = rows
                missing[block] = False
                if not survives(np.asarray(array[block]), rows):
                    return None
    return masked(array, missing) if missing.any() else array


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype} and shape {value.shape}"
    if type(value) is int and spec_for(value).dtype != np.int64:
        return "an int that is too large for int64"
    name = type(value).__name__
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
