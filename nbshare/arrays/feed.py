"""Items that are packed while workers run those before them.

::

    caller                                             worker
    feed = Feed.of([items], 0)
    feed.segment  ─────────────────────────────────►   blocks = FedBlocks(…)
    feed.add()    a block's pickle, then the count ►   blocks.n_ready
    …                                                  inputs.load(blocks[k])

A function of some 0.1 µs is through with an object in the time that its pickle takes: packing all
of a list first would leave the other cores idle for half of the map.

The segment holds the count of blocks, a table of where each lies, and their pickles. It is made
larger when it is full, so a worker that is led beyond what it has mapped maps it again. Workers are
sent no other segment later, so arrays are copied into the pickles, and shared ones are named there
as for other people's pools; lists that begin with arrays are packed first, without copies.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from nbshare.arrays.arena import LEAST_BLOCKS, Arena, block_size, nbytes_each, plain_pickle
from nbshare.arrays.by_reference import reducers
from nbshare.arrays.inputs import Inputs, Packed, Span
from nbshare.functions.pickling import plainly_or_by_value, value_pickler
from nbshare.memory import Segment, aligned, copying

__all__ = ["WORD", "FedBlocks", "Feed"]

ENOUGH_ITEMS, ENOUGH_BYTES = 20_000, 256 << 10  # below both, packing takes less than handing over
ROOM = 1.1  # for this much more than the first block lets expect, then the segment grows
GROWTH = 1.5
WORD = 8  # bytes


class Feed:
    """The caller's side: packs the items of lists block by block.

    Parameters
    ----------
    columns : sequence of sequences
        What each list gives to the items; of one length.
    step : int
        Items per block.
    first : int
        Index of the first item, for errors.
    block : list of bytes
        The pickles of the first block, one of each column.

    Attributes
    ----------
    segment : Segment
        Where the blocks lie.

    Notes
    -----
    For one thread.
    """

    def __init__(
        self, columns: Sequence[Sequence[Any]], step: int, first: int, block: list[Any]
    ) -> None:
        self._columns, self.step, self._first = columns, step, first
        self.n_blocks = -(-len(columns[0]) // step)
        n_words = 1 + 2 * self.n_blocks * len(columns)
        self._end = aligned(n_words * WORD)
        self._is_by_value = False
        self._reducers = copyreg.dispatch_table | reducers()
        nbytes = int(ROOM * self.n_blocks * sum(map(len, block)))
        self.segment = Segment.create(self._end + nbytes)
        self._words = self.segment.array(np.int64, (n_words,))
        self._append(0, block)

    @classmethod
    def of(cls, columns: Sequence[Sequence[Any]], first: int) -> Self | None:
        """Return a feed that has its first block; None if the items are to be packed at once.

        That is so if they are few, and if there are arrays among the first that an `Arena` sends
        by reference.

        Raises
        ------
        UnsendableError
            If one of the first ones cannot be pickled.
        """
        n = len(columns[0])
        if n < 2 * LEAST_BLOCKS:
            return None
        sizes = [nbytes_each(column) for column in columns]
        if n < ENOUGH_ITEMS and n * sum(sizes) < ENOUGH_BYTES:
            return None
        step = block_size(n, max(sizes))
        block = [plain_pickle(column[:step], "item", first) for column in columns]
        return None if None in block else cls(columns, step, first, block)

    def sources(self, segment: int) -> list[tuple[int, ...]]:
        """Return what `FedBlocks` takes for each column; the segment by its index for workers."""
        n = len(self._columns)
        return [(segment, self.step, column, n) for column in range(n)]

    @property
    def is_complete(self) -> bool:
        """Whether all items have been packed."""
        return int(self._words[0]) == self.n_blocks

    def add(self) -> None:
        """Pack the next block.

        Raises
        ------
        UnsendableError
            If an item cannot be pickled.
        OutOfMemoryError
            If there is no room for it.
        """
        n = int(self._words[0])
        self._append(n, self._pickles(n))

    def _pickles(self, n: int) -> list[bytes]:
        start, stop = n * self.step, (n + 1) * self.step
        pickles = []
        for column in self._columns:
            try:
                pickles.append(self._pickle(column[start:stop]))
            except BaseException:  # say which one
                Arena().pack_block(column[start:stop], "item", self._first + start)
                raise
        return pickles

    def _pickle(self, items: Sequence[Any]) -> bytes:
        """Return a pickle that holds its arrays, but for shared ones, which travel by handle."""

        def attempt(by_value: bool) -> bytes:
            self._is_by_value = by_value  # as those after them will have to
            kind = value_pickler() if by_value else pickle.Pickler
            pickler = kind(file := io.BytesIO(), protocol=5)
            # A plain dict, which the pickler looks into without a call of a function.
            pickler.dispatch_table = {**getattr(pickler, "dispatch_table", {}), **self._reducers}
            pickler.dump(items)
            return file.getvalue()

        return attempt(True) if self._is_by_value else plainly_or_by_value(attempt)

    def _append(self, n: int, pickles: list[Any]) -> None:
        place = 1 + 2 * n * len(pickles)
        for data in pickles:
            end = self._end + len(data)
            if end > self.segment.nbytes:
                self.segment = self.segment.grown(end, int(GROWTH * end))
            copying.run(list(copying.write_jobs(self.segment.fd, self._end, data)))
            self._words[place : place + 2] = self._end, len(data)
            self._end = aligned(end)
            place += 2
        self._words[0] = n + 1  # last: now it may be read


class FedBlocks:
    """A worker's side: where the blocks of one column lie, as far as there are any.

    Parameters
    ----------
    inputs : Inputs
        Of the call.
    segment : int
        Index of the feed's among theirs.
    step, column, n_columns : int
        Items per block; which column, of how many.
    """

    def __init__(
        self, inputs: Inputs, segment: int, step: int, column: int, n_columns: int
    ) -> None:
        self._inputs, self._segment = inputs, segment
        self.step, self._column, self._n_columns = step, column, n_columns
        self._words = inputs.words(segment)

    def n_ready(self) -> int:
        """Return how many items are there, the last block taken for a full one."""
        return self._words[0] * self.step

    def __getitem__(self, number: int) -> Packed:
        place = 1 + 2 * (number * self._n_columns + self._column)
        offset, nbytes = self._words[place : place + 2]
        self._inputs.reach(self._segment, offset + abs(nbytes))
        span = Span(self._segment, offset, abs(nbytes))
        return Packed(span, ()) if nbytes >= 0 else self._inputs.packed(span)
