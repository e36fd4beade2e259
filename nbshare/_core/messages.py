"""Helpers for errors and warnings: notes, the user's line, and words of messages."""

from __future__ import annotations

import _thread
import sys
import threading
import warnings
from collections.abc import Iterable
from types import FrameType


def noted(error: BaseException, note: str) -> bool:
    """Add a note to an error, and return whether its class allowed that (a frozen one does not)."""
    try:
        error.add_note(note)
    except Exception:  # noqa: BLE001 - whatever its class does
        return False
    return True


def without_frames(error: BaseException) -> BaseException:
    """Remove the tracebacks of an error and of its causes, and return the error.

    A frame keeps its variables alive, and forms a reference cycle if one of them is the error.
    """
    known = BaseException.__dict__  # because the error's class may override these names
    before: BaseException | None = error
    while before is not None:
        BaseException.with_traceback(before, None)
        cause, context = (known[name].__get__(before) for name in ("__cause__", "__context__"))
        before = context if cause is None else cause
    return error


def is_interrupt(error: BaseException) -> bool:
    """Return whether an error is the user's interrupt, which only the main thread receives.

    In other threads a KeyboardInterrupt was raised by the user's code.
    """
    is_main = _thread.get_ident() == threading.main_thread().ident
    return is_main and issubclass(type(error), KeyboardInterrupt)  # its __class__ may raise


def warn_at_most(
    message: str, category: type[Warning], line: tuple[str, int] | None = None
) -> None:
    """Issue a warning each time. If a filter turns it into an error, print it instead."""
    try:
        warnings.warn_explicit(message, category, *(line or users_line()))
    except category:
        sys.stderr.write(f"{category.__name__}: {message}\n")


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the user's line that called nbshare."""
    level, frame = 2, sys._getframe(1)  # level 1 would be this line
    while frame.f_back is not None and is_ours(frame):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def users_line() -> tuple[str, int]:
    """Return the file and the line number of the user's call of nbshare."""
    frame = sys._getframe(1)
    while frame.f_back is not None and is_ours(frame):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def is_ours(frame: FrameType) -> bool:
    """Return whether a frame belongs to nbshare's own code."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] == "nbshare"


def cut(text: str, n: int = 200) -> str:
    """Shorten a text to `n` characters for a message, because the repr of an item may be huge."""
    return text if len(text) <= n else text[:n] + "…"


def counted(n: int, thing: str) -> str:
    """Return a number and a noun, in the plural unless the number is 1."""
    return f"{n} {thing}" if n == 1 else f"{n} {thing}s"


def one_of(values: Iterable[object]) -> str:
    """Return the reprs of two or more values, with "or" before the last."""
    *others, last = map(repr, values)
    return f"{', '.join(others)} or {last}"
