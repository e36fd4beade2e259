"""Arrays of other classes, taken apart into plain ones that can stay where they are.

By itself pickle copies their values into its stream: protocol 5 takes only ndarrays of no other
class out.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray

__all__ = ["PLAIN", "is_masked", "take_apart"]

# An array of a mapped file arrives as a plain one.
PLAIN = (np.ndarray, SharedArray, np.memmap)

Apart = tuple[Callable[..., Any], tuple[Any, ...]]


def is_masked(value: Any) -> TypeGuard[np.ma.MaskedArray[Any, Any]]:
    """Whether something is a masked array."""
    # To ask NumPy for the class would load it: 15 ms and 3 MB in each worker.
    module = sys.modules.get("numpy.ma")
    return module is not None and isinstance(value, module.MaskedArray)


def take_apart(array: npt.NDArray[Any]) -> Apart | None:
    """Return a function and its arguments that make the array anew, on the same memory.

    None if its class pickles in a way of its own, which only that class understands.
    """
    cls = type(array)
    if is_masked(array):
        if cls.__reduce__ is not np.ma.MaskedArray.__reduce__:
            return None
        mask = np.ma.getmask(array)
        parts = (array.data, None if mask is np.ma.nomask else mask)
        return _masked, (cls, *parts, vars(array).get("_fill_value"), array.hardmask)
    own_ways = (cls.__reduce__, cls.__reduce_ex__, cls.__setstate__)
    if own_ways != (np.ndarray.__reduce__, np.ndarray.__reduce_ex__, np.ndarray.__setstate__):
        return None
    return _subclass, (cls, array.view(np.ndarray), dict(vars(array)))


def _masked(cls: Any, data: Any, mask: Any, fill_value: Any, hard_mask: bool) -> Any:
    array = cls(data, copy=False)
    if mask is not None:
        array._mask = mask  # given as an argument, a mask of records is copied
    array._fill_value = fill_value
    if hard_mask:
        array.harden_mask()
    return array


def _subclass(cls: Any, values: npt.NDArray[Any], attributes: dict[str, Any]) -> Any:
    array = values.view(cls)
    vars(array).update(attributes)
    return array
