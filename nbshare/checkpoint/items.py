"""A digest for each item, by which its result is found again wherever it is in a sweep."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.digests import SIZE, Digests, digest

Pairs = npt.NDArray[np.uint64]  # (n, 2): the digests of n items
STEP = 0x9E3779B97F4A7C15  # odd and without a pattern


def as_bytes(pairs: npt.NDArray[Any]) -> list[bytes]:
    """Return digests one by one."""
    return list(np.ascontiguousarray(pairs).view(f"V{SIZE}").ravel().tolist()) if len(pairs) else []


def numbered(pairs: npt.NDArray[Any]) -> dict[bytes, int]:
    """Return the place of each digest."""
    return {key: place for place, key in enumerate(as_bytes(pairs))}


def find(pairs: Pairs, places: dict[bytes, int]) -> npt.NDArray[np.int64]:
    """Return the place of each of these digests; -1: it has none."""
    return np.array([places.get(key, -1) for key in as_bytes(pairs)], np.int64)


class ItemDigests:
    """The digests of the items of a call, as they come.

    Parameters
    ----------
    digests : Digests
        Of single values.
    is_seeded : bool
        Whether a result depends on the item's index, too.
    """

    def __init__(self, digests: Digests, *, is_seeded: bool) -> None:
        self._digests, self._is_seeded = digests, is_seeded
        self._counts: dict[bytes, int] = {}  # of those so far

    def next(self, columns: Sequence[Any], first: int = 0, *, is_last: bool = True) -> Pairs:
        """Return the digests of items from the index `first` on; of equal ones others each time.

        `is_last`: whether no more will be asked for.
        """
        parts = [self._column(column, first) for column in columns]
        pairs = parts[0]
        if len(parts) > 1:
            hashed = b"".join(map(digest, *map(as_bytes, parts)))
            pairs = np.frombuffer(hashed, np.uint64).reshape(-1, 2)
        if self._is_seeded:
            return _shifted(pairs, np.arange(first, first + len(pairs)))
        keys, counts, places = as_bytes(pairs), self._counts, []
        if is_last and not first and len(set(keys)) == len(keys):
            return pairs  # no item occurs twice
        for key in keys:
            places.append(n := counts.get(key, 0))
            counts[key] = n + 1
        return _shifted(pairs, np.array(places, np.int64))

    def _column(self, column: Any, first: int) -> Pairs:
        """Return the digests of what one iterable gives to the items."""
        if isinstance(column, np.ndarray):
            if column.ndim == 1 and column.dtype.kind in "biufmM" and column.itemsize <= 8:
                return _tagged(f"scalar {column.dtype.str}", column)
        elif (kinds := {int} if isinstance(column, range) else set(map(type, column))) == {float}:
            return _tagged("float", np.array(column, np.float64))
        elif kinds == {int}:
            with suppress(OverflowError):
                return _tagged("int", np.array(column, np.int64))
        of = self._digests.of
        found = b"".join([of(x, f"item {i}") for i, x in enumerate(column, first)])
        return np.frombuffer(found, np.uint64).reshape(-1, 2)


def _tagged(tag: str, values: npt.NDArray[Any]) -> Pairs:
    """Return digests of numbers that hold the numbers themselves."""
    pairs = np.zeros((len(values), 2), np.uint64)
    pairs[:, 0] = int.from_bytes(digest(tag.encode())[:8], "little")
    plain = np.ascontiguousarray(values)
    raw = np.zeros((len(values), 8), np.uint8)
    raw[:, : plain.itemsize] = plain.view(np.uint8).reshape(len(values), plain.itemsize)
    pairs[:, 1] = raw.view(np.uint64).ravel()
    return pairs


def _shifted(pairs: Pairs, by: npt.NDArray[np.int64]) -> Pairs:
    """Return other digests: for each number another one, for 0 the same."""
    shifts = by.astype(np.uint64) * np.uint64(STEP)
    return np.stack([pairs[:, 0] + shifts, pairs[:, 1]], axis=1)
