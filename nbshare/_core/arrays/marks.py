"""Marks: objects whose identity is all that they have, such as ``MISSING = object()``.

A copy of a mark would be another mark, so a mark that is a variable of a module is sent by name.
Those of the script are known objects (`arrays.known`). An object with attributes is no mark,
because the module of a worker does not have the values that the caller has set.

Checkpoint files name this module and `variable`, whose arguments must not change.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from typing import Any

from nbshare._core.functions.modules import MAINS, by_value, find_named, own_files, variables_of

_NEW_OBJECT: Any = object().__reduce_ex__(5)[0]  # creates objects from their class


def variables_with(cls: type) -> dict[int, tuple[str, str]]:
    """Return the variables that hold an object of a class, by module and name, by its ``id``.

    Only variables of the class's own module count, but of all users' modules for plain objects.
    """
    found = dict[int, tuple[str, str]]()
    for module in own_files() if cls is object else [cls.__module__]:
        if type(module) is str and module not in MAINS and module not in by_value():
            variables = variables_of(sys.modules.get(module)).copy()
            found |= {id(x): (module, name) for name, x in variables.items() if type(x) is cls}
    return found


def by_variable(variables: Mapping[int, tuple[str, str]], obj: Any) -> Any:
    """Return how to send a mark. Return NotImplemented if no variable holds the object."""
    held = variables.get(id(obj))
    if held is None or find_named(*held) is not obj:
        return NotImplemented
    reduced = obj.__reduce_ex__(5)
    if reduced[:2] != (_NEW_OBJECT, (type(obj),)) or any(reduced[2:]):
        return NotImplemented
    return variable, (*held, type(obj))


def by_users_variable(obj: object) -> Any:
    """Return how to send a plain object, as `by_variable` does."""
    return by_variable(variables_with(object), obj)


def variable(module: str, name: str, cls: type) -> Any:
    """Return the object of a variable, or a new one if it does not hold one of the class."""
    if module not in sys.modules:
        import_module(module)
    found = find_named(module, name)
    return found if type(found) is cls else object.__new__(cls)
