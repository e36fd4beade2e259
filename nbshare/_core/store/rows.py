"""Writes rows of a checkpoint, for the workers and the keeper of a call.

A row consists of a result, in the row itself or in a log, and an index word, which is written last.
Whenever a process is killed, a row is therefore either complete or missing. Each writer has its own
log, so no writer waits for another.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import View, aligned, disk, segment_of
from nbshare._core.store.logs import ALONE, LogReader, batches_of
from nbshare._core.store.pages import ATTEMPTS, FAILED, IN_LOG, IN_OUTPUT, NOT_DONE
from nbshare._core.store.specs import OutputSpec
from nbshare._core.system import Descriptor

RESULTS_FILE, INDEX_FILE = "results.npy", "index.npy"
# The fields of an index word: times and, for a result in a log, its offset, size and place in the
# batch. The state follows them, because a write may be cut off between two pages.
FIRST = [("stored_at", "<f8"), ("elapsed_s", "<f8"), ("at", "<i8", 3)]
INDEX = np.dtype([*FIRST, ("state", "u1"), ("attempts", "u1"), ("code", "<u2"), ("crc", "<u4")])
WORD = struct.Struct("<dd3qBBHI")  # the same for one word
HEAD = INDEX.itemsize - 4  # bytes of a word before its checksum
FEW, SHORT = 8, 256  # more rows that are shorter are copied together
LOG_BIT = 44  # first bit of the log's number in an offset

RowNumbers = npt.NDArray[np.int64]


class FilePlace(NamedTuple):
    """The files to which a worker writes results."""

    folder: str
    starts: Mapping[str, int]  # offset of the first row of each file, in bytes
    code: int  # the version of the code that the worker has imported
    log: int  # the number of the worker's log


class TransferSource(NamedTuple):
    """Where results are that are to be stored as rows: memory of a call, or a part of a run."""

    values: Any  # the array of results
    entries: Callable[[RowNumbers], RowNumbers]  # places of other results in logs
    logs: LogReader
    as_object: Callable[[Any], Any] | None = None  # converts a value that does not fit


def log_file(number: int | str) -> str:
    """Return the name of the file of a log, or a pattern for all logs."""
    return f"objects.{number}.log"


def runs_of(numbers: RowNumbers) -> Iterator[slice]:
    """Yield slices of consecutive numbers. A negative number has a slice of its own."""
    n, breaks = len(numbers), []
    if n > 1:
        breaks = (np.flatnonzero((np.diff(numbers) != 1) | (numbers[:-1] < 0)) + 1).tolist()
    for start, stop in itertools.pairwise([0, *breaks, n] if n else []):
        yield slice(start, stop)


def bytes_in(values: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return the rows of an array as bytes."""
    nbytes = values.nbytes // max(1, len(values))
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).reshape(len(values), nbytes)


def checksums(index: npt.NDArray[Any], data: npt.NDArray[np.uint8]) -> list[int]:
    """Return the CRC-32 of rows and their index words."""
    if len(data) < FEW or data.shape[1] > SHORT:
        return record_checksums(index, map(zlib.crc32, data))
    together = np.concatenate([data, bytes_in(index)[:, :HEAD]], axis=1)
    return [*map(zlib.crc32, together.view(f"V{together.shape[1]}").ravel().tolist())]


def record_checksums(index: npt.NDArray[Any], crcs: Iterable[int]) -> list[int]:
    """Return the CRC-32 of results in records, from those of the records and their index words."""
    words, size = index.tobytes(), INDEX.itemsize
    heads = (words[at : at + HEAD] for at in range(0, len(words), size))
    return [*map(zlib.crc32, heads, crcs)]


def index_of(failures: npt.NDArray[np.int32], code: int, took_s: float = 0.0) -> npt.NDArray[Any]:
    """Return new index words for items that have just run, without results.

    `failures` are the items' words in `attempts` of the page.
    """
    # By struct, because NumPy takes 20 µs for the fields of one word.
    word = WORD.pack(time.time(), took_s, 0, 0, 0, NOT_DONE, 1, code, 0)
    index = np.frombuffer(bytearray(word * len(failures)), INDEX)
    if any(failures.data):
        index["attempts"] = np.minimum(1 + (failures & ATTEMPTS), 255)
    return index


class RowWriter:
    """Writes the rows of a checkpoint.

    Parameters
    ----------
    place : FilePlace
        The files to write to.

    Attributes
    ----------
    code : int
        The version of the code that produced the results.
    log : int
        The number of this writer's log.

    Notes
    -----
    All methods raise OSError if the disk is full or fails, and CheckpointError if a file was
    replaced by something else. Results without a row (-1) are omitted.
    """

    def __init__(self, place: FilePlace) -> None:
        self._place, self.code, self.log = place, place.code, place.log
        self._files: dict[str, Descriptor] = {}
        self._log_end = 0

    def put(self, rows: RowNumbers, values: npt.NDArray[Any], index: npt.NDArray[Any]) -> None:
        """Write results as rows of the array."""
        data = bytes_in(values)
        if data.size:
            self._write(RESULTS_FILE, rows, data)
        index["state"] = IN_OUTPUT
        index["crc"] = checksums(index, data)
        self.commit(rows, index)

    def put_record(
        self, rows: RowNumbers, record: Any, entries: Any, index: npt.NDArray[Any]
    ) -> int:
        """Write results that share a record in the log. Return the offset of the record.

        `entries` has the size, and the place in the record, of each result.
        """
        start = self._log_end
        self._fd(INDEX_FILE)  # first, because it raises if the folder was replaced
        disk.write_all(self._fd(log_file(self.log)), record, start)
        self._log_end = aligned(start + len(record))
        index["at"][:, 0] = start | self.log << LOG_BIT
        index["at"][:, 1:] = entries
        index["state"] = IN_LOG
        index["crc"] = record_checksums(index, itertools.repeat(zlib.crc32(record)))
        self.commit(rows, index)
        return start

    def transfer(
        self, source: TransferSource, places: RowNumbers, rows: RowNumbers, index: npt.NDArray[Any]
    ) -> None:
        """Copy results from a source to rows.

        Parameters
        ----------
        source : TransferSource
            Where the results are now.
        places, rows, index : ndarray
            The place of each result in `source`, its new row, and its index entry.
        """
        there = np.flatnonzero(index["state"] == IN_OUTPUT)
        for run in runs_of(places[there]):
            some = there[run]
            first = int(places[some[0]])
            values = np.asarray(source.values[first : first + len(some)])
            if (as_object := source.as_object) is None:
                self.put(rows[some], values, index[some])
            else:
                for k, value in zip(some.tolist(), values, strict=True):
                    data = pickle.dumps(as_object(value), 5)
                    self.put_record(rows[[k]], data, [(len(data), ALONE)], index[[k]])
        logged = np.flatnonzero(index["state"] == IN_LOG)
        entries = source.entries(places[logged])
        together = np.lexsort(entries[1::-1])
        logged, entries = logged[together], entries[:, together]
        for batch in batches_of(entries):
            record = source.logs.bytes_of(*entries[:3, batch.start].tolist())
            some = logged[batch]
            self.put_record(rows[some], record, entries[2:, batch].T, index[some])
        failed = np.flatnonzero(index["state"] == FAILED)
        words = index[failed]
        words["crc"] = record_checksums(words, itertools.repeat(0))
        self.commit(rows[failed], words)

    def commit(self, rows: RowNumbers, index: npt.NDArray[Any]) -> None:
        """Write index words of rows, after their contents."""
        self._write(INDEX_FILE, rows, bytes_in(index))

    def _write(self, name: str, rows: RowNumbers, data: npt.NDArray[np.uint8]) -> None:
        """Write bytes of rows to a file."""
        start, nbytes = self._place.starts[name], data.shape[1]
        for run in runs_of(rows):
            if (first := int(rows[run.start])) >= 0:
                disk.write_all(self._fd(name), data[run], start + first * nbytes)

    def _fd(self, name: str) -> int:
        if name not in self._files:
            from pathlib import Path  # imported late: it takes 6 ms, and most calls store nothing

            path = Path(self._place.folder, name)
            # The owner has created the other files, and reads them. If one is missing, the folder
            # was replaced.
            flags = os.O_RDWR if name in self._place.starts else os.O_RDWR | os.O_CREAT
            self._files[name] = disk.open_own(path, flags)
        return self._files[name].fileno()


Rows = Callable[[int, int], npt.NDArray[Any]]  # rows of an output, by the first and their number


class RowsTarget(NamedTuple):
    """The output of a call, an array in a segment, to which a worker writes rows."""

    offset: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # that of a row
    strides: tuple[int, ...]  # those of the array

    def rows(self, views: Sequence[View]) -> Rows:
        """Return a function for rows of the output, in a segment which may grow."""
        view = views[0]

        def rows(first: int, n: int) -> npt.NDArray[Any]:
            nonlocal view
            start, step = self.offset + first * self.strides[0], self.strides[0]
            found = segment_of(view.root)
            if found is not None and start + n * step > view.root.nbytes:
                view = View(found[0].whole("r+"))
            return view.array(self.dtype, (n, *self.shape), start, self.strides)

        return rows


# The spec of results, their rows (None if they are only in logs or files), and the file writer.
Decided = tuple[OutputSpec, Rows | None, RowWriter | None]
