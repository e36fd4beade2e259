"""Functions whose items say what to do, for runs that differ only in their items."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.policies import look_and_litter


def echo(x: Any) -> Any:
    return x


def describe(x: Any) -> str:
    writable = x.flags.writeable if isinstance(x, np.ndarray) else None
    return f"{type(x).__name__} {x.dtype} {x.shape} {writable}"


def write_to(row: np.ndarray) -> float:
    row[0] = 1.0
    return 0.0


def both(x: Any, y: Any) -> Any:
    return x, y


def pid(_: Any) -> int:
    return os.getpid()


def other_pid(_: Any) -> int:
    return os.getpid()


def slow_pid(_: Any) -> int:
    time.sleep(0.005)
    return os.getpid()


def perform(order: tuple[str, Any]) -> Any:
    """Do what the item asks for."""
    what, detail = order
    match what:
        case "give":
            return detail
        case "say":
            print(detail)
        case "raise":
            raise ValueError(detail)
        case "die":
            os.kill(os.getpid(), signal.SIGKILL)
        case "sleep":
            time.sleep(detail)
        case "flag":
            Path(detail).touch()
            time.sleep(60)
        case "zeros":
            return np.zeros(detail)
        case "text":
            return "x" * detail
        case "littered":
            return look_and_litter(0)
        case "import":
            sys.path.insert(0, os.path.dirname(detail))
            return __import__(os.path.basename(detail)).version()
    return 0.0


def first_line(path: str) -> str:
    return Path(path).read_text()


def slow_if_large(x: float) -> int:
    if x:
        time.sleep(x)
    return os.getpid()


def with_extra(x: Any, extra: int = 0) -> Any:
    return x, extra


def of_two(x: Any, y: Any) -> Any:
    return x, y


def add_to(item: tuple[list[int], int]) -> int:
    seen, i = item
    seen.append(i)
    return len(seen)


def note_run(order: tuple[str, int, float]) -> int:
    """Leave a line in a file for each run of the item."""
    path, i, seconds = order
    with open(path, "a") as file:
        file.write(f"{i} {os.getpid()}\n")
    time.sleep(seconds)
    return i
