"""The functions of workers in the tests, one small function for each thing that a run can meet."""

from __future__ import annotations

import ctypes
import decimal
import importlib
import os
import sys
import threading
import time
import warnings
from pathlib import Path

import numpy as np

import nbshare
from tests.support.faultlab import wait_until

MEM_MAPPED = 0x40000  # of Windows

# ---------------------------------------------------------------- items and results


def identity(x):
    return x


def double(x):
    return 2 * x


def add(x, y, z=0):
    return x + y + z


def total(x):
    return np.sum(x)


def pick(i, values):
    """Give the value at a place, from any list of results there can be."""
    return values[i]


def give_all(x, y, z):
    return x, y, z


def make_bytes(size_and_value):
    size, value = size_and_value
    return np.full(size, value, np.uint8)


class Model:
    """A fitted model, of which methods are mapped."""

    def __init__(self, weights):
        self.weights = weights

    def predict(self, x):
        """Multiply with all that was learnt."""
        return float(self.weights.sum() * x)

    def __call__(self, x):
        """Negate what is predicted."""
        return -self.predict(x)


# ---------------------------------------------------------------------- array inputs


def facts(row):
    """Return how a worker sees an array: its class, whether it may write, where it is."""
    return type(row).__name__, row.flags.writeable, is_in_segment(row), row.tolist()


def shared_facts(_, **arrays):
    return {name: facts(array) for name, array in arrays.items()}


def is_in_segment(array):
    """Whether the bytes are in memory that other processes map too, as the kernel sees it."""
    address = array.__array_interface__["data"][0]
    if sys.platform == "win32":
        info = (ctypes.c_uint64 * 6)()  # MEMORY_BASIC_INFORMATION, which ends with the type
        place = ctypes.c_void_p(address), info, ctypes.c_size_t(ctypes.sizeof(info))
        ctypes.windll.kernel32.VirtualQuery(*place)
        return info[5] == MEM_MAPPED
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, end = (int(x, 16) for x in line.split()[0].split("-"))
        if start <= address < end:
            return "nbshare-" in line
    return False


def overwrite(row, value=-1):
    row[...] = value
    return 0


def overwrite_shared(_, table):
    table[...] = -1


def make_writable(_, table):
    table.flags.writeable = True


def assign(row, values):
    row[...] = values


def assign_row(target, values, i):
    target[i] = values[i]


def place(target, i):
    target[i] = i * i


def mark_pair(pair):
    pair["array"][...] = pair["value"]


def await_value(_, signal, ready):
    ready.touch()
    wait_until(lambda: signal[0] == 7, what="no value")
    return float(signal[0])


# ------------------------------------------------------------------------- failures


def fail_at(x, bad, kind=ValueError):
    if x == bad:
        raise kind(f"no way on at {x}")
    return float(x)


def fail_late(x, flag, last):
    """Fail at item 0 when the other worker has come to the `last` one, so stored those before."""
    if x == 0:
        wait_until(flag.exists, what="the others are not done")
        raise ValueError("after the others")
    if x == last:
        flag.touch()
    return float(x)


class TwoArgumentError(Exception):
    """Pickles, and does not unpickle."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")


class MuteError(Exception):
    """Cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")

    __str__ = __repr__


class Silent:
    """An item that cannot be shown."""

    def __repr__(self):
        raise RuntimeError("no repr")


class Loud:
    """An item whose repr is endless."""

    def __repr__(self):
        return "loud " * 1_000_000


def raise_two_arguments(x):
    raise TwoArgumentError(x, "reason")


def raise_holding_lambda(x):
    error = ValueError("holds a lambda")
    error.key = lambda: x
    raise error


def raise_mute(x):
    raise MuteError


def raise_long(x):
    raise ValueError("long " * 1_000_000)


def raise_plain(x):
    raise LookupError("plain")


def leave(x):
    sys.exit(3)


def interrupt(x):
    raise KeyboardInterrupt


def give_generator(x):
    return (i for i in range(x))


# ------------------------------------------------------------------ the surroundings


def pid(_):
    return os.getpid()


def pid_after(seconds):
    time.sleep(seconds)
    return os.getpid()


def meet(i, folder, n):
    """Wait until `n` processes are here at the same time."""
    Path(folder, f"{os.getpid()}").touch()
    wait_until(lambda: len(os.listdir(folder)) == n, what=f"fewer than {n} processes")
    return os.getpid()


def cpus(_):
    return sorted(os.sched_getaffinity(0))


def directory(_):
    """Return the working directory of the worker."""
    return os.stat(".").st_ino


def arithmetic(_):
    """Return what a function's results depend on besides its arguments."""
    context = decimal.getcontext()
    traps = sorted(trap.__name__ for trap, is_set in context.traps.items() if is_set)
    return sys.argv, sys.getrecursionlimit(), np.geterr(), context.prec, context.rounding, traps


def spoil_arithmetic(i):
    """Change it all."""
    sys.argv += ["--spoilt"]
    sys.setrecursionlimit(20_000)
    np.seterr(all="ignore")
    decimal.getcontext().prec = 3
    decimal.getcontext().traps[decimal.DivisionByZero] = False
    return i


def surroundings(name):
    """Tell what a worker has of the caller's environment, folder, import path and umask."""
    umask = os.umask(0)
    os.umask(umask)
    return os.environ.get(name), os.getcwd(), list(sys.path), umask


def is_imported(name):
    """Tell whether a worker has imported a module."""
    return name in sys.modules


def file_of(name):
    """Tell where a module comes from that a worker imports."""
    return importlib.import_module(name).__file__


def warn_late(_):
    late_library = importlib.import_module("late_library")
    warnings.warn("careful", late_library.LaterWarning, stacklevel=1)


def warn(text):
    warnings.warn(text, UserWarning, stacklevel=2)
    return 0


def draw_number(_):
    return np.random.rand()  # noqa: NPY002 - the global state is what is tested


def nest(n):
    """Map in a worker. Return the results and whether they came from this process alone."""
    squares = nbshare.parallel_map(add, range(n), range(n))
    pids = nbshare.parallel_map(pid, range(n), out="list")
    return squares, set(pids) == {os.getpid()}


def nest_deeply(depth):
    return 0 if depth == 0 else 1 + nbshare.parallel_map(nest_deeply, [depth - 1])[0]


def nest_into_integers(_):
    return nbshare.parallel_map(scale, range(3), out=np.zeros(3, int))


def nest_writing(_):
    return nbshare.parallel_map(overwrite, np.zeros((3, 2)))


def scale(x):
    return x + 0.5


def chatter(i, n_lines):
    """Print from several threads at once."""

    def lines():
        for _ in range(n_lines):
            print("x" * 99)

    threads = [threading.Thread(target=lines) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return i


def doze(x, seconds):
    time.sleep(seconds)
    return x


# ------------------------------------------------------------------------ real input


def strided_mean(i, dataset):
    """Average every (i + 1)-th value of a data set."""
    return dataset.ravel()[:: i + 1].mean()


def read_and_stay(i, dataset, folder):
    """Read all of a data set, and keep it until the file `go` is there."""
    result = int(dataset[::64].sum())
    Path(folder, f"read-{i}").touch()
    wait_until(Path(folder, "go").exists, what="no go")
    return result


def add_in_place(*_, array=None):
    """Add one to an array of this process, given as the item or by name."""
    array = _[0] if array is None else array
    array += 1
    return array[1]


def write_to(stream, x):
    """Write a line to a stream."""
    print(x, file=stream)
