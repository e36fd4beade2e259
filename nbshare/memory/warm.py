"""Warm segments: memory of a call that has ended, kept for the next one.

Fresh pages are the real cost of shared memory: copying into them takes eight times as long as
into pages that are there, and on a virtual machine whose host took them back forty times. So the
inputs and outputs of calls are *leased*: when the last view of such a segment goes, the segment
returns here, and the next call of about that size gets it.

A segment is used again only if no other process can still see it: it never left our own workers,
and each of them has said that its mapping is gone, or has ended. Any other is dropped.
"""

from __future__ import annotations

import _thread
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.memory import budget
from nbshare.memory.kinds import choice
from nbshare.memory.segment import Segment

__all__ = ["WarmPool", "pool"]

SMALL = 1 << 20  # bytes; below, a fresh segment costs less than keeping books
IDLE_S = 30.0  # kept that long; a notebook's next cell mostly comes sooner
TRIM_S = 1.0  # between looks at what has come back: an unused segment stays no longer uncounted
SHARE = 0.25  # of what is available may be kept at most

Lease = npt.NDArray[np.uint8]


class WarmPool:
    """Gives out segments and takes them back by itself.

    Notes
    -----
    Safe from any thread. A lease may end inside any allocation of any thread; its finalizer only
    appends to a deque.
    """

    def __init__(self) -> None:
        self._returned: deque[Segment] = deque()
        self._kept: list[tuple[float, Segment]] = []  # since when
        self._leases: dict[int, weakref.ref[Lease]] = {}
        self._lock = _thread.allocate_lock()

    def writable(self, nbytes: int) -> tuple[Lease, bool]:
        """Return memory for results, and whether it is fresh and so zero."""
        segment = self._take(nbytes, sealed=False)
        if segment is not None:
            return self._lease(segment), False
        return self._lease(Segment.create(nbytes)), True

    def filled(
        self, nbytes: int, parts: Iterable[tuple[int, Any]], *, sealed: bool = True
    ) -> Lease:
        """Return memory that holds `parts`; if `sealed`, other processes can only read it."""
        segment = self._take(nbytes, sealed=sealed)
        if segment is None:
            return self._lease(Segment.filled(nbytes, parts, sealed=sealed))
        lease = self._lease(segment)  # before an interrupt can come
        segment.refill(parts)
        return lease

    def trim(self) -> float | None:
        """Drop what has been idle for too long; returns when to come again, None for never."""
        with self._lock:
            self._collect()
            now = time.monotonic()
            self._kept = [(since, s) for since, s in self._kept if now - since < IDLE_S]
            return now + TRIM_S if self._kept or self._leases else None

    def drop(self) -> None:
        """Give all of it back to the system."""
        with self._lock:
            self._collect()
            self._kept.clear()

    def _take(self, nbytes: int, *, sealed: bool) -> Segment | None:
        if nbytes < SMALL:
            return None
        wanted = choice()  # the setting may have changed since a segment was made
        with self._lock:
            self._collect()
            fitting = [
                (segment.nbytes, place)
                for place, (_, segment) in enumerate(self._kept)
                if segment.is_sealed == sealed
                and segment.kind in wanted
                and not segment.n_borrowed
                and nbytes <= segment.nbytes <= 2 * nbytes
            ]
            return self._kept.pop(min(fitting)[1])[1] if fitting else None

    def _lease(self, segment: Segment) -> Lease:
        """Return the array that every view of the segment descends from."""
        lease = np.frombuffer(segment, np.uint8)
        if segment.nbytes >= SMALL:
            key = id(lease)
            returned, leases = self._returned, self._leases

            def end(_: object) -> None:
                returned.append(segment)
                leases.pop(key, None)

            self._leases[key] = weakref.ref(lease, end)
        return lease

    def _collect(self) -> None:
        """Take in what has come back, within bounds; the oldest goes first."""
        now = time.monotonic()
        came = 0
        while self._returned:
            segment = self._returned.popleft()
            if not segment.was_kept_elsewhere:
                self._kept.append((now, segment))
                came += 1
        self._kept = [(t, s) for t, s in self._kept if not s.was_kept_elsewhere]
        if came:
            held = sum(segment.nbytes for _, segment in self._kept)
            limit = SHARE * (budget.available() + held)
            while self._kept and held > limit:
                held -= self._kept.pop(0)[1].nbytes


pool = WarmPool()
budget.reliefs.append(pool.drop)
