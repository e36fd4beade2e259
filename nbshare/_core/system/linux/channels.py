"""Packets of bytes and descriptors between processes, over a local socket; and pipes.

``SOCK_SEQPACKET`` keeps packets whole: none is ever half read. A send either succeeds immediately
or fails, so a process that has stopped reading cannot block the sender.
"""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import errno
import fcntl
import os
import termios
import time
from array import array
from collections.abc import Sequence

from nbshare._core.system.descriptors import raise_limit, too_many, with_room

MAX_FDS = 200  # a packet; the kernel takes 253
ARRIVE_S = 2.0  # until descriptors in flight are received: a receiver starts in 5 ms
PAUSE_S = 0.001

End = _socket.socket  # of a connection; one thread may send, and one receive

_SEND, _RECEIVE = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
_ROOM = _socket.CMSG_SPACE((MAX_FDS + 1) * array("i").itemsize)


# Not socket.send_fds and recv_fds: up to Python 3.13 they ignore their flags.


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` descriptors.

    Raises
    ------
    OSError
        The other end is gone or, with ``wait=False``, does not read its packets.
    """
    rights = [(*_RIGHTS, array("i", fds))] if fds else []
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
        With ``wait=False``: there is none.
    """
    flags = _RECEIVE if wait else _RECEIVE | _socket.MSG_DONTWAIT
    data, ancillary, flags, _ = end.recvmsg(nbytes, _ROOM, flags)
    fds = array("i")
    for level, kind, rights in ancillary:
        if (level, kind) == _RIGHTS:
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if flags & _socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise too_many()
    if fds and fds[-1] + MAX_FDS > os.sysconf("SC_OPEN_MAX"):
        raise_limit()  # descriptors beyond the limit are lost
    return data, list(fds)


def end_from(fd: int, _owner: int) -> End:
    """Take over the end of a connection that was inherited from the owner."""
    return End(fileno=fd)


def pair() -> tuple[End, End]:
    """Return both ends of a new connection."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for sock in ours, theirs:
        sock.setblocking(True)  # despite socket.setdefaulttimeout
    return ours, theirs


def pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe."""
    return with_room(lambda: os.pipe2(os.O_CLOEXEC))


def print_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe for a worker's prints."""
    ends = pipe()
    os.set_blocking(ends[0], False)  # our end only
    return ends


def has_unread(fd: int) -> bool:
    """Return whether a pipe has bytes that have not been read; OSError if it is closed."""
    fcntl.ioctl(fd, termios.FIONREAD, count := array("i", [0]))
    return count[0] > 0
