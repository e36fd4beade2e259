"""How a worker imports: the same files as its caller, as they are now."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from functools import lru_cache
from importlib.machinery import (
    BYTECODE_SUFFIXES,
    EXTENSION_SUFFIXES,
    SOURCE_SUFFIXES,
    ExtensionFileLoader,
    FileFinder,
    ModuleSpec,
    PathFinder,
    SourceFileLoader,
    SourcelessFileLoader,
)
from importlib.util import cache_from_source
from types import ModuleType
from typing import Any

from nbshare.functions.freshness import STANDARD_LIBRARY, is_installed, note_reading, stamp_of
from nbshare.functions.sources import source_of

__all__ = ["FreshLoader", "import_as_the_caller", "overridden_names"]


# A cache that is so much younger than its source has been made of this version: times in it are
# whole seconds, and it would hide an edit made within the second of the last import.
SETTLED_NS = 2_000_000_000
BY_TIME = bytes(4)  # the flags of a cache that is compared with its source by time and size


class FreshLoader(SourceFileLoader):
    """Loads the source of what is not installed as it is, and bytecode only where that is sure."""

    def path_stats(self, path: Any) -> Any:
        """Return what decides whether the cache is valid."""
        if not is_installed(path):
            note_reading(path)
            if not _is_settled(path):
                raise OSError("without these, the bytecode cache is not read")
        return super().path_stats(path)

    def get_data(self, path: str) -> bytes:
        """Return the file's contents, of sources as they were when the call began."""
        source = source_of(path)
        if source is not None:
            return source.data
        data = super().get_data(path)
        is_unsure = path.endswith(tuple(BYTECODE_SUFFIXES)) and data[4:8] != BY_TIME
        if is_unsure and not is_installed(path):
            raise OSError("this cache does not tell which version it is of")
        return data

    def set_data(self, path: str, data: Any, *, _mode: int = 0o666) -> None:
        """Write a cache, of what is installed: workers leave nothing behind beside users' files."""
        if is_installed(path):
            super().set_data(path, data, _mode=_mode)


def _is_settled(path: str) -> bool:
    """Whether the cached bytecode of a source, if it is valid, is that of this version."""
    now, given = stamp_of(path), source_of(path)
    if now is None or (given is not None and given.stamp != now):
        return False
    try:
        return os.stat(cache_from_source(path)).st_mtime_ns > now.mtime_ns + SETTLED_NS
    except (OSError, NotImplementedError):  # there is none, or there are no caches at all
        return False


class _StandardLibraryFirst:
    """Finds modules of the standard library before any file of that name in the import path.

    The caller has mostly imported them before the notebook's folder came into its path, a worker
    has not: there a random.py beside the notebook would take random's place.
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


def import_as_the_caller(overridden: Collection[str]) -> None:
    """Set a worker's import up; `overridden` are the caller's own modules of standard names."""
    _StandardLibraryFirst.overridden = overridden
    if _StandardLibraryFirst in sys.meta_path:
        return
    sys.meta_path.insert(0, _StandardLibraryFirst)
    hook = FileFinder.path_hook(
        (ExtensionFileLoader, EXTENSION_SUFFIXES),
        (FreshLoader, SOURCE_SUFFIXES),
        (SourcelessFileLoader, BYTECODE_SUFFIXES),
    )
    sys.path_hooks.insert(0, hook)
    sys.path_importer_cache.clear()


def overridden_names() -> list[str]:
    """Return the names of the standard library that mean another module in this process."""
    return _overridden_names(len(sys.modules))


@lru_cache(1)  # going through all modules takes as long as sending a call
def _overridden_names(n_modules: int) -> list[str]:  # noqa: ARG001 - when to look again
    names = []
    for name in sys.stdlib_module_names & sys.modules.keys():
        path = getattr(sys.modules[name], "__file__", None)
        if path and not is_installed(path):
            names.append(name)
    return names
