"""Results that fit no array: pickled into segments of the worker's own, its logs.

An entry is the pickle and the large buffers in it, each in its place: arrays come out of a log as
views of it, without another copy::

    n, size of each part | pickle | buffer | buffer …        (each at a multiple of 64 bytes)
"""

from __future__ import annotations

import itertools
import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.errors import TaskError, is_interrupt
from nbshare.functions import dumps_apart
from nbshare.memory import Segment, aligned

__all__ = [
    "OUT_OF_BAND",
    "Entry",
    "LogKey",
    "LogReader",
    "LogWriter",
    "pack",
    "unpack",
    "unpickled",
]

LogKey = tuple[int, int]  # process id, and which of that process's logs
Entry = tuple[int, int, int]  # three words: both numbers of the key, offset, size in bytes

LOG_BYTES = 1 << 20  # of a worker's first log; pages cost nothing before they are used
OUT_OF_BAND = 1 << 12  # bytes; smaller buffers stay in the pickle
# A large entry has a log to itself, and so is freed with its array; but every log costs the caller
# a descriptor, so that later ones share logs that become larger and larger.
LARGE = 1 << 20
MAX_ALONE = 32

_numbers = itertools.count()


class LogWriter:
    """A worker's side.

    Parameters
    ----------
    announce : callable
        ``announce(key, segment)`` tells the caller of a new log.
    """

    def __init__(self, announce: Callable[[LogKey, Segment], None]) -> None:
        self._announce = announce
        self._log: Segment | None = None
        self._key: LogKey = (0, 0)
        self._position = 0  # bytes
        self._n_alone = 0
        self._n_bytes = 0  # written so far

    def append(self, data: bytes, buffers: list[memoryview]) -> Entry:
        """Write the pickle of a result and its buffers; returns what finds it again."""
        parts, nbytes = _together(data, buffers)
        self._n_bytes += nbytes
        if nbytes >= LARGE and self._n_alone < MAX_ALONE:
            self._n_alone += 1
            key = self._new_key()
            self._announce(key, Segment.filled(nbytes, parts, sealed=False))
            return _entry(key, 0, nbytes)
        if self._log is None or self._position + nbytes > self._log.nbytes:
            self._log, self._key = Segment.create(max(LOG_BYTES, self._n_bytes)), self._new_key()
            self._announce(self._key, self._log)
            self._position = 0
        start = self._position
        for offset, part in parts:
            self._log[start + offset : start + offset + part.nbytes] = part
        self._position = aligned(start + nbytes)
        return _entry(self._key, start, nbytes)

    @staticmethod
    def _new_key() -> LogKey:
        return os.getpid(), next(_numbers)


class LogReader:
    """The caller's side: the logs of all workers."""

    def __init__(self) -> None:
        self._logs: dict[LogKey, Segment] = {}

    def add(self, key: LogKey, log: Segment) -> None:
        """Take a worker's next log."""
        self._logs[key] = log

    @property
    def n(self) -> int:
        """How many there are."""
        return len(self._logs)

    @property
    def nbytes(self) -> int:
        """How much they take."""
        return sum(log.nbytes for log in list(self._logs.values()))

    def has(self, entry: Entry) -> bool:
        """Whether the log of an entry has arrived: its message comes after the ``done`` byte."""
        return (entry[0] >> 32, entry[0] & 0xFFFFFFFF) in self._logs

    def load(self, i: int, entry: Entry) -> Any:
        """Return the result of item `i`; its large arrays are views of the log.

        Raises
        ------
        TaskError
            If it cannot be unpickled here.
        """
        key, offset, nbytes = entry
        log = self._logs[key >> 32, key & 0xFFFFFFFF]
        return unpack(i, log.array(np.uint8, (nbytes,), offset))


def pack(value: Any) -> tuple[list[tuple[int, memoryview]], int]:
    """Return the parts of an entry with their offsets, and its size in bytes."""
    return _together(*dumps_apart(value, OUT_OF_BAND))


def unpack(i: int, entry: npt.NDArray[np.uint8]) -> Any:
    """Return the result of item `i`; its large arrays are views of the entry's bytes."""
    n = int(entry[:8].view(np.int64)[0])
    sizes = entry[8 : 8 * (n + 1)].view(np.int64).tolist()
    parts, at = [], aligned(8 * (n + 1))
    for size in sizes:
        parts.append(entry[at : at + size].data)
        at = aligned(at + size)
    return unpickled(i, parts[0], parts[1:])


def unpickled(i: int, data: Any, buffers: Sequence[Any] = ()) -> Any:
    """Return the result of item `i`, from its pickle.

    Raises
    ------
    TaskError
        If it cannot be unpickled here.
    """
    try:
        return pickle.loads(data, buffers=buffers)
    except BaseException as error:
        if is_interrupt(error):
            raise
        error.__traceback__ = None  # its frames lead to the results, which keep the error
        raise TaskError(
            f"the result of item {i} cannot be unpickled here: {type(error).__name__}: {error}", i
        ) from error


def _together(data: bytes, buffers: list[memoryview]) -> tuple[list[tuple[int, memoryview]], int]:
    """Return the parts of an entry with their offsets, and its size in bytes."""
    parts = list(_placed([memoryview(data), *buffers]))
    return parts, parts[-1][0] + parts[-1][1].nbytes


def _placed(parts: list[memoryview]) -> Iterator[tuple[int, memoryview]]:
    """Yield the parts of an entry with their offsets, the table of sizes first."""
    table = np.array([len(parts), *(part.nbytes for part in parts)], np.int64)
    yield 0, table.data.cast("B")
    at = aligned(table.nbytes)
    for part in parts:
        yield at, part
        at = aligned(at + part.nbytes)


def _entry(key: LogKey, offset: int, nbytes: int) -> Entry:
    return (key[0] << 32) + key[1], offset, nbytes
