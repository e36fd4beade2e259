"""Finds the object of a pickle that cannot be loaded, by loading the pickle once more."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from contextlib import suppress
from traceback import walk_tb
from typing import Any

from nbshare._core.arrays.remedies import OF_NOTEBOOK, OTHERS, remedy_for
from nbshare._core.functions.pickling import is_by_value
from nbshare._core.messages import noted

# The opcodes that call a constructor, and its place on the stack.
_CALLS = {pickle.REDUCE: -2, pickle.NEWOBJ: -2, pickle.NEWOBJ_EX: -3}


def name_object(
    error: Exception,
    data: memoryview,
    buffers: Sequence[memoryview],
    named: Callable[[Any], Any] | None,
) -> None:
    """Add a note to an error in a pickle that names the object that could not be loaded.

    A failed import already has a name, and must not run again.
    """
    names = {frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)}
    if isinstance(error, ImportError) or "<module>" in names:
        return
    replay = _Replay(io.BytesIO(data), buffers=buffers)
    replay.named = named
    with suppress(Exception, SystemExit):
        replay.load()
    if replay.making is None:
        return
    maker = _class_of(*replay.making)
    if isinstance(maker, type):
        told = f"raised while an instance of {_path(maker)} was unpickled"
        remedy = OF_NOTEBOOK if is_by_value(maker) else remedy_for(maker)
    else:
        told, remedy = f"raised by {_path(maker)}, which was called to unpickle an object", None
    noted(
        error,
        f"{told}. {remedy or OTHERS} If the object needs something that was registered in the "
        "calling process, register it in initializer= too.",
    )


def _path(maker: Any) -> str:
    return f"{maker.__module__}.{getattr(maker, '__qualname__', type(maker).__qualname__)}"


class _Replay(pickle._Unpickler):
    """The Python version of the unpickler, whose steps can be watched."""

    named: Callable[[Any], Any] | None = None  # returns the object of a name
    making: tuple[Any, tuple[Any, ...]] | None = None  # the current constructor and its arguments
    dispatch = dict(pickle._Unpickler.dispatch)  # noqa: RUF012 - as in the base class

    def persistent_load(self, name: Any) -> Any:
        return super().persistent_load(name) if self.named is None else self.named(name)


def _watched(step: Any, depth: int | None) -> Any:
    """Return a step of the unpickler that records the constructor it calls.

    `depth` is the constructor's place on the stack, or None to record an object's class. After an
    error, the record remains.
    """

    def run(replay: Any) -> None:
        if depth is None:
            thing = replay.stack[-2]
            replay.making = thing if isinstance(thing, type) else type(thing), ()
        else:
            replay.making = replay.stack[depth], replay.stack[depth + 1]
        step(replay)
        replay.making = None

    return run


for _code, _depth in [*_CALLS.items(), (pickle.BUILD, None)]:
    _Replay.dispatch[_code[0]] = _watched(_Replay.dispatch[_code[0]], _depth)


def _class_of(maker: Any, arguments: tuple[Any, ...]) -> Any:
    """Return the class of the object that a constructor creates, or the constructor if unknown."""
    if isinstance(maker, type):
        return maker
    if isinstance(owner := getattr(maker, "__self__", None), type):  # a class method
        return owner
    first = next(iter(arguments), None)
    is_of_package = isinstance(first, type) and _package_of(maker) in (
        "copyreg",
        _package_of(first),
    )
    return first if is_of_package else maker


def _package_of(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]
