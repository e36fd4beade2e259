"""Digests of functions and classes: those of files by name and source, others by value."""

from __future__ import annotations

import sys
from abc import ABCMeta, _get_dump  # type: ignore[attr-defined]
from collections import Counter
from contextlib import suppress
from dis import Instruction, hasname
from inspect import getsource
from types import (
    CellType,
    FunctionType,
    GetSetDescriptorType,
    MemberDescriptorType,
    ModuleType,
)
from typing import Any

from nbshare._core.checkpoint.digests import Attributes, Digests, digest, is_salted
from nbshare._core.checkpoint.sources import (
    ANYWHERE,
    IN_MODULE,
    LOADING,
    OF_TEXTS,
    Sources,
    asked_for,
)
from nbshare._core.functions.annotations import annotations_of
from nbshare._core.functions.modules import MAINS, by_value, find_named
from nbshare._core.functions.pickling import is_by_value, is_dispatching, sent_variables
from nbshare._core.source.bytecode import NOT_OF_A_CLASS, form_of, keywords_in, uses_in
from nbshare._core.source.file import ALL

UNNAMED = "", "builtins"  # modules of functions that were created by `exec`
NOT_OF_A_MODULE = {"__name__", "__file__"}  # attributes that depend on the module's location
UNSET = CellType()  # an unset variable of an enclosing function
HEAP_TYPE = 1 << 9  # flag of a class that is not a constant in C
OF_SLOTS = MemberDescriptorType, GetSetDescriptorType


class CodeDigests:
    """The functions and classes that results depend on.

    Parameters
    ----------
    version : str, optional
        The argument of `Digests`.

    Attributes
    ----------
    digests : Digests
        The digests of values.
    sources : Sources
        The definitions in the user's own files.
    """

    def __init__(self, version: str | None) -> None:
        self.digests = Digests(self.definition, version)
        self.sources = Sources()
        self._parts = self.sources.parts
        self._names: dict[int, tuple[Any, str]] = {}  # visited objects, kept alive, and their names
        self._counts = Counter[str]()  # numbers of objects of the same name

    @property
    def parts(self) -> dict[str, str]:
        """Digests of the definitions, and of texts that code reads, by their names in messages."""
        found = self._parts | self.sources.texts()
        for obj, label in self._names.values() if self.sources.reading else ():
            text = obj.__doc__
            if not OF_TEXTS.isdisjoint(self.sources.reading):
                with suppress(OSError, TypeError):  # without source
                    text = getsource(obj)
            found[f"the text of {label}"] = digest(repr(text).encode()).hex()
        return found

    def definition(self, obj: Any) -> str:
        """Return a text for a function, class or module. Record its dependencies."""
        if isinstance(obj, ModuleType):
            self.sources.reach(name := self.sources.name_of(obj))
            return f"module {self.sources.label(name)}"
        module, qualname = obj.__module__ or "", obj.__qualname__
        is_made = isinstance(obj, FunctionType) and module in UNNAMED
        is_named = not (is_by_value(obj) or is_made) and _is_named(obj, self._is_edited(module))
        if is_named:
            self.sources.reach(module, qualname.partition(".")[0])
            if _is_older(obj):
                self.sources.older.add(f"{module}.{qualname}")
        elif is_made or _is_of_python(obj):
            return f"own {self._by_value(obj, qualname)}"
        return f"named {self.sources.label(module)}.{qualname}"

    def _by_value(self, obj: Any, qualname: str) -> str:
        """Record the contents of an object that is sent by value. Return its name."""
        if id(obj) not in self._names:
            name = qualname.replace("<locals>.", "").replace("<lambda>", "lambda")
            self._counts[name] += 1
            label = name if self._counts[name] == 1 else f"{name} ({self._counts[name]})"
            self._names[id(obj)] = obj, label  # first, because it may refer to itself
            self.digests.labels[id(obj)] = label
            content = self._function(obj) if isinstance(obj, FunctionType) else _members(obj)
            self._parts[label] = self.digests.of_part(Attributes(content), label)
        return self._names[id(obj)][1]

    def _function(self, func: FunctionType) -> dict[str, Any]:
        """Return the parts of a function, and record the global values that it uses."""
        if is_dispatching(func):
            return {"registry": [*func.registry.items()]}  # type: ignore[attr-defined]
        steps = list[Instruction]()
        form = form_of(func.__code__, steps)
        # Not `__module__`, because a decorator may have copied that of another function.
        module = func.__globals__.get("__name__") or ""
        if module in MAINS or module in UNNAMED or self._is_edited(module):
            self._uses(module, func.__globals__, steps, form)
        cells = zip(func.__code__.co_freevars, func.__closure__ or (), strict=True)
        return {
            "__code__": form,
            "__defaults__": func.__defaults__,
            "__kwdefaults__": func.__kwdefaults__,
            "__closure__": {name: cell.cell_contents for name, cell in cells if cell != UNSET},
            "__annotations__": annotations_of(func),
            **{name: value for name, value in vars(func).items() if name != "__wrapped__"},
        }

    def _uses(
        self, module: str, values: dict[str, Any], steps: list[Instruction], form: list[Any]
    ) -> None:
        """Record the global values and the imports that a function uses."""
        paths, imported = uses_in(steps, values.get("__package__") or "")
        used = {x.argval for x in steps if "GLOBAL" in x.opname or x.opname == "LOAD_NAME"}
        used &= values.keys() - NOT_OF_A_MODULE
        words = {step.argval for step in steps if step.opcode in hasname}
        for name in used:
            words |= {home := _home_of(values[name]), getattr(values[name], "__name__", "")}
            if isinstance(values[name], ModuleType):
                words |= {asked_for((home, path)) for path in paths[name]}
        words |= {*map(asked_for, imported)} | (keywords_in(steps) & LOADING)
        imported |= {*self.sources.note_words(words, [step.argval for step in steps])}
        looks_up = not words.isdisjoint(ANYWHERE | IN_MODULE)
        self.sources.looks_up |= looks_up
        for name in sorted(used):
            self._global(module, name, values[name], {ALL} if looks_up else paths[name], form)
        for dependency in sorted(imported):
            self.sources.reach(*dependency)

    def _is_edited(self, module: str) -> bool:
        """Return whether a module is a file that users edit, or exists only in this process."""
        is_known = module in sys.modules and module not in by_value()
        return self.sources.is_own(module) or not is_known

    def _global(self, module: str, name: str, value: Any, paths: set[str], form: list[Any]) -> None:
        """Record a global value, of which a function uses the attributes `paths`."""
        if isinstance(value, ModuleType) and value.__name__ in by_value():
            variables = sent_variables(value)
            firsts = variables.keys() if ALL in paths else {x.partition(".")[0] for x in paths}
            for each in sorted(firsts & variables.keys()):
                self._global(value.__name__, each, variables[each], {ALL}, form)
        elif isinstance(value, ModuleType):
            own = self.sources.name_of(value)
            for path in sorted(paths):
                self.sources.reach(own, path)
            form.append((name, self.sources.label(own)))
        elif isinstance(value, FunctionType | type) or module in UNNAMED:
            form.append((name, value))
        else:
            where = "" if module in MAINS else f" of {self.sources.label(module)}"
            label = f"the global {name}{where}"
            self._parts[label] = self.digests.of_part(value, label)


def _home_of(value: Any) -> str:
    """Return the name of the top-level package of a module, function or object."""
    name = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", "")
    return str(name).lstrip("_").partition(".")[0]  # such as pickle, whose functions are in _pickle


def _found(obj: Any) -> Any:
    """Return the object to which the name of a function or class leads."""
    found = find_named(obj.__module__, obj.__qualname__)
    return getattr(found, "__func__", found)


def _is_older(obj: Any) -> bool:
    """Return whether the name of a function or class leads to a newer version of it."""
    found = _found(obj)
    return isinstance(found, FunctionType | type) and found is not obj


def _is_named(obj: Any, is_edited: bool) -> bool:
    """Return whether the name of an object leads to it, or to a newer version in an edited module.

    The name alone is not enough, because a decorator may have copied it from another function.
    """
    found = _found(obj)
    if isinstance(found, FunctionType | type):
        is_plain = not (hasattr(found, "__wrapped__") or hasattr(obj, "__wrapped__"))
        return found is obj or (is_edited and is_plain and type(found) is type(obj))
    return getattr(found, "__wrapped__", None) is obj  # it has a cache, or was compiled


def _is_of_python(obj: Any) -> bool:
    """Return whether a function or class was defined in Python, and not in C."""
    return isinstance(obj, FunctionType) or bool(obj.__flags__ & HEAP_TYPE)


def _members(cls: type) -> dict[str, Any]:
    """Return the parts of a class, by name."""
    found: dict[str, Any] = {"__bases__": cls.__bases__, "__annotations__": annotations_of(cls)}
    if isinstance(cls, ABCMeta):
        found["_abc_impl"] = {registered() for registered in _get_dump(cls)[0]}
    if type(cls) is not type:
        found["__class__"] = type(cls)
    for name, member in vars(cls).items():
        if not (name in NOT_OF_A_CLASS or isinstance(member, OF_SLOTS)):
            found[name] = "attrs" if is_salted(name, member) else member
    return found
