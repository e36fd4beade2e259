"""One call as a worker sees it: inputs mapped, chunks claimed, results stored."""

from __future__ import annotations

import gc
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from nbshare.arrays.arena import ArrayReference, Inputs, Packed
from nbshare.engine.context import apply_context
from nbshare.engine.failures import Failure, describe
from nbshare.engine.messages import Channel
from nbshare.engine.output import OutputSpec, ResultStore
from nbshare.engine.schedule import ITEM, NO_ITEM, STOP, Board, Claims
from nbshare.functions import ImportLog
from nbshare.memory import Mode, Segment

__all__ = ["CallMessage", "are_gone", "work_on"]


class CallMessage(NamedTuple):
    """What a worker is told of a call; the descriptors come beside it: board, arena, others."""

    call: int
    slot: int
    n_tasks: int
    n_slots: int
    n_workers: int
    chunksize: int | None
    path: list[str]  # of imports
    context: bytes  # the rest of it
    func: Packed
    shared: Packed
    sources: Packed
    modes: tuple[Mode, ...]  # of the other segments


Mapped = list[weakref.ref[Segment]]


def work_on(
    message: CallMessage, fds: Sequence[int], channel: Channel, lock_fd: int, imports: ImportLog
) -> Mapped:
    """Work on a call until nothing is left to claim; failures are sent, not raised.

    Returns what was mapped, so that the caller of this function can see that it is gone.
    """
    mapped: Mapped = []
    try:
        work = _Work(message, fds, channel, lock_fd, mapped)
        imports.note()
        work.run()
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        channel.send(("failed", message.call, describe(error, NO_ITEM, None)))
    return mapped


def are_gone(mapped: Mapped) -> bool:
    """Whether no view is left in this process of what a call had mapped."""
    if any(ref() is not None for ref in mapped):
        gc.collect()  # a cycle, such as a function with its globals, may hold one
    return all(ref() is None for ref in mapped)


class _Work:
    def __init__(
        self,
        message: CallMessage,
        fds: Sequence[int],
        channel: Channel,
        lock_fd: int,
        mapped: Mapped,
    ) -> None:
        self._message = message
        self._channel = channel
        self._mapped = mapped
        modes: tuple[Mode, ...] = ("r+", "r", *message.modes)  # the board, the arena, the others
        board, *segments = map(self._attach, fds, modes)
        self._board = Board(board, message.n_tasks, message.n_slots)
        apply_context(message.path, message.context)
        inputs = Inputs(segments)
        self._func = inputs.load(message.func)
        self._shared = inputs.load(message.shared)
        self._sources = [Source(inputs, *what) for what in inputs.load(message.sources)]
        self._store = ResultStore(self._board, message.slot, self._ask, self._announce)
        self._claims = Claims(
            self._board,
            message.slot,
            (lock_fd, message.call),
            message.n_workers,
            message.chunksize,
        )

    def run(self) -> None:
        item_s = 0.0
        while chunk := self._claims.claim(item_s):
            start_s = time.perf_counter()
            items = zip(*(source.items(chunk) for source in self._sources), strict=True)
            failure = self._run_chunk(chunk, items)
            if failure is not None:
                self._channel.send(("failed", self._message.call, failure))
            item_s = (time.perf_counter() - start_s) / len(chunk)

    def _run_chunk(self, chunk: range, items: Iterable[tuple[Any, ...]]) -> Failure | None:
        """Run the items of a chunk; returns the failure that ended it, if any."""
        func, shared, put = self._func, self._shared, self._store.put
        current, header = self._board.slots[self._message.slot].data, self._board.header.data
        i, args = chunk.start, ()
        try:
            for i, args in zip(chunk, items, strict=True):
                if header[STOP]:
                    break
                current[ITEM] = i
                put(i, func(*args, **shared))
        except BaseException as error:  # noqa: BLE001 - SystemExit too is the item's failure
            return describe(error, i, args[0] if len(args) == 1 else args)
        finally:
            current[ITEM] = NO_ITEM
        return None

    def _attach(self, fd: int, mode: Mode) -> Segment:
        segment = Segment.attach(fd, mode)
        self._mapped.append(weakref.ref(segment))
        return segment

    def _ask(self, spec: OutputSpec) -> tuple[OutputSpec, npt.NDArray[Any] | None]:
        self._channel.send(("first", self._message.call, spec))
        (decided, reference), fds = self._channel.receive()
        outputs = [self._attach(fd, "r+") for fd in fds]
        return decided, reference and Inputs(outputs).array(reference)

    def _announce(self, log: Segment) -> None:
        self._channel.send(("log", self._message.call, self._message.slot), [log.fd])


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

    def items(self, chunk: range) -> Iterator[Any]:
        """Iterate over the items of a chunk."""
        if self._rows is not None:
            return iter(self._rows[chunk.start : chunk.stop])
        return self._unpacked(chunk)

    def _unpacked(self, chunk: range) -> Iterator[Any]:
        for i in chunk:
            block, place = divmod(i, self._size)
            if block != self._block[0]:
                self._block = (block, self._inputs.load(self._packed[block]))
            yield self._block[1][place]
