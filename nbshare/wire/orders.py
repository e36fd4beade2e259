"""What workers are told: of a call, and what to do with its items.

Apart from what they do then, which their owner need not import.
"""

from __future__ import annotations

import os
from typing import Any, Literal, NamedTuple

from nbshare.arrays.inputs import Packed
from nbshare.arrays.ring import RingBuffer
from nbshare.memory import Mode

__all__ = [
    "LONG_LOADING_S",
    "STREAMS",
    "CallMessage",
    "Fixed",
    "Order",
    "Policy",
    "Seed",
    "Stage",
]

# Long imports are legal: from then on they are shown, and warned of once. Tests set less.
LONG_LOADING_S = float(os.environ.get("NBSHARE_LONG_LOADING_S", "30"))
STREAMS = ("stdout", "stderr")  # for which they are born with pipes

Seed = tuple[Any, tuple[int, ...], int]  # a SeedSequence's entropy, spawn key and pool size


class Policy(NamedTuple):
    """What a call does about failures, and with chance."""

    on_error: Literal["raise", "return"] = "raise"
    retries: int = 0  # per item
    timeout_s: float | None = None  # per item
    seed: Seed | None = None

    @property
    def returns_errors(self) -> bool:
        """Whether a call goes on after failures."""
        return self.on_error == "return"


class Fixed(NamedTuple):
    """What is the same for all items: where it lies in the inputs that it was packed into."""

    func: Packed
    shared: Packed | None
    initializer: Packed | None
    initializer_key: bytes | None  # equal for equal ones


class Order(NamedTuple):
    """What all workers of a call are told."""

    settings: bytes  # of the caller's, see `nbshare.wire.context`
    n_threads: int  # of BLAS and the like
    board: tuple[int, int | None, int]  # its offset in bytes, items, slots
    inputs: list[tuple[bytes | None, tuple[Mode, ...]]]  # small ones, and segments' modes
    fixed: Fixed
    stage: Packed | None  # the rings of a pipeline's stage
    sources: list[tuple[Any, ...]]  # what `Source` takes
    n_fed: int  # objects of each item that come by a feed, whose segment is the last of the inputs
    policy: Policy
    n_workers: int
    chunksize: int | None


class CallMessage(NamedTuple):
    """What one worker is told; descriptors come beside it: board, inputs, maybe events."""

    call: int
    slot: int
    order: bytes  # pickled once for all workers


class Stage(NamedTuple):
    """The ring buffers before and behind one stage."""

    source: RingBuffer | None  # None: it is the loader
    sink: RingBuffer | None  # None: what it returns are the results
