"""The work, which is the functions that workers call, and the workloads made of them.

Workers import this module, so it imports NumPy and the standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

# ------------------------------------------------------------------------- functions of one item


def same(x):
    return x


def double(x):
    return 2 * x + 1


def describe(x):
    return {"index": x, "name": "item", "value": x / 2}


def work(loops):
    """Keep one CPU busy, where 1600 loops take about 50 µs."""
    total = 0
    for k in range(loops):
        total ^= k
    return total


def block(start, n):
    return np.arange(start, start + n, dtype=float)


def count(value, data):
    """Count how often a value occurs in the data, in blocks that fit into a CPU's cache."""
    step = 1 << 17
    return sum(
        int(np.count_nonzero(data[i : i + step] == value)) for i in range(0, data.size, step)
    )


def reciprocal(x, pole):
    return 1 / (x - pole)


def hold(item, mark, data=None):
    """Tell that the item has begun, and compute for a minute."""
    Path(mark).touch()
    end = time.monotonic() + 60
    while time.monotonic() < end:
        work(1000)


def die(item, victim):
    """End the worker of one item, as the kernel does when memory runs out."""
    if item == victim:
        os.kill(os.getpid(), signal.SIGKILL)
    return item


# ------------------------------------------------------------------------- workloads


@dataclass(frozen=True)
class Workload:
    """One column of the race."""

    title: str
    meaning: str
    func: Callable[..., Any]
    items: Sequence[Any]
    data: Callable[[], Any] = lambda: None  # makes the large array that every item reads
    stacked: bool = False  # one array is wanted, not a list of arrays
    phases: tuple[str, ...] = ("later",)  # "first" is with import and start of the workers


GROUPS = (("start", "tiny", "dicts", "medium", "uneven"), ("input",), ("results",))
"""Workloads of one group run in one process, one after the other on the same workers."""


def random_bytes(n):
    return np.random.default_rng(0).integers(0, 256, n, np.uint8)


def uneven_loops(n, mean):
    """Return loops that differ by a factor of about a hundred. The longest is 5 % of all."""
    loops = np.random.default_rng(7).pareto(1.1, n) + 0.05
    for _ in range(20):
        loops = np.minimum(loops, loops.sum() / 20)
    return [int(each) for each in loops / loops.mean() * mean]


def workloads(size: str) -> dict[str, Workload]:
    """Return the workloads by name. The size is "smoke", "quick" or "full"."""
    scale = {"smoke": 0.001, "quick": 0.25, "full": 1.0}[size]
    many, some = max(64, int(100_000 * scale)), max(64, int(20_000 * scale))
    megabytes, values = int(400e6 * scale), int(50e6 * scale) // 8
    both = ("first", "later")
    return {
        "start": Workload(
            "calls that do nothing",
            "8 items that do nothing: how long a call takes that has no work",
            same,
            range(8),
            phases=both,
        ),
        "tiny": Workload(
            "tiny items",
            f"{many} items of less than 0.1 µs, each with a number as its result",
            double,
            range(many),
        ),
        "dicts": Workload(
            "small dicts",
            f"{some} items of less than 0.2 µs, each with a dict of three entries as its result",
            describe,
            range(some),
        ),
        "medium": Workload(
            "items of 50 µs",
            f"{some} items of about 50 µs, such as one small fit each",
            work,
            [1600 + i % 7 for i in range(some)],
        ),
        "uneven": Workload(
            "uneven items",
            "200 long items of which a few take most of the time, such as a parameter sweep",
            work,
            uneven_loops(200, 160_000 * scale),
        ),
        "input": Workload(
            "large input",
            f"24 items that each read all of one array of {megabytes / 1e6:g} MB",
            count,
            range(24),
            data=partial(random_bytes, megabytes),
            phases=both,
        ),
        "results": Workload(
            "large results",
            f"8 results of {values * 8 / 1e6:g} MB, as one array",
            partial(block, n=values),
            range(8),
            stacked=True,
            phases=both,
        ),
    }
