"""How results travel: in an output array, or else as entries of logs.

Numbers and arrays of one shape go to one output array. Any other result is an entry of a log, which
is a segment of its worker: the pickle and its large buffers. Arrays come out of a log as views of
it, without another copy::

    n, size of each part | pickle | buffer | buffer …        (each at a multiple of 64 bytes)

An entry without large buffers is only the pickle. Results of tiny items are pickled together as a
list, their batch: a bytearray in it is the pickle of a result that must be loaded separately.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.memory import Segment, View, aligned
from nbshare.errors import TaskError, is_interrupt

LogKey = int  # the system's number of the worker's thread << 32, plus which of its logs
# Log, offset, size in bytes, negative if it has buffers, and place in the batch that is there.
Entry = tuple[LogKey, int, int, int]
ALONE = -1  # as the place in a batch: the entry is the one result

OUT_OF_BAND = 1 << 12  # bytes; smaller buffers stay in the pickle


class OutputSpec(NamedTuple):
    """The dtype and shape of one result."""

    dtype: np.dtype[Any] | None  # None: objects, which go to the logs
    shape: tuple[int, ...]
    number: type | None  # Python's own number class that fits, for scalars
    is_given: bool = False  # the caller gave the array: results must fit, casting "same_kind"

    def holds(self, value: Any) -> bool:
        """Return whether an output of this kind holds a result unchanged."""
        if self.dtype is None:
            return False
        if type(value) is np.ndarray and value.dtype == self.dtype:  # quick to check
            return bool(value.shape == self.shape)
        found = spec_for(value)
        # NumPy takes None for float64 when it compares dtypes.
        return found.dtype is not None and found[:2] == self[:2]


OBJECTS = OutputSpec(None, (), None)
NUMBERS = {t: OutputSpec(np.asarray(t()).dtype, (), t) for t in (bool, int, float, complex)}

# Kinds of results that workers agree on without the caller: objects, and numbers of 8 bytes at
# most, which fit the board and `struct` knows. For arrays, one worker has to ask the caller, which
# takes as long as some hundred tiny items.
ASK, IS_OBJECT = 1, 2
KINDS = {IS_OBJECT: OBJECTS} | {
    IS_OBJECT + 1 + code: OutputSpec(np.dtype(t), (), t if t in (bool, int, float) else None)
    for code, t in enumerate([bool, int, float, *"?bBhHiIlLqQefd"])
}
KIND_OF = {spec: kind for kind, spec in reversed(KINDS.items())}


def spec_for(value: Any) -> OutputSpec:
    """Return the output spec for a first result."""
    if type(value) in NUMBERS:
        if type(value) is not int or -(1 << 63) <= value < 1 << 63:
            return NUMBERS[type(value)]
        dtype = np.asarray(value).dtype
        return OBJECTS if dtype.hasobject else OutputSpec(dtype, (), int)
    if isinstance(value, np.generic) or type(value) in (np.ndarray, SharedArray):
        # Only arrays of strings and records are stacked: single ones are objects to users.
        is_stacked = value.ndim > 0 or not issubclass(value.dtype.type, np.flexible)
        if is_stacked and not value.dtype.hasobject and value.dtype.char != "T":
            # In native byte order, as NumPy stacks them.
            return OutputSpec(np.promote_types(value.dtype, value.dtype), value.shape, None)
    return OBJECTS


class LogReader:
    """The caller's side: the logs of all workers."""

    def __init__(self) -> None:
        self._logs: dict[LogKey, Segment] = {}
        self._present: dict[int, LogKey] = {}  # that workers write to, by their threads
        self._last: tuple[tuple[LogKey, int], Any] = (0, -1), None  # the batch read last

    def add(self, key: LogKey, log: Segment) -> None:
        """Add a worker's next log; its previous one gets no more results."""
        self._present[key >> 32] = key
        self._logs[key] = log

    def ended(self) -> list[LogKey]:
        """Return the logs that get no more results."""
        return [key for key in list(self._logs) if self._present[key >> 32] != key]

    def drop(self, key: LogKey) -> None:
        """Drop a log whose results have all been taken."""
        self._logs.pop(key, None)  # another thread may have dropped it just now
        self._last = (0, -1), None

    def has(self, entry: Entry) -> bool:
        """Return whether the log of an entry has arrived: its message follows the ``done`` byte."""
        return entry[0] in self._logs

    def bytes_of(self, entry: Entry) -> memoryview:
        """Return an entry as it is in its log."""
        _, offset, nbytes, _ = entry
        return memoryview(self._logs[entry[0]])[offset : offset + abs(nbytes)]

    def load(self, i: int, entry: Entry) -> Any:
        """Return the result of item `i`, a new object; its large arrays are views of the log.

        Raises
        ------
        TaskError
            If it cannot be unpickled here.
        """
        place = entry[3]
        if place == ALONE:
            return self._load(i, entry)
        last = self._last
        if last[0] != entry[:2]:
            self._last = last = entry[:2], self._load(i, entry)
        value = last[1][place]
        return value.copy() if type(value) in (dict, list) else thawed(i, value)

    def rest_of_batch(self, i: int, entry: Entry) -> list[Any]:
        """Return the frozen results of item `i` and those after it in its batch, new objects."""
        batch: list[Any] = self._load(i, entry)
        return batch[entry[3] :]

    def _load(self, i: int, entry: Entry) -> Any:
        key, offset, nbytes, _ = entry
        if nbytes < 0:
            return unpack(i, View(self._logs[key]).array(np.uint8, (-nbytes,), offset))
        return _unpickled(i, memoryview(self._logs[key])[offset : offset + nbytes])


def thawed(i: int, value: Any) -> Any:
    """Return the result of item `i` as it was before it was frozen for a batch.

    Raises
    ------
    TaskError
        If it cannot be unpickled here.
    """
    return _unpickled(i, value) if type(value) is bytearray else value


def unpack(i: int, entry: npt.NDArray[np.uint8]) -> Any:
    """Return the result of item `i`; its large arrays are views of the entry's bytes."""
    data, *buffers = parts_in(entry)
    return _unpickled(i, data, buffers)


def parts_in(entry: npt.NDArray[np.uint8]) -> list[memoryview]:
    """Return the parts of an entry."""
    n = int(entry[:8].view(np.int64)[0])
    parts, at = [], aligned(8 * (n + 1))
    for size in entry[8 : 8 * (n + 1)].view(np.int64).tolist():
        parts.append(entry[at : at + size].data)
        at = aligned(at + size)
    return parts


def _unpickled(i: int, data: Any, buffers: Sequence[Any] = ()) -> Any:
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
        error.__traceback__ = None  # or its frames and the results keep each other alive
        raise TaskError(
            f"the result of item {i} cannot be unpickled here: {type(error).__name__}: {error}", i
        ) from error


def entry_parts(data: bytes, buffers: list[memoryview]) -> tuple[list[tuple[int, memoryview]], int]:
    """Return the parts of an entry with their offsets, and its size in bytes."""
    after = [memoryview(data), *buffers]
    table = np.array([len(after), *(part.nbytes for part in after)], np.int64)
    parts, end = [(0, table.data.cast("B"))], table.nbytes
    for part in after:
        parts.append((aligned(end), part))
        end = aligned(end) + part.nbytes
    return parts, end
