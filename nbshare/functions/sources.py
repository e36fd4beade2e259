"""The bytes of source files as all workers import them.

Workers that import a file at different moments must not run different versions of it, nor one that
is half saved, though it is edited meanwhile. So the owner reads the files when it finds that they
have changed, a worker those that it is the first to import, and the others import what was read.
"""

from __future__ import annotations

import _thread
import os
import pickle
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import NamedTuple

from nbshare.functions.freshness import Stamp, is_installed, stamp_of
from nbshare.memory import scratch_file
from nbshare.memory.descriptors import Descriptor, owned

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl

__all__ = ["Snapshot", "Source", "own_files", "source_of", "use_snapshot"]

ATTEMPTS = 3  # at a file that changes while it is read
MOST = 16 << 20  # bytes that are kept; who has more source files has data in them
LENGTH = 8  # bytes that tell how many come
LOCK_S = 1.0  # to write takes less than a millisecond, unless who does it has been stopped
PAUSE_S = 0.001


class Source(NamedTuple):
    """A file as it was."""

    stamp: Stamp
    data: bytes


class Snapshot:
    """Files as they were, the same for all processes that have its descriptor.

    Parameters
    ----------
    file : Descriptor
        An empty file, or another process's snapshot.

    Notes
    -----
    Any process may add to it, and any thread; if one is stopped at that, or there is no room, files
    are just not kept. The file is a sequence of records: the length of a pickle, and the pickle, of
    sources by path, None for one that is kept no more.
    """

    def __init__(self, file: Descriptor) -> None:
        self._file, self._fd = file, file.fileno()
        self._lock = _thread.allocate_lock()
        # How far it has been read, and what is there; at once, since another thread may read, too.
        self._seen: tuple[int, Mapping[str, Source | None]] = 0, {}

    @classmethod
    def of(cls, paths: Iterable[str]) -> Snapshot:
        """Return one of these files; those that cannot be read are left out.

        Raises
        ------
        OSError
            If there is no memory for it, or no descriptor.
        """
        snapshot = cls(scratch_file())
        snapshot.keep(paths)
        return snapshot

    def fileno(self) -> int:
        """Return the descriptor."""
        return self._fd

    def close(self) -> None:
        """Give the memory back; processes that have it keep theirs."""
        self._file.close()

    @property
    def stamps(self) -> dict[str, Stamp]:
        """Those of the files that are kept, as far as this process knows."""
        return {path: source.stamp for path, source in self._seen[1].items() if source}

    def catch_up(self) -> bool:
        """Read what other processes have written; returns whether there was anything."""
        end, sources = start, _ = self._seen
        with suppress(OSError):  # the program has closed what it does not know
            while record := self._record_at(end):
                end += LENGTH + len(record)
                sources = {**sources, **pickle.loads(record)}
        self._seen = end, sources
        return end > start

    def get(self, path: str) -> Source | None:
        """Return a file, if it is kept."""
        self.catch_up()
        return self._seen[1].get(path)

    def keep(self, paths: Iterable[str]) -> None:
        """Keep files that are not kept yet."""
        with self._writing(LOCK_S) as may_write:
            if not may_write:
                return
            self.catch_up()
            end, known = self._seen
            sources = {}
            for path in paths:
                source = None if known.get(path) else _read(path)
                if source is not None and end + len(source.data) <= MOST:
                    end += len(source.data)
                    sources[path] = source
            self._append(sources)

    def drop(self, paths: Iterable[str]) -> None:
        """Have whoever is the next to import these files keep them as they are then."""
        with self._writing(0.0) as may_write:
            if may_write:
                self.catch_up()
                self._append(dict.fromkeys(paths))

    @contextmanager
    def _writing(self, timeout_s: float) -> Iterator[bool]:
        """Exclude others, and tell whether that was possible."""
        until_s = time.monotonic() + timeout_s
        if not self._lock.acquire(timeout=timeout_s):
            yield False
            return
        is_locked = False
        try:
            while not (is_locked := self._locks()) and time.monotonic() < until_s:
                time.sleep(PAUSE_S)
            yield is_locked
        finally:
            if is_locked:
                fcntl.lockf(self._fd, fcntl.LOCK_UN)
            self._lock.release()

    def _locks(self) -> bool:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    def _append(self, sources: Mapping[str, Source | None]) -> None:
        end, _ = self._seen
        if not sources:
            return
        left = memoryview(pickle.dumps(sources))
        place = end + LENGTH
        with suppress(OSError):
            os.ftruncate(self._fd, end)  # of who was killed here, nothing may be taken for a length
            length = len(left).to_bytes(LENGTH, "little")
            while left:
                n = os.pwrite(self._fd, left, place)
                left, place = left[n:], place + n
            os.pwrite(self._fd, length, end)  # last: now it can be read
        self.catch_up()

    def _record_at(self, start: int) -> bytes:
        """Return a record; nothing if none has been written there."""
        size = int.from_bytes(os.pread(self._fd, LENGTH, start), "little")
        return os.pread(self._fd, size, start + LENGTH) if size else b""


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


_snapshot: Snapshot | None = None  # in a worker


def use_snapshot(fd: int) -> None:
    """Have this process import files as a snapshot has them."""
    global _snapshot
    _snapshot = Snapshot(owned(fd))


def source_of(path: str) -> Source | None:
    """Return a source file as this process is to import it; None: as it is.

    It is kept for others from now on, if it is not installed.
    """
    if _snapshot is None or is_installed(path):
        return None
    if (source := _snapshot.get(path)) is None:
        _snapshot.keep([path])
        source = _snapshot.get(path)
    return source
