"""What a notebook shows of a failure: the user's own frames and the worker's, not nbshare's."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
from functools import partial
from types import TracebackType
from typing import Any

from nbshare.errors import NbshareError, is_ours

__all__ = ["UsersFramesOnly", "shown_as", "shown_shortly"]

_MAX_LINES = 30
_MAX_NOTES = 18  # of these: about the item, with the worker's traceback
_BARE_PLACE = re.compile(r'^  File "(.+)", line (\d+), in .*$(?!\n    )', re.MULTILINE)


def shown_shortly(error: BaseException) -> BaseException:
    """Return an error whose traceback IPython shows in 30 lines at most, without our frames."""
    if "IPython" in sys.modules and not hasattr(error, "_render_traceback_"):
        with contextlib.suppress(AttributeError, TypeError):  # a class that takes no attributes
            error._render_traceback_ = _render  # type: ignore[attr-defined]
    return error


class UsersFramesOnly:
    """Have IPython show what is raised inside without our frames: what is wrong is the call."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, tb: object) -> None:
        if isinstance(error, Exception):
            shown_shortly(error)


def shown_as(error: BaseException, line: str) -> None:
    """Have IPython show an error as one line."""
    if "IPython" in sys.modules:
        error._render_traceback_ = partial(list, (line,))  # type: ignore[attr-defined]


def _render() -> list[str]:
    """Return what IPython would show, less some of it: its hook.

    A function without the error, which would be kept alive by a cycle, or pickled twice.
    """
    error = sys.exception() or sys.last_value
    assert error is not None
    shell: Any = sys.modules["IPython"].get_ipython()
    render = shell.InteractiveTB.structured_traceback
    cause, is_suppressed = error.__cause__, error.__suppress_context__
    if isinstance(error, NbshareError):  # its message says what has caused it
        error.__cause__ = None
    try:
        shown = "\n".join(render(type(error), error, _users_frames(error.__traceback__)))
    finally:
        error.__cause__, error.__suppress_context__ = cause, is_suppressed
    notes = "\n".join(getattr(error, "__notes__", ()))
    if not shown.endswith(notes):  # an IPython that shows none, or in a way of its own
        notes = ""
    call = shown.removesuffix(notes).splitlines()
    about_item = _shortened(_BARE_PLACE.sub(_with_source, notes).splitlines(), _MAX_NOTES)
    return _shortened(call, _MAX_LINES - len(about_item)) + about_item


def _with_source(place: re.Match[str]) -> str:
    """Add the line of a cell, which workers do not have."""
    source = linecache.getline(place[1], int(place[2])).strip()
    return f"{place[0]}\n    {source}" if source else place[0]


def _shortened(lines: list[str], n: int) -> list[str]:
    """Leave out what is in the middle."""
    if len(lines) <= n:
        return lines
    half = n // 2
    return [*lines[: n - half - 1], "  …", *lines[-half:]]


def _users_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without nbshare's own frames."""
    links: list[TracebackType] = []
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    for link in reversed(links):
        if not is_ours(link.tb_frame):
            tb = TracebackType(tb, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return tb
