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

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl
    import termios

from nbshare.wire.orders import STREAMS
from nbshare.worker.reports import present_item

if TYPE_CHECKING:
    from collections.abc import Sequence

    from _typeshed import ReadableBuffer

__all__ = [
    "HIGHEST",
    "MARK_PRINTS",
    "flush",
    "is_marking",
    "keep",
    "mark",
    "replace",
    "restore",
    "tell_dropped",
]

MARK_PRINTS = "NBSHARE_MARK_PRINTS"  # the user's wish

HIGHEST = 2  # descriptor of a standard stream
PATIENCE_S = 0.5  # a print waits this long for its reader, which may be drawing
LINE_BUFFERED = 1  # stdio.h: _IOLBF

_outputs: list[_Output] = []  # none outside of workers


class _Outlet(io.RawIOBase):
    """Writes to a pipe; drops and counts what is not read in time, and reports it later.

    Parameters
    ----------
    fd : int
        The pipe, non-blocking; not closed with this object.
    number : int
        The blocking descriptor of the same pipe, for other programs.
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
        # While it drops, it does not wait again.
        n_written = 0 if self._n_dropped else self._write(view)
        self._n_dropped += len(view) - n_written
        return len(view)

    def tell_dropped(self, *, wait: bool = True) -> None:
        """Report how much was dropped, if anything was and there is room."""
        if self._n_dropped:
            note = (
                f"\n[{self._n_dropped:,} bytes dropped here, since they were not read]\n".encode()
            )
            if self._write(memoryview(note), wait=wait):  # short, so written as a whole
                self._n_dropped = 0

    def _write(self, view: memoryview, *, wait: bool = True) -> int:
        """Write as much as possible; return the number of bytes."""
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


class _MarkedText(io.TextIOWrapper):
    """Text that marks each line with its item."""

    _item: int | None = None  # that printed last
    _is_at_start = True  # of a line

    def write(self, text: str) -> int:
        if not text:
            return 0
        item = present_item()
        mark = "" if item is None else f"[item {item}] "
        is_torn = item != self._item and not self._is_at_start
        begin = "\n" + mark if is_torn else mark if self._is_at_start else ""
        self._item, self._is_at_start = item, text.endswith("\n")
        end = "\n" if self._is_at_start else ""
        super().write(begin + text.removesuffix("\n").replace("\n", "\n" + mark) + end)
        return len(text)


class _Output:
    """One of the streams, and the pipe under it."""

    def __init__(self, name: str, number: int, fd: int) -> None:
        self.name = name
        self._number, self._fd = number, fd
        self._n_unread = array("i", [0])
        try:  # a non-blocking description of the pipe; for other programs it blocks
            flags = os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._quick_fd = os.open(f"/proc/self/fd/{fd}", flags)
        except OSError:  # without /proc prints wait for their reader
            self._quick_fd = fd
        os.dup2(fd, number)
        self.open()

    def open(self) -> None:
        """Make the stream, with or without marks."""
        self._outlet = _Outlet(self._quick_fd, self._number)
        # A print never fails because of its text.
        self.stream: Any = _text(
            io.BufferedWriter(self._outlet),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, f"__{self.name}__", self.stream)

    def restore(self) -> None:
        """Restore the stream and its descriptor."""
        try:
            os.get_inheritable(self._number)
        except OSError:  # an item has closed it
            with suppress(OSError):
                os.dup2(self._fd, self._number)
        if self.stream is None or self.stream.closed:
            self.open()
        setattr(sys, self.name, self.stream)

    def flush(self) -> bool:
        """Send an unfinished line; return whether anything has not been read yet."""
        try:  # noqa: SIM105 - `suppress` would cost more than all else here
            getattr(sys, self.name).flush()
        except Exception:  # noqa: BLE001, S110 - it may be the item's own, or None
            pass
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, self._n_unread)
        except OSError:  # the item has closed it
            return False
        return self._n_unread[0] > 0

    def tell_dropped(self) -> None:
        """Report how much was dropped."""
        self._outlet.tell_dropped()


def replace(fds: Sequence[int]) -> None:
    """Make pipes the standard output and error output of this process."""
    for number, (name, fd) in enumerate(zip(STREAMS, fds, strict=True), start=1):
        _outputs.append(_Output(name, number, fd))
    restore()
    # C's own buffers are lost when a worker is ended.
    with suppress(Exception):  # another C library
        libc = ctypes.CDLL(None)
        libc.setvbuf(ctypes.c_void_p.in_dll(libc, "stdout"), None, LINE_BUFFERED, ctypes.c_size_t())


_text: type[io.TextIOWrapper] = io.TextIOWrapper


def mark() -> None:
    """Mark each line that Python prints with its item."""
    global _text
    _text = _MarkedText
    for output in _outputs:
        output.open()
    restore()


def is_marking() -> bool:
    """Whether lines are marked."""
    return _text is _MarkedText


def keep() -> None:
    """Keep the present streams for every call: an initializer may have set its own."""
    for output in _outputs:
        output.stream = getattr(sys, output.name)


def restore() -> None:
    """Restore the standard streams after items."""
    for output in _outputs:
        output.restore()


def flush() -> bool:
    """Send unfinished lines; return whether anything has not been read yet."""
    is_any = False
    for output in _outputs:
        is_any |= output.flush()
    return is_any


def tell_dropped() -> None:
    """Report how much was dropped, while the call is known."""
    for output in _outputs:
        output.tell_dropped()
