"""A call as it reaches a worker process: segments mapped, the caller at the end of a channel."""

from __future__ import annotations

import os
import pickle
import select
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy.typing as npt

from nbshare.arrays.inputs import ArrayReference, Inputs
from nbshare.functions import ImportLog
from nbshare.memory import Segment, View
from nbshare.wire.board import NO_ITEM, Board, FileLock
from nbshare.wire.context import apply_context
from nbshare.wire.failures import describe
from nbshare.wire.messages import Channel
from nbshare.wire.orders import Brief, CallMessage, Order, unpack_terms
from nbshare.wire.results import LogKey, OutputSpec
from nbshare.worker import streams
from nbshare.worker.belongings import Belongings
from nbshare.worker.mappings import Mappings
from nbshare.worker.work import Work

__all__ = ["inputs_of", "work_on"]

GONG_S = 0.1  # between looks for items that nobody has told of, and whether the call was stopped


def work_on(
    message: CallMessage,
    fds: Sequence[int],
    channel: Channel,
    lock_fd: int,
    imports: ImportLog,
    mappings: Mappings,
    belongings: Belongings,
) -> None:
    """Work on a call until nothing is left to claim; failures are sent, not raised."""
    belongings.restore(message.n_threads)
    caller = _RemoteCaller(message, channel, imports, mappings, belongings)
    try:
        terms, brief = unpack_terms(message.terms), Brief(*pickle.loads(message.brief))
        board = Board(mappings.board(fds[0]), *brief.board)
        inputs, rest = [], iter(fds[1:])
        for small, modes in brief.inputs:
            inputs.append(inputs_of(small, mappings.inputs(islice(rest, len(modes)), modes)))
        caller.bell_fd, caller.gong_fd = next(rest, -1), next(rest, -1)
        mappings.drop(but_outputs=True)  # which come with the first result
        apply_context(terms.settings)
        lock = FileLock(lock_fd, message.call)
        work = Work(Order(terms.task, *brief.order), board, message.slot, inputs, caller, lock)
        del inputs
        caller.ring()
        try:
            while work.step():
                mappings.drop()
                caller.is_tidy = False
                caller.ring()
        except KeyboardInterrupt:  # between items: somebody has sent it to this process alone
            os._exit(1)
        work.note_peak()
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        caller.failed(NO_ITEM, error, "")
    finally:
        caller.close()


def inputs_of(small: bytes | None, segments: list[View]) -> Inputs:
    """Return inputs as they were packed; if they are few, they came with the message."""
    return Inputs(segments if small is None else [View(small), *segments])


class _RemoteCaller:
    """The caller, at the other end of a channel."""

    def __init__(
        self,
        message: CallMessage,
        channel: Channel,
        imports: ImportLog,
        mappings: Mappings,
        belongings: Belongings,
    ) -> None:
        self._message, self._call = message, message.call
        self._channel, self._imports = channel, imports
        self._mappings, self._belongings = mappings, belongings
        self.bell_fd = self.gong_fd = -1  # if there are any
        self._gong: select.epoll | None = None
        self.is_tidy = False  # this process is as items are to find it

    def ring(self) -> None:
        """Tell that the function is there, or a chunk done."""
        if self.bell_fd >= 0:
            os.eventfd_write(self.bell_fd, 1)

    def await_items(self, pause_s: float) -> None:
        if self.gong_fd < 0:
            time.sleep(pause_s)
            return
        if self._gong is None:
            self._gong = select.epoll()
            # Of all who wait one wakes up for each stroke.
            self._gong.register(self.gong_fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self.tidy_up()  # now, since nobody waits for it
        if self._gong.poll(GONG_S):
            with suppress(BlockingIOError):  # another worker was quicker
                os.eventfd_read(self.gong_fd)

    def call_another(self) -> None:
        if self.gong_fd >= 0:
            os.eventfd_write(self.gong_fd, 1)

    def tidy_up(self) -> None:
        if not self.is_tidy:
            self._belongings.restore_after()
            self._belongings.restore(self._message.n_threads)
            self.is_tidy = True

    def tell_imports(self) -> bool:
        # When all items are done the next call may begin: it has to know what may have been edited.
        if stamps := self._imports.take():
            self._channel.send(("imported", stamps))
        return bool(stamps)

    def close(self) -> None:
        """Let go of descriptors."""
        if self._gong is not None:
            self._gong.close()
        for fd in (self.bell_fd, self.gong_fd):
            if fd >= 0:
                os.close(fd)

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
