"""Copies large data into a segment, in pieces, by several threads.

Several threads are used because one CPU does not saturate the memory bus, especially while the
kernel creates fresh pages. Data are copied in pieces because an interrupt waits for the end of a
piece.
"""

from __future__ import annotations

import _thread
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.memory.disk import write_all
from nbshare._core.system import processes

PIECE = 16 << 20  # bytes, about 7 ms (smaller pieces need more calls, larger ones delay Ctrl-C)
LONGEST_S = 2.0  # longest wait of an interrupt for a piece, on a machine that swaps
MAX_THREADS = 4  # fewer threads saturate the bus of a desktop machine

Piece = Callable[[], None]  # copies one piece


def pieces_to_write(fd: int, offset: int, part: Any) -> Iterator[Piece]:
    """Yield pieces that together write a contiguous array or buffer to a file at an offset."""
    data = as_bytes(part).data
    for start in range(0, data.nbytes, PIECE):
        yield partial(write_all, fd, data[start : start + PIECE], offset + start)


def pieces_to_copy(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> Iterator[Piece]:
    """Yield pieces along the first axis that together copy an array into another of its shape."""
    rows = max(1, PIECE * len(source) // max(1, source.nbytes))
    for start in range(0, len(source), rows):
        block = slice(start, start + rows)
        yield partial(np.copyto, target[block], source[block])


def copy_all(pieces: list[Piece]) -> None:
    """Copy pieces, in several threads if there are enough pieces. The list is consumed."""
    left, failures = iter(pieces), list[BaseException]()  # the threads share the iterator

    def help_out(is_busy: Any) -> None:
        with is_busy:
            try:
                for piece in left:
                    piece()
            except BaseException as error:  # noqa: BLE001 - for the caller
                failures.append(error)
                pieces.clear()

    # Raw threads and locks, because an interrupt inside those of `threading` breaks them. Each
    # helper acquires its lock itself, so a helper that begins late, or never, delays no other.
    helpers = []
    try:
        for _ in range(min(MAX_THREADS, processes.usable_cpus(), len(pieces) // 2) - 1):
            helpers.append(_thread.allocate_lock())
            with suppress(RuntimeError):  # no more threads are allowed: the others copy the rest
                _thread.start_new_thread(help_out, (helpers[-1],))
        for piece in left:
            piece()
        for is_busy in helpers:  # until they finish their pieces, on slow memory or disks too
            with is_busy:
                pass
    except BaseException:  # an interrupt waits for the current pieces, but not forever
        pieces.clear()
        for is_busy in helpers:
            if is_busy.acquire(timeout=LONGEST_S):
                is_busy.release()
        raise
    if failures:
        raise failures[0]


def as_bytes(part: Any) -> npt.NDArray[np.uint8]:
    """View a contiguous array or buffer as bytes."""
    # A memoryview is not enough, because datetime64 and other dtypes have no buffer format.
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return np.frombuffer(part, np.uint8)
