"""Descriptors that are closed with their owner, and that an interrupt cannot leak.

Python checks for signals between any two calls. In ``fd = os.open(path)`` an interrupt can arrive
when the file is open but its number is not stored yet. In a ``__del__`` that closes the file,
Python would even swallow the interrupt. Here a single call in C therefore opens a file and stores
it in its owner, and a single call closes it.

The number of open files is limited. When the soft limit is reached, it is raised to the hard limit.
Processes that are started later inherit the new limit.
"""

from __future__ import annotations

import errno
import os
import select
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

# The usual hard limit, because some programs are slow with a much higher one; and the limit that
# systems without a hard one allow, such as macOS up to version 11 (OPEN_MAX of its syslimits.h).
MOST, SAFE = 1 << 20, 10_240

NOT_MINE = (
    "this thread does not hold the SharedLock, and cannot release it: only the thread that "
    "acquired it can, and once"
)

T = TypeVar("T")


class Descriptor(Protocol):
    """A descriptor, closed with this object."""

    def fileno(self) -> int:
        """Return the descriptor's number, or -1 if it is closed."""

    def close(self) -> None:
        """Close the descriptor now."""


class MemoryFd(int):
    """The number of a descriptor of shared memory, with data that the system does not report.

    Attributes
    ----------
    name : str
        The unique name of the memory.
    nbytes, reserved : int
        The size of the memory (0 for a small file on Windows), and its largest size.
    reader : int
        The number of a read-only descriptor of the memory, or -1.
    """

    name = ""
    nbytes = reserved = 0
    reader = -1

    def of(self, name: str, nbytes: int, reserved: int) -> MemoryFd:
        """Set the name and the sizes. Return the descriptor."""
        self.name, self.nbytes, self.reserved = name, nbytes, reserved
        return self

    def facts(self) -> tuple[str, int, int]:
        """Return the name and the sizes, for `of`."""
        return self.name, self.nbytes, self.reserved


class OwnedFd:
    """A descriptor on systems without a C object that can own it. An interrupt can leak it."""

    def __init__(self, fd: int) -> None:
        self._fd, self._close = fd, os.close

    def fileno(self) -> int:
        """Return the descriptor's number, or -1 if it is closed."""
        return self._fd

    def close(self) -> None:
        """Close the descriptor now."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._close(fd)

    __del__ = close


# This class is meant for event queues of Linux, but its objects can own and close any descriptor.
owned: Callable[[int], Descriptor] = getattr(getattr(select, "epoll", None), "fromfd", OwnedFd)
"""Take over a descriptor."""


close: Callable[[int], None] = os.close
"""Close a descriptor."""


def opened(opener: Callable[..., int], *args: Any) -> Descriptor:
    """Open a descriptor by calling a C function with one or more arguments."""
    return with_room(lambda: next(map(owned, map(opener, *zip(args)))))


def with_room(action: Callable[[], T]) -> T:
    """Call a function that opens files. If too many files are open, raise the limit and retry.

    Raises
    ------
    OSError
        If too many descriptors are open even after the limit was raised.
    """
    for _ in range(2):
        try:
            return action()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        raise_limit()
    raise too_many()


def raise_limit() -> None:
    """Raise the limit of open files to the hard limit, or as close to it as the system allows."""
    with suppress(ImportError):
        import resource  # late, because it is not on every system

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most, safe = min(hard, MOST), min(hard, SAFE)
        for limits in (
            (most, hard),
            (safe, hard),
            (safe, safe),
        ):  # the last attempt lowers the hard limit
            if soft < limits[0]:
                with suppress(OSError, ValueError):
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
                    return


def too_many() -> OSError:
    """Return the error for a process that has too many open files."""
    if sys.platform == "win32":
        limit, remedy = "no more", "or put several into one SharedBuffer"
    else:
        limit = f"{os.sysconf('SC_OPEN_MAX')} (ulimit -n)"
        remedy = "put several into one SharedBuffer, or raise the limit"
    return OSError(
        errno.EMFILE,
        f"too many open files: this process may have {limit}. An array in shared memory of more "
        f"than 32 KiB takes one or two, a worker several. Use fewer and larger arrays, {remedy}.",
    )
