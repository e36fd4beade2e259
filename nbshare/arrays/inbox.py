"""Items that join a call one by one, while workers run those before them.

::

    caller                                             worker
    inbox = Inbox(127, 2)
    inbox.add(item); inbox.publish()    some
    inbox.lease  ──────────────────────────────────►   blocks = FedBlocks(…)
    inbox.add(item)    pickles
    inbox.publish()    the count               ──►     blocks.n_ready
    …                                                  inputs.load(blocks[k])

One segment holds the count of items, a table of where each lies, as for a `Feed`, and what an
`Arena` makes of them. Workers are sent no other segment later, and none is to be kept from being
freed by items that do without it: all items of an inbox refer to the same segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbshare.arrays.arena import Arena
from nbshare.arrays.feed import WORD
from nbshare.arrays.inputs import Packed
from nbshare.memory import Mode, Segment, pool, segment_of

__all__ = ["ROOM", "Inbox", "Seen"]

Seen = dict[int, tuple[Any, Packed]]  # by their ids: objects, so that they are kept, and pickles

ROOM = 1 << 20  # bytes of all items; smaller segments are not kept for the next inbox


class Inbox:
    """The caller's side: packs items, each of several objects.

    Parameters
    ----------
    n_places : int
        Items that it takes at most.
    n_columns : int
        Objects of each.

    Attributes
    ----------
    lease : ndarray
        Where they lie.
    segments : list of (Segment, Mode)
        The other segments that they refer to, and how workers map each.

    Notes
    -----
    For one thread.
    """

    def __init__(self, n_places: int, n_columns: int) -> None:
        self._n_places, self._n_columns = n_places, n_columns
        self._end = (1 + 2 * n_places * n_columns) * WORD
        self.lease, _ = pool.writable(self._end + ROOM)
        self._table = self.lease[: self._end].data.cast("q")
        self._table[0] = 0  # of memory that was used before
        self.segments: list[tuple[Segment, Mode]] = []

    @property
    def n_items(self) -> int:
        """How many have been published."""
        return self._table[0]

    def sources(self) -> list[tuple[Any, ...]]:
        """Return what `nbshare.worker.items.Source` takes for each column."""
        return [("feed", 0, 1, column, self._n_columns) for column in range(self._n_columns)]

    def add(self, item: Sequence[Any], index: int, seen: Seen) -> bool:
        """Add an item, which errors call by its index; returns whether there is a place for it.

        What was `seen` with items that came at once is not pickled again: all may be one function.

        Raises
        ------
        UnsendableError
            If it cannot be pickled.
        """
        n, arena = self.n_items, Arena(start=self._end)
        if n == self._n_places:
            return False
        packed = [_pack(arena, obj, index, seen) for obj in item]
        words = [word for one in packed for word in _words(arena, one)]
        end, parts = arena.contents()
        if end > self.lease.nbytes or (n and arena.segments != self.segments):
            return False
        found = segment_of(self.lease)
        assert found is not None
        found[0].refill(parts)
        self.segments[:], self._end = arena.segments, end
        for place, word in enumerate(words, start=1 + n * len(words)):
            self._table[place] = word
        if not self.segments:  # else its references would be missed with the next item
            seen.update((id(obj), (obj, one)) for obj, one in zip(item, packed, strict=True))
        return True

    def publish(self) -> None:
        """Have workers see the item that was added."""
        self._table[0] += 1


def _pack(arena: Arena, obj: Any, index: int, seen: Seen) -> Packed:
    known = seen.get(id(obj))
    return known[1] if known else arena.pack_block([obj], "item", index)


def _words(arena: Arena, packed: Packed) -> tuple[int, int]:
    """Return where a pickle lies: offset and bytes, for `FedBlocks`."""
    if packed.buffers:  # then that of what says where they lie, too
        span = arena.pack(packed, "where an item lies").pickle
        return span.offset, -span.nbytes
    return packed.pickle.offset, packed.pickle.nbytes
