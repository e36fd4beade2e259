"""A digest for each item, by which its result is found again wherever it is in a sweep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.digests import SIZE, Digests, digest

__all__ = ["ItemDigests", "as_bytes"]

Pairs = npt.NDArray[np.uint64]  # (n, 2): the digests of n items
_ODD = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def as_bytes(pairs: Pairs) -> list[bytes]:
    """Return digests one by one."""
    return list(np.ascontiguousarray(pairs).view(f"V{SIZE}").ravel().tolist()) if len(pairs) else []


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
        self._counts: Counter[bytes] = Counter()

    def next(self, columns: Sequence[Any], first: int) -> Pairs:
        """Return the digests of items from the index `first` on; of equal ones others each time."""
        parts = [self._column(column, first) for column in columns]
        n = len(columns[0])
        if self._is_seeded:
            parts.append(_tagged("seeded", np.arange(first, first + n)))
            return _mixed(parts)
        return self._distinct(parts[0] if len(parts) == 1 else _mixed(parts))

    def _distinct(self, pairs: Pairs) -> Pairs:
        keys = as_bytes(pairs)
        new = set(keys)
        if len(new) == len(keys) and new.isdisjoint(self._counts):
            self._counts.update(keys)
            return pairs
        places = []
        for key in keys:
            places.append(self._counts[key])
            self._counts[key] += 1
        again = np.array(places)
        mixed = _mixed([pairs, _tagged("again", again)])
        return np.where((again > 0)[:, None], mixed, pairs)

    def _column(self, column: Any, first: int) -> Pairs:
        """Return the digests of what one iterable gives to the items."""
        if isinstance(column, range):
            ends = [*column[:1], *column[-1:]]
            if all(-(1 << 63) <= x < 1 << 63 for x in ends):
                return _tagged("int", np.array(column, np.int64))
        elif isinstance(column, np.ndarray):
            if column.ndim == 1 and column.dtype.kind in "biufmM" and column.itemsize <= 8:
                return _tagged(f"scalar {column.dtype.str}", column)
        elif (kinds := set(map(type, column))) == {float}:
            return _tagged("float", np.array(column, np.float64))
        elif kinds == {int} and all(-(1 << 63) <= x < 1 << 63 for x in column):
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


def _mixed(parts: Sequence[Pairs]) -> Pairs:
    """Return one digest of several, all at the same time: a hash of each would take 1 µs."""
    low = np.zeros(len(parts[0]), np.uint64)
    high = np.full(len(parts[0]), len(parts), np.uint64)
    for part in parts:
        low = _spread(low * _ODD[0] + part[:, 0] + (high >> np.uint64(7)))
        high = _spread(high * _ODD[1] + part[:, 1] + low)
        low = _spread(low + high)
    return np.stack([low, high], axis=1)


def _spread(words: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Have each bit of a word change about half of the others (splitmix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
