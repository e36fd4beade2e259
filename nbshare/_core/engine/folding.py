"""The owner's side of ``reduce=``, which combines the results of blocks in a fixed order.

Two neighbours are combined as soon as both have arrived, then two such pairs, and so on. The order
of arrival therefore does not affect the value, and few results are kept.
"""

from __future__ import annotations

import _thread
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.engine.call import Call
from nbshare._core.engine.stats import WorkerActivity
from nbshare._core.interrupts import start_thread, uninterrupted
from nbshare._core.messages import is_interrupt
from nbshare._core.wire.failures import name_of_item
from nbshare._core.wire.folding import (
    FoldBlock,
    Folded,
    by_item,
    counted,
    items_in,
    reduced,
    start_of,
)
from nbshare._core.wire.kept import kept_result


class Reduction:
    """Combines the values of blocks in a fixed order.

    Parameters
    ----------
    reduce : callable
        ``reduce(a, b)`` returns one value for two, and may change the first.
    """

    def __init__(self, reduce: Callable[[Any, Any], Any]) -> None:
        self._reduce = reduce
        # Values by the first block and the number of blocks (1, 2, 4, ...). An empty list means no
        # value.
        self._parts: dict[tuple[int, int], list[Any]] = {}

    def add(self, k: int, values: list[Any]) -> None:
        """Add the value of block `k`, in a list that is empty if the block has none."""
        size = 1
        while (k ^ size, size) in self._parts:
            other = self._parts.pop((k ^ size, size))
            values = self._joined(values, other) if k & size == 0 else self._joined(other, values)
            k, size = k & ~size, 2 * size
        self._parts[k, size] = values

    def value(self) -> Any:
        """Return the value of all blocks so far, or None."""
        parts = [self._parts[key] for key in sorted(self._parts)]
        values: list[Any] = []
        for part in parts:
            # `reduce` may change or return its arguments, so it gets copies of values that are
            # kept.
            values = self._joined(values, list(map(kept_result, part)))
        return values[0] if values else None

    def _joined(self, first: list[Any], second: list[Any]) -> list[Any]:
        return [reduced(self._reduce, first[0], second[0])] if first and second else first or second


class FoldingCall(Call):
    """A call whose items are blocks of the user's items, and whose result is one value.

    A job sees the user's items, not the blocks.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        assert self.request.reduce is not None
        self._reduction = Reduction(self.request.reduce)
        self._folding = _thread.allocate_lock()
        self._value: tuple[int, Any] = (0, None)  # the number of items, and their reduction
        self._n_folded = self._n_restored = 0  # items
        self._n_brought = 0  # items from a source
        self._failed: dict[int, BaseException] = {}
        self._restored: set[int] = set()  # blocks
        self._retried: set[int] = set()  # items, within their blocks
        self._broken: BaseException | None = None  # an error of `reduce`, if any
        self.results.given.is_iterated = True  # combined values are not kept

    # ------------------------------------------------------------------ what a job reads

    @property
    def n_items(self) -> int | None:
        """Number of items, or None while unknown."""
        return self._n_there if self.board.is_closed else None

    @property
    def n_done(self) -> int:
        """Number of items in blocks that are done."""
        return counted(self.board.finished(), self._n_there)

    @property
    def n_restored(self) -> int:
        """Number of items in blocks that were restored from a checkpoint."""
        return self._n_restored

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Failures by item."""
        lost = {i: e for k, e in self.results.errors.copy().items() for i in self._items_in(k)}
        return lost | self._failed

    def retried(self) -> npt.NDArray[np.int64]:
        """Return the items that ran again, by themselves or with a block whose worker died."""
        again = self._retried.copy()
        if self.request.policy.retries:
            is_done, blocks = self.board.finished(), self.board.retried()
            # A block that is not done has ended the call instead.
            again.update(i for k in blocks[is_done[blocks]].tolist() for i in self._items_in(k))
        return np.array(sorted(again), np.int64)

    def present(self) -> npt.NDArray[Any]:
        """Return a flag per item, True if its block is done."""
        return by_item(self.board.present(), self._n_there)

    def partial(self) -> Any:
        """Return the value of the blocks so far, or None before the first."""
        return self.folded()[1]

    def folded(self) -> tuple[int, Any]:
        """Return the number of items in the value of the blocks so far, and the value."""
        self.load_ahead()
        return self._value

    def final(self) -> Any:
        """Return the value of all blocks."""
        return self._value[1]

    def load_ahead(self) -> bool:
        """Combine the results that have arrived. Return whether there were any."""
        try:
            return self._fold()
        except BaseException as error:
            if is_interrupt(error):
                raise
            self.stop(error)
            return False

    def item(self, i: int) -> tuple[Any, ...]:
        """Return the positional arguments of an item."""
        block = self._block(bisect_right(range(i + 1), i, key=start_of) - 1)
        return tuple(column[i - block.first] for column in block.columns)

    def activity(self) -> list[WorkerActivity]:
        """Return the current activity of each worker."""
        found = super().activity()
        return [each._replace(items=self._all_in(each.items)) for each in found]

    def text_of(self, i: int) -> str:
        """Return the repr of a block for messages."""
        try:
            return repr(self._block(i))
        except LookupError:
            return self._texts.get(i, "")

    def name_of(self, i: int, text: str | None = None) -> str:
        """Return the name of a block in messages. Pass its repr as `text` if known."""
        items = self._items_in(i)
        if len(items) > 1:
            return f"one of items {items.start} to {items.stop - 1}"
        return name_of_item(items.start, self.text_of(i) if text is None else text)

    # -------------------------------------------------------------------------- blocks

    @property
    def _n_there(self) -> int:
        (blocks,) = self.request.iterables
        return self._n_brought if blocks is None else int(blocks.n_items)

    def _items_in(self, k: int) -> range:
        return items_in(k, self._n_there)

    def _all_in(self, blocks: range) -> range:
        if not blocks:
            return blocks
        return range(start_of(blocks.start), self._items_in(blocks.stop - 1).stop)

    def _block(self, k: int) -> FoldBlock:
        (block,) = super().item(k)
        return block  # type: ignore[no-any-return]

    def note_restored(self, items: npt.NDArray[np.int64]) -> None:
        """Record the blocks that were restored from a checkpoint."""
        super().note_restored(items)
        self._restored.update(items.tolist())
        self._n_restored += sum(len(self._items_in(k)) for k in items.tolist())

    def append(self, columns: Sequence[Sequence[Any]]) -> None:
        """Append blocks. For one thread."""
        self._n_brought += sum(len(block.columns[0]) for block in columns[0])
        super().append(columns)

    def sweep(self) -> None:
        """Combine the results that have arrived, and free their memory."""
        self.load_ahead()
        super().sweep()

    def _store_and_end(self, *, is_done: bool) -> None:
        """Combine the last results and end, in a thread that may run the user's function."""
        if self.engine.in_process:
            self._fold_and_end(is_done)
            return
        try:
            start_thread(self._fold_and_end, is_done)
        except RuntimeError:  # no more threads are allowed
            self._fold_and_end(is_done)

    def _fold_and_end(self, is_done: bool) -> None:
        with uninterrupted():  # because an interrupt would keep the call from ending
            try:
                self._fold()
            except BaseException as error:  # noqa: BLE001 - of the user's function
                self.note_failure(error)
            super()._store_and_end(is_done=is_done)

    def _fold(self) -> bool:
        """Combine the results that have arrived. Return whether there were any."""
        with self._folding:
            if self._broken is not None:
                raise self._broken
            n_before, arrived = self.results.given.n, super().new_results()
            is_over = False
            while not is_over:
                # Combine each block that is removed. An interrupt in between would lose it, and one
                # within `reduce` could leave half of a value.
                with uninterrupted():
                    is_over = (entry := next(arrived, None)) is None
                    try:
                        if entry is not None:
                            self._combine(*entry)
                    except BaseException as error:
                        self._broken = error
                        raise
            if self.results.given.n == n_before and self._value[0] == self._n_folded:
                return False
            if not self.board.is_open:  # otherwise the supply drops them
                self.results.drop_logs()
            self._value = self._n_folded, self._reduction.value()
            return True

    def _combine(self, k: int, found: Any) -> None:
        block = found if isinstance(found, Folded) else Folded([], 0, [])  # the block was lost
        self._reduction.add(k, block.values)
        self._n_folded += block.n
        if k not in self._restored:
            self._retried.update(block.retried)
        for failure in block.failures:
            name = name_of_item(failure.item, failure.item_repr)
            self._failed[failure.item] = failure.as_error(name, None)
