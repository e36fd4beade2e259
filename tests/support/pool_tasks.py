"""Tasks for executors."""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import nbshare

state: list[Any] = ["not initialized"]


def set_state(value: Any) -> None:
    state[0] = value


def get_state(*_: Any) -> Any:
    return state[0]


def fail_to_start(text: str) -> None:
    raise RuntimeError(text)


def capture(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
    return args, kwargs


def pid(*_: Any) -> int:
    return os.getpid()


def wait_for(path: str | Path, *_: Any) -> int:
    """Run until a file is there."""
    while not os.path.exists(path):
        time.sleep(0.001)
    return os.getpid()


def begin_and_wait_for(begun: str, path: str) -> None:
    """Report which process has begun, and run until a file exists."""
    part = Path(f"{begun}.part")
    part.write_text(str(os.getpid()))
    part.rename(begun)
    wait_for(path)


def sleep_and_print(seconds: float, text: str) -> None:
    time.sleep(seconds)
    print(text, flush=True)


def die(*_: Any) -> None:
    os._exit(3)


def raise_with_comment() -> None:
    raise RuntimeError(123)  # some comment


class PidError(Exception):
    """Says which process has raised it."""


def raise_pid() -> None:
    raise PidError(os.getpid())


def version_of(module: str) -> Any:
    """Import a module here."""
    return importlib.import_module(module).version


class OddError(Exception):
    """Does not survive pickling."""

    def __init__(self, a: int, b: int) -> None:
        super().__init__(f"{a} and {b}")


def raise_odd() -> None:
    raise OddError(1, 2)


class Unloadable:
    """Can be pickled, and not unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return int, ("no number",)


def spring(how: str) -> Any:
    """Raise, exit, or die."""
    if how == "raises":
        raise ValueError("sprung")
    if how == "exits":
        sys.exit(3)
    if how == "os._exit":
        os._exit(3)
    os.kill(os.getpid(), getattr(signal, how))


class TrapWhenLoaded:
    """Springs when it is unpickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> tuple[Any, ...]:
        return spring, (self.how,)


class TrapWhenSaved:
    """Springs when it is pickled."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __reduce__(self) -> Any:
        return spring(self.how)


def large_trap(how: str) -> Any:
    return np.ones(1 << 20), TrapWhenSaved(how)


class FalseError(Exception):
    """Is false, as an empty list is."""

    def __len__(self) -> int:
        return 0


def raise_false(*_: Any) -> None:
    raise FalseError


def a_lock() -> Any:
    return threading.Lock()


class Counter:
    """Has a state that calls change."""

    def __init__(self) -> None:
        self.n = 0

    def __call__(self) -> int:
        """Return how often it has been called."""
        self.n += 1
        return self.n


def fill(data: np.ndarray, result: np.ndarray, i: int) -> None:
    """Write one place of the result, from all of the data."""
    result[i] = np.abs(data[i:] - data[: len(data) - i]).mean()


def count(runs: np.ndarray, i: int) -> None:
    """Count the runs of a task."""
    runs[i] += 1


def add_in_place(array: np.ndarray) -> np.ndarray:
    array += 1
    return array


def nested_failures(n: int) -> list[str]:
    """Return with what the tasks of an executor fail whose initializer does."""
    with nbshare.Executor(initializer=int, initargs=("no number",)) as executor:
        return [type(executor.submit(abs, -1).exception()).__name__ for _ in range(n)]


def nested(n: int) -> tuple[list[int], bool]:
    with nbshare.Executor(2) as executor:
        pids = list(executor.map(pid, range(n)))
        futures = [executor.submit(double, i) for i in range(n)]
    return [f.result() for f in futures], set(pids) == {os.getpid()}


def double(x: int) -> int:
    return 2 * x


def log_probability(x: np.ndarray) -> float:
    return -0.5 * float(np.sum(x * x))


def to_cube(u: np.ndarray) -> np.ndarray:
    return 10 * u - 5


def rosenbrock(x: np.ndarray) -> float:
    return float((1 - x[0]) ** 2 + 100 * (x[1] - x[0] ** 2) ** 2)


def oscillation(x: float) -> np.ndarray:
    return np.array([np.sin(30 * x), x])


def mean_of(array: np.ndarray, i: int) -> tuple[float, bool]:
    return float(array.mean()) + i, isinstance(array, nbshare.SharedArray)


def inner_parallel(n: int, backend: str | None = None) -> tuple[list[int], int]:
    import joblib

    found = joblib.Parallel(n_jobs=2, backend=backend)(joblib.delayed(pid)(i) for i in range(n))
    return found, os.getpid()


def submits(x, func):
    """Give the result of a task of an executor in this worker."""
    with nbshare.Executor() as executor:
        return executor.submit(func, x).result()
