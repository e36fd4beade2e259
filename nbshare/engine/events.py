"""One thread waits for everything: descriptors, posted actions, deadlines."""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from nbshare.engine.bell import Bell

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
        self._bell: Bell | None = Bell()
        self.watch(self._bell.fd, partial(self._open_inbox, self._bell))

    def post(self, action: Handler) -> None:
        """Have the waiting thread do something, in the order of posting; here if it has ended."""
        self._inbox.append(action)
        bell = self._bell  # while somebody has it its descriptor is its own
        if bell is None:  # since before the inbox was emptied for the last time
            self._do_posted()
        else:
            bell.ring()

    def watch(self, fd: int, handler: Handler) -> None:
        """Call `handler` whenever the descriptor can be read, or its other end is gone."""
        self._handlers[fd] = handler
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch the descriptor no more."""
        if self._handlers.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def wait(self, until_s: float | None, check: Handler) -> None:
        """Wait until something happens, or until a time of the monotonic clock, and handle it.

        `check` is called in between: what is ready may be closed, and its number another file's.
        """
        timeout_ms = None
        if until_s is not None:
            timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        ready = [(fd, self._handlers[fd]) for fd, _ in self._poll.poll(timeout_ms)]
        check()
        for fd, handler in ready:
            # A handler before it in this round may have closed the descriptor, and another file
            # may have its number by now: what is ready is then not what is watched.
            if self._handlers.get(fd) is handler:
                handler()

    def close(self) -> None:
        """Do what is posted, and let go of the descriptor."""
        self._bell = None
        self._do_posted()
        self._handlers.clear()

    def _open_inbox(self, bell: Bell) -> None:
        bell.wait(0)
        self._do_posted()

    def _do_posted(self) -> None:
        while self._inbox:
            try:
                action = self._inbox.popleft()
            except IndexError:  # another thread was quicker
                return
            action()
