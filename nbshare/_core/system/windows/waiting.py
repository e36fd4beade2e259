"""Packets and pipes between processes, waiting for them, events, and the order of memory.

**Packets** of bytes and handles are sent over a named pipe, which keeps packets whole. The sender
duplicates handles into the other process, so the sender has to know that process (see
`End.connect`). A duplicate keeps memory in use until the receiver has closed the duplicate.

**The order of memory** is that of x86-64 (see `system.linux.waiting`). On other machines no worker
starts.
"""

from __future__ import annotations

import _overlapped
import _winapi
import ctypes
import math
import os
import pickle
import sys
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

from nbshare._core.system.descriptors import MemoryFd
from nbshare._core.system.portable import after_marks, before_marks, futex, sleep_while, wake_all
from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import OwnedHandle

# -------------------------------------------------------------------------------- packets and pipes

MAX_FDS = 200  # per packet
ROOM = 1 << 17  # bytes of packets in transit: several small ones, or one with `MAX_FDS` handles
BROKEN = {109, 232}  # ERROR_BROKEN_PIPE, ERROR_NO_DATA
ABORTED = _winapi.ERROR_OPERATION_ABORTED
PAUSE_S = 0.001
NO_EVENT = 0  # for operations whose end a completion port reports

_MESSAGES = _winapi.PIPE_TYPE_MESSAGE | _winapi.PIPE_READMODE_MESSAGE


class End:
    """One end of a connection. One thread may send, and one receive.

    The end starts to read a packet before the packet arrives, because checking takes as long as
    reading.

    Attributes
    ----------
    look : callable or None
        Completes the reads of a completion port, if a port watches this end.
    """

    def __init__(self, handle: int) -> None:
        self._file = handles.OwnedHandle(handle)
        self._peer = handles.HERE
        self._reading: Any = None
        self.look: Callable[[], object] | None = None
        ends[handle] = self

    def connect(self, process: int) -> None:
        """Set the process of the other end."""
        self._peer = process

    def fileno(self) -> int:
        """Return the handle that is waited for."""
        return self._file.fileno()

    def close(self) -> None:
        """Close this end."""
        self.cancel()
        self._file.close()

    def has_packet(self) -> bool:
        """Return whether the next packet has arrived, or the other end is closed."""
        if self._reading is None:
            event = _overlapped.INVALID_HANDLE_VALUE if self.look is None else NO_EVENT
            self._reading = _overlapped.Overlapped(event)
            with suppress(BrokenPipeError):  # `packet` raises it
                self._reading.ReadFile(self.fileno(), ROOM)
        return not self._reading.pending

    def packet(self) -> bytes:
        """Return the packet that has arrived, without starting to read the next one."""
        reading, self._reading = self._reading, None
        return bytes(reading.getresult(True))

    def wait(self, timeout_s: float | None) -> bool:
        """Wait until a packet arrives or the other end closes. Return False if neither happens."""
        if self.has_packet():
            return True
        ms = _winapi.INFINITE if timeout_s is None else math.ceil(timeout_s * 1e3)
        return _winapi.WaitForSingleObject(self._reading.event, ms) == _winapi.WAIT_OBJECT_0

    def cancel(self) -> None:
        """Cancel the read that has been started."""
        reading, self._reading = self._reading, None
        if reading is not None and reading.pending:
            with suppress(OSError):
                reading.cancel()
                reading.getresult(True)

    def given(self, fd: int) -> MemoryFd:
        """Duplicate a handle into the other process, and return its number there."""
        try:
            return handles.duplicate(fd, self._peer)
        except PermissionError:  # the process has ended
            raise BrokenPipeError("the other end is gone") from None


ends: weakref.WeakValueDictionary[int, End] = weakref.WeakValueDictionary()  # by handle


def end_from(fd: int, owner: int) -> End:
    """Open the end of a connection that this process received from the owner."""
    end = End(fd)
    end.connect(owner)
    return end


def send(end: End, data: bytes, fds: Sequence[int], *, wait: bool) -> None:
    """Send a packet and duplicates of at most `MAX_FDS` handles.

    Raises
    ------
    OSError
        If the other end has closed or, with ``wait=False``, does not read its packets.
    """
    packet = pickle.dumps((data, [end.given(fd) for fd in fds]))
    try:
        writing = _overlapped.Overlapped(NO_EVENT)
        writing.WriteFile(end.fileno(), packet)
        if writing.pending and not wait:
            writing.cancel()
        while writing.pending:  # rarely, because there is room for several packets
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
    """Return the next packet and its handles, empty if the other end has closed.

    Raises
    ------
    BlockingIOError
        If there is no packet, with ``wait=False``.
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


def new_connection() -> tuple[End, End]:
    """Create a connection, and return both ends."""
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
        # Code that does not know overlapped calls writes to a pipe for prints.
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
    return MemoryFd(ours), MemoryFd(theirs)


def has_unread(fd: int) -> bool:  # noqa: ARG001
    """Return whether a pipe has unread bytes. In doubt, return True."""
    return True


# ------------------------------------------------------------------------------- waiting and events

LONGEST_S = 3600.0  # longest wait
# An interrupt by Jupyter sets a flag, which Python checks between two waits of the main thread.
SLICE_S = 0.05
WOKEN = 1  # in place of an operation's address. No operation has this address.

_LARGE = 1 << 30  # largest count of a semaphore


class _Packet(ctypes.Structure):
    _fields_ = (
        ("key", handles.SIZE),
        ("operation", handles.SIZE),
        ("rest", handles.SIZE * 2),
    )


MOST_PACKETS = 64  # packets read from a port at a time
WAIT_TIMEOUT = 258
_get_packets: Any = ctypes.WinDLL("kernel32", use_last_error=True).GetQueuedCompletionStatusEx
_get_packets.restype = handles.BOOL
_get_packets.argtypes = (
    *(handles.HANDLE, handles.POINTER, handles.DWORD, handles.POINTER),
    *(handles.DWORD, handles.BOOL),
)
# Operations that end immediately are not reported, because the caller knows their result.
SKIP_ON_SUCCESS = 1
_set_modes = handles.function(
    "SetFileCompletionNotificationModes", handles.BOOL, handles.HANDLE, ctypes.c_ubyte
)


class _Reading:
    """A read of no bytes, which ends when there is data to read."""

    def __init__(self, handle: int) -> None:
        self._operation = _overlapped.Overlapped(0)
        with suppress(OSError):  # the other end has closed: the next read reports it
            self._operation.ReadFile(handle, 0)
        self.address = self._operation.address

    @property
    def is_over(self) -> bool:
        """Whether there is data, or the other end is closed."""
        return not self._operation.pending

    def cancel(self) -> None:
        """Cancel the read."""
        if self._operation.pending:
            with suppress(OSError):
                self._operation.cancel()
                self._operation.getresult(True)


class Waiter:
    """Waits for several pipes and for wake-ups. Each has an object that is reported.

    Notes
    -----
    The `set` of `waker` is for any thread, everything else for one thread.
    """

    def __init__(self) -> None:
        invalid = _overlapped.INVALID_HANDLE_VALUE
        self._port = OwnedHandle(_overlapped.CreateIoCompletionPort(invalid, 0, 0, 1))
        self._packets = (_Packet * MOST_PACKETS)()
        self._watched: dict[int, tuple[End, object]] = {}
        self._new: dict[int, object] = {}  # `NewData` by pipe
        self._woken: object = None
        self._found: dict[object, None] = {}  # to report

    def waker(self, what: object) -> OwnerEvent:
        """Return an event that reports `what`. Any thread may call its `set`."""
        self._woken = what
        return Waker(self._port)

    def watch_new(self, fd: int, what: object) -> None:
        """Report `what` once when a pipe's read of no bytes ends."""
        _overlapped.CreateIoCompletionPort(fd, self._port.fileno(), fd, 0)
        self._new[fd] = what

    def watch(self, fd: int, what: object) -> None:
        """Report `what` when a connection has a packet or its other end is closed."""
        _overlapped.CreateIoCompletionPort(fd, self._port.fileno(), fd, 0)
        _set_modes(fd, SKIP_ON_SUCCESS)
        end = ends[fd]
        end.look = self.look
        self._watched[fd] = end, what

    def unwatch(self, fd: int) -> None:
        """Stop watching a connection."""
        end, _ = self._watched.pop(fd)
        end.cancel()

    def look(self, timeout_s: float = 0.0) -> None:
        """Record which operations have ended. If none has, wait for one until the timeout."""
        n, ms = handles.DWORD(), math.ceil(timeout_s * 1e3)
        packets = self._packets
        if not _get_packets(self._port.fileno(), packets, MOST_PACKETS, ctypes.byref(n), ms, False):
            if (code := ctypes.get_last_error()) != WAIT_TIMEOUT:
                raise ctypes.WinError(code)
            return
        for packet in packets[: n.value]:
            if packet.operation == WOKEN:
                self._found[self._woken] = None
            elif packet.key in self._new:
                self._found[self._new[packet.key]] = None

    def wait(self, until_s: float) -> list[object]:
        """Wait for reports, until a time on the monotonic clock. Return each report once."""
        while True:
            for end, what in self._watched.values():
                if end.has_packet():
                    self._found[what] = None
            if self._found or time.monotonic() >= until_s:
                found, self._found = self._found, {}
                return list(found)
            self.look(min(max(0.0, until_s - time.monotonic()), LONGEST_S))


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
        self._waiter, self._what = waiter, what
        self._readings: dict[int, _Reading] = {}

    def watch(self, fd: int) -> None:
        """Begin to watch a pipe. Data already in it counts as new."""
        self._waiter.watch_new(fd, self._what)
        self._readings[fd] = _Reading(fd)

    def unwatch(self, fd: int) -> None:
        """Stop watching a pipe."""
        self._readings.pop(fd).cancel()

    def fds(self) -> Iterable[int]:
        """Return the pipes with new data."""
        return [fd for fd, reading in self._readings.items() if reading.is_over]

    def look(self) -> None:
        """Record the pipes with data, so that `read` skips the others."""
        self._waiter.look()

    def read(self, fd: int, nbytes: int) -> bytes:
        """Read at most `nbytes` bytes from a pipe. Raise BlockingIOError if there is no data."""
        if not self._readings[fd].is_over:
            raise BlockingIOError
        try:
            n = int(_winapi.PeekNamedPipe(fd)[0])
            if not n:
                raise BlockingIOError
            reading, _ = _winapi.ReadFile(fd, min(n, nbytes), overlapped=True)
            reading.GetOverlappedResult(True)
            return bytes(reading.getbuffer() or b"").replace(b"\r\n", b"\n")
        except BrokenPipeError:  # the pipe has ended
            return b""
        finally:
            if self._readings[fd].is_over:  # only now, because unread data must not wake
                self._readings[fd] = _Reading(fd)

    def close(self) -> None:
        """No-op, because the pipes have been closed."""


def is_readable(end: End, timeout_s: float | None = None) -> bool:
    """Wait until a connection has a packet or is closed. Return False after the timeout."""
    return end.wait(None if timeout_s is None else min(timeout_s, LONGEST_S))


def _wait(handle: int, timeout_s: float) -> bool:
    def wait(slice_s: float) -> bool:
        ms = math.ceil(slice_s * 1e3)
        return _winapi.WaitForSingleObject(handle, ms) == _winapi.WAIT_OBJECT_0

    return interruptible(wait, timeout_s)


def interruptible(wait: Callable[[Any], bool], timeout_s: float | None) -> bool:
    """Call a function that waits, in slices of the time, so that an interrupt ends the wait."""
    until_s = math.inf if timeout_s is None else time.monotonic() + timeout_s
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        if wait(min(left_s, SLICE_S)):
            return True
        if left_s <= SLICE_S:
            return False


_new_semaphore = handles.function(
    *("CreateSemaphoreW", handles.HANDLE, handles.POINTER),
    *(handles.DWORD, handles.DWORD, handles.POINTER),
)
_release = handles.function(
    "ReleaseSemaphore", handles.BOOL, handles.HANDLE, handles.DWORD, handles.POINTER
)


class WorkerEvent:
    """Each `set` wakes one waiting worker process, or the next process to wait if none waits.

    Attributes
    ----------
    fd : int
        The handle to wait for, which closes with this object.

    Notes
    -----
    For any thread.
    """

    def __init__(self) -> None:
        self._file = OwnedHandle(_new_semaphore(None, 0, _LARGE, None))
        self.fd = self._file.fileno()

    def set(self, n: int = 1) -> None:
        """Set the event, `n` times."""
        _release(self.fd, n, None)


class OwnerEvent:
    """Wakes a waiting thread once, however often the event was set.

    Other processes set the event with `set_event`.

    Notes
    -----
    `set` is for any thread, everything else for the waiting thread.
    """

    def __init__(self) -> None:
        self._file = OwnedHandle(_overlapped.CreateEvent(None, False, False, None))
        self.fd = self._file.fileno()

    def set(self) -> None:
        """Set the event."""
        set_event(self.fd)

    def wait(self, timeout_s: float) -> bool:
        """Wait until the event is set, and clear it. Return whether it was set."""
        return _wait(self.fd, timeout_s)

    def clear(self) -> None:
        """Clear the event, so that the next wait lasts until it is set again."""
        _overlapped.ResetEvent(self.fd)


class Waker(OwnerEvent):
    """Wakes a `Waiter`. Each `set` is reported once.

    Parameters
    ----------
    port : OwnedHandle
        The port of the waiter.
    """

    def __init__(self, port: OwnedHandle) -> None:
        self._port = port

    def set(self) -> None:
        """Wake the waiter."""
        _overlapped.PostQueuedCompletionStatus(self._port.fileno(), 0, 0, WOKEN)

    def clear(self) -> None:
        """No-op."""


class TokenWaiter:
    """Waits for a `WorkerEvent` in one of several processes. Each token wakes one of them."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def wait(self, timeout_s: float) -> bool:
        """Wait for a token, and take it. Return False if none came in time."""
        return _wait(self._fd, timeout_s)

    def close(self) -> None:
        """No-op, because the handle is the caller's."""


def set_event(fd: int) -> None:
    """Set an event, given its handle."""
    _overlapped.SetEvent(fd)


# ------------------------------------------------------------------------------ the order of memory

IS_WEAKLY_ORDERED = "AMD64" not in sys.version


def register_fences() -> None:
    """Refuse to start workers where the order of memory is weak.

    Raises
    ------
    OSError
        If this machine has an ARM processor.
    """
    if IS_WEAKLY_ORDERED:
        raise OSError("nbshare has no workers on ARM yet")
