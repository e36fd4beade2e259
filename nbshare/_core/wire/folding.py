"""Blocks of items whose results a worker reduces to one value, for ``reduce=``.

Blocks depend only on the indices of items, so the result is the same for any number of workers.
Later blocks are larger, so that the first ones yield a value early, and many items form few blocks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.functions.reference import label_of, with_keywords
from nbshare._core.messages import is_interrupt, noted
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.wire.failures import (
    Failure,
    ItemStopped,
    describe,
    end_copy,
    name_of_item,
    text_of,
    this_process,
)
from nbshare._core.wire.kept import kept_result
from nbshare._core.wire.orders import Policy, generator

SAME = 64  # number of blocks of each length


def start_of(k: Any) -> Any:
    """Return the first item of block `k`, which may be an array."""
    length, rest = k // SAME + 1, k % SAME
    return SAME * (length - 1) * length // 2 + rest * length


def items_in(k: int, n: int | None = None) -> range:
    """Return the items of block `k`. The last block ends at `n`."""
    start, stop = start_of(k), start_of(k + 1)
    return range(start, stop if n is None else min(stop, n))


def sizes(n_blocks: int, n: int) -> npt.NDArray[np.int64]:
    """Return the sizes of the first blocks of `n` items."""
    return np.asarray(np.diff(np.minimum(start_of(np.arange(n_blocks + 1)), n)))


def counted(blocks: npt.NDArray[np.bool_], n: int) -> int:
    """Return how many of `n` items are in the blocks whose flag is set."""
    return int(sizes(len(blocks), n)[blocks].sum())


def by_item(blocks: npt.NDArray[Any], n: int) -> npt.NDArray[Any]:
    """Return the values of an array of blocks, repeated for each of `n` items."""
    return np.repeat(blocks, sizes(len(blocks), n))


def n_items_in(blocks: range) -> int:
    """Return the number of items in some blocks, all of which are whole."""
    return int(start_of(blocks.stop) - start_of(blocks.start))


class FoldBlock(NamedTuple):
    """Items that a worker runs one after the other."""

    first: int
    columns: tuple[Sequence[Any], ...]  # values of each iterable

    def __repr__(self) -> str:
        n = len(self.columns[0])
        if n == 1:
            return text_of([column[0] for column in self.columns])
        return f"items {self.first} to {self.first + n - 1}"


class FoldBlocks(ShapedItems):
    """All items of a run, in blocks.

    Parameters
    ----------
    columns : sequence
        The items of each iterable.
    n_items : int
        Number of items.

    Attributes
    ----------
    columns, n_items
        As in the parameters.
    """

    def __init__(self, columns: Sequence[Any], n_items: int) -> None:
        self.columns, self.n_items = columns, n_items
        self._n = bisect_left(range(n_items + 1), n_items, key=start_of)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(self._n)[i]]
        items = items_in(range(self._n)[i], self.n_items)
        return FoldBlock(items.start, tuple(c[items.start : items.stop] for c in self.columns))

    def taken_by(
        self, func: Callable[..., Any], shared: Mapping[str, Any], extra: Sequence[str]
    ) -> Callable[..., Any]:
        """Return the function of a block unchanged."""
        del shared, extra
        return func

    def shaped(self, results: Any) -> Any:
        """Return the reduced value unchanged."""
        return results

    def as_json(self) -> dict[str, Any]:
        """Return the number of items, for a checkpoint."""
        return {"n_items": self.n_items}


def blocks_of(items: Iterator[tuple[Any, ...]]) -> Iterator[tuple[FoldBlock]]:
    """Yield the items of a source in blocks."""
    for k in count():
        some = list(islice(items, len(items_in(k))))
        if not some:
            return
        yield (FoldBlock(start_of(k), tuple(map(list, zip(*some, strict=True)))),)


def in_blocks(
    columns: list[Any], source: Iterator[tuple[Any, ...]] | None, n_items: int | None
) -> tuple[list[Any], Iterator[tuple[Any, ...]] | None, int | None]:
    """Return columns, source and number of the blocks, as `iterables.items_of` does for items."""
    if n_items is not None:
        blocks = FoldBlocks(columns, n_items)
        return [blocks], None, len(blocks)
    assert source is not None
    at_hand = [column for column in columns if column is not None]

    def all_columns(arrived: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for given, *others in zip(arrived, *at_hand, strict=False):
            parts, rest = iter(given), iter(others)
            yield tuple(next(parts if column is None else rest) for column in columns)

    return [None], blocks_of(all_columns(source)), None


def reduced(reduce: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    """Return one value for two. Add a note to an error, with the call of the function."""
    try:
        return reduce(a, b)
    except Exception as error:
        noted(error, f"raised by reduce=, which calls {label_of(reduce)}(a, b) with two results")
        raise


class Folded(NamedTuple):
    """The outcome of a block."""

    values: list[Any]  # one value, or none if all items have failed
    n: int  # number of items in this value
    failures: list[Failure]
    retried: Sequence[int] = ()  # items that failed and ran again, each once per attempt


class Fold:
    """A function of a block: calls the user's function for each item, and reduces the results.

    Parameters
    ----------
    func : callable
        The user's function.
    reduce : callable
        ``reduce(a, b)`` returns one result for two.
    policy : Policy
        The rules for failures and random numbers.
    """

    def __init__(
        self, func: Callable[..., Any], reduce: Callable[[Any, Any], Any], policy: Policy
    ) -> None:
        self.func, self.reduce, self.policy = func, reduce, policy

    def __call__(self, block: FoldBlock, /, **shared: Any) -> Folded:
        """Run the items of a block."""
        func, n = with_keywords(self.func, shared), 0
        values: list[Any] = []
        failures: list[Failure] = []
        retried: list[int] = []
        for i, args in enumerate(zip(*block.columns, strict=True), block.first):
            try:
                value = self._value(func, i, args, retried)
                # The next item may fill the same array again. A ufunc does not keep its arguments.
                if not (values and isinstance(self.reduce, np.ufunc)):
                    value = kept_result(value)
            except BaseException as error:
                if is_interrupt(error) or issubclass(type(error), ItemStopped):
                    raise
                if not self.policy.returns_errors:
                    if len(block.columns[0]) > 1:
                        noted(error, f"raised for {name_of_item(i, text_of(args))}")
                    raise
                failures.append(describe(error, i, text_of(args)))
                continue
            values = [reduced(self.reduce, values[0], value) if values else value]
            n += 1
        return Folded(values, n, failures, retried)

    def _value(
        self, func: Callable[..., Any], i: int, args: tuple[Any, ...], retried: list[int]
    ) -> Any:
        process = this_process[0]
        for left in range(self.policy.retries, -1, -1):
            # Seeded again for each attempt, so that it draws the same numbers.
            rng = {"rng": generator(self.policy.seed, i)} if self.policy.seed else {}
            try:
                value = func(*args, **rng)
            except BaseException as error:
                end_copy(process)
                if not left or not issubclass(type(error), Exception):  # such as SystemExit
                    raise
                retried.append(i)
            else:
                end_copy(process)
                return value
        raise AssertionError
