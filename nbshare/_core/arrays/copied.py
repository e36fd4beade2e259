"""Collects the caller's memory that a call copies, and places each byte once.

Views of one memory (slices, windows, the batches of a table) are recognized by their addresses.
Overlaps are known only once all views are collected, so the places of views are decided then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 16  # bytes, of the memory of NumPy's arrays

# Bytes in one of the call's segments, by its index in their list (0 is the arena), offset, size.
Span = tuple[int, int, int]
# Offsets of arrays in the arena, as 64-bit integers. A negative number is the complement (~) of the
# offset of a C-contiguous copy of the elements.
Places = npt.NDArray[np.int64] | memoryview

# Places parts, each with its offset, in a block of some bytes that begins at some distance from an
# aligned offset. Returns the offset of the block.
Placer = Callable[[Sequence[tuple[int, Any]], int, int], int]


class CopiedMemory:
    """Collects arrays and buffers to copy.

    Notes
    -----
    Not thread-safe. Arrays are kept alive until their places are decided, so that no address is
    used twice.
    """

    def __init__(self) -> None:
        self._views: dict[Any, _View] = {}
        self._roots = set[int]()  # ids of arrays with views in it

    def add(self, array: npt.NDArray[Any], places: Any, k: int) -> None:
        """Copy an array, and enter its place in `Places` at index `k` when it is decided.

        For a buffer, enter its `Span` in a list.
        """
        # An address takes microseconds, so an array that owns its memory is known by its id.
        key: Any = id(array)
        if array.base is not None:
            self._roots.add(id(_root_of(array)))
            key = _address_of(array), array.shape, array.strides, array.itemsize
        if (view := self._views.get(key)) is None:
            self._views[key] = view = _View(array)
        view.waiting.append((places, k))

    def clear(self) -> None:
        """Forget arrays without a place."""
        self._views.clear()
        self._roots.clear()

    def settle(self, place: Placer) -> None:
        """Decide the places of all arrays, in the order of their arrival."""
        if not self._views:
            return
        located = []
        for key, view in self._views.items():
            if not isinstance(key, int) or key in self._roots:
                view.locate()
                located.append(view)
        _find_groups(located)
        for view in self._views.values():
            if not view.group:
                view.place_alone(place)
            elif not view.is_placed:
                _place_group(view.group, place)
        self.clear()


def _place_group(group: list[_View], place: Placer) -> None:
    """Place views whose memory overlaps, together if that takes fewer bytes."""
    low, high = group[0].low, max(view.high for view in group)
    if sum(view.array.nbytes for view in group) <= high - low:
        for view in group:
            view.place_alone(place)
        return
    parts, copied_to = [], low
    for view in group:
        if view.high > copied_to:
            parts.append((max(view.low, copied_to) - low, view.bytes_from(copied_to)))
            copied_to = view.high
    base = place(parts, high - low, low % ALIGNMENT) - low
    for view in group:
        view.enter(base + view.first)


class _View:
    """An array, and the table entries for its place.

    Attributes
    ----------
    first, low, high : int
        Addresses of its first element, of its lowest byte, and behind the highest, once it is
        located.
    group : list
        The views whose memory overlaps with this one, in the order of their addresses.
    is_placed : bool
        Whether its place is decided.
    """

    __slots__ = "array", "first", "group", "high", "is_placed", "low", "waiting"

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.array = array
        self.group: list[_View] = []
        self.is_placed = False
        self.waiting: list[tuple[Any, int]] = []

    def locate(self) -> None:
        """Find the addresses of the array's memory."""
        array = self.array
        self.first = self.low = _address_of(array)
        self.high = self.low + array.nbytes
        if not array.flags.forc and array.size:
            ways = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
            self.low = self.first + sum(way for way in ways if way < 0)
            self.high = self.first + array.itemsize + sum(way for way in ways if way > 0)

    def bytes_from(self, address: int) -> npt.NDArray[np.uint8]:
        """Return the array's memory from an address on, including gaps between its elements."""
        return np.asarray(_Memory(max(self.low, address), self.high, self.array))

    def place_alone(self, place: Placer) -> None:
        """Place a copy of the elements, without the gaps between them."""
        array = self.array
        offset = place([(0, array.T if array.flags.fnc else array)], array.nbytes, 0)
        self.enter(offset if array.flags.forc else ~offset)

    def enter(self, place: int) -> None:
        self.is_placed = True
        for places, k in self.waiting:
            places[k] = (0, place, self.array.nbytes) if isinstance(places, list) else place


def _root_of(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the array that an array is a view of, or the array itself."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address_of(array: npt.NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


class _Memory:
    """Bytes from one address to another, with NumPy's array interface."""

    def __init__(self, low: int, high: int, owner: Any) -> None:
        self.__array_interface__ = {
            "data": (low, True),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }
        self._owner = owner


def _find_groups(views: list[_View]) -> None:
    """Group views whose memory overlaps."""
    group: list[_View] = []
    high = 0
    for view in sorted(views, key=attrgetter("low")):
        if view.low >= high:
            group = []
        group.append(view)
        view.group = group
        high = max(high, view.high)
