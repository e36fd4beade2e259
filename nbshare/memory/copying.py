"""Copying large data into a segment: in pieces, by several threads.

Several, because one core does not saturate the memory bus, least of all while the kernel makes
fresh pages; in pieces, so that an interrupt need not wait for all of it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Job", "copy_jobs", "run", "write_jobs"]

PIECE = 16 << 20  # bytes: some 7 ms; smaller ones cost calls, larger ones delay Ctrl-C
MAX_THREADS = 4  # the bus of a desktop machine is full with fewer

Job = Callable[[], None]


def write_jobs(fd: int, offset: int, part: Any) -> Iterator[Job]:
    """Yield jobs that together write a contiguous array or buffer to a file at an offset."""
    data = as_bytes(part).data
    for start in range(0, data.nbytes, PIECE):
        piece = data[start : start + PIECE]
        yield partial(_write, fd, piece, offset + start)


def copy_jobs(target: npt.NDArray[Any], source: npt.NDArray[Any]) -> Iterator[Job]:
    """Yield jobs that together copy an array into another of its shape, along the first axis."""
    rows = max(1, PIECE * len(source) // max(1, source.nbytes))
    for start in range(0, len(source), rows):
        block = slice(start, start + rows)
        yield partial(np.copyto, target[block], source[block])


def run(jobs: list[Job]) -> None:
    """Run jobs, in several threads if there are enough of them."""
    n_threads = min(MAX_THREADS, _n_cpus(), len(jobs) // 2)
    if n_threads < 2:
        for job in jobs:
            job()
        return
    from concurrent.futures import ThreadPoolExecutor  # late: most calls copy little

    threads = ThreadPoolExecutor(n_threads)
    try:
        for done in [threads.submit(job) for job in jobs]:
            done.result()
    finally:  # an interrupt waits for the pieces under way, not for those after them
        threads.shutdown(cancel_futures=True)


def as_bytes(part: Any) -> npt.NDArray[np.uint8]:
    """View a contiguous array or buffer as bytes."""
    # Not by memoryview alone: datetime64 and other dtypes have no buffer format of their own.
    if isinstance(part, np.ndarray):
        return np.ascontiguousarray(part).reshape(-1).view(np.uint8)
    return np.frombuffer(part, np.uint8)


def _write(fd: int, piece: memoryview, offset: int) -> None:
    while piece.nbytes:  # a signal can cut a write short
        written = os.pwrite(fd, piece, offset)
        offset, piece = offset + written, piece[written:]


def _n_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
