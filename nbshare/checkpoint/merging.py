"""Merges what several processes that shared a run have stored into its checkpoint."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint import files
from nbshare.checkpoint.files import read_json, runs_of
from nbshare.checkpoint.writer import PARTS, parts_of
from nbshare.wire.board import IN_LOG, IN_OUTPUT
from nbshare.wire.results import NUMBERS, OBJECTS, OutputSpec

if TYPE_CHECKING:
    from nbshare.checkpoint.directory import Directory

__all__ = ["loaded", "merge_parts", "spec_of"]

MOST_BYTES = 64 << 20  # of rows that are copied at a time


def loaded(path: Path) -> npt.NDArray[Any]:
    """Return what a ``.npy`` file holds, mapped; nothing if nothing has been written yet."""
    try:
        return np.asarray(np.load(path, mmap_mode="r"))
    except (FileNotFoundError, ValueError, EOFError):
        return np.zeros(0, np.int64)


def spec_of(folder: Path, kind: str | None) -> OutputSpec | None:
    """Return the form of the results of a checkpoint, given its kind in ``meta.json``."""
    if kind == "objects":
        return OBJECTS
    found = files.header_of(folder / "results.npy")
    if kind is None or found is None:
        return None
    number = {each.__name__: each for each in NUMBERS}.get(kind)
    return OutputSpec(found[1], found[2], number)


def merge_parts(directory: Directory) -> None:
    """Copy all results of the parts that a checkpoint has, and remove the parts."""
    rows = loaded(directory.path / "order.npy")
    for path in parts_of(directory.path):
        if (part := _Part(directory, path, rows)).is_any:
            part.merge()
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
        self._words = loaded(path / "index.npy")
        self.is_any = bool(len(self._words))

    def merge(self) -> None:
        """Copy what the checkpoint does not have; leave out what is damaged."""
        directory, words, rows = self._directory, self._words, self._rows
        is_there = np.isin(directory.words["state"][rows], (IN_OUTPUT, IN_LOG))
        is_new = (words["state"] > 0) & ~is_there
        self._states, self._crcs = words["state"].copy(), words["crc"].copy()
        self._is_whole = is_new.copy()
        kind = (read_json(self._path / "meta.json") or {}).get("results")
        if (spec := spec_of(self._path, kind)) is not None and is_new.any():
            directory.decide(spec)
            in_output = np.flatnonzero(is_new & (words["state"] == IN_OUTPUT))
            if directory.spec == spec:
                self._put_rows(in_output)
            else:
                self._put_as_objects(in_output, spec)
            self._put_records(np.flatnonzero(is_new & (words["state"] == IN_LOG)))
        new, numbers = np.flatnonzero(self._is_whole), directory.versions.adopt(self._path)
        directory.commit(
            rows[new],
            self._states[new],
            words["attempts"][new],
            self._crcs[new],
            (numbers[words["code"][new]], loaded(self._path / "when.npy")[new]),
        )
        if (errors := self._path / "errors.jsonl").exists():
            for line in errors.read_text().splitlines():
                if line.endswith("}"):
                    directory.note_error(json.loads(line))

    def _put_rows(self, items: npt.NDArray[np.int64]) -> None:
        results, rows = loaded(self._path / "results.npy"), self._rows
        step = max(1, MOST_BYTES // max(1, results[:1].nbytes))
        for run in runs_of(items, rows[items]):
            for k in range(run.start, run.stop, step):
                some = items[k : min(k + step, run.stop)]
                values = results[some[0] : some[-1] + 1]
                self._crcs[some] = self._directory.put_rows(int(rows[some[0]]), values)
        self._is_whole[items] = self._crcs[items] == self._words["crc"][items]

    def _put_as_objects(self, items: npt.NDArray[np.int64], spec: OutputSpec) -> None:
        """Store arrays or numbers that do not fit those of the checkpoint."""
        if not len(items):
            return
        results, places, crcs = loaded(self._path / "results.npy"), [], []
        for i in items.tolist():
            value = results[i]
            self._is_whole[i] = zlib.crc32(np.asarray(value).tobytes()) == self._words["crc"][i]
            whole = np.array(value)[()] if spec.number is None else spec.number(value)
            record = pickle.dumps(whole, 5)
            start, crc = self._directory.put_record(memoryview(record))
            places.append((start, len(record), -1))
            crcs.append(crc)
        self._note_places(items, places, crcs)
        self._states[items] = IN_LOG

    def _put_records(self, items: npt.NDArray[np.int64]) -> None:
        if not len(items):
            return
        old, places, crcs = loaded(self._path / "objects.npy")[items], [], []
        records: dict[int, tuple[int, int]] = {}  # of items that are stored together
        with open(self._path / "objects.log", "rb") as log:
            for i, place in zip(items.tolist(), old, strict=True):
                start, nbytes, k = place.tolist()
                if start not in records:
                    record = os.pread(log.fileno(), abs(nbytes), start)
                    records[start] = self._directory.put_record(memoryview(record))
                start, crc = records[start]
                self._is_whole[i] = zlib.crc32(place.tobytes(), crc) == self._words["crc"][i]
                places.append((start, nbytes, k))
                crcs.append(crc)
        self._note_places(items, places, crcs)

    def _note_places(
        self, items: npt.NDArray[np.int64], places: list[tuple[int, int, int]], crcs: list[int]
    ) -> None:
        rows = self._rows[items]
        self._crcs[items] = self._directory.put_places(rows, np.array(places, "<i8"), crcs)
