"""Source files as they are when a call begins: workers import these, however late they do.

Workers that import a file at different moments must not run different versions of it, nor one that
is half saved, though it is edited meanwhile. So the owner keeps the bytes of all files that it or a
worker has imported before the call, and workers import what it has kept.
"""

from __future__ import annotations

import os
import pickle
import site
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from nbshare.memory.descriptors import Descriptor, owned

__all__ = [
    "STANDARD_LIBRARY",
    "ImportLog",
    "Snapshot",
    "Stamp",
    "is_installed",
    "note_reading",
    "own_files",
    "source_of",
    "stamp_of",
    "use_snapshot",
]

ATTEMPTS = 3  # at a file that changes while it is read
MOST = 16 << 20  # bytes that are kept; larger source files have data in them
LENGTH = 8  # bytes that tell how many come


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


class Source(NamedTuple):
    """A file as it was."""

    stamp: Stamp
    data: bytes


class Snapshot:
    """Source files as the owner found them, for all workers.

    Parameters
    ----------
    file : Descriptor
        An empty file, or in a worker the owner's.

    Notes
    -----
    The owner adds to it in one thread; any thread, and any process that has its descriptor, may
    read. The file is a sequence of records: the length of a pickle, and the pickle, of sources by
    path, None for one that is not kept.
    """

    def __init__(self, file: Descriptor) -> None:
        self._file, self._fd = file, file.fileno()
        # How far it has been read, and what is there; at once, since another thread may read, too.
        self._seen: tuple[int, Mapping[str, Source | None]] = 0, {}

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def close(self) -> None:
        """Give the memory back; processes that have it keep theirs."""
        self._file.close()

    def sources(self) -> Mapping[str, Source | None]:
        """Return the files by path; None for those that could not be kept."""
        end, sources = self._seen
        with suppress(OSError):  # the program has closed what it does not know
            while size := int.from_bytes(os.pread(self._fd, LENGTH, end), "little"):
                sources = {**sources, **pickle.loads(os.pread(self._fd, size, end + LENGTH))}
                end += LENGTH + size
        self._seen = end, sources
        return sources

    def keep(self, paths: Iterable[str]) -> None:
        """Keep files as they are now, in the place of what was kept of them."""
        end, _ = self._seen
        left, sources = MOST - end, {}
        for path in paths:
            sources[path] = source = _source(path, left)
            left -= len(source.data) if source else 0
        data = pickle.dumps(sources)
        with suppress(OSError):  # there is no room: they are just not kept
            os.ftruncate(self._fd, end)  # what did not fit last time must not pass for a length
            if os.pwrite(self._fd, data, end + LENGTH) == len(data):
                os.pwrite(self._fd, len(data).to_bytes(LENGTH, "little"), end)  # now it can be read
        self.sources()


def own_files() -> list[str]:
    """Return the source files of the modules that this process has imported and that are edited."""
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    return [path for path in files if path and path.endswith(".py") and not is_installed(path)]


def _source(path: str, most: int) -> Source | None:
    for _ in range(ATTEMPTS):
        stamp = stamp_of(path)
        if stamp is None or stamp.size > most:
            return None
        with suppress(OSError), open(path, "rb") as file:
            data = file.read()
            if stamp == stamp_of(path):
                return Source(stamp, data)
    return None


_snapshot: Snapshot | None = None  # in a worker


def use_snapshot(fd: int) -> None:
    """Have this process import files as a snapshot has them."""
    global _snapshot
    _snapshot = Snapshot(owned(fd))


def source_of(path: str) -> Source | None:
    """Return a source file as this process is to import it; None: as it is."""
    return None if _snapshot is None else _snapshot.sources().get(path)
