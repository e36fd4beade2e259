"""The form of compiled code, and the names that it uses, for functions without a source file."""

from __future__ import annotations

import functools
import inspect
import re
from collections import defaultdict
from contextlib import suppress
from dis import Instruction, get_instructions
from importlib.util import resolve_name
from inspect import CO_VARARGS, CO_VARKEYWORDS
from itertools import takewhile
from types import CodeType, FunctionType
from typing import Any

from nbshare._core.functions.installed import is_installed
from nbshare._core.source.file import ALL, Dependency, dependency_on

# Attributes that Python adds to a class without an effect on its behaviour.
NOT_OF_A_CLASS = {
    "__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__",
    "__static_attributes__", "__annotations__", "__annotate_func__", "__annotations_cache__",
    "__abstractmethods__", "_abc_impl", "__slotnames__", "__orig_bases__", "__parameters__",
    "__classdictcell__",
    # Pydantic derives these from the annotations and `__pydantic_fields__`. They contain addresses.
    "__pydantic_core_schema__", "__pydantic_serializer__", "__pydantic_validator__",
    "__pydantic_complete__", "__pydantic_fields_complete__", "__pydantic_parent_namespace__",
    "__pydantic_setattr_handlers__", "__signature__",
}  # fmt: skip
OF_VALUES, OF_ATTRIBUTES = (
    re.compile("CONST|ATTR|METHOD"),
    re.compile("ATTR|METHOD"),
)  # instructions
OF_OTHERS = "STORE_GLOBAL", "STORE_NAME"  # instructions that set names which other code may use


def form_of(code: CodeType, steps: list[Instruction]) -> list[Any]:
    """Return the form of a function's code, without its place and docstring."""
    here = list(get_instructions(code))
    for k, step in enumerate(here):
        if step.opname == "KW_NAMES":  # in Python 3.11 and 3.12 `dis` has no value for it
            here[k] = step._replace(argval=code.co_consts[step.arg or 0])
    steps += here
    form: list[Any] = [code.co_varnames, code.co_argcount, code.co_posonlyargcount]
    form += [code.co_kwonlyargcount, code.co_flags & (CO_VARARGS | CO_VARKEYWORDS)]
    form.append(code.co_exceptiontable)
    for step, after in zip(here, [*here[1:], here[0]], strict=True):
        if isinstance(step.argval, CodeType):
            form.append(form_of(step.argval, steps))
        elif after.opname != "STORE_NAME" or after.argval not in NOT_OF_A_CLASS:
            form += [step.opname, step.argval]
    return form


def uses_in(steps: list[Instruction], package: str) -> tuple[dict[str, set[str]], set[Dependency]]:
    """Return the attributes used of each variable, such as ``of.it``, and the targets of imports.

    The attributes include ``*`` if a variable is used in another way.
    """
    steps = [step for step in steps if step.opname != "EXTENDED_ARG"]
    used, bound = defaultdict[str, set[str]](set), defaultdict[Any, set[str]](set)
    imported = set[Dependency]()
    module, has_names, target = "", False, ""
    for i, step in enumerate(steps):
        # A combined instruction has two variables.
        names = step.argval if isinstance(step.argval, tuple) else (step.argval,)
        if step.opname == "IMPORT_NAME":
            level, has_names = steps[i - 2].argval, steps[i - 1].argval is not None
            module = resolve_name("." * level + names[0], package) if level else names[0]
            imported.add((module, ""))
            target = module.partition(".")[0]
        elif step.opname == "IMPORT_FROM":
            target = f"{module}.{names[0]}" if has_names else module
        elif "LOAD" in step.opname and not OF_VALUES.search(step.opname):
            asked = takewhile(lambda each: OF_ATTRIBUTES.search(each.opname), steps[i + 1 :])
            for name in names["STORE" in step.opname : -1]:
                used[name].add(ALL)
            used[names[-1]].add(".".join(each.argval for each in asked) or ALL)
        if "IMPORT" in step.opname:
            stored = steps[i + 1]
            bound[_stored_by(stored)].add(target)
            if stored.opname in OF_OTHERS:
                imported.add(dependency_on(target))
    for name in used.keys() & bound.keys():
        paths = {"" if path == ALL else path for path in used[name]}
        imported |= {dependency_on(target, path) for target in bound[name] for path in paths}
    return used, imported


def keywords_in(steps: list[Instruction]) -> set[str]:
    """Return the texts in constant tuples, among them the names of keywords in calls."""
    values = [step.argval for step in steps if isinstance(step.argval, tuple)]
    return {each for value in values for each in value if isinstance(each, str)}


def _stored_by(step: Instruction) -> Any:
    return step.argval[0] if isinstance(step.argval, tuple) else step.argval


def uses_of(func: Any, parameter: str) -> set[str]:
    """Return in which ways a function uses a parameter as a pair.

    The ways are "unpacked", for ``a, b = pair`` or ``f(*pair)``, and "[1]", for ``pair[1]``. The
    user's functions that are called as ``g(pair)`` are followed. Other functions, code in C, and
    ``*args`` are not.
    """
    found, todo, known = set[str](), [(func, parameter)], set[Any]()
    while todo:
        func, parameter = todo.pop()
        function = _plain(func)
        if function is None or function.__code__ in known:
            continue
        known.add(function.__code__)
        steps = [x for x in get_instructions(function) if x.opname not in _NO_STEPS]
        previous = [None, *steps]
        for before, loads, step, then in zip(previous, steps, steps[1:], steps[2:], strict=False):
            names = loads.argval if isinstance(loads.argval, tuple) else (loads.argval,)
            if loads.opname.startswith("STORE_") and parameter in names:  # another thing from here
                break
            if not loads.opname.startswith("LOAD_") or names[-1] != parameter:
                continue
            if step.opname == "CALL_FUNCTION_EX" or (
                step.opname == "UNPACK_SEQUENCE" and step.argval == 2
            ):
                found.add("unpacked")
            if step.argval == 1 and (then.opname == "BINARY_SUBSCR" or then.argrepr == "[]"):
                found.add("[1]")
            if step.opname == "CALL" and step.argval == 1 and before is not None:
                called = _value_of(before, function)
                called = _plain(called) if type(called) is FunctionType else None
                # Functions of libraries may accept anything.
                if called is not None and not is_installed(called.__code__.co_filename):
                    todo += [(called, name) for name in called.__code__.co_varnames[:1]]
    return found


_NO_STEPS = "PUSH_NULL", "PRECALL"


def _plain(func: Any) -> FunctionType | None:
    """Return the Python function that runs when an object is called, or None."""
    while isinstance(func, functools.partial):
        func = func.func
    with suppress(ValueError):  # the function wraps itself
        func = inspect.unwrap(func)
    if not hasattr(func, "__code__"):
        func = getattr(type(func), "__call__", None)  # noqa: B004 - of an object
    func = getattr(func, "__func__", func)  # a method's
    return func if type(func) is FunctionType else None


def _value_of(loads: Instruction, function: FunctionType) -> Any:
    """Return the global or enclosing variable's value that an instruction loads, or None."""
    code, name = function.__code__, loads.argval
    if loads.opname == "LOAD_GLOBAL":
        return function.__globals__.get(name)
    if loads.opname == "LOAD_DEREF" and name in code.co_freevars:
        with suppress(ValueError):  # the variable has no value yet
            return (function.__closure__ or ())[code.co_freevars.index(name)].cell_contents
    return None


def assigned_around(func: Any) -> str | None:
    """Return a variable of the enclosing function that a function assigns, or None."""
    code = getattr(func, "__code__", None)
    if code is None or not code.co_freevars:
        return None
    stored = (i.argval for i in get_instructions(code) if i.opname == "STORE_DEREF")
    return next((name for name in stored if name in code.co_freevars), None)
