"""Computes how many workers of a call fit into memory, from the memory used so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nbshare._core.memory.budget import SHARE

MEMORY_CHECK_S = 0.5  # interval of checks of the workers' memory


class WorkerMemory(NamedTuple):
    """The memory of a worker that no other process shares, in bytes."""

    now: int
    peak: int  # in this call


class Fit(NamedTuple):
    """The number of workers that fit into memory, and the peak memory of each, in bytes."""

    n: int
    each: int


def workers_that_fit(workers: Sequence[WorkerMemory], available: int) -> Fit:
    """Return how many workers like the running ones fit into memory, at least one.

    Each worker may still grow to the highest peak of all workers so far.
    """
    each = max(worker.peak for worker in workers)
    left = SHARE * available - sum(each - worker.now for worker in workers)
    return Fit(max(1, len(workers) + int(left // each)), each)
