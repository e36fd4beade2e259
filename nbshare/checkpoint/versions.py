"""What stored results depended on: ``code.json``, and the sources in ``code/``.

Each result carries the number of a version. A version has the parts of the key, and the files that
workers had imported besides the definitions in it. An import that comes late begins a new version.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint import files
from nbshare.checkpoint.digests import digest
from nbshare.checkpoint.key import Key, Parts, differences
from nbshare.checkpoint.sources import parsed
from nbshare.functions.freshness import Stamp, stamp_of

LARGEST = 1 << 20  # bytes of a source that is stored


class Versions:
    """The versions of a checkpoint, for a call.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    key : Key
        What the results of the call depend on.

    Attributes
    ----------
    number : int
        Of the version of the results that the call stores; -1 before `settle`.
    """

    def __init__(self, folder: Path, key: Key) -> None:
        self._folder, self._key = folder, key
        self._all: list[dict[str, Any]] = files.read_json(folder / "code.json") or []
        # Files are known by their paths from here, so that a project may move.
        self._base = os.path.dirname(next(iter(key.sources.paths), os.path.join(os.getcwd(), "")))
        self._n_imported, self._files = 0, dict[str, str]()
        self.number = -1

    @property
    def accepted(self) -> list[int]:
        """The versions whose results the call takes."""
        same = [k for k in range(len(self._all)) if not self._changes(k)]
        return [*same, *(each for k in same for each in self._all[k]["accepts"])]

    def known_files(self) -> set[str]:
        """Return the files that workers may have imported, as far as they are known."""
        names = [name for version in self._all for name in version.get("files", ())]
        return {*self._key.sources.paths, *map(self._path, names)}

    def changes_of(self, codes: npt.NDArray[np.uint16]) -> list[str]:
        """Return what differs between the call and the version of most results, in words."""
        return self._changes(int(np.bincount(codes).argmax()))

    def _changes(self, number: int) -> list[str]:
        old = self._all[number].get("files", {})
        new, lines = dict(self._key.parts), dict(self._key.sources.lines)
        for name, before in old.items():
            with suppress(OSError):
                new[name], lines[name] = self._present(name, before)
        return differences(self._all[number]["parts"] | old, new, lines)

    def _path(self, name: str) -> str:
        return os.path.normpath(os.path.join(self._base, name))

    def _present(self, name: str, before: str) -> tuple[str, str]:
        """Return the digest of a file, or the one before if it means the same; and what changed."""
        data, old = Path(self._path(name)).read_bytes(), b""
        if (now := digest(data).hex()) == before:
            return now, ""
        with suppress(OSError, SyntaxError, ValueError):
            old = (self._folder / "code" / f"{before}.py").read_bytes()
            if digest(old).hex() == before and _form(old) == _form(data):
                return before, ""
        return now, _changed_lines(old.splitlines(), data.splitlines())

    def adopt(self, folder: Path) -> npt.NDArray[np.uint16]:
        """Take over the versions of another checkpoint; return the number here of each."""
        numbers = []
        for source in (folder / "code").glob("[!.]*.py"):
            self._put_source(source.stem, source.read_bytes())
        for version in files.read_json(folder / "code.json") or []:
            if version not in self._all:
                self._all = [*self._all, version]
            numbers.append(self._all.index(version))
        files.replace_json(self._folder / "code.json", self._all)
        return np.array(numbers, np.uint16)

    # ------------------------------------------------------------------- of the call

    def settle(self, *, accepts_all: bool) -> None:
        """Find or begin the version of the call; `accepts_all`: it takes all stored results."""
        self._begin({}, range(len(self._all)) if accepts_all else ())

    def note_imports(self, imported: Mapping[str, Stamp | None]) -> None:
        """Find or begin a version, if workers have imported more files."""
        if len(imported) == self._n_imported:
            return
        known = {} if self._key.sources.imports_any else self._key.sources.paths
        for path, stamp in imported.items():
            name = os.path.relpath(path, self._base)
            if stamp is not None and path not in known and name not in self._files:
                is_same = stamp == stamp_of(path)  # else no digest is that of what they imported
                self._files[name] = self._stored(path) if is_same else ""
        self._begin(self._files, self._all[self.number]["accepts"])
        self._n_imported = len(imported)

    def _begin(self, imported: Parts, accepts: Iterable[int]) -> None:
        parts, paths = dict(self._key.parts), self._key.sources.paths
        for k, version in enumerate(self._all):
            is_same = (version["parts"], version.get("files", {})) == (parts, imported)
            if is_same and {*accepts} <= {*version["accepts"]}:
                self.number = k
                return
        sources = {os.path.relpath(path, self._base): self._stored(path) for path in paths}
        version = {"parts": parts, "accepts": [*accepts], "files": {**imported}, "sources": sources}
        versions = [*self._all, version]
        files.replace_json(self._folder / "code.json", versions)
        self._all, self.number = versions, len(versions) - 1

    def _stored(self, path: str) -> str:
        """Store a source file; return its digest."""
        data = Path(path).read_bytes()
        name = digest(data).hex()
        if path.endswith(".py") and len(data) <= LARGEST:
            self._put_source(name, data)
        return name

    def _put_source(self, name: str, data: bytes) -> None:
        (self._folder / "code").mkdir(exist_ok=True)
        files.replace(self._folder / "code" / f"{name}.py", data, is_needed=False)


def _form(source: bytes) -> str:
    return ast.unparse(parsed(source))


def _changed_lines(old: list[bytes], new: list[bytes]) -> str:
    """Return the lines between the first and the last that differ."""
    first = _n_equal(old, new) + 1
    return f"lines {first}-{max(first, len(new) - _n_equal(old[::-1], new[::-1]))}"


def _n_equal(old: list[bytes], new: list[bytes]) -> int:
    pairs = zip(old, new, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
