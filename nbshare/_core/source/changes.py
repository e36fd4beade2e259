"""Warns of changes that this process has made to modules whose files workers run.

If a notebook sets a value, as by ``consts.SCALE = 10``, or replaces a function, workers do not see
this, because they import the files. A call therefore compares the modules that it reaches with
their files, and warns once of each change. The following are not changes:

- An edit of a file. Workers run the current version. A file is compared only while it is known to
  be the version that this process imported.
- Changes by the code that workers run, such as of counters, caches and registries, and the contents
  of a list, dict or set that the file leaves empty.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from importlib.machinery import ModuleSpec, SourceFileLoader
from reprlib import repr as shown
from types import FunctionType, MethodType, ModuleType
from typing import Any, NamedTuple

from nbshare._core.functions.freshness import (
    is_as_read,
    note_reading,
    stamp_of,
)
from nbshare._core.functions.imports import FreshLoader, found_by
from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import MAINS, is_module, loader_of, own_files, variables_of
from nbshare._core.functions.pickling import codes_in, is_by_value
from nbshare._core.messages import warn
from nbshare._core.source.definitions import (
    ABSENT,
    CONTAINERS,
    SIMPLE,
    Definition,
    definitions_in,
    parts_of,
)
from nbshare._core.source.file import ANYTHING, File, parsed_file

MOST_OF_FILE = 1 << 18  # largest file that is compared, in bytes. Larger ones are mostly data.
MOST = 1 << 19  # bytes of all files that a call compares. Parsing them takes 0.2 s
MOST_NAMED = 5  # most changes in a message


class Change(NamedTuple):
    """A change in a module."""

    name: str  # the changed name in the module
    text: str  # the change in words
    value: int  # the id of the new value


_seen: dict[str, _Seen] = {}  # module name -> its state when it was compared
_told: dict[str, Collection[Change]] = {}  # module name -> its present changes, all reported


def warn_of_changes(*objects: Any) -> None:
    """Warn of changes in the modules that functions, or other objects, reach.

    Each change is reported once. Errors raised by inspecting users' objects are ignored.
    """
    new: list[str] = []
    with suppress(Exception):
        for name, found in changes(objects).items():
            if not found:
                _told.pop(name, None)
                continue
            new += [change.text for change in found if change not in _told.get(name, ())]
            _told[name] = found
    if len(new) > MOST_NAMED:
        new = [*new[: MOST_NAMED - 1], f"{len(new) - MOST_NAMED + 1} more changes"]
    if new:
        warn(
            f"{'; '.join(new)}. Workers import modules from their files, so they do not see "
            "changes made in this process. Pass the changed value as an argument or in shared=, or "
            "edit the file.",
            UserWarning,
        )


def changes(objects: Iterable[Any]) -> dict[str, list[Change]]:
    """Return the changes in each module that the objects reach, within the limits of size.

    The nearest modules are compared first, because a large package may reach all of its files.
    """
    seen: dict[str, _Seen] = {}
    own, names = own_files(), dict.fromkeys(_modules_of(objects))
    todo, left = deque(names), MOST
    while todo:
        if (each := _look_at(name := todo.popleft(), own, left)) is not None:
            seen[name] = each
            left -= each.file.stamp.size
            new = [found for found in each.imports if found not in names]
            names |= dict.fromkeys(new)
            todo += new
    files = [each.file for each in seen.values()]
    return {name: each.changes(files) for name, each in seen.items()}


def _look_at(name: str, own: Mapping[str, str], most: int) -> _Seen | None:
    """Return the current state of an own module, or None if it is not compared."""
    path = own.get(name)
    if path is None or not path.endswith(".py") or name in MAINS:  # the script is sent by value
        return None
    seen = _seen.get(name)
    if seen is not None and seen.is_still(sys.modules.get(name)):
        return seen if seen.file.stamp.size <= most else None
    stamp = stamp_of(path)
    if stamp is None or stamp.size > min(most, MOST_OF_FILE):
        return None
    try:
        _seen[name] = seen = _Seen(name, parsed_file(name, path, stamp), own)
    except (OSError, ImportError, SyntaxError, ValueError):  # the file is being edited
        return None
    return seen


# ----------------------------------------------------------------------- the reach of a call


def _modules_of(objects: Iterable[Any]) -> Iterator[str]:
    """Yield the modules that define these objects, or that objects sent by value use."""
    todo, known = [*objects], dict[int, Any]()
    while todo:
        if id(value := todo.pop()) in known:
            continue
        known[id(value)] = value
        if is_module(value):
            yield variables_of(value).get("__name__", "")
        elif isinstance(value, partial):
            todo += [value.func, *value.args, *value.keywords.values()]
        elif isinstance(value, MethodType):
            todo += [value.__func__, value.__self__]
        elif isinstance(value, FunctionType | type):
            yield value.__module__ or ""
            todo.append(vars(value).get("__wrapped__"))
            if isinstance(value, type) and value.__module__ in MAINS:
                todo += [*value.__bases__, *vars(value).values()]
            elif isinstance(value, FunctionType) and is_by_value(value):
                used = {name for code in codes_in(value.__code__) for name in code.co_names}
                found = [value.__globals__[name] for name in used & value.__globals__.keys()]
                packages = [variables_of(x).get("__name__") for x in found if is_module(x)]
                yield from used  # the code may import modules of these names
                yield from (f"{package}.{name}" for package in packages for name in used)
                todo += [*found, *(value.__defaults__ or ())]
                todo += [cell.cell_contents for cell in value.__closure__ or ()]
        elif type(value) not in SIMPLE:
            # Only a function with a cache, because other objects may react in any way to an access.
            todo += [type(value), getattr(value, "__dict__", {}).get("__wrapped__")]


# ---------------------------------------------------------------------------------- a module


def _may_change(file: File, definition: Definition) -> bool:
    """Return whether the code of a file may have changed a definition."""
    is_near = definition.file.name in (file.name, *file.imports)
    is_any = is_near and not file.changed.isdisjoint(ANYTHING)
    return is_any or definition.is_changed_by(file.changed)


class _Seen:
    """The state of a module when it was compared with its file.

    Attributes
    ----------
    file : File
        The module's file.
    imports : list of str
        The own modules that the file imports.
    """

    def __init__(self, name: str, file: File, own: Mapping[str, str]) -> None:
        module = sys.modules.get(name)
        self.file, self._name, self._names = file, name, variables_of(module)
        self.imports = [x for x in file.imports if x not in sys.modules or x in own]
        defined = [*definitions_in(file)]
        # Other loaders may do more than compile the file.
        is_plain = type(loader_of(module)) in (SourceFileLoader, FreshLoader)
        is_plain = is_plain and is_as_read(file.path, file.stamp)

        def is_other(each: Definition) -> bool:
            with suppress(Exception):  # users' objects may raise errors when they are examined
                return _is_of_main(each.value) or (is_plain and not each.is_as_written())
            return False

        found = [*filter(is_other, defined)]
        ignored = file.changed if found else set[str]()
        found = [each for each in found if not _may_change(file, each)]
        self._changes = [(each, self._change(each)) for each in found]
        # The values of names, the code of functions, and the contents of containers may change.
        watched = [each for each in defined if not each.is_changed_by(ignored)]
        self._watched = [(each.names, each.key) for each in watched]
        self._ids = self._ids_now()
        values = [each.value for each in watched]
        self._functions = [each for each in values if type(each) is FunctionType]
        self._codes = [each.__code__ for each in self._functions]
        others = {id(each.value) for each in found}
        given = [(each.value, each.given) for each in watched if type(each.value) in CONTAINERS]
        self._contents = [x for x in given if x[1] is not ABSENT]
        # Keeps these objects alive, so that their ids are not reused.
        self._kept = [each for each in values if type(each) in SIMPLE or id(each) in others]

    def is_still(self, module: ModuleType | None) -> bool:
        """Return whether nothing in the module has changed since the comparison."""
        if variables_of(module) is not self._names or self._ids_now() != self._ids:
            return False
        if self._changes and stamp_of(self.file.path) != self.file.stamp:  # edited since
            return False
        with suppress(Exception):  # for example, the comparison of arrays in a list
            is_same = [each.__code__ for each in self._functions] == self._codes
            return is_same and all(value == given for value, given in self._contents)
        return False

    def _ids_now(self) -> list[int]:
        return [id(names.get(key)) for names, key in self._watched]

    def _change(self, definition: Definition) -> Change:
        name, file = f"{self._name}.{definition.name}", os.path.basename(self.file.path)
        text = f"{name} differs from {file}"
        if definition.given is not ABSENT:
            here, there = map(shown, (definition.value, definition.given))
            text = f"{name} is {here} here, and {there} in {file}"
        return Change(definition.name, text, id(definition.value))

    def changes(self, files: Collection[File]) -> list[Change]:
        """Return the changes, except those by code of these files, which workers run, too."""
        return [
            change
            for definition, change in self._changes
            if not any(_may_change(file, definition) for file in files)
        ]


def _is_of_main(value: Any) -> bool:
    """Return whether ``__main__`` defines a function, a class, or the class of an object."""
    for part in parts_of(value):
        if isinstance(part, FunctionType) and part.__globals__.get("__name__") in MAINS:
            return True
    return (value if isinstance(value, type) else type(value)).__module__ in MAINS


# ------------------------------------------------------------------------ imported versions


class _Recorder:
    """Records the stamps of own files before they are imported."""

    @classmethod
    def find_spec(
        cls, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        finders = [*sys.meta_path]
        if cls not in finders:  # within a driver's finder, whose loader records the stamps
            return None
        spec = found_by(finders[finders.index(cls) + 1 :], name, path, target)
        if spec and spec.has_location and spec.origin and not is_installed(spec.origin):
            note_reading(spec.origin, stamp_of(spec.origin))
        return spec


def record_imports() -> None:
    """Begin to record the imported versions of files."""
    if _Recorder not in sys.meta_path:
        sys.meta_path.insert(0, _Recorder)
