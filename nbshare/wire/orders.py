"""What workers are told: of a call, and what to do with its items.

Apart from what they do then, which their owner need not import.
"""

from __future__ import annotations

import os
import pickle
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from nbshare.arrays.inputs import Packed
from nbshare.memory import Mode

__all__ = [
    "LONG_LOADING_S",
    "STREAMS",
    "Brief",
    "CallMessage",
    "Order",
    "Policy",
    "Seed",
    "Task",
    "Terms",
    "pack_terms",
    "unpack_terms",
]

# Long imports are legal: from then on they are shown, and warned of once. Tests set less.
LONG_LOADING_S = float(os.environ.get("NBSHARE_LONG_LOADING_S", "30"))
STREAMS = ("stdout", "stderr")  # for which they are born with pipes
KEPT = 8  # terms, of some kB each: of who calls one function again and again, or a few in turn

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


class Task(NamedTuple):
    """What is done with each item; where its parts lie in the call's segments."""

    func: Packed
    shared: Packed | None
    initializer: Packed | None
    policy: Policy


class Order(NamedTuple):
    """What workers do in a call."""

    task: Task
    sources: list[tuple[Any, ...]]  # what `Source` takes
    n_workers: int
    chunksize: int | None
    first: int  # index of the first item


class Terms(NamedTuple):
    """What all workers are told of a call, and is the same for one like it."""

    settings: bytes  # of the caller's, see `nbshare.wire.context`
    task: Task


@lru_cache(KEPT)
def pack_terms(terms: Terms) -> bytes:
    """Return terms as they travel."""
    return pickle.dumps(terms)


@lru_cache(KEPT)
def unpack_terms(data: bytes) -> Terms:
    """Return terms that have come."""
    return pickle.loads(data)  # type: ignore[no-any-return]


class Brief(NamedTuple):
    """What else all workers are told of a call."""

    board: tuple[int, int, int]  # its offset in bytes, items, slots
    inputs: tuple[tuple[bytes | None, tuple[Mode, ...]], ...]  # small ones, and segments' modes
    order: tuple[Any, ...]  # what `Order` has beside the task

    def packed(self) -> bytes:
        """Return it as it travels: a plain tuple in half the time."""
        return pickle.dumps(tuple(self))


class CallMessage(NamedTuple):
    """What one worker is told; descriptors come beside it: board, inputs, maybe bell and gong."""

    call: int
    slot: int
    n_threads: int  # of BLAS and the like
    terms: bytes  # these are pickled once for all workers
    brief: bytes
