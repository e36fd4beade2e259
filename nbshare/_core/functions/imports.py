"""Makes a worker import the same files as its caller, in the same versions."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.util import cache_from_source
from types import ModuleType
from typing import Any

from nbshare._core.functions.freshness import note_reading, source_of, stamp_of
from nbshare._core.functions.installed import STANDARD_LIBRARY, is_installed
from nbshare._core.functions.modules import own_files

# A bytecode cache stores times in whole seconds, so it hides an edit in the second of the last
# import. A cache written this long after its source belongs to the current version, unless
# compiling took longer (1 µs per byte).
SETTLED_NS = 2_000_000_000
SETTLED_NS_PER_BYTE = 10_000


def found_by(finders: Iterable[Any], *args: Any) -> ModuleSpec | None:
    """Return the spec that the first of some finders finds, as an import does."""
    for finder in finders:
        find_spec = getattr(finder, "find_spec", None)  # finders of the old kind have none
        spec: ModuleSpec | None = None if find_spec is None else find_spec(*args)
        if spec is not None:
            return spec
    return None


class FreshLoader(SourceFileLoader):
    """Loads the current source of users' files, and bytecode only if known to be current."""

    def path_stats(self, path: Any) -> Any:
        """Return the metadata that validate the bytecode cache."""
        if not is_installed(path) and not _is_settled(path):
            raise OSError(f"the bytecode cache of {path!r} may be stale, so it is not used")
        return super().path_stats(path)

    def get_data(self, path: str) -> bytes:
        """Return a file's contents, of source files in the version that all workers import."""
        source = source_of(path)
        if source is None:
            return super().get_data(path)
        note_reading(path, source.stamp)
        return source.data

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write bytecode caches for installed modules only, and none in users' folders."""
        if is_installed(self.path):
            super().set_data(path, data, _mode=_mode)


def _is_settled(path: str) -> bool:
    """Return whether valid cached bytecode is known to belong to the current version."""
    now, given = stamp_of(path), source_of(path)
    note_reading(path, now)
    if now is None or (given is not None and given.stamp != now):
        return False
    try:
        # A copied file, or a link to another file, may show the time of another version.
        link = os.lstat(path)
        changed_ns = max(now.mtime_ns, now.ctime_ns, link.st_mtime_ns, link.st_ctime_ns)
        settled_ns = changed_ns + SETTLED_NS + SETTLED_NS_PER_BYTE * now.size
        return os.stat(cache_from_source(path)).st_mtime_ns > settled_ns
    except OSError:  # there is no cache
        return False


class _StandardLibraryFirst:
    """Finds standard modules before files of the same name in the import path.

    The caller usually imported standard modules before the notebook's folder was in its path. In a
    worker, a random.py next to the notebook would replace random otherwise.
    """

    overridden: Collection[str] = ()

    @classmethod
    def find_spec(
        cls,
        name: str,
        path: Sequence[str] | None = None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if path is not None or name not in sys.stdlib_module_names or name in cls.overridden:
            return None
        return PathFinder.find_spec(name, STANDARD_LIBRARY, target)


class _Fresh:
    """Finds what the finders behind it find, such as Python's or an editable install's.

    Their modules use our loaders. The finders stay as they are, because libraries look for them.
    """

    @classmethod
    def find_spec(cls, *args: Any) -> ModuleSpec | None:
        spec = found_by(sys.meta_path[sys.meta_path.index(cls) + 1 :], *args)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = FreshLoader(spec.loader.name, spec.loader.path)
        return spec


def import_as_the_caller(overridden: Collection[str]) -> None:
    """Set up a worker's imports to find the modules that the caller's names mean."""
    _StandardLibraryFirst.overridden = overridden
    if _StandardLibraryFirst not in sys.meta_path:
        sys.meta_path[:0] = _StandardLibraryFirst, _Fresh


def overridden_names() -> list[str]:
    """Return the names of standard modules that mean another module in this process."""
    return sorted(sys.stdlib_module_names.intersection(own_files()))
