"""Bytes that several processes map: segments, and how much of them this machine can hold."""

from nbshare.memory.alignment import ALIGNMENT, aligned
from nbshare.memory.budget import check_room
from nbshare.memory.cgroup import ancestors, group_setting
from nbshare.memory.choice import hush, scratch_file
from nbshare.memory.copying import as_bytes
from nbshare.memory.handle import Handle, handle_of, open_handle
from nbshare.memory.processes import Identity, has_ended, identity
from nbshare.memory.segment import Mode, Segment, segment_of
from nbshare.memory.slab import array_slab, slab
from nbshare.memory.user_file import UserFile, file_of
from nbshare.memory.view import View
from nbshare.memory.warm import pool

__all__ = [
    "ALIGNMENT",
    "Handle",
    "Identity",
    "Mode",
    "Segment",
    "UserFile",
    "View",
    "aligned",
    "ancestors",
    "array_slab",
    "as_bytes",
    "check_room",
    "file_of",
    "group_setting",
    "handle_of",
    "has_ended",
    "hush",
    "identity",
    "open_handle",
    "pool",
    "scratch_file",
    "segment_of",
    "slab",
]
