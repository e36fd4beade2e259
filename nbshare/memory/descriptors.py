"""Descriptors that are closed with the object that has them, and cannot be lost on the way to it.

Python looks for signals between any two calls. In ``fd = os.open(path)`` an interrupt can come when
the file is open and nobody has its number yet; in a ``__del__`` that closes it, Python would even
swallow the interrupt. So here a file is opened and given to its owner inside one call of C, and
closed by one.

Few may be open at the same time. If one too many is wanted, the soft limit is raised to the hard
one; processes that are started later inherit it.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from nbshare.errors import TooManyFilesError

__all__ = ["Descriptor", "opened", "owned", "pidfd_of", "raise_limit", "too_many", "with_room"]

MOST = 1 << 20  # the usual hard limit; some programs are slow with a much higher one

T = TypeVar("T")


class Descriptor(Protocol):
    """A descriptor, closed with this object."""

    def fileno(self) -> int:
        """Return its number; -1 if it is closed."""

    def close(self) -> None:
        """Close it now."""


# Such objects are made for a system's event queues, but take over any descriptor, and that they
# close it is all that is wanted of them. Windows has neither, and no arrays yet.
_Queue: Any = getattr(select, "epoll", None) or getattr(select, "kqueue", None)

owned: Callable[[int], Descriptor] = getattr(_Queue, "fromfd", None)  # type: ignore[assignment]
"""Take a descriptor over."""


def opened(opener: Callable[..., int], *args: Any) -> Descriptor:
    """Return the descriptor that a function of C opens, which takes one argument or more."""
    return with_room(lambda: next(map(owned, map(opener, *zip(args)))))


def with_room(action: Callable[[], T]) -> T:
    """Do what opens files; if too many are open, raise the limit and do it again.

    Raises
    ------
    TooManyFilesError
        If too many are open all the same.
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
    """Allow this process as many open files as it may allow itself."""
    with suppress(ImportError, OSError, ValueError):
        import resource  # late: not on every system

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < min(hard, MOST):
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, MOST), hard))


def too_many() -> TooManyFilesError:
    """Return the error of a process that has as many files open as it may."""
    return TooManyFilesError(
        errno.EMFILE,
        f"too many open files: this process may have {os.sysconf('SC_OPEN_MAX')} (ulimit -n). An "
        "array in shared memory of more than 32 KiB takes one, a worker several. Use fewer, larger "
        "arrays, put several into one SharedBuffer, or raise the limit before Python starts.",
    )


def pidfd_of(pid: int) -> int:
    """Open a pidfd; -1 where the system has none (Linux before 5.3), or refuses it."""
    try:
        return with_room(lambda: os.pidfd_open(pid))
    except (AttributeError, OSError):
        return -1
