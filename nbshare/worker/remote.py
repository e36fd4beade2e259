"""A call as it reaches a worker process: segments mapped, the caller at the end of a channel."""

from __future__ import annotations

import gc
import os
import pickle
import select
import time
import weakref
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy.typing as npt

from nbshare.arrays.inputs import Inputs, opened
from nbshare.functions.freshness import ImportLog
from nbshare.memory import Mode, Segment, View, segment_of
from nbshare.wire.board import Board, FileLock
from nbshare.wire.context import apply_context
from nbshare.wire.failures import describe
from nbshare.wire.messages import Channel
from nbshare.wire.orders import CallMessage, Order
from nbshare.wire.results import LogKey, OutputSpec
from nbshare.wire.slots import NO_ITEM
from nbshare.worker import streams
from nbshare.worker.belongings import Belongings
from nbshare.worker.store import Rows
from nbshare.worker.work import Work

__all__ = ["KEEP_S", "Mappings", "Seen", "are_gone", "inputs_of", "work_on"]

LARGEST_BOARD = 1 << 18  # bytes: that is kept
KEEP_S = 0.5  # what is freed is to be free within a second

# Device and inode, which are not used again while we hold them; a size that may grow.
Key = tuple[int, int, int, Mode]

Seen = list[weakref.ref[Any]]  # the roots of views


class Mappings:
    """What a worker process has mapped, kept from one call to the next.

    A new mapping of 1 GiB that is there already costs 0.2 s of page faults. The next call that uses
    the same segments has them immediately; any other call drops them. So does an idle worker after
    `KEEP_S`, since a mapping keeps memory that its owner may have freed.

    Notes
    -----
    For one thread.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, Segment] = {}
        self._used: dict[Key, Segment] = {}  # in this call
        self._seen: Seen = []
        self._board: tuple[Key, Segment] | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def board(self, fd: int) -> Segment:
        """Map the segment of a board; boards of small calls lie in one, which is kept."""
        key = _key(fd, "r+")
        if key[2] > LARGEST_BOARD:
            return Segment.attach(fd, "r+")
        if self._board is None or self._board[0] != key:
            self._board = None
            self._board = key, Segment.attach(fd, "r+")
        else:
            os.close(fd)
        return self._board[1]

    def inputs(self, fds: Iterable[int], modes: Sequence[Mode]) -> list[View]:
        """Map the segments of inputs or outputs."""
        views = [View(self._attach(fd, mode)) for fd, mode in zip(fds, modes, strict=True)]
        self._seen += [weakref.ref(view.root) for view in views]
        return views

    def end_call(self) -> bool:
        """Keep what the call has used; returns whether no view of it is left."""
        self._kept, self._used = self._used, {}
        seen, self._seen = self._seen, []
        return are_gone(seen)

    def drop(self, *, but_outputs: bool = False) -> None:
        """Drop what this call does not use, but for the board: that is small."""
        self._kept = {k: s for k, s in self._kept.items() if but_outputs and s.mode == "r+"}

    def _attach(self, fd: int, mode: Mode) -> Segment:
        key = _key(fd, mode)
        segment = self._kept.get(key) or self._used.get(key)
        if segment is None:
            segment = Segment.attach(fd, mode)
        else:
            os.close(fd)
        self._used[key] = segment
        return segment


def are_gone(seen: Seen) -> bool:
    """Whether no view is left in this process of what a call has seen."""
    if any(ref() is not None for ref in seen):
        gc.collect()  # a cycle, such as a function with its globals, may hold one
    return all(ref() is None for ref in seen)


def _key(fd: int, mode: Mode) -> Key:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, mode


LOOK_S = 0.1  # between looks for items that nobody has told of, and whether the call was stopped


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
        order = Order(*pickle.loads(message.order))
        board = Board(mappings.board(fds[0]), *order.board)
        inputs, rest = [], iter(fds[1:])
        for small, modes in order.inputs:
            inputs.append(inputs_of(small, mappings.inputs(islice(rest, len(modes)), modes)))
        caller.news_fd, caller.items_fd = next(rest, -1), next(rest, -1)
        mappings.drop(but_outputs=True)  # which come with the first result
        apply_context(order.settings)
        lock = FileLock(lock_fd, message.call)
        work = Work(order, board, message.slot, inputs, caller, lock)
        del inputs
        caller.tell_news()  # the function is there
        try:
            while work.step():
                mappings.drop()
                caller.is_tidy = False
        except KeyboardInterrupt:  # between items: somebody has sent it to this process alone
            os._exit(1)
        work.note_peak()
    except BaseException as error:  # noqa: BLE001 - loading the function runs users' code
        caller.failed(NO_ITEM, error, "")
    finally:
        caller.close()


class _OutputRows:
    """Gives rows of the output, which may grow.

    Parameters
    ----------
    spec : OutputSpec
        Of a row.
    view : View
        Of the segment that the output lies in.
    offset, strides : int and tuple of int
        Of the output, in bytes.
    n : int or None
        Its rows; None if it grows.
    """

    def __init__(
        self, spec: OutputSpec, view: View, offset: int, strides: tuple[int, ...], n: int | None
    ) -> None:
        self._spec, self._view, self._n = spec, view, n
        self._offset, self._strides = offset, strides

    def __call__(self, first: int, n: int) -> npt.NDArray[Any]:
        step = self._strides[0]
        if self._n is not None:
            n = min(n, self._n - first)
        elif step:
            found = segment_of(self._view.root)
            assert found is not None
            nbytes = os.fstat(found[0].fd).st_size
            if self._offset + (first + n) * step > self._view.root.nbytes < nbytes:
                self._view = View(Segment.attach(os.dup(found[0].fd), "r+"))
            n = min(n, (self._view.root.nbytes - self._offset) // step - first)
        shape = (n, *self._spec.shape)
        start = self._offset + first * step
        assert self._spec.dtype is not None
        return self._view.array(self._spec.dtype, shape, start, self._strides)


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
        self.news_fd = self.items_fd = -1  # events, if there are any
        self._poll: select.epoll | None = None
        self._n_looks = 0  # for items, since some have come
        self.is_tidy = False  # this process is as items are to find it

    def tell_news(self) -> None:
        if self.news_fd >= 0:
            os.eventfd_write(self.news_fd, 1)

    def await_items(self, pause_s: float) -> bool:
        if self.items_fd < 0:
            time.sleep(pause_s)
            return True
        if self._poll is None:
            self._poll = select.epoll()
            # Of all who wait one wakes up for each stroke.
            self._poll.register(self.items_fd, select.EPOLLIN | select.EPOLLEXCLUSIVE)
        self.tidy_up()  # now, since nobody waits for it
        if self._poll.poll(LOOK_S):
            with suppress(BlockingIOError):  # another worker was quicker
                os.eventfd_read(self.items_fd)
            self._n_looks = 0
        else:
            self._n_looks += 1
        return self._n_looks * LOOK_S < KEEP_S  # else others may need this worker

    def call_another(self) -> None:
        if self.items_fd >= 0:
            os.eventfd_write(self.items_fd, 1)

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
        opened.clear()
        if self._poll is not None:
            self._poll.close()
        for fd in (self.news_fd, self.items_fd):
            if fd >= 0:
                os.close(fd)

    def decide(self, spec: OutputSpec) -> tuple[OutputSpec, Rows | None]:
        self._channel.send(("first", self._call, spec))
        (decided, place), fds = self._channel.receive()
        if not fds:
            return decided, None
        return decided, _OutputRows(decided, self._mappings.inputs(fds, ["r+"])[0], *place)

    def make_room(self, n: int) -> int:
        self._channel.send(("room", self._call, n))
        return int(self._channel.receive()[0])

    def add_log(self, key: LogKey, log: Segment) -> None:
        self._channel.send(("log", self._call, key), [log.fd])

    def sends_prints(self) -> bool:
        return streams.flush()

    def failed(self, i: int, error: BaseException, item: str) -> None:
        self._channel.send(("failed", self._call, describe(error, i, item)))
