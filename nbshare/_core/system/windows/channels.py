"""Packets of bytes and handles between processes, over a pipe that keeps them whole, and pipes.

Handles are duplicated into the other process by the sender, so it has to know that process (see
`End.connect`). A duplicate keeps memory until the receiver has closed it.
"""

from __future__ import annotations

import _overlapped
import _winapi
import math
import os
import pickle
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import Handle

MAX_FDS = 200  # a packet
ROOM = 1 << 17  # bytes of packets on their way, of a few or one with `MAX_FDS` handles
BROKEN = {109, 232}  # ERROR_BROKEN_PIPE, ERROR_NO_DATA
ABORTED = _winapi.ERROR_OPERATION_ABORTED
PAUSE_S = 0.001
NO_EVENT = 0  # for an operation whose end a completion port tells

_MESSAGES = _winapi.PIPE_TYPE_MESSAGE | _winapi.PIPE_READMODE_MESSAGE


class End:
    """One end of a connection. One thread may send, and one receive.

    It reads a packet before it comes, because each question to the system whether there is one
    takes as long as to read it.

    Attributes
    ----------
    look : callable or None
        Has the reads whose end a completion port tells end, if it watches this.
    """

    def __init__(self, handle: int) -> None:
        self._file = handles.OwnedHandle(handle)
        self._peer = handles.HERE
        self._reading: Any = None
        self.look: Callable[[], object] | None = None
        ends[handle] = self

    def connect(self, process: int) -> None:
        """Tell it in which process the other end is."""
        self._peer = process

    def fileno(self) -> int:
        """Return the handle, to wait for."""
        return self._file.fileno()

    def close(self) -> None:
        """Close it."""
        self.cancel()
        self._file.close()

    def has_packet(self) -> bool:
        """Return whether the next packet has come, or the other end is closed."""
        if self._reading is None:
            event = _overlapped.INVALID_HANDLE_VALUE if self.look is None else NO_EVENT
            self._reading = _overlapped.Overlapped(event)
            with suppress(BrokenPipeError):  # which `packet` raises
                self._reading.ReadFile(self.fileno(), ROOM)
        return not self._reading.pending

    def packet(self) -> bytes:
        """Return the packet that has come, and do not read another one yet."""
        reading, self._reading = self._reading, None
        return bytes(reading.getresult(True))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait for the next packet, or the end of the other end. Return whether it has come."""
        if self.has_packet():
            return True
        ms = _winapi.INFINITE if timeout_s is None else math.ceil(timeout_s * 1e3)
        return _winapi.WaitForSingleObject(self._reading.event, ms) == _winapi.WAIT_OBJECT_0

    def cancel(self) -> None:
        """Read nothing more."""
        reading, self._reading = self._reading, None
        if reading is not None and reading.pending:
            with suppress(OSError):
                reading.cancel()
                reading.getresult(True)

    def given(self, fd: int) -> Handle:
        """Return what a handle is in the other process, from now on."""
        try:
            return handles.duplicate(fd, self._peer)
        except PermissionError:  # of a process that has ended
            raise BrokenPipeError("the other end is gone") from None


ends: weakref.WeakValueDictionary[int, End] = weakref.WeakValueDictionary()  # by handle


def end_from(fd: int, owner: int) -> End:
    """Take over the end of a connection that the owner has given to this process."""
    end = End(fd)
    end.connect(owner)
    return end


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` handles.

    Raises
    ------
    OSError
        The other end is gone or, with ``wait=False``, does not read its packets.
    """
    packet = pickle.dumps((data, [end.given(fd) for fd in fds]))
    try:
        writing = _overlapped.Overlapped(NO_EVENT)
        writing.WriteFile(end.fileno(), packet)
        if writing.pending and not wait:
            writing.cancel()
        while writing.pending:  # rarely, because there is room for some packets
            time.sleep(PAUSE_S)
            if end.look is not None:
                end.look()
        writing.getresult(False)
    except OSError as error:
        code = getattr(error, "winerror", None)
        if code == ABORTED:
            raise BlockingIOError("the other end does not read its packets") from None
        if code in BROKEN:
            raise BrokenPipeError("the other end is gone") from None
        raise


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:  # noqa: ARG001
    """Return the next packet and its handles, empty if the other end is gone.

    Raises
    ------
    BlockingIOError
        If there is none, with ``wait=False``.
    """
    if not end.has_packet() and end.look is not None:
        end.look()
    if not (end.wait(None) if wait else end.has_packet()):
        raise BlockingIOError
    try:
        data, fds = pickle.loads(end.packet())
    except OSError as error:
        if getattr(error, "winerror", None) in BROKEN:
            return b"", []
        raise
    return data, fds


def keep_open(end: End) -> None:
    """Keep an end of a connection open until this process has ended."""
    handles.duplicate(end.fileno())


def pair() -> tuple[End, End]:
    """Return both ends of a new connection."""
    ours, theirs = _ends(_winapi.PIPE_ACCESS_DUPLEX, _MESSAGES)
    _winapi.SetNamedPipeHandleState(theirs, _winapi.PIPE_READMODE_MESSAGE, None, None)
    return End(ours), End(theirs)


def _ends(access: int, kind: int) -> tuple[int, int]:
    name = rf"\\.\pipe\nbshare-{os.getpid():x}-{os.urandom(7).hex()}"
    flags = access | _winapi.FILE_FLAG_OVERLAPPED | _winapi.FILE_FLAG_FIRST_PIPE_INSTANCE
    ours = _winapi.CreateNamedPipe(
        name, flags, kind | _winapi.PIPE_WAIT, 1, ROOM, ROOM, _winapi.NMPWAIT_WAIT_FOREVER, 0
    )
    try:
        is_duplex = access == _winapi.PIPE_ACCESS_DUPLEX
        rights = _winapi.GENERIC_WRITE | (_winapi.GENERIC_READ if is_duplex else 0)
        # A pipe for prints is written to by code that knows no overlapped calls.
        how = _winapi.FILE_FLAG_OVERLAPPED if is_duplex else 0
        theirs = _winapi.CreateFile(name, rights, 0, 0, _winapi.OPEN_EXISTING, how, 0)
        _winapi.ConnectNamedPipe(ours, overlapped=True).GetOverlappedResult(True)
    except BaseException:
        handles.close(ours)
        raise
    return ours, theirs


def print_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe for a worker's prints."""
    ours, theirs = _ends(_winapi.PIPE_ACCESS_INBOUND, 0)
    return Handle(ours), Handle(theirs)


def has_unread(fd: int) -> bool:  # noqa: ARG001
    """Return whether a pipe has bytes that have not been read. In doubt it has."""
    return True
