"""Copies values that users' code may change while they wait.

Many functions fill and return the same array, list or dict for each item, and many generators yield
one object that they fill again. In a loop, this gives correct results. A result is therefore copied
before the next item runs, unless it is stored by then, and an item of a generator is copied before
the next item is requested.

Objects of other kinds are not copied, because pickling may take long. If an iterable yields such an
object repeatedly, and changes it each time, a warning is issued.
"""

from __future__ import annotations

import sys
import warnings
import weakref
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, MappingView, Set
from contextlib import suppress
from datetime import date, datetime, time, timedelta, timezone
from enum import EnumMeta
from itertools import chain, groupby, islice, repeat
from typing import Any

import numpy as np

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.pickling import dumps_apart, note_on_result
from nbshare._core.messages import users_line
from nbshare._core.store.apart import copy_of
from nbshare.errors import ReusedItemWarning

# Classes of immutable objects.
SCALARS: set[type] = {type(None), bool, int, float, complex, str, bytes}
SCALARS |= {np.dtype(t).type for t in "?bhilqBHILQfd"}
SCALARS |= {date, timedelta, timezone, range}
# Other classes of the standard library by name and module, because a worker imports few of them.
_VALUES = {
    **dict.fromkeys(["PosixPath", "PurePosixPath", "PureWindowsPath", "WindowsPath"], "pathlib"),
    "Decimal": "decimal",
    "Fraction": "fractions",
    "UUID": "uuid",
    "ZoneInfo": "zoneinfo",
}
# Iterables that hold all their items, so that none is reused.
CONTAINERS = list, tuple, np.ndarray, Set, MappingView, deque, repeat
_OF_MEMORY = np.ndarray, np.void, np.record  # the last two are rows of an array, and views of it
GROUP = type(next(groupby([0]))[1])  # the class of a group of `itertools.groupby`
DEPTH = 3  # limit for lists in lists, because a list may contain itself
WATCHED = 7  # number of items that are compared, for readers with up to 3 buffers
IN_BAND = 4096  # limit of buffers that are copied for a comparison, in bytes


def is_of_values(kind: type) -> bool:
    """Return whether objects of a class are known to be immutable."""
    if kind in SCALARS or isinstance(kind, EnumMeta):
        return True
    name = kind.__name__
    if name in _VALUES and getattr(sys.modules.get(_VALUES[name]), name, None) is kind:
        SCALARS.add(kind)
        return True
    return False


def is_value(value: Any) -> bool:
    """Return whether an object is known to be immutable."""
    kind = type(value)
    if kind is datetime or kind is time:
        kind = type(value.tzinfo)  # it may be of any class
    return kind in SCALARS or is_of_values(kind)


def kept_result(value: Any) -> Any:
    """Return a copy of a result, or the result itself if it is immutable."""
    if is_value(value):
        return value
    if _is_plain(value):
        return value.copy()
    try:
        return copy_of(value)
    except Exception as error:
        note_on_result(error, value)
        raise


def kept_items(iterable: Iterable[Any]) -> Iterable[Any]:
    """Return the items of an iterable, each copied as it was when it was yielded."""
    if isinstance(iterable, CONTAINERS):
        return iterable
    items = map(kept_item, iterable)
    return chain(_watched(items, type(iterable).__name__, users_line()), items)


def _watched(items: Iterator[Any], kind: str, line: tuple[str, int]) -> Iterator[Any]:
    """Yield the first items. Warn if an item repeats an object that has changed.

    An object that repeats unchanged, such as a configuration next to each item, is allowed.
    """
    seen: dict[int, tuple[Callable[[], Any], list[int | None]]] = {}  # and its states when repeated
    for item in islice(items, WATCHED):
        for part in {id(each): each for each in _others_in(item, DEPTH)}.values():
            found, states = seen.get(id(part), (lambda: None, []))
            if found() is not part:
                seen[id(part)] = _reference_to(part), []
            elif len(states) < 2:  # because pickling may take long
                states.append(_state_of(part))
                if None not in states and states[0] != states[-1]:
                    warnings.warn_explicit(
                        f"an iterable ({kind}) yields the same {type(part).__name__} for "
                        "several items, and changes it. Items that wait for a worker then hold "
                        "the data of a later item, so their results will be wrong. Yield copies, "
                        "such as (x.copy() for x in reader), or pass indices and read the data in "
                        "the function.",
                        ReusedItemWarning,
                        *line,
                    )
                    yield item
                    return
        yield item


def _reference_to(obj: Any) -> Callable[[], Any]:
    """Return a weak reference if possible, because items may be large."""
    try:
        return weakref.ref(obj)
    except TypeError:
        return lambda: obj


def _others_in(item: Any, depth: int) -> Iterator[Any]:
    """Yield the objects in an item that are not copied and might change unnoticed.

    An array in shared memory or in a file is the same everywhere, so its changes are intended.
    """
    kind = type(item)
    if kind is tuple or kind is list or kind is dict:
        for part in (item.values() if kind is dict else item) if depth else ():
            yield from _others_in(part, depth - 1)
    elif not (is_value(item) or kind in (np.memmap, SharedArray) or _is_copied(item)):
        yield item


def _state_of(value: Any) -> int | None:
    """Return a checksum of an object's pickle, or None if it cannot be pickled."""
    with suppress(Exception):  # a user's pickling may raise anything
        data, buffers = dumps_apart(value, IN_BAND)
        for buffer in buffers:
            data += zlib.crc32(buffer).to_bytes(4, "little")
        return zlib.crc32(data)
    return None


def kept_item(item: Any, depth: int = DEPTH) -> Any:
    """Return an item with copies of its arrays, lists, tuples and dicts.

    Other objects are not copied, because pickling may take long, and arrays in shared memory or in
    a file must stay there.
    """
    kind = type(item)
    if kind in SCALARS or not depth:
        return item
    if _is_copied(item):
        return item.copy() if _is_plain(item) else item[:]
    if kind is GROUP:  # a group is empty when the next one is requested
        return [kept_item(part, depth - 1) for part in item]
    if kind is tuple or kind is list:
        is_flat = SCALARS.issuperset(map(type, item))
        return item[:] if is_flat else kind([kept_item(part, depth - 1) for part in item])
    if kind is dict:
        return {key: kept_item(value, depth - 1) for key, value in item.items()}
    return item


def _is_copied(value: Any) -> bool:
    return _is_plain(value) or type(value) in (bytearray, array)


def _is_plain(value: Any) -> bool:
    return type(value) in _OF_MEMORY and not value.dtype.hasobject
