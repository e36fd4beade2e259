"""Merges what several processes that shared a run have stored into its checkpoint."""

from __future__ import annotations

import json
import os
import pickle
import secrets
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint import files
from nbshare.checkpoint.files import read_json, runs_of
from nbshare.checkpoint.writer import PARTS, parts_of
from nbshare.errors import CheckpointInUseError
from nbshare.wire.board import FAILED, IN_LOG, IN_OUTPUT
from nbshare.wire.results import NUMBERS, OBJECTS, OutputSpec

if TYPE_CHECKING:
    from nbshare.checkpoint.directory import Directory

__all__ = ["loaded", "merge_parts", "spec_of"]

Items: TypeAlias = npt.NDArray[np.int64]

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
        if len(words := loaded(path / "index.npy")):
            _merge(directory, path, rows, words)
    directory.sync()
    # At once: a process that is late finds its part either in its place or not at all.
    (directory.path / PARTS).rename(directory.path / f".{PARTS}.{secrets.token_hex(4)}")
    for old in directory.path.glob(f".{PARTS}.*"):
        shutil.rmtree(old, ignore_errors=True)


def _merge(directory: Directory, path: Path, rows: Items, words: npt.NDArray[Any]) -> None:
    """Copy what the checkpoint does not have, but not what is damaged.

    `rows`: the row of each item there; `words`: the index of the part.
    """
    is_there = np.isin(directory.words["state"][rows], (IN_OUTPUT, IN_LOG))
    is_new = (words["state"] > 0) & ~is_there
    states, crcs = words["state"].copy(), words["crc"].copy()
    spec = spec_of(path, (read_json(path / "meta.json") or {}).get("results"))
    if spec is not None and is_new.any():
        directory.decide(spec)
        results = loaded(path / "results.npy")
        is_row = is_new & (states == IN_OUTPUT) & (directory.spec == spec)
        crcs[is_row] = _copy_rows(directory, results, np.flatnonzero(is_row), rows)
        is_new &= crcs == words["crc"]
        others = np.flatnonzero(is_new & ~is_row & (states != FAILED))
        found = _objects_of(path, others, words, results, spec)
        is_new[others], crcs[others] = _copy_objects(directory, found, rows[others])
        states[others] = IN_LOG
    new, numbers = np.flatnonzero(is_new), directory.versions.adopt(path)
    origin = numbers[words["code"][new]], loaded(path / "when.npy")[new]
    directory.commit(rows[new], states[new], words["attempts"][new], crcs[new], origin)
    if (errors := path / "errors.jsonl").exists():
        for line in errors.read_text().splitlines():
            if line.endswith("}"):
                directory.note_error(json.loads(line))


def _hold(directory: Directory) -> None:
    """Renew the lease: copying may take long."""
    if not directory.is_there():
        raise CheckpointInUseError(f"{directory.path}: another process has taken it over")


def _copy_rows(directory: Directory, results: Any, items: Items, rows: Items) -> list[int]:
    """Copy rows of an array; return their checksums."""
    crcs: list[int] = []
    step = max(1, MOST_BYTES // max(1, results[:1].nbytes))
    for run in runs_of(items, rows[items]):
        for k in range(run.start, run.stop, step):
            _hold(directory)
            some = items[k : min(k + step, run.stop)]
            values = results[some[0] : some[-1] + 1]
            crcs += directory.put_rows(int(rows[some[0]]), values).tolist()
    return crcs


def _objects_of(
    path: Path, items: Items, words: Any, results: Any, spec: OutputSpec
) -> Iterator[tuple[bytes, int, int, bool]]:
    """Yield the record of each result, its signed size, its place in it, and whether it is whole.

    Of numbers and arrays too, which do not fit those of the checkpoint.
    """
    places = loaded(path / "objects.npy")
    log = os.open(path / "objects.log", os.O_RDONLY) if len(places) else -1
    for i in items.tolist():
        if words["state"][i] == IN_LOG:
            start, nbytes, place = places[i].tolist()
            record = os.pread(log, abs(nbytes), start)
            crc = zlib.crc32(places[i].tobytes(), zlib.crc32(record))
        else:
            value = np.array(results[i])[()]
            record = pickle.dumps(value if spec.number is None else spec.number(value), 5)
            nbytes, place, crc = len(record), -1, zlib.crc32(np.asarray(results[i]).tobytes())
        yield record, nbytes, place, crc == words["crc"][i]
    if log >= 0:
        os.close(log)


def _copy_objects(directory: Directory, found: Any, rows: Items) -> tuple[list[bool], Any]:
    """Copy records; return whether each is whole, and their checksums."""
    are_whole, places, crcs = [], [], []
    before = b"", (0, 0)
    for record, nbytes, place, is_whole in found:
        _hold(directory)
        if record != before[0]:  # else of items that are stored together
            before = record, directory.put_record(memoryview(record))
        start, crc = before[1]
        are_whole.append(is_whole)
        places.append((start, nbytes, place))
        crcs.append(crc)
    return are_whole, directory.put_places(rows, np.array(places, "<i8"), crcs) if places else []
