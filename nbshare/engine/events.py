"""Events of the dispatcher's thread: descriptors, requests of other threads, a time."""

from __future__ import annotations

import os
import select
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Literal, NamedTuple

from nbshare.memory.descriptors import opened

if TYPE_CHECKING:
    from nbshare.engine.process import WorkerProcess

LONGEST_S = 3600.0  # of a wait; poll takes some more, but not what a user may call a time-out


class WorkerEvent:
    """Wakes worker processes that wait, one each time it is set; set before, it is seen later.

    Attributes
    ----------
    fd : int
        A descriptor that processes wait for. It closes with this object, so a setter keeps it open.
    set_at : float
        When it was set last, on the monotonic clock.

    Notes
    -----
    For any thread.
    """

    _flags = os.EFD_SEMAPHORE if hasattr(os, "eventfd") else 0

    def __init__(self) -> None:
        self._file = opened(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | self._flags)
        self.fd = self._file.fileno()
        self.set_at = time.monotonic()

    def set(self, n: int = 1) -> None:
        """Set it, `n` times."""
        self.set_at = time.monotonic()
        for _ in range(n):  # once by so many would wake one only
            os.eventfd_write(self.fd, 1)


class OwnerEvent(WorkerEvent):
    """Wakes a thread that waits, once however often it has been set.

    Other processes set it with `os.eventfd_write`.

    Notes
    -----
    `set` is for any thread, all else for the one that waits.
    """

    _flags = 0

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, and clear it; returns whether it was."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Have the next wait last until it is set again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class Sent(NamedTuple):
    """A worker has sent something, or has closed its channel."""

    worker: WorkerProcess


class Died(NamedTuple):
    """A worker has died."""

    worker: WorkerProcess


# Meanings of a readable descriptor: also, that other threads have posted something, and
# that workers have printed something.
Event = Sent | Died | Literal["posted", "printed"]


class Events:
    """What a thread waits for.

    Notes
    -----
    `post` and `wake` are for any thread, all else for the one that waits.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, Event] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._event: OwnerEvent | None = OwnerEvent()
        self.watch(self._event.fd, "posted")

    def post(self, action: Callable[[], None]) -> None:
        """Have the waiting thread do something, in the order of posting; here if it has ended."""
        self._posted.append(action)
        if not self.wake():  # it has emptied the queue for the last time
            self.do_posted()

    def wake(self) -> bool:
        """End the wait; returns False if no thread waits any more."""
        event = self._event  # while it is referred to, its descriptor is its own
        if event is None:
            return False
        event.set()
        return True

    def watch(self, fd: int, event: Event) -> None:
        """Tell of `event` whenever the descriptor can be read, or its other end is gone."""
        self._watched[fd] = event
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Watch the descriptor no more."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def wait(self, until_s: float) -> list[Event]:
        """Return what has happened, when something has, or at a time of the monotonic clock."""
        timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        return [self._watched[fd] for fd, _ in self._poll.poll(timeout_ms)]

    def do_posted(self) -> None:
        """Do what other threads have posted."""
        if (event := self._event) is not None:
            event.clear()  # first: what is posted from now on wakes again
        while self._posted:
            try:
                action = self._posted.popleft()
            except IndexError:  # another thread was quicker
                return
            action()

    def close(self) -> None:
        """Do what is posted, and close the descriptor."""
        self._event = None
        self.do_posted()
        self._watched.clear()
