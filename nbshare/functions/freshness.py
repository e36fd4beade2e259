"""Whether the files that workers have imported are still what they were."""

from __future__ import annotations

import os
import sys
import sysconfig
from typing import NamedTuple

__all__ = ["Stamp", "module_stamps", "stamp_of"]


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


def module_stamps(known: set[str]) -> dict[str, Stamp | None]:
    """Return stamps of the modules imported since: those not in `known`, which is updated.

    Modules of the standard library and of site-packages are left out.
    """
    stamps = {}
    for name in sys.modules.keys() - known:
        known.add(name)
        path = getattr(sys.modules.get(name), "__file__", None)
        if path and not os.path.realpath(path).startswith(_INSTALLED):
            stamps[path] = stamp_of(path)
    return stamps
