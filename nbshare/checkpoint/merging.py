"""Merges what several processes that shared a run have stored into its checkpoint."""

from __future__ import annotations

import json
import pickle
import secrets
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.files import loaded, read_json, record_at, spec_of
from nbshare.checkpoint.writer import PARTS, parts_of
from nbshare.errors import CheckpointInUseError
from nbshare.wire.board import IN_LOG, IN_OUTPUT
from nbshare.wire.results import ALONE, OutputSpec
from nbshare.wire.rows import (
    INDEX,
    INDEX_FILE,
    LOG_BIT,
    PLACES_FILE,
    RESULTS_FILE,
    TIMES_FILE,
    UNSYNCED,
    RowWriter,
    checksums,
    log_file,
)

if TYPE_CHECKING:
    from nbshare.checkpoint.directory import Directory

MOST_BYTES = 64 << 20  # of rows that are copied at a time


def merge_parts(directory: Directory) -> None:
    """Copy all results of the parts that a checkpoint has, and remove the parts."""
    rows = loaded(directory.path / "order.npy")
    for path in parts_of(directory.path):
        if (part := _Part(directory, path, rows)).is_any:
            part.merge()
    directory.sync()
    # At once: a process that is late finds its part either in its place or not at all.
    (directory.path / PARTS).rename(directory.path / f".{PARTS}.{secrets.token_hex(4)}")
    for old in directory.path.glob(f".{PARTS}.*"):
        shutil.rmtree(old, ignore_errors=True)


class _Part:
    """What one process has stored, and where it goes.

    Parameters
    ----------
    directory : Directory
        The checkpoint.
    path : Path
        The part.
    rows : ndarray of int
        The row of each item there.
    """

    def __init__(self, directory: Directory, path: Path, rows: npt.NDArray[np.int64]) -> None:
        self._directory, self._path, self._rows = directory, path, rows
        self._words = np.array(loaded(path / INDEX_FILE))
        if self._words.dtype == INDEX:
            self._words["state"] %= UNSYNCED
        self.is_any = bool(len(self._words))

    def merge(self) -> None:
        """Copy what the checkpoint does not have; leave out what is damaged."""
        directory, words, rows = self._directory, self._words, self._rows
        is_there = np.isin(directory.words["state"][rows], (IN_OUTPUT, IN_LOG))
        self._is_whole = (words["state"] > 0) & ~is_there
        new = np.flatnonzero(self._is_whole)
        stored = rows[new]
        kind = (read_json(self._path / "meta.json") or {}).get("results")
        words["code"] = directory.versions.adopt(self._path)[words["code"]]
        directory.put(TIMES_FILE, stored, loaded(self._path / TIMES_FILE)[new])
        if (spec := spec_of(self._path, kind)) is not None and len(new):
            directory.decide(spec)
            in_output = new[words["state"][new] == IN_OUTPUT]
            if directory.spec == spec:
                self._copy_rows(in_output)
            else:
                self._store_as_objects(in_output, spec)
            self._copy_places(new[words["state"][new] == IN_LOG])
        new = np.flatnonzero(self._is_whole)
        directory.put_words(rows[new], words[new])
        directory.commit(stored)
        if (errors := self._path / "errors.jsonl").exists():
            for line in errors.read_text().splitlines():
                if line.endswith("}"):
                    directory.note_error(json.loads(line))

    def _hold(self) -> None:
        """Renew the lease: copying may take long."""
        if not self._directory.is_there():
            where = self._directory.path
            raise CheckpointInUseError(f"{where}: another process has taken it over")

    def _copy_rows(self, items: npt.NDArray[np.int64]) -> None:
        results = loaded(self._path / RESULTS_FILE)
        step = max(1, MOST_BYTES // max(1, results[:1].nbytes))
        for k in range(0, len(items), step):
            self._hold()
            some = items[k : k + step]
            values = results[some]
            self._directory.put(RESULTS_FILE, self._rows[some], values)
            self._is_whole[some] = checksums(values, range(len(some))) == self._words["crc"][some]

    def _copy_places(self, items: npt.NDArray[np.int64]) -> None:
        """Take over the logs, and say where results are in them."""
        if not len(items):
            return
        places, words = np.array(loaded(self._path / PLACES_FILE)[items]), self._words
        numbers, starts = np.divmod(places[:, 0], 1 << LOG_BIT)
        paths = {number: self._path / log_file(number) for number in np.unique(numbers).tolist()}
        here = {number: self._directory.take_log(path) for number, path in paths.items()}
        crcs: dict[int, int] = {}  # of the records, each of one or more results
        for k, i in enumerate(items.tolist()):
            start, nbytes, _ = places[k].tolist()
            if start not in crcs:
                self._hold()
                crcs[start] = zlib.crc32(record_at(self._path, start, nbytes))
            self._is_whole[i] = zlib.crc32(places[k].data, crcs[start]) == words["crc"][i]
            places[k, 0] = starts[k] | here[int(numbers[k])] << LOG_BIT
            words["crc"][i] = zlib.crc32(places[k].data, crcs[start])
        self._directory.put(PLACES_FILE, self._rows[items], places)

    def _store_as_objects(self, items: npt.NDArray[np.int64], spec: OutputSpec) -> None:
        """Store arrays or numbers that do not fit those of the checkpoint."""
        results, words = loaded(self._path / RESULTS_FILE), self._words
        writer = RowWriter(self._directory.place()) if len(items) else None
        for i in items.tolist():
            assert writer is not None
            value, row = np.asarray(results[i]), int(self._rows[i])
            self._is_whole[i] = False
            if zlib.crc32(value.tobytes()) == words["crc"][i]:
                whole = np.array(value)[()] if spec.number is None else spec.number(value)
                record = memoryview(pickle.dumps(whole, 5))
                writer.code = int(words["code"][i])
                attempts = words["attempts"][i : i + 1].astype(np.int64)
                writer.put_record(row, record, [[len(record), ALONE]], attempts, 0.0)
