"""Reads the rows of a checkpoint, or of a part of one, as they are now."""

from __future__ import annotations

import io
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from nbshare._core.checkpoint.items import ITEMS, Pairs, pairs_in
from nbshare._core.checkpoint.writer import PARTS, part_folders
from nbshare._core.store.files import Table, damaged, read, unsealed
from nbshare._core.store.reading import STORED, StoredRows
from nbshare._core.store.rows import INDEX, RowNumbers

ITEMS_FILE, ORDER_FILE, ERRORS_FILE = "items.npy", "order.npy", "errors.jsonl"
CRC_BYTES = 4  # size of the checksum at the end of order.npy

T = TypeVar("T")


class Whole(NamedTuple):
    """The contents of a checkpoint, including the parts of processes that share its run."""

    order: RowNumbers  # the row of each item of the last call
    readers: list[RowReader]
    # By row: the index word, the number of its reader, and the row there.
    words: npt.NDArray[Any]
    which: npt.NDArray[np.int64]
    place: RowNumbers

    @property
    def states(self) -> npt.NDArray[np.uint8]:
        """The state of each item of the last call."""
        return np.asarray(self.words["state"][self.order])

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """A flag per item of the last call, True if its result is stored."""
        return np.isin(self.states, STORED)

    def places(
        self, wanted: npt.NDArray[np.bool_]
    ) -> Iterator[tuple[RowReader, RowNumbers, RowNumbers]]:
        """Yield where the results of some items are: a reader, the items, and their rows in it.

        Results that were stored together are consecutive, so that they are loaded once.
        """
        for k, reader in enumerate(self.readers):
            items = np.flatnonzero(wanted & (self.which[self.order] == k))
            if len(items):
                rows = self.order[items]
                by_place = np.argsort(self.words["at"][rows, 0], kind="stable")
                yield reader, items[by_place], self.place[rows[by_place]]

    def objects(self, wanted: npt.NDArray[np.bool_]) -> Iterator[tuple[int, Any]]:
        """Yield some items and their results, one by one."""
        for reader, items, places in self.places(wanted):
            yield from reader.objects(items, places, self.words[self.order[items]])


def whole_of(folder: Path, checked: dict[Path, npt.NDArray[Any]] | None = None) -> Whole:
    """Return the results that are stored now.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    checked : dict, optional
        The index words of results that were checked before, by folder. Other results are checked,
        and added. Without `checked`, the index is trusted.
    """
    return look(folder, lambda: _whole_of(folder, checked))


def look(folder: Path, read: Callable[[], T]) -> T:
    """Call `read` on a checkpoint, again if its parts were removed meanwhile. Return its result.

    Another process may merge and remove the parts at any time.
    """
    while True:
        parts = part_folders(folder)
        try:
            found = read()
        except Exception:
            if all(part.exists() for part in parts):
                raise
        else:
            if all(part.exists() for part in parts):
                return found


def _whole_of(folder: Path, checked: dict[Path, npt.NDArray[Any]] | None) -> Whole:
    readers = list(map(RowReader, (folder, *part_folders(folder))))
    found = [reader.words() for reader in readers]
    if checked is not None:
        for k, reader in enumerate(readers):
            found[k] = reader.checked(found[k], checked.get(reader.folder, found[k][:0]))
            checked[reader.folder] = found[k]
    order, words = readers[0].order(), found[0]
    n_items = int(order.max(initial=-1)) + 1
    words = np.append(words, np.zeros(max(0, n_items - len(words)), INDEX))
    which, place = np.zeros(len(words), np.int64), np.arange(len(words))
    for k, part in enumerate(found[1:], 1):
        part = part[: len(order)]
        is_here = np.isin(words["state"][order[: len(part)]], STORED)
        new = np.flatnonzero((part["state"] > 0) & ~is_here)
        rows = order[new]
        words[rows], which[rows], place[rows] = part[new], k, new
    return Whole(order, readers, words, which, place)


class RowReader(StoredRows):
    """Reads the rows of a checkpoint, or of a part of one, and the records of their items."""

    def order(self) -> RowNumbers:
        """Return the row of each item of the last call. A generator stores them at its end."""
        path, order = self.folder / ORDER_FILE, np.zeros(0, np.int64)
        data = read(path)
        told = int.from_bytes((data or b"")[-CRC_BYTES:])
        if data and len(data) > CRC_BYTES and zlib.crc32(data[:-CRC_BYTES]) == told:
            order = np.load(io.BytesIO(data)).astype(np.int64)
        elif data is not None or len(self.digests()):
            why = "it is missing" if data is None else "its checksum differs"
            remedy = "Make the same call again, which rewrites it"
            if (self.folder / PARTS).exists():
                remedy += f", without {self.folder / PARTS}: its items run again"
            raise damaged(path, why, f"{remedy}.")
        return order if len(order) else np.flatnonzero(self.digests().any(axis=-1))

    def digests(self) -> Pairs:
        """Return the digest of the item of each row, zeros for damaged ones."""
        return pairs_in(Table(self.folder / ITEMS_FILE, *ITEMS, remedy="").load())

    def errors(self) -> list[dict[str, Any]]:
        """Return the records of failed items, the latest last. A crash may have truncated some."""
        records = []
        for line in (read(self.folder / ERRORS_FILE) or b"").splitlines():
            with suppress(ValueError):
                records.append(unsealed(line))
        return records
