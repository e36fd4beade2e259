"""Waiting for a slot, holding it for a with block, and giving it back whatever happens.

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
from typing import Any

from nbshare.arrays import futex
from nbshare.arrays.lock import SharedLock
from nbshare.arrays.shared_array import SharedArray
from nbshare.arrays.tokens import EVERYBODY, FREED, Tokens, Wakes
from nbshare.errors import RingClosedError, RingTimeoutError
from nbshare.memory import has_ended, identity

__all__ = ["Desk", "Turn"]

SLICE_S = 0.1  # of sleep, and between looks for the dead
WORD = 2**32 - 1  # what a sleeper watches of an event's number


class Desk:
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
    is_fatal : bool
        Whether a death stops everybody, or the slot is taken back.

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
        is_fatal: bool,
    ) -> None:
        self.tokens = tokens
        self.array_of = array_of
        self._lock = lock
        self._addresses = addresses
        self.waited_s = waited_s
        self._is_fatal = is_fatal
        self._next_look = 0.0
        self._watched: dict[int, weakref.ref[Turn]] = {}

    def do(self, transition: Callable[..., Wakes], *args: Any) -> None:
        """Make a transition, and wake whom it concerns."""
        with self._lock:
            wakes = transition(*args)
        self.wake(wakes)

    def wake(self, wakes: Wakes) -> None:
        """Wake sleepers: of each event so many."""
        for event, n in wakes:
            futex.wake(self._addresses[event], n)

    def claim(self, turn: Turn, event: int, timeout: float) -> SharedArray:
        """Wait until the turn has a slot; returns its array.

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
                    if attempt(turn, me):
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
        assert turn.index is not None
        return self.array_of(turn.index)

    def look_for_the_dead(self) -> bool:
        """Take back the slots of processes that have ended; whether there were any."""
        self._next_look = time.monotonic() + SLICE_S
        with self._lock:
            held = self.tokens.held()
        dead = [each for each in held if each.holder != identity() and has_ended(each.holder)]
        for each in dead:
            if self._is_fatal:
                self.do(self.tokens.abort, f"process {each.holder[0]} died with a slot")
            else:
                self.do(self.tokens.reclaim, each)
        return bool(dead)

    def watch(self, turn: Turn) -> None:
        """Free the slot of a turn that is gone before its block has ended; see `_Exit`."""
        assert turn.index is not None
        self._watched[turn.index] = weakref.ref(turn, partial(self._lose, turn.index, os.getpid()))

    def unwatch(self, turn: Turn) -> None:
        """Leave it to the turn."""
        if turn.index is not None:
            self._watched.pop(turn.index, None)

    def _lose(self, index: int, pid: int, _: weakref.ref[Turn]) -> None:
        # Inside any allocation of any thread: no lock.
        if pid == os.getpid():
            del self._watched[index]
            self.tokens.drop(index)
            self.wake(EVERYBODY)


class _Exit:
    """What ends a with block: not a method.

    Python looks for an interrupt when a function in Python begins, so an interrupt that came
    during a long call inside the block is raised at the first line of ``__exit__``, which cannot
    catch it; and the traceback keeps that line's ``self``, in a notebook for long. So only what
    calls the function has the turn; when that is gone the turn is, and the desk, which watches it,
    frees the slot. (A ``__del__`` would begin at the end of every block, and swallow interrupts.)
    """

    def __get__(self, turn: Turn | None, cls: type[Turn]) -> Callable[..., None]:
        if turn is None:
            return _end  # contextlib.ExitStack asks the class
        leave = partial(_leave, weakref.ref(turn))
        vars(leave)["turn"] = turn
        return leave


def _leave(ref: weakref.ref[Turn], kind: type[BaseException] | None, *_: Any) -> None:
    turn = ref()
    assert turn is not None
    try:
        turn.end(publish=kind is None)
    except BaseException:
        turn.give_up()
        raise


def _end(turn: Turn, *error: Any) -> None:
    _leave(weakref.ref(turn), *error)


class Turn:
    """A slot for the length of a with block.

    Parameters
    ----------
    desk : Desk
        Who hands it out.
    event : {FREED, FILLED}
        What to wait for: a producer's turn, or a consumer's.
    timeout : float
        Seconds.

    Notes
    -----
    For one thread.
    """

    index: int | None = None  # of the slot that is held
    _pid = 0

    def __init__(self, desk: Desk, event: int, timeout: float) -> None:
        self._desk = desk
        self._event = event
        self._timeout = timeout

    def __enter__(self) -> SharedArray:
        if self.index is not None:
            raise RuntimeError("this turn has its slot already: ask the ring for another one")
        self._pid = os.getpid()
        try:
            array = self._desk.claim(self, self._event, self._timeout)
            self._desk.watch(self)
            # No call follows, and so no interrupt, until the block has begun.
            return array
        except BaseException:
            self.give_up(is_unseen=True)
            raise

    __exit__ = _Exit()

    def end(self, *, publish: bool) -> None:
        """Give the slot back; a producer's to the consumers, if `publish`."""
        if self._pid != os.getpid():  # a fork has left the block: the slot is its parent's
            return
        self._desk.unwatch(self)
        tokens = self._desk.tokens
        is_filled = publish and self._event == FREED
        self._desk.do(tokens.commit if is_filled else tokens.release, self)

    def give_up(self, *, is_unseen: bool = False) -> None:
        """Let go of what is still held, after an error or interrupt wherever it came."""
        self._desk.unwatch(self)
        if self.index is not None and self._pid == os.getpid():
            self._desk.tokens.drop(self.index, is_unseen=is_unseen)
            self.index = None
        # A wake-up that was for us, or by us, may be lost.
        self._desk.wake(EVERYBODY)
