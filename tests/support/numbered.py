"""Functions in which workers tell their numbers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import nbshare
from tests.support.faultlab import SIGKILL

ENOUGH_S = 20.0  # after which an item does not wait for others any longer

SLOW_S = 0.1  # to free or to leave something, longer than a call takes to begin
LATE_S = 30.0  # likewise, longer than a call waits

first = []


def note_index():
    """As an initializer."""
    first.append(nbshare.worker_index())


def note_index_and_leave_slowly():
    """As an initializer."""
    note_index()
    yield
    time.sleep(SLOW_S)


class FreedSlowly:
    """An input that takes a while to free, in workers."""

    def __init__(self, seconds=SLOW_S):
        self.seconds = seconds

    def __del__(self):
        if nbshare.worker_index() is not None:
            time.sleep(self.seconds)


def meet_with(i, folder, n, thing):
    """Return the number, when `n` items run at the same time."""
    return meet(i, folder, n)[1]


def meet(i, folder, n):
    """Return who this is, and its number, when `n` items run at the same time."""
    Path(folder, str(i)).touch()
    until_s = time.monotonic() + ENOUGH_S
    while len(os.listdir(folder)) < n and time.monotonic() < until_s:
        time.sleep(0.002)
    return (os.getpid(), threading.get_ident()), nbshare.worker_index()


def meet_prepared(i, folder, n):
    """Return its number, and that which the initializer has seen."""
    return meet(i, folder, n)[1], *first


def index(_):
    return nbshare.worker_index()


def nested(i):
    """Return the number, and those of nested calls."""
    return nbshare.worker_index(), *nbshare.parallel_map(index, range(3), out="list")


def die_once(i, folder, n):
    """Return the number of a worker that comes after one that has died."""
    if i == 1 and not Path(folder, "dead").exists():
        Path(folder, "dead").touch()
        os.kill(os.getpid(), SIGKILL)
    return meet(i, folder, n + 1)[1]


def load():
    yield from range(4)
