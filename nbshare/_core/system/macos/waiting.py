"""Packets and pipes between processes, waiting for them, events, and the order of memory.

**Packets** of bytes and descriptors are sent over a local socket. On macOS, local sockets are
streams, so a packet begins with its length. The system may lose descriptors that their sender
closes while they are in transit (CPython's multiprocessing waits for a reply there,
https://bugs.python.org/issue14669). The sender therefore keeps duplicates of sent descriptors until
the next message of the other end, which follows the receipt. Without a message, the sender keeps
the duplicates until it has been idle for a while (`processes.return_freed_memory`).

**The order of memory.** See `system.linux.waiting` for marks, and for data that need none. Apple's
own CPUs have ARM's architecture, so a mark can be seen before its data. macOS lacks a call by which
a reader makes all writers pass a fence. The writer therefore passes a fence between the data and
the mark, and the reader passes one between the mark and the data. The fence is OSMemoryBarrier, a
full barrier, "to strictly order memory accesses on a weakly ordered architecture", on the memory of
all processors (barrier(3), libkern/OSAtomic.h). Newer C programs use
atomic_thread_fence(memory_order_seq_cst) of C11, which no library exports, because it is compiled
into each program. Accesses and fence are in different calls of compiled functions, so no compiler
moves an access across the fence.

A fence takes some nanoseconds, and its call through ctypes half a microsecond.
"""

from __future__ import annotations

import _socket  # `socket` would take each worker 2 ms to import
import os
import pickle
import select
import sys
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import ClassVar

from nbshare._core.system.descriptors import MemoryFd, OwnedFd, close, with_room
from nbshare._core.system.macos import library
from nbshare._core.system.portable import (
    futex,
    interruptible,
    sleep_while,
    wake_all,
)
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

# -------------------------------------------------------------------------------- packets and pipes

MAX_FDS = 100  # per packet (the ancillary data must fit 2 KiB)
LENGTH = 4  # size of a packet's length, in bytes
BUFFER = 1 << 18  # bytes of packets in transit (the default is 8 KiB)
SO_NOSIGPIPE = 0x1022  # sys/socket.h (not in the module)

_ROOM = room_for(MAX_FDS)


class End(_socket.socket):
    """One end of a connection. One thread may send, and one receive."""

    all: ClassVar[weakref.WeakSet[End]] = weakref.WeakSet()

    def __init__(self, fd: int) -> None:
        super().__init__(fileno=fd)
        self.setblocking(True)  # despite socket.setdefaulttimeout
        for option in (_socket.SO_SNDBUF, _socket.SO_RCVBUF):
            self.setsockopt(_socket.SOL_SOCKET, option, BUFFER)
        if sys.platform == "darwin":
            self.setsockopt(_socket.SOL_SOCKET, SO_NOSIGPIPE, 1)
        self.sent: list[OwnedFd] = []  # descriptors that may be in transit
        self.all.add(self)

    def close(self) -> None:
        """Close this end."""
        self.sent.clear()
        super().close()

    @classmethod
    def forget_all(cls) -> None:
        """Treat all sent descriptors as received."""
        for end in cls.all:
            end.sent.clear()


def end_from(fd: int, _owner: int) -> End:
    """Open the end of a connection that was inherited from the owner."""
    return End(fd)


def new_connection() -> tuple[End, End]:
    """Create a connection, and return both ends."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM))
    return End(ours.detach()), End(theirs.detach())


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` descriptors.

    Raises
    ------
    OSError
        If the other end has closed or, with ``wait=False``, does not read its packets.
    """
    content = pickle.dumps((data, [fd.facts() if isinstance(fd, MemoryFd) else None for fd in fds]))
    packet = len(content).to_bytes(LENGTH, "little") + content
    end.sent += [OwnedFd(with_room(lambda fd=fd: os.dup(fd))) for fd in fds]  # type: ignore[misc]
    n = end.sendmsg([packet], rights_of(fds), 0 if wait else _socket.MSG_DONTWAIT)
    if n == len(packet):
        return
    if wait:
        end.sendall(packet[n:])
        return
    end.shutdown(_socket.SHUT_RDWR)  # the rest of a packet cannot be sent later
    raise BlockingIOError("the other end does not read its packets")


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:  # noqa: ARG001
    """Return the next packet and its descriptors, empty if the other end has closed.

    Raises
    ------
    BlockingIOError
        If there is no packet, with ``wait=False``.
    """
    flags = 0 if wait else _socket.MSG_DONTWAIT
    head, ancillary, flags, _ = end.recvmsg(LENGTH, _ROOM, flags)
    fds = given_in(ancillary, flags)
    for fd in fds:
        os.set_inheritable(fd, False)
    end.sent.clear()
    head += _exactly(end, LENGTH - len(head)) if head else b""
    content = _exactly(end, int.from_bytes(head, "little"))
    if not content:
        for fd in fds:
            os.close(fd)
        return b"", []
    data, facts = pickle.loads(content)
    return data, [
        fd if known is None else MemoryFd(fd).of(*known)
        for fd, known in zip(fds, facts, strict=True)
    ]


def _exactly(end: End, nbytes: int) -> bytes:
    """Read `nbytes` bytes of a packet that has begun. Return b"" if the other end has closed."""
    parts = bytearray()
    while len(parts) < nbytes:
        if not (part := end.recv(nbytes - len(parts))):
            return b""
        parts += part
    return bytes(parts)


# ------------------------------------------------------------------------------- waiting and events

MOST = 1 << 16  # bytes in a pipe


class Waiter(FdWaiter):
    """Waits for several descriptors and `OwnerEvent`s. Each has an object that is reported."""

    def waker(self, what: object) -> OwnerEvent:
        """Return an event that reports `what`. Any thread may call its `set`."""
        event = OwnerEvent()
        self.watch(event.reading, what)
        return event


class NewData:
    """Finds the pipes with new data. Data that stays in a pipe counts as new only once.

    A pipe is watched until it has data, and again after the data are read.

    Parameters
    ----------
    waiter : Waiter
        Reports the object when a pipe has new data.
    what : object
        The object to report.
    """

    def __init__(self, waiter: Waiter, what: object) -> None:
        self._waiter, self._what = waiter, what
        self._watched: set[int] = set()

    def watch(self, fd: int) -> None:
        """Begin to watch a pipe. Data already in it counts as new."""
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
        """No-op, because `read` finds all data."""

    def read(self, fd: int, nbytes: int) -> bytes:
        """Read at most `nbytes` bytes from a pipe. Raise BlockingIOError if there is no data."""
        try:
            data = os.read(fd, nbytes)
        except BlockingIOError:
            self.watch(fd)
            raise
        if data:  # empty at the pipe's end
            self.watch(fd)
        return data

    def close(self) -> None:
        """No-op, because the pipes have been closed."""


class _Pipe:
    """A non-blocking pipe. It is read when it has data, and written to when there is room."""

    _close = staticmethod(close)  # at exit the module's names may be deleted

    def __init__(self) -> None:
        self.reading, self.writing = with_room(os.pipe)
        for end in (self.reading, self.writing):
            os.set_blocking(end, False)

    def __del__(self) -> None:
        for end in (self.reading, self.writing):
            self._close(end)


class WorkerEvent(_Pipe):
    """Each `set` wakes one waiting worker process, or the next process to wait if none waits.

    In fact all waiting processes wake, and one of them finds the byte.

    Attributes
    ----------
    fd : int
        The descriptor to wait for. The descriptor closes with this object, so a process that sets
        the event keeps the object alive.

    Notes
    -----
    For any thread.
    """

    @property
    def fd(self) -> int:
        return self.reading

    def set(self, n: int = 1) -> None:
        """Set the event, `n` times."""
        with suppress(BlockingIOError):  # more tokens than all workers can take
            os.write(self.writing, bytes(n))


class OwnerEvent(_Pipe):
    """Wakes a waiting thread once, however often the event was set.

    Attributes
    ----------
    fd : int
        The descriptor with which other processes call `set_event`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting thread.
    """

    @property
    def fd(self) -> int:
        return self.writing

    def set(self) -> None:
        """Set the event."""
        set_event(self.writing)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, and clear it. Return whether it was set."""
        if not is_readable(self.reading, timeout_s):
            return False
        self.clear()
        return True

    def clear(self) -> None:
        """Clear the event, so that the next wait lasts until it is set again."""
        with suppress(BlockingIOError):
            os.read(self.reading, MOST)


class TokenWaiter:
    """Waits for a `WorkerEvent` in one of several processes. One of them gets each token."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, timeout_s: float) -> bool:
        """Wait for a token, and take it if possible. Return False if none came in time."""
        if not is_readable(self._fd, timeout_s):
            return False
        with suppress(BlockingIOError):
            os.read(self._fd, 1)
        return True

    def close(self) -> None:
        """No-op, because the descriptor is the caller's."""


def set_event(fd: int) -> None:
    """Set an event, given its descriptor."""
    with suppress(BlockingIOError, BrokenPipeError):  # it is set already, or nobody waits any more
        os.write(fd, b"\0")


# ------------------------------------------------------------------------------ the order of memory

# Programs for Intel's CPUs see memory in order, even on Apple's CPUs (by Rosetta).
IS_WEAKLY_ORDERED = os.uname().machine != "x86_64"


def after_marks() -> None:
    """Order the reads of data after the reads of their marks, if `IS_WEAKLY_ORDERED`."""
    library.fence()


before_marks = after_marks
"""Order the writes of data before the writes of their marks, if `IS_WEAKLY_ORDERED`."""
