"""Sends items in blocks to a running call, while workers run earlier items.

::

    caller                                             worker
    feed = ItemFeed(board)
    feed.append([items])     blocks, then the count ►  items = FedItems(inputs, board)
    …                                                  items.packed(i)
    feed.sweep()             room of blocks that are done

A block is a few items that are pickled together, with large buffers next to the pickle, and a
header, which is a pickle too. The board stores the place of each header. The segment grows when it
is full, and a worker that needs a part beyond its mapping maps it again. When the items of a block
are done, its space is reused, unless a worker may still see an array in it.

Workers receive no other segment later. Arrays in shared memory are sent by handle, and the caller
keeps the items until they are done.
"""

from __future__ import annotations

import bisect
import pickle
from collections.abc import Sequence
from itertools import chain, islice
from typing import Any, NamedTuple

from nbshare._core.arrays.arena import Arena
from nbshare._core.arrays.known import KnownObjects
from nbshare._core.memory import Segment, aligned
from nbshare._core.store.pages import LEFT, Page
from nbshare._core.system import waiting
from nbshare._core.wire.board import Board

FIRST_BYTES = 256 << 10  # first size of the segment
SMALL_BYTES = 64 << 10  # blocks up to this size are written in one piece. A piece costs 5 µs
GROWTH = 1.5


class _Block(NamedTuple):
    """A block that is not known to be done."""

    first: int
    n: int
    start: int  # bytes
    stop: int
    where: tuple[int, int]  # offset and size of its header
    has_views: bool
    columns: Sequence[Sequence[Any]]


class ItemFeed:
    """Packs items in blocks. `worker.items.FedItems` loads them.

    Parameters
    ----------
    board : Board
        The call's board.
    known : KnownObjects
        The objects of the call's fixed parts, which items may name.

    Attributes
    ----------
    segment : Segment
        The memory of the blocks.
    nbytes : int
        Total bytes of the blocks that are not known to be done.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(self, board: Board, known: KnownObjects) -> None:
        self.nbytes = 0
        self._known = known
        self.segment = Segment.create(FIRST_BYTES, is_private=board.segment.is_private, grows=True)
        self._board = board
        self._room = _Room(self.segment.nbytes)
        self._blocks: dict[int, _Block] = {}  # by the first item
        self._arena = self._new_arena()
        self._added: list[_Block] = []
        self._begin = self._n_added = 0  # bytes, and items

    def append(self, columns: Sequence[Sequence[Any]]) -> None:
        """Pack items in blocks, and make them visible to workers, unless the call is stopped.

        Raises
        ------
        UnsendableError
            If an item cannot be pickled. None of the items is then visible.
        OutOfMemoryError
            If the items do not fit into memory.
        """
        step = self._arena.block_size(columns)
        for start in range(0, len(columns[0]), step):
            self.add([column[start : start + step] for column in columns])
        n = self.flush()
        if not self._board.stopped:  # the items of a stopped call may be counted already
            self._board.publish(n)

    def add(self, columns: Sequence[Sequence[Any]]) -> int:
        """Pack the next items as a block, which `flush` writes. Return the index of the first item.

        Raises
        ------
        UnsendableError
            If an item cannot be pickled. No item of the block is then added.
        """
        arena, n = self._arena, len(columns[0])
        first = self._board.n_there + self._n_added
        arena.begin_part()  # otherwise blocks could share memory, which is freed with the first
        packed = arena.pack_block(columns, first)
        has_views = arena.has_views
        offset = aligned(arena.nbytes)  # first, because it decides the places
        where = arena.add(pickle.dumps((first, n, has_views, offset, packed)))
        end = aligned(sum(where))
        self._added.append(_Block(first, n, self._begin, end, where, has_views, columns))
        self._begin, self._n_added = end, self._n_added + n
        return first

    def flush(self) -> int:
        """Write the added blocks. Return the number of items, which may then be published.

        Raises
        ------
        OutOfMemoryError
            If the blocks do not fit into memory. They are then not added.
        """
        nbytes = self._arena.nbytes
        is_small = nbytes <= SMALL_BYTES
        parts = [(0, self._arena.all_contents())] if is_small else self._arena.contents()[1]
        added, n = self._added, self._n_added
        self._arena, self._added = self._new_arena(), []
        self._begin = self._n_added = 0
        if not n:
            return 0
        self.sweep()
        board = self._board
        board.extend(n)
        base = self._take(nbytes)
        self.nbytes += nbytes
        self.segment.refill(((base + start, part) for start, part in parts), are_fresh=True)
        for block in added:
            for page, low, _ in board.parts(block.first, block.first + block.n):
                offset, size = block.where
                page.add_block(page.first + low, base + offset, size)
            self._blocks[block.first] = block._replace(
                start=base + block.start, stop=base + block.stop
            )
        return n

    def _new_arena(self) -> Arena:
        is_private = self.segment.is_private
        return Arena(by_handle=True, stays_here=is_private, known=self._known)

    def _take(self, nbytes: int) -> int:
        """Allocate space. Return its offset."""
        offset = self._room.take(nbytes)
        if offset is None:
            before = self.segment.nbytes
            self.segment = self.segment.grown(before + nbytes, int(GROWTH * before) + nbytes)
            self._room.give(before, self.segment.nbytes - before)
            offset = self._room.take(nbytes)
            assert offset is not None
        return offset

    def sweep(self) -> None:
        """Reuse the space of blocks that are done, and release their items.

        Space is kept while a worker may see an array in it.
        """
        board = self._board
        for first, block in self._blocks.copy().items():
            # Most of the unfinished blocks have not begun.
            if not board.state(first):
                continue
            stop = first + block.n
            if block.n > 1 and board.first(first, stop, is_done=False) < stop:
                continue
            page = board.page(first)
            if block.has_views and page.views[first - page.first] != LEFT:
                self._blocks[first] = block._replace(columns=())
            else:
                del self._blocks[first]
                self._room.give(block.start, block.stop - block.start)
                self.nbytes -= block.stop - block.start
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()  # before the space is overwritten

    def has_any_of(self, page: Page) -> bool:
        """Return whether a block that begins on a page is still in use."""
        return any(page.first <= first < page.first + page.n for first in self._blocks)

    def columns(self, start: int, stop: int) -> tuple[list[Any], ...]:
        """Return the values of each column for some items that are not done."""
        there = list(self._blocks.values())  # copied, because blocks may be added meanwhile
        blocks = [b for b in there if b.first < stop and b.first + b.n > start]
        first, columns = blocks[0].first, [b.columns for b in blocks]
        whole = (chain.from_iterable(parts) for parts in zip(*columns, strict=True))
        return tuple(list(islice(column, start - first, stop - first)) for column in whole)

    def item(self, i: int) -> tuple[Any, ...] | None:
        """Return an item that is not done, or None if it was dropped."""
        for block in list(self._blocks.values()):
            if block.columns and 0 <= i - block.first < block.n:
                return tuple(column[i - block.first] for column in block.columns)
        return None


class _Room:
    """The free space of a segment."""

    def __init__(self, nbytes: int) -> None:
        self._free = [(0, nbytes)]  # offset and size of each range, sorted

    def take(self, nbytes: int) -> int | None:
        """Allocate the first free range that is large enough. Return its offset, or None."""
        nbytes = aligned(nbytes)
        for k, (start, size) in enumerate(self._free):
            if size >= nbytes:
                if size == nbytes:
                    del self._free[k]
                else:
                    self._free[k] = start + nbytes, size - nbytes
                return start
        return None

    def give(self, start: int, nbytes: int) -> None:
        """Free a range."""
        free, size = self._free, aligned(nbytes)
        k = bisect.bisect(free, (start,))
        if k < len(free) and free[k][0] == start + size:
            size += free.pop(k)[1]
        if k and sum(free[k - 1]) == start:
            k, start, size = k - 1, free[k - 1][0], size + free.pop(k - 1)[1]
        free.insert(k, (start, size))
