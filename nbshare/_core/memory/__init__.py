"""Shared memory: segments that several processes map, and checks that memory is sufficient."""

from nbshare._core.memory.budget import ALIGNMENT, aligned
from nbshare._core.memory.copying import as_bytes
from nbshare._core.memory.handle import Handle, handle_of, open_handle
from nbshare._core.memory.kinds import (
    can_share,
    need_shared,
    scratch_file,
    silence_warnings,
)
from nbshare._core.memory.segment import Mode, OwnBytes, Segment, View, owner_of, segment_of
from nbshare._core.memory.user_file import FileView, UserFile, file_of
from nbshare._core.memory.warm import array_slab, pool, slab
