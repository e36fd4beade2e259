"""The work of other threads and processes with locks and buffers."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np

import nbshare
from tests.support.faultlab import SIGKILL, wait_until


def count(lock: Any, counter: np.ndarray, me: int, n: int) -> None:
    """Add `n` to a counter, together with the others, with one row of presence for each."""
    counter[1 + me] = 1
    wait_until(lambda: counter[1:].all(), what="not all have come")
    for _ in range(n):
        with lock:
            value = int(counter[0])
            time.sleep(2e-5)  # for anybody whom the lock does not keep out
            counter[0] = value + 1


def count_item(item: tuple[Any, ...]) -> None:
    count(*item)


def count_with(counter: np.ndarray, me: int, n: int, lock: Any) -> None:
    count(lock, counter, me, n)


def count_under_buffer(item: tuple[Any, ...]) -> None:
    """Count in a buffer, under its lock."""
    buffer, layout, me, n = item
    count(buffer.lock, buffer.layout(layout)["counter"], me, n)


def count_from(queue: Any) -> None:
    count(*queue.get(timeout=20))


def hold(lock: Any, held: Any) -> None:
    """Take the lock for good."""
    lock.acquire()
    held.set()
    time.sleep(60)


def end_holding(lock: Any) -> None:
    """Take the lock and return."""
    lock.acquire()


def die_holding(taken: np.ndarray, i: int, lock: Any) -> tuple[int, bool]:
    """Take the lock and be killed, if first. Else tell whether the lock was abandoned."""
    if i == 0:
        lock.acquire()
        taken[0] = True
        os.kill(os.getpid(), SIGKILL)
    wait_until(lambda: taken[0])
    with lock:
        return i, lock.was_abandoned


def try_all(lock: Any) -> dict[str, Any]:
    """Return what this process can do with a lock that another one holds."""
    found = {"locked": lock.locked(), "taken": lock.acquire(blocking=False)}
    try:
        lock.release()
    except RuntimeError as error:
        found["release"] = str(error)
    found["locked after"] = lock.locked()
    return found


def send_all(lock: Any, results: Any) -> None:
    results.put(try_all(lock))


# ------------------------------------------------------------------------------ buffers


def write(buffer: nbshare.SharedBuffer, layout: Any, name: str, value: Any) -> None:
    """Write one value into one array of a layout."""
    buffer.layout(layout)[name][...] = value


def write_item(item: tuple[Any, ...]) -> None:
    write(*item)


def write_shared(value: float, buffer: nbshare.SharedBuffer, layout: Any) -> None:
    """Write where it is forbidden."""
    write(buffer, layout, "A", value)


def read_under_lock(name: str, buffer: nbshare.SharedBuffer, layout: Any) -> Any:
    """Return what an array says and whether it can be written."""
    with buffer.lock:
        array = buffer.layout(layout)[name]
        return float(array.sum()), array.flags.writeable


def write_from(queue: Any) -> None:
    write(*queue.get(timeout=20))


def write_part(buffer: nbshare.SharedBuffer, layout: Any, name: str, n: int) -> None:
    """Write an array of one's own, and count the rounds in one that all write to."""
    arrays = buffer.layout(layout)
    arrays[name][...] = -1
    wait_until(lambda: arrays["left"][0] and arrays["right"][0], what="the other has not come")
    for i in range(n):
        with buffer.lock:
            arrays[name][...] = i + 1
            rounds = int(arrays["rounds"])
            time.sleep(2e-5)
            arrays["rounds"][...] = rounds + 1
