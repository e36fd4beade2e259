"""Events of the dispatcher's thread: descriptors, requests of other threads, a time."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from nbshare.system.descriptors import opened

LONGEST_S = 3600.0  # of a wait; poll takes some more, but not what a user may call a time-out


class WorkerEvent:
    """Wakes one waiting worker process each time it is set; if none waits, the next one to wait.

    Attributes
    ----------
    fd : int
        The descriptor to wait for. It closes with this object, so a setter keeps the object alive.

    Notes
    -----
    For any thread.
    """

    _flags = os.EFD_SEMAPHORE if hasattr(os, "eventfd") else 0

    def __init__(self) -> None:
        self._file = opened(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | self._flags)
        self.fd = self._file.fileno()

    def set(self, n: int = 1) -> None:
        """Set it, `n` times."""
        for _ in range(n):  # writing n once would wake one only
            os.eventfd_write(self.fd, 1)


class OwnerEvent(WorkerEvent):
    """Wakes a waiting thread, once however often it was set.

    Other processes set it with `os.eventfd_write`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting one.
    """

    _flags = 0

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, and clear it; return whether it was set."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear it: the next wait lasts until it is set again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class Events:
    """The events that the dispatcher waits for.

    They are "posted": other threads have posted an action; and what `watch` was given.

    Notes
    -----
    `post` and `wake` are for any thread, everything else for the waiting one.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, object] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._event: OwnerEvent | None = OwnerEvent()
        self.watch(self._event.fd, "posted")

    def post(self, action: Callable[[], None]) -> None:
        """Run an action in the waiting thread, in order; here if that thread has ended."""
        self._posted.append(action)
        if not self.wake():  # it has emptied the queue for the last time
            self.do_posted()

    def wake(self) -> bool:
        """End the wait; return False if that thread has ended."""
        event = self._event  # this reference keeps its descriptor open
        if event is None:
            return False
        event.set()
        return True

    def watch(self, fd: int, event: object) -> None:
        """Report `event` when the descriptor is readable or its other end is closed."""
        self._watched[fd] = event
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def wait(self, until_s: float) -> list[object]:
        """Wait for events, until a time on the monotonic clock; return each once."""
        timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        return list({self._watched[fd]: None for fd, _ in self._poll.poll(timeout_ms)})

    def do_posted(self) -> None:
        """Run the actions that other threads have posted."""
        if (event := self._event) is not None:
            event.clear()  # first: later posts set it again
        while self._posted:
            try:
                action = self._posted.popleft()
            except IndexError:  # another thread took it
                return
            action()

    def close(self) -> None:
        """Run the posted actions, and close the descriptor."""
        self._event = None
        self.do_posted()
        self._watched.clear()
