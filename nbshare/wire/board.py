"""The board of a call, in shared memory: who takes which items, and what is done.

::

    header   next item, stop flag, number of ranges given back, what the results are, prints,
             whether any item has failed, how often items have come after a pause, whether
             anything has been imported, how much of ``small`` is taken
    ranges   items that a dead worker had claimed and left for others
    slots    per worker: the items it is in the middle of, since when; its chunk; its figures; what
             the item reports of itself
    done     per item, 1 byte: 0 missing, 1 in the output array, 2 in a worker's log, 3 failed
    index    per item: which log, offset, bytes, place in the batch that is there; a row each
             (untouched, so free, while nothing is in a log)
    attempts per item: how often it has failed, or its worker died   (likewise)
    numbers  per item: the result, if results are numbers of 8 bytes at most   (likewise)
    small    the first log of all workers: what a call of few objects needs

Workers claim chunks by themselves (`nbshare.worker.claims`); the caller only reads. Each byte and
word has one writer at a time, and on x86-64 others see writes in their order: a result first, then
its ``done`` byte.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, suppress
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.memory import Segment, View, aligned, slab

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl

__all__ = [
    "FAILED",
    "IN_LOG",
    "IN_OUTPUT",
    "MILLIONTHS",
    "NOT_DONE",
    "NO_ITEM",
    "UNKNOWN",
    "Board",
    "FileLock",
    "give_back",
    "reported",
    "write_text",
]

NOT_DONE, IN_OUTPUT, IN_LOG, FAILED = 0, 1, 2, 3

# Header words.
NEXT, STOP, RETURNED, KIND, PRINTED, HURT, ROUND, IMPORTED, SMALL_TAKEN = range(9)
HEADER_WORDS = 16
RETURNED_PER_SLOT = 2  # a dead worker leaves one range, and those are claimed first
# Words of a slot; times in ns of the monotonic clock, which all processes share.
ITEM, ITEM_STOP, SINCE, CHUNK_START, CHUNK_STOP = range(5)
PID, BEGUN, LOADED, ENDED, WORKED, N_ITEMS, PEAK = range(5, 12)
SLOWEST = 12  # N_SLOWEST pairs of ns and item
N_SLOWEST = 3
REPORTED = SLOWEST + 2 * N_SLOWEST  # SINCE of the item that has reported (see `reports`)
FRACTION, REPORT_TEXT = REPORTED + 1, REPORTED + 2  # the text: all that is left
SLOT_WORDS = 32  # whole cache lines: two workers writing to one would slow each other down

UNKNOWN = 0  # as KIND: before the first result; as FRACTION: not told
MILLIONTHS = 1_000_000  # in which fractions are stored, from 1 on
CUT = "…".encode()
NO_ITEM = -1
ONE = 0  # as ITEM_STOP: the one after ITEM
NUMBER_BYTES = 8
# A worker's own log costs half a millisecond, which calls with few items would notice.
SMALL_BYTES = 20 << 10  # of the log on the board, at most
MOST_SMALL = 1024  # bytes of it per item
# Of the words `attempts`: the count, and a mark of items one of which has ended its worker.
ATTEMPTS, SUSPECT = (1 << 30) - 1, 1 << 30


class Board:
    """The shared state of one call.

    Parameters
    ----------
    segment : Segment
        Made by `Board.create`, or attached in a worker.
    offset : int
        Where in it the board lies, in bytes.
    n_tasks, n_slots : int
        Number of items, and of workers that may take part (replacements included).
    """

    def __init__(self, segment: Segment, offset: int, n_tasks: int, n_slots: int) -> None:
        self.segment, self.offset = segment, offset
        self.n_tasks, self.n_slots = n_tasks, n_slots
        self._memory = memoryview(segment)[offset:]
        self._array = View(self._memory).array
        self._places = _layout(n_tasks, n_slots)[0]
        # Words as in a memoryview are Python's numbers: NumPy's take three times as long.
        self.header = self._words(0, HEADER_WORDS)
        self.done = self._array(np.uint8, (n_tasks,), self._places[3])

    # Most calls do without some of these.

    @cached_property
    def returned(self) -> npt.NDArray[np.int64]:
        """Ranges given back."""
        return self._array(np.int64, (RETURNED_PER_SLOT * self.n_slots, 2), self._places[1])

    @cached_property
    def slots(self) -> npt.NDArray[np.int64]:
        """The rows of all workers."""
        return self._array(np.int64, (self.n_slots, SLOT_WORDS), self._places[2])

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        """Where results are that lie in logs."""
        return self._array(np.int64, (4, self.n_tasks), self._places[4])

    @cached_property
    def attempts(self) -> npt.NDArray[np.int32]:
        """How often items have failed."""
        return self._array(np.int32, (self.n_tasks,), self._places[6])

    @cached_property
    def small(self) -> memoryview:
        """The log that all workers share."""
        return self._memory[self._places[7] :][: _small_nbytes(self.n_tasks)]

    def take_small(self, nbytes: int, lock: AbstractContextManager[Any]) -> int | None:
        """Take room in the log that all workers share; returns where, None if it is full."""
        if self.header[SMALL_TAKEN] + nbytes > len(self.small):  # the lock takes far longer
            return None
        with lock:
            start = self.header[SMALL_TAKEN]
            if start + nbytes > len(self.small):
                return None
            self.header[SMALL_TAKEN] = start + nbytes
        return start

    def numbers(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the room for results that are numbers of `NUMBER_BYTES` at most."""
        return self._array(dtype, (self.n_tasks,), self._places[5])

    def row(self, slot: int) -> memoryview:
        """Return the words of a slot."""
        return self._words(self._places[2] + slot * SLOT_WORDS * 8, SLOT_WORDS)

    def _words(self, offset: int, n: int) -> memoryview:
        return self._memory[offset : offset + 8 * n].cast("q")

    def agree(self, kind: int, lock: AbstractContextManager[Any]) -> int:
        """Return what kind of results the call has: the first who asks decides, for good."""
        if not self.header[KIND]:
            with lock:
                if not self.header[KIND]:
                    self.header[KIND] = kind
        return self.header[KIND]

    @classmethod
    def create(cls, n_tasks: int, n_slots: int) -> Board:
        """Make an empty board."""
        board = cls(*slab.take(_layout(n_tasks, n_slots)[1]), n_tasks, n_slots)
        board.slots[:, ITEM] = NO_ITEM
        return board

    @property
    def is_idle(self) -> bool:
        """Whether nobody is in an item, or has anything to tell of one."""
        return bool((self.slots[:, ITEM] == NO_ITEM).all())

    def clear_slot(self, slot: int) -> None:
        """Make a slot ready for another worker."""
        self.slots[slot] = 0
        self.slots[slot, ITEM] = NO_ITEM

    def attempts_to_count(self, start: int, stop: int) -> npt.NDArray[np.int32]:
        """Return the words `attempts` of items one of which has failed, for the caller to count."""
        self.header[HURT] = 1
        return self.attempts[start:stop]

    def has_failed(self, start: int, stop: int) -> bool:
        """Whether one of these items has failed before."""
        # The flag saves the common case from reading, hence allocating, pages of `attempts`.
        return bool(self.header[HURT]) and bool(self.attempts[start:stop].any())

    def n_done(self, stop: int | None = None) -> int:
        """Count the results that are there, before `stop`; 20 µs for a million."""
        return int(np.count_nonzero(self.done[:stop]))

    def present(self) -> npt.NDArray[np.bool_]:
        """Return which results are there."""
        return np.isin(self.done, (IN_OUTPUT, IN_LOG))

    @property
    def n_unclaimed(self) -> int:
        """Number of items that nobody has claimed; ranges given back count as one."""
        return self.n_tasks - self.header[NEXT] + self.header[RETURNED]

    def has_waiting(self, n_items: int) -> bool:
        """Whether some of the first items have been neither claimed nor withdrawn."""
        return bool(self.header[RETURNED]) or not self.done[self.header[NEXT] : n_items].all()

    def withdraw(self, i: int) -> bool:
        """Mark an item as failed that nobody has claimed; returns whether it was so.

        Under the lock; chunks have to be of one item.
        """
        if self.is_claimed(i) or self.done[i]:
            return False
        self.done[i] = FAILED
        return True

    def withdraw_from(self, start: int) -> None:
        """Mark the items from `start` on as failed: they will not come."""
        self.done[start:] = FAILED

    def is_claimed(self, i: int) -> bool:
        """Whether a worker has claimed an item."""
        return i < self.header[NEXT]

    def next_claim(self) -> int:
        """Return the first item that is neither claimed nor withdrawn. Under the lock."""
        start = self.header[NEXT]
        while start < self.n_tasks and self.done[start]:
            start += 1
        return start

    def stop(self) -> None:
        """Ask workers to claim and begin nothing more."""
        self.header[STOP] = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self.header[STOP])

    def busy_since(self, slot: int) -> float | None:
        """Return when a worker began the item it is in, in s of the monotonic clock, or None."""
        item, _, since_ns = self.row(slot)[ITEM : SINCE + 1]
        return None if item == NO_ITEM else since_ns / 1e9

    def items_of(self, slot: int) -> range:
        """Return the items that a worker is in the middle of: one, several tiny ones, or none."""
        start, stop = self.row(slot)[ITEM : ITEM_STOP + 1]
        if start == NO_ITEM:
            return range(0)
        stop = stop or start + 1
        return range(start + self.n_done_in(start, stop), stop)

    def unbegun(self, slot: int) -> range:
        """Return what a worker that died had claimed and not begun."""
        item, after, _, start, stop = self.row(slot)[ITEM : CHUNK_STOP + 1]
        if item != NO_ITEM:
            start = after or item + 1
        return range(start + self.n_done_in(start, stop), stop)

    def has_begun(self, slot: int) -> bool:
        """Whether a worker has turned to the call."""
        return bool(self.row(slot)[PID])

    def idle_since(self, slot: int) -> float | None:
        """Return since when a worker has had nothing to do, in s of the monotonic clock, or None.

        A worker that has the function, that is, and is in no item.
        """
        row = self.row(slot)
        return max(row[LOADED], row[ENDED]) / 1e9 if row[LOADED] and row[ITEM] == NO_ITEM else None

    def loading_since(self, slot: int) -> float | None:
        """Return since when a worker loads the function, in s of the monotonic clock, or None."""
        begun_ns, loaded_ns = self.row(slot)[BEGUN : LOADED + 1]
        return begun_ns / 1e9 if begun_ns and not loaded_ns else None

    def has_prints(self) -> bool:
        """Whether a worker has printed what may not have been read yet."""
        return bool(self.header[PRINTED])

    def n_done_in(self, start: int, stop: int) -> int:
        """Count the results that are there of a chunk that is being run."""
        # Items of a chunk are done in their order.
        return int(np.count_nonzero(self.done[start:stop]))


def _small_nbytes(n_tasks: int) -> int:
    """Return how large the log on the board is, in bytes."""
    return min(MOST_SMALL * n_tasks, SMALL_BYTES)


@lru_cache(16)  # twice for each call, and small ones are much alike
def _layout(n_tasks: int, n_slots: int) -> tuple[tuple[int, ...], int]:
    """Return the offsets of the board's parts, and its size, in bytes."""
    sizes = [
        HEADER_WORDS * 8,
        RETURNED_PER_SLOT * n_slots * 16,
        n_slots * SLOT_WORDS * 8,
        n_tasks,
        n_tasks * 32,
        n_tasks * NUMBER_BYTES,
        n_tasks * 4,
        _small_nbytes(n_tasks),
    ]
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = aligned(end + size)
    return tuple(offsets), end


def give_back(board: Board, items: range, lock: AbstractContextManager[Any]) -> None:
    """Let others claim what a worker that died had claimed, and what is to be tried again."""
    if not items:
        return
    header, returned = board.header, board.returned
    with lock:
        n = header[RETURNED]
        # It may have died in the middle of its claim, so that nothing has been taken away yet.
        if items.start < header[NEXT] and items.start not in returned[:n, 0]:
            returned[n] = items.start, items.stop
            header[RETURNED] = n + 1


class FileLock:
    """A lock between processes, on one byte of a file, which the kernel releases if they die.

    The file is opened once per process and never mapped or closed: closing any descriptor of it
    would drop the lock. It does not exclude threads of one process.

    Parameters
    ----------
    fd : int
        Of the file.
    byte : int
        Its place in it; the file need not be as long.
    """

    def __init__(self, fd: int, byte: int) -> None:
        self._place = fd, byte

    def __enter__(self) -> None:
        fd, byte = self._place
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, byte)

    def __exit__(self, *_: object) -> None:
        fd, byte = self._place
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte)


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
