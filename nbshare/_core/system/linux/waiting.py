"""Packets and pipes between processes, waiting for them, events, and the order of memory.

**Packets** of bytes and descriptors are sent over a local socket. ``SOCK_SEQPACKET`` keeps packets
whole, so that none is ever read in part. A send either succeeds immediately or fails, so a process
that has stopped reading cannot block the sender.

**The order of memory.** Other CPUs must see data that were written before a mark when they see the
mark. A process that publishes data writes them first and a mark last. Examples are a result and its
``done`` byte, a block of items and their count, the last read of a block and its release. Another
process reads the mark and then uses the data. Both must be seen in that order.

x86-64 keeps the order, because stores are seen, and loads are made, in the order of the program
(Intel's Software Developer's Manual, volume 3, "Memory Ordering"). Other machines do not, ARM among
them (Arm Architecture Reference Manual, "The AArch64 Application Level Memory Model"). There the
mark can be seen first.

Python has no fence, and glibc exports none, because its atomics are compiled into each program.
Locking and unlocking a mutex is not a fence either, because accesses before and after may move
between the two. But Linux has membarrier(2), for programs in which one side is much more frequent.
Only the reader of a mark calls it. When it returns, every running thread of all processes that have
registered has passed a point where its accesses to memory match the order of its program, and so
has the caller. A thread that is not running passed such a point when it was switched off. A mark
that was seen before the call was written before that point of its writer, so the data were, too.
The order in the writer's program is certain, too: the two stores are in different calls of compiled
functions, which no compiler exchanges.

Messages, events, file locks and the end of a process need no mark, because the kernel orders the
data of a system call by its own locks. The mutexes of ring buffers and `nbshare.SharedLock` order
data too, by POSIX ("Memory Synchronization"). Displayed figures (the progress of an item, stats)
are read without a fence.

A call of membarrier takes a microsecond, and more if many CPUs run workers.
"""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import ctypes
import errno
import os
import select
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache, partial
from typing import Any

from nbshare._core.system.descriptors import opened, raise_limit, with_room
from nbshare._core.system.portable import before_marks, interruptible
from nbshare._core.system.posix import (
    FdWaiter,
    given_in,
    has_unread,
    is_readable,
    keep_open,
    pipe,
    print_pipe,
    rights_of,
    room_for,
)
from nbshare.errors import NotBuiltYetError

# -------------------------------------------------------------------------------- packets and pipes

MAX_FDS = 200  # per packet (the kernel's limit is 253)
ARRIVE_S = 2.0  # limit for the receipt of descriptors in flight. A receiver starts in 5 ms.
PAUSE_S = 0.001

End = _socket.socket  # an end of a connection. One thread may send, and one receive.

_SEND, _RECEIVE = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
_ROOM = room_for(MAX_FDS)


# Not socket.send_fds and recv_fds, because up to Python 3.13 they ignore their flags.


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` descriptors.

    Raises
    ------
    OSError
        If the other end has closed or, with ``wait=False``, does not read its packets.
    """
    rights = rights_of(fds)
    flags = _SEND if wait else _SEND | _socket.MSG_DONTWAIT
    until_s = 0.0
    while True:
        try:
            end.sendmsg([data], rights, flags)
        except OSError as error:
            # An ordinary user is limited to `ulimit -n` descriptors in flight. Starting processes
            # receive theirs within a few milliseconds.
            now = time.monotonic()
            until_s = until_s or now + ARRIVE_S
            if error.errno != errno.ETOOMANYREFS or now > until_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:
    """Return the next packet, of at most `nbytes`, and its descriptors.

    The packet is empty if the other end has closed.

    Raises
    ------
    BlockingIOError
        If there is no packet, with ``wait=False``.
    """
    flags = _RECEIVE if wait else _RECEIVE | _socket.MSG_DONTWAIT
    data, ancillary, flags, _ = end.recvmsg(nbytes, _ROOM, flags)
    fds = given_in(ancillary, flags)
    if fds and fds[-1] + MAX_FDS > os.sysconf("SC_OPEN_MAX"):
        raise_limit()  # descriptors beyond the limit are lost
    return data, fds


def end_from(fd: int, _owner: int) -> End:
    """Open the end of a connection that was inherited from the owner."""
    return End(fileno=fd)


def new_connection() -> tuple[End, End]:
    """Create a connection, and return both ends."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for sock in ours, theirs:
        sock.setblocking(True)  # despite socket.setdefaulttimeout
    return ours, theirs


# ------------------------------------------------------------------------------- waiting and events

# From linux/futex.h and each machine's unistd.h, for programs of 64 bits.
FUTEX_WAIT = 0
FUTEX_WAKE = 1
ALL = 2**31 - 1  # wakes all sleepers
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}


class Waiter(FdWaiter):
    """Waits for several descriptors and `OwnerEvent`s. Each has an object that is reported."""

    def waker(self, what: object) -> OwnerEvent:
        """Return an event that reports `what`. Any thread may call its `set`."""
        event = OwnerEvent()
        self.watch(event.fd, what)
        return event


class NewData:
    """Finds the pipes with new data. Data that stays in a pipe counts as new only once.

    Parameters
    ----------
    waiter : Waiter
        Reports the object when a pipe has new data.
    what : object
        The object to report.
    """

    def __init__(self, waiter: Waiter, what: object) -> None:
        self._epoll = with_room(select.epoll)
        waiter.watch(self._epoll.fileno(), what)

    def watch(self, fd: int) -> None:
        """Begin to watch a pipe. Data already in it counts as new."""
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def unwatch(self, fd: int) -> None:
        """Stop watching a pipe."""
        self._epoll.unregister(fd)

    def fds(self) -> Iterable[int]:
        """Return the pipes with new data."""
        return [fd for fd, _ in self._epoll.poll(0)]

    def look(self) -> None:
        """No-op, because `read` finds all data."""

    def read(self, fd: int, nbytes: int) -> bytes:
        """Read at most `nbytes` bytes from a pipe. Raise BlockingIOError if there is no data."""
        return os.read(fd, nbytes)

    def close(self) -> None:
        """Close the descriptor."""
        self._epoll.close()


class WorkerEvent:
    """Each `set` wakes one waiting worker process, or the next process to wait if none waits.

    Attributes
    ----------
    fd : int
        The descriptor to wait for. The descriptor closes with this object, so a process that sets
        the event keeps the object alive.

    Notes
    -----
    For any thread.
    """

    _flags = os.EFD_SEMAPHORE

    def __init__(self) -> None:
        self._file = opened(os.eventfd, 0, os.EFD_CLOEXEC | os.EFD_NONBLOCK | self._flags)
        self.fd = self._file.fileno()

    def set(self, n: int = 1) -> None:
        """Set the event, `n` times."""
        for _ in range(n):  # a single write of n would wake only one process
            os.eventfd_write(self.fd, 1)


class OwnerEvent(WorkerEvent):
    """Wakes a waiting thread once, however often the event was set.

    Other processes set the event with `set_event`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting thread.
    """

    _flags = 0

    def __init__(self) -> None:
        super().__init__()
        self._poll = select.poll()  # created once, because an executor's thread waits for each task
        self._poll.register(self.fd, select.POLLIN)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, and clear it. Return whether it was set."""
        if not self._poll.poll(timeout_s * 1e3):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear the event, so that the next wait lasts until it is set again."""
        with suppress(BlockingIOError):
            os.eventfd_read(self.fd)


class TokenWaiter:
    """Waits for a `WorkerEvent` in one of several processes. Each token wakes one of them.

    Linux before 4.5 wakes all of them, and one takes the token.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._epoll = select.epoll()
        self._epoll.register(fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a token, and take it if possible. Return False if none came in time."""
        if not self._epoll.poll(timeout_s):
            return False
        with suppress(BlockingIOError):
            os.eventfd_read(self._fd)
        return True

    def close(self) -> None:
        """Close the descriptor."""
        self._epoll.close()


def set_event(fd: int) -> None:
    """Set an event, given its descriptor."""
    os.eventfd_write(fd, 1)


def timespec(seconds: float) -> Any:
    """Return a number of seconds as the C library's timespec."""
    whole, part = divmod(seconds, 1)
    return ctypes.byref((ctypes.c_long * 2)(int(whole), int(part * 1e9)))


@cache
def futex() -> Any:
    """Return the system call futex as a function.

    Raises
    ------
    NotBuiltYetError
        If the number of the system call is unknown for this processor.
    """
    machine = os.uname().machine if sys.maxsize > 2**32 else ""
    if machine not in SYS_FUTEX:
        raise NotBuiltYetError(
            f"RingBuffer needs 64-bit Linux on {', '.join(SYS_FUTEX)}. On this system, send arrays "
            "through a multiprocessing.Queue."
        )
    prototype = ctypes.CFUNCTYPE(
        *(ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
        ctypes.c_void_p,
    )
    return partial(prototype(("syscall", ctypes.CDLL(None))), SYS_FUTEX[machine])


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while a word of shared memory has this value, until a wake-up, a signal or timeout."""
    futex()(address, FUTEX_WAIT, value, timespec(timeout_s))


def wake_all(address: int) -> None:
    """Wake all processes that sleep at a word of shared memory."""
    futex()(address, FUTEX_WAKE, ALL, None)


# ------------------------------------------------------------------------------ the order of memory

MACHINE = os.uname().machine
IS_WEAKLY_ORDERED = MACHINE != "x86_64"  # a mark may be seen before its data

# From linux/membarrier.h and each machine's unistd.h. The commands exist since Linux 4.16.
GLOBAL_EXPEDITED, REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2
SYS_MEMBARRIER = {"x86_64": 324, "aarch64": 283, "riscv64": 283, "ppc64le": 365, "s390x": 356}

_call = ctypes.PyDLL(None, use_errno=True).syscall
_call.argtypes, _call.restype = (ctypes.c_long,) * 4, ctypes.c_long


def after_marks() -> None:
    """Order the reads of data after the reads of their marks.

    This is needed only if `IS_WEAKLY_ORDERED`. If the system refuses the call, no worker starts
    (see `processes`).
    """
    _call(SYS_MEMBARRIER.get(MACHINE, -1), GLOBAL_EXPEDITED, 0, 0)


def register_fences() -> None:
    """Register this process for `after_marks` of other processes, if that is needed."""
    if IS_WEAKLY_ORDERED and _call(
        SYS_MEMBARRIER.get(MACHINE, -1), REGISTER_GLOBAL_EXPEDITED, 0, 0
    ):
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _register() -> None:
    with suppress(OSError):
        register_fences()


if IS_WEAKLY_ORDERED:
    _register()
    os.register_at_fork(after_in_child=_register)
