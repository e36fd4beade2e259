"""Finds the part of an object that cannot be pickled, and what to pass instead."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np

from nbshare._core.arrays.by_reference import PLAIN, ByReference
from nbshare._core.arrays.remedies import IN_FILE, OTHERS, remedy_for
from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import file_of, is_module
from nbshare._core.functions.pickling import dumps_apart, sent_variables
from nbshare._core.messages import is_interrupt

_MAX_DEPTH = 6  # length of a path. For deeper parts, the object at this depth is named
_MAX_PARTS = 1000  # number of parts of a container that are tried

_CACHED_PROPERTY = (
    "functools.cached_property holds a lock in Python 3.11. Use a property, or move the class to "
    "a module file."
)


def culprit_of(obj: Any) -> tuple[str, str]:
    """Return the part of an object that cannot be pickled, such as ``Model.lock``, and advice."""
    if isinstance(obj, functools.partial) and not _can_be_pickled(obj.func):
        return culprit_of(obj.func)
    path, found, is_of_user = _found_in(obj)
    remedy = (is_of_user and _remedy(found)) or OTHERS
    if inspect.isfunction(obj) and found is not obj:
        path = f"its variable {path!r}"
        if remedy is OTHERS:
            remedy += IN_FILE
    elif isinstance(obj, functools.partial) and found is not obj:
        path = f"its argument {path!r}"
    return path, remedy


def _found_in(obj: Any) -> tuple[str, Any, bool]:
    """Return the innermost part that cannot be pickled, after its path.

    Also return whether users can replace the part, because no object of a package holds it.
    """
    owner = _owner_of(obj)
    path = (owner if isinstance(owner, type) else type(owner)).__qualname__
    seen, is_of_user = {id(obj)}, True
    for _ in range(_MAX_DEPTH):
        for name, part in _parts_of(obj, path) if _remedy(obj) is None else ():
            if id(part) not in seen and not _can_be_pickled(part):
                is_of_user = is_of_user and not _is_of_package(obj)
                path, obj = name, part
                seen.add(id(obj))
                break
        else:
            break
    return path, obj, is_of_user


def _is_of_package(obj: Any) -> bool:
    """Return whether an object is of an installed package, apart from Python's own."""
    name = (obj if isinstance(obj, type) else type(obj)).__module__
    file = file_of(sys.modules.get(name))
    is_of_python = name.partition(".")[0] in sys.stdlib_module_names
    return not is_of_python and file is not None and is_installed(file)


def _owner_of(obj: Any) -> Any:
    """Return the object that a method belongs to, or the object itself if it is not a method."""
    is_method = inspect.ismethod(obj) or inspect.isbuiltin(obj)
    return obj.__self__ if is_method and obj.__self__ is not None else obj


def _parts_of(obj: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield the parts of an object that its pickle would hold, each after its path."""
    if (owner := _owner_of(obj)) is not obj:
        yield path, owner
    elif inspect.isfunction(obj):
        with suppress(ValueError):  # a variable that is not bound yet
            used = inspect.getclosurevars(obj)
            yield from {**used.globals, **used.nonlocals}.items()
        names, given = obj.__code__.co_varnames[: obj.__code__.co_argcount], obj.__defaults__ or ()
        yield from zip(names[len(names) - len(given) :], given, strict=True)
        yield from {**(obj.__kwdefaults__ or {}), **vars(obj)}.items()
    elif isinstance(obj, functools.partial):
        yield from ((str(k), value) for k, value in enumerate(obj.args))
        yield from obj.keywords.items()
    elif is_module(obj):
        yield from ((f"{path}.{name}", value) for name, value in sent_variables(obj).items())
    elif isinstance(obj, Mapping):
        yield from ((f"{path}[{key!r}]", obj[key]) for key in islice(obj, _MAX_PARTS))
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"{path}[{k}]", part) for k, part in enumerate(islice(obj, _MAX_PARTS)))
    else:
        values = dict(getattr(obj, "__dict__", {}))
        for base in type(obj).__mro__:
            for name in np.atleast_1d(vars(base).get("__slots__", ())).tolist():
                with suppress(AttributeError):  # it is not set, or its name is private
                    values[name] = getattr(obj, name)
        yield from ((f"{path}.{name}", value) for name, value in values.items())
        if not isinstance(obj, type):
            yield type(obj).__qualname__, type(obj)


def _can_be_pickled(obj: Any) -> bool:
    if isinstance(obj, ByReference) or (type(obj) in PLAIN and not obj.dtype.hasobject):
        return True
    try:
        dumps_apart(obj, 0)
    except BaseException as error:
        if is_interrupt(error):
            raise
        return False
    return True


def _remedy(obj: Any) -> str | None:
    """Return advice for an object of a known kind, or None."""
    if isinstance(obj, functools.cached_property):
        return _CACHED_PROPERTY
    if inspect.isgenerator(obj):
        return "Pass list(...) of the generator."
    if inspect.iscoroutine(obj) or inspect.isasyncgen(obj):
        return "Await it first, and pass its result."
    return remedy_for(type(obj))
