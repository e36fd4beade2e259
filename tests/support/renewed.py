"""The work of workers that are renewed, and what they leave when they end."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path

from nbshare import parallel_map
from tests.support.faultlab import SIGKILL

ENOUGH_S = 20.0


def pid(_):
    return os.getpid()


def one_more(_):
    return Counter([os.getpid()])


def pid_or_death(i, folder):
    """Return the process. Item 3 takes its worker along, once."""
    if i == 3 and not Path(folder, "dead").exists():
        Path(folder, "dead").touch()
        os.kill(os.getpid(), SIGKILL)
    return os.getpid()


def never(_):
    time.sleep(3600)


@contextmanager
def opened(folder):
    """Note who has entered and left, as an initializer."""
    Path(folder, f"in {os.getpid()}").touch()
    yield
    Path(folder, f"out {os.getpid()}").touch()


def generate(folder):
    yield from opened.__wrapped__(folder)


class Opened:
    """The same as a class."""

    def __init__(self, folder):
        self.folder = folder

    def __enter__(self):
        Path(self.folder, f"in {os.getpid()}").touch()

    def __exit__(self, *_):
        Path(self.folder, f"out {os.getpid()}").touch()


@contextmanager
def hanging(folder):
    Path(folder, f"in {os.getpid()}").touch()
    yield
    time.sleep(3600)


@contextmanager
def talking(folder):
    """Print more than a pipe holds while it is left."""
    Path(folder, f"in {os.getpid()}").touch()
    yield
    for _ in range(3000):
        print("x" * 99)
    Path(folder, f"out {os.getpid()}").touch()


def call_with_others(i, folder):
    """Return what is there after calls with this worker's initializer, and with another one."""
    after = []
    for initializer, where in ((opened, "outer"), (generate, "inner")):
        parallel_map(pid, [i], initializer=initializer, initargs=(str(folder / where),))
        after.append([name.split()[0] for name in names(folder / where)])
    return after


@contextmanager
def failing(folder):
    Path(folder, f"in {os.getpid()}").touch()
    yield
    raise OSError("the connection was lost")


def fail():
    raise ValueError("cannot be loaded")


class Unloadable:
    """Fails where it arrives."""

    def __reduce__(self):
        return fail, ()


def names(folder):
    return sorted(os.listdir(folder))
