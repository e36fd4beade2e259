"""Waits for slots of a ring buffer: leases, sleep, wake-ups, and slots of dead processes.

A process that finds no slot sleeps until the next change, in slices. Between them it checks whether
a holder of a slot has died. Each change wakes all sleepers, because any of them may be the one to
continue, at the end of the data or with slots in order, and a sleeper may have died.

The sleep is a futex, the system call under every lock of Linux. It keeps no state of a sleeper in
memory, so a killed one leaves none behind. A POSIX condition variable, built on the same call,
counts its waiters in memory. A waiter killed inside it can block those that signal it, forever.

From a producer's commit to its consumer, it takes 25 to 35 µs on 2 CPUs, most of it Python, whether
the CPUs are busy or not. Spinning for 50 µs before the sleep made it 17 to 60 µs on idle CPUs, but
160 to 1800 µs where another process wanted one of them, because a process that yields without
sleeping is not moved to a free CPU. Tokens in a pipe are not faster, and are lost if their reader
is killed.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Never

from nbshare._core.arrays.lock import SharedLock
from nbshare._core.arrays.ring_slots import FREED, Holder, SlotStates
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.interrupts import uninterrupted
from nbshare._core.system import processes, waiting
from nbshare._core.tracebacks import shown_shortly
from nbshare.errors import NbshareError, RingClosedError, RingTimeoutError

SLICE_S = 0.1  # length of a sleep, and interval of checks for dead processes
USE_WITH = (
    "To fill a slot: with ring.put() as slot: slot[...] = values. To read one: with ring.get() as "
    "slot: total = slot.sum()"
)


class Monitor:
    """Runs the transitions of slots under a lock, waits for slots, and wakes other waiters.

    Parameters
    ----------
    states : SlotStates
        The transitions.
    lock : SharedLock
        Held during each transition.
    reclaims : bool
        Whether to reclaim slots from processes that have died.

    Notes
    -----
    Thread-safe.
    """

    def __init__(self, states: SlotStates, lock: SharedLock, *, reclaims: bool) -> None:
        self.states = states
        self._lock = lock
        self._reclaims = reclaims
        self._next_look = 0.0
        self._watched: dict[int, weakref.ref[Holder]] = {}

    def do(self, transition: Callable[..., None], *args: Any) -> None:
        """Run a transition, and wake all waiters."""
        with uninterrupted(), self._lock:
            transition(*args)
        self.wake()

    def unlock(self) -> None:
        """Release the lock if an interrupt at the end of `claim` has left it held."""
        with suppress(RuntimeError):  # this thread does not hold it
            self._lock.release()

    def wake(self) -> None:
        """Wake all waiting processes and threads."""
        waiting.wake_all(self.states.change_address)

    def claim(self, lease: Holder, event: int, timeout: float) -> SharedArray:
        """Wait until the lease holds a slot. Return its array.

        After that, the slot is freed if the lease is deleted before its block has ended (see
        `SlotLease`).

        Raises
        ------
        RingClosedError, RingAbortedError, RingTimeoutError
            If no slot is available.
        """
        states, me = self.states, processes.identity()
        attempt = (states.reserve, states.take)[event]
        now = end = 0.0
        while True:
            try:
                with self._lock:
                    if now:
                        states.waited_s[event] += -now + (now := time.monotonic())
                    if attempt(lease, me):
                        break
                    seen = states.changes[0]
            except RingClosedError:
                # The slot of a dead consumer can still be read.
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
            # It does not sleep if a change has happened since the check. A signal ends a sleep too.
            waiting.sleep_while(states.change_address, seen, min(end - now, SLICE_S))
        index = lease.index
        assert index is not None
        self._watched[index] = weakref.ref(lease, partial(self._lose, index, os.getpid()))
        return states.array(index)

    def look_for_the_dead(self) -> bool:
        """Reclaim the slots of processes that have ended. Return whether there were any."""
        self._next_look = time.monotonic() + SLICE_S
        if not self._reclaims:
            return False
        with uninterrupted(), self._lock:
            held, me = self.states.held(), processes.identity()
            dead = [index for index, holder in held if holder != me and processes.has_ended(holder)]
            for index in dead:
                self.states.reclaim(index)
        if dead:
            self.wake()
        return bool(dead)

    def unwatch(self, lease: Holder) -> None:
        """Stop watching a lease, which then frees its own slot."""
        if lease.index is not None:
            self._watched.pop(lease.index, None)

    def _lose(self, index: int, pid: int, _: weakref.ref[Holder]) -> None:
        # It runs during any allocation of any thread, so it cannot take a lock.
        if pid == os.getpid():
            del self._watched[index]
            self.states.drop(index)
            self.wake()


class SlotLease(Holder):
    """A context manager that holds a slot, and releases it however the block ends.

    Parameters
    ----------
    monitor : Monitor
        The monitor of the ring.
    event : {FREED, FILLED}
        The event to wait for: FREED for a producer, FILLED for a consumer.
    timeout : float
        Seconds.

    Attributes
    ----------
    number : int or None
        The slot's place in the order. A producer may set it until the block ends. A consumer reads
        it.

    Notes
    -----
    Not thread-safe.
    """

    _pid = 0

    def __init__(self, monitor: Monitor, event: int, timeout: float) -> None:
        self._monitor = monitor
        self._event = event
        self._timeout = timeout

    def __repr__(self) -> str:
        return f"<SlotLease of a RingBuffer. {USE_WITH}>"

    def __getitem__(self, *_: Any, **__: Any) -> Never:
        raise shown_shortly(TypeError(f"put() and get() do not return arrays. {USE_WITH}"))

    __setitem__ = __array__ = __getitem__

    def __enter__(self) -> SharedArray:
        if self.index is not None:
            raise RuntimeError("this lease already holds a slot: call put() or get() again")
        self._pid = os.getpid()
        try:
            array = self._monitor.claim(self, self._event, self._timeout)
        except NbshareError:  # no slot is held
            raise
        except BaseException:
            self.give_up(is_unseen=True)
            raise
        # No call follows before the block begins, so no interrupt arrives.
        return array

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.end(publish=kind is None)
        except BaseException:
            self.give_up()
            raise

    def end(self, *, publish: bool) -> None:
        """Release the slot. A producer's slot is queued for the consumers if `publish` is true."""
        if self._pid != os.getpid():  # a fork has left the block: the slot belongs to its parent
            return
        self._monitor.unwatch(self)
        states = self._monitor.states
        is_filled = publish and self._event == FREED
        self._monitor.do(states.commit if is_filled else states.release, self)

    def give_up(self, *, is_unseen: bool = False) -> None:
        """Release a slot that is still held, after an error or interrupt at any point."""
        self._monitor.unlock()
        self._monitor.unwatch(self)
        if self.index is not None and self._pid == os.getpid():
            self._monitor.states.drop(self.index, is_unseen=is_unseen)
            self.index = None
        # A wake-up for this process, or from it, may be lost.
        self._monitor.wake()
