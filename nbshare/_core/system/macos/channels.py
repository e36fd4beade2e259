"""Packets of bytes and descriptors between processes, over a local socket, and pipes.

macOS has local sockets that are streams, so a packet begins with its length. It may lose
descriptors that their sender closes while they are on their way (CPython's multiprocessing waits
for an answer there, https://bugs.python.org/issue14669). So the sender keeps duplicates of what it
has sent until the other end says something, which it does after it has received them. If that says
nothing more, it keeps them until it has been idle for a while (`workers.return_freed`).
"""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from typing import ClassVar

from nbshare._core.system.descriptors import File, with_room
from nbshare._core.system.macos.handles import Handle
from nbshare._core.system.posix import (
    given_in,
    has_unread,
    keep_open,
    pipe,
    print_pipe,
    rights_of,
    room_for,
)

MAX_FDS = 100  # a packet (what comes with it has to fit 2 KiB)
LENGTH = 4  # bytes of a packet that tell its length
BUFFER = 1 << 18  # bytes of packets on their way (the default is 8 KiB)
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
        self.sent: list[File] = []  # that may be on their way
        self.all.add(self)

    def close(self) -> None:
        """Close it."""
        self.sent.clear()
        super().close()

    @classmethod
    def forget_all(cls) -> None:
        """Take what has been sent for received."""
        for end in cls.all:
            end.sent.clear()


def end_from(fd: int, _owner: int) -> End:
    """Take over the end of a connection that was inherited from the owner."""
    return End(fd)


def pair() -> tuple[End, End]:
    """Return both ends of a new connection."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_STREAM))
    return End(ours.detach()), End(theirs.detach())


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` descriptors.

    Raises
    ------
    OSError
        The other end is gone or, with ``wait=False``, does not read its packets.
    """
    content = pickle.dumps((data, [fd.facts() if isinstance(fd, Handle) else None for fd in fds]))
    packet = len(content).to_bytes(LENGTH, "little") + content
    end.sent += [File(with_room(lambda fd=fd: os.dup(fd))) for fd in fds]  # type: ignore[misc]
    n = end.sendmsg([packet], rights_of(fds), 0 if wait else _socket.MSG_DONTWAIT)
    if n == len(packet):
        return
    if wait:
        end.sendall(packet[n:])
        return
    end.shutdown(_socket.SHUT_RDWR)  # the rest of a packet cannot come later
    raise BlockingIOError("the other end does not read its packets")


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:  # noqa: ARG001
    """Return the next packet and its descriptors, empty if the other end is gone.

    Raises
    ------
    BlockingIOError
        If there is none, with ``wait=False``.
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
        fd if known is None else Handle(fd).of(*known) for fd, known in zip(fds, facts, strict=True)
    ]


def _exactly(end: End, nbytes: int) -> bytes:
    """Return so many bytes of a packet that has begun, or nothing if the other end has ended."""
    parts = bytearray()
    while len(parts) < nbytes:
        if not (part := end.recv(nbytes - len(parts))):
            return b""
        parts += part
    return bytes(parts)
