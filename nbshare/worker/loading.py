"""What a worker does before its first item, and where it is if that takes long.

Where it is its other thread finds out. The text goes where items report, so that the progress
display has it too.
"""

from __future__ import annotations

import _thread
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from traceback import walk_stack
from types import FrameType
from typing import Any

from nbshare.errors import is_ours, noted
from nbshare.functions.freshness import is_installed
from nbshare.functions.reference import label_of
from nbshare.wire.board import BEGUN, write_text
from nbshare.wire.orders import LONG_LOADING_S
from nbshare.worker.belongings import changes_stay

__all__ = ["initialize", "loading", "look"]

LOOK_S = 1.0

_under_way: list[tuple[memoryview, int, str]] = []  # the worker's row, its thread, what it does


@contextmanager
def loading(row: memoryview | None = None, what: str = "") -> Iterator[None]:
    """Tell on a row of the board of what takes long meanwhile; the defaults: the same, imports."""
    _under_way.append((_under_way[-1][0] if row is None else row, _thread.get_ident(), what))
    try:
        yield
    finally:
        _under_way.pop()


def look() -> float:
    """Write down where loading is, if it takes long; returns in how many seconds to look again."""
    with suppress(IndexError):  # nothing is loaded
        row, thread, what = _under_way[-1]
        left_s = row[BEGUN] / 1e9 + LONG_LOADING_S - time.monotonic()
        if left_s > 0:
            return left_s
        write_text(row, _place(sys._current_frames()[thread], what))
        return LOOK_S
    return LONG_LOADING_S


def _place(frame: FrameType, what: str) -> str:
    """Say what a thread does, and in which line: the last one that is in a file of the user's."""
    frames = [(f, f.f_code.co_filename) for f, _ in walk_stack(frame) if not is_ours(f)]
    own = [(f, path) for f, path in frames if not (path[:7] == "<frozen" or is_installed(path))]
    names = (f.f_globals["__name__"] for f, _ in own or frames if f.f_code.co_name == "<module>")
    what = what or f"importing {next(names, 'the function')}"
    places = (f"{what} ({os.path.basename(path)}, line {f.f_lineno})" for f, path in own or frames)
    return next(places, what)


_initialized: list[bytes] = []  # what this process has been initialized with


def initialize(key: bytes, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    """Run the initializer of a call, unless it has been run here already."""
    if _initialized == [key]:
        return
    try:
        what = f"running the initializer {label_of(initializer)}"
        with changes_stay(), loading(what=what):
            initializer(*initargs)
    except BaseException as error:
        noted(error, "raised by the initializer")
        raise
    _initialized[:] = [key]
