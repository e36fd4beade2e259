"""What functions and classes count as: by the files that they are imported from, or by value."""

from __future__ import annotations

import ast
import inspect
import linecache
import sys
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nbshare.checkpoint.digests import Digests, digest
from nbshare.checkpoint.sources import Sources, normal_form, references
from nbshare.functions.pickling import MAINS

__all__ = ["Code"]

# Of a class: what Python adds, and does not change what it does.
NOT_OF_A_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "__annotate__", "__annotate_func__",
    "__annotations_cache__", "__abstractmethods__", "_abc_impl", "__parameters__", "__classcell__",
}  # fmt: skip


class Code:
    """The functions and classes that results depend on.

    Parameters
    ----------
    version : str, optional
        As for `Digests`.

    Attributes
    ----------
    digests : Digests
        Of values.
    parts : dict of str to str
        A digest for each definition, by what messages call it.
    """

    def __init__(self, version: str | None) -> None:
        self.digests = Digests(self.definition, version)
        self._sources = Sources()
        self._parts: dict[str, str] = {}
        self._names: dict[int, tuple[Any, str]] = {}  # of those met, which are kept

    @property
    def parts(self) -> dict[str, str]:
        """The digest of each definition."""
        return self._parts | self._sources.parts

    def definition(self, obj: Any) -> str:
        """Return a text for a function, class or module, and note what it depends on."""
        if isinstance(obj, ModuleType):
            self._sources.reach(obj.__name__)
            return f"module {self._sources.label(obj.__name__)}"
        module, qualname = obj.__module__ or "", obj.__qualname__
        is_by_value = module in MAINS or "<" in qualname or not self._is_named(obj)
        if not is_by_value:
            self._sources.reach(module, qualname.partition(".")[0])
            return f"named {self._sources.label(module)}.{qualname}"
        if not (self._is_edited(module) or "<" in qualname):
            return f"named {module}.{qualname}"
        if id(obj) not in self._names:
            name = qualname.replace("<locals>.", "").replace("<lambda>", "lambda")
            n = sum(other == name for _, other in self._names.values())
            self._names[id(obj)] = obj, name
            label = f"{name} ({n + 1})" if n else name
            describe = self._function if isinstance(obj, FunctionType) else self._class
            self._parts[label] = digest(describe(obj, label)).hex()
        return f"own {self._names[id(obj)][1]}"

    def _is_named(self, obj: Any) -> bool:
        """Whether its name leads to it, or to a newer version of it."""
        found: Any = sys.modules.get(obj.__module__)
        for part in obj.__qualname__.split("."):
            found = getattr(found, part, None)
        found = getattr(found, "__func__", found)
        if found is obj:
            return True
        return type(found) is type(obj) and not hasattr(found, "__wrapped__")

    def _is_edited(self, module: str) -> bool:
        return module in MAINS or self._sources.is_own(module)

    def _function(self, func: FunctionType, label: str) -> bytes:
        """Return what is to be digested of a function that is sent by value."""
        node = _node_of(func.__code__)
        if node is not None:
            text, read = normal_form(node), list(references(node))
        else:
            text, read = _form_of(func.__code__), [(name, []) for name in _names_in(func.__code__)]
        variables = _closure_of(func)
        of = self.digests.of
        values = [of((func.__defaults__, func.__kwdefaults__), f"a default of {label}")]
        values += [of((k, variables[k]), f"{k} in {label}") for k in sorted(variables)]
        seen = set()
        for name, chain in read:
            if name in variables or name not in func.__globals__ or name == "__name__":
                continue
            if not self._is_edited(func.__module__ or ""):
                continue
            value = func.__globals__[name]
            if isinstance(value, ModuleType):
                self._sources.reach_chain(value.__name__, chain)
                text += f" {name}={self._sources.label(value.__name__)}"
            elif isinstance(value, FunctionType | type):
                text += f" {name}={self.definition(value)}"
            elif name not in seen:
                seen.add(name)
                self._parts[f"the global {name}"] = of(value, f"the global {name}").hex()
        return text.encode("utf8", "surrogatepass") + b"".join(values)

    def _class(self, cls: type, label: str) -> bytes:
        members = {k: v for k, v in sorted(vars(cls).items()) if k not in NOT_OF_A_CLASS}
        parts = [self.digests.of(list(cls.__bases__), f"a base of {label}")]
        for name, member in members.items():
            if isinstance(member, property):
                member = [member.fget, member.fset, member.fdel]
            elif isinstance(member, staticmethod | classmethod):
                member = [type(member).__name__, member.__func__]
            elif inspect.ismemberdescriptor(member) or inspect.isgetsetdescriptor(member):
                member = "slot"
            parts.append(self.digests.of([name, member], f"{label}.{name}"))
        return b"".join(parts)


def _closure_of(func: FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions; those that have no value yet are left out."""
    found = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _node_of(code: CodeType) -> ast.AST | None:
    """Return the syntax tree of a function whose source is that of its code; else None."""
    source = "".join(linecache.getlines(code.co_filename))
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    try:
        tree = ast.parse(source)
        compiled = [compile(source, code.co_filename, "exec", flags, dont_inherit=True)]
    except (SyntaxError, ValueError):
        return None
    for part in compiled:  # it grows meanwhile
        compiled += [const for const in part.co_consts if isinstance(const, CodeType)]
    if not source or code not in compiled:
        return None
    places = [place for place in code.co_positions() if None not in place and place[2] != place[3]]
    kinds = (ast.Lambda,) if code.co_name == "<lambda>" else (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and _first_line(node) == code.co_firstlineno
        and getattr(node, "name", "<lambda>") == code.co_name
        and all(_is_in(place, node) for place in places)
    ]
    return found[-1] if found else None  # the innermost


def _first_line(node: Any) -> int:
    decorators = getattr(node, "decorator_list", [])
    return int(decorators[0].lineno if decorators else node.lineno)


def _is_in(place: Any, node: Any) -> bool:
    line, end_line, column, end_column = place
    if isinstance(node, ast.Lambda):
        start, end = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
        return bool(start <= (line, column) and (end_line, end_column) <= end)
    return bool(_first_line(node) <= line and end_line <= node.end_lineno)


def _names_in(code: CodeType) -> list[str]:
    """Return the names that a function's code, and that within it, may ask for."""
    names = list(code.co_names)
    for const in code.co_consts:
        if isinstance(const, CodeType):
            names += _names_in(const)
    return sorted(set(names))


def _form_of(code: CodeType) -> str:
    """Return what a function's code does, as text: of one whose source is not there."""
    consts = [_form_of(c) if isinstance(c, CodeType) else repr(c) for c in code.co_consts]
    if consts and isinstance(code.co_consts[0], str | None):
        consts[0] = ""  # its docstring
    return f"{code.co_code.hex()} {code.co_names} {code.co_varnames} {consts}"
