"""The standard streams of a worker: pipes to the caller."""

from __future__ import annotations

import ctypes
import io
import os
import select
import sys
from array import array
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbshare.engine.prints import STREAMS

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl
    import termios

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import ReadableBuffer

__all__ = ["HIGHEST", "flush", "keep", "replace", "restore", "tell_dropped"]

HIGHEST = 2  # descriptor of a standard stream
PATIENCE_S = 0.5  # that a print waits for a reader: one that draws may need some time
LINE_BUFFERED = 1  # stdio.h: _IOLBF

_kept: dict[str, Any] = {}  # the streams that each call finds; none outside of workers
_outlets: list[_Outlet] = []
_n_unread = array("i", [0])


class _Outlet(io.RawIOBase):
    """Writes to a pipe; what nobody reads in time is dropped, counted, and told of later.

    Parameters
    ----------
    fd : int
        The pipe, not blocking.
    blocking_fd : int
        The pipe.
    number : int
        The standard descriptor that it has in other programs.
    """

    def __init__(self, fd: int, blocking_fd: int, number: int) -> None:
        self._fd, self._blocking_fd, self._number = fd, blocking_fd, number
        self._n_dropped = 0  # bytes

    def has_unread(self) -> bool:
        """Whether this or another program has written what has not been read."""
        with suppress(OSError):
            fcntl.ioctl(self._fd, termios.FIONREAD, _n_unread)
            return _n_unread[0] > 0
        return False

    def again(self) -> _Outlet:
        """Return another, since this one has been closed."""
        return _Outlet(self._fd, self._blocking_fd, self._number)

    def reopen(self) -> None:
        """Set the standard descriptor right, if an item has closed it."""
        try:
            os.fstat(self._number)
        except OSError:
            with suppress(OSError):
                os.dup2(self._blocking_fd, self._number)

    def fileno(self) -> int:
        return self._number

    def writable(self) -> bool:
        return True

    def write(self, data: ReadableBuffer) -> int:
        view = memoryview(data).cast("B")
        self.tell_dropped(wait=False)
        # While it drops it does not wait again and again.
        n_written = 0 if self._n_dropped else self._write(view)
        self._n_dropped += len(view) - n_written
        return len(view)

    def tell_dropped(self, *, wait: bool = True) -> None:
        """Write how much was dropped, if anything was, and there is room."""
        if self._n_dropped:
            note = f"\n[{self._n_dropped:,} bytes dropped here, since nobody read them]\n".encode()
            if self._write(memoryview(note), wait=wait):  # short, so written as a whole
                self._n_dropped = 0

    def _write(self, view: memoryview, *, wait: bool = True) -> int:
        """Write what can be written; returns how many bytes."""
        n = 0
        while n < len(view):
            try:
                n += os.write(self._fd, view[n:])
            except BlockingIOError:
                if not wait or not self._await_room():
                    break
            except OSError:  # the item has closed it, or the caller has ended
                break
        return n

    def _await_room(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(PATIENCE_S * 1e3))


def replace(fds: Sequence[int]) -> None:
    """Make pipes the standard output and error output of this process."""
    for number, (name, fd) in enumerate(zip(STREAMS, fds, strict=True), start=1):
        os.dup2(fd, number)
        _outlets.append(_Outlet(_not_blocking(fd), fd, number))
        _kept[name] = _stream(number)
        setattr(sys, f"__{name}__", _kept[name])
    restore()
    # C's own buffers are never written when a worker is ended.
    with suppress(Exception):  # another C library
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, ctypes.c_size_t())


def keep() -> None:
    """Give every call the streams as they are now: an initializer may have set its own."""
    for name in _kept:
        _kept[name] = getattr(sys, name)


def restore() -> None:
    """Set right whatever items have done to the standard streams."""
    for number, (name, stream) in enumerate(_kept.items(), start=1):
        _outlets[number - 1].reopen()
        if stream is None or stream.closed:
            _outlets[number - 1] = _outlets[number - 1].again()
            _kept[name] = _stream(number)
        setattr(sys, name, _kept[name])


def flush() -> bool:
    """Send lines that have not ended; returns whether anything has not been read yet."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be the item's own
            stream.flush()
    return any(outlet.has_unread() for outlet in _outlets)


def tell_dropped() -> None:
    """Say how much was dropped, while it is known of which call."""
    for outlet in _outlets:
        outlet.tell_dropped()


def _stream(number: int) -> io.TextIOWrapper:
    raw = io.BufferedWriter(_outlets[number - 1])
    # A print never fails for what it prints.
    return io.TextIOWrapper(raw, "utf-8", errors="backslashreplace", line_buffering=True)


def _not_blocking(fd: int) -> int:
    """Return a description of a pipe that does not block; `fd` itself does, for other programs."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # without /proc prints wait for their reader
        return fd
