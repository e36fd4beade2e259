"""What the workers of a pipeline's stages do: loops from one ring buffer to the next.

::

    load ──► ring ──► stage ──► ring ──► last stage ──► ring of frames ──► the caller

**No deadlock.** A worker takes its slot of the next ring before it takes a block from the ring
before, and blocks are taken in order. So when somebody waits for block i, every earlier block is
through, and i is either queued, or with a worker that has its slot already, or the next that a
worker with a slot will take. One slot is enough.
"""

from __future__ import annotations

import contextlib
import inspect
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.lease import Lease
from nbshare.arrays.ring import RingBuffer
from nbshare.arrays.shared_array import SharedArray
from nbshare.errors import RingClosedError
from nbshare.wire.failures import safe_repr
from nbshare.wire.results import pack
from nbshare.wire.stages import (
    BLOCK,
    BLOCK_SINCE,
    FRAME_NBYTES,
    HEADER_NBYTES,
    NO_BLOCK,
    STAGE_BEGUN,
    STAGE_ENDED,
    Place,
)
from nbshare.worker.reports import note_block

__all__ = ["Station", "feed", "finish", "n_arguments", "process"]


class Station:
    """Where a worker notes what it is doing; the end of the data ends its block.

    Parameters
    ----------
    rows : SharedArray
        Of its stage: int64 of shape (workers, 4).
    place : Place
        The worker.
    """

    def __init__(self, rows: SharedArray, place: Place) -> None:
        self._row = np.asarray(rows)[place.worker].data

    def begin(self, block: int | None) -> None:
        """Note which block is being worked on from now on; None: it waits for one."""
        self._row[BLOCK_SINCE] = 0  # first: never the last block's number with its time
        self._row[BLOCK] = NO_BLOCK if block is None else block
        note_block(block)
        if block is not None:
            self.resume()

    def pause(self) -> None:
        """Note that time is not the block's from now on: it waits for a slot."""
        self._row[BLOCK_SINCE] = 0

    def resume(self) -> None:
        """Note that it is again."""
        self._row[BLOCK_SINCE] = time.monotonic_ns()

    def __enter__(self) -> Station:
        self._row[STAGE_BEGUN] = time.monotonic_ns()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._row[BLOCK_SINCE], self._row[STAGE_ENDED] = 0, time.monotonic_ns()
        is_busy = self._row[BLOCK] != NO_BLOCK  # else it may be of some other ring, in the function
        return kind is RingClosedError and not is_busy


# ------------------------------------------------------------------------- the loops


def feed(
    func: Callable[..., Any],
    sink: RingBuffer,
    rows: SharedArray,
    place: Place,
    /,
    **shared: Any,
) -> None:
    """Queue all blocks that a loader yields, or that it says it has filled in."""
    func = partial(func, **shared)
    with Station(rows, place) as station, contextlib.closing(Slots(sink, station)) as slots:
        station.begin(0)
        if n_arguments(func) == 1:
            for n, n_rows in enumerate(blocks_of(func(slots)), 1):
                slots.queue(n_rows)
                station.begin(n)
            return
        for n, block in enumerate(blocks_of(func()), 1):
            slots.queue(copy_to(next(slots), block))
            station.begin(n)


class Slots(Iterator[SharedArray]):
    """The empty slots that a loader fills in place: each is queued when it yields."""

    def __init__(self, ring: RingBuffer, station: Station) -> None:
        self._ring, self._station = ring, station
        self._lease: Lease | None = None
        self._slot: SharedArray | None = None
        self._n_queued = 0

    def __next__(self) -> SharedArray:
        if self._slot is None:
            self._station.pause()
            self._lease = self._ring.put()
            self._slot = self._lease.__enter__()
            self._station.resume()
        return self._slot

    def queue(self, rows: int | None) -> None:
        """Hand on the slot that was taken last, with so many rows; None: all."""
        lease, slot, self._slot = self._lease, self._slot, None
        if slot is None or lease is None:
            raise RuntimeError("the loader yields before it takes a slot: for slot in slots: ...")
        trim(self._ring, slot, rows)
        lease.number = self._n_queued
        lease.end(publish=True)
        self._n_queued += 1

    def close(self) -> None:
        """Give back the slot that was taken and not filled."""
        if self._lease is not None:
            self._lease.end(publish=False)


def process(
    func: Callable[..., Any],
    source: RingBuffer,
    sink: RingBuffer,
    rows: SharedArray,
    place: Place,
    /,
    **shared: Any,
) -> None:
    """Make a block of the next ring from each block of the one before, to the end of the data."""
    func = partial(func, **shared)
    in_place = n_arguments(func) == 2
    with Station(rows, place) as station:
        while True:
            with (put := sink.put()) as out, (got := source.get()) as block:
                station.begin(got.number)
                put.number = got.number
                n_rows = func(block, out) if in_place else copy_to(out, func(block))
                trim(sink, out, n_rows)
                station.begin(None)


def finish(
    func: Callable[..., Any],
    source: RingBuffer,
    sink: RingBuffer,
    rows: SharedArray,
    place: Place,
    /,
    **shared: Any,
) -> None:
    """Send the caller the last stage's result for each block."""
    with Station(rows, place) as station:
        while True:
            with (got := source.get()) as block:
                station.begin(got.number)
                result = func(block, **shared)
                station.pause()
                send(sink, got.number or 0, result)
                station.begin(None)


# ---------------------------------------------------------------------------- helpers


def n_arguments(func: Callable[..., Any]) -> int:
    """Return how many positional arguments a function has to be given; 1 where nobody knows."""
    try:
        parameters = inspect.signature(func).parameters.values()
    except (TypeError, ValueError):  # some functions in C have none
        return 1
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in positional and p.default is p.empty for p in parameters)


def blocks_of(loaded: Any) -> Iterable[Any]:
    """Return what a loader gives, if it can be iterated over."""
    if not isinstance(loaded, Iterable):
        raise TypeError(
            f"the loader returned {safe_repr(loaded)}: it must be a generator function, which "
            "yields one block after the other"
        )
    return loaded


def copy_to(out: SharedArray, block: Any) -> int | None:
    """Copy a block to a slot; returns how many rows it has."""
    if block is None:
        raise TypeError(
            "None is no block. Yield or return an array; or take the slot and fill it in place: "
            "load(slots), stage(block, out)."
        )
    array = np.asarray(block)
    fits = array.shape == out.shape
    if not fits and array.ndim == out.ndim > 0:
        fits = array.shape[1:] == out.shape[1:] and len(array) <= len(out)
    if not fits:
        raise ValueError(
            f"a block of shape {array.shape} does not fit the slots of shape {out.shape}: say "
            "shape=, one for all stages or a list with what each stage gets. A block may have "
            "fewer rows."
        )
    if not np.can_cast(array.dtype, out.dtype, "same_kind"):
        raise TypeError(
            f"a block of {array.dtype} does not fit the slots of {out.dtype}: say dtype=, one for "
            "all stages or a list with what each stage gets"
        )
    if not out.ndim:
        out[...] = array
        return None
    out[: len(array)] = array
    return len(array)


def trim(ring: RingBuffer, slot: SharedArray, rows: Any) -> None:
    """Hand on the first rows only; None: all."""
    if isinstance(rows, np.ndarray):
        raise TypeError(
            "who fills a slot in place returns or yields None, or how many rows are filled; not "
            f"an array, as this one of shape {rows.shape}"
        )
    if rows is not None and slot.shape:
        ring.trim(slot, rows)


def send(sink: RingBuffer, block: int, value: Any) -> None:
    """Send a result in frames: however large it is, little memory is needed on the way."""
    parts, nbytes = pack(value)
    for start in range(0, nbytes, FRAME_NBYTES):
        stop = min(start + FRAME_NBYTES, nbytes)
        with sink.put() as slot:
            frame = np.asarray(slot)
            frame[:HEADER_NBYTES].view(np.int64)[:] = block, nbytes, start
            for offset, part in parts:
                lo, hi = max(start, offset), min(stop, offset + part.nbytes)
                if lo < hi:
                    at = HEADER_NBYTES - start
                    bytes_: npt.NDArray[np.uint8] = np.frombuffer(part, np.uint8)
                    frame[at + lo : at + hi] = bytes_[lo - offset : hi - offset]
            sink.trim(slot, HEADER_NBYTES + stop - start)
