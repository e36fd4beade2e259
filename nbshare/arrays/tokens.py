"""Who may use which slot of a ring buffer: the transitions, without any waiting.

::

    FREE ──reserve──► FILLING ──commit──► READY ──take──► READING ──release──► FREE
      ▲                  │ release (an error,      ▲          │
      └──────────────────┘ or its holder died)     └──────────┘ its holder died

All that is true of a slot is one word in shared memory, its state and the number of its last
commit, and each transition is the one store that changes this word: what the new word means is
written before. So there is nothing to repair after a process that was killed, or a thread that was
interrupted, wherever that was: either the transition has happened or it has not.

Each method is called under the ring's lock, looks once, and says whom to wake; who has to wait,
and how, is `nbshare.arrays.monitor`'s business. So a test can walk through all interleavings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare.arrays.futex import ALL
from nbshare.errors import RingAbortedError, RingClosedError
from nbshare.memory import Identity, identity

__all__ = [
    "EVERYBODY",
    "FILLED",
    "FREED",
    "N_PUT",
    "N_RECLAIMED",
    "Held",
    "Holder",
    "Tokens",
    "Wakes",
    "layout_of",
]

# In this order: the smallest word is the slot that was committed first, if one is ready, the
# largest the one that was freed last, so that few slots stay in the cache where few are needed.
READY, READING, FILLING, FREE = range(4)
SHIFT = 56
NUMBER = (1 << SHIFT) - 1  # of the last commit: the low bits of a word

PHASE, N_PUT, N_RECLAIMED, NEXT = range(4)  # places in `counts`
OPEN, CLOSED, ABORTED = range(3)  # phases
FREED, FILLED = range(2)  # events
REASON_NBYTES = 1024

Wakes = tuple[tuple[int, int], ...]  # event, and how many of those who sleep until it to wake
EVERYBODY = ((FREED, ALL), (FILLED, ALL))


class Holder(Protocol):
    """Who asks for a slot."""

    index: int | None  # of the slot that is held
    number: int | None  # its place in the order; None: that of the commit


class Held(NamedTuple):
    """A slot in somebody's hands."""

    slot: int
    word: int
    holder: Identity


def layout_of(slots: int) -> dict[str, tuple[Any, str]]:
    """Return what the transitions need of shared memory, as `SharedBuffer.layout` takes it."""
    return {
        "words": (slots, "i8"),
        "holders": ((slots, 2), "i8"),
        "rows": (slots, "i8"),  # filled, of the slot
        "events": (2, "i8"),  # how often each has come; who waits for one watches the low half
        "counts": (4, "i8"),
        "reason": (REASON_NBYTES, "u1"),
    }


class Tokens:
    """The states of all slots.

    Parameters
    ----------
    arrays : mapping of str to ndarray
        Of `layout_of`, zeroed if `fresh`.
    rows : int
        Of a whole slot.
    fresh : bool
        Whether nobody has used them yet.
    in_order : bool
        Whether consumers get number 0 first, then 1, and so on, whenever each was put.
    """

    def __init__(
        self,
        arrays: Mapping[str, npt.NDArray[Any]],
        rows: int,
        *,
        fresh: bool = False,
        in_order: bool = False,
    ) -> None:
        self._words = arrays["words"]
        self.holders, self.reason = arrays["holders"], arrays["reason"]
        # One number at a time: four times as fast as through NumPy.
        self.words, self.rows, self.events, self.counts = (
            arrays[name].data for name in ("words", "rows", "events", "counts")
        )
        self._rows = rows
        self._in_order = in_order
        if fresh:
            self._words[:] = FREE << SHIFT

    # ------------------------------------------------------------------ producers

    def reserve(self, lease: Holder, me: Identity) -> bool:
        """Give a producer a free slot; False if there is none yet.

        Raises
        ------
        RingClosedError, RingAbortedError
            If there will be none any more.
        """
        if self.counts[PHASE] != OPEN:
            self._check_running()
            raise RingClosedError(
                "put() into a ring buffer after its close(): nothing more can be queued. Close it "
                "when all producers are done."
            )
        index = int(self._words.argmax())
        word = self.words[index]
        if word >> SHIFT != FREE:
            return False
        self.rows[index] = self._rows
        self._grant(lease, index, me, FILLING << SHIFT | word & NUMBER)
        return True

    def trim(self, index: int, rows: int) -> bool:
        """Note how many rows are filled; False if this process is not filling the slot."""
        _, word, holder = self._held(index)
        if word >> SHIFT != FILLING or holder != identity():
            return False
        self.rows[index] = rows
        return True

    def commit(self, lease: Holder) -> Wakes:
        """Queue the slot that a producer has filled; one of no rows only if it has a number.

        Raises
        ------
        RingAbortedError
            If nobody will read it; it is free then.
        """
        index, number = lease.index, lease.number
        if index is None or (number is None and not self.rows[index] and self._rows):
            return self.release(lease)
        if self.counts[PHASE] == ABORTED:
            self.release(lease)
            self._check_running()
        n_put = self.counts[N_PUT]
        number = n_put if number is None else number
        wakes = self._tell(FILLED)
        self.counts[N_PUT] = n_put + 1
        self.words[index] = READY << SHIFT | number
        lease.index = None
        return wakes

    # ------------------------------------------------------------------ consumers

    def take(self, lease: Holder, me: Identity) -> bool:
        """Give a consumer the slot with the smallest number; False if it is not there yet.

        Raises
        ------
        RingClosedError, RingAbortedError
            If there will be none any more.
        """
        self._check_running()
        index = int(self._words.argmin())
        word = self.words[index]
        number, is_ready = word & NUMBER, word >> SHIFT == READY
        if not is_ready or (self._in_order and number > self.counts[NEXT]):
            if self.counts[PHASE] != CLOSED or (self._words >> SHIFT == FILLING).any():
                return False
            if not is_ready:
                raise RingClosedError("the ring buffer is closed, and all that was put is taken")
            # Else numbers are left out, and will not come any more.
        self.counts[NEXT] = max(self.counts[NEXT], number + 1)
        lease.number = number
        self._grant(lease, index, me, READING << SHIFT | number)
        return True

    # ----------------------------------------------------------------------- both

    def release(self, lease: Holder) -> Wakes:
        """Free the slot of somebody who has read it, or who has failed to fill it."""
        index = lease.index
        if index is None:
            return ()
        word = FREE << SHIFT | self.words[index] & NUMBER
        wakes = self._tell(FREED)
        self.words[index] = word
        lease.index = None
        return wakes

    def drop(self, index: int, *, is_unseen: bool = False) -> None:
        """Let go of a slot of this process without the lock: only its holder changes its word.

        It is free, or queued again if nobody has seen what is in it. The event is not noted, so
        that somebody may sleep a while longer.
        """
        word = self.words[index]
        state = READY if is_unseen and word >> SHIFT == READING else FREE
        self.words[index] = state << SHIFT | word & NUMBER

    def close(self) -> Wakes:
        """Let no producer begin any more; what is queued or being filled is still to be read."""
        return self._end(CLOSED)

    def abort(self, reason: str) -> Wakes:
        """Stop everybody; the first reason stays."""
        if self.counts[PHASE] == ABORTED:
            return ()
        text = reason.encode(errors="replace")[:REASON_NBYTES]
        self.reason[:] = 0
        self.reason[: len(text)] = np.frombuffer(text, np.uint8)
        return self._end(ABORTED)

    # ----------------------------------------------------------------- the dead

    def held(self) -> list[Held]:
        """Return the slots in somebody's hands."""
        states = self._words >> SHIFT
        places = ((states == FILLING) | (states == READING)).nonzero()[0]
        return [self._held(int(index)) for index in places]

    def reclaim(self, held: Held) -> Wakes:
        """Take a slot back from a holder that has ended, unless somebody else did before.

        What a producer had not finished is free again; what a consumer had not finished is queued
        again, in its old place.
        """
        index, word, _ = held
        if self._held(index) != held:
            return ()
        is_filling = word >> SHIFT == FILLING
        wakes = self._tell(FREED if is_filling else FILLED)
        self.counts[N_RECLAIMED] += 1
        self.words[index] = (FREE if is_filling else READY) << SHIFT | word & NUMBER
        return wakes

    # -------------------------------------------------------------------- figures

    def states(self) -> list[int]:
        """Return how many slots are ready, being read, being filled, and free."""
        states: list[int] = np.bincount(self._words >> SHIFT, minlength=4).tolist()
        return states

    # --------------------------------------------------------------------- inside

    def _grant(self, lease: Holder, index: int, me: Identity, word: int) -> None:
        self.holders[index] = me
        # No call between these two, and so no interrupt.
        self.words[index] = word
        lease.index = index

    def _tell(self, event: int) -> Wakes:
        """Note an event, before the store that brings it about: nobody looks in between."""
        if self.counts[PHASE] == OPEN:
            self.events[event] += 1
            # In order, the slot that has come may be the one before those that others wait for.
            return ((event, ALL if self._in_order and event == FILLED else 1),)
        # Any of them may be the last that consumers wait for.
        return self._tell_everybody()

    def _end(self, phase: int) -> Wakes:
        wakes = self._tell_everybody()
        self.counts[PHASE] = max(self.counts[PHASE], phase)
        return wakes

    def _tell_everybody(self) -> Wakes:
        for event in (FREED, FILLED):
            self.events[event] += 1
        return EVERYBODY

    def _held(self, index: int) -> Held:
        pid, start = self.holders[index].tolist()
        return Held(index, self.words[index], (pid, start))

    def _check_running(self) -> None:
        if self.counts[PHASE] == ABORTED:
            reason = bytes(self.reason).rstrip(b"\0").decode(errors="replace")
            raise RingAbortedError(f"the ring buffer was aborted: {reason or 'no reason'}", reason)
