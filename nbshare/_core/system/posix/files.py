"""Reading and writing at a place in a file, and its owner."""

from __future__ import annotations

import os

CAN_SYNC_FOLDERS = True
TO_SYNC = os.O_RDONLY  # how a file is opened that the disk is to have
MODE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no pipe waited for

read_at, write_at, cut = os.pread, os.pwrite, os.ftruncate
replace, move, remove = os.replace, os.rename, os.unlink
enter = os.chdir  # always, because a new folder may have the old name


def open_safely(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, but not through a link, and a pipe without waiting for its other end."""
    return os.open(path, flags | MODE, 0o666)


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    try:
        os.get_inheritable(fd)
    except OSError:
        return False
    return True


def remove_old(folder: str | os.PathLike[str]) -> None:
    """Do nothing, because a file can be removed while it is open."""


def other_owner(status: os.stat_result) -> int | None:
    """Return the number of the user that a file belongs to, if that is not this one."""
    return None if status.st_uid == os.geteuid() else status.st_uid


def stamp(path: str) -> tuple[int, int, int, int]:
    """Return what changes when a file is edited or replaced (mtime, size, inode, ctime)."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns
