"""Functions whose results are of many kinds, and that look at their worker."""

from __future__ import annotations

import datetime as dt
import enum
import gc
import os
import sys
import time
import uuid
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import nbshare
from tests.support.faultlab import wait_until


class Tagged(np.ndarray):
    """An array that means something else. It is not in a file of tests, whose imports take long."""


def pair(x: int) -> tuple[int, np.ndarray]:
    return x, np.full(3, x / 2)


def pair_but_4(x: int) -> tuple[int, np.ndarray]:
    if x == 4:
        raise ValueError(x)
    return pair(x)


def pair_with_text(x: int) -> tuple[int, str]:
    return x, f"text {x}"


def in_turn(i: int, values: list[Any], ranks: list[int], turn: np.ndarray) -> Any:
    """Return a value, or raise it, when those of smaller ranks are done."""
    while turn[0] < ranks[i]:
        time.sleep(1e-4)
    if isinstance(values[i], Exception):
        raise values[i]
    return values[i]


def triangle(n: int) -> np.ndarray:
    """Return an array of another shape for each item."""
    return np.full((n, 1000), n, "f4")


def table(n: int) -> dict[str, Any]:
    return {"n": n, "values": np.arange(n * 10_000.0), "strided": np.arange(20_000)[::-2]}


def has_loaded(_: int, name: str) -> np.float64:
    return np.float64(name in sys.modules)


def sleep_for(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def noise(x: int, rng: np.random.Generator) -> float:
    return x + rng.random()


def blas_threads(_: int) -> tuple[int, str]:
    """Return the most threads of a loaded library, and what one loaded later would take."""
    import threadpoolctl

    n = max(info["num_threads"] for info in threadpoolctl.threadpool_info())
    return n, os.environ["OMP_NUM_THREADS"]


class Local:
    """Of a worker's module."""

    def __init__(self, values: np.ndarray) -> None:
        self.values = values


def local(n: int) -> Local:
    return Local(np.full(n * 50_000, n))


def shared(n: int) -> np.ndarray:
    return nbshare.full(n * 50_000, n)


def record(i: int) -> dict[str, float]:
    return {"i": i, "x": i / 2}


_KEPT: dict[str, Any] = {"i": 0, "last": [0, 0]}
_LAST: list[dict[str, Any]] = [{}]


def kept_record(i: int) -> dict[str, Any]:
    """Return one dict for all items, with a list in it that is one for all too."""
    _KEPT["i"] = i
    _KEPT["last"].append(i)
    del _KEPT["last"][:-2]
    return _KEPT


def replaced_record(i: int) -> dict[str, Any]:
    """Return a new dict, after a change of the one before, which nothing refers to afterwards."""
    _LAST[0]["i"] = None
    _LAST[0] = {"i": i, "half": i / 2}
    return _LAST[0]


def n_collections(_: Any, data: Any) -> int:
    """Return how often the garbage collector has looked at all objects of this process."""
    return gc.get_stats()[2]["collections"]


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def record_or_unloadable(i: int, bad: int, *, is_key: bool = False) -> Any:
    if i == bad:
        return {Unloadable(): i} if is_key else Unloadable()
    return record(i)


def number_or_none(i: int) -> float | None:
    return None if i % 3 == 0 else i / 2


def pair_of_numbers(i: int) -> tuple[int, float]:
    return i, i / 2


class Loaded:
    """Touches a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __setstate__(self, state):
        self.__dict__ = state
        Path(self.path).touch()


def await_load(i, path):
    """Return an object first. Those after it wait until that one has been loaded."""
    if i:
        wait_until(Path(path).exists, what="the first result is not loaded")
    return Loaded(path)


def fail_one(a):
    """Fail for 1, and return an object for others."""
    if a == 1:
        raise ValueError("bad")
    return {"a": a}


def value(i: int) -> Any:
    """Return an object that cannot be changed, of one class after the other."""
    later = dt.timedelta(seconds=i)
    noon = dt.datetime(2026, 11, 28, 12, tzinfo=dt.UTC)
    made = [
        *(lambda: later, lambda: noon + later, lambda: (noon + later).date()),
        *(lambda: Decimal(i), lambda: Fraction(i, 7), lambda: uuid.UUID(int=i)),
        *(lambda: Path(f"{i}.npy"), lambda: Member.GOOD, lambda: {"time": noon + later, "i": i}),
    ]
    return made[i // 500 % len(made)]()


class Member(enum.Enum):
    """One of them cannot be pickled."""

    GOOD = 1
    BAD = 2

    def __reduce_ex__(self, protocol: Any) -> Any:
        if self is Member.BAD:
            raise TypeError("not this one")
        return super().__reduce_ex__(protocol)


def member(i: int) -> Member:
    return Member.BAD if i == 9_999 else Member.GOOD
