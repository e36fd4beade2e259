"""A call as it reaches a worker process: segments mapped, the caller at the end of a channel."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

import numpy.typing as npt

from nbshare.arrays.inputs import ArrayReference, Inputs
from nbshare.functions import ImportLog
from nbshare.memory import Mode, Segment, View
from nbshare.worker import streams
from nbshare.worker.claims import FileLock
from nbshare.worker.context import apply_context
from nbshare.worker.failures import describe
from nbshare.worker.log import LogKey
from nbshare.worker.mappings import Mappings
from nbshare.worker.messages import Channel
from nbshare.worker.output import OutputSpec
from nbshare.worker.schedule import NO_ITEM, Board
from nbshare.worker.work import Order, Task, Work

__all__ = ["Brief", "CallMessage", "Terms", "inputs_of", "pack_terms", "work_on"]

KEPT = 8  # terms, of some kB each: of who calls one function again and again, or a few in turn


class Terms(NamedTuple):
    """What all workers are told of a call, and is the same for one like it."""

    settings: bytes  # of the caller's, see `nbshare.worker.context`
    task: Task


@lru_cache(KEPT)
def pack_terms(terms: Terms) -> bytes:
    """Return terms as they travel."""
    return pickle.dumps(terms)


@lru_cache(KEPT)
def _terms(data: bytes) -> Terms:
    return pickle.loads(data)  # type: ignore[no-any-return]


class Brief(NamedTuple):
    """What else all workers are told of a call."""

    board: tuple[int, int, int]  # its offset in bytes, items, slots
    inputs: tuple[tuple[bytes | None, tuple[Mode, ...]], ...]  # small ones, and segments' modes
    order: tuple[Any, ...]  # what `Order` has beside the task

    def packed(self) -> bytes:
        """Return it as it travels: a plain tuple in half the time."""
        return pickle.dumps(tuple(self))


class CallMessage(NamedTuple):
    """What one worker is told; the descriptors come beside it: board, inputs, and maybe a bell."""

    call: int
    map: int  # the same for all calls of a stream
    slot: int
    n_threads: int  # of BLAS and the like
    terms: bytes  # these are pickled once for all workers
    brief: bytes


def work_on(
    message: CallMessage,
    fds: Sequence[int],
    channel: Channel,
    lock_fd: int,
    imports: ImportLog,
    mappings: Mappings,
) -> None:
    """Work on a call until nothing is left to claim; failures are sent, not raised."""
    caller = _RemoteCaller(message.call, channel, mappings)
    bell_fd: int | None = None
    try:
        terms, brief = _terms(message.terms), Brief(*pickle.loads(message.brief))
        board = Board(mappings.board(fds[0]), *brief.board)
        inputs, rest = [], iter(fds[1:])
        for small, modes in brief.inputs:
            inputs.append(inputs_of(small, mappings.inputs(islice(rest, len(modes)), modes)))
        bell_fd = next(rest, None)
        mappings.drop(but_outputs=True)  # which come with the first result
        apply_context(terms.settings)
        lock = FileLock(lock_fd, message.call)
        work = Work(Order(terms.task, *brief.order), board, message.slot, inputs, caller, lock)
        del inputs
        imports.note()
        while work.step():
            mappings.drop()
            if bell_fd is not None:
                os.eventfd_write(bell_fd, 1)
        work.note_peak()
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        caller.failed(NO_ITEM, error, "")
    finally:
        if bell_fd is not None:
            os.close(bell_fd)


def inputs_of(small: bytes | None, segments: list[View]) -> Inputs:
    """Return inputs as they were packed; if they are few, they came with the message."""
    return Inputs(segments if small is None else [View(small), *segments])


class _RemoteCaller:
    """The caller, at the other end of a channel."""

    def __init__(self, call: int, channel: Channel, mappings: Mappings) -> None:
        self._call, self._channel, self._mappings = call, channel, mappings

    def decide(self, spec: OutputSpec) -> tuple[OutputSpec, npt.NDArray[Any] | None]:
        self._channel.send(("first", self._call, spec))
        (decided, reference), fds = self._channel.receive()
        if reference is None:
            return decided, None
        outputs = self._mappings.inputs(fds, ["r+"])
        return decided, Inputs(outputs).array(ArrayReference(*reference))

    def add_log(self, key: LogKey, log: Segment) -> None:
        self._channel.send(("log", self._call, key), [log.fd])

    def sends_prints(self) -> bool:
        return streams.flush()

    def failed(self, i: int, error: BaseException, item: str) -> None:
        self._channel.send(("failed", self._call, describe(error, i, item)))
