"""Logs of the results that do not fit an array.

A log is a segment of a worker, or a file of the checkpoint. An entry consists of the pickle of a
result and its large buffers. Arrays loaded from a log in memory are views of the log, and are not
copied::

    n, size of each part | pickle | buffer | buffer …        (each at a multiple of 64 bytes)

An entry without large buffers is only the pickle. Results of tiny items are pickled together as a
list, a batch. A bytearray in a batch is the pickle of a result that must be loaded separately.
"""

from __future__ import annotations

import itertools
import pickle
from _thread import get_native_id
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import Segment, View, aligned
from nbshare._core.messages import is_interrupt
from nbshare.errors import TaskError

LogKey = int  # the system's number of the worker's thread << 32, plus the number of the log
# Log, offset, size in bytes (negative if there are buffers), and place in the batch at this offset.
Entry = tuple[LogKey, int, int, int]
ALONE = -1  # the place in a batch, if the entry is a single result
Parts = list[tuple[int, Any]]  # the parts of an entry, with their offsets

OUT_OF_BAND = 1 << 12  # bytes. Smaller buffers stay in the pickle
LOG_BYTES = 1 << 20  # size of a worker's first log. Unused pages cost nothing
# Limit for later logs. They are larger, because each log takes a descriptor of the caller, but not
# too large, because a log is kept as long as any result in it.
MOST_LOG_BYTES = 64 << 20

_log_numbers = itertools.count()


class Unloadable(NamedTuple):
    """Stands for a result that cannot be unpickled in this process."""

    error: BaseException


class LogWriter:
    """The worker's side: appends to a log, and starts another when the log is full.

    Parameters
    ----------
    announce : callable
        ``announce(key, segment)`` reports a new log to the caller.
    """

    def __init__(self, announce: Callable[[LogKey, Segment], None]) -> None:
        self._announce = announce
        self._log: Segment | None = None
        self._key: LogKey = 0
        self._position = 0  # bytes
        self._n_bytes = 0  # written so far

    def append(self, parts: Parts, nbytes: int) -> tuple[LogKey, int]:
        """Append an entry. Return its log and its offset in bytes."""
        start, self._n_bytes = aligned(self._position), self._n_bytes + nbytes
        log = self._log
        if log is None or start + nbytes > log.nbytes:
            size = max(LOG_BYTES, min(self._n_bytes, MOST_LOG_BYTES), nbytes)
            log, start = Segment.create(size), 0
            self._log, self._key = log, (get_native_id() << 32) + next(_log_numbers)
            self._announce(self._key, log)
        self._position = start + nbytes
        fill(memoryview(log)[start : self._position], parts)
        return self._key, start


class LogReader:
    """The caller's side: reads the logs of all workers.

    Attributes
    ----------
    all_loaded : bool
        Whether no result was an `Unloadable` so far.
    """

    def __init__(self) -> None:
        self.all_loaded = True
        self._logs: dict[LogKey, Segment] = {}
        self._present: dict[int, LogKey] = {}  # the logs in use, by the threads of the workers

    def add(self, key: LogKey, log: Segment) -> None:
        """Add the next log of a worker, whose previous log is then complete."""
        self._present[key >> 32] = key
        self._logs[key] = log

    def ended(self) -> list[LogKey]:
        """Return the complete logs."""
        return [key for key in list(self._logs) if self._present[key >> 32] != key]

    def drop(self, key: LogKey) -> None:
        """Drop a log whose results have all been delivered."""
        self._logs.pop(key, None)  # another thread may have dropped it

    def has(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a flag per log, True if it has arrived. It may arrive after ``done`` is set."""
        has = np.zeros(len(keys), np.bool_)
        for key in list(self._logs):
            has |= keys == key
        return has

    def bytes_of(self, key: LogKey, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an entry in its log."""
        return memoryview(self._logs[key])[offset : offset + abs(nbytes)]

    def load(
        self, items: npt.NDArray[np.int64], entries: npt.NDArray[np.int64]
    ) -> Iterator[tuple[npt.NDArray[np.int64], list[Any]]]:
        """Yield items and their results, in batches, each of which is unpickled once.

        All results are new objects, and their large arrays are views of the log. A result that
        cannot be unpickled in this process is an `Unloadable`. Results of a log that is dropped
        meanwhile are omitted.

        Parameters
        ----------
        items : ndarray
            The items. Items of a batch that are not consecutive are yielded as separate batches.
        entries : ndarray
            The entries of their results, one per column.
        """
        batches, places = batches_of(entries), entries[3].tolist()
        first = entries[:3, [batch.start for batch in batches]].T.tolist()
        for batch, where in zip(batches, first, strict=True):
            try:
                data = self._data(*where)
            except KeyError:  # the log was dropped, because all its results were delivered
                continue
            yield items[batch], self._in_batch(items[batch], places[batch], data)

    def _data(self, key: LogKey, offset: int, nbytes: int) -> list[memoryview]:
        """Return the pickle of an entry, and its large buffers."""
        if nbytes < 0:
            return parts_in(self._array(key, offset, -nbytes))
        return [self.bytes_of(key, offset, nbytes)]

    def _in_batch(
        self, items: npt.NDArray[np.int64], places: list[int], data: list[memoryview]
    ) -> list[Any]:
        """Return the results of items that are stored in a batch, or alone."""
        batch = self._loaded(int(items[0]), *data)
        if places == [ALONE]:
            return [batch]
        if type(batch) is Unloadable:
            return [self._loaded(i, *data) for i in items.tolist()]
        found = [batch[place] for place in places]
        if bytearray in map(type, found):
            pairs = zip(items.tolist(), found, strict=True)
            return [self._loaded(i, x) if type(x) is bytearray else x for i, x in pairs]
        return found

    def _loaded(self, i: int, data: Any, *buffers: Any) -> Any:
        """Return the result of item `i`, from its pickle, or an `Unloadable`."""
        try:
            return pickle.loads(data, buffers=buffers)
        except BaseException as error:
            if is_interrupt(error):
                raise
            error.__traceback__ = None  # its frames and the results would keep each other alive
            problem = TaskError(
                f"the result of item {i} cannot be unpickled: {type(error).__name__}: {error}", i
            )
            problem.__cause__ = error
            self.all_loaded = False
            return Unloadable(problem)

    def _array(self, key: LogKey, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        """Return an entry as a writable array."""
        return View(self._logs[key]).array(np.uint8, (nbytes,), offset)


def batches_of(entries: npt.NDArray[np.int64]) -> list[slice]:
    """Return slices of consecutive entries (columns) in one batch."""
    n, starts = entries.shape[1], []
    if n > 1:
        starts = (1 + np.flatnonzero((entries[:2, 1:] != entries[:2, :-1]).any(axis=0))).tolist()
    return [*itertools.starmap(slice, itertools.pairwise([0, *starts, n] if n else []))]


def are_mixed(entries: npt.NDArray[np.int64]) -> bool:
    """Return whether some entries (columns) of a batch are not consecutive."""
    if entries.shape[1] < 3:  # others would have to be between two of a batch
        return False
    starts = [batch.start for batch in batches_of(entries)]
    return len(set(zip(*entries[:2, starts].tolist(), strict=True))) < len(starts)


def parts_in(entry: npt.NDArray[np.uint8]) -> list[memoryview]:
    """Return the parts of an entry."""
    n = int(entry[:8].view(np.int64)[0])
    parts, at = [], aligned(8 * (n + 1))
    for size in entry[8 : 8 * (n + 1)].view(np.int64).tolist():
        parts.append(entry[at : at + size].data)
        at = aligned(at + size)
    return parts


def fill(target: Any, parts: Parts) -> Any:
    """Copy the parts of an entry to their offsets in a buffer, and return the buffer."""
    for offset, part in parts:
        target[offset : offset + len(part)] = part
    return target


def entry_parts(data: bytes, buffers: list[memoryview]) -> tuple[Parts, int]:
    """Return the parts of an entry with their offsets, and the size for its `Entry`."""
    if not buffers:
        return [(0, data)], len(data)
    after = [memoryview(data), *buffers]
    table = np.array([len(after), *(part.nbytes for part in after)], np.int64)
    parts: Parts = [(0, table.data.cast("B"))]
    end = table.nbytes
    for part in after:
        parts.append((aligned(end), part))
        end = aligned(end) + part.nbytes
    return parts, -end
