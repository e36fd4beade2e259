"""The rows of a checkpoint, as the workers and the keeper of a call write them.

A row is a result, or the place of one in a log, then its times, and last its index word. So
whenever a process is killed, a row either has its result or is missing. Each writer has a log of
its own; nobody waits for another.
"""

from __future__ import annotations

import errno
import itertools
import os
import time
import zlib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.memory import aligned, disk
from nbshare.memory.descriptors import Descriptor, owned
from nbshare.wire.board import ATTEMPTS, HURT, IN_LOG, IN_OUTPUT, Board, Page

__all__ = [
    "INDEX", "INDEX_FILE", "LOG_BIT", "PLACES_FILE", "RESULTS_FILE", "TIMES_FILE", "UNSYNCED",
    "FilePlace", "RowNumbers", "RowWriter", "attempts_of", "checksums", "log_file", "runs_of",
]  # fmt: skip

RESULTS_FILE, PLACES_FILE, TIMES_FILE, INDEX_FILE = (
    "results.npy", "objects.npy", "times.npy", "index.npy",
)  # fmt: skip
INDEX = np.dtype([("state", "u1"), ("attempts", "u1"), ("code", "<u2"), ("crc", "<u4")])
UNSYNCED = 128  # added to a state, until the disk has the result
LOG_BIT = 44  # of an offset in the logs: from it on, the number of the log
SHORT = 16  # bytes of a row whose checksum is looked up

RowNumbers = npt.NDArray[np.int64]


class FilePlace(NamedTuple):
    """Where and how a worker writes results to files."""

    folder: str
    starts: Mapping[str, int]  # of the first row of each file, in bytes
    code: int  # the version of the code that the worker has imported
    log: int  # which log is its own
    mark: int  # 0, or UNSYNCED


def log_file(number: int) -> str:
    """Return the name of a log."""
    return f"objects.{number}.log" if number else "objects.log"


def runs_of(*numbers: RowNumbers) -> Iterator[slice]:
    """Yield slices in which all of these go up by one."""
    n = len(numbers[0])
    is_break = np.zeros(max(n - 1, 0), np.bool_)
    for each in numbers if n > 1 else ():
        is_break |= np.diff(each) != 1
    bounds = [0, *(np.flatnonzero(is_break) + 1).tolist(), n]
    for start, stop in itertools.pairwise(bounds):
        if start < stop:
            yield slice(start, stop)


def checksums(rows: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint32]:
    """Return the CRC-32 of each row of bytes."""
    n, nbytes = rows.shape
    if not nbytes or nbytes > SHORT or n == 1:
        return np.array([zlib.crc32(row.data) for row in rows], np.uint32)
    tables = _tables(nbytes)
    found = np.full(n, zlib.crc32(bytes(nbytes)), np.uint32)
    for k in range(nbytes):
        found ^= tables[k][rows[:, k]]
    return found


@cache
def _tables(nbytes: int) -> npt.NDArray[np.uint32]:
    """Return what each value of each byte of a row changes in its checksum, which is linear."""
    zero = zlib.crc32(bytes(nbytes))
    rows = [
        [
            zlib.crc32(bytes([*bytes(k), value, *bytes(nbytes - k - 1)])) ^ zero
            for value in range(256)
        ]
        for k in range(nbytes)
    ]
    return np.array(rows, np.uint32)


def attempts_of(board: Board, page: Page, places: Any) -> Any:
    """Return how often some items have run so far, with this time."""
    return 1 + (page.attempts[places] & ATTEMPTS if board.header[HURT] else 0)


class RowWriter:
    """Writes rows.

    Parameters
    ----------
    place : FilePlace
        Where, and how.

    Attributes
    ----------
    code : int
        The version of the code of what is written next.
    """

    def __init__(self, place: FilePlace) -> None:
        self._place, self.code = place, place.code
        self._files: dict[str, Descriptor] = {}
        self._log_end = 0

    def put(self, rows: RowNumbers, values: npt.NDArray[Any], attempts: Any, took_s: float) -> None:
        """Write results that fit the array.

        Raises
        ------
        OSError
            The disk is full, or fails.
        """
        plain = np.empty((len(rows), 0), np.uint8)
        if values.nbytes:
            plain = np.ascontiguousarray(values).reshape(len(rows), -1).view(np.uint8)
            self._write(RESULTS_FILE, rows, plain)
        self.commit(rows, IN_OUTPUT, attempts, checksums(plain), took_s)

    def put_record(
        self,
        rows: RowNumbers,
        record: memoryview,
        entries: RowNumbers,
        attempts: Any,
        took_s: float,
    ) -> None:
        """Write results that are together in a record; `entries`: size and place of each in it.

        Raises
        ------
        OSError
            The disk is full, or fails.
        """
        fd, start = self._fd(log_file(self._place.log)), self._log_end
        disk.write_all(fd, record, start)
        self._log_end = aligned(start + record.nbytes)
        places = np.empty((len(rows), 3), "<i8")
        places[:, 0] = start | self._place.log << LOG_BIT
        places[:, 1:] = entries
        self._write(PLACES_FILE, rows, plain := places.view(np.uint8))
        crc = zlib.crc32(record)
        crcs = np.array([zlib.crc32(each.data, crc) for each in plain], np.uint32)
        self.commit(rows, IN_LOG, attempts, crcs, took_s)

    def commit(self, rows: RowNumbers, state: int, attempts: Any, crcs: Any, took_s: float) -> None:
        """Write when results were stored, and last their index words."""
        times = np.full((len(rows), 2), (time.time(), took_s))
        self._write(TIMES_FILE, rows, times.view(np.uint8))
        words = np.empty(len(rows), INDEX)
        words["state"], words["attempts"] = state | self._place.mark, np.minimum(attempts, 255)
        words["code"], words["crc"] = self.code, crcs
        self._write(INDEX_FILE, rows, words.view(np.uint8).reshape(-1, INDEX.itemsize))

    def _write(self, name: str, rows: RowNumbers, data: npt.NDArray[np.uint8]) -> None:
        if rows[0] < 0:
            raise FileNotFoundError(errno.ENOENT, "the rows of these items are not known")
        fd, start, step = self._fd(name), self._place.starts[name], data.shape[1]
        for run in runs_of(rows):
            disk.write_all(fd, data[run].reshape(-1), start + int(rows[run.start]) * step)

    def _fd(self, name: str) -> int:
        if name not in self._files:
            path = Path(self._place.folder, name)
            self._files[name] = owned(disk.system.open(path, os.O_RDWR))
        return self._files[name].fileno()
