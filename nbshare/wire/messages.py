"""Messages between processes: Python objects and descriptors over a local socket.

``SOCK_SEQPACKET`` keeps messages whole: none is ever half read. A send either succeeds immediately
or fails, so a process that has stopped reading cannot block the sender.
"""

from __future__ import annotations

import _socket  # `socket` takes 2 ms to import, and all workers would wait
import errno
import os
import pickle
import select
import time
from array import array
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare.memory import Segment, View
from nbshare.system.descriptors import raise_limit, too_many, with_room

INLINE = 32 << 10  # bytes; longer messages travel as a segment (a packet must fit the send buffer)
MAX_FDS = 200  # a packet; the kernel takes 253
ARRIVE_S = 2.0  # until descriptors in flight are received: a receiver starts in 5 ms
PAUSE_S = 0.001

_INLINE, _SEGMENT, _FDS_ONLY = b"i", b"s", b"f"

with suppress(AttributeError):  # Windows has none, and no workers yet
    _SEND, _RECEIVE = _socket.MSG_NOSIGNAL, _socket.MSG_CMSG_CLOEXEC
    _DONT_WAIT, _TRUNCATED = _socket.MSG_DONTWAIT, _socket.MSG_CTRUNC
    _RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
    _ROOM = _socket.CMSG_SPACE((MAX_FDS + 1) * array("i").itemsize)


class Channel:
    """One end of a connection.

    Notes
    -----
    One thread may send, and one receive.
    """

    def __init__(self, sock: _socket.socket) -> None:
        self._sock = sock
        self._fds: list[int] = []

    @classmethod
    def from_fd(cls, fd: int) -> Channel:
        """Take over a descriptor that was inherited or received."""
        return cls(_socket.socket(fileno=fd))

    def fileno(self) -> int:
        """Return the descriptor, for `select`."""
        return self._sock.fileno()

    def send(self, message: Any, fds: Sequence[int] = (), *, wait: bool = True) -> None:
        """Send a message and duplicates of `fds`.

        Raises
        ------
        OSError
            The other end is gone or, with ``wait=False``, does not read its messages.
        """
        flags = _SEND if wait else _SEND | _DONT_WAIT
        data = pickle.dumps(message, protocol=5)
        kind, rest = _INLINE, list(fds)
        segment = None
        if len(data) > INLINE:
            segment = Segment.filled(len(data), [(0, data)])
            kind, data = _SEGMENT, len(data).to_bytes(8, "little")
            rest.append(segment.fd)
        while len(rest) > MAX_FDS:
            self._send_packet(_FDS_ONLY, rest[:MAX_FDS], flags)
            del rest[:MAX_FDS]
        self._send_packet(kind + data, rest, flags)
        del segment  # needed until here for its descriptor

    def receive(
        self, *, wait: bool = True, timeout_s: float | None = None
    ) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors; the caller closes these.

        Raises
        ------
        EOFError
            The other end is gone.
        BlockingIOError
            With ``wait=False``: there is no message.
        TimeoutError
            There was no message for `timeout_s` seconds.
        """
        if timeout_s is not None:
            poll = select.poll()
            poll.register(self._sock, select.POLLIN)
            if not poll.poll(timeout_s * 1e3):
                raise TimeoutError(f"no message for {timeout_s} s")
        flags = _RECEIVE if wait else _RECEIVE | _DONT_WAIT
        while True:
            data, fds = self._receive_packet(flags)
            if not data:
                raise EOFError
            self._fds += fds
            if data[:1] != _FDS_ONLY:
                break
        received, self._fds = self._fds, []
        if data[:1] == _SEGMENT:
            nbytes = int.from_bytes(data[1:], "little")
            segment = Segment.open(received.pop(), "r")
            return pickle.loads(View(segment).array(np.uint8, (nbytes,)).data), received
        return pickle.loads(memoryview(data)[1:]), received

    # Not socket.send_fds and recv_fds: up to Python 3.13 they ignore their flags.

    def _send_packet(self, data: bytes, fds: Sequence[int], flags: int) -> None:
        rights = [(*_RIGHTS, array("i", fds))] if fds else []
        until_s = 0.0
        while True:
            try:
                self._sock.sendmsg([data], rights, flags)
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

    def _receive_packet(self, flags: int) -> tuple[bytes, list[int]]:
        data, ancillary, flags, _ = self._sock.recvmsg(INLINE + 256, _ROOM, flags)
        fds = array("i")
        for level, kind, rights in ancillary:
            if (level, kind) == _RIGHTS:
                fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
        if flags & _TRUNCATED:
            for fd in fds:
                os.close(fd)
            raise too_many()
        if fds and fds[-1] + MAX_FDS > os.sysconf("SC_OPEN_MAX"):
            raise_limit()  # descriptors beyond the limit are lost
        return data, list(fds)

    def close(self) -> None:
        """Close this end."""
        self._sock.close()


def channel_pair() -> tuple[Channel, Channel]:
    """Return our end, and the end to pass to the other process and close."""
    ours, theirs = with_room(lambda: _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET))
    for sock in ours, theirs:
        sock.setblocking(True)  # despite socket.setdefaulttimeout
    return Channel(ours), Channel(theirs)
