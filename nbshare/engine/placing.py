"""The inputs of a call, placed in shared memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import Arena
from nbshare.arrays.feed import Feed
from nbshare.arrays.inputs import Packed
from nbshare.arrays.shared_array import SharedArray
from nbshare.engine.request import Request
from nbshare.errors import UnsendableError
from nbshare.functions import dumps
from nbshare.memory import Mode, Segment, pool, segment_of

__all__ = ["Fixed", "Placed", "pack_fixed", "pack_items", "place"]

PLAIN = {bool, int, float, complex, str, bytes, type(None)}  # what is copied as well as shared
MOST_PLAIN, PLAIN_BYTES = 64, 4 << 10  # items; bytes of all
SMALL_ARENA = 8 << 10  # bytes of inputs that go with the message, which takes 32 KiB


class Placed:
    """The contents of an arena where workers can have them.

    Parameters
    ----------
    small : bytes or None
        The contents themselves, if they are few.
    others : list of (Segment, Mode)
        Segments that they refer to, and how workers map them.
    lease : ndarray, optional
        The memory that they lie in, if they are many.
    """

    def __init__(
        self,
        small: bytes | None,
        others: list[tuple[Segment, Mode]],
        lease: npt.NDArray[np.uint8] | None = None,
    ) -> None:
        self.small, self.others, self._lease = small, others, lease

    @property
    def segments(self) -> list[tuple[Segment, Mode]]:
        """All segments to map."""
        found = segment_of(self._lease) if self._lease is not None else None
        return [(found[0], "r"), *self.others] if found is not None else self.others


def place(arena: Arena) -> Placed:
    """Place what an arena has gathered.

    Raises
    ------
    OutOfMemoryError
        If it does not fit.
    """
    small = arena.small_contents(SMALL_ARENA)
    lease = pool.filled(*arena.contents()) if small is None else None
    return Placed(small, arena.segments, lease)


class Fixed(NamedTuple):
    """What is the same for all items: where it lies in the arena that it was packed into."""

    func: Packed
    shared: Packed | None
    initializer: Packed | None
    initializer_key: bytes | None  # equal for equal ones


def pack_fixed(arena: Arena, request: Request) -> Fixed:
    """Pack function, shared objects and initializer.

    Raises
    ------
    UnsendableError
        If one cannot be pickled.
    """
    func = arena.pack(request.func, "the function", writable=True)
    shared = _pack_shared(arena, request.shared) if request.shared else None
    return Fixed(func, shared, *_pack_initializer(arena, request.initializer))


def pack_items(
    arena: Arena, request: Request, *, may_feed: bool
) -> tuple[list[tuple[Any, ...]], Feed | None]:
    """Pack the items; returns what `nbshare.worker.items.Source` takes, for each iterable.

    Besides, if that is allowed and pays, what packs the rest of them later.
    """
    lists = [iterable for iterable in request.iterables if _is_list(iterable)]
    feed = Feed.of(lists, request.first) if may_feed and lists else None
    fed = iter(feed.sources(arena.refer_to(feed.segment)) if feed is not None else ())
    sources = [
        ("feed", *next(fed))
        if feed is not None and _is_list(iterable)
        else _source(arena, iterable, request.first)
        for iterable in request.iterables
    ]
    return sources, feed


def _pack_shared(arena: Arena, shared: Mapping[str, Any]) -> Packed:
    try:
        return arena.pack(dict(shared), "shared=")
    except Exception:
        for name, value in shared.items():  # say which one
            arena.pack(value, f"shared[{name!r}]")
        raise


def _pack_initializer(arena: Arena, initializer: Any) -> tuple[Packed | None, bytes | None]:
    if initializer is None:
        return None, None
    import hashlib  # late: it loads OpenSSL

    function, arguments = initializer
    try:
        key = hashlib.blake2b(dumps((function, arguments))).digest()
    except Exception as error:
        raise UnsendableError(
            f"initializer= or initargs= cannot be pickled ({type(error).__name__}: {error})"
        ) from error
    return arena.pack((key, function, arguments), "the initializer"), key


def _is_list(iterable: Any) -> bool:
    return not isinstance(iterable, np.ndarray | range)


def _is_plain(items: Sequence[Any]) -> bool:
    """Whether these are few simple objects: each by itself would take 15 µs to pack."""
    is_few = len(items) <= MOST_PLAIN and PLAIN.issuperset(map(type, items))
    return is_few and sum(map(sys.getsizeof, items)) <= PLAIN_BYTES


def _source(arena: Arena, iterable: Any, first: int) -> tuple[Any, ...]:
    if isinstance(iterable, np.ndarray):
        is_shared = isinstance(iterable, SharedArray)
        return "rows", *arena.refer(iterable, writable=is_shared)
    if isinstance(iterable, range) or _is_plain(iterable):
        return "plain", iterable
    return "blocks", *arena.pack_items(iterable, "item", first)
