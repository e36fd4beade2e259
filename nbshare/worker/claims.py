"""Which items a worker runs next: chunks claimed on the board, as large as their items are quick.

Workers claim by themselves under a file lock, which the kernel releases if its holder dies.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from nbshare.wire.board import CHUNK_START, CHUNK_STOP, N_THERE, NEXT, RETURNED, STOP, TOTAL, Board

__all__ = ["Claims"]

# A chunk is meant to take this long. A claim costs 1.2 µs, so 20 ms make it negligible, and at the
# end no worker is left alone with more than that.
CHUNK_S = 0.02
GROWTH = 8  # from one chunk to the next at most: a few quick items do not mean that all are
# Between looks for items that are still being packed; the longest per worker, so that all of them
# together look some thousand times a second.
WAIT_S, LONGEST_WAIT_S = 5e-5, 5e-4
LOAD_S = 1e-3  # items that are loaded together, if they take no longer, are not shared out
LEAST_S = 2e-5  # a chunk takes no less if its items are tiny: a claim would cost more than it helps


class Claims:
    """A worker's claims of chunks of items.

    Parameters
    ----------
    board : Board
        Of the call.
    slot : int
        This worker's row.
    lock : context manager
        Held while a chunk is claimed.
    n_workers : int
        Who share what is left.
    chunksize : int or None
        None: chosen by measured time.
    block_of : callable, optional
        Returns the items that are loaded together with one: where a chunk of several such blocks
        ends between two of them, no other worker has to load one too.
    wait : callable
        Waits for more items, for some seconds; returns whether it is worth waiting any longer.

    Attributes
    ----------
    has_waited : bool
        Whether the last claim had to wait for items.

    References
    ----------
    .. [1] S. F. Hummel, E. Schonberg, L. E. Flynn, "Factoring: A method for scheduling parallel
       loops", Communications of the ACM 35(8), 90-101, 1992: chunks of half an even share.
    """

    def __init__(
        self,
        board: Board,
        slot: int,
        lock: AbstractContextManager[Any],
        n_workers: int,
        chunksize: int | None,
        block_of: Callable[[int], range] | None,
        wait: Callable[[float], bool],
    ) -> None:
        self._board = board
        self._slot = board.row(slot)
        self._lock = lock
        self._n_workers = n_workers
        self._chunksize = chunksize
        self._block_of, self._wait = block_of, wait
        self.has_waited = False
        self._last = 0

    def claim(self, item_s: float) -> range:
        """Take the next chunk, when there is one; empty when nothing is left.

        `item_s`: seconds per item lately.
        """
        pause_s, self.has_waited = WAIT_S, False
        while (chunk := self._claim(item_s)) is None:
            self.has_waited = True
            if not self._wait(pause_s):
                return range(0)
            pause_s = min(2 * pause_s, self._n_workers * LONGEST_WAIT_S)
        return chunk

    def _claim(self, item_s: float) -> range | None:
        """Return a chunk, an empty one at the end, None if items are still to come."""
        board, header = self._board, self._board.header
        total = header[TOTAL]
        if header[NEXT] >= header[N_THERE] and not header[RETURNED]:
            is_over = header[STOP] or header[NEXT] == total
            return range(0) if is_over else None  # the lock takes five times as long
        with self._lock:
            if header[STOP]:
                return range(0)
            n_returned = header[RETURNED]
            if n_returned:
                start, stop = map(int, board.returned[n_returned - 1])
            else:
                start, n_there = board.next_claim(), header[N_THERE]
                if start >= n_there:
                    header[NEXT] = start  # what is left has been withdrawn
                    return range(0) if start == total else None
                stop = self._stop(start, n_there, max(n_there, total), item_s)
            # The slot first: a worker that dies here has claimed nothing (see `give_back`).
            self._slot[CHUNK_START], self._slot[CHUNK_STOP] = start, stop
            if n_returned:
                header[RETURNED] = n_returned - 1
            else:
                header[NEXT] = stop
        self._last = stop - start
        return range(start, stop)

    def _stop(self, start: int, n_there: int, n_known: int, item_s: float) -> int:
        page_end = start - start % self._board.page_items + self._board.page_items
        end = min(n_there, page_end)
        if self._chunksize is not None:
            return min(start + self._chunksize, end)
        n_left = n_known - start
        block = range(start, start + 1) if self._block_of is None else self._block_of(start)
        by_time = CHUNK_S / item_s if item_s > 0 else 1
        # Half of an even share of what is left: chunks shrink towards the end, so that all
        # workers finish together.
        share = max(n_left / (2 * self._n_workers), by_time * LEAST_S / CHUNK_S)
        if by_time * LOAD_S > len(block) * CHUNK_S:
            share = max(share, len(block))
        stop = start + max(1, int(min(by_time, share, GROWTH * self._last)))
        if stop >= end:
            return end
        if self._block_of is not None and stop >= block.stop:
            stop = max(block.stop, self._block_of(stop).start)
        return stop
