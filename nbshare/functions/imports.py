"""How a worker imports: the same files as its caller, as they are now."""

from __future__ import annotations

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
from types import ModuleType
from typing import Any

from nbshare.functions.freshness import STANDARD_LIBRARY, is_installed, note_reading
from nbshare.functions.sources import source_of

__all__ = ["UncachedLoader", "import_as_the_caller", "overridden_names"]


class UncachedLoader(SourceFileLoader):
    """Compiles the source of what is not installed each time.

    The cached bytecode is compared by whole seconds: it would hide an edit made within the second
    of the last import.
    """

    def path_stats(self, path: Any) -> Any:
        """Return what decides whether the cache is valid."""
        if is_installed(path):
            return super().path_stats(path)
        note_reading(path)
        raise OSError("without these, the bytecode cache is neither read nor written")

    def get_data(self, path: str) -> bytes:
        """Return the file's contents, as they were when the call began."""
        source = source_of(path)
        return super().get_data(path) if source is None else source.data


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
        (UncachedLoader, SOURCE_SUFFIXES),
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
