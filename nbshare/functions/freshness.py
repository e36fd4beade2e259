"""Whether the files that workers have imported are still what they were."""

from __future__ import annotations

import os
import sys
import sysconfig
from functools import cache
from typing import NamedTuple

__all__ = ["ImportLog", "Stamp", "is_installed", "stamp_of"]


class Stamp(NamedTuple):
    """What changes when a file is edited or replaced."""

    mtime_ns: int
    size: int
    inode: int


# Installed code does not change under a running program; comparing it would cost a millisecond.
_INSTALLED = tuple(
    os.path.realpath(path) + os.sep
    for key in ("stdlib", "platstdlib", "purelib", "platlib")
    if (path := sysconfig.get_path(key))
)


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino)


@cache  # realpath takes 15 µs, and every call asks about all modules of the standard library
def is_installed(path: str) -> bool:
    """Whether a module belongs to the standard library or to site-packages."""
    return os.path.realpath(path).startswith(_INSTALLED)


class ImportLog:
    """Stamps of the modules that this process imports from now on, as they were when noted.

    Modules of the standard library and of site-packages are left out.
    """

    def __init__(self) -> None:
        self._known = set(sys.modules)
        self._stamps: dict[str, Stamp | None] = {}

    def note(self) -> None:
        """Take the stamps of the modules imported since: soon after the import, before an edit."""
        for name in sys.modules.keys() - self._known:
            self._known.add(name)
            path = getattr(sys.modules.get(name), "__file__", None)
            if path and not is_installed(path):
                self._stamps[path] = stamp_of(path)

    def take(self) -> dict[str, Stamp | None]:
        """Return what was noted since the last time."""
        self.note()
        taken, self._stamps = self._stamps, {}
        return taken
