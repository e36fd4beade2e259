"""One thread waits for everything: descriptors, posted actions, deadlines."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

__all__ = ["Events"]

LONGEST_S = 3600.0  # of a wait; poll takes some more, but not what a user may call a time-out

Handler = Callable[[], None]


class Events:
    """What a thread waits for.

    Notes
    -----
    `post` is for any thread, all else for the one that waits.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._handlers: dict[int, Handler] = {}
        self._inbox: deque[Handler] = deque()
        self._is_closed = False
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.watch(self._wake, self._open_inbox)

    def post(self, action: Handler) -> None:
        """Have the waiting thread do something, in the order of posting; here if it has ended."""
        self._inbox.append(action)
        if self._is_closed:  # set before the inbox was emptied for the last time
            self._do_posted()
        else:
            with suppress(OSError):  # closed this moment, and the action done
                os.eventfd_write(self._wake, 1)

    def watch(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever the descriptor can be read, or its other end is gone."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch the descriptor no more."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, until_s: float | None) -> None:
        """Wait until something happens, or until a time of the monotonic clock, and handle it."""
        timeout_ms = None
        if until_s is not None:
            timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        ready = [(fd, self._handlers[fd]) for fd, _ in self._poll.poll(timeout_ms)]
        for fd, handler in ready:
            # A handler before it in this round may have closed the descriptor, and another file
            # may have its number by now: what is ready is then not what is watched.
            if self._handlers.get(fd) is handler:
                handler()

    def close(self) -> None:
        """Do what is posted, and let go of the descriptor."""
        self._is_closed = True
        self._do_posted()
        self._handlers.clear()
        wake, self._wake = self._wake, -1
        os.close(wake)

    def _open_inbox(self) -> None:
        os.eventfd_read(self._wake)
        self._do_posted()

    def _do_posted(self) -> None:
        while self._inbox:
            try:
                action = self._inbox.popleft()
            except IndexError:  # another thread was quicker
                return
            action()
