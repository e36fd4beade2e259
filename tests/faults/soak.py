"""Make, send, keep and free a million arrays in shared memory, and see that nothing is left.

Arrays of 0 bytes to 4 MB of many dtypes are made in every way, and some of their views are kept for
a while. A few go to another process and back, a few to the workers of a run. When all of them are
gone, this process and the other one must hold what they held after the first thousand, which is as
many descriptors and mappings of segments, and about as much resident memory.

::

    python tests/faults/soak.py [--cycles 1000000] [--seed 0]

A line is printed now and then. The exit status is 1, with the figures, if something is left. A
million cycles take about two minutes on two cores.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

import nbshare

WARM_UP = 1000  # cycles, after which things are to stay as they are
KEPT = 40  # views
SETTLE_S = 10.0  # for what is under way to arrive, and for the system to give memory back
MAX_GROWTH = 8 << 20  # bytes of resident memory, by which the reserve of an allocator varies

RECORD = [("a", "u1"), ("b", "f8")]
STAMPS = [
    *(np.uint8(7), np.int16(-3), np.float16(1.5), np.float32(0.1), 2.5, 1 - 2j, np.True_),
    *(np.array(5, ">i4"), np.datetime64(5, "s"), np.array("ab", "U3"), np.array((1, 2.5), RECORD)),
]
MAKERS = {
    "full": lambda n, stamp: nbshare.full(n, stamp),
    "zeros": lambda n, stamp: _filled(nbshare.zeros(n, np.asarray(stamp).dtype, "F"), stamp),
    "empty": lambda n, stamp: _filled(nbshare.empty(n, np.asarray(stamp).dtype), stamp),
    "zeros_like": lambda n, stamp: _filled(nbshare.zeros_like(np.full(n, stamp)), stamp),
    "share r+": lambda n, stamp: nbshare.share(np.full(n, stamp)),
    "share r": lambda n, stamp: nbshare.share(np.full(n, stamp), mode="r"),
    "share c": lambda n, stamp: nbshare.share(np.full(n, stamp), mode="c"),
}
VIEWS = [
    lambda a: a,
    lambda a: a[::-2],
    lambda a: a[:, None].T,
    lambda a: np.asarray(a)[len(a) // 2 :],
    lambda a: a[:1],
]


def _filled(array: Any, stamp: Any) -> Any:
    array[...] = stamp
    return array


def check(view: np.ndarray, stamp: Any) -> None:
    """Compare the ends of a view with what its array was filled with."""
    if view.size:
        expected = np.asarray(stamp).tobytes()
        assert view.ravel()[:1].tobytes() == view[..., -1:].tobytes() == expected, (view, stamp)


def mirror(connection: Connection) -> None:
    """Send back what comes, and the state of this process when asked for."""
    while (message := connection.recv()) is not None:
        connection.send(state() if message == "state" else message)
        del message


def state() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": sum("nbshare-" in line for line in maps),
        "threads": int(status["Threads"]),
        "shared": int(status["RssShmem"].split()[0]) << 10,
        "resident": int(status["VmRSS"].split()[0]) << 10,
    }


class Soak:
    """A run of cycles. The arguments are the command line's."""

    def __init__(self, n_cycles: int, seed: int) -> None:
        self._n_cycles = n_cycles
        self._dice = random.Random(seed)
        self._kept: list[tuple[np.ndarray, Any]] = []
        context = multiprocessing.get_context("spawn")
        self._other, theirs = context.Pipe()
        self._process = context.Process(target=mirror, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()

    def run(self) -> list[str]:
        """Return what is left."""
        start, said = time.monotonic(), 0.0
        for cycle in range(1, self._n_cycles + 1):
            self._turn()
            if cycle == WARM_UP:
                before = self._rest(None)
            if (now := time.monotonic()) > said + 10:
                said = now
                print(f"{cycle:9,} cycles, {now - start:5.0f} s: {state()}", flush=True)
        after = self._rest(before)
        self._other.send(None)
        self._process.join()
        print(f"{self._n_cycles:9,} cycles, {time.monotonic() - start:5.0f} s: {after[0]}")
        return _growth(before, after)

    def _turn(self) -> None:
        """Make an array, keep a view or not, look at another one, send one or not."""
        stamp = self._dice.choice(STAMPS)
        nbytes = 2 ** self._dice.uniform(0, 22) if self._dice.random() < 0.2 else 4096
        n = self._dice.randrange(1 + int(nbytes) // np.asarray(stamp).nbytes)
        array = self._dice.choice(list(MAKERS.values()))(n, stamp)
        view = self._dice.choice(VIEWS)(array)
        check(view, stamp)
        if len(self._kept) < KEPT:
            self._kept.append((view, stamp))
        place = self._dice.randrange(len(self._kept))
        check(*self._kept[place])
        if self._dice.random() < 0.3:
            self._kept[place] = view, stamp
        if (die := self._dice.random()) < 0.01:
            self._other.send([view, self._kept[place][0]])
            for back, sent in zip(self._other.recv(), (stamp, self._kept[place][1]), strict=True):
                check(back, sent)
        elif die < 0.012:
            views = [kept for kept, _ in self._kept[:4]]
            given = {"extra": self._kept[-1][0]}
            sizes = nbshare.parallel_map(_sizes, views, shared=given, out="list", progress=False)
            assert sizes == [(v.nbytes, given["extra"].nbytes) for v in views]

    def _rest(self, before: list[dict[str, int]] | None) -> list[dict[str, int]]:
        """Release everything. Return what both processes still hold."""
        self._kept.clear()
        nbshare.shutdown()
        end = time.monotonic() + (SETTLE_S if before else 2.0)
        while True:
            time.sleep(0.1)
            self._other.send("state")
            now = [state(), self._other.recv()]
            if time.monotonic() > end or (before and not _growth(before, now)):
                return now


def _sizes(view: np.ndarray, extra: np.ndarray) -> tuple[int, int]:
    return view.nbytes, extra.nbytes


def _growth(before: list[dict[str, int]], after: list[dict[str, int]]) -> list[str]:
    grown = []
    for who, old, new in zip(("this process", "the other one"), before, after, strict=True):
        for name, figure in new.items():
            is_exact = name not in ("shared", "resident")
            if figure != old[name] if is_exact else figure > old[name] + MAX_GROWTH:
                grown.append(f"{who}: {name} {old[name]:,}, now {figure:,}")
    return grown


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=1_000_000, help="at least 1000")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.cycles < WARM_UP:
        parser.error(f"--cycles {arguments.cycles}: at least {WARM_UP}")
    left = Soak(arguments.cycles, arguments.seed).run()
    print("\n".join(left) or "nothing is left")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
