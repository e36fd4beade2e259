"""Files: reading and writing at a place, what the disk has, and who owns one."""

from __future__ import annotations

import os

from nbshare._core.system.posix.files import *

sync = os.fdatasync


def allocate(fd: int, start: int, stop: int) -> None:
    """Allocate a part of a file, in bytes: writing to it needs no more space."""
    os.posix_fallocate(fd, start, stop - start)
