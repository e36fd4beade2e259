"""Functions for the tests of failures, time, chance, first steps, tiny items and backends."""

from __future__ import annotations

import collections
import dataclasses
import functools
import io
import os
import random
import signal
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path

import numpy as np

import nbshare
from nbshare._core.system import SYSTEM
from tests.support.faultlab import SIGKILL, wait_until
from tests.support.sweeps import note

# ------------------------------------------------------------------------- mishaps


@functools.lru_cache(maxsize=1)
def open_tally(path):
    """Open the file that counts how often each item was begun, a byte each."""
    return np.memmap(path, np.uint8, "r+")


def befall(way, i):
    """Have something happen to an item."""
    if way == "raise":
        raise ValueError(f"no way on at {i}")
    if way == "die":
        os.kill(os.getpid(), SIGKILL)
    elif way == "freeze":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif way == "sleep":
        time.sleep(3600)
    elif way == "leave":
        sys.exit(3)
    elif way == "interrupt":
        signal.raise_signal(signal.SIGINT)
    else:
        raise NotImplementedError(way)


def attempt(i, tally, bad, ways):
    """Count the attempts of each item, and let the bad ones meet one mishap in each of theirs."""
    runs = open_tally(tally)
    runs[i] += 1
    if i in bad and runs[i] <= len(ways):
        befall(ways[runs[i] - 1], i)
    return float(i)


_failed_here: set[int] = set()


def fail_first(i, bad):
    """Let some items fail when a process runs them for the first time."""
    if i in bad and i not in _failed_here:
        _failed_here.add(i)
        raise ValueError(f"for the first time {i}")
    return i


def survive_or_fail(i, tally, dying, failing, size):
    """Let some items end their worker once, and some fail always. Give no zeros."""
    value = 1 + attempt(i, tally, dying, ["die"])
    if i in failing:
        raise ValueError(f"no way on at {i}")
    return value if size is None else np.full(size, value)


def fail_some(i, bad, way="raise", seconds=0.0):
    if seconds:  # no tiny item
        time.sleep(seconds)
    if i in bad:
        befall(way, i)
    return float(i)


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    """Takes no attributes, so no notes."""

    code: int


def refuse_notes_at(i, bad):
    if i == bad:
        raise Frozen(i)
    return i


class Untouchable(Exception):
    """Has no attribute that can be had."""

    def __getattribute__(self, name):
        raise RuntimeError("do not touch")


def refuse_all_at(i, bad):
    if i == bad:
        raise Untouchable
    return i


def fork_and_end(how):
    """Return the exit status of a child that leaves as if it were alone."""
    child = os.fork()
    if child == 0:
        sys.stderr = io.StringIO()
        if how == "raise":
            raise ValueError(how)
        sys.exit(*map(int, how.split()[1:]))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def say_some(i, bad):
    if i in bad:
        raise ValueError(f"no way on at {i}")
    return f"item {i}"


def pair_some(i, bad):
    return fail_some(i, bad), np.full(2, i)


def give_complex_at(i, bad):
    return 1j if i in bad else float(i)


def tell_and(way, i, folder):
    """Leave the process's number before something happens to item 3, when the others are done."""
    if i == 3:
        wait_until(lambda: len(list(Path(folder).glob("done-*"))) == 7, what="others not done")
        Path(folder, "pid").write_text(str(os.getpid()))
        befall(way, i)
    Path(folder, f"done-{i}").touch()
    return float(i)


def give_lock_at(i, bad):
    """Give a result that cannot be pickled."""
    return threading.Lock() if i in bad else float(i)


async def never_awaited():
    """Be a coroutine."""


def give_unsendable(kind):
    """Give a result of a kind that cannot be pickled."""
    if kind == "lock":
        return threading.Lock()
    if kind == "generator":
        return (i for i in range(3))
    warnings.simplefilter("ignore", RuntimeWarning)  # that it is never awaited
    return never_awaited()


class Stubborn:
    """Pickles, and does not unpickle."""

    def __reduce__(self):
        return _refuse, ()


class Unloadable:
    """A large item that pickles, and does not unpickle."""

    def __reduce__(self):
        return _refuse, (), bytes(64_000)


class Deadly:
    """Pickles, and ends the process in which it is unpickled."""

    def __reduce__(self):
        return os._exit, (3,)


def first_of(array):
    return array[0]


def _refuse():
    raise RuntimeError("not to be had again")


def give_stubborn_at(i, bad):
    return Stubborn() if i in bad else float(i)


def sleep_in_turn(begun, i, long, short):
    """Note the time, take a long and a short while in turn, to the microsecond. Give a text."""
    begun[i] = time.monotonic()
    until_s = time.perf_counter() + (short if i % 2 else long)
    time.sleep((short if i % 2 else long) - 0.001)
    while time.perf_counter() < until_s:
        pass
    return f"item {i}"


def slow_down(i, slow, seconds):
    """Take no time, but for the items of a range."""
    if i in slow:
        time.sleep(seconds)
    return i


def slow_down_and_die(i, slow, seconds):
    """As `slow_down`, and the worker ends after them."""
    if i == slow.stop:
        os.kill(os.getpid(), SIGKILL)
    return slow_down(i, slow, seconds)


# -------------------------------------------------------------------------- chance


def draw(i, rng, seconds=0.0):
    if seconds:
        time.sleep(seconds)
    return rng.random()


def draw_and_fail(x, y, *, rng):
    raise LookupError(f"{rng.random()}")


def draw_again(i, tally, rng):
    """Draw, and fail the first time."""
    value = rng.random()
    runs = open_tally(tally)
    runs[i] += 1
    if runs[i] == 1:
        raise ValueError("once more")
    return value


def draw_globally(i, bad=(), tally=None):
    """Draw from the global states. The worker dies the first time after a bad item's draw."""
    values = np.random.rand(), random.random()  # noqa: NPY002 - they are what is tested
    if i in bad:
        runs = open_tally(tally)
        runs[i] += 1
        if runs[i] == 1:
            os.kill(os.getpid(), SIGKILL)
    return values


def draw_nested(seed, n):
    return nbshare.parallel_map(draw, range(n), seed=seed)


# --------------------------------------------------------------------- first steps

state = {}


def prepare(folder, value):
    """Leave a mark for each run, and set what the items read."""
    Path(folder, f"{os.getpid()}-{os.urandom(8).hex()}").touch()
    state["value"] = value


def prepare_slowly(folder, _):
    """Leave a mark for each run. The end of all but the first one is to be waited for."""
    prepare(folder, 0)
    try:
        Path(folder, "first").touch(exist_ok=False)
    except FileExistsError:
        wait_until(Path(folder, "go").exists)


def settle(folder):
    """Change what an initializer may want otherwise than the caller has it."""
    os.environ["SETTLED"] = "yes"
    os.environ.pop("UNSETTLED")
    os.environ["OMP_NUM_THREADS"] = "3"
    os.chdir(folder)
    sys.path.append(folder)
    warnings.filterwarnings("ignore", "settled")
    sys.stdout = io.StringIO()
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    if SYSTEM == "linux":
        os.umask(0o027)
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


class Open:
    """Has an attribute of every name, and fails at item 3."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return 0.0

    def __call__(self, i):  # noqa: D102
        if i == 3:
            raise ValueError("the third")
        return i


def spoil_path(i):
    sys.path = tuple(sys.path)  # type: ignore[assignment]
    return i


def surroundings():
    names = ("SETTLED", "UNSETTLED", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    found = {
        "environ": [os.environ.get(name) for name in names],
        "cwd": os.getcwd(),
        "path": list(sys.path),
        "warnings": [str(each) for each in warnings.filters],
        "stdout": type(sys.stdout).__name__,
    }
    if sys.platform != "win32":
        found["signal"] = str(signal.getsignal(signal.SIGUSR1))
    if SYSTEM == "linux":  # others do not tell the umask, nor bind processes to CPUs
        found["umask"] = os.umask(0)
        os.umask(found["umask"])
        found["affinity"] = os.sched_getaffinity(0)
    return found


def look_and_litter(i):
    """Return what is found, and change it all."""
    found = surroundings()
    os.environ.clear()
    os.chdir("/")
    sys.path.append("/elsewhere")
    warnings.resetwarnings()
    sys.stdout = None
    if sys.platform != "win32":
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    if SYSTEM == "linux":
        os.umask(0)
        os.sched_setaffinity(0, range(os.cpu_count()))
    return found


def read_together(i, folder, n):
    """Wait for the other workers, then return the process id and what was prepared."""
    Path(folder, f"met-{os.getpid()}").touch()
    wait_until(lambda: len(list(Path(folder).glob("met-*"))) >= n, what=f"fewer than {n} workers")
    return os.getpid(), state.get("value")


def read(i):
    return state["value"]


def read_and_die_once(i, tally):
    runs = open_tally(tally)
    runs[i] += 1
    if i == 2 and runs[i] == 1:
        os.kill(os.getpid(), SIGKILL)
    return state["value"]


def keep_array(array):
    state["array"] = array


def sum_kept(x):
    """Sum what the initializer kept, and hold memory of other calls meanwhile."""
    return float(state["array"].sum() + 0 * np.sum(x))


def refuse_to_start(text):
    raise LookupError(text)


def leave_at_start(log):
    note(log, os.getpid())
    sys.exit(3)


def end_at_start(log):
    note(log, os.getpid())
    os._exit(3)


def pid(_):
    return os.getpid()


# ---------------------------------------------------------------------- tiny items

KINDS = {
    "int": lambda i: i - 50,
    "float": lambda i: i / 3,
    "bool": lambda i: i % 3 == 0,
    "complex": lambda i: complex(i, -i),
    "int8": lambda i: np.int8(i % 100),
    "uint64": lambda i: np.uint64(2**64 - 1 - i),
    "float16": lambda i: np.float16(i % 100),
    "float32": lambda i: np.float32(i / 3),
    "longdouble": lambda i: np.longdouble(i) / 3,
    "complex64": lambda i: np.complex64(complex(i, 1)),
    "datetime64": lambda i: np.datetime64(i, "s"),
    "0-d": lambda i: np.array(i),
    "row": lambda i: np.array([i, -i]),
    "str": str,
    "tuple": lambda i: (i, None),
    "int, then float": lambda i: i if i < 4_500 else i / 2,
    "float, then int": lambda i: i / 2 if i < 4_500 else i,
    "int, then complex": lambda i: i if i < 4_500 else complex(i, 1),
    "int, then float, then str": lambda i: i if i < 4_500 else i / 2 if i < 5_000 else str(i),
    "int, then 2**63 + 1": lambda i: 2**63 + 1 if i == 4_500 else i,
    "int, then -2**64": lambda i: -(2**64) if i == 4_500 else i,
    "int, then None": lambda i: None if i == 4_500 else i,
    "int, then bool": lambda i: i == 4_500 if i >= 4_500 else i,
    "seconds, then days": lambda i: np.datetime64(i, "s" if i < 4_500 else "D"),
    "number, then row": lambda i: i if i < 4_500 else np.array([i]),
}
if np.dtype("longdouble") == float:  # on Windows, where results are the second one
    del KINDS["longdouble"]


def give(i, kind):
    return KINDS[kind](i)


_row = np.zeros(3)
_list = [0]
_scalar = np.zeros(())


def give_same_array(i):
    _row[...] = i
    return _row


def give_same_list(i):
    _list[0] = i
    return _list


def give_same_scalar(i):
    _scalar[...] = i
    return _scalar


_dict = {"i": 0, "also": "it"}
_nested = {"i": [0]}


def give_same_dict(i):
    _dict["i"] = i
    return _dict


def give_dict_of_same_array(i):
    """Return a new dict each time, with one array that each call changes."""
    _row[...] = i
    return {"i": i, "array": _row}


def give_same_nested(i):
    _nested["i"][0] = i
    return _nested


def _load_key(i, bad):
    if i == bad:
        raise ValueError(f"no key {i}")
    return Key(i, bad)


class Key:
    """A key of a dict, one of which can be pickled and not loaded."""

    def __init__(self, i, bad):
        self.i, self.bad = i, bad

    def __reduce__(self):
        return _load_key, (self.i, self.bad)


def give_keyed(i, bad):
    return {Key(i, bad): i}


class Sticky:
    """An object with a value, which may be a key of a dict whatever its value is."""

    def __init__(self, i):
        self.i = i

    def __repr__(self):
        return f"Sticky({self.i})"

    def __hash__(self):
        return 0

    def __eq__(self, other):
        return type(other) is Sticky and self.i == other.i


def _fill(container, value):
    container.clear()
    if isinstance(container, dict):
        container[value if isinstance(value, str) else "it"] = value
    else:
        container.append(value)
    return container


# Objects that a function may keep, change and return again, with how to make one, and to put `i`
# in.
REUSED = {
    "array": (lambda: np.zeros(2), lambda part, i: np.copyto(part, i)),
    "scalar array": (lambda: np.zeros(()), lambda part, i: np.copyto(part, i)),
    "bytearray": (bytearray, lambda part, i: _fill(part, i % 256)),
    "list": (list, _fill),
    "dict": (dict, _fill),
    "set": (set, lambda part, i: (part.clear(), part.add(i))),
    "deque": (collections.deque, _fill),
    "object": (lambda: Sticky(0), lambda part, i: setattr(part, "i", i)),
}
# The results that are made of one. The last three are a container that is kept, too.
AROUND = {
    "itself": lambda part: part,
    "dict": lambda part: {"a": 1, "b": part},
    "list": lambda part: [part, 1],
    "tuple": lambda part: (1, part),
    "key": lambda part: {part if isinstance(part, Sticky) else 1: part},
    "dict in dict": lambda part: {"a": {"b": part}},
    "kept list": lambda part: _fill(_kept_list, part),
    "kept dict": lambda part: _fill(_kept_dict, part),
    "kept keys": lambda part: _fill(_kept_dict, str(part)),
}
PLAIN = {
    "int": lambda i: i,
    "text": str,
    "None": lambda _: None,
    "plain dict": lambda i: {"i": i, "x": 0.5},
    "other dict": lambda i: {i: np.float32(i)},
    "plain tuple": lambda i: (i, "a"),
    "plain list": lambda i: [i],
}
_kept = {name: make() for name, (make, _) in REUSED.items()}
_kept_list, _kept_dict = [], {}


def reuse(i, plan):
    """Return what the plan says for the item, plain values or objects that other items change."""
    what, around = plan[i % len(plan)]
    if what in PLAIN:
        return PLAIN[what](i)
    REUSED[what][1](_kept[what], i)
    return AROUND[around](_kept[what])


def stop_at(i, bad):
    if i == bad:
        raise StopIteration("that is all")
    return i


def identity(x):
    return x


def scaled(i, factor):
    return i * factor


# ------------------------------------------------------------------------ backends


both = threading.Barrier(2)
_counting = threading.Lock()
_running = [0, 0]  # now, at most


def cross_together(_):
    both.wait(timeout=10)
    return threading.get_ident()


def count_running(_, seconds):
    """Tell how many have been here at the same time at most."""
    with _counting:
        _running[0] += 1
        _running[1] = max(_running)
    time.sleep(seconds)
    with _counting:
        _running[0] -= 1
    return _running[1]


def reset_running():
    _running[:] = 0, 0


def raise_interrupt_at(i, bad):
    if i == bad:
        raise KeyboardInterrupt
    return float(i)


def nest(depth, options):
    """Map at every depth. Return the processes that were at work."""
    if depth == 0:
        return [os.getpid()]
    found = nbshare.parallel_map(nest, [depth - 1] * 3, shared={"options": options}, **options)
    return sorted({os.getpid(), *(pid for pids in found for pid in pids)})


def nest_failing(_, on_error):
    result = nbshare.parallel_map(fail_some, range(6), shared={"bad": {2, 4}}, on_error=on_error)
    return result.mask.tolist(), result.sum()


def nest_retrying(i, tally):
    options = {"tally": tally, "bad": {3}, "ways": ["raise", "raise"]}
    return nbshare.parallel_map(attempt, range(6), shared=options, retries=2)


def fail_row(row, bad):
    if row[0] == bad:
        raise ValueError(f"no way on at {bad}")
    return row


_last_result = None  # a weak reference


def tell_whether_the_last_result_lives(_):
    """Return an array full of 1 if the one that was returned before is still there, else of 0."""
    global _last_result
    lives = _last_result is not None and _last_result() is not None
    result = np.full(1000, lives, float)
    _last_result = weakref.ref(result)
    return result


def attempt_slowly(i, tally, bad, ways):
    """Attempt an item that is long enough for its worker to note it, among others of a batch."""
    until_s = time.perf_counter() + 4e-5
    while time.perf_counter() < until_s:
        pass
    return f"item {attempt(i, tally, bad, ways)}"
