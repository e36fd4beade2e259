"""The versions of dependencies of stored results, in ``code.json``.

Each result is stored with the number of a version. A version consists of the parts of the key, and
of the files that workers had imported besides those of the key. A late import begins a new version.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from nbshare._core.checkpoint.key import Key, Parts, differences, places
from nbshare._core.checkpoint.sources import definitions_in
from nbshare._core.functions.freshness import Stamp, stamp_of
from nbshare._core.store import files
from nbshare._core.wire.settings import cwd

CODE_FILE = "code.json"


class Versions:
    """The versions in a checkpoint, and that of the call.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    key : Key
        The dependencies of the call's results.

    Attributes
    ----------
    number : int
        The version for results of the call, or -1 before `settle`.
    """

    def __init__(self, folder: Path, key: Key) -> None:
        self._folder, self._key = folder, key
        self._reading = frozenset(key.sources.reading)
        self._all = _versions_in(folder)
        # Files are stored by relative paths, so that a project may be moved.
        first = next(iter(key.sources.paths), None)
        self._base = os.path.dirname(first) if first else (cwd() or "/")
        self._files: dict[str, Parts] = {}  # parts of the files that workers have imported
        self.number = -1

    @property
    def accepted(self) -> list[int]:
        """The versions whose results the call accepts."""
        same = [k for k in range(len(self._all)) if not self._changes(k)]
        return [*same, *(each for k in same for each in self._all[k]["accepts"])]

    def known_files(self) -> set[str]:
        """Return the files that workers may have imported, as far as known."""
        names = [name for version in self._all for name in version["files"]]
        return {*self._key.sources.paths, *map(self._path, names)}

    def changes_of(self, codes: npt.NDArray[np.uint16]) -> list[str]:
        """Return the differences between the call and the version of most results, in words."""
        number = int(np.bincount(codes).argmax())
        if number >= len(self._all):
            return [f"{CODE_FILE}, which lists dependencies of results, is missing or damaged"]
        return self._changes(number)

    def _changes(self, number: int) -> list[str]:
        old, new = dict(self._all[number]["parts"]), dict(self._key.parts)
        lines = places(self._all[number].get("outlines", {}), self._key.outlines)
        lines |= {name: place for name, place in self._key.sources.lines.items() if place}
        for name, before in self._all[number]["files"].items():
            old |= before
            path = self._path(name)
            with suppress(OSError):
                found = definitions_in(path, name, stamp_of(path), self._reading)
                for label, each in found.items():
                    new[label], lines[label] = each
        return differences(old, new, lines)

    def _name(self, path: str) -> str:
        try:
            return os.path.relpath(path, self._base)
        except ValueError:  # on another drive
            return path

    def _path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self._base, name))

    def adopt(self, folder: Path) -> npt.NDArray[np.uint16]:
        """Add the versions of another checkpoint. Return their numbers in this one."""
        return np.array([*map(self._number_of, _versions_in(folder))], np.uint16)

    def _number_of(self, version: dict[str, Any]) -> int:
        """Return the number of a version. Store the version if it is new."""
        known = [_without_outlines(each) for each in self._all]
        if (wanted := _without_outlines(version)) not in known:
            versions = [*self._all, version]
            files.replace_json(self._folder / CODE_FILE, {"versions": versions})
            self._all = versions
            return len(known)
        return known.index(wanted)

    # ------------------------------------------------------------------- of the call

    def settle(self, *, accepts_all: bool) -> None:
        """Find or begin the version of the call. If `accepts_all`, it accepts all older results."""
        self._begin({}, range(len(self._all)) if accepts_all else ())

    def note_imports(self, imported: Mapping[str, Stamp | None]) -> None:
        """Record files that workers have imported, and begin a version that includes them."""
        known = {} if self._key.sources.looks_up else self._key.sources.paths
        for path, stamp in imported.items():
            name = self._name(path)
            # A function may import a file late, after an edit.
            if stamp is not None and stamp != known.get(path) and name not in self._files:
                try:
                    found = definitions_in(path, name, stamp, self._reading)
                except OSError:  # removed, or not readable
                    continue
                is_same = stamp == stamp_of(path)  # otherwise the imported contents are unknown
                self._files[name] = {k: v[0] if is_same else "" for k, v in found.items()}
        self._begin(self._files, self._all[self.number]["accepts"])

    def _begin(self, imported: Mapping[str, Parts], accepts: Iterable[int]) -> None:
        version = {"parts": dict(self._key.parts), "accepts": [*accepts], "files": {**imported}}
        version["outlines"] = self._key.outlines
        self.number = self._number_of(version)


def _without_outlines(version: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in version.items() if name != "outlines"}


def _versions_in(folder: Path) -> list[dict[str, Any]]:
    nothing: dict[str, Any] = {"versions": []}  # if damaged, the results have no known version
    found = files.read_json(folder / CODE_FILE, nothing) or nothing
    return cast("list[dict[str, Any]]", found["versions"])
