"""Functions whose results are combined to one by ``reduce=``."""

from __future__ import annotations

import os
import sys
import threading
import time

import numpy as np

import nbshare

_of_thread = threading.local()


def itself(x):
    return x


def refilled(x):
    """Return the array of the item before, which has other values now."""
    if not hasattr(_of_thread, "array"):
        _of_thread.array = np.zeros(3, np.int64)
    _of_thread.array[:] = x * 37 % 101
    return _of_thread.array


def refilled_shared(x):
    """Return the array of the item before, which is in shared memory."""
    if not hasattr(_of_thread, "shared"):
        _of_thread.shared = nbshare.zeros(3, np.int64)
    _of_thread.shared[:] = x * 37 % 101
    return _of_thread.shared


def refilled_in_list(x):
    return [refilled(x)]


def slow_list(x):
    time.sleep(0.002)
    return [x]


def draw(x, rng):
    return x / 7 + rng.normal(size=4)


def image(x):
    time.sleep(0.01)  # longer than adding two, so that the owner need not fall behind
    return np.full((1 << 19,), x)  # 4 MiB


def waits_at(x, folder, at):
    while x >= at and not (folder / "go").exists():
        time.sleep(0.001)
    return x


def odd_only(x):
    if x % 2 == 0:
        raise ValueError(f"{x} is even")
    return x


def leaves_at_100(x):
    if x == 100:
        sys.exit("enough")
    return x


def forks_at_100(x, folder, leaves):
    """Note the item. In item 100 a copy of the process ends, and the process goes on."""
    with (folder / "log").open("a") as file:
        file.write(f"{x}\n")
    if x == 100:
        if not (child := os.fork()):
            return sys.exit(0) if leaves else x
        os.waitpid(child, 0)
    return x


def flaky(x, folder):
    tries = folder / str(x)
    tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
    if x % 50 == 0 and len(tries.read_text()) < 3:
        raise OSError("busy")
    return x


def dies(x, folder):
    time.sleep(0.001)  # blocks that take less run together, and again one by one
    if x == 100 and not (folder / "died").exists():
        (folder / "died").touch()
        os.kill(os.getpid(), 9)
    return x


def refuses(a, b):
    raise ArithmeticError("not these")


class Loaded:
    """An item that notes where it is loaded, or cannot be."""

    def __init__(self, folder, k, *, fails=False):
        self.given = folder, k, fails

    def __reduce__(self):
        return load, self.given


def load(folder, k, fails):
    if fails:
        raise OSError("its file is gone")
    (folder / str(k)).touch()
    return k


def noted(x, folder):
    with (folder / "log").open("a") as file:
        file.write(f"{x}\n")
    if x == int((folder / "stop").read_text()):
        raise ArithmeticError
    return x / 3


def itself_by_3(x):
    return x / 3


def add(first, second):
    return first + second


def slow(x):
    time.sleep(0.002)
    return float(x)
