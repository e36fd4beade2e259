"""Calls that are about to begin: their inputs in shared memory, and what workers are told."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import LEAST_BLOCKS, Arena, block_size, nbytes_each, plain_pickle
from nbshare.arrays.inputs import Packed
from nbshare.arrays.shared_array import SharedArray
from nbshare.engine.call import MAX_REPLACED, Call
from nbshare.engine.results import Results
from nbshare.engine.run import Engine, Request
from nbshare.engine.supply import ListSupply
from nbshare.errors import UnsendableError
from nbshare.functions.pickling import dumps
from nbshare.memory import Mode, Segment, pool, segment_of, usable_cpus
from nbshare.wire.board import N_THERE, Board
from nbshare.wire.context import threads_per_worker
from nbshare.wire.feed import LEAST_BYTES, ItemFeed
from nbshare.wire.orders import Order, Stage

__all__ = ["Fed", "Fixed", "Placed", "pack_fixed", "pack_items", "place", "prepare"]

PLAIN = {bool, int, float, complex, str, bytes, type(None)}  # what is copied as well as shared
MOST_PLAIN, PLAIN_BYTES = 64, 4 << 10  # items; bytes of all
# Of lists below both, packing takes less than handing over.
ENOUGH_ITEMS, ENOUGH_BYTES = 20_000, 256 << 10
ROOM = 1.1  # for this much more than the first items let expect, then the feed grows
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
        Their memory, if they are many.
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


class Fed(NamedTuple):
    """Items that come while a call runs."""

    n_columns: int  # objects of each
    columns: Sequence[Sequence[Any]] = ()  # of lists
    step: int = 0  # their items of a block
    nbytes: int = LEAST_BYTES  # that they may take

    def feed_to(self, board: Board) -> ItemFeed:
        """Return what they come by; of lists the first block is there."""
        if self.step:
            board.header[N_THERE] = 0
        feed = ItemFeed(board, self.n_columns, self.nbytes)
        if self.step:
            feed.append([column[: self.step] for column in self.columns])
        return feed


def pack_items(
    arena: Arena, request: Request, *, may_feed: bool
) -> tuple[list[tuple[Any, ...]], Fed | None]:
    """Pack the items; returns what `nbshare.worker.items.Source` takes, for each iterable.

    Besides, those that come later: of a source; of long lists, if that is allowed and pays.
    """
    if request.stage is not None:
        return [], None
    fed: Fed | None = None
    if request.n_tasks is None:
        fed = Fed(sum(x is None for x in request.iterables))
    elif may_feed:
        fed = _fed([iterable for iterable in request.iterables if _is_list(iterable)])
    columns = itertools.count()
    sources = [
        ("fed", next(columns))
        if iterable is None or (fed is not None and fed.step and _is_list(iterable))
        else _source(arena, iterable)
        for iterable in request.iterables
    ]
    return sources, fed


def _fed(columns: Sequence[Sequence[Any]]) -> Fed | None:
    """Return lists to be packed while a call runs; None if all are to be packed at once.

    That is so if they are few, and if there are arrays among the first, which go without copies.
    """
    n = len(columns[0]) if columns else 0
    if n < 2 * LEAST_BLOCKS:
        return None
    sizes = [nbytes_each(column) for column in columns]
    if n < ENOUGH_ITEMS and n * sum(sizes) < ENOUGH_BYTES:
        return None
    step = block_size(n, max(sizes))
    if any(plain_pickle(column[:step], "item", 0) is None for column in columns):
        return None
    return Fed(len(columns), columns, step, max(LEAST_BYTES, int(ROOM * n * sum(sizes))))


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


def _source(arena: Arena, iterable: Any) -> tuple[Any, ...]:
    if isinstance(iterable, np.ndarray):
        is_shared = isinstance(iterable, SharedArray)
        return "rows", *arena.refer(iterable, writable=is_shared)
    if isinstance(iterable, range) or _is_plain(iterable):
        return "plain", iterable
    return "blocks", *arena.pack_items(iterable, "item")


def prepare(
    request: Request,
    engine: Engine,
    fixed: tuple[Fixed, Placed] | None = None,
    *,
    may_feed: bool = False,
    stage: Stage | None = None,
) -> Call:
    """Place the inputs in shared memory.

    Parameters
    ----------
    request : Request
        What is asked for.
    engine : Engine
        What is to run it. It is warmed up when nothing can be refused any more and only copying is
        left, so that workers can start meanwhile.
    fixed : tuple of Fixed and Placed, optional
        What is the same for all items, if it has been placed before.
    may_feed : bool, default False
        Whether somebody will wait for the call: then a long list need not be packed before it
        begins.
    stage : Stage, optional
        Where the blocks of a pipeline's stage come from, and go.

    Raises
    ------
    UnsendableError
        If the function, something shared or an item cannot be pickled.
    OutOfMemoryError
        If the inputs do not fit.
    """
    arena = Arena()
    parts = fixed[0] if fixed is not None else pack_fixed(arena, request)
    sources, fed = pack_items(arena, request, may_feed=may_feed)
    rings = None if stage is None else arena.pack(stage, "the rings", writable=True)
    if request.n_tasks:  # else there may be nothing to do
        engine.warm_up()
    placed = [place(arena)]
    if fixed is not None:
        placed.insert(0, fixed[1])
    # Some more than workers: a late starter of a slot may still be there when it is replaced.
    n_slots = request.max_workers + MAX_REPLACED
    board = Board.create(request.n_tasks, n_slots)
    feed = None if fed is None else fed.feed_to(board)
    if feed is not None:
        placed.append(Placed(None, [(feed.segment, "r")]))
    order = Order(
        settings=request.context.settings,
        board=board.place,
        inputs=[(p.small, tuple(mode for _, mode in p.segments)) for p in placed],
        func=parts.func,
        shared=parts.shared,
        stage=rings,
        initializer=parts.initializer,
        sources=sources,
        n_fed=fed.n_columns if fed is not None else 0,
        policy=request.policy,
        n_workers=request.max_workers,
        chunksize=request.chunksize,
    )
    call = Call(
        request,
        engine,
        board,
        placed,
        order,
        n_threads=threads_per_worker(usable_cpus(), request.max_workers, os.environ),
        initializer_key=parts.initializer_key,
        results=Results(board, request),
        n_slots=n_slots,
        feed=feed,
    )
    if fed is not None and fed.step:
        call.supply = ListSupply(call, fed.columns, fed.step)
    return call
