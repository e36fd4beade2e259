"""Messages between processes, with Python objects and descriptors."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np

from nbshare._core.memory import Segment, View
from nbshare._core.system import waiting

INLINE = 32 << 10  # bytes. Longer messages travel as a segment (a packet must fit the send buffer)

_INLINE, _SEGMENT, _FDS_ONLY = b"i", b"s", b"f"


class Channel:
    """One end of a connection.

    Attributes
    ----------
    end : End
        The end, as the system provides it.

    Notes
    -----
    One thread may send, and one may receive.
    """

    def __init__(self, end: waiting.End) -> None:
        self.end = end
        self._fds: list[int] = []

    @classmethod
    def from_fd(cls, fd: int, owner: int) -> Channel:
        """Create a channel from a descriptor that was inherited from `owner`."""
        return cls(waiting.end_from(fd, owner))

    def fileno(self) -> int:
        """Return the descriptor, for waiting."""
        return self.end.fileno()

    def send(self, message: Any, fds: Sequence[int] = (), *, wait: bool = True) -> None:
        """Send a message and duplicates of `fds`.

        Raises
        ------
        OSError
            If the other end has closed or, with ``wait=False``, if its queue is full.
        """
        data = pickle.dumps(message, protocol=5)
        kind, rest = _INLINE, list(fds)
        segment = None
        if len(data) > INLINE:
            segment = Segment.filled(len(data), [(0, data)])
            kind, data = _SEGMENT, len(data).to_bytes(8, "little")
            rest.append(segment.fd)
        most = waiting.MAX_FDS
        while len(rest) > most:
            waiting.send(self.end, _FDS_ONLY, rest[:most], wait=wait)
            del rest[:most]
        waiting.send(self.end, kind + data, rest, wait=wait)
        del segment  # its descriptor is needed until here

    def receive(
        self, *, wait: bool = True, timeout_s: float | None = None
    ) -> tuple[Any, list[int]]:
        """Return the next message and its descriptors. The caller must close the descriptors.

        Raises
        ------
        EOFError
            If the other end has closed.
        BlockingIOError
            If there is no message, with ``wait=False``.
        TimeoutError
            If there was no message for `timeout_s` seconds.
        """
        if timeout_s is not None and not waiting.is_readable(self.end, timeout_s):
            raise TimeoutError(f"no message for {timeout_s} s")
        while True:
            data, fds = waiting.receive(self.end, INLINE + 256, wait=wait)
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

    def close(self) -> None:
        """Close this end."""
        self.end.close()

    def keep_open(self) -> None:
        """Keep this end open until the process ends and the system closes it."""
        waiting.keep_open(self.end)


def channel_pair() -> tuple[Channel, Channel]:
    """Return this process's end, and the end to send to the other process and close."""
    ours, theirs = waiting.new_connection()
    return Channel(ours), Channel(theirs)
