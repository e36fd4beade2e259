"""What functions and classes count as: by the files that they are imported from, or by value."""

from __future__ import annotations

import inspect
import sys
from contextlib import suppress
from dis import get_instructions
from types import CodeType, FunctionType, ModuleType
from typing import Any

from nbshare.checkpoint.digests import Digests
from nbshare.checkpoint.sources import Sources
from nbshare.functions.pickling import MAINS

CO_HAS_DOCSTRING = getattr(inspect, "CO_HAS_DOCSTRING", 0)  # since Python 3.14
# Attributes that Python adds to a class, and that do not change what it does.
NOT_OF_A_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "__annotate_func__", "__annotations_cache__",
    "__abstractmethods__", "_abc_impl",
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
    sources : Sources
        Of what is imported from own files.
    """

    def __init__(self, version: str | None) -> None:
        self.digests = Digests(self.definition, version)
        self.sources = Sources()
        self._parts: dict[str, str] = {}
        self._names: dict[int, tuple[Any, str]] = {}  # of those met, which are kept

    @property
    def parts(self) -> dict[str, str]:
        """A digest for each definition, by what messages call it."""
        return self._parts | self.sources.parts

    def definition(self, obj: Any) -> str:
        """Return a text for a function, class or module, and note what it depends on."""
        if isinstance(obj, ModuleType):
            self.sources.reach(obj.__name__)
            return f"module {self.sources.label(obj.__name__)}"
        module, qualname = obj.__module__ or "", obj.__qualname__
        is_edited = module in MAINS or self.sources.is_own(module)
        if module not in MAINS and "<" not in qualname and _is_named(obj):
            self.sources.reach(module, [qualname.partition(".")[0]])
        elif is_edited or "<" in qualname:
            return f"own {self._by_value(obj, qualname, is_edited=is_edited)}"
        return f"named {self.sources.label(module)}.{qualname}"

    def _by_value(self, obj: Any, qualname: str, *, is_edited: bool) -> str:
        """Note what is sent by value; returns its name."""
        if id(obj) not in self._names:
            name = qualname.replace("<locals>.", "").replace("<lambda>", "lambda")
            n = sum(other.startswith(name) for _, other in self._names.values())
            label = f"{name} ({n + 1})" if n else name
            self._names[id(obj)] = obj, label  # first: it may lead to itself
            if isinstance(obj, FunctionType):
                content = self._function(obj, is_edited=is_edited)
            else:
                content = _members(obj)
            self._parts[label] = self.digests.of(content, label).hex()
        return self._names[id(obj)][1]

    def _function(self, func: FunctionType, *, is_edited: bool) -> list[Any]:
        """Return what a function itself depends on, and note its global values."""
        names: set[str] = set()
        form = _form_of(func.__code__, names)
        closure = _closure_of(func)
        used = (_globals_of(func.__code__) & func.__globals__.keys()) - {"__name__"}
        for name in sorted(used) if is_edited else ():
            value = func.__globals__[name]
            if isinstance(value, ModuleType):
                self.sources.reach(value.__name__, names)
                form.append((name, self.sources.label(value.__name__)))
            elif isinstance(value, FunctionType | type):
                form.append((name, value))
            else:
                value_name = f"the global {name}"
                self._parts[value_name] = self.digests.of(value, value_name).hex()
        return [form, func.__defaults__, func.__kwdefaults__, closure]


def _is_named(obj: Any) -> bool:
    """Whether its name leads to it, or to a newer version of it."""
    found: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    found = getattr(found, "__func__", found)
    return found is obj or (type(found) is type(obj) and not hasattr(found, "__wrapped__"))


def _form_of(code: CodeType, names: set[str]) -> list[Any]:
    """Return what a function's code does: not where, nor its docstring; adds the names it uses."""
    names.update(code.co_names)
    form: list[Any] = [code.co_code, code.co_names, code.co_varnames, code.co_freevars]
    form += [code.co_exceptiontable, code.co_argcount, code.co_kwonlyargcount]
    form.append(code.co_flags & (inspect.CO_VARARGS | inspect.CO_VARKEYWORDS))
    is_def = code.co_name[0] != "<"  # before 3.14, its first constant is its docstring or None
    has_docstring = code.co_flags & CO_HAS_DOCSTRING if CO_HAS_DOCSTRING else is_def
    for i, const in enumerate(code.co_consts):
        if isinstance(const, CodeType):
            form.append(_form_of(const, names))
        elif i or not (has_docstring and isinstance(const, str | None)):
            form.append(const)
    return form


def _globals_of(code: CodeType) -> set[str]:
    """Return the names of the global variables that a function uses; not those of attributes."""
    names = ((each.opname, each.argval) for each in get_instructions(code))
    found = {name for op, name in names if "GLOBAL" in op or op == "LOAD_NAME"}  # of a class
    return found.union(*(_globals_of(c) for c in code.co_consts if isinstance(c, CodeType)))


def _closure_of(func: FunctionType) -> dict[str, Any]:
    """Return the variables of enclosing functions; those that have no value yet are left out."""
    found = {}
    for name, cell in zip(func.__code__.co_freevars, func.__closure__ or (), strict=True):
        with suppress(ValueError):
            found[name] = cell.cell_contents
    return found


def _members(cls: type) -> list[Any]:
    """Return what a class consists of."""
    found: list[Any] = [cls.__bases__]
    for name, member in sorted(vars(cls).items()):
        if isinstance(member, property):
            found.append((name, member.fget, member.fset, member.fdel))
        elif isinstance(member, staticmethod | classmethod):
            found.append((name, type(member), member.__func__))
        elif not (name in NOT_OF_A_CLASS or inspect.isdatadescriptor(member)):
            found.append((name, member))
    return found
