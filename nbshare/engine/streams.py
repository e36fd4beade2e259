"""The standard streams of a worker: pipes to the caller."""

from __future__ import annotations

import ctypes
import io
import os
import select
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbshare.engine.prints import STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import ReadableBuffer

__all__ = ["HIGHEST", "flush", "keep", "replace", "restore", "tell_dropped"]

HIGHEST = 2  # descriptor of a standard stream
PATIENCE_S = 0.5  # that a print waits for a reader: one that draws may need some time
LINE_BUFFERED = 1  # stdio.h: _IOLBF

# By name: the stream and the descriptor that each call finds. Empty outside of workers.
_kept: dict[str, tuple[Any, int]] = {}
_outlets: list[_Outlet] = []


class _Outlet(io.RawIOBase):
    """Writes to a pipe; what nobody reads in time is dropped, counted, and told of later.

    Parameters
    ----------
    fd : int
        The pipe, not blocking; never closed, since streams may be made anew.
    number : int
        The descriptor that programs know it by, which blocks.
    """

    def __init__(self, fd: int, number: int) -> None:
        self._fd, self._number = fd, number
        self._n_dropped = 0  # bytes

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
        _outlets.append(_Outlet(_not_blocking(fd), number))
        _kept[name] = _stream(number), fd
        setattr(sys, f"__{name}__", _kept[name][0])
    restore()
    # C's own buffers are never written when a worker is ended.
    with suppress(Exception):  # another C library
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, ctypes.c_size_t())


def keep() -> None:
    """Give every call the streams as they are now: an initializer may have set its own."""
    for number, name in enumerate(_kept, start=1):
        with suppress(OSError):
            _kept[name] = getattr(sys, name), os.dup(number)


def restore() -> None:
    """Set right whatever items have done to the standard streams."""
    for number, (name, (stream, fd)) in enumerate(_kept.items(), start=1):
        with suppress(OSError):
            os.dup2(fd, number)
        if stream is None or stream.closed:
            stream = _stream(number)
            _kept[name] = stream, fd
        setattr(sys, name, stream)


def flush() -> None:
    """Send lines that have not ended."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # it may be the item's own
            stream.flush()


def tell_dropped() -> None:
    """Say how much was dropped, while it is known of which call."""
    for outlet in _outlets:
        outlet.tell_dropped()


def _stream(number: int) -> io.TextIOWrapper:
    outlet = _outlets[number - 1]
    raw = _Outlet(outlet._fd, number) if outlet.closed else outlet
    _outlets[number - 1] = raw
    # A print never fails for what it prints.
    return io.TextIOWrapper(
        io.BufferedWriter(raw), "utf-8", errors="backslashreplace", line_buffering=True
    )


def _not_blocking(fd: int) -> int:
    """Return a description of a pipe that does not block; `fd` itself does, for other programs."""
    try:
        return os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # without /proc prints wait for their reader
        return fd
