"""Functions of sweeps that are stored, each of which notes that it was called."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import numpy as np

if sys.platform == "win32":
    import msvcrt

    FAR = 1 << 30  # what is locked, others cannot read

    def _lock(fd: int) -> None:
        """Lock a file until it is closed, because there the system appends in two steps."""
        while True:
            os.lseek(fd, FAR, os.SEEK_SET)
            try:
                return msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
            except OSError:
                time.sleep(0.001)

else:

    def _lock(fd: int) -> None:
        """Do nothing."""


def note(path: str | os.PathLike[str], text: object) -> None:
    """Append a line to a file. Lines of several processes stay whole."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    _lock(fd)
    os.write(fd, f"{text}\n".encode())
    os.close(fd)


def noted(log: str) -> list[str]:
    """Return the items that have run since the last time, sorted, as workers run in any order."""
    path = Path(log)
    lines = path.read_text().split() if path.exists() else []
    path.unlink(missing_ok=True)
    return sorted(lines)


def number(x, log):
    note(log, x)
    return 1.5 * x


def integer(x, log):
    note(log, x)
    return 3 * x


def row(x, log):
    note(log, x)
    return np.full((2, 3), x, np.float32)


def record(x, log):
    note(log, x)
    return {"x": x, "big": np.full(3000, x)}


def mixed(x, log):
    """Numbers first, then an object now and then."""
    note(log, x)
    return f"text {x}" if x % 4 == 3 else float(x)


def drawn(x, log, rng):
    note(log, x)
    return rng.random(3) + x


def slow(x, log):
    time.sleep(0.01)
    note(log, x)
    return 2.0 * x


def slow_record(x, log):
    time.sleep(0.01)
    note(log, x)
    return [x, "text"]


def slow_drawn(x, log, rng):
    time.sleep(0.01)
    note(log, x)
    return rng.random(2)


def fragile(x, log):
    """Fail for some items as long as a file is there."""
    if x % 5 == 3 and Path(log).with_name("broken").exists():
        raise ValueError(f"no {x}")
    note(log, x)
    return 1.0 * x


def deadly(x, log):
    """End the worker the first time that item 3 is run."""
    flag = Path(log).with_name("died")
    if x == 3 and not flag.exists():
        flag.touch()
        os.kill(os.getpid(), 9)
    note(log, x)
    return 1.0 * x


RESULTS = [number, integer, row, record, mixed]


def gated(x, log):
    """From item 4 on, wait until there is a file "gate" next to the log."""
    note(log, x)
    time.sleep(0.001)  # shorter items would run and be stored with the next ones
    while x >= 4 and not Path(log).with_name("gate").exists():
        time.sleep(0.005)
    return 2.0 * x


def gated_mixed(x, log):
    gated(x, log)
    return f"text {x}" if x % 4 == 3 else 1.0 * x


def gated_failing(x, log):
    gated(x, log)
    raise ValueError(f"no {x}")


def pair(x, log):
    note(log, x)
    print(f"pair {x}")
    return x, np.full(3, x)


def wide(x):
    return x, np.full(1000, x)


def total(_, given):
    return given.sum()


def napping(x, log):
    time.sleep(1)
    note(log, x)
    return 2.0 * x


def gated_napping(x, log):
    while not Path(log).with_name("gate").exists():
        time.sleep(0.005)
    return napping(x, log)


def dozing_drawn(x, log, rng):
    time.sleep(0.05)
    note(log, x)
    return rng.random(2) + x


def misses_its_file(x, log):
    note(log, x)
    return len((Path(log).with_name(f"data {x}")).read_bytes())


def column(i, plain, shared, mapped, gate):
    while not os.path.exists(gate):
        time.sleep(0.01)
    return plain[0, i] + shared[1, i] + mapped[2, i]
