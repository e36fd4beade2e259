"""Warm segments: memory of a finished call, kept for the next call.

Fresh pages are the real cost of shared memory. Copying into them takes eight times as long as
copying into existing pages, and forty times as long on a virtual machine whose host has reclaimed
them. Segments for the inputs and outputs of calls are therefore *lent*. When the last view of such
a segment is freed, the segment returns here, for the next call of about that size.

A segment is reused only if no other process can still see it: only our own workers mapped it, and
each of them has ended or reported that it has unmapped the segment. Other segments are dropped, as
are all segments that a fork of this process sees.

Small arrays are pieces of a *slab*, because a segment of its own costs 100 µs, a descriptor and a
page. No piece is used twice, so a piece is as fresh and zero as a segment, and old views are
harmless. A piece keeps its whole slab alive, but a slab is small.
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

from nbshare._core.interrupts import uninterrupted
from nbshare._core.memory import budget
from nbshare._core.memory.kinds import can_share, is_chosen
from nbshare._core.memory.segment import Segment
from nbshare._core.system import processes

SLAB = 1 << 18  # bytes (untouched pages cost nothing)
LARGEST_PIECE = 1 << 15  # bytes. For more, the cost of a segment is small compared with its pages.
SMALL = 1 << 20  # bytes. For less, a fresh segment costs less than reuse.
IDLE_S = 30.0  # time until an unused segment is freed. A notebook's next cell usually runs sooner.
TRIM_S = 1.0  # interval of checks for idle segments, and for the memory that is available
SHARE = 0.25  # largest share of the available memory that is kept

PooledMemory = npt.NDArray[np.uint8]


class Slab:
    """Hands out pieces of zeroed memory.

    Parameters
    ----------
    is_kept : bool
        Whether to keep the current slab while no piece of it is in use.

    Notes
    -----
    Safe from any thread, and from finalizers and signal handlers, because there is no lock. If two
    threads take pieces at the same time, these come from different slabs, and one of the slabs is
    abandoned afterwards.
    """

    def __init__(self, *, is_kept: bool) -> None:
        self._is_kept = is_kept
        self._kept: Segment | None = None
        self._present: deque[tuple[weakref.ref[Segment], int]] = deque(maxlen=1)  # and its end
        processes.at_fork(after_in_child=self.drop)

    def take(self, nbytes: int) -> tuple[Segment, int]:
        """Return a segment and the offset of `nbytes` zeroed and unused bytes in it."""
        if nbytes > LARGEST_PIECE:
            return Segment.create(nbytes), 0
        try:
            present, offset = self._present.pop()  # now no other thread can use this slab
            segment = present()
        except IndexError:
            segment, offset = None, 0
        if segment is None or offset + nbytes > SLAB or not is_chosen(segment.kind):
            segment, offset = Segment.create(SLAB), 0
        self._kept = segment if self._is_kept else None
        self._present.append((weakref.ref(segment), budget.aligned(offset + nbytes)))
        return segment, offset

    def drop(self) -> None:
        """Stop using the current slab, which in a forked child belongs to the parent."""
        self._present.clear()
        self._kept = None


slab = Slab(is_kept=True)  # for calls
array_slab = Slab(is_kept=False)  # for users' arrays, separate from the arrays of calls


class WarmPool:
    """Lends segments, which return when their last view is freed.

    Notes
    -----
    Safe from any thread, and from signal handlers and finalizers. If these interrupt a step of
    their own thread, they receive no kept segment. A loan may end inside any allocation of any
    thread. Its end only appends to a deque, and runs no Python code, which could swallow an
    interrupt.
    """

    def __init__(self) -> None:
        self._returned: deque[weakref.ref[PooledMemory]] = deque()
        self._kept: list[tuple[float, Segment]] = []  # with the time of their return
        self._allowed = 0  # bytes that the limit allowed at its last check
        self._lent: dict[int, tuple[weakref.ref[PooledMemory], Segment]] = {}  # by id
        self._is_trimming = False
        self._lock = _thread.RLock()

    def writable(self, nbytes: int) -> tuple[PooledMemory, bool]:
        """Return memory for results, and whether it is fresh and therefore zeroed."""
        if nbytes <= LARGEST_PIECE:
            slab, offset = array_slab.take(nbytes)
            return np.frombuffer(slab, np.uint8, nbytes, offset), True
        segment = self._take(nbytes, sealed=False)
        if segment is not None:
            return self._lend(segment), False
        return self._lend(Segment.create(nbytes)), True

    def filled(
        self,
        nbytes: int,
        parts: Iterable[tuple[int, Any]],
        *,
        sealed: bool = True,
        is_private: bool = False,
    ) -> PooledMemory:
        """Return memory that contains `parts`. If `sealed`, other processes can only read it."""
        if nbytes <= LARGEST_PIECE and not sealed:
            slab, start = array_slab.take(nbytes)
            slab.refill((start + offset, part) for offset, part in parts)
            return np.frombuffer(slab, np.uint8, nbytes, start)
        segment = self._take(nbytes, sealed=sealed, is_private=is_private)
        if segment is None:
            filled = Segment.filled(nbytes, parts, sealed=sealed, is_private=is_private)
            return self._lend(filled)
        lent = self._lend(segment)  # before any interrupt
        try:
            segment.refill(parts)
        except BaseException:
            segment.was_kept_elsewhere = True  # a copying thread may still be running
            raise
        return lent

    def drop(self) -> None:
        """Free all kept segments. Lent segments are freed with their last view."""
        if self._is_amid_step:
            return
        with self._lock:
            self._collect()
            self._kept.clear()
            self._lent.clear()

    @property
    def _is_amid_step(self) -> bool:
        """Whether this thread has interrupted a step of its own."""
        return bool(self._lock._is_owned())  # type: ignore[attr-defined]  # `threading` uses it, too

    def _take(self, nbytes: int, *, sealed: bool, is_private: bool = False) -> Segment | None:
        if nbytes < SMALL or self._is_amid_step:
            return None
        wanted = sealed, is_private or not can_share()
        with self._lock:
            self._collect()
            fitting = [
                (segment.nbytes, place)
                for place, (_, segment) in enumerate(self._kept)
                if (segment.is_sealed, segment.is_private) == wanted
                and is_chosen(segment.kind)
                and not segment.n_borrowed
                and nbytes <= segment.nbytes <= 2 * nbytes
            ]
            return self._kept.pop(min(fitting)[1])[1] if fitting else None

    def _lend(self, segment: Segment) -> PooledMemory:
        """Return the array from which every view of the segment descends."""
        lent = np.frombuffer(segment, np.uint8)
        if segment.nbytes >= SMALL and not self._is_amid_step:
            with uninterrupted(), self._lock:
                if not self._is_trimming:
                    try:
                        _thread.start_new_thread(self._trim, ())
                    except RuntimeError:  # no more threads are allowed, so this one is not kept
                        return lent
                    self._is_trimming = True
                ref = weakref.ref(lent, self._returned.append)
                self._lent[id(ref)] = ref, segment
                segment.loan = weakref.ref(lent)
        return lent

    def _trim(self) -> None:
        """Drop segments that have been idle for too long, until no segments are kept or lent."""
        while True:
            time.sleep(TRIM_S)
            with self._lock:
                self._allowed = 0
                self._collect()
                now = time.monotonic()
                self._kept = [(since, s) for since, s in self._kept if now - since < IDLE_S]
                if not self._kept and not self._lent:
                    self._is_trimming = False
                    return

    def before_fork(self) -> None:
        """Drop kept segments, mark lent ones, which a child would see, and hold the lock."""
        self._lock.acquire()
        self._kept.clear()
        for _, segment in self._lent.values():
            segment.was_kept_elsewhere = True

    def after_fork(self) -> None:
        """Continue in the child, where the trimming thread does not exist."""
        self._is_trimming = False
        self._lock.release()

    def _collect(self) -> None:
        """Collect returned segments. Above the limit, drop the oldest ones.

        The limit is checked when more is kept than before, and by the trimming thread.
        """
        now = time.monotonic()
        with uninterrupted():
            while self._returned:
                _, segment = self._lent.pop(id(self._returned.popleft()), (None, None))
                if segment is not None:
                    self._kept.append((now, segment))
        self._kept = [(t, s) for t, s in self._kept if not s.was_kept_elsewhere]
        held = sum(segment.nbytes for _, segment in self._kept)
        if held > self._allowed:  # a check reads several files, which takes as long as a short call
            limit = SHARE * (processes.available_bytes() + held)
            while self._kept and held > limit:
                held -= self._kept.pop(0)[1].nbytes
            self._allowed = held


pool = WarmPool()
budget.reliefs.append(pool.drop)
processes.at_fork(
    before=pool.before_fork,
    after_in_parent=pool._lock.release,
    after_in_child=pool.after_fork,
)
