"""The layout of a board, and its pages: the state of some of a call's items; see `Board`.

::

    done     per item, 1 byte: 0 missing, 1 in the output array, 2 in a worker's log, 3 failed
    where    per item: where in an `ItemFeed` its block lies   (untouched, so free, without one)
    views    per block of a feed, at its first item: whether a worker may still see it   (likewise)
    index    per item: which log, offset, bytes, place in the batch that is there   (likewise)
    attempts per item: how often it has failed, or its worker died   (likewise)
    numbers  per item: the result, if results are numbers of 8 bytes at most   (likewise)
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.memory import View, aligned
from nbshare.wire.slots import SLOT_WORDS

__all__ = ["FAILED", "IN_LOG", "IN_OUTPUT", "Page", "board_layout", "page_layout"]

NOT_DONE, IN_OUTPUT, IN_LOG, FAILED = 0, 1, 2, 3
# In `views`: nobody has loaded the block; one worker has; it sees it no more; several have.
UNSEEN, SEEN, LEFT, KEPT = 0, 1, 2, 3

NUMBER_BYTES = 8
# Of the words `attempts`: the count, and a mark of items one of which has ended its worker.
ATTEMPTS, SUSPECT = (1 << 30) - 1, 1 << 30
HEADER_WORDS = 16
RETURNED_PER_SLOT = 2  # a dead worker leaves one range, and those are claimed first
PAGE_ITEMS = 1 << 14  # where the number of items is not known


class Page:
    """The state of some of a call's items.

    Parameters
    ----------
    memory : memoryview
        From its first byte on.
    first, n : int
        The items.
    """

    def __init__(self, memory: memoryview, first: int, n: int) -> None:
        self.first, self.n = first, n
        self._array = View(memory).array
        self._places = page_layout(n)[0]
        self.done = self._array(np.uint8, (n,), self._places[0])

    # Most calls do without some of these.

    @cached_property
    def where(self) -> npt.NDArray[np.int64]:
        """Where items lie that have come to a feed."""
        return self._array(np.int64, (self.n,), self._places[1])

    @cached_property
    def views(self) -> npt.NDArray[np.uint8]:
        """Whether workers may see a block, by its first item."""
        return self._array(np.uint8, (self.n,), self._places[2])

    @cached_property
    def index(self) -> npt.NDArray[np.int64]:
        """Where results are that lie in logs."""
        return self._array(np.int64, (4, self.n), self._places[3])

    @cached_property
    def attempts(self) -> npt.NDArray[np.int32]:
        """How often items have failed."""
        return self._array(np.int32, (self.n,), self._places[4])

    def numbers(self, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
        """Return the room for results that are numbers of `NUMBER_BYTES` at most."""
        return self._array(dtype, (self.n,), self._places[5])


# Twice for each call, and small ones are much alike.


@lru_cache(16)
def board_layout(n_tasks: int | None, n_slots: int) -> tuple[int, ...]:
    """Return the offsets of the board's parts, in bytes; last of its pages."""
    sizes = [
        HEADER_WORDS * 8,
        RETURNED_PER_SLOT * n_slots * 16,
        n_slots * SLOT_WORDS * 8,
    ]
    offsets, end = _placed(sizes)
    # Pages of an open board are given back to the system, which takes whole pages of its own.
    return *offsets, aligned(end, mmap.PAGESIZE if n_tasks is None else 64)


@lru_cache(16)
def page_layout(n: int) -> tuple[tuple[int, ...], int]:
    """Return the offsets of a page's parts, and its size, in bytes."""
    offsets, end = _placed([n, 8 * n, n, 32 * n, 4 * n, NUMBER_BYTES * n])
    return tuple(offsets), aligned(end, mmap.PAGESIZE) if n == PAGE_ITEMS else end


def _placed(sizes: Sequence[int]) -> tuple[list[int], int]:
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end = aligned(end + size)
    return offsets, end
