"""How many workers of a call fit into memory, by what they have taken so far."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nbshare._core.memory.budget import SHARE

LOOK_S = 0.5  # between looks at the memory of a call's workers


class Private(NamedTuple):
    """The memory of a worker that no other process shares, in bytes."""

    now: int
    peak: int  # in this call


class Fit(NamedTuple):
    """How many workers fit, and what each of them takes at its peak, in bytes."""

    n: int
    each: int


def workers_that_fit(workers: Sequence[Private], available: int) -> Fit:
    """Return how many workers like those that run fit into memory, at least one.

    Each may reach the highest peak so far again, and does not own yet what it lacks of that.
    """
    each = max(worker.peak for worker in workers)
    left = SHARE * available - sum(each - worker.now for worker in workers)
    return Fit(max(1, len(workers) + int(left // each)), each)
