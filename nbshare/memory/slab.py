"""Small pieces of shared memory, cut from one segment: a segment of its own costs 100 µs each.

No piece is used twice, so a piece is as fresh and zero as a segment, and whoever still sees an old
one harms nobody. A piece keeps the whole slab alive, which is small.
"""

from __future__ import annotations

import _thread
import os

from nbshare.memory.alignment import aligned
from nbshare.memory.choice import choice
from nbshare.memory.segment import Segment

__all__ = ["Slab", "slab"]

SLAB = 1 << 18  # bytes; pages cost nothing before they are touched
LARGEST = 1 << 15  # bytes of a piece; above, a segment of its own costs little beside its pages


class Slab:
    """Gives out pieces of zeroed memory.

    Notes
    -----
    Safe from any thread.
    """

    def __init__(self) -> None:
        self._segment: Segment | None = None
        self._end = 0
        self._lock = _thread.allocate_lock()

    def take(self, nbytes: int) -> tuple[Segment, int]:
        """Return a segment and the offset of `nbytes` in it that are zero and nobody else's."""
        if nbytes > LARGEST:
            return Segment.create(nbytes), 0
        with self._lock:
            if self._segment is None or not self._fits(self._segment, nbytes):
                self._segment, self._end = None, 0
                segment = Segment.create(SLAB)
                if segment.has_name:  # others see it as long as we hold it
                    return segment, 0
                self._segment = segment
            offset = self._end
            self._end = aligned(offset + nbytes)
            return self._segment, offset

    def _fits(self, segment: Segment, nbytes: int) -> bool:
        # The setting may have changed since it was made.
        return self._end + nbytes <= SLAB and segment.kind in choice()

    def drop(self) -> None:
        """Cut no more pieces from the present slab."""
        with self._lock:
            self._segment = None

    def forget(self) -> None:
        """In a forked child: the slab is the parent's, who goes on cutting it."""
        self.__init__()  # type: ignore[misc]


slab = Slab()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=slab.forget)
