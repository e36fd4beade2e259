"""Reads results from files."""

from __future__ import annotations

import ast
import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from nbshare._core.memory import disk
from nbshare._core.messages import warn
from nbshare._core.store.files import Table, damaged, opened, read_json, size_of
from nbshare._core.store.logs import LogKey, LogReader, Unloadable
from nbshare._core.store.pages import IN_LOG, IN_OUTPUT
from nbshare._core.store.rows import (
    INDEX,
    INDEX_FILE,
    LOG_BIT,
    RESULTS_FILE,
    RowNumbers,
    bytes_in,
    checksums,
    log_file,
    record_checksums,
)
from nbshare._core.store.specs import NUMBERS, OBJECTS, OutputSpec
from nbshare._core.system import Descriptor, waiting
from nbshare.errors import CheckpointWarning

MOST_FILES = 1 << 32  # numbers of logs that are files. Keys of logs in memory are larger
MOST_BYTES = 64 << 20  # bytes of rows that are copied at a time
STORED = IN_OUTPUT, IN_LOG  # states of rows that have a result


def copy_rows(target: Any, places: RowNumbers, source: npt.NDArray[Any], rows: RowNumbers) -> None:
    """Copy rows from one array to another, in parts, because they may be as large as memory."""
    step = max(1, MOST_BYTES // max(1, source[:1].nbytes))
    for k in range(0, len(rows), step):
        target[places[k : k + step]] = source[rows[k : k + step]]


class StoredLogs(LogReader):
    """Logs in the files of a checkpoint or a part of one, and logs in memory.

    Parameters
    ----------
    folder : Path
        The folder with the files.

    Notes
    -----
    Files are read, not mapped, because they grow during a run, and because results in a mapping
    would be sent to other processes without the caller's changes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._files: dict[LogKey, Descriptor] = {}

    def create(self, number: int) -> None:
        """Create the file of a worker's log. This process can read it even if it is removed."""
        path = self._folder / log_file(number)
        self._files[number] = disk.open_own(path, os.O_RDWR | os.O_CREAT)

    def has(self, keys: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return a flag per log, True if it is available. Files always are."""
        return super().has(keys) | ((keys > 0) & (keys < MOST_FILES))

    def bytes_of(self, key: LogKey, offset: int, nbytes: int) -> memoryview:
        """Return the bytes of an entry in its log."""
        if key >= MOST_FILES:
            return super().bytes_of(key, offset, nbytes)
        path = self._folder / log_file(key)
        remedy = "Make the same call again, which reruns the items."
        if (file := self._files.get(key) or opened(path)) is None:
            raise damaged(path, "it is missing", remedy)
        self._files[key] = file
        data = disk.read_all(file.fileno(), abs(nbytes), offset)
        if len(data) < abs(nbytes):
            raise damaged(path, "it is truncated", remedy)
        return memoryview(data)

    def _array(self, key: LogKey, offset: int, nbytes: int) -> npt.NDArray[np.uint8]:
        if key >= MOST_FILES:
            return super()._array(key, offset, nbytes)
        return np.frombuffer(self.bytes_of(key, offset, nbytes), np.uint8).copy()


class StoredRows:
    """Reads the rows in a folder, as they are now.

    Parameters
    ----------
    folder : Path
        The folder with their files.

    Attributes
    ----------
    logs : LogReader
        The logs of the folder, and those in memory.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, StoredLogs(folder)

    def words(self) -> npt.NDArray[Any]:
        """Map the index."""
        return Table(self.folder / INDEX_FILE, INDEX, ()).load()

    @property
    def spec(self) -> OutputSpec | None:
        """The form of the results, or None before the first result."""
        return spec_in((read_json(self.folder / "meta.json") or {}).get("results"))

    def load(self) -> npt.NDArray[Any]:
        """Map the results that form an array. Empty if there are none."""
        spec = self.spec
        if spec is None or spec.dtype is None:
            return np.zeros(0)
        return Table(self.folder / RESULTS_FILE, spec.dtype, spec.shape).load()

    def entries(self, words: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Return the places in logs that index words contain."""
        return np.stack(_in_logs(words["at"]))

    def objects(
        self, items: RowNumbers, rows: RowNumbers, words: npt.NDArray[Any]
    ) -> Iterator[tuple[int, Any]]:
        """Yield the results of items one by one, from their rows and index words."""
        is_logged, results = words["state"] == IN_LOG, self.load()
        is_number = (spec := self.spec) is not None and spec.number is not None
        for i, row in zip(items[~is_logged].tolist(), rows[~is_logged].tolist(), strict=True):
            yield i, results[row].item() if is_number else results[row]
        for some, values in self.logs.load(items[is_logged], self.entries(words[is_logged])):
            for i, value in zip(some.tolist(), values, strict=True):
                if type(value) is Unloadable:
                    raise value.error
                yield i, value

    # ------------------------------------------------------------------------ checks

    def checked(self, index: npt.NDArray[Any], before: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the index without damaged results. `before` is the index checked earlier."""
        n_more = max(0, len(index) - len(before))
        words = np.append(before[: len(index)], np.zeros(n_more, INDEX))
        rows = np.flatnonzero(index["crc"] != words["crc"])
        # The checksum is the end of a word. What is read before it may be older.
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()
        words[rows] = index[rows]
        rows = rows[words["state"][rows] > 0]
        bad = rows[~self.are_whole(rows, words[rows])]
        crcs = words["crc"][bad]
        if len(bad) and self.folder.exists():  # otherwise it was moved away (see `look`)
            warn(
                f"{self.folder}: {len(bad)} results are damaged, or were not completely written. "
                "They count as missing, and the same call runs their items again.",
                CheckpointWarning,
            )
            words[bad] = 0
            words["crc"][bad] = crcs  # so that they are known in the next check
        return words

    def are_whole(self, rows: RowNumbers, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return whether the results of some rows match the checksums in their index words."""
        is_there, found = self._are_there(rows, words), np.zeros(len(rows), np.uint32)
        data = bytes_in(self.load())
        there = np.flatnonzero(is_there & (words["state"] == IN_OUTPUT))
        step = 1 + MOST_BYTES // (data.shape[1] + INDEX.itemsize)
        for k in range(0, len(there), step):
            some = there[k : k + step]
            found[some] = checksums(words[some], data[rows[some]])
        logged = np.flatnonzero(is_there & (words["state"] == IN_LOG))
        entries = self.entries(words[logged])[:3]
        records, which = np.unique(entries, axis=1, return_inverse=True)  # each one or more results
        crcs = [zlib.crc32(self.logs.bytes_of(*record)) for record in records.T.tolist()]
        found[logged] = record_checksums(words[logged], np.array(crcs, np.int64)[which].tolist())
        failed = np.flatnonzero(is_there & ~np.isin(words["state"], STORED))
        found[failed] = record_checksums(words[failed], itertools.repeat(0))
        return np.asarray(is_there & (found == words["crc"]))

    def _are_there(self, rows: RowNumbers, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Return whether the files are long enough for the results of some rows."""
        is_there = (words["state"] != IN_OUTPUT) | (rows < len(self.load()))
        is_logged = words["state"] == IN_LOG
        numbers, starts, sizes, _ = _in_logs(words["at"][is_logged])
        logs, which = np.unique(numbers, return_inverse=True)
        ends = np.array([size_of(self.folder / log_file(number)) for number in logs.tolist()])
        is_there[is_logged] = (sizes != 0) & (starts + np.abs(sizes) <= ends[which])
        return np.asarray(is_there)


def told_of(spec: OutputSpec) -> dict[str, Any]:
    """Return the form of the results as a dict, to be stored in meta.json."""
    if spec.dtype is None:
        return {"kind": "objects"}
    kind = "arrays" if spec.number is None else spec.number.__name__
    descr = repr(npy.dtype_to_descr(spec.dtype))
    return {"kind": kind, "dtype": descr, "shape": [*spec.shape]}


def spec_in(told: dict[str, Any] | None) -> OutputSpec | None:
    """Return the form of the results from its dict in meta.json."""
    if told is None:
        return None
    if told["kind"] == "objects":
        return OBJECTS
    dtype = npy.descr_to_dtype(ast.literal_eval(told["dtype"]))
    number = {each.__name__: each for each in NUMBERS}.get(told["kind"])
    return OutputSpec(dtype, tuple(told["shape"]), number)


def _in_logs(at: npt.NDArray[Any]) -> tuple[RowNumbers, ...]:
    """Return logs, offsets, sizes and places in the batches from index words."""
    starts, sizes, places = at.T
    return *np.divmod(starts, 1 << LOG_BIT), sizes, places
