"""Waiting for descriptors, for events of other processes, for a change in shared memory."""

from __future__ import annotations

import ctypes
import os
import select
import sys
from collections.abc import Iterable
from contextlib import suppress
from functools import cache, partial
from typing import Any

from nbshare._core.system.descriptors import opened, with_room
from nbshare._core.system.posix import LONGEST_S, FdWaiter, interruptible, is_readable
from nbshare.errors import NotBuiltYetError

# From linux/futex.h and each machine's unistd.h, for programs of 64 bits.
FUTEX_WAIT = 0
FUTEX_WAKE = 1
ALL = 2**31 - 1  # sleepers
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}


class Waiter(FdWaiter):
    """Waits for several descriptors, and for `OwnerEvent`s. Each stands for an object."""

    def waker(self, what: object) -> OwnerEvent:
        """Return an event that has this report `what`. Its `set` is for any thread."""
        event = OwnerEvent()
        self.watch(event.fd, what)
        return event


class NewData:
    """Knows which pipes have got new data. Data that is left in one is not new again.

    Parameters
    ----------
    waiter : Waiter
        Reports it when there is one.
    what : object
        The object that it reports.
    """

    def __init__(self, waiter: Waiter, what: object) -> None:
        self._epoll = with_room(select.epoll)
        waiter.watch(self._epoll.fileno(), what)

    def watch(self, fd: int) -> None:
        """Report a pipe that gets data from now on, or has some."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def unwatch(self, fd: int) -> None:
        """Stop watching a pipe."""
        self._epoll.unregister(fd)

    def fds(self) -> Iterable[int]:
        """Return the pipes with new data."""
        return [fd for fd, _ in self._epoll.poll(0)]

    def look(self) -> None:
        """Do nothing, because `read` sees all data."""

    def read(self, fd: int, nbytes: int) -> bytes:
        """Read at most so many bytes of a pipe. Raise BlockingIOError if there are none."""
        return os.read(fd, nbytes)

    def close(self) -> None:
        """Close the descriptor."""
        self._epoll.close()


class WorkerEvent:
    """Wakes one waiting worker process each time it is set. If none waits, the next one to wait.

    Attributes
    ----------
    fd : int
        The descriptor to wait for. It closes with this object, so a setter keeps the object alive.

    Notes
    -----
    For any thread.
    """

    _flags = os.EFD_SEMAPHORE

    def __init__(self) -> None:
        self._file = opened(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | self._flags)
        self.fd = self._file.fileno()

    def set(self, n: int = 1) -> None:
        """Set it, `n` times."""
        for _ in range(n):  # writing n once would wake one only
            os.eventfd_write(self.fd, 1)


class OwnerEvent(WorkerEvent):
    """Wakes a waiting thread, once however often it was set.

    Other processes set it with `set_event`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting one.
    """

    _flags = 0

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()  # once, as an executor's thread waits for each task
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until it is set, and clear it. Return whether it was set."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear it, so that the next wait lasts until it is set again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class TokenWaiter:
    """Waits for a `WorkerEvent`, as several processes do. Each token wakes one of them.

    Linux before 4.5 wakes all.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._epoll = select.epoll()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a token, and take it if no other process was quicker. Return if there was."""
        if not self._epoll.poll(timeout_s):
            return False
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        return True

    def close(self) -> None:
        """Close the descriptor."""
        self._epoll.close()


def set_event(fd: int) -> None:
    """Set an event, by its descriptor."""
    os.eventfd_write(fd, 1)


def timespec(seconds: float) -> Any:
    """Return a time as the C library's functions take it."""
    whole, part = divmod(seconds, 1)
    return ctypes.byref((ctypes.c_long * 2)(int(whole), int(part * 1e9)))


@cache
def futex() -> Any:
    """Return the system call as a function.

    Raises
    ------
    NotBuiltYetError
        Where its number is not known.
    """
    machine = os.uname().machine if sys.maxsize > 2**32 else ""
    if machine not in SYS_FUTEX:
        raise NotBuiltYetError(
            f"RingBuffer needs Linux in 64 bits on {', '.join(SYS_FUTEX)}. Here, send arrays "
            "through a multiprocessing.Queue."
        )
    prototype = ctypes.CFUNCTYPE(
        *(ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
        ctypes.c_void_p,
    )
    return partial(prototype(("syscall", ctypes.CDLL(None))), SYS_FUTEX[machine])


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while a word of shared memory has a value and nobody wakes. A signal ends it, too."""
    futex()(address, FUTEX_WAIT, value, timespec(timeout_s))


def wake_all(address: int) -> None:
    """Wake all processes that sleep at a word of shared memory."""
    futex()(address, FUTEX_WAKE, ALL, None)
