"""Copies of values that users' code may change while they wait here.

Many functions fill the same array, list or dict for each item and return it, and many generators
yield one that they fill again. A loop gives correct results with them. So a result is copied before
the next item runs, if it is not stored by then, and an item of a generator before the generator is
asked for the next one.
"""

from __future__ import annotations

import pickle
from array import array
from collections import deque
from collections.abc import Iterable, MappingView, Set
from itertools import repeat
from typing import Any

import numpy as np

from nbshare._core.functions.pickling import dumps, note_on_result

# Classes whose objects nobody can change.
SCALARS: set[type] = {type(None), bool, int, float, complex, str, bytes}
SCALARS |= {np.dtype(t).type for t in "?bhilqBHILQfd"}
# Iterables whose items are all there, so that none changes because of the next one.
CONTAINERS = list, tuple, np.ndarray, Set, MappingView, deque, repeat
DEPTH = 3  # of lists in lists, as a list may be in itself


def kept_result(value: Any) -> Any:
    """Return a result as it is now."""
    if type(value) in SCALARS:
        return value
    if _is_plain(value):
        return value.copy()
    try:
        return pickle.loads(dumps(value))
    except Exception as error:
        note_on_result(error, value)
        raise


def kept_items(iterable: Iterable[Any]) -> Iterable[Any]:
    """Return the items of an iterable, each as it is when it comes."""
    return iterable if isinstance(iterable, CONTAINERS) else map(kept_item, iterable)


def kept_item(item: Any, depth: int = DEPTH) -> Any:
    """Return an item as it is now: an array, or lists, tuples and dicts of such.

    Another object comes back itself, because its pickle may take long, and an array in shared
    memory or in a file is to stay there.
    """
    kind = type(item)
    if kind in SCALARS or not depth:
        return item
    if _is_plain(item):
        return item.copy()
    if kind is bytearray or kind is array:
        return item[:]
    if kind is tuple or kind is list:
        is_flat = SCALARS.issuperset(map(type, item))
        return item[:] if is_flat else kind([kept_item(part, depth - 1) for part in item])
    if kind is dict:
        return {key: kept_item(value, depth - 1) for key, value in item.items()}
    return item


def _is_plain(value: Any) -> bool:
    return type(value) is np.ndarray and not value.dtype.hasobject
