"""The end of something that threads wait for."""

from __future__ import annotations

import _thread
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Ending"]


class Ending:
    """Base of what comes to its end once.

    Attributes
    ----------
    is_over : bool
        Whether it has.

    Notes
    -----
    Safe from any thread, but for `_end`.
    """

    def __init__(self) -> None:
        self.is_over = False
        # A raw lock: a KeyboardInterrupt inside threading's Python code would break its locks.
        self._over = _thread.allocate_lock()
        self._over.acquire()
        self._callbacks: deque[Callable[[], object]] = deque()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it has come."""
        if not self.is_over and self._over.acquire(timeout=timeout_s):
            self._over.release()
        return self.is_over

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back when it is over, or now if it is; if possible in a thread of its own."""
        self._callbacks.append(callback)
        if self.is_over:  # or it has become so meanwhile: whoever takes it out first calls it
            self._call_back()

    def _end(self) -> None:
        """Note the end and wake whoever waits."""
        self.is_over = True
        self._over.release()
        self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            with suppress(IndexError):
                callback = self._callbacks.popleft()
                try:
                    _thread.start_new_thread(_call_safely, (callback,))
                except RuntimeError:  # no more threads are allowed, or the interpreter is ending
                    _call_safely(callback)


def _call_safely(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's
        traceback.print_exc()
