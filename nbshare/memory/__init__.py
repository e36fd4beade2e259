"""Bytes that several processes map: segments, and how much of them this machine can hold."""

from nbshare.memory.budget import check_room
from nbshare.memory.cgroup import ancestors
from nbshare.memory.segment import ALIGNMENT, Segment, segment_of
from nbshare.memory.warm import pool

__all__ = ["ALIGNMENT", "Segment", "ancestors", "check_room", "pool", "segment_of"]
