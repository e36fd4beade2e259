"""Shared memory: segments that several processes map, and how much fits this machine."""

from nbshare.memory.budget import ALIGNMENT, aligned
from nbshare.memory.copying import as_bytes
from nbshare.memory.handle import Handle, handle_of, open_handle
from nbshare.memory.kinds import can_share, need_linux, need_shared, scratch_file, silence_warnings
from nbshare.memory.segment import Mode, Segment, View, segment_of
from nbshare.memory.user_file import UserFile, file_of
from nbshare.memory.warm import array_slab, pool, slab
