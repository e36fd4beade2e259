"""The definitions of a file, compared with the values in this process.

A definition is a statement at the top level of a file, or of a class in it, that binds a name to
its only value. The value is a function, a class, or a simple value (numbers, texts, None, and
tuples, lists, dicts and sets of them). The following names may have any value, and are not
compared:

- A name that code changes later, such as a counter or a cache (see `changed_by`).
- A name that other statements, such as a loop or ``try``, also bind.
- The name of a list, dict or set that is empty in the file, such as a registry.
- The name of a member that is private to its class, beginning with two underscores.
"""

from __future__ import annotations

import ast
import sys
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import _lru_cache_wrapper, cached_property
from types import FunctionType
from typing import Any, NamedTuple, cast

from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import variables_of
from nbshare._core.source.file import ALL, FUNCTIONS, OF_PROPERTIES, File, bindings_in

SIMPLE = {bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None)}
CONTAINERS = {list, dict, set}
WRAPPERS = (classmethod, staticmethod, cached_property, _lru_cache_wrapper)
# Decorators that leave the decorated functions unchanged.
KEEPING = {"property", "classmethod", "staticmethod", "abc.abstractmethod", "dataclasses.dataclass"}
KEEPING |= {
    f"functools.{x}" for x in ("cache", "lru_cache", "cached_property", "wraps", "total_ordering")
}
KEEPING |= {
    f"{home}.{x}"
    for home in ("typing", "typing_extensions")
    for x in ("override", "final", "runtime_checkable")
}
LITERALS = (
    ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict | ast.UnaryOp | ast.BinOp
    | ast.unaryop | ast.operator | ast.expr_context
)  # fmt: skip
ABSENT = object()


class Definition(NamedTuple):
    """A name of a module or class, and the nodes of its values in the file."""

    name: str  # the name, after that of its class
    key: str  # the name in the module, or in the class
    names: Mapping[str, Any]  # the module's or class's values in this process
    nodes: list[ast.AST | None]  # nodes of the values in the file, None for an unclear one
    file: File
    is_plain: bool  # False in a class created by a decorator or metaclass

    @property
    def value(self) -> Any:
        """The value in this process, or ABSENT if there is none."""
        return self.names.get(self.key, ABSENT)

    @property
    def given(self) -> Any:
        """The simple value in the file, or ABSENT if the value is not simple, unclear, or empty."""
        with suppress(ValueError):
            if len(self.nodes) == 1 and self.nodes[0] is not None:
                value = simple_value(self.nodes[0])
                return value if value or type(value) not in CONTAINERS else ABSENT
        return ABSENT

    def is_as_written(self) -> bool:
        """Return whether the value in this process may be the one from the file."""
        value, given = self.value, self.given
        if value is ABSENT:
            return True
        if given is not ABSENT:
            # For example, a member of an enumeration.
            is_made = "." in self.name and type(value) not in SIMPLE
            return is_made or is_same(given, value)
        # A decorator, or whatever creates the class, may have replaced a function.
        if self.is_plain and all(isinstance(x, FUNCTIONS) and self.keeps(x) for x in self.nodes):
            return self._is_function_of(cast("list[ast.FunctionDef]", self.nodes))
        return True

    def keeps(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> bool:
        """Return whether the decorators of a definition leave its functions unchanged."""
        names = [self.file.full_names(each) for each in node.decorator_list]
        return all(each and all(map(_keeps_functions, each)) for each in names)

    def _is_function_of(self, nodes: list[ast.FunctionDef]) -> bool:
        parts = parts_of(self.value)
        places = [_place_in(self.file.path, node) for node in nodes]
        return bool(parts) and all(_place_of(part) in places for part in parts)

    def is_changed_by(self, changed: Collection[str]) -> bool:
        """Return whether code that changes these names may have changed the value or its class."""
        return any(part in changed for part in self.name.split("."))


def definitions_in(file: File) -> Iterator[Definition]:
    """Yield the definitions of a file, with their values in this process."""
    return _definitions(file, file.statements, variables_of(sys.modules.get(file.name)))


def _definitions(
    file: File,
    statements: Iterable[ast.stmt],
    names: Mapping[str, Any],
    where: str = "",
    *,
    is_plain: bool = True,
) -> Iterator[Definition]:
    given = defaultdict[str, list[ast.AST | None]](list)
    for statement in statements:
        for name, node in bindings_in(statement):
            if name == ALL:  # the import may bind all of these names
                for nodes in given.values():
                    nodes.append(None)
            given[name].append(node)
    for name, nodes in given.items():
        found = Definition(where + name, name, names, nodes, file, is_plain)
        yield found
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        cls = names.get(name)
        if classes and None not in nodes and isinstance(cls, type) and cls.__name__ == name:
            last, inner = classes[-1], f"{where}{name}."
            is_plain_class = is_plain and found.keeps(last) and type(cls) in (type, ABCMeta)
            # A base class may wrap the members of its subclasses.
            is_plain_class &= not any(
                "__init_subclass__" in vars(base) for base in cls.__mro__[:-1]
            )
            yield from _definitions(file, last.body, vars(cls), inner, is_plain=is_plain_class)


def _keeps_functions(decorator: str) -> bool:
    return decorator in KEEPING or decorator.endswith(OF_PROPERTIES)


def parts_of(value: Any) -> list[Any]:
    """Return a function or class in a list, or the functions of a property or wrapper.

    Wrappers by installed code are removed. Other objects have no parts.
    """
    if isinstance(value, property):
        return [
            each for name in ("fget", "fset", "fdel") for each in parts_of(getattr(value, name))
        ]
    if isinstance(value, WRAPPERS):
        return parts_of(getattr(value, "__wrapped__", getattr(value, "func", None)))
    if isinstance(value, FunctionType) and is_installed(value.__code__.co_filename):
        return parts_of(getattr(value, "__wrapped__", None)) or [value]
    return [value] if isinstance(value, FunctionType | type) else []


def _place_of(part: Any) -> tuple[str, str, int] | None:
    code = getattr(part, "__code__", None)
    return code and (code.co_filename, code.co_name, code.co_firstlineno)


def _place_in(path: str, node: ast.FunctionDef) -> tuple[str, str, int]:
    return path, node.name, min([node.lineno, *(each.lineno for each in node.decorator_list)])


def simple_value(node: ast.AST) -> Any:
    """Return the value of an expression of literals. Raise ValueError for any other expression."""
    if isinstance(node, ast.Constant):  # the usual case, which need not be compiled
        return node.value
    if not all(isinstance(each, LITERALS) for each in ast.walk(node)):
        raise ValueError("not a simple value")
    try:
        code = compile(ast.Expression(cast("ast.expr", node)), "<literals>", "eval")
        return eval(code)  # noqa: S307 - literals alone, as in the import of the file
    except Exception as error:
        raise ValueError("not a simple value") from error


def is_same(given: Any, value: Any) -> bool:
    """Return whether a value equals a simple value from the file, and has the same type."""
    with suppress(Exception):  # for example, the comparison of arrays in a list
        is_equal = type(value) is type(given) and bool(value == given)
        return is_equal and (type(value) in CONTAINERS or repr(value) == repr(given))
    return False
