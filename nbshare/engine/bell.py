"""A bell: what wakes a thread when other threads or processes have news for it."""

from __future__ import annotations

import _thread
import os
import select
from contextlib import suppress

__all__ = ["Bell"]


class Bell:
    """Wakes the thread that waits; rung before, it does not wait.

    Attributes
    ----------
    fd : int
        A descriptor that other processes ring with `os.eventfd_write`; -1 when it is closed.

    Notes
    -----
    `ring` is for any thread, all else for the one that waits.
    """

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._lock = _thread.allocate_lock()  # so that nobody rings a descriptor that is not it

    def ring(self) -> None:
        """Wake the thread that waits, if there is one."""
        with self._lock:
            if self.fd >= 0:
                os.eventfd_write(self.fd, 1)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is rung; returns whether it was."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return True

    def close(self) -> None:
        """Let go of the descriptor."""
        with self._lock:
            os.close(self.fd)
            self.fd = -1
