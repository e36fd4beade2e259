"""System calls that change a disk, and checks that files belong to this user."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, Any

from nbshare._core.system import Descriptor, files, opened, processes
from nbshare.errors import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

MOST = 1 << 30  # bytes per call, because the system writes at most 2 GiB
KINDS = {stat.S_IFREG: "a plain file", stat.S_IFDIR: "a folder", stat.S_IFLNK: "a symbolic link"}


class System:
    """The calls that change a disk. Tests replace `system` by another object."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file for writing."""
        return files.open_safely(path, flags)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """Write at an offset, and return the number of bytes written, maybe not all."""
        return files.write_at(fd, data, offset)

    def allocate(self, fd: int, start: int, stop: int) -> None:
        """Allocate a part of a file, in bytes, so that writing to it needs no more space."""
        files.allocate(fd, start, stop)

    def truncate(self, fd: int, nbytes: int) -> None:
        """Set the size of a file."""
        files.cut(fd, nbytes)

    def sync(self, fd: int) -> None:
        """Flush a file to the disk."""
        files.sync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Replace a file with another."""
        files.replace(source, target)


system = System()


def open_own(path: Path, flags: int) -> Descriptor:
    """Open a plain file of this user.

    Raises
    ------
    CheckpointError
        If the path is not a plain file, or belongs to another user.
    OSError
        If the file cannot be opened.
    """
    opener = system.open if flags & (os.O_WRONLY | os.O_RDWR) else files.open_safely
    try:
        file = opened(opener, path, flags)
    except OSError:
        check_own(path, os.lstat(path))
        raise
    check_own(path, os.fstat(file.fileno()))
    return file


def check_own(path: Path, status: os.stat_result, kind: int = stat.S_IFREG) -> None:
    """Raise CheckpointError if a path has the wrong type or owner."""
    found = stat.S_IFMT(status.st_mode)
    if found != kind:
        what = KINDS.get(found, "a pipe, a socket or a device")
        raise CheckpointError(
            f"{path} is {what} instead of {KINDS[kind]}, so it does not belong to a checkpoint. "
            "Use another path, or remove the file or folder if it is not needed."
        )
    if (owner := files.other_owner(status)) is not None:
        raise CheckpointError(
            f"{path} belongs to {processes.user_in_words(owner)}, and this process runs as "
            f"{processes.user_in_words(os.geteuid())}. A checkpoint can run code, so all of it "
            "must belong to you: use another path, or make a copy (cp -r) if you trust its owner."
        )


def read_all(fd: int, nbytes: int, offset: int) -> bytes:
    """Read bytes at an offset, fewer if the file ends before."""
    parts = []
    while nbytes and (part := files.read_at(fd, min(nbytes, MOST), offset)):
        parts.append(part)
        nbytes, offset = nbytes - len(part), offset + len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def write_all(fd: int, data: Any, offset: int) -> None:
    """Write all bytes, because a signal can cut a single write short.

    Raises
    ------
    OSError
        If the disk is full, or fails.
    """
    left = memoryview(data).cast("B")
    while left:
        n = system.pwrite(fd, left[:MOST], offset)
        if n <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        left, offset = left[n:], offset + n
