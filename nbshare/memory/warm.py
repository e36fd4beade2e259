"""Warm segments: memory of a call that has ended, kept for the next one.

Fresh pages are the real cost of shared memory: copying into them takes eight times as long as
into pages that are there, and on a virtual machine whose host took them back forty times. So the
inputs and outputs of calls are *leased*: when the last view of such a segment goes, the segment
returns here, and the next call of about that size gets it. Small ones are pieces of a slab.

A segment is used again only if no other process can still see it: it never left our own workers,
and each of them has said that its mapping is gone, or has ended. Any other is dropped; a fork of
this process sees all that were there.
"""

from __future__ import annotations

import _thread
import os
import time
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.memory import budget
from nbshare.memory.choice import choice
from nbshare.memory.segment import Segment
from nbshare.memory.slab import LARGEST, array_slab

__all__ = ["WarmPool", "pool"]

SMALL = 1 << 20  # bytes; below, a fresh segment costs less than keeping books
IDLE_S = 30.0  # kept that long; a notebook's next cell mostly comes sooner
TRIM_S = 1.0  # between looks at what has come back: an unused segment stays no longer uncounted
SHARE = 0.25  # of what is available may be kept at most

Lease = npt.NDArray[np.uint8]


class _Lent(weakref.ref[Lease]):
    """A lease, which this does not hold, and its segment, which it does."""

    segment: Segment | None = None


class WarmPool:
    """Gives out segments and takes them back by itself.

    Notes
    -----
    Safe from any thread. A lease may end inside any allocation of any thread: all that happens then
    is that a deque is appended to, and no Python is run, which would swallow an interrupt.
    """

    def __init__(self) -> None:
        self._returned: deque[_Lent] = deque()
        self._kept: list[tuple[float, Segment]] = []  # since when
        self._leases: dict[int, _Lent] = {}  # by their own ids
        self._is_trimming = False
        self._lock = _thread.allocate_lock()

    def writable(self, nbytes: int) -> tuple[Lease, bool]:
        """Return memory for results, and whether it is fresh and so zero."""
        if nbytes <= LARGEST:
            slab, offset = array_slab.take(nbytes)
            return np.frombuffer(slab, np.uint8, nbytes, offset), True
        segment = self._take(nbytes, sealed=False)
        if segment is not None:
            return self._lease(segment), False
        return self._lease(Segment.create(nbytes)), True

    def filled(
        self,
        nbytes: int,
        parts: Iterable[tuple[int, Any]],
        *,
        sealed: bool = True,
    ) -> Lease:
        """Return memory that holds `parts`; if `sealed`, other processes can only read it."""
        if nbytes <= LARGEST and not sealed:
            slab, start = array_slab.take(nbytes)
            slab.refill((start + offset, part) for offset, part in parts)
            return np.frombuffer(slab, np.uint8, nbytes, start)
        segment = self._take(nbytes, sealed=sealed)
        if segment is None:
            return self._lease(Segment.filled(nbytes, parts, sealed=sealed))
        lease = self._lease(segment)  # before an interrupt can come
        try:
            segment.refill(parts)
        except BaseException:
            segment.was_kept_elsewhere = True  # a thread that copies may not have ended yet
            raise
        return lease

    def drop(self) -> None:
        """Give all of it back to the system; what is lent goes there when its last view goes."""
        with self._lock:
            self._collect()
            self._kept.clear()
            self._leases.clear()

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
            with self._lock:
                if not self._is_trimming:
                    try:
                        _thread.start_new_thread(self._trim, ())
                    except RuntimeError:  # no more threads are allowed: this one is not kept
                        return lease
                    self._is_trimming = True
                lent = _Lent(lease, self._returned.append)
                self._leases[id(lent)] = lent
                lent.segment = segment  # last: from now on the thread gives it back in any case
        return lease

    def _trim(self) -> None:
        """Drop what has been idle for too long, as long as there is something to look after."""
        while True:
            time.sleep(TRIM_S)
            with self._lock:
                self._collect()
                now = time.monotonic()
                self._kept = [(since, s) for since, s in self._kept if now - since < IDLE_S]
                if not self._kept and not self._leases:
                    self._is_trimming = False
                    return

    def before_fork(self) -> None:
        """Give up for reuse what the child will see as well; holds the lock until after."""
        self._lock.acquire()
        self._kept.clear()
        for lent in [*self._leases.values()]:
            if lent.segment is not None:
                lent.segment.was_kept_elsewhere = True

    def after_fork(self, *, is_child: bool) -> None:
        """Go on; in the child without the thread that has stayed behind."""
        if is_child:
            self._is_trimming = False
        self._lock.release()

    def _collect(self) -> None:
        """Take in what has come back, within bounds; the oldest goes first."""
        now = time.monotonic()
        came = 0
        while self._returned:
            lent = self._returned[0]  # until all is noted, since an interrupt may come
            is_new = self._leases.pop(id(lent), None) is not None
            segment = lent.segment  # None: an interrupt came before it was given out
            if is_new and segment is not None and not segment.was_kept_elsewhere:
                self._kept.append((now, segment))
                came += 1
            self._returned.popleft()
        self._kept = [(t, s) for t, s in self._kept if not s.was_kept_elsewhere]
        if came:
            held = sum(segment.nbytes for _, segment in self._kept)
            limit = SHARE * (budget.available() + held)
            while self._kept and held > limit:
                held -= self._kept.pop(0)[1].nbytes


pool = WarmPool()
budget.reliefs.append(pool.drop)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=pool.before_fork,
        after_in_parent=lambda: pool.after_fork(is_child=False),
        after_in_child=lambda: pool.after_fork(is_child=True),
    )
