"""The blocks of a pipeline's stage, as items of `worker.work.Work`. Block i is item i.

::

    load ──► ring ──► stage ──► ring ──► last stage ──► the call's results

Other workers claim items from a counter, but workers of a stage receive the next block from the
previous ring. The result of a stage is written to a slot of the next ring. That of the last stage
is stored as a result of the call.

**No deadlock.** A worker acquires its slot of the next ring before it takes a block from the
previous ring, and blocks are taken in order. So when a stage waits for block i, every earlier block
is done, and block i is queued, or held by a worker that has a slot, or the next block that such a
worker takes. One slot is enough.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np

from nbshare._core.arrays.ring import RingBuffer
from nbshare._core.arrays.ring_waiting import SlotLease
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.reference import needed_by
from nbshare._core.store.pages import IN_OUTPUT
from nbshare._core.store.writing import ResultStore
from nbshare._core.wire.board import ITEM, N_ITEMS, NO_ITEM, SINCE, Board
from nbshare._core.wire.failures import safe_repr
from nbshare._core.worker.items import indices_of
from nbshare.errors import RingAbortedError, RingClosedError

Column = Callable[[range], Sequence[Any]]  # values of items, as `worker.items.ItemSource.items`
END = object()  # returned instead of a block when a loader has ended


class StageBlocks(ABC):
    """The blocks of a stage.

    Parameters
    ----------
    sink : RingBuffer or None
        The ring for the results, or None for the results of the call.
    board : Board
        The call's board.
    row : memoryview
        This worker's row of the board.
    make_room : callable
        ``make_room(n)`` allocates places for the first n blocks, and returns their number.

    Attributes
    ----------
    func : callable
        Called for each block.
    columns : list of Column
        The arguments of `func` for the last claimed block.
    """

    func: Callable[..., Any]
    columns: list[Column]
    _fills_slots: bool  # whether `func` fills them

    def __init__(
        self,
        sink: RingBuffer | None,
        board: Board,
        row: memoryview,
        make_room: Callable[[int], int],
    ) -> None:
        self._slots = None if sink is None else Slots(sink, row)
        self._board, self._row = board, row
        self._make_room, self._n_places = make_room, 0

    def claim(self, _: float) -> range:
        """Wait for the next block. Return its number, or an empty range at the end of the data."""
        block = self._await_block()
        if block.stop > self._n_places:
            self._n_places = self._make_room(block.stop)
        return block

    @abstractmethod
    def _await_block(self) -> range: ...

    def pass_on(self, i: int, value: Any) -> None:
        """Pass the result of `func` for block `i` to the next stage."""
        slots = self._slots
        assert slots is not None
        slots.queue(value if self._fills_slots else copy_to(next(slots), value), i)
        page = self._board.page(i)
        page.mark(i - page.first, IN_OUTPUT)


class LoadedBlocks(StageBlocks):
    """The blocks that a loader yields, one after the other.

    Parameters
    ----------
    load : callable
        A generator function, which may fill slots.
    *others
        The arguments of `StageBlocks`.
    """

    def __init__(self, load: Callable[..., Any], *others: Any) -> None:
        super().__init__(*others)
        self.func = self._next  # so that its time counts as that of the block
        self.columns = [partial(indices_of, 0)]
        self._load, self._fills_slots = load, len(needed_by(load)) == 1
        self._blocks: Iterator[Any] | None = None

    def _await_block(self) -> range:
        if self._board.is_closed:
            self._row[N_ITEMS] -= 1  # the end is not a block
            return range(0)
        i = self._board.n_there
        return range(i, i + 1)

    def _next(self, _: int) -> Any:
        if self._blocks is None:
            loaded = self._load(self._slots) if self._fills_slots else self._load()
            if not isinstance(loaded, Iterable):
                raise TypeError(
                    f"the loader returned {safe_repr(loaded)}: it must be a generator function "
                    "that yields one block after the other"
                )
            self._blocks = iter(loaded)
        return next(self._blocks, END)

    def pass_on(self, i: int, value: Any) -> None:
        """Queue a block, copied to a slot or already filled by the loader."""
        if value is END:
            assert self._slots is not None
            self._slots.give_back()
            self._board.close()
            return
        super().pass_on(i, value)
        self._board.n_there = self._board.next_item = i + 1


class Slots(Iterator[SharedArray]):
    """The empty slots of the ring after a stage. Each slot is filled, and then queued.

    Parameters
    ----------
    ring : RingBuffer
        The ring of the slots.
    row : memoryview
        The worker's row of the board. Time spent waiting for a slot does not count for the block.
    """

    def __init__(self, ring: RingBuffer, row: memoryview) -> None:
        self._ring, self._row = ring, row
        self._lease: SlotLease | None = None
        self._slot: SharedArray | None = None

    def __next__(self) -> SharedArray:
        if self._slot is None:
            item, self._row[ITEM] = self._row[ITEM], NO_ITEM
            self._lease = self._ring.put()
            self._slot = self._lease.__enter__()
            self._row[SINCE] = time.monotonic_ns()
            self._row[ITEM] = item
        return self._slot

    def queue(self, rows: Any, number: int) -> None:
        """Queue the last slot, with `rows` rows, or with all rows if `rows` is None."""
        lease, slot, self._slot = self._lease, self._slot, None
        if slot is None or lease is None:
            raise RuntimeError(
                'the loader yielded before it took a slot: take each slot by "for slot in slots:"'
            )
        if isinstance(rows, np.ndarray):
            raise TypeError(
                "a function that fills its slot in place must return or yield None, or the number "
                f"of filled rows. It returned or yielded an array of shape {rows.shape}."
            )
        if rows is not None and slot.shape:
            self._ring.trim(slot, rows)
        lease.number = number
        lease.end(publish=True)

    def give_back(self) -> None:
        """Free a slot that was not filled, because the next stage would wait for it."""
        if self._lease is not None:
            self._lease.end(publish=False)


class QueuedBlocks(StageBlocks):
    """The blocks that a stage receives from the previous stage.

    Parameters
    ----------
    func : callable
        A function of a block and, optionally, the slot to fill.
    source : RingBuffer
        The ring of the blocks.
    lock : context manager
        Held to count blocks on the board.
    *others
        The arguments of `StageBlocks`.
    """

    def __init__(
        self,
        func: Callable[..., Any],
        source: RingBuffer,
        lock: AbstractContextManager[Any],
        *others: Any,
    ) -> None:
        super().__init__(*others)
        self.func, self._fills_slots = func, len(needed_by(func)) == 2
        self.columns = [lambda _: [self._block]]
        if self._fills_slots:
            self.columns.append(lambda _: [self._slots and next(self._slots)])
        self._source, self._lock = source, lock
        self._got: SlotLease | None = None
        self._block: SharedArray | None = None

    def _await_block(self) -> range:
        got, self._got = self._got, None
        if got is not None:
            got.end(publish=False)
        try:
            if self._slots is not None:
                next(self._slots)
            got = self._source.get()
            self._block = got.__enter__()
        except RingClosedError:
            if self._slots is not None:
                self._slots.give_back()
            return range(0)
        except RingAbortedError:
            return range(0)
        self._got, i, board = got, got.number, self._board
        assert i is not None
        with self._lock:
            board.next_item += 1
            board.n_there = max(board.n_there, i + 1)
        return range(i, i + 1)


class PassingStore(ResultStore):
    """Passes the results of a stage to the next stage."""

    def __init__(self, blocks: StageBlocks, *of_results: Any) -> None:
        super().__init__(*of_results)
        self._blocks = blocks

    def put(self, i: int, value: Any) -> None:
        """Pass the result for block `i` to the next stage."""
        self._blocks.pass_on(i, value)


def copy_to(out: SharedArray, block: Any) -> int | None:
    """Copy a block to a slot. Return the number of its rows, or None for a 0-d block."""
    if block is None:
        raise TypeError(
            "the block is None. Yield or return an array, or take the slot as an argument and fill "
            "it in place: load(slots), stage(block, out)"
        )
    array = np.asarray(block)
    fits = array.shape == out.shape
    if not fits and array.ndim == out.ndim > 0:
        fits = array.shape[1:] == out.shape[1:] and len(array) <= len(out)
    if not fits:
        raise ValueError(
            f"a block of shape {array.shape} does not fit slots of shape {out.shape}: set shape= "
            "to one shape for all stages, or to a list with the shape for each stage. A block may "
            "have fewer rows."
        )
    if not np.can_cast(array.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"a block of {array.dtype} does not fit slots of {out.dtype}: set dtype= to one dtype "
            "for all stages, or to a list with the dtype for each stage"
        )
    if not out.ndim:
        out[...] = array
        return None
    out[: len(array)] = array
    return len(array)
