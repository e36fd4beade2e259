"""Digests of items, by which their results are found anywhere in a sweep."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.checkpoint.digests import SIZE, Digests, digest

Pairs = npt.NDArray[np.uint64]  # the digests of n items, shape (n, 2)
LIMIT = 2**63  # for an int that fits a digest
STEP = 0x9E3779B97F4A7C15  # odd, without a pattern of bits
ITEMS = np.dtype("<u8"), (3,)  # a row of the file: the digest of its item, and a check of it


def as_bytes(pairs: Pairs) -> list[bytes]:
    """Return digests as a list of bytes."""
    return list(np.ascontiguousarray(pairs).view(f"V{SIZE}").ravel().tolist())


def _mixed(pairs: Pairs) -> npt.NDArray[np.uint64]:
    """Return one number per digest, because numbers are quick to sort and search."""
    mixed: npt.NDArray[np.uint64] = pairs[:, 0] * np.uint64(STEP) ^ pairs[:, 1]
    return mixed


def as_rows(pairs: Pairs) -> npt.NDArray[np.uint64]:
    """Return digests as rows of the file, with a check, so that damaged ones match no item."""
    return np.column_stack([pairs, ~_mixed(pairs)])


def pairs_in(rows: npt.NDArray[np.uint64]) -> Pairs:
    """Return the digests in rows of the file, zeros where they are damaged or missing."""
    is_whole = rows[:, 2] == ~_mixed(rows)
    return np.where(is_whole[:, None], rows[:, :2], np.uint64(0))


class Lookup:
    """Finds digests among stored ones.

    Parameters
    ----------
    pairs : ndarray
        The stored digests. Of equal ones, the first is found.
    """

    def __init__(self, pairs: Pairs) -> None:
        self._pairs = pairs
        mixed = _mixed(pairs)
        self._order = np.argsort(mixed, kind="stable")
        self._sorted = mixed[self._order]

    def find(self, wanted: Pairs) -> npt.NDArray[np.int64]:
        """Return the index of each digest, or -1 if it is missing."""
        if not len(self._pairs):
            return np.full(len(wanted), -1)
        places = np.searchsorted(self._sorted, _mixed(wanted))
        found = self._order[np.minimum(places, len(self._order) - 1)]
        # If two digests had the same number, which is very unlikely, an item would run again.
        is_there = (self._pairs[found] == wanted).all(axis=1)
        return np.where(is_there, found, -1)


class ItemDigests:
    """The digests of the items of a call, as they arrive.

    Parameters
    ----------
    digests : Digests
        The digests of single values.
    is_seeded : bool
        Whether results also depend on the indices of items.
    columns : sequence, optional
        The items of each iterable, if all are known.

    Attributes
    ----------
    odd : set of str
        The attribute of `Digests`, for items.
    """

    def __init__(
        self, digests: Digests, *, is_seeded: bool, columns: Sequence[Any] | None = None
    ) -> None:
        self._digests, self._is_seeded, self._has_all = digests, is_seeded, columns is not None
        self._counts: dict[bytes, int] = {}  # counts of the digests so far
        digests.odd = self.odd = set[str]()
        self._all: Pairs | None = None
        self._all = self.next(columns) if columns is not None else None

    def next(self, columns: Sequence[Any], first: int = 0) -> Pairs:
        """Return the digests of the next items, which begin at `first`.

        Equal items get different digests.
        """
        if self._all is not None:
            return self._all
        parts = [self._column(column, first) for column in columns]
        pairs = parts[0]
        if len(parts) > 1:
            hashed = b"".join(map(digest, *map(as_bytes, parts)))
            pairs = np.frombuffer(hashed, np.uint64).reshape(-1, 2)
        if self._is_seeded:
            return _shifted(pairs, np.arange(first, first + len(pairs)))
        mixed = np.sort(_mixed(pairs))
        if self._has_all and not (mixed[1:] == mixed[:-1]).any():
            return pairs  # no item occurs twice
        counts, places = self._counts, []
        for key in as_bytes(pairs):
            places.append(n := counts.get(key, 0))
            counts[key] = n + 1
        return _shifted(pairs, np.array(places, np.int64))

    def _column(self, column: Any, first: int) -> Pairs:
        """Return the digests of the values of one iterable."""
        if isinstance(column, np.ndarray) and column.ndim == 1 and _is_short(column):
            return _tagged(f"scalar {column.dtype.str}", column)
        pairs = np.zeros((len(column), 2), np.uint64)
        places = defaultdict[str, list[int]](list)
        for i, x in enumerate(column):
            places[_tag_of(x)].append(i)
        for tag, some in places.items():  # the digest of a number does not depend on other values
            if tag:
                pairs[some] = _tagged(tag, np.array([column[i] for i in some]))
            else:
                found = b"".join([self._digests.of(column[i], f"item {first + i}") for i in some])
                pairs[some] = np.frombuffer(found, np.uint64).reshape(-1, 2)
        return pairs


def _is_short(x: Any) -> bool:
    """Return whether a NumPy number, or each number of an array, fits a digest."""
    return x.dtype.kind in "biufmM" and x.dtype.itemsize <= 8


def _tag_of(x: Any) -> str:
    """Return the name of a number's type if the number fits a digest, else ""."""
    if type(x) is float or (type(x) is int and -LIMIT <= x < LIMIT):
        return type(x).__name__
    return f"scalar {x.dtype.str}" if isinstance(x, np.generic) and _is_short(x) else ""


def _tagged(tag: str, values: npt.NDArray[Any]) -> Pairs:
    """Return digests that contain the numbers themselves."""
    pairs = np.zeros((len(values), 2), np.uint64)
    pairs[:, 0] = int.from_bytes(digest(tag.encode())[:8], "little")
    pairs[:, 1] = np.ascontiguousarray(values).view(f"u{values.itemsize}")
    return pairs


def _shifted(pairs: Pairs, by: npt.NDArray[np.int64]) -> Pairs:
    """Return digests changed by numbers: differently by each number, and not by 0."""
    shifts = by.astype(np.uint64) * np.uint64(STEP)
    return np.stack([pairs[:, 0] + shifts, pairs[:, 1]], axis=1)
