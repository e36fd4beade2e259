"""Packets of bytes and handles between processes, over a pipe that keeps them whole, and pipes.

Handles are duplicated into the other process by the sender, so it has to know that process (see
`End.connect`). A duplicate keeps memory until the receiver has closed it.
"""

from __future__ import annotations

import _winapi
import os
import pickle
from collections.abc import Sequence

from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import Handle

MAX_FDS = 200  # a packet
ROOM = 1 << 17  # bytes of packets on their way, of a few or one with `MAX_FDS` handles
BROKEN = {109, 232}  # ERROR_BROKEN_PIPE, ERROR_NO_DATA

_MESSAGES = _winapi.PIPE_TYPE_MESSAGE | _winapi.PIPE_READMODE_MESSAGE


class End:
    """One end of a connection. One thread may send, and one receive."""

    def __init__(self, handle: int) -> None:
        self._file = handles.OwnedHandle(handle)
        self._peer = handles.HERE

    def connect(self, process: int) -> None:
        """Tell it in which process the other end is."""
        self._peer = process

    def fileno(self) -> int:
        """Return the handle, to wait for."""
        return self._file.fileno()

    def close(self) -> None:
        """Close it."""
        self._file.close()

    def given(self, fd: int) -> Handle:
        """Return what a handle is in the other process, from now on."""
        try:
            return handles.duplicate(fd, self._peer)
        except PermissionError:  # of a process that has ended
            raise BrokenPipeError("the other end is gone") from None


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
        writing, _ = _winapi.WriteFile(end.fileno(), packet, overlapped=True)
        if not wait and _winapi.WaitForSingleObject(writing.event, 0) != _winapi.WAIT_OBJECT_0:
            writing.cancel()
            _, code = writing.GetOverlappedResult(True)
            if code == _winapi.ERROR_OPERATION_ABORTED:
                raise BlockingIOError("the other end does not read its packets")
        writing.GetOverlappedResult(True)
    except OSError as error:
        if getattr(error, "winerror", None) in BROKEN:
            raise BrokenPipeError("the other end is gone") from None
        raise


def receive(end: End, nbytes: int, *, wait: bool) -> tuple[bytes, list[int]]:  # noqa: ARG001
    """Return the next packet and its handles, empty if the other end is gone.

    Raises
    ------
    BlockingIOError
        If there is none, with ``wait=False``.
    """
    try:
        if not wait and not any(_winapi.PeekNamedPipe(end.fileno())):
            raise BlockingIOError
        reading, _ = _winapi.ReadFile(end.fileno(), ROOM, overlapped=True)
        reading.GetOverlappedResult(True)
    except BlockingIOError:
        raise
    except OSError as error:
        if getattr(error, "winerror", None) in BROKEN:
            return b"", []
        raise
    data, fds = pickle.loads(reading.getbuffer() or b"")
    return data, fds


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
