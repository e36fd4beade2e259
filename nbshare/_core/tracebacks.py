"""Short tracebacks in a notebook: the frames of the user and the worker, without nbshare's."""

from __future__ import annotations

import contextlib
import functools
import linecache
import re
import sys
from collections.abc import Callable, Iterable
from types import FunctionType, TracebackType
from typing import Any, NamedTuple, Never, ParamSpec, TypeVar

from nbshare._core.base_error import NbshareError
from nbshare._core.messages import is_ours

P = ParamSpec("P")
R = TypeVar("R")
C = TypeVar("C")

_MAX_LINES = 30
_MAX_NOTES = 18  # lines of notes: the item and the worker's traceback
_BARE_PLACE = r'(?m)^  File "(.+)", line (\d+), in .*$(?!\n    )'


class Failed(NamedTuple):
    """The error that a public function must raise, as a return value.

    It is not raised inside nbshare, because a notebook keeps the last traceback, and with it the
    variables of all its frames.
    """

    error: BaseException


def shown_shortly(error: BaseException) -> BaseException:
    """Shorten an error's display in IPython to 30 lines, without nbshare's frames. Return it."""
    with contextlib.suppress(Exception):  # a class may refuse attributes, or fail in any way
        if "IPython" in sys.modules and not hasattr(error, "_render_traceback_"):
            error._render_traceback_ = _render  # type: ignore[attr-defined]
    return error


def no_attribute(
    owner: str,
    name: str,
    known: Iterable[str],
    more: str = "",
    kind: type[Exception] = AttributeError,
) -> BaseException:
    """Return the error for a missing attribute of a module or object, with a suggestion."""
    from nbshare._core.names import missing  # late, because few calls fail

    return shown_shortly(kind(missing(owner, name, known, more)))


def shown_as(error: BaseException, *lines: str) -> None:
    """Set the lines that IPython shows for an error."""
    if "IPython" in sys.modules:
        error._render_traceback_ = functools.partial(list, lines)  # type: ignore[attr-defined]


def shown_from_the_call(func: Callable[P, R]) -> Callable[P, R]:
    """Decorate a public function so that its tracebacks end at the user's call.

    The error for arguments that do not fit its signature suggests the right ones.
    """

    @functools.wraps(func)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            result: Any = func(*args, **kwargs)
        except Exception as error:
            here = sys.exc_info()[2]  # because the error's attributes may raise
            if here and here.tb_next is None and type(error) is TypeError:  # arguments do not fit
                from nbshare._core.names import misfit

                error.args = (misfit(func, args, kwargs) or str(error),)
            shown_shortly(error)
            raise
        if type(result) is not Failed:
            return result  # type: ignore[no-any-return]
        try:
            raise shown_shortly(result.error)
        finally:
            del result  # or a cycle of error and frame would keep both alive

    return call


def shown_from_its_calls(cls: type[C]) -> type[C]:
    """Apply `shown_from_the_call` to the constructor and public methods of a class.

    The error for a missing attribute suggests a similar one.
    """
    if not hasattr(cls, "__getattr__"):
        cls.__getattr__ = _refuse_attribute  # type: ignore[attr-defined]
    for name, method in [*vars(cls).items()]:
        if name[0] != "_" or name in ("__init__", "__getitem__", "__getattr__", "__array__"):
            if isinstance(method, FunctionType):
                setattr(cls, name, shown_from_the_call(method))
            elif isinstance(method, staticmethod):
                setattr(cls, name, staticmethod(shown_from_the_call(method.__func__)))
    return cls


def _refuse_attribute(self: object, name: str) -> Never:
    if name[0] == "_":  # tools look for many of those
        raise AttributeError(name)
    known = [each for each in dir(self) if each[0] != "_"]
    raise no_attribute(f"a {type(self).__name__}", name, known)


def _render(_: object = None) -> list[str]:
    """Return the shortened traceback of the current error, as IPython's hook does.

    The hook holds no reference to the error, because a cycle would keep it alive.
    """
    error = sys.exception() or sys.last_value
    assert error is not None
    shell: Any = sys.modules["IPython"].get_ipython()
    render = shell.InteractiveTB.structured_traceback
    cause, is_suppressed = error.__cause__, error.__suppress_context__
    if isinstance(error, NbshareError):  # its message names the cause
        error.__cause__ = None
    try:
        shown = "\n".join(render(type(error), error, users_frames(error.__traceback__)))
    finally:
        error.__cause__, error.__suppress_context__ = cause, is_suppressed
    notes = "\n".join(getattr(error, "__notes__", ()))
    call = shown.removesuffix(notes).splitlines()
    about_item = _shortened(re.sub(_BARE_PLACE, _with_source, notes).splitlines(), _MAX_NOTES)
    return _shortened(call, _MAX_LINES - len(about_item)) + about_item


# No error of nbshare shows its frames, whichever call has raised it.
NbshareError._render_traceback_ = _render  # type: ignore[attr-defined]


def _with_source(place: re.Match[str]) -> str:
    """Add the source line of a cell, which workers lack, to a line of a traceback."""
    source = linecache.getline(place[1], int(place[2])).strip()
    shell: Any = sys.modules["IPython"].get_ipython()
    shown = place[0]
    if cell := shell.compile.format_code_name(place[1]):
        shown = shown.replace(f'File "{place[1]}"', " ".join(cell))
    return f"{shown}\n    {source}" if source else shown


def _shortened(lines: list[str], n: int) -> list[str]:
    """Omit the middle lines if there are more than `n`."""
    if len(lines) <= n:
        return lines
    half = n // 2
    return [*lines[: n - half - 1], "  …", *lines[-half:]]


def users_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of nbshare and of an executor's futures."""
    links: list[TracebackType] = []
    while tb is not None:
        links.append(tb)
        tb = tb.tb_next
    for link in reversed(links):
        module = link.tb_frame.f_globals.get("__name__", "")
        if not is_ours(link.tb_frame) and module != "concurrent.futures._base":
            tb = TracebackType(tb, link.tb_frame, link.tb_lasti, link.tb_lineno)
    return tb
