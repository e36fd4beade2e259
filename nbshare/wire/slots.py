"""The words of a worker's row of the board: what it does, and has done, and reports."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

__all__ = [
    "MILLIONTHS",
    "NO_ITEM",
    "busy_since",
    "has_begun",
    "idle_since",
    "loading_since",
    "reported",
    "write_text",
]

# Words of a slot; times in ns of the monotonic clock, which all processes share.
ITEM, ITEM_STOP, SINCE, CHUNK_START, CHUNK_STOP = range(5)
PID, BEGUN, LOADED, ENDED, WORKED, N_ITEMS, PEAK = range(5, 12)
SLOWEST = 12  # N_SLOWEST pairs of ns and item
N_SLOWEST = 3
REPORTED = SLOWEST + 2 * N_SLOWEST  # SINCE of the item that has reported (see `reports`)
FRACTION, REPORT_TEXT = REPORTED + 1, REPORTED + 2  # the text: all that is left
SLOT_WORDS = 32  # whole cache lines: two workers writing to one would slow each other down

UNKNOWN = 0  # as FRACTION: not told
MILLIONTHS = 1_000_000  # in which fractions are stored, from 1 on
CUT = "…".encode()
NO_ITEM = -1
ONE = 0  # as ITEM_STOP: the one after ITEM


def busy_since(row: Sequence[int]) -> float | None:
    """Return when a worker began the item it is in, in s of the monotonic clock, or None."""
    return None if row[ITEM] == NO_ITEM else row[SINCE] / 1e9


def has_begun(row: Sequence[int]) -> bool:
    """Whether a worker has turned to the call."""
    return bool(row[PID])


def idle_since(row: Sequence[int]) -> float | None:
    """Return since when a worker has had nothing to do, in s of the monotonic clock, or None.

    A worker that has the function, that is, and is in no item.
    """
    return max(row[LOADED], row[ENDED]) / 1e9 if row[LOADED] and row[ITEM] == NO_ITEM else None


def loading_since(row: Sequence[int]) -> float | None:
    """Return since when a worker loads the function, in s of the monotonic clock, or None."""
    return row[BEGUN] / 1e9 if row[BEGUN] and not row[LOADED] else None


def reported(row: Sequence[int]) -> tuple[float | None, str]:
    """Read what the item that a worker is in has reported: fraction, if any, and text."""
    if row[REPORTED] != row[SINCE]:
        return None, ""
    fraction = None if row[FRACTION] == UNKNOWN else (row[FRACTION] - 1) / MILLIONTHS
    data = np.array(row[REPORT_TEXT:], np.int64).tobytes()
    return fraction, data.rstrip(b"\0").decode("utf-8", "ignore")


def write_text(row: memoryview, text: str) -> None:
    """Write a text into a worker's row."""
    place = row[REPORT_TEXT:].cast("B")
    place[:] = _encoded(text, len(place))


def _encoded(text: str, nbytes: int) -> bytes:
    """Return a text in so many bytes of UTF-8, filled up or cut."""
    data = text[: nbytes + 1].encode("utf-8", "replace")
    if len(data) > nbytes:
        data = data[: nbytes - len(CUT)] + CUT
    return data.ljust(nbytes, b"\0")
