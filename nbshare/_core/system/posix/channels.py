"""Descriptors in packets of a local socket, and pipes."""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import fcntl
import os
import termios
from array import array
from collections.abc import Sequence
from typing import Any

from nbshare._core.system.descriptors import too_many, with_room

_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS

# Not socket.send_fds and recv_fds, because up to Python 3.13 they ignore their flags.


def room_for(n: int) -> int:
    """Return the bytes for descriptors next to a packet, with one more, so that too many fail."""
    return _socket.CMSG_SPACE((n + 1) * array("i").itemsize)


def rights_of(fds: Sequence[int]) -> list[Any]:
    """Return what is sent beside a packet."""
    return [(*_RIGHTS, array("i", fds))] if fds else []


def given_in(ancillary: Sequence[Any], flags: int) -> list[int]:
    """Return the descriptors that came beside a packet.

    Raises
    ------
    OSError
        If this process may not have so many. It has none of them then.
    """
    fds = array("i")
    for level, kind, rights in ancillary:
        if (level, kind) == _RIGHTS:
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if flags & _socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise too_many()
    return list(fds)


def keep_open(end: _socket.socket) -> None:
    """Keep an end of a connection open until this process has ended."""
    end.detach()


def pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe."""
    return with_room(os.pipe)


def print_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe for a worker's prints."""
    ends = pipe()
    os.set_blocking(ends[0], False)  # our end only
    return ends


def has_unread(fd: int) -> bool:
    """Return whether a pipe has bytes that have not been read. Raise OSError if it is closed."""
    fcntl.ioctl(fd, termios.FIONREAD, count := array("i", [0]))
    return count[0] > 0
