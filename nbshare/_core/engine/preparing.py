"""Prepares calls: places their inputs in shared memory, and writes the order for workers."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator, Sequence
from types import FunctionType
from typing import Any

import numpy as np

from nbshare._core.arrays.arena import Arena
from nbshare._core.arrays.inputs import Itself, Packed
from nbshare._core.arrays.known import KnownObjects
from nbshare._core.arrays.loaded_size import loaded_nbytes
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.engine import hints
from nbshare._core.engine.call import MAX_REPLACED, Call, Engine
from nbshare._core.engine.placing import Placed, place
from nbshare._core.engine.request import Request
from nbshare._core.functions.pickling import dumps
from nbshare._core.functions.reference import label_of, with_keywords
from nbshare._core.memory import segment_of
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.system import processes
from nbshare._core.wire.board import Board
from nbshare._core.wire.failures import SharedName
from nbshare._core.wire.orders import CallOrder, Fixed, Sources, Stage
from nbshare._core.wire.threads import threads_per_worker
from nbshare.errors import UnsendableError

PLAIN = {bool, int, float, complex, str, bytes, type(None)}  # types of simple items
MOST_PLAIN, PLAIN_BYTES = 64, 4 << 10  # most items, and bytes
MOST_SAMPLES = 32  # most items in a sample that estimates the size of all


def pack_fixed(arena: Arena, request: Request) -> Fixed:
    """Pack the function, the shared objects and the initializer.

    If items run in this process, function and initializer are used without a copy. They may change
    objects of the caller, as in any thread.

    Raises
    ------
    UnsendableError
        If one of them cannot be pickled.
    """
    func: Packed | Itself
    shared = dict(request.shared)
    initializer = _pack_initializer(arena, request.initializer)  # workers load it first
    if arena.stays_here:
        names = [name for name in shared if isinstance(shared[name], FunctionType | type)]
        func = arena.itself(with_keywords(request.func, {name: shared.pop(name) for name in names}))
    else:
        func = _pack_function(arena, request)
    packed = _pack_shared(arena, shared) if shared else None
    return Fixed(func, packed, *initializer, arena.known.is_used)


def _pack_function(arena: Arena, request: Request) -> Packed:
    try:
        return arena.pack(request.func, "the function", writable=True, is_named=True)
    except Exception:
        if request.reduce is not None:  # the error names the function at fault
            arena.pack(request.users, "the function")
            arena.pack(request.reduce, "the function of reduce=")
        raise


def _pack_shared(arena: Arena, shared: dict[str, Any]) -> Packed:
    values = {SharedName(name): value for name, value in shared.items()}
    starts = dict.fromkeys(map(id, values), 0)
    try:
        packed = arena.pack(values, "shared=", is_named=True, starts=starts)
        stops = [*starts.values(), packed[0][2]][1:]
        for name, start, stop in zip(shared, starts.values(), stops, strict=True):
            arena.pickled[f"shared[{name!r}]"] = loaded_nbytes(shared[name], stop - start)
        return packed
    except Exception:
        for name, value in shared.items():  # the error names the object
            arena.pack(value, f"shared[{name!r}]")
        raise


def _pack_initializer(
    arena: Arena, initializer: Any
) -> tuple[Packed | Itself | None, bytes | None]:
    if initializer is None:
        return None, None
    import hashlib  # late, because it loads OpenSSL

    from nbshare._core.source.bytecode import assigned_around

    function, arguments = initializer
    if not arena.stays_here and (name := assigned_around(function)) is not None:
        raise UnsendableError(
            f"the initializer {label_of(function)} assigns {name!r}, a variable of the function "
            "around it. Each worker has a copy of this variable that no other function sees. Make "
            "it a global variable: define the variable and the initializer outside of any function."
        )
    try:
        key = hashlib.blake2b(dumps((function, arguments))).digest()
    except Exception:
        arena.pack(function, "the initializer")  # the error names the part at fault
        for k, argument in enumerate(arguments):
            arena.pack(argument, f"initargs=, argument {k},")
        raise
    what = function, arguments
    return Itself(what, {}) if arena.stays_here else arena.pack(what, "the initializer"), key


def _is_plain(items: Sequence[Any]) -> bool:
    """Return whether items are few and simple, and cheaper to copy than to pack (15 µs each)."""
    is_few = len(items) <= MOST_PLAIN and PLAIN.issuperset(map(type, items))
    return is_few and sum(map(sys.getsizeof, items)) <= PLAIN_BYTES


def pack_sources(arena: Arena, iterables: Sequence[Any], first: int = 0) -> Sources:
    """Pack the items of all iterables. The index of the first item is `first`."""
    together: list[Sequence[Any]] = []  # pickled together, because iterables may share objects
    numbers = itertools.count()  # numbers of the iterables that are fed
    found = [_source(arena, each, together, numbers) for each in iterables]
    return Sources(found, *arena.pack_items(together, first) if together else ())


def sources_nbytes(arena: Arena, iterables: Sequence[Any]) -> int:
    """Estimate how many bytes `pack_sources` would copy. Pack arrays, and record their size.

    Only a sample of the other items is packed, in a separate arena. The rest is assumed to be
    similar.
    """
    together: list[Sequence[Any]] = []
    for each in iterables:
        _source(arena, each, together, itertools.count())
    if not together:
        return 0
    n = len(together[0])
    some = [k * n // MOST_SAMPLES for k in range(MOST_SAMPLES)] if n > MOST_SAMPLES else [*range(n)]

    def packed(indices: Sequence[int]) -> Arena:
        scratch = Arena(known=arena.known)
        try:
            scratch.pack_items([[column[i] for i in indices] for column in together], 0)
        except UnsendableError:
            for i in indices:  # the error names the object
                scratch.pack_block([[column[i]] for column in together], i)
            raise
        return scratch

    whole, half = packed(some), packed(some[::2])
    arena.pickled |= whole.pickled
    n_more = len(some) - len(some[::2])
    each = (whole.nbytes - half.nbytes) // max(1, n_more)
    return whole.nbytes + each * (n - len(some))


def _source(
    arena: Arena, iterable: Any, together: list[Sequence[Any]], numbers: Iterator[int]
) -> tuple[Any, ...]:
    """Return how a worker gets the items of an iterable. Add items to pickle to `together`."""
    if iterable is None:
        return "fed", next(numbers)
    if isinstance(iterable, np.ndarray):
        is_shared = isinstance(iterable, SharedArray) or segment_of(iterable) is None  # or a file
        return "whole", arena.pack(iterable, "the items", writable=is_shared)
    if isinstance(iterable, ShapedItems):
        if not iterable.columns:
            return "whole", arena.pack(iterable, "the items", writable=True)
        columns = [_source(arena, column, together, numbers) for column in iterable.columns]
        return "folded", iterable.n_items, columns
    if isinstance(iterable, range) or _is_plain(iterable):
        return "plain", iterable
    together.append(iterable)
    return "packed", len(together) - 1


def prepare(
    request: Request,
    engine: Engine,
    fixed: tuple[Fixed, Placed] | None = None,
    *,
    stage: Stage | None = None,
) -> Call:
    """Place the inputs of a call in shared memory. Return the call.

    Parameters
    ----------
    request : Request
        The checked arguments.
    engine : Engine
        The engine that will run the call. It is warmed up after all checks, so workers start while
        inputs are copied.
    fixed : tuple of Fixed and Placed, optional
        The objects that are the same for all items, if they are already placed.
    stage : Stage, optional
        The rings before and after a pipeline's stage.

    Raises
    ------
    UnsendableError
        If the function, a shared object or an item cannot be pickled.
    OutOfMemoryError
        If the inputs do not fit into memory.
    """
    arena = Arena(stays_here=engine.in_process)
    parts = fixed[0] if fixed is not None else pack_fixed(arena, request)
    sources = pack_sources(arena, request.iterables)
    rings = None if stage is None else arena.pack(stage, "the rings", writable=True)
    known = arena.known
    if fixed is None:
        are_named = known.is_used or any(x is None for x in request.iterables)
        parts = parts if are_named == parts.are_named else parts._replace(are_named=are_named)
    if request.n_items:  # without items, no worker is needed
        engine.warm_up(min(request.max_workers, request.n_items))
    placed = [place(arena, is_private=engine.in_process)]
    if fixed is not None:
        placed.insert(0, fixed[1])
    call = new_call(request, engine, parts, placed, sources, stage=rings, known=known)
    if fixed is None and max([arena.nbytes, *arena.pickled.values()]) >= hints.LARGE:
        call.hints = hints.hints_of(request, arena)
    return call


def new_call(
    request: Request,
    engine: Engine,
    fixed: Fixed,
    placed: list[Placed],
    sources: Sources,
    *,
    stage: Packed | None = None,
    known: KnownObjects | None = None,
    n_threads: int | None = None,
    first: int = 0,
    make: type[Call] = Call,
) -> Call:
    """Return a call whose inputs are already placed.

    Parameters
    ----------
    request : Request
        The checked arguments.
    engine : Engine
        The engine that will run the call.
    fixed : Fixed
        The parts that are the same for all items.
    placed : list of Placed
        The contents of `fixed` and the items, or one `Placed` with both.
    sources : Sources
        The places of the items.
    stage : Packed, optional
        The rings of a pipeline's stage.
    known : KnownObjects, optional
        The objects of `fixed`, which items of a feed may name.
    n_threads : int, optional
        Number of threads of a worker's libraries. Default: the worker's share of the CPUs.
    first : int, default 0
        Index of the first item, if this call is a part of another one.
    make : type, default Call
        The class of the call.
    """
    # More slots than workers, because a replaced worker may still hold one.
    n_slots = request.max_workers + MAX_REPLACED
    board = Board.create(request.n_items, n_slots, is_private=engine.in_process)
    is_fed = any(x is None for x in request.iterables)
    feed = None
    if is_fed:
        from nbshare._core.engine.feed import ItemFeed  # late, only items that arrive need it

        feed = ItemFeed(board, known or KnownObjects())
        placed.append(Placed(None, [(feed.segment, "r")]))
    if n_threads is None:
        environ = request.context.environ
        n_threads = threads_per_worker(processes.usable_cpus(), request.max_workers, environ)
    order = CallOrder(
        settings=request.context.settings,
        n_threads=n_threads,
        board=board.place,
        inputs=[(p.small, tuple(mode for _, mode in p.segments)) for p in placed],
        fixed=fixed,
        stage=stage,
        sources=sources,
        is_fed=is_fed,
        policy=request.workers_policy,
        n_workers=request.max_workers,
        chunksize=request.chunksize,
        first=first,
        is_folded=request.reduce is not None,
    )
    if request.reduce is not None:
        from nbshare._core.engine.folding import FoldingCall  # late, only reduce= needs it

        make = FoldingCall
    return make(request, engine, board, placed, order, feed)
