"""The calls that change a disk."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MOST = 1 << 30  # bytes at a time: the system writes 2 GiB at most


class System:
    """The calls that change a disk; tests put another one in its place."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """Write at an offset; may write less than all."""
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, start: int, stop: int) -> None:
        """Allocate a part of a file, in bytes: writing to it needs no more space."""
        os.posix_fallocate(fd, start, stop - start)

    def truncate(self, fd: int, nbytes: int) -> None:
        """Set the size of a file."""
        os.ftruncate(fd, nbytes)

    def sync(self, fd: int) -> None:
        """Wait until the disk has a file."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in the place of another."""
        os.replace(source, target)


system = System()


def write_all(fd: int, data: Any, offset: int) -> None:
    """Write all of some bytes: a signal can cut a write short.

    Raises
    ------
    OSError
        The disk is full, or fails.
    """
    left = memoryview(data).cast("B")
    while left:
        n = system.pwrite(fd, left[:MOST], offset)
        if n <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        left, offset = left[n:], offset + n
