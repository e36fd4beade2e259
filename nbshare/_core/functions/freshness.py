"""Source files in their version at the start of a call, for workers that import them later.

A file may be edited while workers import it at different times. The workers must not run different
or half-saved versions. The owner therefore keeps the bytes of all files that it or a worker
imported before the call, and workers import these bytes.
"""

from __future__ import annotations

import os
import pickle
import sys
import weakref
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from nbshare._core.functions.installed import is_installed
from nbshare._core.functions.modules import own_files
from nbshare._core.system import Descriptor, files, processes, sections

ATTEMPTS = 3  # attempts to read a file that changes meanwhile
MOST = 16 << 20  # largest file that is kept, in bytes. Larger source files contain data
LENGTH = 8  # bytes of the length of a record


class Stamp(NamedTuple):
    """Metadata of a file, which change when the file is edited or replaced."""

    mtime_ns: int
    size: int
    inode: int
    ctime_ns: int  # changes even if a copy keeps the mtime of its source


def stamp_of(path: str) -> Stamp | None:
    """Return the stamp of a file, or None if it does not exist."""
    try:
        return Stamp(*files.stamp(path))
    except (OSError, ValueError):  # ValueError: not a valid file name
        return None


_read: dict[str, Stamp | None] = {}  # stamps of the source files that this process has compiled


def note_reading(path: str, stamp: Stamp | None) -> None:
    """Record the stamp of a file before the file is read, so that later edits are noticed."""
    _read[path] = stamp


def is_as_read(path: str, stamp: Stamp) -> bool:
    """Return whether a file with this stamp is known to be the version that was imported."""
    if path in _read:
        return _read[path] == stamp
    return max(stamp.mtime_ns, stamp.ctime_ns) < processes.begun_ns()


n_executed = [0]  # number of executed files, by which others notice a change quickly


@cache  # once per process, because a hook cannot be removed
def _listen() -> None:
    sys.addaudithook(_note_execution)


def _note_execution(event: str, args: tuple[Any, ...]) -> None:
    """Record a source file that is executed, or that is read by code which may execute it."""
    path: Any = None
    if event == "exec":
        path = args[0].co_filename
    elif event == "open" and args[1] == "r" and str(args[0]).endswith(".py"):
        path = args[0]
    if not isinstance(path, str) or path.startswith("<"):  # code without a file
        return
    with suppress(OSError, ValueError):  # an error here would appear in the running code
        path = os.path.abspath(path)
        if not is_installed(path) and (stamp := stamp_of(path)) is not None:
            for ref in list(_logs):
                if (log := ref()) is not None:
                    log.executed.setdefault(path, stamp)
            n_executed[0] += 1


class ImportLog:
    """Records the files that this process executes, with their stamps when they are read.

    Files may be imported, loaded by their path, or run by `runpy` or `exec`. Files of the standard
    library and of site-packages are omitted.
    """

    def __init__(self) -> None:
        self._known, self._n_seen = own_files(), len(sys.modules)
        self.executed: dict[str, Stamp | None] = {}  # since the previous `take`
        _logs[weakref.ref(self, lambda ref: _logs.pop(ref, None))] = None
        _listen()

    def take(self) -> dict[str, Stamp | None]:
        """Return the stamps of the files executed since the previous call, by path."""
        if not self.executed and len(sys.modules) == self._n_seen:  # the usual case
            return {}
        self._n_seen = len(sys.modules)
        taken: dict[str, Stamp | None] = {}
        with suppress(KeyError):  # empty (other threads add and take files, too)
            while True:
                executed, stamp = self.executed.popitem()
                if stamp_of(executed) is not None:  # otherwise the file was temporary
                    taken[executed] = _read.get(executed) or stamp
        before, self._known = self._known, own_files()
        if self._known is not before:
            for _, path in self._known.items() - before.items():
                taken[path] = _read.get(path) or stamp_of(path)
        return taken


# No WeakSet, because iterating over one runs Python code, and members may be added meanwhile.
_logs: dict[weakref.ref[ImportLog], None] = {}


class SourceFile(NamedTuple):
    """The kept contents of a file, and its stamp."""

    stamp: Stamp
    data: bytes


class Snapshot:
    """Source files in the owner's version, for all workers.

    Parameters
    ----------
    file : Descriptor
        An empty file, or the owner's file in a worker.

    Notes
    -----
    The owner adds to the snapshot in one thread. Any thread, and any process with the descriptor,
    may read. The file is a sequence of records: the length of a pickle, and the pickle of sources
    by path, where None stands for a file that is not kept.
    """

    def __init__(self, file: Descriptor) -> None:
        self._file, self._fd = file, file.fileno()
        # The offset read so far, and the sources. Both are set in one step, because other threads
        # read.
        self._seen: tuple[int, Mapping[str, SourceFile | None]] = 0, {}

    def fileno(self) -> int:
        """Return the number of the descriptor."""
        return self._fd

    def close(self) -> None:
        """Free the memory. Other processes keep their descriptors."""
        self._file.close()

    def sources(self) -> Mapping[str, SourceFile | None]:
        """Return the kept files by path, with None for files that could not be kept."""
        end, sources = self._seen
        with suppress(OSError):  # the user's program has closed our descriptor
            while size := int.from_bytes(files.read_at(self._fd, LENGTH, end), "little"):
                record = files.read_at(self._fd, size, end + LENGTH)
                sources = {**sources, **pickle.loads(record)}
                end += LENGTH + size
        self._seen = end, sources
        return sources

    def keep(self, paths: Iterable[str]) -> None:
        """Keep the current versions of files, replacing older versions."""
        end, _ = self._seen
        left, sources = MOST - end, {}
        for path in paths:
            sources[path] = source = read_source(path, left)
            left -= len(source.data) if source else 0
        self.add(pickle.dumps(sources))

    def add(self, data: bytes) -> None:
        """Add pickled sources, which replace older versions."""
        end, _ = self._seen
        with suppress(OSError):  # there is no room, so the sources are not kept
            files.cut(self._fd, end)  # a partial record must not be read as a length
            if files.write_at(self._fd, data, end + LENGTH) == len(data):
                length = len(data).to_bytes(LENGTH, "little")
                files.write_at(self._fd, length, end)  # publishes the record
        self.sources()


class CodeVersion(NamedTuple):
    """The version of code that the workers of a call run."""

    generation: int  # changes with the files, environment and initializer that workers start with
    snapshot: Snapshot | None  # the files that workers import
    environ: Mapping[str, str]


NO_CODE = CodeVersion(0, None, {})


def own_modules() -> dict[str, str]:
    """Return the source files of loaded modules that users may edit, by the modules' names."""
    return {name: path for name, path in own_files().items() if path.endswith(".py")}


def packed_sources(paths: Iterable[str]) -> bytes:
    """Pickle source files for another machine."""
    return pickle.dumps({path: read_source(path, MOST) for path in sorted({*paths})})


def read_source(path: str, most: int) -> SourceFile | None:
    """Read a consistent version of a file. Return None if it is missing, too large or changing."""
    for _ in range(ATTEMPTS):
        stamp = stamp_of(path)
        if stamp is None or stamp.size > most:
            return None
        with suppress(OSError), open(path, "rb") as file:
            data = file.read()
            if stamp == stamp_of(path):
                return SourceFile(stamp, data)
    return None


_snapshot: Snapshot | None = None  # in a worker


def use_snapshot(fd: int) -> None:
    """Import files from a snapshot in the rest of this process."""
    global _snapshot
    _snapshot = Snapshot(sections.owned(fd))


def source_of(path: str) -> SourceFile | None:
    """Return the kept version of a source file, or None to import the current file."""
    return None if _snapshot is None else _snapshot.sources().get(path)
