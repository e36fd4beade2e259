"""The board of a call, in shared memory: who takes which items, and what is done.

::

    header   next item, stop flag, number of ranges given back
    ranges   items that a dead worker had claimed and not begun
    slots    per worker: the item it is working on, its chunk
    done     per item, 1 byte: 0 missing, 1 in the output array, 2 in a worker's log
    index    per item: which log, offset, bytes   (untouched, so free, while nothing is in a log)

Workers claim chunks by themselves under a file lock, which the kernel releases if its holder
dies; the caller only reads. Each byte and word has one writer at a time, and on x86-64 others see
writes in their order: a result first, then its ``done`` byte.
"""

from __future__ import annotations

import fcntl

import numpy as np

from nbshare.memory import ALIGNMENT, Segment

__all__ = ["IN_LOG", "IN_OUTPUT", "NO_ITEM", "Board", "Claims", "give_back"]

IN_OUTPUT, IN_LOG = 1, 2

NEXT, STOP, RETURNED = range(3)  # header words
HEADER_WORDS = 8
MAX_RETURNED = 64
ITEM, CHUNK_START, CHUNK_STOP = range(3)  # words of a slot
SLOT_WORDS = 8  # a cache line: two workers writing to one would slow each other down

NO_ITEM = -1

# A chunk is meant to take this long. A claim costs 1.2 µs, so 20 ms make it negligible, and at the
# end no worker is left alone with more than that.
CHUNK_S = 0.02
GROWTH = 8  # from one chunk to the next at most: a few quick items do not mean that all are


class Board:
    """The shared state of one call.

    Parameters
    ----------
    segment : Segment
        Made by `Board.create`, or attached in a worker.
    n_tasks, n_slots : int
        Number of items, and of workers that may take part (replacements included).
    """

    def __init__(self, segment: Segment, n_tasks: int, n_slots: int) -> None:
        self.segment = segment
        self.n_tasks = n_tasks
        places, _ = _layout(n_tasks, n_slots)
        self.header = segment.array(np.int64, (HEADER_WORDS,), places[0])
        self.returned = segment.array(np.int64, (MAX_RETURNED, 2), places[1])
        self.slots = segment.array(np.int64, (n_slots, SLOT_WORDS), places[2])
        self.done = segment.array(np.uint8, (n_tasks,), places[3])
        self.index = segment.array(np.int64, (n_tasks, 3), places[4])

    @classmethod
    def create(cls, n_tasks: int, n_slots: int) -> Board:
        """Make an empty board."""
        board = cls(Segment.create(_layout(n_tasks, n_slots)[1]), n_tasks, n_slots)
        board.slots[:, ITEM] = NO_ITEM
        return board

    def n_done(self) -> int:
        """Count the results that are there; 20 µs for a million."""
        return int(np.count_nonzero(self.done))

    def stop(self) -> None:
        """Ask workers to claim and begin nothing more."""
        self.header[STOP] = 1

    @property
    def stopped(self) -> bool:
        """Whether `stop` was called."""
        return bool(self.header[STOP])

    def item_of(self, slot: int) -> int:
        """Return the item that a worker is in the middle of; -1 if none."""
        item = int(self.slots[slot, ITEM])
        return NO_ITEM if item == NO_ITEM or self.done[item] else item

    def unbegun(self, slot: int) -> range:
        """Return what a worker that is in no item had claimed and not begun."""
        start, stop = map(int, self.slots[slot, CHUNK_START : CHUNK_STOP + 1])
        return range(start + int(np.count_nonzero(self.done[start:stop])), stop)


def _layout(n_tasks: int, n_slots: int) -> tuple[list[int], int]:
    """Return the offsets of the board's parts, and its size, in bytes."""
    sizes = [HEADER_WORDS * 8, MAX_RETURNED * 16, n_slots * SLOT_WORDS * 8, n_tasks, n_tasks * 24]
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = -(-(end + size) // ALIGNMENT) * ALIGNMENT
    return offsets, end


class Claims:
    """A worker's claims of chunks of items.

    Parameters
    ----------
    board : Board
        Of the call.
    slot : int
        This worker's row.
    lock : (int, int)
        Descriptor of a file and a byte in it to lock. The file is opened once per process and
        never mapped or closed: closing any descriptor of it would drop the lock.
    n_workers : int
        Who share what is left.
    chunksize : int or None
        None: chosen by measured time.
    """

    def __init__(
        self,
        board: Board,
        slot: int,
        lock: tuple[int, int],
        n_workers: int,
        chunksize: int | None,
    ) -> None:
        self._board = board
        self._slot = board.slots[slot]
        self._lock = lock
        self._n_workers = n_workers
        self._chunksize = chunksize
        self._last = 0

    def claim(self, item_s: float) -> range:
        """Take the next chunk; empty when nothing is left. `item_s`: seconds per item lately."""
        board, (fd, byte) = self._board, self._lock
        header = board.header
        fcntl.lockf(fd, fcntl.LOCK_EX, 1, byte)
        try:
            if header[STOP]:
                return range(0)
            if header[RETURNED]:
                header[RETURNED] -= 1
                start, stop = map(int, board.returned[header[RETURNED]])
            else:
                start = int(header[NEXT])
                stop = start + self._size(board.n_tasks - start, item_s)
                header[NEXT] = stop
            self._slot[CHUNK_START : CHUNK_STOP + 1] = start, stop
        finally:
            fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte)
        self._last = stop - start
        return range(start, stop)

    def _size(self, n_left: int, item_s: float) -> int:
        if self._chunksize is not None:
            return min(self._chunksize, n_left)
        by_time = CHUNK_S / item_s if item_s > 0 else 1
        # Half of an even share of what is left: chunks shrink towards the end, so that all
        # workers finish together.
        share = n_left / (2 * self._n_workers)
        return min(n_left, max(1, int(min(by_time, share, GROWTH * self._last))))


def give_back(board: Board, items: range, lock: tuple[int, int]) -> None:
    """Let others claim what a worker that died had claimed and not begun."""
    if not items:
        return
    fd, byte = lock
    fcntl.lockf(fd, fcntl.LOCK_EX, 1, byte)
    try:
        n = int(board.header[RETURNED])
        board.returned[n] = items.start, items.stop
        board.header[RETURNED] = n + 1
    finally:
        fcntl.lockf(fd, fcntl.LOCK_UN, 1, byte)
