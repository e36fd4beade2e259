"""What a file defines, compared with what a process has.

A definition is a statement at the top level of a file, or of a class in it, that gives a name its
only value: a function, a class, or a simple value (numbers, texts, None, and tuples, lists, dicts
and sets of them). A name that code changes later, such as a counter or a cache, may have any value.
"""

from __future__ import annotations

import ast
import inspect
import operator
from abc import ABCMeta
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, NamedTuple

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINING = FUNCTIONS | ast.ClassDef | ast.Assign | ast.AnnAssign | ast.Import | ast.ImportFrom
SIMPLE = {bool, int, float, complex, str, bytes, tuple, list, dict, set, type(None)}
METACLASSES = {type, ABCMeta}  # those that leave values as they are
CONTAINERS = {list, dict, set}
OPERATORS: dict[type, Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Mod: operator.mod,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Pow: operator.pow,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert,
}  # fmt: skip
NUMBERS = int, float, complex
LARGEST = 1000  # the largest number, and the largest power, that is computed
# Methods that change a list, a dict or a set.
CHANGING = {
    "add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "insert",
    "intersection_update", "pop", "popitem", "remove", "reverse", "setdefault", "sort",
    "symmetric_difference_update", "update", "__setitem__", "__delitem__", "__ior__", "__iadd__",
}  # fmt: skip
NAMESPACES = {"globals", "vars", "locals"}  # return the names of a module, a class or an object
# Functions that do not keep their argument.
LOOKING = {
    "all", "any", "bool", "dict", "enumerate", "filter", "frozenset", "len", "list", "map", "max",
    "min", "print", "repr", "reversed", "set", "sorted", "str", "sum", "tuple", "type", "zip",
}  # fmt: skip
ANY = "*"  # as a name: names that the code does not tell
PASSED_ON = "="  # before the name of what code passes on, so that other code may change it
ABSENT = object()


class Difference(NamedTuple):
    """A name whose value is not the one that its definition gives."""

    name: str  # with that of its class
    value: Any
    given: Any = ABSENT  # the simple value of the file; ABSENT for a function or a class
    is_version: bool = False  # whether it is another version of the function in the file


# Whether a file has the code of a function; None if the function is of another file.
HasCode = Callable[[CodeType], bool | None]


def differences(
    statements: Collection[ast.stmt], names: Mapping[str, Any], has_code: HasCode
) -> Iterator[Difference]:
    """Yield the names of a module whose values its statements do not give.

    Code may have changed them since: see `changed_by`.
    """
    yield from _Compared(has_code, names, "", is_plain=True).differing(statements)


class _Compared:
    """The names of a module or class.

    Parameters
    ----------
    has_code : callable
        See `HasCode`.
    names : mapping of str to object
        Their values.
    where : str
        What comes before them in messages.
    is_plain : bool
        Whether they have the values that statements give, and nothing made of them, as the
        decorator or metaclass of a class may do.
    """

    def __init__(
        self, has_code: HasCode, names: Mapping[str, Any], where: str, *, is_plain: bool
    ) -> None:
        self._has_code, self._names, self._where = has_code, names, where
        self._is_plain = is_plain

    def differing(self, statements: Collection[ast.stmt]) -> Iterator[Difference]:
        """Yield the names whose values these statements do not give."""
        given = [pair for statement in statements for pair in given_by(statement)]
        n_given = Counter(name for name, _ in given)
        for name, node in given:
            is_only = n_given[name] == 1
            value = self._names.get(self._key(name), ABSENT)
            if value is ABSENT or node is None:
                continue
            if isinstance(node, ast.ClassDef):
                yield from self._class(node, value, is_only=is_only)
            elif isinstance(node, FUNCTIONS):
                found = self._has_function(node, value, is_only=is_only)
                if not found:
                    yield Difference(self._where + name, value, is_version=found is False)
            elif is_only and not self._has_value(node, value):
                yield Difference(self._where + name, value, simple_value(node))

    def _key(self, name: str) -> str:
        """Return the name under which a class has a name."""
        is_private = name.startswith("__") and not name.endswith("__")
        owner = self._where[:-1].rpartition(".")[2].lstrip("_")
        return f"_{owner}{name}" if is_private and owner else name

    def _class(self, node: ast.ClassDef, value: Any, *, is_only: bool) -> Iterator[Difference]:
        is_decorated = bool(node.decorator_list) or not is_only
        if isinstance(value, type) and value.__name__ == node.name:
            where = f"{self._where}{node.name}."
            is_plain = not is_decorated and _is_plain(value)
            inner = _Compared(self._has_code, vars(value), where, is_plain=is_plain)
            # A metaclass may make anything of the values.
            is_type = type(value) in METACLASSES
            yield from inner.differing(
                [x for x in node.body if is_type or isinstance(x, FUNCTIONS)]
            )
        elif self._is_plain and not (is_decorated or node.keywords):
            yield Difference(self._where + node.name, value)

    def _has_function(self, node: Any, value: Any, *, is_only: bool) -> bool | None:
        """Return as `HasCode`."""
        is_plain = self._is_plain and is_only and not node.decorator_list
        func = getattr(value, "__func__", value)  # such as of __init_subclass__
        if not is_plain:
            func = inspect.unwrap(getattr(func, "fget", func))  # of a property
            func = getattr(func, "__func__", func)
        found = self._has_code(func.__code__) if isinstance(func, FunctionType) else None
        if found is None:
            return None if is_plain else True
        return None if found and is_only and _has_other_defaults(func, node.args) else found

    def _has_value(self, node: ast.AST, value: Any) -> bool:
        if type(value) not in SIMPLE and (not self._is_plain or hasattr(type(value), "__get__")):
            return True  # such as the field of a named tuple
        try:
            return is_same(simple_value(node), value)
        except ValueError:
            return True


def given_by(statement: ast.stmt) -> Iterator[tuple[str, ast.AST | None]]:
    """Yield the names that a statement defines, and what gives their values, if that is clear."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _given(target, value)
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _given(target, value)
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from ((each.asname or each.name.partition(".")[0], None) for each in aliases)


def _given(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.AST | None]]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
            for each in zip(targets, values, strict=True):
                yield from _given(*each)
        case _:
            stored = (node for node in ast.walk(target) if isinstance(node, ast.Name))
            yield from ((node.id, None) for node in stored if isinstance(node.ctx, ast.Store))


def _is_plain(cls: type) -> bool:
    """Whether a class has what its statements give: no metaclass or base makes something else."""
    hook = getattr(cls.__init_subclass__, "__func__", None)
    return type(cls) in METACLASSES and hook is None


def _has_other_defaults(func: FunctionType, args: ast.arguments) -> bool:
    defaults = [*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()]
    given = [*args.defaults, *filter(None, args.kw_defaults)]
    if len(given) != len(defaults):
        return True
    for node, value in zip(given, defaults, strict=True):
        with suppress(ValueError):
            if not is_same(simple_value(node), value):
                return True
    return False


def simple_value(node: ast.AST) -> Any:
    """Return the simple value of an expression; raise ValueError if it may be anything."""
    match node:
        case ast.Constant(value=value) if type(value) in SIMPLE:
            return value
        case ast.Tuple(elts=nodes):
            return tuple(map(simple_value, nodes))
        case ast.List(elts=nodes):
            return [*map(simple_value, nodes)]
        case ast.Set(elts=nodes):
            return {*map(simple_value, nodes)}
        case ast.Dict(keys=keys, values=values) if None not in keys:
            return {
                simple_value(k): simple_value(v) for k, v in zip(keys, values, strict=True) if k
            }
        case ast.UnaryOp(op=op, operand=operand):
            return _computed(op, operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _computed(op, left, right)
    raise ValueError("not a simple value")


def _computed(op: ast.AST, *nodes: ast.AST) -> Any:
    values = [*map(simple_value, nodes)]
    if type(op) not in OPERATORS or not all(type(value) in NUMBERS for value in values):
        raise ValueError("not a simple value")
    if isinstance(op, ast.Pow) and not all(abs(value) <= LARGEST for value in values):
        raise ValueError("not a simple value")
    try:
        return OPERATORS[type(op)](*values)
    except (ArithmeticError, TypeError) as error:
        raise ValueError("not a simple value") from error


def is_same(given: Any, value: Any) -> bool:
    """Whether a value is a given simple one."""
    if type(value) is not type(given):
        return False
    with suppress(Exception):  # such as of arrays in a list
        is_equal = bool(value == given)
        return is_equal and (type(value) in CONTAINERS or repr(value) == repr(given))
    return False


def bound_by(statements: Collection[ast.stmt]) -> set[str]:
    """Return the names of a module that its code binds besides defining them."""
    bound = {*_bound_besides(statements)}
    for statement in statements:
        for node in ast.walk(statement):
            match node:
                case ast.Global(names=names):
                    bound.update(names)
                case (
                    ast.Name(id=name, ctx=ast.Del())
                    | ast.NamedExpr(target=ast.Name(id=name))
                    | ast.AugAssign(target=ast.Name(id=name))
                ):
                    bound.add(name)
    return bound


def changed_by(statements: Collection[ast.stmt]) -> set[str]:
    """Return the names of attributes, and of other objects, that code changes; ANY for others.

    Whatever they are attributes of, but for those of ``self``. After PASSED_ON, there are the names
    of what it passes on.
    """
    changed = set[str]()
    looked_at = set[ast.AST]()  # parents come before their parts
    for statement in statements:
        for node in ast.walk(statement):
            changed.update(_changed(node))
            looked_at.update(_looked_at(node))
            if node not in looked_at and isinstance(getattr(node, "ctx", None), ast.Load):
                changed.add(PASSED_ON + getattr(node, "id", getattr(node, "attr", "")))
    return changed


def is_changed(difference: Difference, changed: Collection[str]) -> bool:
    """Whether code that changes names may have changed one, or its class."""
    names = {*difference.name.split(".")}
    if type(difference.given) in CONTAINERS and not difference.given:  # as of a registry
        names |= {PASSED_ON + name for name in names}
    return not names.isdisjoint(changed)


def _looked_at(node: ast.AST) -> Collection[ast.AST]:
    """Return the parts of an expression that it only looks at."""
    match node:
        case ast.Subscript(value=value) | ast.Attribute(value=value) | ast.Starred(value=value):
            return [value]
        case ast.For(iter=value) | ast.comprehension(iter=value) | ast.If(test=value):
            return [value]
        case ast.Compare(left=value, comparators=values):
            return [value, *values]
        case ast.Call(func=func, args=args, keywords=keywords):
            unpacked = [each.value for each in keywords if each.arg is None]
            is_look = isinstance(func, ast.Name) and func.id in LOOKING
            return [func, *(args if is_look else ()), *unpacked]
        case ast.UnaryOp(operand=value):
            return [value]
    return []


def _bound_besides(statements: Collection[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind which do more than define them."""
    for statement in statements:
        if isinstance(statement, ast.ClassDef):
            yield from _bound_besides(statement.body)
        if isinstance(statement, DEFINING):
            continue
        for node in ast.walk(statement):
            match node:
                case ast.Name(id=name, ctx=ast.Store()):
                    yield name
                case ast.alias(name=name, asname=asname):
                    yield asname or name.partition(".")[0]
                case (
                    ast.FunctionDef(name=name)
                    | ast.AsyncFunctionDef(name=name)
                    | ast.ClassDef(name=name)
                    | ast.ExceptHandler(name=str(name))
                    | ast.MatchAs(name=str(name))
                    | ast.MatchStar(name=str(name))
                    | ast.MatchMapping(rest=str(name))
                ):
                    yield name


def _changed(node: ast.AST) -> Collection[str]:
    match node:
        case ast.Name(id="exec"):
            return [ANY]
        case ast.Attribute(value=owner, attr=name, ctx=ast.Store() | ast.Del()):
            return [] if _is_self(owner) else [name]
        case ast.Subscript(value=owner, ctx=ast.Store() | ast.Del()):
            return _path(owner)
        case ast.Attribute(value=owner, attr=name) if name in CHANGING:
            return _path(owner)
        case ast.Call(func=ast.Name(id="setattr" | "delattr"), args=[owner, name, *_]):
            if isinstance(name, ast.Constant):
                return [str(name.value)]
            return [] if _is_self(owner) else [ANY]
    return []


def _is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def _path(node: ast.AST) -> set[str]:
    """Return the names on the way to what an expression gives, ``a`` and ``b`` of ``a.b[0]``."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.Attribute(value=owner, attr="__dict__"):
            return set() if _is_self(owner) else {ANY}
        case ast.Attribute(value=owner, attr=name):
            return {name, *_path(owner)}
        case ast.Subscript(value=owner):
            return _path(owner)
        case ast.Call(func=ast.Name(id=name), args=args) if name in NAMESPACES:
            return set() if args and _is_self(args[0]) else {ANY}
        case ast.Call(func=ast.Attribute() as owner):
            return _path(owner)
    return set()
