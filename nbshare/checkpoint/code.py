"""What functions and classes count as: by the files that they are imported from, or by value."""

from __future__ import annotations

import sys
from collections import Counter
from dis import Instruction, get_instructions, hasname
from inspect import CO_VARARGS, CO_VARKEYWORDS
from types import (
    CellType,
    CodeType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

from nbshare.checkpoint.digests import Digests
from nbshare.checkpoint.sources import IMPORTING, Sources
from nbshare.functions.pickling import MAINS

UNNAMED = "", "builtins"  # module of a function that was made by `exec`
# Attributes that Python adds to a class, and that do not change what it does.
NOT_OF_A_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "__annotate_func__", "__annotations_cache__",
    "__abstractmethods__", "_abc_impl", "__slotnames__", "__orig_bases__", "__parameters__",
}  # fmt: skip
NOT_OF_A_MODULE = {"__name__", "__file__"}  # where it is
UNSET = CellType()  # a variable of an enclosing function that has no value yet
OF_SLOTS = MemberDescriptorType, GetSetDescriptorType


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
    parts : dict of str to str
        A digest for each definition, by what messages call it.
    """

    def __init__(self, version: str | None) -> None:
        self.digests = Digests(self.definition, version)
        self.sources = Sources()
        self.parts = self.sources.parts
        self._names: dict[int, tuple[Any, str]] = {}  # of those met, which are kept
        self._counts = Counter[str]()  # how many have the same name

    def definition(self, obj: Any) -> str:
        """Return a text for a function, class or module, and note what it depends on."""
        if isinstance(obj, ModuleType):
            self.sources.reach(obj.__name__)
            return f"module {self.sources.label(obj.__name__)}"
        module, qualname = obj.__module__ or "", obj.__qualname__
        has_no_name = module in MAINS or "<" in qualname
        has_no_name |= isinstance(obj, FunctionType) and module in UNNAMED
        if not has_no_name and _is_named(obj):
            self.sources.reach(module, [qualname.partition(".")[0]])
            if _is_older(obj):
                self.sources.older.add(f"{module}.{qualname}")
        elif has_no_name or self.sources.is_own(module):
            return f"own {self._by_value(obj, qualname)}"
        return f"named {self.sources.label(module)}.{qualname}"

    def _by_value(self, obj: Any, qualname: str) -> str:
        """Note what is sent by value; returns its name."""
        if id(obj) not in self._names:
            name = qualname.replace("<locals>.", "").replace("<lambda>", "lambda")
            self._counts[name] += 1
            label = name if self._counts[name] == 1 else f"{name} ({self._counts[name]})"
            self._names[id(obj)] = obj, label  # first: it may lead to itself
            content = self._function(obj) if isinstance(obj, FunctionType) else _members(obj)
            self.parts[label] = self.digests.of(content, label).hex()
        return self._names[id(obj)][1]

    def _function(self, func: FunctionType) -> list[Any]:
        """Return what a function itself depends on, and note its global values."""
        steps = list[Instruction]()
        form = form_of(func.__code__, steps)
        # Not `__module__`: a decorator may have copied that of another function.
        module = func.__globals__.get("__name__") or ""
        if module in MAINS or module in UNNAMED or self.sources.is_own(module):
            names = {step.argval for step in steps if step.opcode in hasname}
            used = {x.argval for x in steps if "GLOBAL" in x.opname or x.opname == "LOAD_NAME"}
            for name in sorted(used & func.__globals__.keys() - NOT_OF_A_MODULE):
                self._global(module, name, func.__globals__[name], names, form)
            for name in sorted({x.argval for x in steps if x.opname == "IMPORT_NAME"}):
                self.sources.reach(name, names)
            self.sources.imports_any |= not IMPORTING.isdisjoint(names)
        cells = zip(func.__code__.co_freevars, func.__closure__ or (), strict=True)
        closure = {name: cell.cell_contents for name, cell in cells if cell != UNSET}
        content = [form, func.__defaults__, func.__kwdefaults__, closure]
        attributes = {k: v for k, v in vars(func).items() if k != "__wrapped__"}
        return [*content, attributes] if attributes else content

    def _global(self, module: str, name: str, value: Any, names: set[str], form: list[Any]) -> None:
        """Note a global value of a function that uses some names."""
        if isinstance(value, ModuleType):
            self.sources.reach(value.__name__, names)
            form.append((name, self.sources.label(value.__name__)))
        elif isinstance(value, FunctionType | type) or module in UNNAMED:
            form.append((name, value))
        else:
            where = "" if module in MAINS else f" of {self.sources.label(module)}"
            label = f"the global {name}{where}"
            self.parts[label] = self.digests.of(value, label).hex()


def _found(obj: Any) -> Any:
    """Return what has the name of a function or class."""
    found: Any = sys.modules.get(obj.__module__)
    for part in obj.__qualname__.split("."):
        found = getattr(found, part, None)
    return getattr(found, "__func__", found)


def _is_older(obj: Any) -> bool:
    """Whether the name of a function or class leads to a newer version of it."""
    found = _found(obj)
    return isinstance(found, FunctionType | type) and found is not obj


def _is_named(obj: Any) -> bool:
    """Whether its name leads to it, or to a newer version of it."""
    found = _found(obj)
    if isinstance(found, FunctionType | type):
        return found is obj or (type(found) is type(obj) and not hasattr(found, "__wrapped__"))
    return getattr(found, "__wrapped__", None) is obj  # it has a cache, or was compiled


def form_of(code: CodeType, steps: list[Instruction]) -> list[Any]:
    """Return what a function's code does: not where, nor its docstring; adds to its `steps`."""
    here = list(get_instructions(code))
    steps += here
    form: list[Any] = [code.co_varnames, code.co_argcount, code.co_kwonlyargcount]
    form += [code.co_flags & (CO_VARARGS | CO_VARKEYWORDS), code.co_exceptiontable]
    for step, after in zip(here, [*here[1:], here[0]], strict=True):
        if isinstance(step.argval, CodeType):
            form.append(form_of(step.argval, steps))
        elif after.opname != "STORE_NAME" or after.argval not in NOT_OF_A_CLASS:
            form += [step.opname, step.argval]
    return form


def _members(cls: type) -> list[Any]:
    """Return what a class consists of."""
    found: list[Any] = [cls.__bases__]
    if type(cls) is not type:
        found.append(type(cls))
    for name, member in sorted(vars(cls).items()):
        if isinstance(member, property | staticmethod | classmethod):  # they have no pickle
            parts = [getattr(member, each, None) for each in ("fget", "fset", "fdel", "__func__")]
            found.append((name, type(member), parts))
        elif not (name in NOT_OF_A_CLASS or isinstance(member, OF_SLOTS)):
            found.append((name, member))
    return found
