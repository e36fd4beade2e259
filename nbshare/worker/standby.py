"""How a worker waits for the next lap of a call that stays (`nbshare.engine.encore`).

::

    caller                           worker
                                     sleeps
    COMING = 1, gong                 wakes up, sets itself right as for a call, looks for items
    checks, items into the tray
    COMING = 0, next item 0          claims, runs them
    results                          tidies up, sleeps

To wake up and to get ready take as long as half of a lap, so both are done while the caller is
still at it.
"""

from __future__ import annotations

import os
import time
from typing import Protocol

from nbshare.worker.schedule import COMING, COMING_S, EPOCH, STOP, Board

__all__ = ["Standby"]


class Waiter(Protocol):
    """What a worker does meanwhile."""

    def await_items(self, pause_s: float) -> None:
        """Sleep so long, or until the gong is rung."""

    def begin_anew(self) -> None:
        """Set this process right for other items, as for those of another call."""


class Standby:
    """A worker's waiting for items.

    Parameters
    ----------
    board : Board
        Of the call.
    waiter : Waiter
        Sleeps, and sets the process right.
    """

    def __init__(self, board: Board, waiter: Waiter) -> None:
        self._header, self._waiter = board.header, waiter
        self._epoch = 0  # the lap that it has begun
        self._set_for = 0  # the lap whose items would find this process as they should

    def wait(self, pause_s: float) -> None:
        """Wait for items that are not there yet: so long, or until some come."""
        header = self._header
        self._waiter.await_items(pause_s)
        epoch = header[EPOCH]  # first: if this is late they are not those that are coming now
        if header[COMING]:
            self._waiter.begin_anew()
            self._set_for = epoch + 1
            until_s = time.monotonic() + COMING_S
            while header[COMING] and not header[STOP] and time.monotonic() < until_s:
                os.sched_yield()  # to the caller, if there is no other CPU for it

    def begins_anew(self) -> bool:
        """Whether the items that have been claimed are the first of a lap; for which all is set."""
        if self._header[EPOCH] == self._epoch:
            return False
        self._epoch = self._header[EPOCH]
        if self._set_for != self._epoch:
            self._waiter.begin_anew()
        return True
