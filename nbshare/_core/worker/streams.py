"""The standard streams of a worker, which are pipes to the caller."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbshare._core.system import channels, files, workers
from nbshare._core.wire.orders import STREAMS
from nbshare._core.worker.reports import present_item

if TYPE_CHECKING:
    from collections.abc import Sequence

MARK_PRINTS = "NBSHARE_MARK_PRINTS"  # the user wants lines that Python prints to name their item

HIGHEST = 2  # descriptor of a standard stream

_outputs: list[_Output] = []  # none outside of workers


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
        self._number, self._fd = number, workers.stream(fd)
        os.dup2(self._fd, number)
        self.open()

    def open(self) -> None:
        """Make the stream, with or without marks."""
        # A print never fails because of its text.
        self.stream: Any = _text(
            io.BufferedWriter(io.FileIO(self._number, "w", closefd=False)),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, f"__{self.name}__", self.stream)

    def restore(self) -> None:
        """Restore the stream and its descriptor."""
        if not files.is_open(self._number):  # an item has closed it
            with suppress(OSError):
                os.dup2(self._fd, self._number)
        if self.stream is None or self.stream.closed:
            self.open()
        setattr(sys, self.name, self.stream)

    def flush(self) -> bool:
        """Send an unfinished line. Return whether anything has not been read yet."""
        try:  # noqa: SIM105 - `suppress` would cost more than everything else here
            getattr(sys, self.name).flush()
        except Exception:  # noqa: BLE001, S110 - it may be the item's own, or None
            pass
        try:
            return channels.has_unread(self._fd)
        except OSError:  # the item has closed it
            return False


def replace_streams(fds: Sequence[int]) -> None:
    """Make pipes the standard output and error output of this process."""
    global _text
    if os.environ.get(MARK_PRINTS, "") not in ("", "0"):
        _text = _MarkedText
    for number, (name, fd) in enumerate(zip(STREAMS, fds, strict=True), start=1):
        _outputs.append(_Output(name, number, fd))
    restore()
    workers.end_lines()


_text: type[io.TextIOWrapper] = io.TextIOWrapper


def is_marking() -> bool:
    """Whether lines are marked."""
    return _text is _MarkedText


def keep() -> None:
    """Keep the present streams for every call, because an initializer may have set its own."""
    for output in _outputs:
        output.stream = getattr(sys, output.name)


def restore() -> None:
    """Restore the standard streams after items."""
    for output in _outputs:
        output.restore()


def flush() -> bool:
    """Send unfinished lines. Return whether anything has not been read yet."""
    is_any = False
    for output in _outputs:
        is_any |= output.flush()
    return is_any
