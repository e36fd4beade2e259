"""The global variables of functions sent by value, shared by all parts of a call.

Function, initializer, shared objects and items are pickled one by one. When they are loaded, their
functions and classes share variables again, as in the caller's process. The function therefore sees
variables that the initializer sets.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import FunctionType, ModuleType
from typing import Any, Self
from weakref import WeakSet

from nbshare._core.system import processes

Variables = dict[str, Any]  # by name, the __globals__ of functions
VariablesId = str | int  # identifies the same variables in all pickles of a process

_EMPTY: frozenset[Any] = frozenset()


class Namespaces:
    """The variables of a call's functions. A context in which parts of the call are loaded.

    Each part adds its variables, and replaces those of earlier parts, except variables that were
    present when `keep` was called.

    Parameters
    ----------
    initial : Namespaces, optional
        The variables of an initializer. They are shared, not copied.

    Notes
    -----
    For one thread.
    """

    def __init__(self, initial: Namespaces | None = None) -> None:
        self._variables: dict[VariablesId, Variables] = {**initial._variables} if initial else {}
        self._kept: dict[int, frozenset[str]] = {**initial._kept} if initial else {}
        self._classes: set[type] = {*initial._classes} if initial else set()
        self._kept_classes = frozenset(self._classes)
        self._outer: Namespaces | None = None

    def __enter__(self) -> Self:
        self._outer, _loading.namespaces = _loading.namespaces, self
        return self

    def __exit__(self, *_: object) -> None:
        _loading.namespaces = self._outer

    @property
    def has_own(self) -> bool:
        """Whether there are variables or classes of no imported module."""
        return bool(self._classes) or any(_module_of(x) is None for x in self._variables.values())

    def keep(self) -> None:
        """Keep the current variables and classes. Later parts of the call do not replace them."""
        self._kept = {id(names): frozenset(names) for names in self._variables.values()}
        self._kept_classes = frozenset(self._classes)

    def adopt(self, func: Any) -> None:
        """Share the module of a function that was loaded by name with functions sent by value."""
        while isinstance(func, partial):
            func = func.func
        names = getattr(getattr(func, "__func__", func), "__globals__", {})
        if (module := _module_of(names)) is not None:
            self._variables.setdefault(module, names)

    def restore(self) -> None:
        """Remove the variables added after `keep`, except variables of an imported module."""
        for names in self._variables.values():
            if _module_of(names) is None:
                for name in names.keys() - self._kept[id(names)]:
                    del names[name]

    def of(self, key: VariablesId, initial: Variables) -> Variables:
        """Return the variables of a module, or `initial` (its name, for example) if it is new."""
        return self._variables.setdefault(key, initial)

    def wanted(self, names: Variables, brought: Variables) -> Variables:
        """Return the variables that a function brings and that are not kept."""
        kept = self._kept.get(id(names), _EMPTY)
        return {name: brought[name] for name in brought.keys() - kept}

    def is_new(self, cls: type) -> bool:
        """Record that a class is filled, and return whether it must be."""
        self._classes.add(cls)
        return cls not in self._kept_classes


def _module_of(names: Variables) -> str | None:
    """Return the name of the imported module that has these variables, if any."""
    name: str | None = names.get("__name__")
    return name if vars(sys.modules.get(name or "", _NO_MODULE)) is names else None


_NO_MODULE = ModuleType("")


# A class that returns to the process that defined it is left unchanged, because the attributes in
# the pickle are copies.
_own: WeakSet[type] = WeakSet()  # classes of this process that were sent by value
_received: WeakSet[type] = WeakSet()

_process = os.urandom(8)  # marks pickles of this process


def _after_fork() -> None:
    global _process
    _process = os.urandom(8)


processes.at_fork(after_in_child=_after_fork)


class _Loading(threading.local):
    namespaces: Namespaces | None = None


_loading = _Loading()


# ------------------------------------------------------------------------- in a pickler


class SentVariables(Variables):
    """Replaces the global variables of a function in a pickle."""

    def __init__(self, names: Variables) -> None:
        super().__init__(
            (name, names[name])
            for name in ("__package__", "__name__", "__path__", "__file__")
            if name in names
        )
        self._key: VariablesId = _module_of(names) or id(names)

    def __reduce__(self) -> tuple[Any, ...]:
        return _variables, (self._key, {**self}, _process)


def shared_state(obj: Any, reduced: Any) -> Any:
    """Change how cloudpickle sends a function or class, so that variables are shared."""
    if not isinstance(reduced, tuple) or len(reduced) < 6:
        return reduced
    if isinstance(obj, type) and obj not in _received:
        _own.add(obj)
    make, args, state, _, _, fill = reduced
    if isinstance(obj, FunctionType):
        make, args = _make, (make, *args)
    return make, args, (fill, state, _process), None, None, _fill


# --------------------------------------------------------------- where pickles are loaded


def _variables(key: VariablesId, initial: Variables, process: bytes) -> Variables:
    if process == _process and key in sys.modules:
        return vars(sys.modules[str(key)])
    namespaces = _loading.namespaces
    return initial if namespaces is None else namespaces.of(key, initial)


def _make(make: Callable[..., FunctionType], code: Any, names: Variables, *args: Any) -> Any:
    """Create a function without variables. Functions of a module keep their builtins."""
    builtins = names.get("__builtins__")
    func = make(code, names, *args)
    names["__builtins__"] = builtins or names["__builtins__"]
    return func


def _fill(obj: Any, filling: tuple[Callable[[Any, Any], object], Any, bytes]) -> None:
    """Set a function's variables, or a class's attributes."""
    fill, state, process = filling
    namespaces = _loading.namespaces
    if not isinstance(obj, FunctionType):
        if obj not in _own and (namespaces is None or namespaces.is_new(obj)):
            _received.add(obj)
            fill(obj, state)
        return
    names, parts = obj.__globals__, state[1]
    builtins = names["__builtins__"]
    if process == _process and _module_of(names) is not None:
        parts["__globals__"] = {}  # the function uses the variables of its module
    elif namespaces is not None:
        parts["__globals__"] = namespaces.wanted(names, parts["__globals__"])
    fill(obj, state)
    names["__builtins__"] = builtins
