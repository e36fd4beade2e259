"""Reading and writing at an offset of a file, disk space, and the owner of a file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

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

F_FULLFSYNC = 51  # sys/fcntl.h (in the module fcntl on macOS only)


def sync(fd: int) -> None:
    """Write a file to the disk itself, because fsync alone writes only to the disk's cache."""
    with suppress(OSError):  # a disk of another kind
        fcntl.fcntl(fd, F_FULLFSYNC)
        return
    os.fsync(fd)


def allocate(fd: int, start: int, stop: int) -> None:  # noqa: ARG001
    """Enlarge a file so that a part of it exists."""
    if os.fstat(fd).st_size < stop:
        os.ftruncate(fd, stop)
