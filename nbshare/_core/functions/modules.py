"""The loaded modules of this process, and data about each of them.

`sys.modules` may hold any object: modules that load on access, proxies, mocks, None. A module is
therefore recognized by its type and examined by its variables, which runs no foreign code and loads
no module. Each module is examined once, because there may be thousands.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib.machinery import (
    EXTENSION_SUFFIXES,
    BuiltinImporter,
    FrozenImporter,
    ModuleSpec,
    NamespaceLoader,
)
from importlib.util import find_spec
from operator import call, is_
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

from nbshare._core.functions.installed import is_installed
from nbshare._core.system import SYSTEM

# The names of the caller's script. The second one in a process spawned by multiprocessing.
MAIN, SPAWNED_MAIN = MAINS = "__main__", "__mp_main__"
_OF_ZIPS = "zipimport", "zipimporter"  # not imported here, because few processes need it
# Suffixes of files that Python imports, without those that an import hook has added to its lists.
SUFFIXES = (".py", ".pyc", *EXTENSION_SUFFIXES, *([".pyw"] if SYSTEM == "windows" else []))
_variables: Any = vars(ModuleType)["__dict__"]  # because a subclass may hide this descriptor


def is_module(value: object) -> bool:
    """Return whether an object is a module, whatever its attributes claim."""
    return issubclass(type(value), ModuleType)


def variables_of(module: object) -> dict[str, Any]:
    """Return the variables of a module, or an empty dict for any other object."""
    if type(module) is ModuleType:  # the usual case, faster
        # Not `.__dict__`: Python 3.11 may return a variable of that name.
        return vars(module)
    return _variables.__get__(module) if is_module(module) else {}


def file_of(module: object) -> str | None:
    """Return the absolute path of a module's file, or None if it has none."""
    path = variables_of(module).get("__file__")
    if type(path) is str and (path.startswith(os.sep) or os.path.isabs(path)):
        return path
    return None


def loader_of(module: object) -> Any:
    """Return the loader of a module, or None if unknown."""
    return variables_of(module).get("__loader__")


def find_named(module: str, qualname: str) -> Any:
    """Return the object that a qualified name means in a loaded module, or None."""
    found: Any = sys.modules.get(module)
    for k, part in enumerate(qualname.split(".")):
        if is_module(found):
            found = variables_of(found).get(part)
        else:
            found = getattr(found, part, None) if k else None
    return found


def home_of(value: Any, name: str) -> str | None:
    """Return a loaded module, other than the script, in which a name means this object, or None."""
    modules = sys.modules.copy()
    homes = (x for x, each in modules.items() if variables_of(each).get(name) is value)
    return next((home for home in homes if home not in MAINS), None)


class Loaded(NamedTuple):
    """The loaded modules at the last check, immutable because threads share them.

    Attributes
    ----------
    seen : dict
        All loaded modules, by name. Modules that users may replace are not kept alive.
    newest : object
        The name that was added last.
    own : dict of str to str
        The files of own modules, by name. The dict is the same object until they change.
    elsewhere : dict of str to str
        The files of installed top-level modules outside this interpreter's folders, by name.
    unknown : dict
        Modules that no other process can import, by name.
    """

    seen: dict[Any, Any]
    newest: Any
    own: dict[str, str]
    elsewhere: dict[str, str]
    unknown: dict[str, Any]


_loaded = Loaded({}, None, {}, {}, {})
_PREFIXES = tuple({os.path.join(path, "") for path in (sys.prefix, sys.base_prefix)})


def loaded() -> Loaded:
    """Return the loaded modules, after examining new ones."""
    global _loaded
    before, now = _loaded, sys.modules
    try:
        newest = next(reversed(now), None)  # a module that is loaded again is last, too
    except RuntimeError:  # another thread is adding a module, so there is a new module
        newest = None
    if len(now) == len(before.seen) and newest is before.newest:
        own_before = map(call, map(before.seen.__getitem__, before.own))  # by weak references
        if all(map(is_, map(now.get, before.own), own_before)):
            return before
    modules, known = now.copy(), before.seen  # in one step, as other threads import some
    seen: dict[Any, Any] = modules.copy()
    own, elsewhere, unknown, new = dict[str, str](), dict[str, str](), dict[str, Any](), set[str]()
    for name, each in modules.items():
        kept = known.get(name, known)
        if kept is each or type(name) is not str:
            continue
        if name in before.own and kept() is each:
            seen[name] = kept
            continue
        new.add(name)
        path = file_of(each)
        if path is not None and not is_installed(path):
            own[name], seen[name] = path, weakref.ref(each)
        elif path is not None and "." not in name and not path.startswith(_PREFIXES):
            elsewhere[name] = path
        if (path is None or not path.endswith(SUFFIXES)) and _is_unknown(name, modules):
            unknown[name] = each

    def present(old: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
        """Return the known modules that are still loaded, and the new modules."""
        left = {name: x for name, x in old.items() if name in modules and name not in new} | found
        return old if left.keys() == old.keys() and not found else left

    _loaded = found = Loaded(
        seen,
        newest,
        present(before.own, own),
        present(before.elsewhere, elsewhere),
        present(before.unknown, unknown),
    )
    return found


def _is_unknown(name: str, modules: Mapping[Any, Any]) -> bool:
    """Return whether no process can import a module, even by importing its package.

    Such a module was created by a program, or by a loader that only this process has, such as a
    loader of notebooks.
    """
    top = name.partition(".")[0]
    return name not in MAINS and not (
        _is_importable(modules[name]) or (top != name and _is_importable(modules.get(top)))
    )


def _is_importable(module: Any) -> bool:
    """Return whether Python itself finds a module by its name or its file."""
    if (path := file_of(module)) is not None:
        return path.endswith(SUFFIXES)
    loader = loader_of(module)
    kind = type(loader)  # compared by name, for zip files, whose modules may have relative paths
    is_found = kind is NamespaceLoader or (kind.__module__, kind.__name__) == _OF_ZIPS
    return is_found or loader is BuiltinImporter or loader is FrozenImporter


def own_files() -> dict[str, str]:
    """Return the files of loaded modules that users may edit, by the modules' names."""
    return loaded().own


def by_value() -> list[str]:
    """Return the names of modules, besides the script, whose definitions only this process has.

    Only modules that have executed Python code count, because compiled modules have no code to
    send.
    """
    unknown = loaded().unknown
    return [name for name, each in unknown.items() if "__builtins__" in variables_of(each)]


def when_imported(name: str, action: Callable[[ModuleType], object]) -> None:
    """Call an action on a module, now or as soon as its import is done."""
    if (module := sys.modules.get(name)) is not None:
        action(module)
        return
    _Watcher.actions[name] = action
    _watch()


@cache
def _watch() -> None:
    sys.meta_path.insert(0, _Watcher)


class _Watcher:
    """Finds modules as Python does, and makes their loaders call the actions."""

    actions: ClassVar[dict[str, Callable[[ModuleType], object]]] = {}

    @classmethod
    def find_spec(
        cls,
        name: str,
        path: Sequence[str] | None = None,  # noqa: ARG003 - importlib's signature
        target: ModuleType | None = None,  # noqa: ARG003
    ) -> ModuleSpec | None:
        if (action := cls.actions.pop(name, None)) is None:
            return None  # the search below calls this method again
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_act(module: ModuleType) -> None:
                execute(module)
                if module.__name__ == name:  # the loader of a zip file loads other modules, too
                    action(module)

            spec.loader.exec_module = execute_and_act  # type: ignore[method-assign]
        return spec
