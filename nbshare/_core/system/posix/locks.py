"""Locks of files between processes, which the kernel releases if their holder dies."""

from __future__ import annotations

import fcntl


class FileLock:
    """A lock between processes, on a byte of a file. The kernel releases it if its holder dies.

    The file is opened once per process and never mapped or closed, because closing any descriptor
    of it would drop the lock. It does not exclude threads of one process.

    Parameters
    ----------
    fd : int
        The descriptor of the file.
    byte : int
        The offset of the byte. The file may be shorter.
    """

    def __init__(self, fd: int, byte: int) -> None:
        self._fd, self._byte = fd, byte

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX, 1, self._byte)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN, 1, self._byte)


def lock_file(fd: int) -> None:
    """Lock a file until it is closed.

    Raises
    ------
    BlockingIOError, PermissionError
        Another process has locked it.
    OSError
        The file system refuses locks.
    """
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
