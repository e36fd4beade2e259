"""Items taken from a source that may be slow, endless, or stop giving anything."""

from __future__ import annotations

import _thread
import contextvars
import itertools
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from nbshare.errors import is_interrupt
from nbshare.wire.task import nbytes_of

__all__ = ["MOST_BYTES", "InlineIntake", "Intake", "ThreadedIntake"]

MOST_BYTES = 32 << 20  # of arrays and texts: of a window, and of what waits to be one

Item = tuple[Any, ...]  # of each iterable one

_END: Item = ("the end",)


class Intake:
    """What has been taken from a source, and not been handed over.

    Parameters
    ----------
    source : iterator
        Of items.

    Attributes
    ----------
    is_exhausted : bool
        Whether all that it gives has been handed over.
    error : BaseException or None
        What it has raised at its end.
    """

    def __init__(self, source: Iterator[Item]) -> None:
        self._source = itertools.chain(source, itertools.repeat(_END))
        self._items: deque[Item] = deque()
        self.is_exhausted = False
        self.error: BaseException | None = None

    def want(self, n: int) -> None:
        """Say how many may wait to be handed over."""

    def take(self, n: int) -> list[Item]:
        """Return the next items: `n` at most, and none if none have come."""
        items: list[Item] = []
        nbytes = 0
        while len(items) < n and nbytes < MOST_BYTES and self._items:
            item = self._items.popleft()
            if item is _END:
                self.is_exhausted = True
                break
            items.append(item)
            nbytes += nbytes_of(item)
        return items

    def close(self) -> None:
        """Take no more; a generator that nobody else has ends."""
        self._source = itertools.chain(())

    def _get(self, n: int) -> None:
        try:
            # One by one, so that each is there at once, however long the next one takes.
            self._items.extend(itertools.islice(self._source, n))
        except BaseException as error:
            if is_interrupt(error):
                raise
            frames = error.__traceback__  # without ours, which holds this and so the error
            self.error = error.with_traceback(frames and frames.tb_next)
            self._items.append(_END)


class InlineIntake(Intake):
    """Takes items when they are asked for."""

    def take(self, n: int) -> list[Item]:  # noqa: D102
        if not self._items and not self.is_exhausted:
            self._get(n)
        return super().take(n)


class ThreadedIntake(Intake):
    """Takes items in a thread of its own, as many as may wait.

    Parameters
    ----------
    source : iterator
        Of items.
    tell : callable
        Called when items have come while none waited.
    """

    def __init__(self, source: Iterator[Item], tell: Callable[[], None]) -> None:
        super().__init__(source)
        self._tell = tell
        self._wanted = 0
        self._is_closed = False
        self._more = _thread.allocate_lock()  # released when there is room
        self._is_started = False

    def want(self, n: int) -> None:  # noqa: D102
        self._wanted = n
        if not self._is_started:
            self._is_started = True
            try:
                # With the caller's context: NumPy's errstate, for one, is kept there.
                _thread.start_new_thread(contextvars.copy_context().run, (self._work,))
            except RuntimeError:  # no more threads are allowed: `take` does it
                self._is_started = False
        self._go_on()

    def take(self, n: int) -> list[Item]:  # noqa: D102
        if not self._is_started and not self._items and not self.is_exhausted:
            self._get(n)
        items = super().take(n)
        self._go_on()
        return items

    def close(self) -> None:  # noqa: D102
        self._is_closed = True
        super().close()
        self._tell = _tell_nobody  # who is told holds this: without garbage collection for ever
        self._go_on()

    def _go_on(self) -> None:
        if self._more.locked():
            with suppress(RuntimeError):  # somebody else has
                self._more.release()

    def _work(self) -> None:
        n, largest = 1, 1
        while not self._is_closed and (not self._items or self._items[-1] is not _END):
            room = min(self._wanted, MOST_BYTES // largest + 1) - len(self._items)
            if room <= 0:
                self._more.acquire()
                continue
            was_empty = not self._items
            self._get(min(n, room))
            if was_empty:
                self._tell()
            with suppress(IndexError):  # handed over already
                largest = max(largest, nbytes_of(self._items[-1]))
            n = min(2 * n, max(1, MOST_BYTES // (8 * largest)))


def _tell_nobody() -> None:
    pass
