"""The standard streams of a worker, which are pipes to the owner."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from nbshare._core.system import files, processes, waiting
from nbshare._core.wire.orders import STREAMS

if TYPE_CHECKING:
    from collections.abc import Sequence

HIGHEST = 2  # descriptor of a standard stream

_outputs: list[_Output] = []  # none outside of workers


class _Output:
    """A standard stream and its pipe."""

    def __init__(self, name: str, number: int, fd: int) -> None:
        self.name = name
        self._number, self._fd = number, processes.c_descriptor(fd)
        os.dup2(self._fd, number)
        self.open()

    def open(self) -> None:
        """Create the stream."""
        # A print never fails because of its text.
        self.stream: Any = io.TextIOWrapper(
            io.BufferedWriter(io.FileIO(self._number, "w", closefd=False)),
            "utf-8",
            errors="backslashreplace",
            line_buffering=True,
        )
        setattr(sys, f"__{self.name}__", self.stream)

    def restore(self) -> None:
        """Restore the stream and its descriptor."""
        if not files.is_open(self._number):  # an item has closed the descriptor
            with suppress(OSError):
                os.dup2(self._fd, self._number)
        if self.stream is None or self.stream.closed:
            self.open()
        setattr(sys, self.name, self.stream)

    def flush(self) -> bool:
        """Send an unfinished line. Return whether output is still unread."""
        try:  # noqa: SIM105 - `suppress` would cost more than everything else here
            getattr(sys, self.name).flush()
        except Exception:  # noqa: BLE001, S110 - an item may have replaced it
            pass
        try:
            return waiting.has_unread(self._fd)
        except OSError:  # the item has closed it
            return False


def replace_streams(fds: Sequence[int]) -> None:
    """Replace this process's standard output and standard error with pipes."""
    for number, (name, fd) in enumerate(zip(STREAMS, fds, strict=True), start=1):
        _outputs.append(_Output(name, number, fd))
    restore()
    processes.buffer_lines()


def keep() -> None:
    """Keep the current streams for all calls, because an initializer may have replaced them."""
    for output in _outputs:
        output.stream = getattr(sys, output.name)


def restore() -> None:
    """Restore the standard streams after items have run."""
    for output in _outputs:
        output.restore()


def flush() -> bool:
    """Send unfinished lines. Return whether output is still unread."""
    is_any = False
    for output in _outputs:
        is_any |= output.flush()
    return is_any
