"""Loaders and stages of pipelines."""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np

from tests.support.faultlab import wait_until

ROWS = 4  # of a block


class BadDataError(Exception):
    """A reader has read a number that was never written."""


# ------------------------------------------------------------------------- loaders


def numbers(n, pause_s=0.0):
    """Yield the numbers below n in blocks, the last of which is full in part."""
    for start in range(0, n, ROWS):
        time.sleep(pause_s)
        yield np.arange(start, min(start + ROWS, n))


def numbers_in_place(slots, n):
    """Fill them in."""
    for start, slot in zip(range(0, n, ROWS), slots, strict=False):
        rows = min(ROWS, n - start)
        slot[:rows] = range(start, start + rows)
        yield None if rows == ROWS else rows


def endless(started=None):
    """Yield blocks of one number until it is stopped."""
    for i in itertools.count():
        yield np.full(ROWS, i)
        if i == 20 and started is not None:
            Path(started).touch()


def lines(slots, path):
    """Read a file of integers, one a line."""
    with open(path) as file:
        for slot in slots:
            found = [int(line) for line in itertools.islice(file, len(slot))]
            if not found:
                return
            slot[: len(found)] = found
            yield len(found)


def fails_at(n):
    """Yield n blocks, then fail."""
    yield from numbers(n * ROWS)
    raise ValueError("the disk is full")


def takes_no_slot(slots):
    """Forget to take a slot."""
    yield 3


# -------------------------------------------------------------------------- stages


def doubled(block):
    """Return a new array."""
    return 2 * block


def plus_one(block, out):
    """Fill the slot in place."""
    out[: len(block)] = block + 1
    return len(block)


def unevenly_doubled(block):
    """Take longer for some blocks than for others."""
    time.sleep(0.001 * (int(block[0]) // ROWS % 3))
    return 2 * block


def to_list(block):
    """Return what fits no array, as blocks may differ in length."""
    return block.tolist()


def total(block):
    """Return a number."""
    return int(block.sum())


def whole(block):
    """Return the slot itself."""
    return block


def checked(block, path):
    """Verify that a line follows the one before. Return how many there were."""
    if not (np.diff(block) == 1).all():
        raise BadDataError(block)
    with open(path, "a") as file:
        file.writelines(f"{number}\n" for number in block.tolist())
    return len(block)


def slow_sometimes(block):
    """Let some blocks overtake others."""
    time.sleep(0.001 * (int(block[0]) % 3))
    return block


def slow(block, pause_s=0.02):
    """Take a while."""
    time.sleep(pause_s)
    return block


def first_waits(block, flag):
    """Hold the first block until the second one is done."""
    if block[0] == 0:
        wait_until(flag.exists)
    return block


def second_tells(block, flag):
    """Return the number of the block."""
    if block[0] == ROWS:
        flag.touch()
    return block[0] // ROWS


def broken(block, at, how):
    """Fail in some way in one block."""
    if block[0] == at * ROWS:
        if how == "raise":
            raise ValueError("no way on")
        if how == "kill":
            os.kill(os.getpid(), 9)
        threading.Event().wait()
    return block


def too_large(block):
    """Return more than the next slot takes."""
    return np.zeros(2 * ROWS)


def halved(block):
    """Return another kind of numbers."""
    return block / 2


def seven():
    """Give no blocks."""
    return 7


def gives_out(block, out):
    """Return what was filled in, as functions do elsewhere."""
    out[...] = block
    return out


class Unloadable:
    """An object that can be pickled only."""

    def __reduce__(self):
        return fail_to_load, ()


def fail_to_load():
    raise BadDataError("never loads")


def gives_unloadable(block):
    """Return what the caller cannot have."""
    return Unloadable()


def forgotten(block):
    """Return nothing, though another stage waits for it."""


def large(block):
    """Return much more than a frame."""
    return np.full((300, 1000), block[0], "f8")


def unlike(block):
    """Return results of different kinds."""
    return "text" if block[0] == ROWS else block[0]


def nothing_of(block):
    """Hand on an empty block in place of every second one."""
    return block[:0] if block[0] // ROWS % 2 else block


def killed_as_it_sends(block):
    """Die in the middle of sending a large result, from the second block on."""
    if block[0] >= ROWS:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, 0.002)
    return np.full(12 << 20, block[0])  # 100 MB


# ---------------------------------------------------------------- with something shared


def scaled_numbers(n, scale):
    """Yield numbers, each times a constant."""
    for block in numbers(n):
        yield block * scale[: len(block)]


def scaled(block, out, scale, *, offset=0):
    """Fill the slot in place."""
    out[: len(block)] = block * scale[: len(block)] + offset
    return len(block)


def addressed(block, scale):
    """Return the result, the access to the constant, and where it is."""
    from nbshare._core.memory import segment_of
    from nbshare._core.system import sections

    segment, _ = segment_of(scale)
    return block.tolist(), scale.flags.writeable, sections.key_of(segment.fd)


# ------------------------------------------------------------------------ that take long


def waits(block, for_s=0.0, at=-1, how="sleep"):
    """Take long in one block."""
    if block[0] == at * ROWS:
        Path(f"busy-{os.getpid()}").touch()
        if how == "stop":
            os.kill(os.getpid(), signal.SIGSTOP)
        elif how == "gil" and sys.platform == "win32":
            ctypes.PyDLL("kernel32").Sleep(100_000)
        elif how == "gil":
            ctypes.PyDLL(None).sleep(100)
        time.sleep(for_s)
    return block


def numbers_late(n, at, for_s):
    """Yield blocks, one of them late."""
    for i, block in enumerate(numbers(n)):
        time.sleep(for_s if i == at else 0)
        yield block


def says(block, word):
    """Print, and hand on."""
    print(word, block[0], flush=True)
    return block
