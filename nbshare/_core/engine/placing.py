"""Copies the contents of arenas to memory that workers can read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.arena import Arena
from nbshare._core.memory import Mode, Segment, pool, segment_of

SMALL_ARENA = 8 << 10  # largest inputs that fit in the message of 32 KiB, in bytes


class Placed(NamedTuple):
    """The contents of an arena, in memory that workers can read."""

    small: bytes | None  # the contents themselves, if they are small
    segments: list[tuple[Segment, Mode]]  # to map, and how
    memory: npt.NDArray[np.uint8] | None = None  # the memory of the contents, otherwise


def place(arena: Arena, *, is_private: bool = False) -> Placed:
    """Copy the contents of an arena to shared or private memory.

    Raises
    ------
    OutOfMemoryError
        If the contents do not fit.
    """
    if arena.nbytes <= SMALL_ARENA:
        return Placed(arena.all_contents() or b"\0", arena.segments)
    # Objects can write to memory next to pickles only.
    mode: Mode = "c" if arena.has_views and not is_private else "r"
    memory = pool.filled(*arena.contents(), is_private=is_private)
    found = segment_of(memory)
    assert found is not None
    return Placed(None, [(found[0], mode), *arena.segments], memory)
