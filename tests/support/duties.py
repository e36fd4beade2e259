"""The duties of items in the contract of backends. Files tell what has happened, on any host."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

import nbshare
from tests.support.sweeps import note

ENOUGH_S = 20.0  # after which an item that nothing has ended ends by itself


def noted(path):
    """Return the lines of a file, sorted."""
    return sorted(Path(path).read_text().split()) if os.path.exists(path) else []


def identity(x):
    return x


def steps(part):
    """Return differences to the elements above."""
    return part - np.vstack([part[:1], part[:-1]])


def noise(i, rng):
    return i + rng.normal(size=3)


def odd_only(i):
    if i % 2 == 0:
        raise ValueError(f"{i} is even")
    return i


def add(x, y, z=0):
    return x + y + z


def sum_of(frame):
    return frame["x"].sum()


def key_of(key, frame):
    assert (frame["k"] == key).all()
    return key


def double_of(row):
    return 2 * row.x


def long_text(i):
    if i % 100 == 0:
        time.sleep(0.001)  # for the other workers
    return "x" * (4_000 + i)


def both(i, own, table):
    """Return the item, and something of two shared objects."""
    return i, own["whose"], float(own["values"].sum()), float(table[-1])


def doze(seconds):
    time.sleep(seconds)
    return seconds


def slow(i, seconds=0.01):
    time.sleep(seconds)
    return float(i)


def library(i, table):
    """Return the version of nbshare here, and its file, and something of an array."""
    return nbshare.__version__, nbshare.__file__, float(table.sum()) + i


def draw(i, rng):
    return rng.random()


def fail_at(i, bad):
    if i in bad:
        raise ValueError(f"no way on at {i}")
    return float(i)


def say_or_fail_at(i, bad):
    return f"item {int(fail_at(i, bad))}"


def fail_first(i, bad, log, n=2):
    """Note each attempt. The first ones of a bad item fail."""
    note(log, i)
    if i in bad and noted(log).count(str(i)) <= n:
        raise ValueError(f"no way on at {i}")
    return float(i)


def leave_at(i, bad):
    if i in bad:
        sys.exit(3)
    return float(i)


def lock_at(i, bad):
    """Give a result that cannot be pickled."""
    return threading.Lock() if i in bad else float(i)


def pair(i):
    return float(i), np.full(2, i)


def row(i):
    return np.full((2, 3), i, np.float32)


def large_row(i):
    return np.full(1 << 18, i, np.float64)


def noted_row(i, log):
    note(log, i)
    return row(i)


def assign(_, table):
    table[0] = 7


def swallow(items):
    """Change the item itself."""
    items.append(1)
    return len(items)


def fill(target, value):
    target[...] = value
    return 0


def say(i):
    print(f"item {i} says so")
    return i


def nest(n):
    return nbshare.parallel_map(identity, range(n)).sum()


_ready = []


def get_ready(value):
    _ready.append(value)


def read_ready(i):
    return i + _ready[-1]


def begin(i, folder):
    Path(folder, f"begun-{i}").touch()


def wait_for(folder, name, each=lambda: None):
    """Wait until a file is there, doing something meanwhile."""
    until_s = time.monotonic() + ENOUGH_S
    while not Path(folder, name).exists() and time.monotonic() < until_s:
        each()
        time.sleep(0.005)


def hold_from(i, first, folder):
    """Give the first items immediately. Others wait for a file."""
    begin(i, folder)
    if i >= first:
        wait_for(folder, "go")
    return float(i)


def be_alone(i, folder):
    """Fail if another item runs at the same time."""
    with open(Path(folder, "alone"), "x"):
        time.sleep(0.05)  # while others could begin
    os.remove(Path(folder, "alone"))
    return float(i)


def report_from(i, first, folder):
    """As `hold_from`, and report meanwhile."""
    begin(i, folder)
    if i >= first:
        wait_for(folder, "go", lambda: nbshare.report(0.5, "half"))
    return float(i)
