"""Items that are slow to pickle, or cannot be, and functions that tell that they run."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


def identity(x: Any) -> Any:
    return x


def joined(*args: Any) -> str:
    return repr([a.tolist() if isinstance(a, np.ndarray | np.generic) else a for a in args])


def mark(x: Any, path: str) -> Any:
    """Say that an item has been run."""
    Path(path).touch()
    return x


def fail_at_first(x: int) -> int:
    if x == 0:
        raise ValueError("the first one")
    return x


def die_once(x: Any, path: str) -> Any:
    """End the worker at the first item, unless that has happened."""
    if x == 0:
        try:
            Path(path).touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            Path(f"{path}.again").touch()
    return x


def total(x: Any) -> float:
    """Return the sum of an array, and write to it."""
    found = float(np.sum(x))
    if isinstance(x, np.ndarray):
        x[...] = -1
    return found


def add_to(place: tuple[Any, Any] | int) -> int:
    """Add 1 to an array, under a lock."""
    if isinstance(place, tuple):
        array, lock = place
        with lock:
            array += 1
    return 0


class Awaits:
    """Is pickled, as a 7, when there is a file of this name."""

    def __init__(self, path: Any) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        from faultlab import wait_until  # late: not for workers

        wait_until(Path(self.path).exists, 5)
        return int, (7,)


class Slow:
    """Takes some time to be pickled."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __reduce__(self) -> Any:
        time.sleep(self.seconds)
        return int, (7,)


class Counted:
    """Counts how many of its kind have been pickled."""

    n = 0

    def __reduce__(self) -> Any:
        Counted.n += 1
        return int, (7,)


class Calls:
    """Calls a function while it is pickled."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self.function = function

    def __reduce__(self) -> Any:
        self.function()
        return int, (7,)


_kept: list[tuple[Any, float]] = []


def keep(array: Any) -> bool:
    """Keep an item, all of whose values are one; returns whether those kept are as they came."""
    _kept.append((array, float(array[0])))
    return all(bool((before == value).all()) for before, value in _kept)
