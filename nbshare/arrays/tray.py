"""Items of a call that runs on other items afterwards, which take their place.

::

    caller                                             worker
    tray = Tray(4, 1, 1)
    tray.fill([pickle of 4 items])
    tray.segment  ─────────────────────────────────►   blocks = FedBlocks(…)
    …                                                  inputs.load(blocks[0])
    tray.fill([pickle of 4 others])            ──►     inputs.load(blocks[0])
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from nbshare.arrays.feed import WORD
from nbshare.memory import Segment, aligned

__all__ = ["ROOM", "Tray"]

ROOM = 32 << 10  # bytes of all pickles


class Tray:
    """The caller's side.

    Parameters
    ----------
    n_items : int
        How many there are each time.
    n_columns : int
        What each consists of.
    n_blocks : int
        Pickles of each column: one, or as many as there are items.

    Attributes
    ----------
    segment : Segment
        Where they lie, as in a `Feed`.

    Notes
    -----
    For one thread. Nobody may read while it is filled.
    """

    def __init__(self, n_items: int, n_columns: int, n_blocks: int) -> None:
        self.n_items, self._n_columns, self._n_blocks = n_items, n_columns, n_blocks
        self._start = aligned((1 + 2 * n_columns * n_blocks) * WORD)
        self.segment = Segment.create(self._start + ROOM)
        self._memory = memoryview(self.segment)
        self._words = self._memory[: self._start].cast("q")

    def sources(self) -> list[tuple[Any, ...]]:
        """Return what `nbshare.worker.items.Source` takes for each column."""
        n, step = self._n_columns, self.n_items // self._n_blocks
        return [("feed", 0, step, column, n) for column in range(n)]

    def fill(self, pickles: Sequence[bytes]) -> None:
        """Put the items there: each block's pickles of all columns, of `ROOM` bytes at most."""
        end = self._start
        for place, data in enumerate(pickles):
            self._memory[end : end + len(data)] = data
            self._words[1 + 2 * place], self._words[2 + 2 * place] = end, len(data)
            end += len(data)
        self._words[0] = self._n_blocks
