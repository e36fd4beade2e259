"""Reading and writing at an offset of a file, disk space, and the owner of a file."""

from __future__ import annotations

import os

from nbshare._core.system.portable import stamp
from nbshare._core.system.posix import (
    CAN_SYNC_FOLDERS,
    TO_SYNC,
    cut,
    enter,
    free_in,
    is_open,
    move,
    open_safely,
    other_owner,
    read_at,
    remove,
    remove_old,
    replace,
    write_at,
)

sync = os.fdatasync


def allocate(fd: int, start: int, stop: int) -> None:
    """Allocate a part of a file, in bytes, so that writing to it needs no more space."""
    os.posix_fallocate(fd, start, stop - start)
