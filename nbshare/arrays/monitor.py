"""Waiting for a slot: the transitions of a ring buffer under its lock, with sleep and wake-ups.

Who finds nothing sleeps until the event comes, in slices: between them it looks whether whoever
holds a slot has died. So a wake-up that dies together with the process it was for costs the others
a slice of waiting, no more.

Measured on 2 cores, what a consumer sees after a producer has written it: 25 to 35 µs, most of it
Python, whether the cores are busy or not. To look for the event for 50 µs before sleeping made it
17 to 60 µs on idle cores, but 160 to 1800 µs where another process wanted one of them: who yields
without sleeping is not moved to a free core. Tokens in a pipe are no faster, and one that was read
by somebody who is then killed is lost.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

from nbshare.arrays import futex
from nbshare.arrays.lock import SharedLock
from nbshare.arrays.shared_array import SharedArray
from nbshare.arrays.tokens import EVERYBODY, FREED, Holder, Tokens, Wakes
from nbshare.errors import RingClosedError, RingTimeoutError
from nbshare.memory import has_ended, identity

__all__ = ["Monitor", "OnDeath"]

OnDeath = Literal["reclaim", "fail", "leave"]

SLICE_S = 0.1  # of sleep, and between looks for the dead
WORD = 2**32 - 1  # what a sleeper watches of an event's number


class Monitor:
    """Hands slots out and takes them back: the transitions with lock, waiting and waking.

    Parameters
    ----------
    tokens : Tokens
        The transitions.
    lock : SharedLock
        Held during each.
    addresses : sequence of int
        Where the events' words are that sleepers watch.
    waited_s : ndarray
        Shared: how long producers and consumers have waited, float64 of shape (2,).
    array_of : callable
        Gives the array of a slot.
    on_death : {"reclaim", "fail", "leave"}
        What becomes of the slots of the dead; see `nbshare.RingBuffer`.

    Notes
    -----
    Safe from any thread.
    """

    def __init__(
        self,
        tokens: Tokens,
        lock: SharedLock,
        addresses: Sequence[int],
        waited_s: Any,
        array_of: Callable[[int], SharedArray],
        on_death: OnDeath,
    ) -> None:
        self.tokens = tokens
        self.array_of = array_of
        self._lock = lock
        self._addresses = addresses
        self.waited_s = waited_s
        self._on_death = on_death
        self._next_look = 0.0
        self._watched: dict[int, weakref.ref[Holder]] = {}

    def do(self, transition: Callable[..., Wakes], *args: Any) -> None:
        """Make a transition, and wake whom it concerns."""
        with self._lock:
            wakes = transition(*args)
        self.wake(wakes)

    def wake(self, wakes: Wakes) -> None:
        """Wake sleepers: of each event so many."""
        for event, n in wakes:
            futex.wake(self._addresses[event], n)

    def claim(self, lease: Holder, event: int, timeout: float) -> SharedArray:
        """Wait until the lease has a slot; returns its array.

        Raises
        ------
        RingClosedError, RingAbortedError, RingTimeoutError
            If it cannot have one.
        """
        attempt = (self.tokens.reserve, self.tokens.take)[event]
        me = identity()
        now = end = 0.0
        while True:
            try:
                with self._lock:
                    if now:
                        self.waited_s[event] += -now + (now := time.monotonic())
                    if attempt(lease, me):
                        break
                    seen = self.tokens.events[event] & WORD
            except RingClosedError:
                # What a dead consumer had is still to be read.
                if event == FREED or not self.look_for_the_dead():
                    raise
                continue
            if not now:
                now = time.monotonic()
                end = now + timeout
            if now >= self._next_look and self.look_for_the_dead():
                continue
            if now >= end:
                raise RingTimeoutError(
                    f"no slot of the ring buffer was {('free', 'filled')[event]} within "
                    f"{timeout:g} s"
                )
            futex.wait(self._addresses[event], seen, min(end - now, SLICE_S))
        assert lease.index is not None
        return self.array_of(lease.index)

    def look_for_the_dead(self) -> bool:
        """Do what is to be done about slots of processes that have ended; whether anything was."""
        self._next_look = time.monotonic() + SLICE_S
        if self._on_death == "leave":
            return False
        with self._lock:
            held = self.tokens.held()
        dead = [each for each in held if each.holder != identity() and has_ended(each.holder)]
        for each in dead:
            if self._on_death == "fail":
                self.do(self.tokens.abort, f"process {each.holder[0]} died with a slot")
            else:
                self.do(self.tokens.reclaim, each)
        return bool(dead)

    def watch(self, lease: Holder) -> None:
        """Free the slot of a lease that is gone before its block has ended; see `Lease`."""
        assert lease.index is not None
        self._watched[lease.index] = weakref.ref(
            lease, partial(self._lose, lease.index, os.getpid())
        )

    def unwatch(self, lease: Holder) -> None:
        """Leave it to the lease."""
        if lease.index is not None:
            self._watched.pop(lease.index, None)

    def _lose(self, index: int, pid: int, _: weakref.ref[Holder]) -> None:
        # Inside any allocation of any thread: no lock.
        if pid == os.getpid():
            del self._watched[index]
            self.tokens.drop(index)
            self.wake(EVERYBODY)
