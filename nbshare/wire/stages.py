"""A stage of a pipeline, as its workers get it."""

from __future__ import annotations

from typing import NamedTuple

from nbshare.arrays.ring import RingBuffer

__all__ = ["Stage"]


class Stage(NamedTuple):
    """The ring buffers before and behind one stage."""

    source: RingBuffer | None  # None: it is the loader
    sink: RingBuffer | None  # None: what it returns are the results
