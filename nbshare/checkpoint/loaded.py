"""Whether this process has imported what is in the files now: the key is about the files.

Worker processes import files as they are. With ``backend="serial"`` or ``"threads"``, items run
what was imported here, maybe before the last edit; their results would count as the new code's.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.abc import InspectLoader
from types import CodeType, FunctionType
from typing import Any

from nbshare.checkpoint.code import form_of
from nbshare.checkpoint.digests import Digests
from nbshare.checkpoint.sources import DEFINITIONS, Module, Sources, bound_by
from nbshare.errors import CheckpointError

CONSTANTS = {bool, int, float, complex, str, bytes, tuple}


def check_loaded(sources: Sources) -> None:
    """Raise CheckpointError if a definition of a file is not the one that was imported here."""
    if sources.older:
        raise CheckpointError(
            f"{min(sources.older)} is an older version: its module was imported "
            "again. With backend='serial' or 'threads' it would run as it was. Take it from the "
            "module again, make its objects anew, or leave out backend=."
        )
    for own, names in sources.reached().items():
        if (module := sys.modules.get(own.name)) is None:
            continue
        file = _File(own, module.__loader__)
        for name in names:
            if not file.has_given(own.named.get(name, []), vars(module)):
                raise CheckpointError(
                    f"{own.path} was edited after this process imported it ({name} differs). With "
                    "backend='serial' or 'threads', items run the imported code. Call "
                    f"importlib.reload({own.name}), restart the kernel, or leave out backend=."
                )


class _File:
    """The file of a module, as it was read for the key."""

    def __init__(self, own: Module, loader: Any) -> None:
        self._changing = {*_bound_later(own.statements)}  # names
        self._forms = defaultdict[str, set[bytes]](set)  # of functions, by their qualified names
        if isinstance(loader, InspectLoader):  # else it may not only compile the file
            for code in _codes_in(loader.source_to_code(own.source, own.path)):
                self._forms[code.co_qualname].add(_digest_of(code))

    def has_given(self, statements: list[ast.stmt], names: Mapping[str, Any]) -> bool:
        """Whether definitions gave names the values that they have, as far as that can be told."""
        bound = Counter(name for each in statements for name in bound_by(each))
        last = {name for name, n in bound.items() if n == 1 and name not in self._changing}
        return all(self._has_given(each, names, last) for each in statements)

    def _has_given(self, statement: ast.stmt, names: Mapping[str, Any], last: set[str]) -> bool:
        """As `has_given`; `last`: names that no other statement binds."""
        match statement:
            case ast.ClassDef(name=name, body=body):
                return self.has_given(body, getattr(names.get(name), "__dict__", {}))
            case ast.FunctionDef(name=name, args=args) | ast.AsyncFunctionDef(name=name, args=args):
                return self._has_compiled(names.get(name), args if name in last else None)
            case (
                ast.Assign(targets=[ast.Name(id=name)], value=value)
                | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
            ):
                return name not in last or _may_give(value, names.get(name))
        return True

    def _has_compiled(self, value: Any, args: ast.arguments | None) -> bool:
        """Whether the file has the code of a function; with `args`, its defaults as well."""
        func = inspect.unwrap(getattr(value, "fget", value))  # of a property
        func = getattr(func, "__func__", func)
        if not isinstance(func, FunctionType) or func.__code__.co_qualname not in self._forms:
            return True
        if args is not None:
            defaults = [*(func.__defaults__ or ()), *(func.__kwdefaults__ or {}).values()]
            given = [*args.defaults, *filter(None, args.kw_defaults)]
            if len(given) != len(defaults) or not all(map(_may_give, given, defaults)):
                return False
        return _digest_of(func.__code__) in self._forms[func.__code__.co_qualname]


def _digest_of(code: CodeType) -> bytes:
    return Digests(str, None).of(form_of(code, []), code.co_name)


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, CodeType):
            yield from _codes_in(const)


def _bound_later(statements: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that code binds which does more than define them."""
    for statement in statements:
        does_more = not bound_by(statement)
        for node in ast.walk(statement):
            if isinstance(node, ast.Global):
                yield from node.names
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                yield node.attr
            elif isinstance(node, ast.ClassDef):
                yield from _bound_later(node.body)
            elif does_more and isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            if does_more and isinstance(node, DEFINITIONS):
                yield node.name


def _may_give(expression: ast.expr, value: Any) -> bool:
    """Whether an expression gives a value; also if it is no literal."""
    with suppress(ValueError):
        return type(value) not in CONSTANTS or repr(ast.literal_eval(expression)) == repr(value)
    return True
