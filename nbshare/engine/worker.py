"""A worker process: waits for calls, claims chunks, runs the function, stores results.

::

    started ──► ready ──► call ──► claim ─► run items ─► claim … nothing left ──► finished ─┐
                  ▲                                                                          │
                  └──────────────────────────────────────────────────────────────────────────┘

It never runs the caller's ``__main__`` and it dies with its owner (`nbshare.engine.orphans`).
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple

import numpy.typing as npt

from nbshare.arrays.arena import ArrayReference, Inputs, Packed
from nbshare.engine import orphans
from nbshare.engine.context import apply_context
from nbshare.engine.failures import describe
from nbshare.engine.messages import Channel
from nbshare.engine.output import OutputSpec, ResultStore
from nbshare.engine.schedule import ITEM, NO_ITEM, STOP, Board, Claims
from nbshare.functions import module_stamps
from nbshare.memory import Segment

__all__ = ["CallMessage", "Endowment", "is_worker", "run"]

# Of two processes the kernel ends the one with the higher score when memory runs out: a worker
# can be replaced, the notebook's kernel cannot.
OOM_SCORE = b"500"

_is_worker = False


class Endowment(NamedTuple):
    """The descriptors and facts that a worker is born with."""

    channel_fd: int
    life_fd: int  # reading end of the owner's life pipe
    lock_fd: int  # where chunks are claimed
    owner_pidfd: int


class CallMessage(NamedTuple):
    """What a worker is told of a call; the descriptors come beside it: board, arena, others."""

    call: int
    slot: int
    n_tasks: int
    n_slots: int
    n_workers: int
    chunksize: int | None
    context: bytes
    func: Packed
    shared: Packed
    sources: Packed
    writable: tuple[bool, ...]  # of the other segments


def is_worker() -> bool:
    """Whether this process is a worker, so that a nested map runs inline."""
    return _is_worker


def run(birth: Endowment) -> None:
    """Live as a worker until the owner ends or says so."""
    channel = _settle_in(birth)
    channel.send(("ready", os.getpid()))
    known = set(sys.modules)
    while True:
        try:
            message, fds = channel.receive()
        except (EOFError, OSError):
            return
        if message is None:
            return
        if not isinstance(message, CallMessage):
            continue  # an answer to a question of a call that was stopped meanwhile
        _run_call(message, fds, channel, birth.lock_fd)
        channel.send(("finished", message.call, module_stamps(known)))


def _settle_in(birth: Endowment) -> Channel:
    """Become a worker: alone in a process group, doomed with the owner, set as the caller is."""
    global _is_worker
    _is_worker = True
    os.setpgid(0, 0)
    orphans.arm(birth.life_fd)
    orphans.watch_owner(birth.owner_pidfd)
    # Some containers forbid it; then the kernel chooses by size alone.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OOM_SCORE)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    faulthandler.enable()  # the stack of a crash in C goes to the standard error output
    channel = Channel.from_fd(birth.channel_fd)
    environ, _ = channel.receive()
    os.environ.clear()
    os.environ.update(environ)
    os.environ["MPLBACKEND"] = "Agg"  # the notebook's own needs a kernel
    if "numpy.random" in sys.modules:  # forked copies would all draw the same numbers
        sys.modules["numpy.random"].seed()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    return channel


def _run_call(message: CallMessage, fds: list[int], channel: Channel, lock_fd: int) -> None:
    """Work on one call until nothing is left to claim; failures are sent, not raised."""
    board_fd, arena_fd, *other_fds = fds
    try:
        board = Board(Segment.attach(board_fd, writable=True), message.n_tasks, message.n_slots)
        segments = [Segment.attach(arena_fd, writable=False)]
        for fd, writable in zip(other_fds, message.writable, strict=True):
            segments.append(Segment.attach(fd, writable=writable))
        inputs = Inputs(segments)
        apply_context(message.context)
        func = inputs.load(message.func)
        shared = inputs.load(message.shared)
        sources = [Source(inputs, description) for description in inputs.load(message.sources)]
    except BaseException as error:  # noqa: BLE001 - importing runs users' code
        channel.send(("failed", message.call, describe(error, NO_ITEM, None)))
        return

    def ask(spec: OutputSpec) -> tuple[OutputSpec, npt.NDArray[Any] | None]:
        channel.send(("first", message.call, spec))
        (decided, reference), answer_fds = channel.receive()
        outputs = [Segment.attach(fd, writable=True) for fd in answer_fds]
        return decided, reference and Inputs(outputs).array(reference)

    def announce(segment: Segment) -> None:
        channel.send(("log", message.call, message.slot), [segment.fd])

    store = ResultStore(board, message.slot, ask, announce)
    claims = Claims(
        board, message.slot, lock_fd, message.call, message.n_workers, message.chunksize
    )
    item_s = 0.0
    while chunk := claims.claim(item_s):
        start_s = time.perf_counter()
        items = zip(*(source.items(chunk) for source in sources), strict=True)
        failure = _run_chunk(board, message.slot, chunk, items, func, shared, store)
        if failure is not None:
            channel.send(("failed", message.call, failure))
        item_s = (time.perf_counter() - start_s) / len(chunk)


def _run_chunk(
    board: Board,
    slot: int,
    chunk: range,
    items: Iterable[tuple[Any, ...]],
    func: Any,
    shared: dict[str, Any],
    store: ResultStore,
) -> Any:
    """Run the items of a chunk; returns the failure that ended it, or None."""
    current, header = board.slots[slot].data, board.header.data
    i = chunk.start
    args: tuple[Any, ...] = ()
    try:
        for i, args in zip(chunk, items, strict=True):
            if header[STOP]:
                break
            current[ITEM] = i
            store.put(i, func(*args, **shared))
    except BaseException as error:  # noqa: BLE001 - SystemExit too is the item's failure
        return describe(error, i, args[0] if len(args) == 1 else args)
    finally:
        current[ITEM] = NO_ITEM
    return None


class Source:
    """One of the iterables of a call, as a worker sees it.

    `description` is ``("rows", ArrayReference)``, ``("range", range)`` or
    ``("blocks", items per block, [Packed, ...])``.
    """

    def __init__(self, inputs: Inputs, description: tuple[Any, ...]) -> None:
        self._inputs = inputs
        self._block: tuple[int, list[Any]] = (-1, [])
        self._rows: Any = None
        match description:
            case ("rows", reference):
                self._rows = inputs.array(ArrayReference(*reference))
            case ("range", numbers):
                self._rows = numbers
            case ("blocks", size, packed):
                self._size, self._packed = size, packed

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
