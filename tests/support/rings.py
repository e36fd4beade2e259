"""The work of other threads and processes with ring buffers."""

from __future__ import annotations

import itertools
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from nbshare import RingBuffer
from nbshare.errors import NbshareError


class BadDataError(Exception):
    """A reader has read a number that was never written."""


def put_numbers(ring: RingBuffer, start: int, n: int) -> None:
    """Fill `n` slots, each with one number."""
    for number in range(start, start + n):
        with ring.put() as slot:
            slot[...] = number


def load_lines(ring: RingBuffer, path: Path) -> None:
    """Read a file of integers, one a line, into slots, the last of which is full in part."""
    with open(path) as file:
        n = 1
        while n:
            with ring.put() as slot:
                lines = list(itertools.islice(file, len(slot)))
                n = len(lines)
                slot[:n] = [int(line) for line in lines]
                ring.trim(slot, n)


def load_lines_and_close(ring: RingBuffer, path: Path) -> None:
    load_lines(ring, path)
    ring.close()


def check_sequence(ring: RingBuffer, result: np.ndarray, fail_at: int = -1) -> None:
    """Read 0, 1, 2, … to the end of the data, and leave how many there were."""
    expected = 0
    for slot in ring:
        if not np.array_equal(slot, np.arange(expected, expected + len(slot))):
            ring.abort(f"{slot} instead of {expected} and so on")
        expected += len(slot)
        if 0 <= fail_at < expected:
            raise BadDataError(f"cannot process {fail_at}")
    result[...] = expected


def check_or_abort(ring: RingBuffer, result: np.ndarray, fail_at: int) -> None:
    """As a processor should, tell the loader why reading has ended."""
    try:
        check_sequence(ring, result, fail_at)
    except BadDataError as error:
        ring.abort(str(error))


def count(ring: RingBuffer, seen: np.ndarray) -> None:
    """Count each number that comes. Every slot holds one number all over."""
    for slot in ring:
        number = int(slot.flat[0])
        if (slot != number).any():
            raise BadDataError(f"torn: {slot}")
        seen[number] += 1


def add(i: int, ring: RingBuffer) -> None:
    """As a function of a run, put a number, if it can be had as an argument at all."""
    put_numbers(ring, i, 1)


def add_item(item: tuple[RingBuffer, int]) -> None:
    ring, i = item
    put_numbers(ring, i, 1)


def add_from(queue: Any) -> None:
    add_item(queue.get(timeout=20))


def hold(ring: RingBuffer, way: str, held: Any) -> None:
    """Take a slot and keep it."""
    with ring.put() if way == "put" else ring.get() as slot:
        slot[...] = -slot - 1  # half-done
        held.set()
        time.sleep(60)


def tell_error(ring: RingBuffer, way: str, waits: Any, errors: Any) -> None:
    """Wait for a slot that does not come, and report why."""
    waits.set()
    try:
        with ring.put() if way == "put" else ring.get():
            errors.put("nothing")
    except (NbshareError, KeyboardInterrupt) as error:
        errors.put((type(error).__name__, str(error)))


def die_at_random(ring: RingBuffer, way: str, start: int, n: int, seen: np.ndarray) -> None:
    """Put or count numbers, and be killed somewhere in the middle. Forked, so that it is quick."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # whose default is to die without a word
    signal.setitimer(signal.ITIMER_REAL, random.Random(os.getpid()).uniform(0.0005, 0.02))
    if way == "put":
        put_numbers(ring, start, n)
    else:
        count(ring, seen)
    time.sleep(60)
