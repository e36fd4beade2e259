"""The caller's memory that a call copies, each byte once.

Views of one memory (slices, windows, the batches of a table) are told by their addresses. Which of
them overlap is known when all are there. So their places are decided then, and entered in the lists
that wait for them, which are parts of what is sent later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

ALIGNMENT = 16  # bytes, of the memory of NumPy's arrays

# Bytes in one of the call's segments, by its index in their list (0 is the arena), offset, size.
Span = tuple[int, int, int]
# Offset of an array in the arena, and its strides in bytes, or None if it is C-contiguous there.
Place = tuple[int, tuple[int, ...] | None]

# Places parts, each with its offset among so many bytes, which begin so many after an aligned one.
# Returns where they begin.
Placer = Callable[[Sequence[tuple[int, Any]], int, int], int]


class CopiedMemory:
    """Gathers arrays and buffers that are to be copied.

    Notes
    -----
    For one thread. Arrays are kept alive until their places are decided, so that an address means
    one memory.
    """

    def __init__(self) -> None:
        self._views: dict[tuple[Any, ...], _View] = {}

    def add(self, array: npt.NDArray[Any], places: list[Any], k: int, *, is_buffer: bool) -> None:
        """Copy an array. When its `Place` is decided, or its `Span`, it is entry `k` of a list."""
        address = array.__array_interface__["data"][0]
        key = address, array.shape, array.strides, array.itemsize
        if (view := self._views.get(key)) is None:
            self._views[key] = view = _View(array, address)
        view.waiting.append((places, k, is_buffer))

    def clear(self) -> None:
        """Forget what has no place yet."""
        self._views.clear()

    def settle(self, place: Placer) -> None:
        """Decide the places of all."""
        views, self._views = sorted(self._views.values(), key=attrgetter("low")), {}
        for group, high in _overlapping(views):
            low = group[0].low
            if sum([view.array.nbytes for view in group]) <= high - low:
                for view in group:
                    view.place_alone(place)
                continue
            parts, copied_to = [], low
            for view in group:
                if view.high > copied_to:
                    parts.append((max(view.low, copied_to) - low, view.bytes_from(copied_to)))
                    copied_to = view.high
            base = place(parts, high - low, low % ALIGNMENT) - low
            for view in group:
                view.enter(base + view.first, view.array.strides)


class _View:
    """An array, the memory from its lowest to its highest byte, and the lists that wait for it."""

    def __init__(self, array: npt.NDArray[Any], address: int) -> None:
        self.array = array
        self.first = self.low = address  # of the first element, and of the lowest
        self.high = address + array.nbytes
        self.waiting: list[tuple[list[Any], int, bool]] = []
        if not array.flags.forc and array.size:
            ways = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
            self.low = address + sum(way for way in ways if way < 0)
            self.high = address + array.itemsize + sum(way for way in ways if way > 0)

    def bytes_from(self, address: int) -> npt.NDArray[np.uint8]:
        """Return its memory from an address on, with what is between its elements."""
        return np.asarray(_Memory(max(self.low, address), self.high, self.array))

    def place_alone(self, place: Placer) -> None:
        """Copy its elements only."""
        array = self.array
        is_fortran = array.flags.fnc
        offset = place([(0, array.T if is_fortran else array)], array.nbytes, 0)
        self.enter(offset, array.strides if is_fortran else None)

    def enter(self, offset: int, strides: tuple[int, ...] | None) -> None:
        for places, k, is_buffer in self.waiting:
            places[k] = (0, offset, self.array.nbytes) if is_buffer else (offset, strides)


class _Memory:
    """Bytes from one address to another, as NumPy's array interface tells them."""

    def __init__(self, low: int, high: int, owner: Any) -> None:
        self.__array_interface__ = {
            "data": (low, True),
            "shape": (high - low,),
            "typestr": "|u1",
            "version": 3,
        }
        self._owner = owner


def _overlapping(views: list[_View]) -> Iterator[tuple[list[_View], int]]:
    """Yield views in groups whose memory overlaps, in its order, and where it ends."""
    group: list[_View] = []
    high = 0
    for view in views:
        if group and view.low >= high:
            yield group, high
            group = []
        high = max(high, view.high) if group else view.high
        group.append(view)
    if group:
        yield group, high
