"""What a file defines, compared with what a process has.

A definition is a statement at the top level of a file, or of a class in it, that gives a name its
only value: a function, a class, or a simple value (numbers, texts, None, and tuples, lists, dicts
and sets of them). These may have any value, and are not compared:

- A name that code changes later, such as a counter or a cache: see `changed_by`.
- A name that other statements bind as well, such as a loop or ``try``.
- A list, dict or set that is empty in the file, such as a registry.
- A member of a class whose name begins with two underscores.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from importlib.util import resolve_name
from types import CodeType, FunctionType, MappingProxyType
from typing import Any, NamedTuple, cast

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
SIMPLE = {bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None)}
CONTAINERS = {list, dict, set}
LITERALS = (
    ast.Constant | ast.Tuple | ast.List | ast.Set | ast.Dict | ast.UnaryOp | ast.BinOp
    | ast.unaryop | ast.operator | ast.expr_context
)  # fmt: skip
# Methods that change a list, a dict or a set: their constant counterparts lack them.
CHANGING = {*dir(list), *dir(dict), *dir(set)}.difference(
    dir(tuple), dir(MappingProxyType), dir(frozenset)
)
# With these, code may change any name.
ANYTHING = {"exec", "setattr", "delattr", "globals", "locals", "vars", "__dict__"}
ABSENT = object()


class Definition(NamedTuple):
    """A name of a module or class, and what gives its value in the file."""

    name: str  # with that of its class
    key: str  # the name in the module, or in the class
    names: Mapping[str, Any]  # the values that the module or class has here
    nodes: list[ast.AST | None]  # what the file gives it; None for something that is not clear

    @property
    def value(self) -> Any:
        """The value here, or ABSENT."""
        return self.names.get(self.key, ABSENT)

    @property
    def given(self) -> Any:
        """The simple value of the file; ABSENT if it is another one, not clear, or empty."""
        with suppress(ValueError):
            if len(self.nodes) == 1 and self.nodes[0] is not None:
                value = simple_value(self.nodes[0])
                return value if value or type(value) not in CONTAINERS else ABSENT
        return ABSENT

    def is_as_written(self, path: str) -> bool:
        """Whether the value here may be that of the file, from which it was imported."""
        value, node, given = self.value, self.nodes[-1], self.given
        is_member = "." in self.name
        if value is ABSENT:
            return True
        if given is not ABSENT:
            is_made = is_member and type(value) not in SIMPLE  # such as an enumeration's member
            return is_made or is_same(given, value)
        # A decorator, or the metaclass of a class, may have made something else of a value.
        if is_member or len(self.nodes) > 1 or getattr(node, "decorator_list", None):
            return True
        if isinstance(node, FUNCTIONS):
            code = value.__code__ if isinstance(value, FunctionType) else None
            is_here = code is not None and _place_of(code) == (path, node.name, node.lineno)
            return is_here and _has_defaults(value, node.args)
        is_class = isinstance(value, type) and value.__name__ == self.name
        return is_class or not isinstance(node, ast.ClassDef) or bool(node.keywords)

    def is_changed_by(self, changed: Collection[str]) -> bool:
        """Whether code that changes these names may have changed it, or its class."""
        return any(part in changed for part in self.name.split("."))


def definitions(
    statements: Iterable[ast.stmt], names: Mapping[str, Any], where: str = ""
) -> Iterator[Definition]:
    """Yield what statements define, and its values in a module, and in its classes."""
    given = defaultdict[str, list[ast.AST | None]](list)
    for statement in statements:
        for name, node in _given_by(statement):
            if name == "*":  # it may give all of these
                for nodes in given.values():
                    nodes.append(None)
            given[name].append(node)
    for name, nodes in given.items():
        yield Definition(where + name, name, names, nodes)
        classes = [node for node in nodes if isinstance(node, ast.ClassDef)]
        cls = names.get(name)
        if classes and None not in nodes and isinstance(cls, type) and cls.__name__ == name:
            yield from definitions(classes[-1].body, vars(cls), f"{where}{name}.")


def _given_by(statement: ast.stmt) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that a statement binds, and what gives their values, if that is clear."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _given(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _given(target, value)
        case _:
            yield from _bound_in(statement)


def _given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST | None]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
            for each in zip(targets, values, strict=True):
                yield from _given(*each)
        case _:
            yield from _bound_in(target)


def _bound_in(part: ast.AST) -> Iterator[tuple[str, None]]:
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None
        name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(name, str):
            yield name.partition(".")[0], None


def _has_defaults(func: FunctionType, args: ast.arguments) -> bool:
    nodes = [*args.defaults, *filter(None, args.kw_defaults)]
    values = [*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()]
    return len(nodes) == len(values) and all(map(_may_give, nodes, values))


def _may_give(node: ast.AST, value: Any) -> bool:
    with suppress(ValueError):
        return is_same(simple_value(node), value)
    return True


def _place_of(code: CodeType) -> tuple[str, str, int]:
    return code.co_filename, code.co_name, code.co_firstlineno


def simple_value(node: ast.AST) -> Any:
    """Return the value of an expression of literals; raise ValueError if there is more in it."""
    if isinstance(node, ast.Constant):  # most of them: compiling takes some time
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


def changed_by(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names of globals, attributes and other objects that code changes.

    Whatever they are attributes of, but for those of ``self``.
    """
    changed = set[str]()
    for statement in statements:
        for node in ast.walk(statement):
            match node:
                case ast.Global(names=names):
                    changed.update(names)
                case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
                    changed.update({name} if _path(owner) != {"self"} else ())
                case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
                    changed |= _path(owner)
                case ast.Attribute(value=owner, attr=name) if name in CHANGING:
                    changed |= _path(owner)
                case ast.Call(
                    func=ast.Name(id="exec" | "setattr" | "delattr" as name), args=[owner, *_]
                ):
                    changed.update({name} if _path(owner) != {"self"} else ())
    return changed


def imports_in(parts: Iterable[ast.AST], package: str) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, and to what, such as ``module.name``.

    The name is ``*`` for all names of a module, and empty for a module that is imported only.
    """
    for part in parts:
        if isinstance(part, ast.Import):
            for alias in part.names:
                whole = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or whole, whole
                yield "", alias.name
        elif isinstance(part, ast.ImportFrom):
            name = "." * part.level + (part.module or "")
            module = resolve_name(name, package) if part.level and package else name
            for alias in part.names:
                yield alias.asname or alias.name, f"{module}.{alias.name}"


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield code, and that of the functions and classes in it."""
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from codes_in(const)


def _path(node: Any) -> set[str]:
    """Return the names on the way to what an expression gives, ``a`` and ``b`` of ``a.b[0]``."""
    names = set[str]()
    while isinstance(node, ast.expr):
        names.add(getattr(node, "id", getattr(node, "attr", "")))
        node = getattr(node, "value", getattr(node, "func", None))
    names.discard("")
    return names - ANYTHING if "self" in names else names
