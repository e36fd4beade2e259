"""One call as the engine sees it, from the request to the last worker's word."""

from __future__ import annotations

import _thread
import os
import pickle
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import Arena, Packed
from nbshare.arrays.create import empty
from nbshare.arrays.shared_array import SharedArray
from nbshare.engine.blas import threads_per_worker
from nbshare.engine.context import Context
from nbshare.engine.cpus import usable_cpus
from nbshare.engine.failures import safe_repr
from nbshare.engine.output import OBJECTS, OutputSpec
from nbshare.engine.remote import Brief
from nbshare.engine.results import Results
from nbshare.engine.schedule import Board
from nbshare.engine.work import Order, Policy
from nbshare.errors import UnsendableError
from nbshare.functions import Source, dumps
from nbshare.memory import Mode, Segment, pool, segment_of

if TYPE_CHECKING:
    from nbshare.engine.process import WorkerProcess

__all__ = ["Call", "Request", "State", "prepare"]

SMALL_ARENA = 8 << 10  # bytes of inputs that go with the message, which takes 32 KiB
MAX_REPLACED = 3  # workers of one call that die before their first item, then it is an error

State = Literal["starting", "running", "done", "stopped", "failed"]


@dataclass(frozen=True)
class Request:
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

    def text_of(self, i: int) -> str:
        """Return the repr of an item, cut."""
        args = tuple(x[i] for x in self.iterables)
        return safe_repr(args[0] if len(args) == 1 else args)


@dataclass(eq=False)
class Call:
    """A running call: its shared memory, its workers, how it ended.

    The dispatcher's thread writes, others read; `wait` is for any thread.
    """

    request: Request
    board: Board
    small_arena: bytes | None  # the inputs, if they are few
    arena: npt.NDArray[np.uint8] | None  # else a lease of the memory that holds them
    others: list[tuple[Segment, Mode]]  # segments referred to, and how workers map them
    order: Order
    n_threads: int  # of BLAS and the like, in each worker
    initializer_key: bytes | None  # equal for equal ones
    results: Results
    free_slots: list[int]
    id: int = 0  # given when it begins
    sources: Mapping[str, Source] = field(default_factory=dict)  # likewise: what workers run
    begun_ns: int = field(default_factory=time.monotonic_ns)
    state: State = "starting"
    error: BaseException | None = None
    workers: dict[WorkerProcess, int] = field(default_factory=dict)  # at work, with their slots
    n_replaced: int = 0  # workers that died before they had begun an item
    kill_at: float | None = None  # when workers that are still busy with a stopped call are ended
    torn_rows: list[int] = field(default_factory=list)  # items in whose middle workers died
    is_over: bool = False
    # A raw lock: a KeyboardInterrupt inside threading's Python code would break its locks.
    _over: Any = field(default_factory=_thread.allocate_lock)
    _callbacks: deque[Callable[[], object]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        self._over.acquire()

    @cached_property
    def brief(self) -> bytes:
        """What all its workers are told."""
        board = self.board
        return pickle.dumps(
            Brief(
                board=(board.offset, board.n_tasks, len(board.slots)),
                path=self.request.context.path,
                context=self.request.context.rest,
                order=self.order,
                small_arena=self.small_arena,
                modes=tuple(mode for _, mode in self.segments),
            )
        )

    @property
    def n_ready(self) -> int:
        """Count the workers at work that have started."""
        return sum(worker.is_ready for worker in list(self.workers))

    @property
    def segments(self) -> list[tuple[Segment, Mode]]:
        """The segments that inputs lie in, and how workers map them."""
        found = segment_of(self.arena) if self.arena is not None else None
        return [(found[0], "r"), *self.others] if found is not None else self.others

    @property
    def is_complete(self) -> bool:
        """Whether every item has a result, or has failed and may."""
        return self.board.n_done() == self.board.n_tasks

    def note_error(self, error: BaseException, items: range) -> None:
        """Keep the error of items that failed."""
        self.results.errors.update(dict.fromkeys(items, error))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it has come."""
        if not self.is_over and self._over.acquire(timeout=timeout_s):
            self._over.release()
        return self.is_over

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back in a thread of its own when the call is over, or now if it is."""
        self._callbacks.append(callback)
        if self.is_over:  # or it has become so meanwhile: whoever takes it out first calls it
            self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            with suppress(IndexError):
                _thread.start_new_thread(_call_safely, (self._callbacks.popleft(),))

    def finish(self, state: State, error: BaseException | None = None) -> None:
        """Note the end and wake whoever waits."""
        self.state, self.error = state, error
        self.results.is_over = True
        if state != "done" or self.results.errors:
            self.results.clear_missing(self.torn_rows)
        # Nothing may hang on garbage collection: a notebook keeps its last traceback for ever.
        del self.arena, self.others
        self.is_over = True
        self._over.release()
        self._call_back()


def _call_safely(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's
        traceback.print_exc()


def prepare(request: Request, warm_up: Callable[[], None]) -> Call:
    """Place the inputs in shared memory.

    `warm_up` is called when nothing can be refused any more and only copying is left, so that
    workers can start meanwhile.

    Raises
    ------
    UnsendableError
        If the function, something shared or an item cannot be pickled.
    OutOfMemoryError
        If the inputs do not fit.
    """
    arena = Arena()
    func = arena.pack(request.func, "the function", writable=True)
    packed_shared = _pack_shared(arena, request.shared) if request.shared else None
    sources = [_source(arena, x) for x in request.iterables]
    initializer, key = _pack_initializer(arena, request.initializer)
    warm_up()
    contents = arena.small_contents(SMALL_ARENA)
    lease = pool.filled(*arena.contents()) if contents is None else None
    # Some more than workers: a late starter of a slot may still be there when it is replaced.
    n_slots = request.max_workers + MAX_REPLACED
    board = Board.create(request.n_tasks, n_slots)
    return Call(
        request=request,
        board=board,
        small_arena=contents,
        arena=lease,
        others=arena.segments,
        order=Order(
            func=func,
            shared=packed_shared,
            sources=sources,
            initializer=initializer,
            n_workers=request.max_workers,
            chunksize=request.chunksize,
            policy=request.policy,
        ),
        n_threads=threads_per_worker(usable_cpus(), request.max_workers, os.environ),
        initializer_key=key,
        results=_results(board, request.out),
        free_slots=list(range(n_slots))[::-1],
    )


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


def _source(arena: Arena, iterable: Any) -> tuple[Any, ...]:
    """Return what `nbshare.engine.work.Source` takes."""
    if isinstance(iterable, np.ndarray):
        is_shared = isinstance(iterable, SharedArray)
        return "rows", *arena.refer(iterable, writable=is_shared)
    if isinstance(iterable, range):
        return "range", iterable
    return "blocks", *arena.pack_items(iterable, "item")


def _results(board: Board, out: npt.NDArray[Any] | Literal["list", "stack"] | None) -> Results:
    if out is None:
        return Results(board, None, None)
    if isinstance(out, str):
        return Results(board, OBJECTS, None)
    # A plain array is filled through shared memory: the caller copies the rows as they come.
    array = out if segment_of(out) else empty(out.shape, out.dtype)
    return Results(board, OutputSpec(array.dtype, array.shape[1:], None, is_given=True), array)
