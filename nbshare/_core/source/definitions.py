"""The definitions of a file, compared with those of a process.

A definition is a statement at the top level of a file, or of a class in it, that gives a name its
only value. This is a function, a class, or a simple value (numbers, texts, None, and tuples, lists,
dicts and sets of them). These may have any value, and are not compared:

- A name that code changes later, such as a counter or a cache (see `changed_by`).
- A name that other statements bind as well, such as a loop or ``try``.
- A list, dict or set that is empty in the file, such as a registry.
- A member that is private to its class, whose name begins with two underscores.
"""

from __future__ import annotations

import ast
import sys
from abc import ABCMeta
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import _lru_cache_wrapper, cached_property
from inspect import unwrap
from types import FunctionType
from typing import Any, NamedTuple, cast

from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import find_named, is_module, variables_of
from nbshare._core.source.file import FUNCTIONS, bindings_in, imports_in

SIMPLE = {bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None)}
CONTAINERS = {list, dict, set}
WRAPPERS = (classmethod, staticmethod, cached_property, _lru_cache_wrapper)
PLAIN = {  # decorators that keep the functions of what they decorate
    "property", "setter", "getter", "deleter", "classmethod", "staticmethod", "abstractmethod",
    "cache", "lru_cache", "cached_property", "wraps", "override", "final", "dataclass",
    "total_ordering", "runtime_checkable",
}  # fmt: skip
PLAIN_HOMES = {"abc", "dataclasses", "functools", "typing", "typing_extensions"}
OF_PROPERTIES = {"setter", "getter", "deleter"}
LITERALS = (
    ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict | ast.UnaryOp | ast.BinOp
    | ast.unaryop | ast.operator | ast.expr_context
)  # fmt: skip
ABSENT = object()


class Definition(NamedTuple):
    """A name of a module or class, and what gives its value in the file."""

    name: str  # with that of its class
    key: str  # the name in the module, or in the class
    names: Mapping[str, Any]  # the values that the module or class has here
    nodes: list[ast.AST | None]  # the values in the file, None for one that is not clear
    module: str
    is_plain: bool  # not of a class that a decorator or metaclass has made

    @property
    def value(self) -> Any:
        """The value here, or ABSENT."""
        return self.names.get(self.key, ABSENT)

    @property
    def given(self) -> Any:
        """The simple value of the file, or ABSENT if it is another one, not clear, or empty."""
        with suppress(ValueError):
            if len(self.nodes) == 1 and self.nodes[0] is not None:
                value = simple_value(self.nodes[0])
                return value if value or type(value) not in CONTAINERS else ABSENT
        return ABSENT

    def is_as_written(self, path: str) -> bool:
        """Whether the value here may be that of the file, from which it was imported."""
        value, node, given = self.value, self.nodes[-1], self.given
        if value is ABSENT:
            return True
        if given is not ABSENT:
            # Such as an enumeration's member.
            is_made = "." in self.name and type(value) not in SIMPLE
            return is_made or is_same(given, value)
        # A decorator, or what made the class, may have made something else of a function.
        if self.is_plain and all(isinstance(x, FUNCTIONS) and self.keeps(x) for x in self.nodes):
            return self._is_function_of(path)
        if isinstance(node, ast.ClassDef) and self.keeps(node) and not node.keywords:
            return len(self.nodes) > 1 or self._is_class_of(path, node)
        return not any(self._is_of_another(part, path) for part in self._unexplained(node))

    def keeps(self, node: Any) -> bool:
        """Whether the decorators of a definition leave the functions in it as they are."""
        return all(self._is_plain(getattr(each, "func", each)) for each in node.decorator_list)

    def _is_plain(self, decorator: ast.AST) -> bool:
        name = getattr(decorator, "id", getattr(decorator, "attr", ""))
        found = self._found(decorator)
        if name in OF_PROPERTIES or (found is ABSENT and isinstance(decorator, ast.Name)):
            return name in PLAIN  # Python has it, or the file has it no more
        # Another library may use the name, as joblib does for `memory.cache`.
        return name in PLAIN and getattr(found, "__module__", None) in PLAIN_HOMES

    def _is_function_of(self, path: str) -> bool:
        nodes, parts = cast("list[ast.FunctionDef]", self.nodes), parts_of(self.value)
        places = [_place_in(path, node) for node in nodes]
        if not parts or not all(_place_of(part) in places for part in parts):
            return False
        return self.value is not parts[0] or _has_defaults(self.value, nodes[-1].args)

    def _is_class_of(self, path: str, node: ast.ClassDef) -> bool:
        cls = self.value
        names_its_module = any(
            name == "__module__" for x in node.body for name, _ in bindings_in(x)
        )
        is_named = isinstance(cls, type) and cls.__name__ == node.name
        return is_named and (names_its_module or not self._is_of_another(cls, path))

    def _unexplained(self, node: ast.AST | None) -> list[Any]:
        """Return the functions and classes in the value that the file does not name there."""
        parts = parts_of(self.value)
        match node:
            case ast.ImportFrom() | ast.Name() | ast.Attribute():
                found = self._found(node)
                return [] if found is ABSENT or found is self.value else parts
            case ast.FunctionDef(decorator_list=used) | ast.AsyncFunctionDef(decorator_list=used):
                nodes = [each for decorator in used for each in ast.walk(decorator)]
                words = {getattr(each, "id", getattr(each, "attr", "")) for each in nodes}
                return [part for part in parts if part.__name__ not in words]
        return []

    def _found(self, node: ast.AST | None) -> Any:
        """Return the value that a name, an attribute or an import leads to, else ABSENT."""
        match node:
            case ast.ImportFrom():
                package = self.names.get("__package__") or ""
                home, _, name = dict(imports_in([node], package))[self.key].rpartition(".")
                return variables_of(sys.modules.get(home)).get(name, ABSENT)
            case ast.Attribute(value=owner, attr=name):
                found = self._found(owner)
                if is_module(found):
                    return variables_of(found).get(name, ABSENT)
                return getattr(found, name, ABSENT) if isinstance(found, type) else ABSENT
            case ast.Name(id=name):
                variables = variables_of(sys.modules.get(self.module))
                return self.names.get(name, variables.get(name, ABSENT))
        return ABSENT

    def _is_of_another(self, part: Any, path: str) -> bool:
        """Whether a function or class is the definition of another name, maybe of another file."""
        found = find_named(part.__module__ or "", part.__qualname__)
        # It may name itself after a package, or have a decorator of another file around it.
        is_near = f"{self.module}.".startswith(f"{part.__module__}.")
        inner = unwrap(part)
        is_near |= isinstance(inner, FunctionType) and inner.__code__.co_filename == path
        return found is part and not (is_near and part.__qualname__ == self.name)

    def is_changed_by(self, changed: Collection[str]) -> bool:
        """Whether code that changes these names may have changed it, or its class."""
        return any(part in changed for part in self.name.split("."))


def definitions(
    statements: Iterable[ast.stmt],
    names: Mapping[str, Any],
    module: str,
    where: str = "",
    *,
    is_plain: bool = True,
) -> Iterator[Definition]:
    """Yield what statements define, and its values in a module, and in its classes."""
    given = defaultdict[str, list[ast.AST | None]](list)
    for statement in statements:
        for name, node in bindings_in(statement):
            if name == "*":  # it may give all of these
                for nodes in given.values():
                    nodes.append(None)
            given[name].append(node)
    for name, nodes in given.items():
        found = Definition(where + name, name, names, nodes, module, is_plain)
        yield found
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        cls = names.get(name)
        if classes and None not in nodes and isinstance(cls, type) and cls.__name__ == name:
            last, inner = classes[-1], f"{where}{name}."
            is_plain_class = is_plain and found.keeps(last) and type(cls) in (type, ABCMeta)
            # A base may put something around the members of its subclasses.
            is_plain_class &= not any(
                "__init_subclass__" in vars(base) for base in cls.__mro__[:-1]
            )
            yield from definitions(last.body, vars(cls), module, inner, is_plain=is_plain_class)


def _has_defaults(func: FunctionType, args: ast.arguments) -> bool:
    nodes = [*args.defaults, *filter(None, args.kw_defaults)]
    values = [*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()]
    return len(nodes) == len(values) and all(map(_may_give, nodes, values))


def _may_give(node: ast.AST, value: Any) -> bool:
    with suppress(ValueError):
        return is_same(simple_value(node), value)
    return True


def parts_of(value: Any) -> list[Any]:
    """Return the function or class that a value is, or the functions of a property or wrapper.

    Without what installed code has put around them.
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
    """Return the value of an expression of literals. Raise ValueError if there is more in it."""
    if isinstance(node, ast.Constant):  # most of them, as compiling takes some time
        return node.value
    if not all(isinstance(each, LITERALS) for each in ast.walk(node)):
        raise ValueError("not a simple value")
    try:
        code = compile(ast.Expression(cast("ast.expr", node)), "<literals>", "eval")
        return eval(code)  # noqa: S307 - of literals alone, as the import of the file does
    except Exception as error:
        raise ValueError("not a simple value") from error


def is_same(given: Any, value: Any) -> bool:
    """Whether a value is a given simple one."""
    with suppress(Exception):  # such as of arrays in a list
        is_equal = type(value) is type(given) and bool(value == given)
        return is_equal and (type(value) in CONTAINERS or repr(value) == repr(given))
    return False
