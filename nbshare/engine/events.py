"""Events of the dispatcher's thread: descriptors, requests of other threads, a time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from nbshare.system import waiting

LONGEST_S = 3600.0  # of a wait; poll takes some more, but not what a user may call a time-out


class Events:
    """The events that the dispatcher waits for.

    They are "posted": other threads have posted an action; and what `watch` was given.

    Notes
    -----
    `post` and `wake` are for any thread, everything else for the waiting one.
    """

    def __init__(self) -> None:
        self._waiter = waiting.Waiter()
        self._posted: deque[Callable[[], None]] = deque()
        self._event: waiting.OwnerEvent | None = waiting.OwnerEvent()
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
        self._waiter.watch(fd, event)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor."""
        self._waiter.unwatch(fd)

    def wait(self, until_s: float) -> list[object]:
        """Wait for events, until a time on the monotonic clock; return each once."""
        return self._waiter.wait(min(max(0.0, until_s - time.monotonic()), LONGEST_S) + 1e-3)

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
        self._waiter.clear()
