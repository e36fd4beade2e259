"""Distinguishes installed files from the user's own files.

Users edit their own files. Workers run these files as they are at the start of each call, changes
of values in them are reported, and results in a checkpoint depend on them. All of this costs time
for each file. Installed code does not change under a running program. A file is installed if it is

- part of the standard library, or of this package;
- below a folder named ``site-packages`` or ``dist-packages``, of this or any other
  interpreter: virtual environments, conda, Colab, and the module systems of clusters, which put
  such folders on PYTHONPATH;
- in a folder of the import path, and in the ``RECORD`` of a distribution there, as after ``pip
  install --target``. Only the package's name is looked up there.

All other files are own files: the folder of the notebook or script, other folders on the path that
no installer created, editable installs (their ``RECORD`` lists no code), and modules loaded by
their path. A link to a package or module counts by its target. Links within a package are not
followed.
"""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress
from functools import cache, lru_cache

from nbshare._core import PACKAGE
from nbshare._core.system import SYSTEM

SITES = {"site-packages", "dist-packages"}


def _standard_library() -> tuple[str, str]:
    """Return the folders of the standard library's source and of its compiled modules.

    The folders are derived as the interpreter does, because `sysconfig` takes 2 ms.
    """
    library, home = os.path.dirname(os.__file__), sys.base_exec_prefix
    compiled = os.path.join(home, sys.platlibdir)
    if SYSTEM != "windows":
        return library, os.path.join(compiled, os.path.basename(library), "lib-dynload")
    if os.path.isdir(compiled):
        return library, compiled
    # The embeddable Python consists of a zip file, and compiled modules next to python.exe.
    return os.path.join(home, f"python{sys.version_info[0]}{sys.version_info[1]}.zip"), home


STANDARD_LIBRARY = _standard_library()
# On Windows, the folder of Python may contain packages, but also a project.
_INSTALLED = tuple(os.path.realpath(path) + os.sep for path in (*STANDARD_LIBRARY, PACKAGE))


# A name at the beginning of a line, and all following lines that begin with it.
_NAMES = rb"(?m)^([^/,\r\n]+)(?:.*\n\1/)*"


def is_installed(path: str) -> bool:
    """Return whether a module's file is installed."""
    folder = path.rpartition(os.sep)[0]  # os.path.dirname takes 1 µs, for thousands of files
    is_of_installed = _has_installed(folder)
    return _is_there(path) if is_of_installed is None else is_of_installed


@cache
def _has_installed(folder: str) -> bool | None:
    """Return whether a folder belongs to an installed package, or None if to no package."""
    package = _package_of(folder)
    return None if package is None else _is_there(package)


@cache
def _package_of(folder: str) -> str | None:
    """Return the folder of the outermost package that contains a folder, or None."""
    above = os.path.dirname(folder)
    if above == folder or _is_root(folder):
        return None
    # The nearest root counts, because a project may contain an environment.
    return folder if _is_root(above) else _package_of(above)


def _is_root(folder: str) -> bool:
    """Return whether modules are imported from a folder."""
    path = [each for each in sys.path if type(each) is str]  # Python skips entries of other types
    return os.path.basename(folder) in SITES or folder in _absolute(*path)


@lru_cache(4)
def _absolute(*path: str) -> frozenset[str]:
    return frozenset(map(os.path.abspath, path))


@cache
def _is_there(place: str) -> bool:
    """Return whether a package or module in a folder of the import path is installed."""
    root, name = os.path.split(place)
    try:
        if os.path.islink(place):
            root, name = os.path.split(os.path.realpath(place))
        root = _real(root)
    except ValueError:  # not a valid file name
        return False
    is_of_python = os.path.join(root, name, "").startswith(_INSTALLED)
    return is_of_python or not SITES.isdisjoint(root.split(os.sep)) or _is_recorded(root, name)


_real = cache(os.path.realpath)  # a call takes 15 µs


def _is_recorded(root: str, name: str) -> bool:
    """Return whether a distribution in a folder records a package or module of this name."""
    # The folder may be removed, or part of a zip file, or the name invalid.
    with suppress(OSError, ValueError):
        found = _distributions(root, os.stat(root).st_mtime_ns)
        encoded, start = os.fsencode(name), name.partition(".")[0].lower()
        # Distributions of a similar name first, because usually only these have to be read.
        likely = (record for each, record in found.items() if each.startswith(start))
        return any(encoded in _names_in(record) for record in likely) or encoded in _names_in(
            *found.values()
        )
    return False


@lru_cache(64)
def _distributions(root: str, _mtime_ns: int) -> dict[str, str]:
    """Return the records of the distributions in a folder, by their lowercase names."""
    names = [each for each in os.listdir(root) if each.endswith(".dist-info")]
    return {each.lower(): os.path.join(root, each, "RECORD") for each in names}


@cache
def _names_in(*records: str) -> frozenset[bytes]:
    """Return the top-level names that distributions have installed, from their records."""
    if len(records) != 1:
        return frozenset().union(*map(_names_in, records))
    with suppress(OSError), open(records[0], "rb", buffering=0) as file:
        return frozenset(re.findall(_NAMES, file.read()))
    return frozenset()
