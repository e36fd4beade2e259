"""The request of a run, and the kinds of its items."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.engine.prints import Prints
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.wire.context import Context
from nbshare._core.wire.orders import Policy

if TYPE_CHECKING:
    from nbshare._core.shapes.tiles import Tiles


class Request(NamedTuple):
    """The checked arguments of a run."""

    func: Any
    shared: Mapping[str, Any]
    # Each is an ndarray without objects, a range, a sequence, or None if `source` yields its items.
    iterables: Sequence[Any]
    source: Iterator[tuple[Any, ...]] | None  # items that arrive during the run
    n_items: int | None  # None while unknown
    max_workers: int  # at most the number of items
    chunksize: int | None
    out: npt.NDArray[Any] | Literal["list", "stack"] | None
    context: Context
    policy: Policy
    initializer: tuple[Any, tuple[Any, ...]] | None  # function and arguments
    prints: Prints  # the workers' output
    stage: str | None = None  # name of a pipeline's stage, whose items are blocks
    label: str = ""  # name of the run in the progress display and the checkpoint
    reduce: Callable[[Any, Any], Any] | None = None  # then the items are blocks
    until: Callable[..., Any] | None = None  # decides whether the partial result is enough
    series: Any = None  # the caller's only iterable, if it is a Series or an Index

    @property
    def items(self) -> Any:
        """The only iterable of the run, or None if it has several or a generator."""
        if self.series is not None:
            return self.series
        return self.iterables[0] if len(self.iterables) == 1 else None

    def at(self, where: Any, fed: Iterable[Any] = ()) -> tuple[Any, ...]:
        """Return what all iterables have at an index or slice. `fed` has that of sources."""
        parts = iter(fed)
        return tuple(next(parts) if x is None else x[where] for x in self.iterables)

    @property
    def users(self) -> Any:
        """The user's function. With ``reduce=``, blocks call it for each item."""
        return self.func if self.reduce is None else self.func.func

    @property
    def workers_policy(self) -> Policy:
        """The policy that workers apply to items. Blocks of ``reduce=`` have their own."""
        return self.policy if self.reduce is None else self.policy._replace(retries=0, seed=None)


def has_rows(iterable: Any) -> bool:
    """Return whether indexing an object is the same as iterating over it."""
    if isinstance(iterable, np.ndarray):
        # Other subclasses (masked arrays, matrices) define their items themselves.
        is_plain = type(iterable) in (np.ndarray, np.memmap, SharedArray)
        return is_plain and iterable.ndim > 0 and not iterable.dtype.hasobject
    return type(iterable) in (list, tuple, range) or isinstance(iterable, ShapedItems)


def tiles_of(request: Request) -> Tiles | None:
    """Return the `Tiles` of a request, or None if its items are others."""
    shaped: Any = [each for each in request.iterables if isinstance(each, ShapedItems)]
    return next((each for each in shaped if each.layout is not None), None)
