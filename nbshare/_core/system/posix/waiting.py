"""Waiting for locks and for descriptors."""

from __future__ import annotations

import _socket
import select
import time
from collections.abc import Callable
from typing import Any

LONGEST_S = 3600.0  # of a wait (poll takes some more, but not what a user may call a time-out)


def interruptible(wait: Callable[[Any], bool], timeout_s: float | None) -> bool:
    """Call what waits at most some seconds, or endlessly. An interrupt ends any wait here."""
    return wait(timeout_s)


def is_readable(fd: int | _socket.socket, timeout_s: float | None = None) -> bool:
    """Wait until a descriptor is readable or its other end is closed. Return whether it is."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))


class FdWaiter:
    """Waits for several descriptors. Each stands for an object.

    Notes
    -----
    For one thread.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, object] = {}

    def watch(self, fd: int, what: object) -> None:
        """Report `what` when the descriptor is readable or its other end is closed."""
        self._watched[fd] = what
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def wait(self, until_s: float) -> list[object]:
        """Wait for something to report, until a time on the monotonic clock. Return each once."""
        timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        return list({self._watched[fd]: None for fd, _ in self._poll.poll(timeout_ms)})
