"""The bytes of source files as they were when a call began.

A worker that replaces another in the middle of a call must not run a file that was edited, or half
saved, in between. So the owner reads the files at the start, and each worker is born with them.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from nbshare.functions.freshness import Stamp, is_installed, stamp_of

__all__ = ["Source", "born_with", "own_files", "read_sources", "source_of"]

ATTEMPTS = 3  # at a file that changes while it is read
MOST = 16 << 20  # bytes that a worker is born with; who has more source files has data in them


class Source(NamedTuple):
    """A file as it was."""

    stamp: Stamp
    data: bytes


_born_with: Mapping[str, Source] = {}  # in a worker


def born_with(sources: Mapping[str, Source]) -> None:
    """Have this process import these files as they are given, whatever the disk has by then."""
    global _born_with
    _born_with = sources


def source_of(path: str) -> Source | None:
    """Return what this process was given of a file."""
    return _born_with.get(path)


def read_sources(paths: Iterable[str]) -> dict[str, Source]:
    """Read files; those that cannot be read are left out."""
    sources: dict[str, Source] = {}
    n_bytes = 0
    for path in paths:
        source = _read(path)
        if source is not None and (n_bytes := n_bytes + len(source.data)) <= MOST:
            sources[path] = source
    return sources


def own_files() -> list[str]:
    """Return the source files of the modules that this process has imported and that are edited."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [path for path in files if path and path.endswith(".py") and not is_installed(path)]


def _read(path: str) -> Source | None:
    for _ in range(ATTEMPTS):
        stamp = stamp_of(path)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError:
            return None
        if stamp is not None and stamp == stamp_of(path):
            return Source(stamp, data)
    return None
