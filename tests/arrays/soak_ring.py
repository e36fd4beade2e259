"""Run many small pipelines on ring buffers, in all ways, and see that each gives what it should.

In each run some loaders, threads and processes, put numbers into a ring of few slots, some
processors read them, and one of several things happens: nothing, the ring is aborted, or
a process is killed. Every run must come to its end, with everything read once (after a death: at
least once), and at the end this process must hold what it held after the first runs.

::

    python tests/arrays/soak_ring.py [--runs 1000] [--seed 0]

A line is printed now and then. A thousand runs take about a minute on two CPUs.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import nbshare
from nbshare.errors import RingAbortedError
from tests.support import rings

WARM_UP = 5  # runs, after which things are to stay as they are
LIMIT_S = 30.0  # for a run

FORK = multiprocessing.get_context("fork")


class Part:
    """A loader or processor, a thread or a process."""

    def __init__(self, is_thread: bool, target: Any, *args: Any) -> None:
        self.error: BaseException | None = None
        self.process = None if is_thread else FORK.Process(target=self._run, args=(target, *args))
        self._runner = self.process or threading.Thread(target=self._run, args=(target, *args))
        self._runner.start()

    def _run(self, target: Any, *args: Any) -> None:
        try:
            target(*args)
        except RingAbortedError:
            pass
        except BaseException as error:
            self.error = error
            raise

    def end(self, deadline: float, was_killed: bool) -> None:
        """Wait for its end, which must be a good one."""
        self._runner.join(max(0.0, deadline - time.monotonic()))
        assert not self._runner.is_alive(), "it hangs"
        assert self.error is None, self.error
        if self.process is not None:
            assert self.process.exitcode in ((0, -9) if was_killed else (0,)), self.process
            self.process.close()


def run(dice: random.Random) -> str:
    """Run one pipeline. Returns what happened in it."""
    n, n_loaders, n_processors = dice.randrange(60), dice.randint(1, 3), dice.randint(1, 3)
    ring = nbshare.RingBuffer(dice.randint(1, 5), dice.choice([1, (2, 3), 1000]), int)
    seen = nbshare.zeros(max(1, n * n_loaders), int)
    what = dice.choice(["nothing", "nothing", "abort", "kill a loader", "kill a processor"])
    # One of each is a process, to be killed, and one processor stays. Forks come before threads.
    kinds = [[k > 0 and dice.random() < 0.5 for k in range(m)] for m in (n_loaders, n_processors)]
    kinds[1].append(True)
    jobs = [(t, rings.put_numbers, ring, n * k, n) for k, t in enumerate(kinds[0])]
    jobs += [(t, rings.count, ring, seen) for t in kinds[1]]
    parts = {i: Part(*jobs[i]) for i in sorted(range(len(jobs)), key=lambda i: jobs[i][0])}
    loaders = [parts[i] for i in range(n_loaders)]
    processors = [parts[i] for i in range(n_loaders, len(jobs))]
    deadline = time.monotonic() + LIMIT_S
    time.sleep(dice.uniform(0, 0.02))
    if what == "abort":
        ring.abort("enough")
    elif what != "nothing":
        victim = (loaders if what == "kill a loader" else processors)[0].process
        assert victim is not None
        victim.kill()
    for part in loaders:
        part.end(deadline, what == "kill a loader")
    ring.close()
    for part in processors:
        part.end(deadline, what == "kill a processor")
    if what != "abort":
        rings.count(ring, seen)  # slots of a process that died after the others were done
    check(what, ring, np.asarray(seen[: n * n_loaders]), n)
    return what


def check(what: str, ring: nbshare.RingBuffer, seen: np.ndarray, n: int) -> None:
    """Compare what was read with what happened."""
    now = ring.stats
    if what == "nothing":
        assert (seen == 1).all(), seen
        assert now.n_put == now.n_got == len(seen), now
    elif what == "kill a loader":
        assert (seen[n:] == 1).all(), seen
        assert seen.max(initial=0) <= 1, seen
    elif what == "kill a processor":
        assert (seen >= 1).all(), seen  # counted, then killed, once more, or not counted, and later
    if what != "abort":
        assert (now.queued, now.reading, now.filling) == (0, 0, 0), now


def state() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": sum("nbshare-" in line for line in maps),
        "threads": threading.active_count(),
    }


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=1000, help=f"more than {WARM_UP}")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    started = said = time.monotonic()
    happened: dict[str, int] = {}
    for i in range(arguments.runs):
        if i == WARM_UP:
            before = state()
        try:
            what = run(random.Random(f"{arguments.seed} {i}"))
        except BaseException:
            print(f"in run {i} of --seed {arguments.seed}:")
            raise
        happened[what] = happened.get(what, 0) + 1
        if (now := time.monotonic()) > said + 10:
            said = now
            print(f"{i + 1:6,} runs, {now - started:5.0f} s: {happened} {state()}", flush=True)
    after = state()
    print(f"{arguments.runs:6,} runs, {time.monotonic() - started:5.0f} s: {happened} {after}")
    if after != before:
        print(f"held after {WARM_UP} runs: {before}")
    return int(after != before)


if __name__ == "__main__":
    sys.exit(main())
