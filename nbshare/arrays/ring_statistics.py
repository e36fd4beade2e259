"""What a ring buffer has done."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["RingStatistics"]


@dataclass(frozen=True)
class RingStatistics:
    """What a ring buffer has done, and where its time goes.

    Whoever waits is not the bottleneck: producers that wait want more consumers, and consumers
    that wait want more producers.

    Attributes
    ----------
    queued, reading, filling, free : int
        Slots now: waiting for a consumer, held by one, held by a producer, and the rest.
    n_put, n_got : int
        Slots queued so far, and given back by consumers. (Somebody killed in the very act of
        queueing one may count.)
    n_reclaimed : int
        Slots taken back from processes that died.
    producers_waited_s, consumers_waited_s : float
        Seconds that all of them together have waited for a slot, up to 0.1 s ago for those who
        wait now.
    """

    queued: int
    reading: int
    filling: int
    free: int
    n_put: int
    n_got: int
    n_reclaimed: int
    producers_waited_s: float
    consumers_waited_s: float
