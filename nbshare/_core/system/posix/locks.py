"""Locks of files between processes, which the kernel releases if their holder dies."""

from __future__ import annotations

import fcntl


class FileLock:
    """A lock between processes, on a file. The kernel releases it if its holder dies.

    The file is opened once per process and never mapped or closed, because closing any descriptor
    of it would drop the lock. It does not exclude threads of one process.

    Parameters
    ----------
    fd : int
        The descriptor of the file.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


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
