"""What a notebook shows of a failure: the user's own frames and the worker's, not nbshare's."""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
from collections.abc import Callable
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from nbshare.errors import NbshareError, is_ours

__all__ = ["shown_as", "shown_from_the_call", "shown_shortly", "unwrapped", "users_frames"]

P = ParamSpec("P")
R = TypeVar("R")

_MAX_LINES = 30
_MAX_NOTES = 18  # of these: about the item, with the worker's traceback
_BARE_PLACE = r'(?m)^  File "(.+)", line (\d+), in .*$(?!\n    )'


def shown_shortly(error: BaseException) -> BaseException:
    """Return an error whose traceback IPython shows in 30 lines at most, without our frames."""
    with contextlib.suppress(Exception):  # a class that takes no attributes, or does anything
        if "IPython" in sys.modules and not hasattr(error, "_render_traceback_"):
            error._render_traceback_ = _render  # type: ignore[attr-defined]
    return error


def shown_as(error: BaseException, line: str) -> None:
    """Have IPython show an error as one line."""
    if "IPython" in sys.modules:
        error._render_traceback_ = functools.partial(list, (line,))  # type: ignore[attr-defined]


def shown_from_the_call(func: Callable[P, R]) -> Callable[P, R]:
    """Have IPython show what a function raises as if it had been raised where it is called."""
    if "IPython" not in sys.modules:  # a script, whose tracebacks would have a line more for this
        return func

    @functools.wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return func(*args, **kwargs)
        except Exception as error:
            shown_shortly(error)
            raise

    return call


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
        shown = "\n".join(render(type(error), error, users_frames(error.__traceback__)))
    finally:
        error.__cause__, error.__suppress_context__ = cause, is_suppressed
    notes = "\n".join(getattr(error, "__notes__", ()))
    if not shown.endswith(notes):  # an IPython that shows none, or in a way of its own
        notes = ""
    call = shown.removesuffix(notes).splitlines()
    about_item = _shortened(re.sub(_BARE_PLACE, _with_source, notes).splitlines(), _MAX_NOTES)
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


def users_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without nbshare's own frames, and those of an executor's futures."""
    links: list[TracebackType] = []
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    for link in reversed(links):
        module = link.tb_frame.f_globals.get("__name__", "")
        if not is_ours(link.tb_frame) and module != "concurrent.futures._base":
            tb = TracebackType(tb, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return tb


def unwrapped(result: Any, error: BaseException | None) -> Any:
    """Return a result, or raise the error there is instead."""
    if error is None:
        return result
    try:
        raise shown_shortly(error)
    finally:
        del error  # a cycle with its traceback would keep all of this alive
