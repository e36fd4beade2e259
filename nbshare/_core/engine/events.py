"""The events of the dispatcher's thread: news from descriptors, and actions from other threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from nbshare._core.system import waiting


class Events(waiting.Waiter):
    """The events that the dispatcher waits for.

    An event is an argument of `watch`, or "posted" for actions that other threads have posted.

    Notes
    -----
    `post` and `wake` are thread-safe. All other methods are for the waiting thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._posted: deque[Callable[[], None]] = deque()
        self._event: waiting.OwnerEvent | None = self.waker("posted")

    def post(self, action: Callable[[], None]) -> None:
        """Run an action in the waiting thread, in order, or in this one if that has ended."""
        self._posted.append(action)
        if not self.wake():  # the queue was emptied for the last time
            self.do_posted()

    def wake(self) -> bool:
        """End the wait. Return False if the waiting thread has ended."""
        event = self._event  # this reference keeps the descriptor open
        if event is None:
            return False
        event.set()
        return True

    def do_posted(self) -> None:
        """Run the actions that other threads have posted."""
        if (event := self._event) is not None:
            event.clear()  # first, because later posts set it again
        while self._posted:
            try:
                action = self._posted.popleft()
            except IndexError:  # another thread ran it
                return
            action()

    def close(self) -> None:
        """Run the posted actions, and close the descriptor."""
        self._event = None
        self.do_posted()
        self._watched.clear()
