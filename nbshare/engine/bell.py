"""Bells: what wakes threads and processes when others have news for them."""

from __future__ import annotations

import os
import select
from contextlib import suppress

from nbshare.memory.descriptors import opened

__all__ = ["Bell", "Gong"]


class Gong:
    """Wakes worker processes that wait, one for each stroke; struck before, it is heard later.

    Attributes
    ----------
    fd : int
        A descriptor that processes wait for; closed with this object, so that who rings it has it.

    Notes
    -----
    For any thread.
    """

    _flags = os.EFD_SEMAPHORE if hasattr(os, "eventfd") else 0

    def __init__(self) -> None:
        self._file = opened(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | self._flags)
        self.fd = self._file.fileno()

    def ring(self, n: int = 1) -> None:
        """Ring, `n` times."""
        for _ in range(n):  # once by so many would wake one only
            os.eventfd_write(self.fd, 1)


class Bell(Gong):
    """Wakes a thread that waits, once for all that has been rung.

    Other processes ring it with `os.eventfd_write`.

    Notes
    -----
    `ring` is for any thread, all else for the one that waits.
    """

    _flags = 0

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is rung; returns whether it was."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)
        return True
