"""A call as it reaches a worker process: segments mapped, the caller at the end of a channel."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy.typing as npt

from nbshare.arrays.arena import Inputs, SmallArena
from nbshare.engine.context import apply_context
from nbshare.engine.failures import describe
from nbshare.engine.log import LogKey
from nbshare.engine.messages import Channel
from nbshare.engine.output import OutputSpec
from nbshare.engine.schedule import NO_ITEM, Board, FileLock
from nbshare.engine.work import Order, Work
from nbshare.functions import ImportLog
from nbshare.memory import Mode, Segment

__all__ = ["CallMessage", "Mapped", "are_gone", "work_on"]


class CallMessage(NamedTuple):
    """What a worker is told of a call; the descriptors come beside it: board, then inputs."""

    call: int
    slot: int
    n_tasks: int
    n_slots: int
    path: list[str]  # of imports
    context: bytes  # the rest of it
    order: Order
    small_arena: bytes | None
    modes: tuple[Mode, ...]  # of the segments of the inputs


Mapped = list[weakref.ref[Segment]]


def work_on(
    message: CallMessage, fds: Sequence[int], channel: Channel, lock_fd: int, imports: ImportLog
) -> Mapped:
    """Work on a call until nothing is left to claim; failures are sent, not raised.

    Returns what was mapped, so that the caller of this function can see that it is gone.
    """
    caller = _RemoteCaller(message.call, channel)
    try:
        board = caller.attach(fds[0], "r+")
        segments: list[Segment | SmallArena] = [*map(caller.attach, fds[1:], message.modes)]
        if message.small_arena is not None:
            segments.insert(0, SmallArena(message.small_arena))
        apply_context(message.path, message.context)
        work = Work(
            message.order,
            Board(board, message.n_tasks, message.n_slots),
            message.slot,
            Inputs(segments),
            caller,
            FileLock(lock_fd, message.call),
        )
        imports.note()
        work.run()
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        caller.failed(NO_ITEM, error, None)
    return caller.mapped


def are_gone(mapped: Mapped) -> bool:
    """Whether no view is left in this process of what a call had mapped."""
    if any(ref() is not None for ref in mapped):
        gc.collect()  # a cycle, such as a function with its globals, may hold one
    return all(ref() is None for ref in mapped)


class _RemoteCaller:
    """The caller, at the other end of a channel."""

    def __init__(self, call: int, channel: Channel) -> None:
        self._call, self._channel = call, channel
        self.mapped: Mapped = []

    def attach(self, fd: int, mode: Mode) -> Segment:
        segment = Segment.attach(fd, mode)
        self.mapped.append(weakref.ref(segment))
        return segment

    def decide(self, spec: OutputSpec) -> tuple[OutputSpec, npt.NDArray[Any] | None]:
        self._channel.send(("first", self._call, spec))
        (decided, reference), fds = self._channel.receive()
        outputs = [self.attach(fd, "r+") for fd in fds]
        return decided, reference and Inputs(outputs).array(reference)

    def add_log(self, key: LogKey, log: Segment) -> None:
        self._channel.send(("log", self._call, key), [log.fd])

    def failed(self, i: int, error: BaseException, item: Any) -> None:
        self._channel.send(("failed", self._call, describe(error, i, item)))
