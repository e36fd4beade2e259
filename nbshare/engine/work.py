"""One worker's part in a call: chunks claimed, items run, results stored, failures overcome."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import ArrayReference, Inputs, Packed
from nbshare.engine.blas import limit_threads
from nbshare.engine.log import LogKey
from nbshare.engine.output import OutputSpec, ResultStore
from nbshare.engine.schedule import (
    BEGUN,
    ENDED,
    FAILED,
    ITEM,
    ITEM_STOP,
    N_ITEMS,
    N_SLOWEST,
    NO_ITEM,
    PEAK,
    PID,
    SINCE,
    SLOWEST,
    STOP,
    WORKED,
    Board,
    Claims,
)
from nbshare.memory import Segment

__all__ = ["Caller", "Order", "Policy", "Work", "generator"]

# Items that take less than this are run several at a time, for so long at most: what storing a
# result costs is spread over them. If a worker dies, only their range is known.
TINY_S = 20e-6
TOGETHER_S = 1e-3
SHORTEST_S = 1e-8  # no call of a function takes less; what a clock says may


Seed = tuple[Any, tuple[int, ...], int]  # a SeedSequence's entropy, spawn key and pool size


class Policy(NamedTuple):
    """What a call does about failures, and with chance."""

    on_error: Literal["raise", "return"] = "raise"
    retries: int = 0  # per item
    timeout_s: float | None = None  # per item
    seed: Seed | None = None


class Order(NamedTuple):
    """What workers do in a call; where its parts lie in the call's segments."""

    func: Packed
    shared: Packed
    sources: Packed
    initializer: Packed | None
    n_workers: int
    chunksize: int | None
    n_threads: int  # of BLAS and the like, in each worker
    policy: Policy


class Caller(Protocol):
    """Whom a worker works for."""

    def decide(self, spec: OutputSpec) -> tuple[OutputSpec, npt.NDArray[Any] | None]:
        """Return where results go, given what the first one asks for."""

    def add_log(self, key: LogKey, log: Segment) -> None:
        """Take a new log."""

    def failed(self, i: int, error: BaseException, item: Any) -> None:
        """Take note of a failure."""


class Work:
    """One worker's part in a call.

    Parameters
    ----------
    order : Order
        What to do.
    board : Board
        Of the call.
    slot : int
        This worker's row on it.
    inputs : Inputs
        Where function and items lie.
    caller : Caller
        Told of first results, logs and failures.
    lock : context manager
        Held to claim a chunk.
    """

    def __init__(
        self,
        order: Order,
        board: Board,
        slot: int,
        inputs: Inputs,
        caller: Caller,
        lock: AbstractContextManager[Any],
    ) -> None:
        self._policy = order.policy
        self._board = board
        self._slot = board.slots[slot].data
        self._caller = caller
        self._slot[PID], self._slot[BEGUN] = os.getpid(), time.monotonic_ns()
        limit_threads(order.n_threads)
        if order.initializer is not None:
            _initialize(*inputs.load(order.initializer))
        self._task = inputs.load(order.func)
        if shared := inputs.load(order.shared):
            self._task = partial(self._task, **shared)
        self._columns = [Source(inputs, *what).items for what in inputs.load(order.sources)]
        if order.policy.seed is not None:
            self._task = partial(_seeded, self._task, order.policy.seed)
            self._columns.insert(0, _indices)  # of the items' indices
        self._item_s = 0.0  # what an item took lately
        self._store = ResultStore(board, caller.decide, caller.add_log)
        self._claims = Claims(board, slot, lock, order.n_workers, order.chunksize)

    def run(self) -> None:
        """Work until nothing is left to claim."""
        while self.step():
            pass
        self._slot[PEAK] = _peak_bytes()

    def step(self) -> bool:
        """Claim and run a chunk; returns whether there may be more."""
        chunk = self._claims.claim(self._item_s)
        start_ns = time.monotonic_ns()
        goes_on = bool(chunk) and self._run_chunk(chunk)
        self._slot[ENDED] = end_ns = time.monotonic_ns()
        self._item_s = (end_ns - start_ns) / 1e9 / max(len(chunk), 1)
        return goes_on

    def _run_chunk(self, chunk: range) -> bool:
        """Run the items of a chunk, tiny ones together; returns whether to go on."""
        slot, header = self._slot, self._board.header.data
        is_tiny = 0 < self._item_s < TINY_S
        step = int(TOGETHER_S / max(self._item_s, SHORTEST_S)) if is_tiny else 1
        try:
            for start in range(chunk.start, chunk.stop, step):
                if header[STOP]:
                    return False
                items = range(start, min(start + step, chunk.stop))
                slot[SINCE] = since = time.monotonic_ns()
                slot[ITEM_STOP] = items.stop
                slot[ITEM] = start
                if not self._run_items(items):
                    return False
                self._note(items, time.monotonic_ns() - since)
        finally:
            slot[ITEM] = NO_ITEM
        return True

    def _run_items(self, items: range) -> bool:
        """Run items and store their results at once; returns whether to go on."""
        while items:
            values: list[Any] = []
            try:
                columns = [column(items) for column in self._columns]
                if len(items) == 1:
                    values.append(self._task(*[column[0] for column in columns]))
                else:
                    values.extend(map(self._task, *columns))
                    if len(values) < len(items):
                        raise StopIteration  # raised by the function, to which `map` has listened
            except BaseException as error:  # noqa: BLE001 - SystemExit too is the item's failure
                n = len(values)  # of the items before the one that raised
                if not self._store_all(items[:n], values) or not self._overcome(items[n], error):
                    return False
                items = items[n + 1 :]
            else:
                return self._store_all(items, values)
        return True

    def _store_all(self, items: range, values: list[Any]) -> bool:
        if self._store.put_together(items, values):
            return True
        for i, value in zip(items, values, strict=True):
            try:
                self._store.put(i, value)
            except BaseException as error:  # noqa: BLE001 - pickling runs users' code
                if not self._overcome(i, error):
                    return False
        return True

    def _overcome(self, i: int, error: BaseException) -> bool:
        """Try a failed item again as often as asked for; returns whether the call may go on."""
        item = range(i, i + 1)
        try:
            for _ in range(self._policy.retries if isinstance(error, Exception) else 0):
                if self._board.stopped:
                    return False
                try:
                    self._slot[SINCE] = time.monotonic_ns()
                    self._store.put(i, self._task(*[column(item)[0] for column in self._columns]))
                except BaseException as raised:  # noqa: BLE001
                    error = raised
                else:
                    return True
            self._caller.failed(i, error, self._item(i))
        finally:
            del error  # its traceback holds this frame
        if self._policy.on_error == "raise":
            return False
        self._board.done[i] = FAILED
        return True

    def _item(self, i: int) -> Any:
        """Return an item, or the tuple of what several iterables gave."""
        columns = self._columns[self._policy.seed is not None :]
        try:
            args = [column(range(i, i + 1))[0] for column in columns]
        except BaseException:  # noqa: BLE001 - it is the item that cannot be loaded
            return "an item that cannot be loaded"
        return args[0] if len(args) == 1 else tuple(args)

    def _note(self, items: range, took_ns: int) -> None:
        """Keep the figures that `Job.stats` shows."""
        slot = self._slot
        slot[WORKED] += took_ns
        slot[N_ITEMS] += len(items)
        each_ns = took_ns // len(items)
        if each_ns > slot[SLOWEST + 2 * N_SLOWEST - 1]:
            pairs = [(slot[SLOWEST + 2 * k + 1], slot[SLOWEST + 2 * k]) for k in range(N_SLOWEST)]
            pairs = sorted([*pairs, (each_ns, items.start)], reverse=True)
            for k, (ns, item) in enumerate(pairs[:N_SLOWEST]):
                slot[SLOWEST + 2 * k], slot[SLOWEST + 2 * k + 1] = item, ns


class Source:
    """One of the iterables of a call.

    Parameters
    ----------
    inputs : Inputs
        Of the call.
    kind : {"rows", "range", "blocks"}
        Rows of an array, numbers, or pickled objects.
    *what
        An ArrayReference; a range; or the items per block and the blocks.
    """

    def __init__(self, inputs: Inputs, kind: str, *what: Any) -> None:
        self._inputs = inputs
        self._rows: Any = None
        self._block: tuple[int, list[Any]] = (-1, [])
        if kind == "rows":
            self._rows = inputs.array(ArrayReference(*what))
        elif kind == "range":
            (self._rows,) = what
        else:
            self._size, self._packed = what

    def items(self, indices: range) -> Sequence[Any]:
        """Return the items of a range of indices."""
        if self._rows is not None:
            return self._rows[indices.start : indices.stop]  # type: ignore[no-any-return]
        size, (start, stop) = self._size, (indices.start, indices.stop)
        found: list[Any] = []
        for number in range(start // size, (stop - 1) // size + 1):
            first = number * size
            found += self._load(number)[max(start - first, 0) : stop - first]
        return found

    def _load(self, number: int) -> list[Any]:
        if number != self._block[0]:
            self._block = (number, self._inputs.load(self._packed[number]))
        return self._block[1]


_initialized: list[bytes] = []  # what this process has been initialized with


def _initialize(key: bytes, initializer: Callable[..., Any], initargs: tuple[Any, ...]) -> None:
    """Run the initializer of a call, unless it has been run here already."""
    if _initialized == [key]:
        return
    try:
        initializer(*initargs)
    except BaseException as error:
        error.add_note("raised by the initializer")
        raise
    _initialized[:] = [key]


def _indices(indices: range) -> Sequence[int]:
    return indices


def _peak_bytes() -> int:
    import resource  # late: not on every system

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def generator(seed: Seed, i: int) -> np.random.Generator:
    """Return the random generator of item `i`."""
    entropy, key, pool_size = seed
    child = np.random.SeedSequence(entropy, spawn_key=(*key, i), pool_size=pool_size)
    return np.random.Generator(np.random.PCG64(child))


def _seeded(task: Callable[..., Any], seed: Seed, i: int, /, *args: Any) -> Any:
    return task(*args, rng=generator(seed, i))
