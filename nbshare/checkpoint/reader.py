"""Reads the rows of a checkpoint, or of a part of one, as they are at that moment."""

from __future__ import annotations

import json
import os
import pickle
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.files import header_of, read_current, read_json
from nbshare.wire.board import FAILED, IN_LOG, IN_OUTPUT
from nbshare.wire.results import ALONE, NUMBERS, OBJECTS, Entry, OutputSpec, thawed, unpack
from nbshare.wire.rows import (
    INDEX,
    INDEX_FILE,
    LOG_BIT,
    PLACE,
    PLACES_FILE,
    RESULTS_FILE,
    TIMES_FILE,
    UNSYNCED,
    checksums,
    log_file,
)

STORED = IN_OUTPUT, IN_LOG  # states of rows that have a result

Rows = npt.NDArray[np.int64]


class RowReader:
    """Reads rows.

    Parameters
    ----------
    folder : Path
        The folder with their files.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def load(self, name: str) -> npt.NDArray[Any]:
        """Return what a ``.npy`` file holds, mapped; nothing if nothing has been written yet."""
        try:
            mapped = read_current(partial(np.load, mmap_mode="r"), self.folder / name)
            return np.asarray(mapped)
        except (FileNotFoundError, ValueError, EOFError):
            return np.zeros(0, np.int64)

    def words(self) -> npt.NDArray[Any]:
        """Return the index words; whether the disk has their results does not matter here."""
        words = np.array(self.load(INDEX_FILE))
        if words.dtype != INDEX:
            return np.zeros(0, INDEX)
        words["state"] %= UNSYNCED
        return words

    def times(self) -> npt.NDArray[np.float64]:
        """Return when each row was stored, and the seconds that it took."""
        return self.load(TIMES_FILE).reshape(-1, 2).astype(np.float64)

    def errors(self) -> list[dict[str, Any]]:
        """Return the failures of items, the last ones last."""
        with suppress(FileNotFoundError):
            lines = read_current(Path.read_text, self.folder / "errors.jsonl").splitlines()
            return [json.loads(line) for line in lines if line.endswith("}")]
        return []

    @property
    def spec(self) -> OutputSpec | None:
        """Form of the results; None before the first."""
        kind = (read_json(self.folder / "meta.json") or {}).get("results")
        if kind == "objects":
            return OBJECTS
        found = header_of(self.folder / RESULTS_FILE)
        if kind is None or found is None:
            return None
        number = {each.__name__: each for each in NUMBERS}.get(kind)
        return OutputSpec(found[1], found[2], number)

    def values(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return the results of some rows, mapped."""
        return self.load(RESULTS_FILE)[start:stop]

    def entries(self, rows: Rows) -> list[Entry]:
        """Return the place of each result that fits no array."""
        return [(0, *place) for place in self.load(PLACES_FILE)[rows].tolist()]

    def bytes_of(self, entry: Entry) -> memoryview:
        """Return a record of a log, which may have the results of several rows."""
        number, start = divmod(entry[1], 1 << LOG_BIT)
        with (self.folder / log_file(number)).open("rb") as file:
            return memoryview(os.pread(file.fileno(), abs(entry[2]), start))

    def objects(self, rows: Rows, states: npt.NDArray[np.uint8]) -> Iterator[Any]:
        """Yield results one by one."""
        results, places = self.load(RESULTS_FILE), self.load(PLACES_FILE)
        for row, state in zip(rows.tolist(), states.tolist(), strict=True):
            if state == IN_OUTPUT:
                yield results[row]
                continue
            start, nbytes, place = places[row].tolist()
            record = self.bytes_of((0, start, nbytes, place))
            if nbytes < 0:
                yield unpack(row, np.frombuffer(record, np.uint8))
            else:
                value = pickle.loads(record)
                yield value if place == ALONE else thawed(row, value[place])

    # ------------------------------------------------------------------------ checks

    def has_logs(self, rows: Rows) -> bool:
        """Whether the logs of some rows are as long as they should be."""
        entries = np.array(self.entries(rows), np.int64).reshape(-1, 4)
        numbers, starts = np.divmod(entries[:, 1], 1 << LOG_BIT)
        ends = starts + np.abs(entries[:, 2])
        for number in np.unique(numbers).tolist():
            path = self.folder / log_file(number)
            if ends[numbers == number].max() > (path.stat().st_size if path.exists() else 0):
                return False
        return True

    def are_whole(self, rows: Rows, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether the results of some rows have the checksums of their index words."""
        states, results, places = words["state"], self.load(RESULTS_FILE), self.load(PLACES_FILE)
        found = np.full(len(rows), -1, np.int64)
        found[states == FAILED] = 0
        there = np.flatnonzero((states == IN_OUTPUT) & (rows < len(results)))
        found[there] = checksums(results, rows[there].tolist())
        logged = np.flatnonzero((states == IN_LOG) & (rows < len(places)))
        crcs: dict[Any, int] = {}  # of records, each of one or more results
        for k, entry in zip(logged.tolist(), self.entries(rows[logged]), strict=True):
            with suppress(OSError):  # the log is gone
                if (record := entry[1:3]) not in crcs:
                    crcs[record] = zlib.crc32(self.bytes_of(entry))
                found[k] = zlib.crc32(PLACE.pack(*entry[1:]), crcs[record])
        return np.asarray(found == words["crc"])
