"""Whether the files that workers have imported are still what they were."""

from __future__ import annotations

import os
import site
import sys
from functools import cache
from typing import NamedTuple

__all__ = [
    "STANDARD_LIBRARY",
    "ImportLog",
    "Stamp",
    "is_installed",
    "note_reading",
    "stamp_of",
]


class Stamp(NamedTuple):
    """What changes when a file is edited or replaced."""

    mtime_ns: int
    size: int
    inode: int
    ctime_ns: int  # new also where a copy keeps the mtime of its source


# Its two folders, as the interpreter finds them: `sysconfig` takes 2 ms to say so.
_LIBRARY = os.path.dirname(os.__file__)
_VERSION = os.path.join(sys.platlibdir, os.path.basename(_LIBRARY))
STANDARD_LIBRARY = _LIBRARY, os.path.join(sys.base_exec_prefix, _VERSION, "lib-dynload")

# Installed code does not change under a running program; comparing it would cost a millisecond.
# Nor does this package, wherever it is.
_SITES = [path for path in (*site.getsitepackages(), site.USER_SITE) if path]
_INSTALLED = tuple(
    os.path.realpath(path) + os.sep
    for path in (*STANDARD_LIBRARY, *_SITES, os.path.dirname(os.path.dirname(__file__)))
)


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file; None if it is gone."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return Stamp(status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns)


_read: dict[str, Stamp | None] = {}  # source files that were compiled here


def note_reading(path: str, stamp: Stamp | None) -> None:
    """Note what a file was like that is about to be read: an edit after that is then seen."""
    _read[path] = stamp


def is_installed(path: str) -> bool:
    """Whether a module belongs to the standard library or to site-packages.

    What is a link there, a package's folder or a single module, is elsewhere, and edited; links
    within a package's folder are not looked for.
    """
    folder = os.path.dirname(path)
    return _is_there(path) if folder in _SITES else _is_there(os.path.join(folder, ""))


@cache  # realpath takes 15 µs, and every call asks about all modules of the standard library
def _is_there(path: str) -> bool:
    return os.path.join(os.path.realpath(path), "").startswith(_INSTALLED)


class ImportLog:
    """Stamps of the modules that this process imports from now on, as they were when read.

    Modules of the standard library and of site-packages are left out.
    """

    def __init__(self) -> None:
        self._known = set(sys.modules)
        self._n_seen = len(sys.modules)

    def take(self) -> dict[str, Stamp | None]:
        """Return the stamps of the modules imported since the last time."""
        taken: dict[str, Stamp | None] = {}
        if len(sys.modules) == self._n_seen:  # going through them takes 30 µs
            return taken
        self._n_seen = len(sys.modules)
        for name in sys.modules.keys() - self._known:
            self._known.add(name)
            path = getattr(sys.modules.get(name), "__file__", None)
            if path and not is_installed(path):
                taken[path] = _read.get(path) or stamp_of(path)
        return taken
