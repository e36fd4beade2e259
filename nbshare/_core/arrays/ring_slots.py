"""The states of a ring buffer's slots in shared memory, and the transitions between them.

::

    FREE ──reserve──► FILLING ──commit──► READY ──take──► READING ──release──► FREE
      ▲                  │ release (an error,      ▲          │
      └──────────────────┘ or its holder died)     └──────────┘ its holder died

One word in shared memory describes a slot: its state and the number of its last commit. Each
transition is a single store to this word, after all data that the new word refers to. So if a
process is killed or a thread interrupted at any point, the transition either has happened or has
not, and no repair is needed.

Each method except `drop` is called under the ring's lock, and checks once. `arrays.ring_waiting`
waits and wakes, so that a test can walk through all interleavings.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray, shared_view
from nbshare._core.memory import aligned
from nbshare._core.system import processes, waiting
from nbshare.errors import RingAbortedError, RingClosedError

# In this order, the smallest word belongs to the ready slot that was committed first. The largest
# belongs to the slot that was freed last, which is probably in the cache. FREE is 0, the value of
# fresh memory.
READY, READING, FILLING, FREE = range(-3, 1)
SHIFT = 56
NUMBER = (1 << SHIFT) - 1  # the last commit's, in the low bits of a word

PHASE, N_PUT, N_RECLAIMED, NEXT = range(4)  # places in `counts`
OPEN, CLOSED, ABORTED = range(3)  # phases
FREED, FILLED = range(2)  # events for producers, and for consumers
REASON_NBYTES = 1024


class RingStats(NamedTuple):
    """Slot counts and waiting times of a ring buffer, from `RingBuffer.stats`.

    The side that waits is not the bottleneck. If producers wait, add consumers. If consumers wait,
    add producers.

    Attributes
    ----------
    queued, reading, filling, free : int
        Current numbers of slots that are queued, held by consumers, held by producers, and free.
    n_put, n_got : int
        Numbers of slots that producers queued and consumers freed so far. A slot may be counted
        even if its producer was killed while queueing it.
    n_reclaimed : int
        Number of slots reclaimed from processes that died.
    producers_waited_s, consumers_waited_s : float
        Total time in seconds that producers or consumers waited for a slot. The last 0.1 s of a
        wait in progress may be missing.

    Examples
    --------
    The numbers of queued and of free slots:

    >>> import nbshare
    >>> ring = nbshare.RingBuffer(4, (3,))
    >>> with ring.put() as slot:
    ...     slot[...] = 1
    >>> ring.stats.queued, ring.stats.free
    (1, 3)

    Which side waits longer?

    >>> with ring.get() as slot:
    ...     total = slot.sum()
    >>> stats = ring.stats
    >>> stats.n_put, stats.n_got
    (1, 1)
    >>> "consumers" if stats.producers_waited_s > stats.consumers_waited_s else "producers"
    'producers'
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


RingStats.__module__ = "nbshare.types"


class Holder:
    """The base of `SlotLease`: the slot that it holds."""

    index: int | None = None  # the held slot
    number: int | None = None  # its place in the order, or None for the order of commits


def layout_of(slots: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> dict[str, Any]:
    """Return the layout of a ring in shared memory, for `SharedBuffer.layout`."""
    return {
        "data": ((slots, aligned(max(1, math.prod(shape) * dtype.itemsize))), "u1"),
        "words": (slots, "i8"),
        "holders": ((slots, 2), "i8"),
        "rows": (slots, "i8"),  # numbers of filled rows
        "counts": (4, "i8"),
        "waited_s": (2, "f8"),  # by event
        "changes": (1, "u4"),  # number of changes that may end a wait, modulo 2**32
        "reason": (REASON_NBYTES, "u1"),
    }


class SlotStates:
    """The states of all slots, and their arrays.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        The arrays of `layout_of`, zeroed at first.
    shape : tuple of int
        The shape of each slot.
    dtype : numpy.dtype
        The dtype of each slot.
    in_order : bool
        Whether consumers receive number 0 first, then 1, and so on, in whatever order they were
        put.

    Attributes
    ----------
    changes : memoryview of int
        One word. Sleepers wait until it changes.
    change_address : int
        The address of that word.
    waited_s : memoryview of float
        Waiting times of producers and consumers.
    """

    waited_s: Any

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        *,
        in_order: bool = False,
    ) -> None:
        self._shape, self._dtype, self._in_order = shape, dtype, in_order
        self._data, self._words = arrays["data"], arrays["words"]
        self.holders, self.reason = arrays["holders"], arrays["reason"]
        # One number at a time, four times as fast as through NumPy.
        self.words, self.rows, self.changes, self.counts, self.waited_s = (
            arrays[name].data for name in ("words", "rows", "changes", "counts", "waited_s")
        )
        self.change_address = arrays["changes"].ctypes.data
        self._n_rows = shape[0] if shape else 1

    def array(self, index: int) -> SharedArray:
        """Return the filled part of a slot's array."""
        shape = (self.rows[index], *self._shape[1:]) if self._shape else ()
        return shared_view(np.ndarray(shape, self._dtype, buffer=self._data[index]))

    # ------------------------------------------------------------------ producers

    def reserve(self, lease: Holder, me: processes.Identity) -> bool:
        """Assign a free slot to a producer. Return False if there is none yet.

        Raises
        ------
        RingClosedError, RingAbortedError
            If no further slot will be available.
        """
        if self.counts[PHASE] != OPEN:
            self._check_running()
            raise RingClosedError(
                "put() was called after close(): the ring buffer accepts no more slots. Call "
                "close() only after all producers have finished."
            )
        index = int(self._words.argmax())
        word = self.words[index]
        if word >> SHIFT != FREE:
            return False
        self.rows[index] = self._n_rows
        self._grant(lease, index, me, FILLING << SHIFT | word & NUMBER)
        return True

    def trim(self, slot: npt.NDArray[Any], rows: int) -> None:
        """Record the number of filled rows of a slot that this process is filling.

        Raises
        ------
        ValueError
            If this process is not filling the slot, or a slot has fewer rows.
        """
        if not self._shape or not 0 <= rows <= self._n_rows:
            raise ValueError(f"rows={rows} is not allowed: a slot has the shape {self._shape}")
        index, beyond = divmod(slot.ctypes.data - self._data.ctypes.data, self._data.strides[0])
        is_slot = not beyond and 0 <= index < len(self._data)
        is_filling = is_slot and self.words[index] >> SHIFT == FILLING
        if not is_filling or self._holder(index) != processes.identity():
            raise ValueError("this array is not a slot that this process got from put()")
        self.rows[index] = rows

    def commit(self, lease: Holder) -> None:
        """Queue a slot that a producer has filled. Without rows or a number, free it instead.

        Raises
        ------
        RingAbortedError
            If the ring was aborted. The slot is then free.
        """
        index, number = lease.index, lease.number
        if index is None or (number is None and not self.rows[index] and self._n_rows):
            self.release(lease)
            return
        if self.counts[PHASE] == ABORTED:
            self.release(lease)
            self._check_running()
        n_put = self.counts[N_PUT]
        number = n_put if number is None else number
        self._note_change()
        self.counts[N_PUT] = n_put + 1
        self.words[index] = READY << SHIFT | number
        lease.index = None

    # ------------------------------------------------------------------ consumers

    def take(self, lease: Holder, me: processes.Identity) -> bool:
        """Assign the slot with the smallest number to a consumer. Return False if it is not ready.

        Raises
        ------
        RingClosedError, RingAbortedError
            If no further slot will be available.
        """
        self._check_running()
        index = int(self._words.argmin())
        word = self.words[index]
        number, is_ready = word & NUMBER, word >> SHIFT == READY
        if not is_ready or (self._in_order and number > self.counts[NEXT]):
            if self.counts[PHASE] != CLOSED or (self._words >> SHIFT == FILLING).any():
                return False
            if not is_ready:
                raise RingClosedError("the ring buffer is closed and empty")
            # Otherwise numbers were skipped, and will not arrive.
        self.counts[NEXT] = max(self.counts[NEXT], number + 1)
        lease.number = number
        self._grant(lease, index, me, READING << SHIFT | number)
        return True

    # ----------------------------------------------------------------------- both

    def release(self, lease: Holder) -> None:
        """Free a slot that was read, or that could not be filled."""
        index = lease.index
        if index is not None:
            self._note_change()
            self.words[index] = FREE << SHIFT | self.words[index] & NUMBER
            lease.index = None

    def drop(self, index: int, *, is_unseen: bool = False) -> None:
        """Release a slot of this process without the lock. Only its holder changes its word.

        The slot becomes free, or is queued again if no consumer has seen its contents. The change
        is not counted, so a sleeper may sleep slightly longer.
        """
        word = self.words[index]
        state = READY if is_unseen and word >> SHIFT == READING else FREE
        if waiting.IS_WEAKLY_ORDERED:
            waiting.before_marks()
        self.words[index] = state << SHIFT | word & NUMBER

    def close(self) -> None:
        """Refuse further slots. Those that are queued or being filled can still be read."""
        self._note_change()
        self.counts[PHASE] = max(self.counts[PHASE], CLOSED)

    def abort(self, reason: str) -> None:
        """Stop all users. The reason of the first call counts."""
        if self.counts[PHASE] == ABORTED:
            return
        text = reason.encode(errors="replace")[:REASON_NBYTES]
        self.reason[:] = 0
        self.reason[: len(text)] = np.frombuffer(text, np.uint8)
        self._note_change()
        self.counts[PHASE] = ABORTED

    # ----------------------------------------------------------------- the dead

    def held(self) -> list[tuple[int, processes.Identity]]:
        """Return the slots that are being filled or read, and their holders."""
        states = self._words >> SHIFT
        places = ((states == FILLING) | (states == READING)).nonzero()[0].tolist()
        return [(index, self._holder(index)) for index in places]

    def reclaim(self, index: int) -> None:
        """Reclaim a slot from a holder that has ended.

        A producer's slot is free again, and a consumer's is queued again, in its old place.
        """
        self._note_change()
        self.counts[N_RECLAIMED] += 1
        self.drop(index, is_unseen=True)

    # -------------------------------------------------------------------- figures

    def stats(self) -> RingStats:
        """Return the counters, and the number of slots in each state."""
        in_states = np.bincount((self._words >> SHIFT) - READY, minlength=4).tolist()
        queued, reading, *_ = in_states
        n_put, n_reclaimed = self.counts[N_PUT], self.counts[N_RECLAIMED]
        counts = n_put, n_put - queued - reading, n_reclaimed
        return RingStats._make([*in_states, *counts, *self.waited_s])

    # --------------------------------------------------------------------- inside

    def _grant(self, lease: Holder, index: int, me: processes.Identity, word: int) -> None:
        if waiting.IS_WEAKLY_ORDERED:
            waiting.after_marks()  # the slot may have been freed without the lock
        self.holders[index] = me
        # No call is between these two lines, so no interrupt arrives.
        self.words[index] = word
        lease.index = index

    def _note_change(self) -> None:
        """Count a change, before the store that makes it. The lock is held for both."""
        self.changes[0] = (self.changes[0] + 1) % 2**32

    def _holder(self, index: int) -> processes.Identity:
        pid, start = self.holders[index].tolist()
        return pid, start

    def _check_running(self) -> None:
        if self.counts[PHASE] == ABORTED:
            reason = bytes(self.reason).rstrip(b"\0").decode(errors="replace")
            why = f": {reason}" if reason else " (no reason given)"
            raise RingAbortedError(f"the ring buffer was aborted{why}", reason)
