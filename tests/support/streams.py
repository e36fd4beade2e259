"""Functions of runs over generators."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import ClassVar

import numpy as np

from nbshare._core.memory import segment_of
from tests.support.faultlab import SIGKILL

KINDS = {
    "numbers": lambda i: 0.5 * i,
    "ints": lambda i: i * i,
    "arrays": lambda i: np.full((3, 2), i, "f4"),
    "pages": lambda i: np.full(512, i, "f8"),
    "texts": str,
    "shapes": lambda i: np.zeros(i % 3),
    "mixed": lambda i: i if i < 50 else i + 0.5,
    "pairs": lambda i: (i, np.full(2, i)),
    "None": lambda i: None,
}


def fail(kind):
    raise kind("no data")


class Raises:
    """Raises an error when it is pickled, unpickled, or made an array of."""

    def __init__(self, kind, when="pickled"):
        self.kind, self.when = kind, when

    def __array__(self, dtype=None, copy=None):
        fail(self.kind)

    def __reduce__(self):
        return (fail, (self.kind,)) if self.when == "unpickled" else fail(self.kind)


def give(i, kind):
    return KINDS[kind](i)


def add(x, row):
    return x + row.sum()


def spin(i, seconds):
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
    return i


def wait_for(i, path):
    """Return when there is a file."""
    while not Path(path).exists():
        time.sleep(0.002)
    return i


def begin(i, folder):
    """Leave a file, and take longer than anybody waits."""
    Path(folder, str(i)).touch()
    time.sleep(60)


def length(array):
    return len(array)


def draw(i, rng):
    return i + rng.random()


def fail_at(i, bad):
    if i in bad:
        raise ValueError(f"no {i}")
    return i


def die_once_at(i, bad, folder):
    flag = Path(folder, str(i))
    if i in bad and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), SIGKILL)
    return i


def hang_at(i, bad):
    time.sleep(60 if i in bad else 1e-4)  # not so tiny that several are run together
    return i


def inode_of(i, array):
    return os.fstat(segment_of(array)[0].fd).st_ino


def version(i, edit, path):
    from stream_version import VERSION

    if i == 3:
        Path(path).write_text(edit)
    return VERSION


def other_version(i):
    from stream_other import VERSION

    return VERSION


def when_begun(i):
    return time.monotonic()


class Unweighable(list):
    """A list that cannot be looked at."""

    def __getitem__(self, key):
        raise SystemExit("no looks")


class Shown:
    """An item that counts how often its text is made."""

    times: ClassVar[Counter[int]] = Counter()

    def __init__(self, number: int) -> None:
        self.number = number

    def __repr__(self) -> str:
        Shown.times[self.number] += 1
        return f"number {self.number}"
