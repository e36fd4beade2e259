"""The source of a module: the names that its statements bind and use, and targets of imports.

No code is imported or executed. A file is parsed once for all callers.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property, lru_cache
from importlib.util import resolve_name
from types import MappingProxyType
from typing import Any

from nbshare._core.functions.freshness import Stamp, read_source

FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
DEFINITIONS = FUNCTIONS | ast.ClassDef
ASSIGNMENTS = ast.Assign | ast.AnnAssign
EXPRESSION = re.compile(r"[(@~*/+<>=]")  # texts with one of these may be code (pandas, formulas)
# Methods that change a list, a dict or a set. Their immutable counterparts lack them.
CHANGING = {*dir(list), *dir(dict), *dir(set)}.difference(
    dir(tuple), dir(MappingProxyType), dir(frozenset)
)
# Code that uses one of these may change any name.
ANYTHING = {"exec", "setattr", "delattr", "globals", "locals", "vars", "__dict__"}
DOTTED = re.compile(r"[^\W\d]\w*(?:\.\w+)*")
NOT_IN_WORKERS = {"__name__ == '__main__'", "TYPE_CHECKING", "typing.TYPE_CHECKING"}
OF_PROPERTIES = ".setter", ".getter", ".deleter"
ALL = "*"  # stands for all names of a module

Dependency = tuple[str, str]  # a module, and a name in it ("" for the import of the module alone)
Binding = tuple[str, ast.AST | None]  # a name, and the node of its value, if that is clear


class File:
    """The parsed source of a module. It is shared, and must not be changed.

    Attributes
    ----------
    name, path, package : str
        The module, its file, and the package at which its relative imports begin.
    folder : str or None
        The folder, if the module is a package, otherwise None.
    stamp : Stamp
        The version of the file.
    statements : list of ast.stmt
        The statements that workers run.
    """

    def __init__(self, name: str, path: str, _stamp: Stamp | None) -> None:
        if (source := read_source(path, sys.maxsize)) is None:
            raise OSError(f"{path!r} is being edited, or was removed")
        self.name, self.path, self.stamp = name, path, source.stamp
        is_package = os.path.basename(path) == "__init__.py"
        self.package = name if is_package else name.rpartition(".")[0]
        self.folder = os.path.dirname(path) if is_package else None
        self.statements: list[ast.stmt] = []
        for statement in parsed(source.data).body:
            if isinstance(statement, ast.If) and ast.unparse(statement.test) in NOT_IN_WORKERS:
                self.statements += statement.orelse
            else:
                self.statements.append(statement)

    @cached_property
    def named(self) -> Mapping[str, list[ast.stmt]]:
        """The statements that only define a name, by name."""
        return _grouped((name, x) for x in self.statements for name in bound_by(x))

    @cached_property
    def targets(self) -> Mapping[str, list[str]]:
        """The targets of imports, also of those within functions, by the name that they bind."""
        return _grouped(imports_in(statements_in(self.statements), self.package))

    @cached_property
    def lines(self) -> Mapping[str, list[int]]:
        """The lines that bind a name, for each name bound more than once. Their order counts."""
        found = defaultdict[str, list[int]](list)
        for statement in self.statements:
            imported = imports_in(run_by_import(statement), self.package)
            for name in [*bound_by(statement), *(name for name, _ in imported)]:
                found[name].append(statement.lineno)
        return {name: lines for name, lines in found.items() if name and len(lines) > 1}

    @cached_property
    def imports(self) -> list[str]:
        """The modules that the file may import. Some of the names may be other objects."""
        found = [target for targets in self.targets.values() for target in targets]
        parts = [part for target in found for part in (target, target.rpartition(".")[0])]
        return [*dict.fromkeys([self.package, *parts])]

    @cached_property
    def changed(self) -> set[str]:
        """The names that the file's code changes, in any module."""
        return changed_by(self.statements)

    def has(self, name: str) -> bool:
        """Return whether a definition or an import of the file binds a name."""
        return name in self.named or name in self.targets

    def full_names(self, called: ast.expr) -> list[str]:
        """Return the full names of a call or base, such as ``functools.cache`` or ``property``.

        There are none if the file itself defines the name.
        """
        while isinstance(called, ast.Call | ast.Subscript):  # a decorator with options, Generic[T]
            called = called.func if isinstance(called, ast.Call) else called.value
        name, _, rest = (dotted := dotted_name(called)).partition(".")
        if not dotted or not self.has(name):
            return [dotted] if dotted else []
        return [f"{target}.{rest}".rstrip(".") for target in self.targets.get(name, [])]

    def leads_to(self, dotted: str) -> list[Dependency]:
        """Return the targets, with attributes, of a name that imports bind."""
        name, _, rest = dotted.partition(".")
        return [dependency_on(target, rest) for target in self.targets.get(name, [])]


parsed_file = lru_cache(256)(File)  # because each call needs the files again


def parsed(source: bytes) -> ast.Module:
    """Parse a file, and remove docstrings unless the file reads ``__doc__``."""
    for left in (2, 1, 0):
        try:
            tree = ast.parse(source)
            break
        except SystemError:  # raised by CPython 3.11 if another thread parses at the same time
            if not left:
                raise
    for part in () if b"__doc__" in source else (tree, *statements_in(tree.body)):
        if isinstance(part, ast.Module | DEFINITIONS) and ast.get_docstring(part, clean=False):
            part.body = part.body[1:] or [ast.copy_location(ast.Pass(), part.body[0])]
    return tree


def _grouped(pairs: Iterable[tuple[str, Any]]) -> dict[str, list[Any]]:
    found = defaultdict[str, list[Any]](list)
    for name, each in pairs:
        found[name].append(each)
    return dict(found)


# ----------------------------------------------------------------------------- statements


def statements_in(statements: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield statements and the statements within them, which are far fewer than all nodes."""
    for statement in statements:
        todo = deque([statement])
        while todo:
            yield (each := todo.popleft())
            for name in ("body", "handlers", "orelse", "finalbody", "cases"):
                if isinstance(inner := getattr(each, name, ()), list):
                    todo += inner


def run_by_import(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a statement that run at the import: all but the bodies of functions."""
    todo = [statement]
    while todo:
        yield (each := todo.pop())
        children = list(ast.iter_child_nodes(each))
        if isinstance(each, FUNCTIONS):
            children = [child for child in children if child not in each.body]
        todo += [each.args] if isinstance(each, ast.Lambda) else children


# ------------------------------------------------------------------------------- bindings


def bindings_in(statement: ast.stmt) -> Iterator[Binding]:
    """Yield the names that a statement binds, with the nodes of their values if these are clear."""
    match statement:
        case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            yield name, statement
        case ast.Assign(targets=targets, value=value):
            for target in targets:
                yield from _assigned(target, value)
            yield from _named_in(value)
        case ast.ImportFrom(names=aliases) if aliases[0].name != ALL:
            for alias in aliases:
                yield alias.asname or alias.name, statement
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _assigned(target, value)
            yield from _named_in(value)
        case _:
            yield from _bound_in(statement)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[Binding]:
    match target, value:
        case ast.Name(id=name), _:
            yield name, value
        case (ast.Tuple(elts=targets), ast.Tuple(elts=values)) if len(targets) == len(values):
            for each in zip(targets, values, strict=True):
                yield from _assigned(*each)
        case _:
            yield from _bound_in(target)


def _named_in(value: ast.expr) -> Iterator[Binding]:
    for each in ast.walk(value):
        if isinstance(each, ast.NamedExpr):
            yield each.target.id, None


def _bound_in(part: ast.AST) -> Iterator[Binding]:
    for node in ast.walk(part):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            yield node.id, None
        name = getattr(node, "asname", None) or getattr(node, "name", None)
        if isinstance(name, str):
            yield name.partition(".")[0], None


def bound_by(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds, empty if it does more than define names."""
    if isinstance(statement, ASSIGNMENTS):
        for node in ast.walk(statement):
            match node:
                case ast.Attribute(ctx=ast.Store()) | ast.Subscript(ctx=ast.Store()):
                    return set()  # the statement changes something else
    elif not isinstance(statement, DEFINITIONS):
        return set()
    return {name for name, _ in bindings_in(statement)}


# -------------------------------------------------------------------------------- imports


def imports_in(parts: Iterable[ast.AST], package: str) -> Iterator[tuple[str, str]]:
    """Yield the names that imports bind, and their targets, such as ``module.name``.

    The name is ``*`` for all names of a module, and empty for a module whose import binds no name.
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


def dependency_on(target: str, rest: str = "") -> Dependency:
    """Return the object that an import binds, or an attribute of it, as a dependency."""
    module, _, name = target.rpartition(".")
    return (module, f"{name}.{rest}".rstrip(".")) if module else (target, rest or ALL)


# ----------------------------------------------------------------------------------- uses


def uses_in(node: ast.AST) -> Iterator[str]:
    """Yield the names that code uses, with their attributes, such as ``module.name``."""
    todo = [node]
    while todo:
        each = todo.pop()
        if dotted := dotted_name(each):
            yield dotted
        elif isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield from DOTTED.findall(each.value) if EXPRESSION.search(each.value) else ()
        else:
            todo += ast.iter_child_nodes(each)


def names_in(node: ast.AST) -> list[ast.Name]:
    """Return the nodes of names in code, without their attributes."""
    return [each for each in ast.walk(node) if isinstance(each, ast.Name)]


def dotted_name(node: ast.AST) -> str:
    """Return a name with its attributes, or "" for a node that is not such a name."""
    match node:
        case ast.Name(id=name, ctx=ast.Load() | ast.Del()):
            return name
        case ast.Attribute(value=value, attr=attribute) if name := dotted_name(value):
            return f"{name}.{attribute}"
    return ""


# -------------------------------------------------------------------------------- changes


def changed_by(statements: Iterable[ast.stmt]) -> set[str]:
    """Return the names of globals, attributes and other objects that code changes.

    Attributes of any object except ``self`` are included.
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


def _path(node: Any) -> set[str]:
    """Return the names on the path to the value of an expression, ``a`` and ``b`` in ``a.b[0]``."""
    names = set[str]()
    while isinstance(node, ast.expr):
        names.add(getattr(node, "id", getattr(node, "attr", "")))
        node = getattr(node, "value", getattr(node, "func", None))
    names.discard("")
    return names - ANYTHING if "self" in names else names
