"""Waiting for descriptors, for events of other processes, for a change in shared memory."""

from __future__ import annotations

import ctypes
import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress

from nbshare._core.system.descriptors import close, with_room
from nbshare._core.system.posix import LONGEST_S, FdWaiter, interruptible, is_readable

LOOK_S = 1e-3
MOST = 1 << 16  # bytes in a pipe


class Waiter(FdWaiter):
    """Waits for several descriptors, and for `OwnerEvent`s. Each stands for an object."""

    def waker(self, what: object) -> OwnerEvent:
        """Return an event that has this report `what`. Its `set` is for any thread."""
        event = OwnerEvent()
        self.watch(event.reading, what)
        return event


class NewData:
    """Knows which pipes have got new data. Data that is left in one is not new again.

    A pipe is watched until it has data, and again when that has been read.

    Parameters
    ----------
    waiter : Waiter
        Reports it when there is one.
    what : object
        The object that it reports.
    """

    def __init__(self, waiter: Waiter, what: object) -> None:
        self._waiter, self._what = waiter, what
        self._watched: set[int] = set()

    def watch(self, fd: int) -> None:
        """Report a pipe that gets data from now on, or has some."""
        if fd not in self._watched:
            self._watched.add(fd)
            self._waiter.watch(fd, self._what)

    def unwatch(self, fd: int) -> None:
        """Stop watching a pipe."""
        if fd in self._watched:
            self._watched.remove(fd)
            self._waiter.unwatch(fd)

    def fds(self) -> Iterable[int]:
        """Return the pipes with new data."""
        poll = select.poll()
        for fd in self._watched:
            poll.register(fd, select.POLLIN)
        found = [fd for fd, _ in poll.poll(0)]
        for fd in found:
            self.unwatch(fd)
        return found

    def look(self) -> None:
        """Do nothing, because `read` sees all data."""

    def read(self, fd: int, nbytes: int) -> bytes:
        """Read at most so many bytes of a pipe. Raise BlockingIOError if there are none."""
        try:
            data = os.read(fd, nbytes)
        except BlockingIOError:
            self.watch(fd)
            raise
        if data:  # else it has ended
            self.watch(fd)
        return data

    def close(self) -> None:
        """Do nothing, because the pipes have been closed."""


class _Pipe:
    """A pipe that nobody waits at. It is read when there is something, and written to with room."""

    _close = staticmethod(close)  # at exit the module's names may be gone

    def __init__(self) -> None:
        self.reading, self.writing = with_room(os.pipe)
        for end in (self.reading, self.writing):
            os.set_blocking(end, False)

    def __del__(self) -> None:
        for end in (self.reading, self.writing):
            self._close(end)


class WorkerEvent(_Pipe):
    """Wakes one waiting worker process each time it is set. If none waits, the next one to wait.

    All of them wake, and one finds the byte.

    Attributes
    ----------
    fd : int
        The descriptor to wait for. It closes with this object, so a setter keeps the object alive.

    Notes
    -----
    For any thread.
    """

    @property
    def fd(self) -> int:
        return self.reading

    def set(self, n: int = 1) -> None:
        """Set it, `n` times."""
        with suppress(BlockingIOError):  # more than all workers can take
            os.write(self.writing, bytes(n))


class OwnerEvent(_Pipe):
    """Wakes a waiting thread, once however often it was set.

    Attributes
    ----------
    fd : int
        The descriptor by which other processes set it, with `set_event`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting one.
    """

    @property
    def fd(self) -> int:
        return self.writing

    def set(self) -> None:
        """Set it."""
        set_event(self.writing)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, and clear it. Return whether it was set."""
        if not is_readable(self.reading, timeout_s):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear it, so that the next wait lasts until it is set again."""
        with suppress(BlockingIOError):
            os.read(self.reading, MOST)


class TokenWaiter:
    """Waits for a `WorkerEvent`, as several processes do. Each token is for one of them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, timeout_s: float) -> bool:
        """Wait for a token, and take it if no other process was quicker. Return if there was."""
        if not is_readable(self._fd, timeout_s):
            return False
        with suppress(BlockingIOError):
            os.read(self._fd, 1)
        return True

    def close(self) -> None:
        """Do nothing, because the descriptor is the caller's."""


def set_event(fd: int) -> None:
    """Set an event, by its descriptor."""
    with suppress(BlockingIOError, BrokenPipeError):  # it is set already, or nobody waits any more
        os.write(fd, b"\0")


def futex() -> None:
    """Do nothing (see `sleep_while`)."""


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while a word of shared memory has a value.

    macOS before 14.4 lets no process wake a sleeper of another one, so this looks every
    millisecond, which takes some per cent of a CPU.
    """
    word, until_s = ctypes.c_uint32.from_address(address), time.monotonic() + timeout_s
    while word.value == value and time.monotonic() < until_s:
        time.sleep(LOOK_S)


def wake_all(address: int) -> None:
    """Do nothing (see `sleep_while`)."""
