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
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nbshare.checkpoint.code import form_of
from nbshare.checkpoint.digests import Digests
from nbshare.checkpoint.sources import DEFINITIONS, Sources, bound_by, parsed
from nbshare.errors import CheckpointError

CONSTANTS = {bool, int, float, complex, str, bytes, tuple}


def check_loaded(sources: Sources) -> None:
    """Raise CheckpointError if a definition of a file is not the one that was imported here."""
    files = dict[str, _File]()
    for name, attribute, statements in sources.definitions():
        if (module := sys.modules.get(name)) is None:
            continue
        if name not in files:
            files[name] = _File(module)
        if not files[name].has_given(statements, vars(module)):
            raise CheckpointError(
                f"{module.__file__} was edited after this process imported it ({attribute} "
                "differs). With backend='serial' or 'threads', items run the imported code. Call "
                f"importlib.reload({name}), restart the kernel, or leave out backend=."
            )


class _File:
    """The file of a module, as it is now."""

    def __init__(self, module: ModuleType) -> None:
        path, loader = str(module.__file__), module.__loader__
        source = Path(path).read_bytes()
        self._changing = {*_bound_later(parsed(source))}  # names
        self._forms = defaultdict[str, set[bytes]](set)  # of functions, by their qualified names
        if isinstance(loader, InspectLoader):  # else it may not only compile the file
            for code in _codes_in(loader.source_to_code(source, path)):
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


def _bound_later(tree: ast.AST) -> Iterator[str]:
    """Yield the names that code binds which does more than define them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Module | ast.ClassDef):
            for part in [
                part for each in node.body if not bound_by(each) for part in ast.walk(each)
            ]:
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id
                elif isinstance(part, DEFINITIONS):
                    yield part.name


def _may_give(expression: ast.expr, value: Any) -> bool:
    """Whether an expression gives a value; also if it is no literal."""
    with suppress(ValueError):
        return type(value) not in CONSTANTS or repr(ast.literal_eval(expression)) == repr(value)
    return True
