"""The state of some items of a call, in the memory of the board, and the places of their results.

::

    done     per item, 1 byte: 0 missing, 1 in the output array, 2 in a worker's log, 3 failed
    blocks   number of blocks of an `ItemFeed`, first item, offset and bytes of each   (untouched,
             so free, without one)
    views    per block of a feed, at its first item: whether a worker may still see it   (likewise)
    index    per item: log, offset, bytes, place in the batch at that offset   (likewise)
    attempts per item: how often it has failed, or its worker died   (likewise)
    numbers  per item: the result, if it is a number of 8 bytes at most, and there is no other
             page   (likewise)
    rows     per item: its row in a checkpoint, -1 for none   (likewise)
"""

from __future__ import annotations

import mmap
from bisect import bisect
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import View, aligned
from nbshare._core.system import waiting

NOT_DONE, IN_OUTPUT, IN_LOG, FAILED = 0, 1, 2, 3
# Values of `views`: no worker has loaded the block, one has loaded it, this one has released it,
# several have loaded it.
UNSEEN, SEEN, LEFT, KEPT = 0, 1, 2, 3

NUMBER_BYTES = 8
# In the words of `attempts`: the count, and a mark of items that may have killed their worker.
ATTEMPTS, SUSPECT = (1 << 30) - 1, 1 << 30
PAGE_ITEMS = 1 << 14  # if the number of items is unknown


class Page:
    """The state of some items of a call.

    Parameters
    ----------
    memory : memoryview
        The memory, which begins with the page.
    first, n : int
        The items.
    """

    def __init__(self, memory: memoryview, first: int, n: int) -> None:
        self.first, self.n = first, n
        self._array = View(memory).array
        self._places = page_layout(n)[0]
        self.done = self._array(np.uint8, (n,), self._places[0])

    def states(self, places: Any = slice(None)) -> npt.NDArray[np.uint8]:
        """Return a copy of ``done`` bytes, of some items or all. Their results can then be read."""
        states = np.array(self.done[places])
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()
        return states

    def mark(self, places: Any, state: int) -> None:
        """Mark items as done, after their results were written.

        Others may then read the results.
        """
        if waiting.IS_WEAKLY_ORDERED:
            waiting.before_marks()
        self.done[places] = state

    # Most calls do not need all of these.

    @cached_property
    def _blocks(self) -> memoryview:
        """The number of blocks of a feed, then their first items in order, offsets and sizes."""
        return self._array(np.int64, (3 * (self.n + 1),), self._places[1]).data

    def add_block(self, first: int, offset: int, nbytes: int) -> None:
        """Record a block of the feed, by its first item on this page."""
        words, k = self._blocks, self._blocks[0] + 1
        words[k], words[self.n + 1 + k], words[2 * self.n + 2 + k] = first, offset, nbytes
        words[0] = k

    def place_of_block(self, i: int) -> tuple[int, int]:
        """Return the offset and size of the block of item `i`."""
        words = self._blocks
        k = bisect(words, i, 1, words[0] + 1) - 1
        return words[self.n + 1 + k], words[2 * self.n + 2 + k]

    @cached_property
    def views(self) -> npt.NDArray[np.uint8]:
        """Whether workers may see arrays of a block, by its first item."""
        return self._array(np.uint8, (self.n,), self._places[2])

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        """The places of results in logs, one column per item."""
        return self._array(np.int64, (4, self.n), self._places[3])

    @cached_property
    def attempts(self) -> npt.NDArray[np.int32]:
        """Number of failures per item."""
        return self._array(np.int32, (self.n,), self._places[4])

    def numbers(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return an array for results that are numbers of at most `NUMBER_BYTES`."""
        return self._array(dtype, (self.n,), self._places[5])

    @cached_property
    def rows(self) -> npt.NDArray[np.int64]:
        """Rows of the items in a checkpoint."""
        return self._array(np.int64, (self.n,), self._places[6])


@lru_cache(16)
def page_layout(n: int) -> tuple[tuple[int, ...], int]:
    """Return the offsets of a page's parts and its size, in bytes."""
    offsets, end = placed([n, 24 * (n + 1), n, 32 * n, 4 * n, NUMBER_BYTES * n, 8 * n])
    return tuple(offsets), aligned(end, mmap.PAGESIZE) if n == PAGE_ITEMS else end


def placed(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of consecutive parts, and the end of the last one."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = aligned(end + size)
    return offsets, end
