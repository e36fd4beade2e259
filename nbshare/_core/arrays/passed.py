"""Finds the arrays that are read-only in a worker: those that the user passed.

- Read-only: arrays in ``shared=``, items, arguments of partial functions, and variables of
  functions sent by value; also those inside lists, tuples, dicts, dataclasses, and tables of pandas
  or xarray. A worker's writes would be lost, so writing from Python raises, with advice.
- Writable: arrays in any other object, such as a model, because its methods may write to them.
- Writable: arrays of Python objects, except in tables, because each worker creates its own.

A worker's writes to a copied array stay in the worker. So do writes by compiled code that ignores
the flag, because the memory is mapped copy-on-write (`memory.segment`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np

from nbshare._core.functions.pickling import codes_in, is_by_value

TABLES = {"pandas", "xarray"}  # packages whose objects are tables or parts of tables
OF_PARTS = "passes_its_parts"  # attribute of classes whose objects hold the user's arguments
PLAIN = {type(None), bool, int, float, complex, str, bytes}  # types without parts


class PassedArrays:
    """The arrays and tables in an object that the user passed.

    Parameters
    ----------
    obj : object
        The object. It is searched at the first query, as far as needed.

    Attributes
    ----------
    found : dict
        The arrays, tables and containers found so far, by ``id``. They are kept alive.
    columns : set
        The ``id`` of each array of Python objects in a table.
    """

    def __init__(self, obj: Any) -> None:
        self.found: dict[int, Any] = {}
        self.columns: set[int] = set()
        self._left = deque([obj])

    def __contains__(self, obj: Any) -> bool:
        while id(obj) not in self.found:
            if not self._left:
                return False
            self._look_at(self._left.popleft(), self._left)
        return True

    def add_parts(self, parts: Any, *, of_table: bool = False) -> None:
        """Add the arrays in the parts of an array or a table."""
        left = deque([parts])
        while left:
            self._look_at(left.popleft(), left, of_table=of_table)

    def _look_at(self, obj: Any, left: deque[Any], *, of_table: bool = False) -> None:
        kind: Any = type(obj)
        if kind in PLAIN or id(obj) in self.found:
            return
        if issubclass(kind, np.ndarray) or is_table(kind):
            self.found[id(obj)] = obj
            if of_table and isinstance(obj, np.ndarray) and obj.dtype.hasobject:
                self.columns.add(id(obj))
        elif (parts := _parts_of(obj)) is not None:
            self.found[id(obj)] = obj
            kinds = {*map(type, parts)} - PLAIN
            if kinds == {np.ndarray} and not of_table:  # together, because there may be many
                self.found |= zip(map(id, parts), parts, strict=True)
            elif kinds:
                left += parts


def _parts_of(obj: Any) -> Collection[Any] | None:
    """Return the parts of a container or of a function that is sent by value, else None."""
    if isinstance(obj, list | tuple):
        return obj
    if isinstance(obj, dict):
        return obj.values()
    if hasattr(type(obj), "__dataclass_fields__") or hasattr(type(obj), OF_PARTS):
        fields = getattr(type(obj), "__dataclass_fields__", ())  # possibly slots
        return [*getattr(obj, "__dict__", {}).values(), *(getattr(obj, x, None) for x in fields)]
    if isinstance(obj, partial):
        return obj.func, obj.args, obj.keywords
    if isinstance(obj, MethodType):
        return [obj.__func__]  # the arrays in its object belong to that object
    if isinstance(obj, FunctionType) and is_by_value(obj):
        return [*variables_of(obj)]
    return None


def variables_of(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that are sent with a function that is sent by value."""
    yield function.__defaults__
    yield function.__kwdefaults__
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            yield cell.cell_contents
    variables = function.__globals__
    for code in codes_in(function.__code__):
        yield from [variables[name] for name in code.co_names if name in variables]


def _is_table(kind: type) -> bool:
    """Return whether objects of a class are tables or parts of tables."""
    return any(base.__module__.partition(".")[0] in TABLES for base in kind.__mro__)


is_table: Callable[[Any], bool] = lru_cache(1024)(_is_table)
