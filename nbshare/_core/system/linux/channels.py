"""Packets of bytes and descriptors between processes, over a local socket, and pipes.

``SOCK_SEQPACKET`` keeps packets whole, so that none is ever half read. A send either succeeds
immediately or fails, so a process that has stopped reading cannot block the sender.
"""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import errno
import os
import time
from collections.abc import Sequence

from nbshare._core.system.descriptors import raise_limit, with_room
from nbshare._core.system.posix import (
    given_in,
    has_unread,
    keep_open,
    pipe,
    print_pipe,
    rights_of,
    room_for,
)

MAX_FDS = 200  # a packet, while the kernel takes 253
ARRIVE_S = 2.0  # until descriptors in flight are received, as a receiver starts in 5 ms
PAUSE_S = 0.001

End = _socket.socket  # of a connection. One thread may send, and one receive

_SEND, _RECEIVE = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
_ROOM = room_for(MAX_FDS)


# Not socket.send_fds and recv_fds, because up to Python 3.13 they ignore their flags.


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` descriptors.

    Raises
    ------
    OSError
        The other end is gone or, with ``wait=False``, does not read its packets.
    """
    rights = rights_of(fds)
    flags = _SEND if wait else _SEND | _socket.MSG_DONTWAIT
    until_s = 0.0
    while True:
        try:
            end.sendmsg([data], rights, flags)
        except OSError as error:
            # An ordinary user may have at most `ulimit -n` descriptors in flight. Starting
            # processes take theirs within a few milliseconds.
            now = time.monotonic()
            until_s = until_s or now + ARRIVE_S
            if error.errno != errno.ETOOMANYREFS or now > until_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:
    """Return the next packet, of at most `nbytes`, and its descriptors.

    It is empty if the other end is gone.

    Raises
    ------
    BlockingIOError
        If there is none, with ``wait=False``.
    """
    flags = _RECEIVE if wait else _RECEIVE | _socket.MSG_DONTWAIT
    data, ancillary, flags, _ = end.recvmsg(nbytes, _ROOM, flags)
    fds = given_in(ancillary, flags)
    if fds and fds[-1] + MAX_FDS > os.sysconf("SC_OPEN_MAX"):
        raise_limit()  # descriptors beyond the limit are lost
    return data, fds


def end_from(fd: int, _owner: int) -> End:
    """Take over the end of a connection that was inherited from the owner."""
    return End(fileno=fd)


def pair() -> tuple[End, End]:
    """Return both ends of a new connection."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for sock in ours, theirs:
        sock.setblocking(True)  # despite socket.setdefaulttimeout
    return ours, theirs
