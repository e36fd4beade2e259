"""The memory of a ring buffer: its slots, and what is noted of them."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.buffer import SharedBuffer
from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.arrays.tokens import FILLED, FREED, layout_of
from nbshare.memory import aligned

__all__ = ["RingMemory"]


class RingMemory:
    """The arrays of a ring buffer.

    Parameters
    ----------
    slots : int
        Their number.
    shape : tuple of int
        Of each slot.
    dtype : numpy.dtype
        Of each slot.
    buffer : SharedBuffer, optional
        Where they lie; default: a new one.

    Attributes
    ----------
    buffer : SharedBuffer
        Where they lie.
    arrays : dict of str to ndarray
        Those of `nbshare.arrays.tokens.layout_of`.
    event_addresses : list of int
        Of the words that sleepers watch, by event.
    waited_s : memoryview
        How long producers and consumers have waited; of two float64.
    """

    def __init__(
        self,
        slots: int,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        buffer: SharedBuffer | None = None,
    ) -> None:
        self._shape, self._dtype = shape, dtype
        stride = aligned(max(1, math.prod(shape) * dtype.itemsize))
        layout = {
            **layout_of(slots),
            "waited_s": (2, "f8"),
            "data": ((slots, stride), "u1"),
        }
        self.buffer = buffer or SharedBuffer(SharedBuffer.nbytes_for(layout))
        self.arrays = {k: np.asarray(v) for k, v in self.buffer.layout(layout).items()}
        self._data, self.waited_s = self.arrays.pop("data"), self.arrays.pop("waited_s").data
        self._rows = self.arrays["rows"].data  # as fast as a list's
        events = _address(self.arrays["events"]) + 4 * (sys.byteorder == "big")
        self.event_addresses = [events + 8 * event for event in (FREED, FILLED)]

    def slot(self, index: int) -> SharedArray:
        """Return the array of a slot, as far as it is filled."""
        array: npt.NDArray[Any] = np.ndarray(self._shape, self._dtype, buffer=self._data[index])
        is_whole = not self._shape or self._rows[index] == self._shape[0]
        return shared_view(array if is_whole else array[: self._rows[index]])

    def index_of(self, slot: npt.NDArray[Any]) -> int | None:
        """Return the number of the slot that an array begins with; None if there is none."""
        index, beyond = divmod(_address(slot) - _address(self._data), self._data.strides[0])
        return index if not beyond and 0 <= index < len(self._data) else None


def _address(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
