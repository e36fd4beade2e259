"""Reads the rows of a checkpoint, or of a part of one, as they are at that moment."""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.files import header_of, read_current, read_json, size_of
from nbshare.checkpoint.writer import parts_of
from nbshare.memory import Segment
from nbshare.memory.descriptors import opened
from nbshare.wire.board import IN_LOG, IN_OUTPUT
from nbshare.wire.results import NUMBERS, OBJECTS, Entry, LogReader, OutputSpec
from nbshare.wire.rows import (
    INDEX,
    INDEX_FILE,
    LOG_BIT,
    RESULTS_FILE,
    checksums,
    log_file,
)

MOST_BYTES = 64 << 20  # of rows that are copied at a time
ERRORS_FILE = "errors.jsonl"
STORED = IN_OUTPUT, IN_LOG  # states of rows that have a result

Rows = npt.NDArray[np.int64]


class Whole(NamedTuple):
    """What is stored in a checkpoint, and in the parts of processes that share its run."""

    order: Rows  # of each item of the last call
    readers: list[RowReader]
    # By row: the index word, its reader, and the place there.
    words: npt.NDArray[Any]
    source: npt.NDArray[np.int64]
    place: Rows

    @property
    def states(self) -> npt.NDArray[np.uint8]:
        """The state of each item of the last call."""
        return np.asarray(self.words["state"][self.order])

    def places(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[RowReader, Rows, Rows]]:
        """Yield where the results of some items are: a reader, the items, and their places there.

        Those that were stored together come one after the other: then they are loaded once.
        """
        for k, reader in enumerate(self.readers):
            items = np.flatnonzero(wanted & (self.source[self.order] == k))
            if len(items):
                rows = self.order[items]
                by_place = np.argsort(self.words["at"][rows, 0], kind="stable")
                yield reader, items[by_place], self.place[rows[by_place]]

    def objects(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Any]]:
        """Yield the results of some items, one by one, with their indices."""
        for reader, items, places in self.places(wanted):
            yield from zip(items.tolist(), reader.objects(places, self.states[items]), strict=True)


def copy_rows(target: npt.NDArray[Any], places: Rows, source: npt.NDArray[Any], rows: Rows) -> None:
    """Copy rows of an array to places in another, some at a time: all may be as large as memory."""
    step = max(1, MOST_BYTES // max(1, target[:1].nbytes))
    for k in range(0, len(rows), step):
        target[places[k : k + step]] = source[rows[k : k + step]]


def whole_of(folder: Path) -> Whole:
    """Return what is stored at this moment."""
    readers = list(map(RowReader, (folder, *parts_of(folder))))
    order = readers[0].order()
    words = readers[0].words()
    words = np.append(words, np.zeros(max(0, order.max(initial=-1) + 1 - len(words)), INDEX))
    source, place = np.zeros(len(words), np.int64), np.arange(len(words))
    for k, part in enumerate(readers[1:], 1):
        found = part.words()[: len(order)]
        is_here = np.isin(words["state"][order[: len(found)]], STORED)
        new = np.flatnonzero((found["state"] > 0) & ~is_here)
        rows = order[new]
        words[rows], source[rows], place[rows] = found[new], k, new
    return Whole(order, readers, words, source, place)


class RowReader:
    """Reads rows.

    Parameters
    ----------
    folder : Path
        The folder with their files.

    Attributes
    ----------
    logs : LogReader
        Has the logs in which `entries` are, by their numbers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.logs = folder, LogReader()

    def load(self, name: str) -> npt.NDArray[Any]:
        """Return what a ``.npy`` file holds, mapped; nothing if nothing has been written yet."""
        try:
            mapped = read_current(partial(np.load, mmap_mode="r"), self.folder / name)
            return np.asarray(mapped)
        except (FileNotFoundError, ValueError, EOFError):
            return np.zeros(0, np.int64)

    def order(self) -> Rows:
        """Return the row of each item of the last call; a generator's are known in the end."""
        order = self.load("order.npy")
        return order if len(order) else np.flatnonzero(self.load("items.npy").any(axis=-1))

    def words(self) -> npt.NDArray[Any]:
        """Return the index, mapped."""
        words = self.load(INDEX_FILE)
        return words if words.dtype == INDEX else np.zeros(0, INDEX)

    def errors(self) -> list[dict[str, Any]]:
        """Return the failures of items, the last ones last."""
        with suppress(FileNotFoundError):
            lines = read_current(Path.read_text, self.folder / ERRORS_FILE).splitlines()
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
        """Return the place of each result that fits no array, in one of the `logs`."""
        columns = _in_logs(self.words()["at"][rows])
        for number in np.unique(columns[0]).tolist():
            file = opened(os.open, self.folder / log_file(number), os.O_RDONLY | os.O_CLOEXEC)
            self.logs.add(number, Segment.attach(file, "c"))
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def objects(self, rows: Rows, states: npt.NDArray[np.uint8]) -> Iterator[Any]:
        """Yield results one by one."""
        results, entries = self.load(RESULTS_FILE), iter(self.entries(rows[states == IN_LOG]))
        is_number = (spec := self.spec) is not None and spec.number is not None
        for row, state in zip(rows.tolist(), states.tolist(), strict=True):
            if state == IN_LOG:
                yield self.logs.load(row, next(entries))
            else:
                yield results[row].item() if is_number else results[row]

    # ------------------------------------------------------------------------ checks

    def are_there(self, rows: Rows, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether the files are long enough for the results of some rows, with these words."""
        is_there = (words["state"] != IN_OUTPUT) | (rows < len(self.load(RESULTS_FILE)))
        is_logged = words["state"] == IN_LOG
        numbers, starts, sizes, _ = _in_logs(words["at"][is_logged])
        logs, which = np.unique(numbers, return_inverse=True)
        ends = np.array([size_of(self.folder / log_file(number)) for number in logs.tolist()])
        is_there[is_logged] = (sizes != 0) & (starts + np.abs(sizes) <= ends[which])
        return np.asarray(is_there)

    def are_whole(self, rows: Rows, words: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether the results of some rows have the checksums of their index words."""
        is_there, found = self.are_there(rows, words), np.zeros(len(rows), np.uint32)
        there = np.flatnonzero(is_there & (words["state"] == IN_OUTPUT))
        found[there] = checksums(self.load(RESULTS_FILE), rows[there].tolist())
        logged = np.flatnonzero(is_there & (words["state"] == IN_LOG))
        crcs: dict[Any, int] = {}  # of records, each of one or more results
        for k, entry in zip(logged.tolist(), self.entries(rows[logged]), strict=True):
            if (record := entry[:3]) not in crcs:
                crcs[record] = zlib.crc32(self.logs.bytes_of(entry))
            found[k] = zlib.crc32(words["at"][k].tobytes(), crcs[record])
        return np.asarray(is_there & (found == words["crc"]))


def _in_logs(at: npt.NDArray[Any]) -> tuple[Rows, ...]:
    """Return the log, offset, size and place in the batch that index words tell."""
    starts, sizes, places = at.T
    return *np.divmod(starts, 1 << LOG_BIT), sizes, places
