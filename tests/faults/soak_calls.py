"""Make thousands of calls of every kind, disturb them, and compare every result with the oracle.

Calls of all kinds of items, inputs, outputs and options run in one to four workers, some of them
two at a time, some from sources that pause, some for several threads. Many are disturbed. They are
interrupted anywhere, cancelled, their workers killed, before them or in their middle. The worker
module or its helper are edited between and during calls. Each result of a call must be what the
code of its time gives serially, the next call must be right, and in the end this process must hold
what it held after the first calls.

::

    python tests/faults/soak_calls.py [--calls 10000] [--seed 0] [--repeat SEED]

A line is printed now and then. The exit status is 1, with the figures, if something is wrong. Each
call has a seed of its own, which is printed if it fails. ``--repeat`` makes that call again and
again.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import gc
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import numpy as np

import nbshare
from nbshare.errors import (
    MixedResultsWarning,
    PartialResultWarning,
    TaskTimeoutError,
    WorkerDiedError,
)
from tests.support.faultlab import TAG, helpers

SETTLE_S = 10.0  # for what is under way to end, and for the system to give memory back
HANGS_S = 30.0  # longer than any call takes
MAX_GROWTH = 8 << 20  # bytes of resident memory, as small holes in the heap come by and by
M_MMAP_THRESHOLD = -3  # malloc.h
LARGE = 20 << 20  # bytes

MODULE = """\
import time
from pathlib import Path
import numpy as np
import soak_help
VERSION = {}
def stamp(x):
    return float(x) + 1e4 * soak_help.VERSION + 1e8 * VERSION
def short(x):
    until = time.perf_counter() + 50e-6
    while time.perf_counter() < until:
        pass
    return stamp(x)
def slow(x):
    time.sleep(0.005)
    return stamp(x)
def row_of(x, n):
    return np.full(n, stamp(x))
def ragged(x, n):
    return np.full(n + int(x) % 3, stamp(x))
def first(row):
    assert (row == row[0]).all()
    return stamp(row[0])
def unpack(item):
    return {{"text": str(item["x"]), "row": item["row"] + stamp(item["x"])}}
def look_up(x, table):
    return stamp(table[int(x)])
def fail(x, bad):
    if x in bad:
        raise ValueError(f"{{x}} is bad")
    return stamp(x)
def stick(x, bad):
    time.sleep(60 if x in bad else 1e-4)  # of tiny items several would be late
    return stamp(x)
def draw(x, rng):
    return stamp(x) + rng.random()
def try_twice(x, folder):
    flag = Path(folder, str(x))
    if x % 5 == 0 and not flag.exists():
        flag.touch()
        raise OSError("the first time")
    return stamp(x)
"""
HELPER = "VERSION = {}\n"


@dataclass
class Plan:
    """A call, and what it has to give."""

    name: str
    func: str
    items: Any
    value: Callable[[int, float], Any]  # of an item's index and its stamp
    options: dict[str, Any] = field(default_factory=dict)
    fails: tuple[type[BaseException], set[int]] | None = None


class Code:
    """The worker module and its helper, and their versions."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.versions = [1, 1]
        for which in (1, 0):
            self._write(which)
        sys.path.insert(0, str(folder))

    def edit(self, which: int) -> None:
        """Write the next version of the module (0) or of its helper (1)."""
        self.versions[which] = self.versions[which] % 1000 + 1
        self._write(which)

    def _write(self, which: int) -> None:
        name, text = (("soak_work.py", MODULE), ("soak_help.py", HELPER))[which]
        new = self._folder / f"{name}.new"
        new.write_text(text.format(self.versions[which]))
        os.replace(new, self._folder / name)

    def stamp(self, x: float, versions: tuple[int, int]) -> float:
        """Return what `stamp` of that version of the module does."""
        return float(x) + 1e4 * versions[1] + 1e8 * versions[0]


def plan(dice: random.Random, folder: Path) -> Plan:
    """Draw a call."""
    n = dice.choice([1, 2, 3, 7, 20, 60, dice.randrange(1, 300)])
    xs = list(range(n))
    size = dice.choice([1, 10, 1000, 20_000])
    bad = {x for x in xs if dice.random() < 0.1}
    plain = Plan("", "stamp", xs, lambda i, stamp: stamp)
    match dice.randrange(57) // 4:  # the last is rare, as comparing its results takes long
        case 0:
            made = Plan("tiny", "stamp", range(dice.randrange(1, 5000)), plain.value)
        case 1:
            made = Plan("short", "short", xs, plain.value)
        case 2:
            made = Plan("slow", "slow", xs[:40], plain.value)
        case 3:
            shared = {"n": size}
            made = Plan("rows", "row_of", xs, lambda i, s: np.full(size, s), {"shared": shared})
        case 4:
            shared = {"n": size}
            value = lambda i, s: np.full(size + i % 3, s)  # noqa: E731
            made = Plan("ragged", "ragged", xs, value, {"shared": shared})
        case 5:
            rows = np.repeat(np.arange(n, dtype=float)[:, None], size, 1)
            if dice.random() < 0.5:
                rows = nbshare.share(rows)
            made = Plan("array in", "first", rows, plain.value)
        case 6:
            items = [{"x": x, "row": np.full(size, float(x))} for x in xs]
            value = lambda i, s: {"text": str(i), "row": np.full(size, i + s)}  # noqa: E731
            made = Plan("objects", "unpack", items, value)
        case 7:
            table = np.arange(5000.0)
            made = Plan("shared", "look_up", xs, plain.value, {"shared": {"table": table}})
        case 8:
            table = np.zeros(LARGE // 8)
            table[:n] = xs
            made = Plan("large in", "look_up", xs, plain.value, {"shared": {"table": table}})
        case 9:
            xs, large = xs[:4], LARGE // 32
            shared = {"n": large}
            made = Plan("large out", "row_of", xs, lambda i, s: np.full(large, s))
            made.options = {"shared": shared}
        case 10:
            made = Plan("fails", "fail", xs, plain.value, {"shared": {"bad": bad}})
            made.fails = ValueError, bad
        case 11:
            bad = set(dice.sample(xs, 1))
            made = Plan("sticks", "stick", xs[:40], plain.value, {"shared": {"bad": bad}})
            made.options["timeout"] = 0.15
            made.fails = TaskTimeoutError, bad & set(xs[:40])
        case 12:
            seed = dice.randrange(1000)
            draws = [
                np.random.default_rng(s).random() for s in np.random.SeedSequence(seed).spawn(n)
            ]
            made = Plan("draws", "draw", xs, lambda i, s: s + draws[i], {"seed": seed})
        case 13:
            shared = {"folder": tempfile.mkdtemp(dir=folder)}
            made = Plan("retries", "try_twice", xs, plain.value, {"shared": shared, "retries": 2})
        case 14:
            made = Plan(
                "long list", "stamp", list(range(dice.randrange(27_000, 60_000))), plain.value
            )
    n = len(made.items)
    if made.fails and dice.random() < 0.7:
        made.options["on_error"] = "return"
    if dice.random() < 0.3 and made.name in ("tiny", "short", "slow", "shared", "draws", "fails"):
        out = np.zeros(n) if dice.random() < 0.5 else nbshare.zeros(n)
        made.options["out"] = dice.choice(["list", out])
    made.options["max_workers"] = dice.randrange(1, 5)
    made.options["chunksize"] = dice.choice([None, None, 1, 3])
    if made.name == "long list" and made.options["chunksize"]:
        made.options["chunksize"] *= 1000  # a claim takes as long as 100 items
    return made


def repeats(dice: random.Random) -> list[Plan]:
    """Draw small calls that differ in nothing but their items."""
    n, options = dice.choice([1, 2, 4, 30]), {"max_workers": dice.randrange(1, 5)}

    def repeat(items: list[int]) -> Plan:
        return Plan("repeats", "stamp", items, lambda i, s: s + items[i] - i, options)

    n_calls = dice.randrange(3, 20)
    return [repeat([dice.randrange(10_000) for _ in range(n)]) for _ in range(n_calls)]


class Soak:
    """A run of calls.

    Parameters
    ----------
    n_calls : int
        How many.
    seed : int
        The seed of the first call. That of each other one is one more.
    """

    def __init__(self, n_calls: int, seed: int, folder: Path, *, is_one: bool = False) -> None:
        self._n_calls, self._seed, self._is_one = n_calls, seed, is_one
        self._folder = folder
        self.code = Code(folder)
        self._now, self._since = seed, time.monotonic()
        self.counts: Counter[str] = Counter()
        self.wrong: list[str] = []
        import soak_work

        self._module = soak_work
        threading.Thread(target=self._watch, daemon=True).start()

    def run(self) -> list[str]:
        """Return what is wrong."""
        start, said, before = time.monotonic(), 0.0, None
        warm_up = min(200, self._n_calls // 3)
        for k in range(self._n_calls):
            self._now, self._since = self._seed + (0 if self._is_one else k), time.monotonic()
            try:
                self._turn(random.Random(self._now))
            except BaseException:
                self.wrong.append(f"call with seed {self._now}:\n{traceback.format_exc()}")
                print(self.wrong[-1], flush=True)
                if len(self.wrong) >= 5:
                    return self.wrong
            if k == warm_up:
                before = self._rest(None)
            if (now := time.monotonic()) > said + 10:
                said = now
                print(f"{k + 1:7,} calls, {now - start:4.0f} s: {state()}", flush=True)
        after = self._rest(before)
        print(f"{self._n_calls:7,} calls, {time.monotonic() - start:4.0f} s: {after}")
        print(", ".join(f"{n} {what}" for what, n in sorted(self.counts.items())))
        return self.wrong + growth(before or after, after)

    def _turn(self, dice: random.Random) -> None:
        """Make a call, with what goes wrong around it."""
        if dice.random() < 0.05:
            self.code.edit(dice.randrange(2))
        if dice.random() < 0.05:
            kill_one(dice)
        if dice.random() < 0.01:
            nbshare.shutdown()
        plans = repeats(dice) if dice.random() < 0.1 else [plan(dice, self._folder)]
        for made in plans:
            self._make(dice, Turn(self, made), is_quick=len(plans) > 1)

    def _make(self, dice: random.Random, call: Turn, *, is_quick: bool) -> None:
        quick, others = [30, 4, 1, 1, 1, 1, 1, 1], [5, 3, 2, 2, 1, 2, 1.5, 1.5]
        match dice.choices(range(8), quick if is_quick else others)[0]:
            case 0:
                call.make()
            case 1:
                longest_s = 0.001 if is_quick else dice.choice([0.005, 0.05, 0.2])
                call.make_interrupted(dice.uniform(1e-4, longest_s))
            case 2:
                call.make_in_background(dice.choice([None, 0.0, 0.01, 0.05]))
            case 3:
                delay_s = dice.uniform(0, dice.choice([0.005, 0.05]))
                call.make_beside(lambda: kill_one(dice), delay_s, may_die=True)
            case 4:
                which, delay_s = dice.randrange(2), dice.uniform(0, dice.choice([0.005, 0.05]))
                call.make_beside(lambda: self.code.edit(which), delay_s)
            case 5:
                other = Turn(self, plan(dice, self._folder))
                call.make_beside(other.make, 0.0)
            case 6:
                call.make_from_source(pauses(dice))
            case 7:
                call.make_for_threads(dice.randrange(2, 5))

    def call(self, made: Plan, how: Any) -> Any:
        """Run it."""
        return how(getattr(self._module, made.func), made.items, **made.options)

    def _watch(self) -> None:
        while True:
            time.sleep(1)
            if time.monotonic() > self._since + HANGS_S:
                print(f"call with seed {self._now} hangs", flush=True)
                faulthandler.dump_traceback()
                os._exit(1)

    def _rest(self, before: dict[str, int] | None) -> dict[str, int]:
        """End the workers. Return what this process still holds."""
        nbshare.parallel_map(abs, [1, 2], progress=False)  # the last job is forgotten
        nbshare.shutdown()
        end = time.monotonic() + (SETTLE_S if before else 2.0)
        while True:
            self._since = time.monotonic()
            time.sleep(0.1)
            now = state()
            if time.monotonic() > end or (before and not growth(before, now)):
                return now


class Turn:
    """One call, made in some way, and compared."""

    def __init__(self, soak: Soak, made: Plan) -> None:
        self._soak, self._plan = soak, made
        self._versions = [tuple(soak.code.versions)]  # that results may be of

    def make(self, how: Any = None, *, may_die: bool = False) -> None:
        """Make it here."""
        how = how or (lambda *args, **kw: nbshare.parallel_map(*args, progress=False, **kw))
        self._soak.counts[self._plan.name] += 1
        try:
            found = self._soak.call(self._plan, how)
        except Exception as error:
            self._check_error(error, may_die=may_die)
        else:
            may_fail = self._plan.options.get("on_error") == "return"
            assert may_fail or not (self._plan.fails and self._plan.fails[1]), "no error"
            self._check(found, may_die=may_die)

    def make_interrupted(self, delay_s: float) -> None:
        """Make it, and interrupt it, perhaps."""
        try:
            try:
                signal.setitimer(signal.ITIMER_REAL, delay_s)
                self.make()
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except nbshare.MapInterrupted:
            self._soak.counts["(interrupted)"] += 1
            job = nbshare.last_job()
            if job is not None:  # the inputs were there
                self._check(job.partial(), is_partial=True)
        except KeyboardInterrupt:  # before or after the call
            self._soak.counts["(interrupted beside)"] += 1

    def make_in_background(self, cancel_s: float | None) -> None:
        """Make it with `map_async`, and cancel it after some time, perhaps."""
        job = self._soak.call(self._plan, nbshare.map_async)
        if cancel_s is None:
            self.make(lambda *_, **__: job.result())
            return
        time.sleep(cancel_s)
        was_cancelled = job.cancel()
        try:
            found = job.result()
        except Exception as error:
            self._check_error(error)
        else:
            self._soak.counts[f"(cancelled: {was_cancelled})"] += 1
            self._check(found, is_partial=job.state != "done")

    def make_from_source(self, pauses: Iterable[float]) -> None:
        """Make it of a source that gives its items in bursts, and pauses between them."""

        def source() -> Iterator[Any]:
            n_each = 1 + len(self._plan.items) // 8
            left = iter(pauses)
            for i, item in enumerate(self._plan.items):
                if i % n_each == 0:
                    time.sleep(next(left, 0.0))
                yield item

        self.make(
            lambda func, _, **options: nbshare.parallel_map(
                func, source(), progress=False, **options
            )
        )

    def make_for_threads(self, n_threads: int) -> None:
        """Make it with `map_async`. Several threads wait for it, and ask it."""
        job = self._soak.call(self._plan, nbshare.map_async)

        def ask() -> None:
            while not job.wait(0.005):
                self._check(job.partial(), is_partial=True)
            self.make(lambda *_, **__: job.result())

        with ThreadPoolExecutor(n_threads) as pool:
            for asked in [pool.submit(ask) for _ in range(n_threads)]:
                asked.result()

    def make_beside(
        self, deed: Callable[[], Any], delay_s: float, *, may_die: bool = False
    ) -> None:
        """Make it while something else is done in another thread."""
        errors = []

        def do() -> None:
            time.sleep(delay_s)
            try:
                deed()
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=do)
        thread.start()
        try:
            # Before the end it is not known whether an edit will come.
            self.make(self._then_await(thread), may_die=may_die)
        finally:
            thread.join()
        if errors:
            raise errors[0]

    def _then_await(self, thread: threading.Thread) -> Any:
        def how(*args: Any, **options: Any) -> Any:
            try:
                return nbshare.parallel_map(*args, progress=False, **options)
            finally:
                thread.join()
                self._versions.append(tuple(self._soak.code.versions))

        return how

    def _check_error(self, error: Exception, *, may_die: bool = False) -> None:
        """See that a call may fail like that."""
        kind, bad = self._plan.fails or (None, set())
        if may_die and isinstance(error, WorkerDiedError):
            # An own try of the item may be used up already.
            assert "retries" not in self._plan.options or self._plan.name == "retries"
            self._soak.counts["(died)"] += 1
            return
        assert kind, error
        assert isinstance(error, kind), error
        assert self._plan.options.get("on_error") != "return", error
        text = "".join([str(error), *getattr(error, "__notes__", ())])
        assert any(re.search(rf"\bitem {i}\b", text) for i in bad), (text, bad)

    def _check(self, found: Any, *, is_partial: bool = False, may_die: bool = False) -> None:
        """Compare results with the oracle, item by item."""
        n = len(self._plan.items)
        if found is None:
            assert is_partial
            return
        assert len(found) == n, (len(found), n)
        kind, bad = self._plan.fails or (None, set())
        mask = np.ma.getmaskarray(found) if isinstance(found, np.ma.MaskedArray) else None
        of_versions = set()
        for i in range(n):
            is_missing = mask[i].all() if mask is not None else found[i] is nbshare.MISSING
            if isinstance(found, list) and isinstance(found[i], BaseException):
                died = may_die and isinstance(found[i], WorkerDiedError)
                assert died or (isinstance(found[i], kind) and i in bad), (i, found[i])  # type: ignore[arg-type]
            elif is_missing:
                assert is_partial or i in bad or may_die, (i, "is missing")
            else:
                assert i not in bad, (i, "has a result")
                fits = [v for v in self._versions if self._fits(i, found[i], v)]
                assert fits, (i, self._plan.name, found[i], self._versions)
                of_versions.add(fits[0])
        assert len(of_versions) <= 1, of_versions

    def _fits(self, i: int, found: Any, versions: tuple[int, int]) -> bool:
        expected = self._plan.value(i, self._soak.code.stamp(i, versions))
        if isinstance(expected, dict):
            return found["text"] == expected["text"] and np.array_equal(
                found["row"], expected["row"]
            )
        return np.array_equal(found, expected)


def pauses(dice: random.Random) -> list[float]:
    """Draw the seconds of some pauses. Now and then so long that workers leave, again and again."""
    if dice.random() < 0.05:
        return [0.6] * 8
    return [dice.choice([0.0, 0.001, 0.02]) for _ in range(8)]


def kill_one(dice: random.Random) -> None:
    """Kill a worker, idle or busy, if there is one."""
    workers = sorted(helpers()[1])
    if workers:
        with suppress(ProcessLookupError):
            os.kill(dice.choice(workers), signal.SIGKILL)


def state() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "maps": sum("nbshare-" in line for line in maps),
        "threads": int(status["Threads"]),
        "processes": len(set.union(*helpers())),
        "resident": int(status["VmRSS"].split()[0]) << 10,
    }


def growth(before: dict[str, int], after: dict[str, int]) -> list[str]:
    """Return what has become more, in words."""
    return [
        f"{name} {before[name]:,}, now {now:,}"
        for name, now in after.items()
        if now > before[name] + (MAX_GROWTH if name == "resident" else 0)
    ]


def main() -> int:
    """Run from the command line. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeat", type=int, metavar="SEED", help="make that call again and again")
    arguments = parser.parse_args()
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    # Else the C library, once a large array has been freed, keeps the next ones' memory, up to 64
    # MB for each thread that has had one, which says nothing of what we keep.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 128 << 10)
    for category in (MixedResultsWarning, PartialResultWarning):
        warnings.simplefilter("ignore", category)
    os.environ[TAG] = uuid.uuid4().hex
    seed = arguments.seed * 1_000_000 if arguments.repeat is None else arguments.repeat
    with tempfile.TemporaryDirectory() as folder:
        soak = Soak(arguments.calls, seed, Path(folder), is_one=arguments.repeat is not None)
        wrong = soak.run()
    print("\n".join(wrong) or "nothing is wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
