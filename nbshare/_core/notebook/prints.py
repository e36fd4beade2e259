"""The caller's streams, to which the output of workers is written."""

from __future__ import annotations

import sys
import time
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from nbshare._core.functions.modules import variables_of

# Limits for one burst, and per second, because megabytes of text make a page slow.
_BURST = 300_000  # characters
_PER_SECOND = 30_000
_TAIL = 2_000  # characters shown of the end of hidden text


class Printer:
    """Writes to the current streams of the thread that creates it.

    In a notebook, text beyond a page's limit is hidden, except for its end. The number of hidden
    characters is written instead.
    """

    def __init__(self) -> None:
        self._streams = {name: _Stream(getattr(sys, name)) for name in ("stdout", "stderr")}

    @property
    def is_here(self) -> bool:
        """Whether a new `Printer` would write to the same places."""
        return all(stream.is_in(getattr(sys, name)) for name, stream in self._streams.items())

    def __call__(self, name: str, text: str) -> None:
        """Write to one of the streams."""
        self._streams[name].write(text)

    def close(self) -> None:
        """Write how many characters are hidden, and the end of the hidden text."""
        for stream in self._streams.values():
            stream.close()


class _Stream:
    """One of the caller's streams: a stream of a kernel or terminal, a file, or None."""

    # Class attributes, so that a run without prints does not set them.
    _allowed, _counted_at = 0.0, -3600.0
    _n_hidden = 0  # characters
    _tail = ""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        # ipykernel's name for the cell that a print belongs to.
        self._parent = getattr(stream, "parent_header", None)

    def is_in(self, stream: Any) -> bool:
        """Return whether a stream is this one, in the same cell."""
        return stream is self.stream and getattr(stream, "parent_header", None) == self._parent

    def write(self, text: str) -> None:
        """Write text, or hide it if it exceeds the limit."""
        if not self._is_kernel or self._may_write(len(text)):
            self._tell_hidden()
            self._write(text)
        else:
            self._n_hidden += len(text)
            self._tail = (self._tail + text)[-_TAIL:]

    def close(self) -> None:
        """Write the end of the hidden text."""
        tail = self._tail
        if self._n_hidden > len(tail):  # the tail begins in the middle of a line
            tail = tail.partition("\n")[2]
        self._n_hidden -= len(tail)
        self._tell_hidden()
        self._write(tail)

    @property
    def _is_kernel(self) -> bool:
        return hasattr(self.stream, "pub_thread") and hasattr(self.stream, "session")

    def _may_write(self, n: int) -> bool:
        now = time.monotonic()
        self._allowed += (now - self._counted_at) * _PER_SECOND
        self._allowed, self._counted_at = min(self._allowed, _BURST), now
        # Once text is hidden, hide more for at least a second, or a notice would follow every line.
        may = self._allowed >= n + (_PER_SECOND if self._n_hidden else 0)
        self._allowed -= n if may else 0
        return may

    def _tell_hidden(self) -> None:
        if self._n_hidden > 0:
            self._write(
                f"[{self._n_hidden:,} characters of output left out here: too many for a page]\n"
            )
        self._n_hidden, self._tail = 0, ""

    def _write(self, text: str) -> None:
        if self.stream is None or not text:
            return
        if self._is_kernel and self.stream.parent_header != self._parent:
            # The cell is over, and any thread may be here, so a message of our own names the cell.
            self.stream.flush()  # earlier text
            session, where = self.stream.session, self.stream.pub_thread
            content = {"name": self.stream.name, "text": text}
            session.send(where, "stream", content, parent=self._parent, ident=self.stream.topic)
            return
        with _bars_aside(self.stream):
            try:
                self.stream.write(text)
            except UnicodeEncodeError as error:
                # Workers may print characters that the terminal or file of the caller cannot
                # show.
                known = text.encode(error.encoding, "backslashreplace")
                self.stream.write(known.decode(error.encoding))
            if not self._is_kernel:
                self.stream.flush()


def _bars_aside(stream: Any) -> AbstractContextManager[Any]:
    """Clear tqdm's bars for a while, as `tqdm.write` does, and draw them again below the text."""
    tqdm = variables_of(sys.modules.get("tqdm")).get("tqdm")
    if tqdm is None or not getattr(tqdm, "_instances", None):
        return nullcontext()
    return tqdm.external_write_mode(file=stream)  # type: ignore[no-any-return]
