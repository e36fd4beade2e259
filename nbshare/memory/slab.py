"""Small pieces of shared memory, cut from one segment.

A segment of its own costs each 100 µs, a descriptor and a page. No piece is used twice, so a piece
is as fresh and zero as a segment, and whoever still sees an old one harms nobody. A piece keeps the
whole slab alive, which is small.
"""

from __future__ import annotations

import os
import weakref
from collections import deque

from nbshare.memory.alignment import aligned
from nbshare.memory.choice import choice
from nbshare.memory.segment import Segment

__all__ = ["Slab", "array_slab", "slab"]

SLAB = 1 << 18  # bytes; pages cost nothing before they are touched
LARGEST = 1 << 15  # bytes of a piece; above, a segment of its own costs little beside its pages


class Slab:
    """Gives out pieces of zeroed memory.

    Parameters
    ----------
    is_kept : bool
        Whether the present slab is kept for the next piece while nobody has one.

    Notes
    -----
    Safe from any thread, and from finalizers and signal handlers: it takes no lock. Two that take a
    piece at the same time cut from different slabs, and one of these is not cut from any more.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._kept: Segment | None = None
        self._present: deque[tuple[weakref.ref[Segment], int]] = deque(maxlen=1)  # and its end
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self.drop)

    def take(self, nbytes: int) -> tuple[Segment, int]:
        """Return a segment and the offset of `nbytes` in it that are zero and nobody else's."""
        if nbytes > LARGEST:
            return Segment.create(nbytes), 0
        try:
            present, offset = self._present.pop()  # from now on nobody else has it
            segment = present()
        except IndexError:
            segment, offset = None, 0
        # The setting may have changed since it was made.
        if segment is None or offset + nbytes > SLAB or segment.kind not in choice():
            segment, offset = Segment.create(SLAB), 0
        self._kept = segment if self._is_kept else None
        self._present.append((weakref.ref(segment), aligned(offset + nbytes)))
        return segment, offset

    def drop(self) -> None:
        """Cut no more pieces from the present slab: in a forked child it is the parent's."""
        self._present.clear()
        self._kept = None


slab = Slab(is_kept=True)  # of calls
array_slab = Slab(is_kept=False)  # of users' arrays: beyond their end may be others' only
