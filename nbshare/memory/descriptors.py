"""Descriptors that are closed with the object that has them, and cannot be lost on the way to it.

Python looks for signals between any two calls. In ``fd = os.open(path)`` an interrupt can come when
the file is open and nobody has its number yet; in a ``__del__`` that closes it, Python would even
swallow the interrupt. So here a file is opened and given to its owner inside one call of C, and
closed by one.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable
from contextlib import suppress
from typing import Any, ClassVar, Protocol

__all__ = ["Descriptor", "opened", "owned"]


class Descriptor(Protocol):
    """A descriptor, closed with this object."""

    def fileno(self) -> int:
        """Return its number; -1 if it is closed."""

    def close(self) -> None:
        """Close it now."""


class _Plain:
    """A descriptor where no object of C takes one over."""

    _close: ClassVar[Any] = staticmethod(os.close)  # at exit, modules may be gone before this

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def fileno(self) -> int:
        return self._fd

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with suppress(OSError):
                self._close(fd)

    __del__ = close


# Such objects are made for a system's event queues, but take over any descriptor, and that they
# close it is all that is wanted of them.
_Queue: Any = getattr(select, "epoll", None) or getattr(select, "kqueue", None)

owned: Callable[[int], Descriptor] = _Plain if _Queue is None else _Queue.fromfd
"""Take a descriptor over."""


def opened(opener: Callable[..., int], *args: Any) -> Descriptor:
    """Return the descriptor that a function of C opens, which takes one argument or more."""
    (descriptor,) = map(owned, map(opener, *zip(args)))
    return descriptor
