"""Workers' tasks of subjects, which fail, hang or misbehave. Imports are late, as in faultlab."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import pickle
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import nbshare
from nbshare._core.memory import Handle, View, handle_of, open_handle, segment_of
from nbshare._core.system import processes
from nbshare.errors import StaleReferenceError
from tests.support.faultlab import SIGKILL, SOON_S, await_flag, raise_flag, wait_until

HUGE = 60 << 20  # characters, of what is asked for a text
FOREVER_S = 100.0  # longer than any subject may live


def double(x: float) -> float:
    return 2.0 * x


def check_double() -> None:
    """Run a good run. An error if its results are wrong."""
    found = nbshare.parallel_map(double, range(20), max_workers=2, chunksize=1, progress=False)
    assert found.tolist() == [2.0 * i for i in range(20)]


def pause(seconds: float, i: int) -> float:
    time.sleep(seconds)
    return 10.0 * i


def meet(folder: str, n: int, _: object) -> None:
    """Wait until `n` workers are here at the same time."""
    Path(folder, str(os.getpid())).touch()
    wait_until(lambda: len(os.listdir(folder)) == n, what=f"fewer than {n} workers")


def worker_of(_: object) -> int:
    return os.getpid()


def put_into(queue: Any, x: float) -> float:
    """Put an item into the queue of a manager."""
    queue.put(x)
    return x


def put_with(x: float, queue: Any) -> None:
    queue.put(x)


def put_two(queue: Any) -> None:
    put_into(queue, 0)
    put_into(queue, 1)


# ----------------------------------------------------------------- ways to stumble


class OddError(Exception):
    """Cannot be unpickled, because it is made from two arguments and keeps one."""

    def __init__(self, where: str, why: str) -> None:
        super().__init__(f"{where}: {why}")


class MuteError(Exception):
    """Cannot be put into words."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class UntouchableError(Exception):
    """Has no attribute that can be had."""

    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError("do not touch")


class ExitingError(Exception):
    """Ends the process that looks at it."""

    def __str__(self) -> str:
        sys.exit("looked at")

    __repr__ = __str__


class Unloadable:
    """Can be pickled, but not unpickled."""

    def __reduce__(self) -> Any:
        return _never_loads, ()


def _never_loads() -> None:
    raise RuntimeError("never loads")


def raises() -> None:
    raise ValueError("no way on")


def raises_odd() -> None:
    raise OddError("bridge", "broken")


def raises_lambda() -> None:
    error = ValueError("holds a lambda")
    error.remedy = lambda: None  # type: ignore[attr-defined]
    raise error


def raises_mute() -> None:
    raise MuteError


def raises_endless() -> None:
    raise ValueError("no end " * 3_000_000)


def raises_huge() -> None:
    raise ValueError("no end " * (HUGE // 7))


def raises_with_exit() -> None:
    raise ExitingError


def raises_untouchable() -> None:
    raise UntouchableError


def gives_generator() -> Any:
    return (i for i in range(3))


def gives_unloadable() -> Any:
    return Unloadable()


def exits() -> None:
    sys.exit(4)


def interrupts() -> None:
    raise KeyboardInterrupt


def is_killed() -> None:
    os.kill(os.getpid(), SIGKILL)


def is_signalled() -> None:
    """End by a real-time signal, for which Python has no name."""
    os.kill(os.getpid(), 35)


def segfaults() -> None:
    ctypes.string_at(0)


def aborts() -> None:
    os.abort()


def leaves() -> None:
    os._exit(3)


def becomes_true() -> None:
    os.execvp("true", ["true"])


def becomes_sleep() -> None:
    os.execvp("sleep", ["sleep", "1000"])


def _spins_for(soft_s: int, hard_s: int) -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CPU, (soft_s, hard_s))
    while True:
        pass


def has_no_time() -> None:
    _spins_for(1, 100)


def has_no_time_at_all() -> None:
    _spins_for(1, 1)


def stumble(way: str, stone: str) -> Any:
    """Return ten times the stone's number. Stumble over number 3, when those before are done."""
    number = int(stone.removeprefix("stone-"))
    if number == 3:
        for before in range(3):
            await_flag(f"returned-{before}")
        time.sleep(0.02)  # from the flag to the stored result it takes microseconds
        return globals()[way]()
    raise_flag(f"returned-{number}")
    return 10.0 * number


class Forks:
    """An item that forks when it is loaded."""

    def __init__(self, i: int) -> None:
        self.i = i

    def __setstate__(self, state: dict[str, int]) -> None:
        self.i = state["i"]
        if self.i == 3:
            os.fork()


def die_with_a_child(i: int) -> int:
    """End by SIGKILL at item 3, while a process that it has forked lives on."""
    if i == 3:
        import multiprocessing

        multiprocessing.get_context("fork").Process(target=time.sleep, args=(FOREVER_S,)).start()
        os.kill(os.getpid(), SIGKILL)
    return i


class Shy:
    """An item whose repr fails, ends the process, is not a string or is 100 MB long."""

    def __init__(self, how: str) -> None:
        self.how = how

    def __repr__(self) -> Any:
        match self.how:
            case "fails":
                raise RuntimeError("no words")
            case "exits":
                sys.exit("looked at")
            case "is no text":
                return 5
            case "is huge":
                return "no end " * (HUGE // 7)


def refuse(item: Any) -> None:
    """Fail, and leave this process's number."""
    Path("worker").write_text(str(os.getpid()))
    raise ValueError("no way on")


# ------------------------------------------------------------- ways not to return


def _sleeps() -> None:
    time.sleep(FOREVER_S)


def _beats() -> None:
    """Leave a trace all the time."""
    end = time.monotonic() + FOREVER_S
    with Path(f"beat-{os.getpid()}").open("ab", buffering=0) as file:
        while time.monotonic() < end:
            file.write(b".")
            time.sleep(0.001)


def _spins() -> None:
    end = time.monotonic() + FOREVER_S
    while time.monotonic() < end:
        pass


def _holds_gil() -> None:
    if sys.platform == "win32":
        ctypes.PyDLL("kernel32").Sleep(int(FOREVER_S) * 1000)
    ctypes.PyDLL(None).sleep(int(FOREVER_S))


def _counts_in_c() -> None:
    sum(range(1 << 40))  # no signal handler runs in between, the GIL is held for hours


def _starts_program() -> None:
    import subprocess

    subprocess.Popen(["sleep", "1000"])
    raise_flag("program")
    time.sleep(FOREVER_S)


HANGS = {
    "sleep": _sleeps,
    "beat": _beats,
    "spin": _spins,
    "gil": _holds_gil,
    "c": _counts_in_c,
    "program": _starts_program,
}


def hang(how: str, i: int) -> float:
    """Return at once for items 0 to 3, and never for others, which a flag says."""
    if i >= 4:
        raise_flag(f"busy-{i}-{os.getpid()}")
        HANGS[how]()
    return 10.0 * i


def start_program(i: int) -> int:
    """Start a program that outlives the item."""
    import subprocess

    return subprocess.Popen(["sleep", "1000"]).pid


# ---------------------------------------------------------------------- large ones


def large_row(i: int, nbytes: int) -> np.ndarray:
    """Return a large row. Item 1's ends the worker when a fifth of it has been stored."""
    row = np.full(nbytes // 8, i + 1.0)
    return _torn(row) if i == 1 else row


def _torn(array: np.ndarray) -> np.ndarray:
    """Return a copy whose last four fifths cannot be read (SIGBUS)."""
    with open("torn", "w+b") as file:
        file.write(array.data)
        file.flush()
        memory = mmap.mmap(file.fileno(), array.nbytes)
        file.truncate(array.nbytes // 5)
    return np.frombuffer(memory)


def _memfd_size(fd: str) -> int:
    try:
        is_memfd = "nbshare-" in os.readlink(f"/proc/self/fd/{fd}")
        return os.stat(f"/proc/self/fd/{fd}").st_size if is_memfd else 0
    except OSError:
        return 0


def last_of(_: int, elevation: np.ndarray) -> float:
    return float(elevation[-1])


# --------------------------------------------------------------- bad housekeeping


def _prints() -> None:
    """Print 10 MB, in lines, from two threads."""
    line = "x" * 999 + "\n"
    write = sys.stdout.write
    threads = [threading.Thread(target=lambda: [write(line) for _ in range(5_000)]) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _closes_stdout() -> None:
    sys.stdout.close()


def _replaces_stdout() -> None:
    sys.stdout = None


def _changes_cwd() -> None:
    os.chdir("/")


def _changes_environ() -> None:
    os.environ["LITTER"] = "left"
    os.environ.pop("TMPDIR")


def _changes_umask() -> None:
    os.umask(0)


def _changes_path() -> None:
    sys.path[:] = []


def _changes_signals() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGIO):
        signal.signal(number, signal.SIG_IGN)


def _handles_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, lambda *_: os._exit(7))


def _changes_affinity() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def _hides_crashes() -> None:
    faulthandler.disable()


LITTER = {
    "prints 10 MB": _prints,
    "closes stdout": _closes_stdout,
    "replaces stdout": _replaces_stdout,
    "changes cwd": _changes_cwd,
    "changes environ": _changes_environ,
    "changes umask": _changes_umask,
    "changes path": _changes_path,
    "changes signals": _changes_signals,
    "handles signals": _handles_signals,
    "hides crashes": _hides_crashes,
    "changes affinity": _changes_affinity,
}


def litter(how: str, i: int) -> bool:
    """Change what belongs to the process, once in each of two workers."""
    raise_flag(f"littered-{i}")
    await_flag(f"littered-{1 - i}")
    LITTER[how]()
    return True


def surroundings(_: int) -> tuple[Any, ...]:
    """Print, and say where we are."""
    umask = os.umask(0)
    os.umask(umask)
    print("tidy", flush=True)
    environ = os.environ.get("LITTER"), os.environ.get("TMPDIR")
    handlers = [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())]
    return os.getcwd(), environ, umask, sys.path, processes.affinity(), handlers


# ---------------------------------------------------- ways to write what is shared


def _assign(a: np.ndarray) -> None:
    a[0] = 666.0


def _add_in_place(a: np.ndarray) -> None:
    np.add(a, 666.0, out=a)


def _set_flag(a: np.ndarray) -> None:
    a.flags.writeable = True
    a[0] = 666.0


def _set_flag_of_base(a: np.ndarray) -> None:
    base: Any = a
    while isinstance(base, np.ndarray):
        base.flags.writeable = True
        base = base.base
    a.flags.writeable = True
    a[0] = 666.0


def _unprotect(a: np.ndarray) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    start = a.ctypes.data // 4096 * 4096
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(4096), 3):
        raise OSError(ctypes.get_errno(), "mprotect")
    ctypes.memset(a.ctypes.data, 66, 8)


def _segment_paths() -> list[str]:
    fds = os.listdir("/proc/self/fd")
    return [f"/proc/self/fd/{fd}" for fd in fds if _memfd_size(fd) >= 1 << 20]


def _write_descriptor(a: np.ndarray) -> None:
    paths = _segment_paths()
    assert paths
    for path in paths:
        with open(path, "rb+", buffering=0) as file:
            for page in range(0, os.fstat(file.fileno()).st_size, 4096):
                os.pwrite(file.fileno(), b"B" * 4096, page)


def _map_descriptor(a: np.ndarray) -> None:
    import mmap

    paths = _segment_paths()
    assert paths
    for path in paths:
        with open(path, "rb+", buffering=0) as file, mmap.mmap(file.fileno(), 0) as mapped:
            mapped[:] = b"B" * len(mapped)


def _truncate_descriptor(a: np.ndarray) -> None:
    for path in _segment_paths():
        os.truncate(path, 0)


def _poke(a: np.ndarray) -> None:
    ctypes.memset(a.ctypes.data, 66, 8)


ATTACKS = {
    "assign": _assign,
    "in-place": _add_in_place,
    "flag": _set_flag,
    "flag-of-base": _set_flag_of_base,
    "mprotect": _unprotect,
    "pwrite": _write_descriptor,
    "mmap": _map_descriptor,
    "truncate": _truncate_descriptor,
    "poke": _poke,
}


def attack(how: str, elevation: np.ndarray) -> tuple[str, bool]:
    """Try to write. Return what came of it, and whether the shared bytes are unchanged."""
    outcome = "allowed"
    try:
        ATTACKS[how](elevation)
    except (ValueError, OSError) as error:
        outcome = type(error).__name__
    return outcome, bool((elevation == 1.0).all())


def outcomes(a: np.ndarray) -> dict[str, tuple[str, bool]]:
    """Return what came of every attack that a process survives."""
    return {how: attack(how, a) for how in ATTACKS if how != "poke"}


KEPT: list[np.ndarray] = []


def keep(_: int, elevation: np.ndarray) -> int:
    """Keep an input beyond the call."""
    KEPT.append(elevation[1:])
    return os.getpid()


def kept(_: int) -> tuple[int, list[float]]:
    """Return this process, and the different values that it has kept."""
    return os.getpid(), sorted({float(x) for array in KEPT for x in np.unique(array)})


def seen_later(row: np.ndarray, elevation: np.ndarray) -> tuple[float, float]:
    """Return what an item and a shared array hold after the caller has had time to change them."""
    raise_flag("begun")
    await_flag("changed")
    return float(row[0]), float(elevation[0])


# ------------------------------------------------------- what strangers' processes do


def make_ring(size: int) -> list[np.ndarray]:
    """Return new arrays, of which garbage in a cycle holds views."""
    arrays = [nbshare.full(size, float(i)) for i in range(3)]
    make_cycle(arrays)
    return arrays


def make_cycle(arrays: Any) -> None:
    """Make garbage that only the collector frees."""
    cycle = [arrays]
    cycle.append(cycle)  # type: ignore[arg-type]


def wait_and_sum(flag: str, arrays: list[np.ndarray]) -> list[float]:
    """Return the sums of arrays, some time later."""
    await_flag(flag)
    return [float(array.sum()) for array in arrays]


def put_sums(queue: Any, arrays: list[np.ndarray]) -> None:
    queue.put(wait_and_sum("go", arrays))


def pass_on(source: Any, target: Any) -> None:
    """Receive arrays and put their sums, some time later."""
    await_flag("go")
    put_sums(target, source.get())


STALE = [
    *("other-segment", "other-memfd", "pipe", "fifo", "socket", "folder", "device"),
    *("file", "shorter-file", "closed"),
]


def recycle(how: str, handle: Handle) -> None:
    """Let the descriptor's number mean something else."""
    name = f"recycled-{how}"
    nbytes = os.fstat(handle.fd).st_size
    match how:
        case "closed":
            os.close(handle.fd)
            return
        case "other-segment":
            array = nbshare.full(10_000, 666.0)
            other = os.dup(handle_of(segment_of(array)[0]).fd)
        case "other-memfd":
            other = os.memfd_create(handle.name)
            os.write(other, b"6" * nbytes)
        case "pipe":
            other, _ = os.pipe()
        case "fifo":  # nobody will ever write to it
            os.mkfifo(name)
            other = os.open(name, os.O_RDONLY | os.O_NONBLOCK)
        case "socket":
            import socket

            other = socket.socketpair()[0].detach()
        case "folder":
            other = os.open(".", os.O_RDONLY)
        case "device":
            other = os.open("/dev/zero", os.O_RDWR)
        case "file" | "shorter-file":
            Path(name).write_bytes(b"6" * (nbytes if how == "file" else 10))
            other = os.open(name, os.O_RDWR)
    os.dup2(other, handle.fd)


def reference_to(array: np.ndarray) -> bytes:
    """Return what goes through the queues and pipes of others."""
    from multiprocessing.reduction import ForkingPickler

    return bytes(ForkingPickler.dumps(array))


def refusal(reference: bytes) -> str:
    """Return how a reference is refused. It must be, and at once."""
    start = time.monotonic()
    try:
        found = pickle.loads(reference)
    except StaleReferenceError as error:
        assert time.monotonic() - start < SOON_S
        return str(error)
    raise AssertionError(f"taken for {found!r}")


def open_and_read(handle: Handle) -> np.ndarray:
    """Return a copy of the 1000 numbers that a handle leads to. An error must come at once."""
    start = time.monotonic()
    try:
        return View(open_handle(handle)).array("f8", (1000,)).copy()
    finally:
        assert time.monotonic() - start < SOON_S


def make_cycles(i: int) -> int:
    """Leave cyclic garbage in the worker: arrays in shared memory, and lots of small things."""
    make_ring(1000)
    for _ in range(100):
        make_cycle(i)
    return i


# -------------------------------------------------------------------------- others


def flagged(i: int) -> float:
    """Take 5 ms, and say so from time to time."""
    time.sleep(0.005)
    if i % 50 == 0:
        raise_flag(f"reached-{i}")
    return 10.0 * i


def slow_worker_of(seconds: float, _: object) -> int:
    time.sleep(seconds)
    return os.getpid()


def echo(x: Any) -> Any:
    return x


def plus(x: float, a: np.ndarray) -> Any:
    return x + a


def row_in(i: int, a: np.ndarray) -> Any:
    return a[i]


def first_of(_: int, elevation: np.ndarray) -> float:
    return float(elevation[0])


def sum_and_last(row: np.ndarray, elevation: np.ndarray) -> float:
    return float(row.sum() + elevation[-1])


def row_of(i: int, fail_at: int = -1) -> np.ndarray:
    if i == fail_at:
        raise ValueError("asked for")
    return np.arange(1000.0) + i


def zeros_but_last(i: int, nbytes: int, fail_at: int = -1) -> np.ndarray:
    if i == fail_at:
        raise ValueError("asked for")
    row = np.zeros(nbytes, np.uint8)
    row[-1] = i
    return row
