"""What is asked for, checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray
from nbshare.engine.prints import Prints
from nbshare.wire.context import Context
from nbshare.wire.failures import text_of
from nbshare.wire.orders import Policy

__all__ = ["Items", "Request", "has_rows"]


class Items(NamedTuple):
    """What several iterables give of which not all have a length."""

    others: Iterator[tuple[Any, ...]]  # of those without rows
    columns: list[Any]  # for each iterable, what can be indexed by item, else None

    def window(self, first: int, taken: list[tuple[Any, ...]]) -> list[Any]:
        """Return the columns of the items that were taken, counted from the `first`."""
        lists = map(list, zip(*taken, strict=True))
        stop = first + len(taken)
        return [next(lists) if rows is None else rows[first:stop] for rows in self.columns]


class Request(NamedTuple):
    """What is asked for, checked."""

    func: Any
    shared: Mapping[str, Any]
    iterables: Sequence[Any]  # each an ndarray without objects, a range or a sequence
    n_tasks: int
    max_workers: int  # no more than there are tasks
    chunksize: int | None
    out: npt.NDArray[Any] | Literal["list", "stack"] | None
    context: Context
    policy: Policy
    initializer: tuple[Any, tuple[Any, ...]] | None  # function and arguments
    prints: Prints  # where what workers print goes
    first: int = 0  # index of the first item: others have gone before in a stream

    def text_of(self, i: int) -> str:
        """Return what messages call an item."""
        return text_of(self.func, [x[i] for x in self.iterables])


def has_rows(iterable: Any) -> bool:
    """Whether it can be indexed by item as it is iterated over."""
    if isinstance(iterable, np.ndarray):
        # Other subclasses (masked arrays, matrices) say for themselves what their items are.
        is_plain = type(iterable) in (np.ndarray, np.memmap, SharedArray)
        return is_plain and iterable.ndim > 0 and not iterable.dtype.hasobject
    return type(iterable) in (list, tuple, range)
