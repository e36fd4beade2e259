"""The self-test of `nbshare.doctor`: a small job, step by step, in a separate process.

There it does not disturb the caller's runs, even if it crashes or hangs, and whatever remains after
it belongs to it::

    caller ── new process, new session ──►  run: share, start, map, interrupt, free
           ◄── one line of JSON a step ──
           ── looks for processes of that session ──►  none may be left
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from nbshare.arrays.share import share
from nbshare.engine.local import shutdown
from nbshare.errors import MapInterrupted
from nbshare.mapping import parallel_map
from nbshare.memory import can_share, has_ended, segment_of
from nbshare.memory.budget import in_words
from nbshare.memory.kinds import name_of

__all__ = ["Step", "run", "self_test"]

LIMIT_S = 30.0  # for all steps together; they take one second
END_S = 5.0  # for processes to end; a busy machine may be slow
N_ROWS, N_COLUMNS = 200, 1000
MOST_HELD = 1 << 16  # bytes that stay, for locks; the table is 25 times larger

_REPORT_IT = "Report it, with this whole text."
# The steps, in order, and the remedy for each if its error gives none.
STEPS = {
    "share an array": "Set NBSHARE_MEMORY=file:DIRECTORY, with a directory that you can write to.",
    "start workers": 'Use backend="threads" or "serial", which need no worker processes.',
    "run a parallel map": _REPORT_IT,
    "interrupt a run": _REPORT_IT,
    "free shared memory": _REPORT_IT,
    "end all processes": "End them with kill. " + _REPORT_IT,
}


@dataclass(frozen=True)
class Step:
    """A step of the self-test.

    Attributes
    ----------
    name : str
        What the step does.
    state : {"ok", "failed", "not run"}
        The outcome. After a failed step only the last one is run.
    seconds : float
        Duration in seconds.
    detail : str
        What was found, or what went wrong.
    remedy : str
        What to do if it failed.
    """

    name: str
    state: str = "not run"
    seconds: float = 0.0
    detail: str = ""
    remedy: str = ""


def self_test() -> list[Step]:
    """Run all steps in a new process, and check that it leaves nothing behind."""
    if not can_share():
        name = "start workers"
        return [Step(name, "failed", 0.0, "worker processes need Linux", STEPS[name])]
    code = f"import sys; sys.path[:] = {sys.path!r}; from nbshare.self_test import run; run()"
    try:
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # identifies its processes
        )
    except OSError as error:
        return _steps_of("", f"Python could not be started: {error}")
    with child:
        try:
            steps = _steps_of(*_outcome_of(child))
        finally:
            child.kill()  # if this was interrupted
    return [*steps[:-1], _await_end(child.pid)]


def _outcome_of(child: subprocess.Popen[str]) -> tuple[str, str]:
    """Wait for the process; return its output, and how it failed, if so."""
    try:
        told, errors = child.communicate(timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.communicate()[0], f"it was not over after {LIMIT_S:.0f} s"
    if child.returncode == 0:
        return told, ""
    ending = f"status {child.returncode}"
    if child.returncode < 0:
        with suppress(ValueError):  # a signal without a name
            ending = signal.Signals(-child.returncode).name
    last_line = errors.strip().rpartition("\n")[2]
    return told, f"the process ended with {ending}: {last_line}"


def _steps_of(told: str, ending: str) -> list[Step]:
    """Return all steps; the process ended in the first one that was not reported."""
    done = [Step(**json.loads(line)) for line in told.splitlines()]
    rest = [Step(name) for name in list(STEPS)[len(done) :]]
    if ending and all(step.state == "ok" for step in done):
        rest[0] = Step(rest[0].name, "failed", 0.0, ending, STEPS[rest[0].name])
    return done + rest


def _await_end(session: int) -> Step:
    """Wait for all processes of the self-test to end."""
    name, began = "end all processes", time.monotonic()
    while (left := _processes_of(session)) and time.monotonic() < began + END_S:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if left:
        return Step(name, "failed", seconds, f"still running: {left}", STEPS[name])
    return Step(name, "ok", seconds)


def _processes_of(session: int) -> list[int]:
    found = []
    with suppress(OSError):  # no /proc
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(OSError):  # ended just now
                if os.getsid(pid) == session and not has_ended((pid, 0)):
                    found.append(pid)
    return found


# ---------------------------------------------------------------- in the new process


def run() -> None:
    """Run the steps and report each."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # off in a shell's background job
    steps, remedies = _steps(), iter(STEPS.items())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name, remedy in list(remedies)[:-1]:
            began = time.perf_counter()
            try:
                told: dict[str, Any] = {"state": "ok", "detail": next(steps)}
            except BaseException as error:  # noqa: BLE001 - any error is reported
                problem = f"{type(error).__name__}: {error}"
                told = {"state": "failed", "detail": problem, "remedy": remedy}
            told["detail"] = " ".join([told["detail"], *(str(each.message) for each in said)])
            said.clear()
            seconds = time.perf_counter() - began
            print(json.dumps({"name": name, "seconds": seconds, **told}), flush=True)  # noqa: T201
            if told["state"] == "failed":
                return


def _steps() -> Iterator[str]:
    """Run the steps one after the other; yield the findings of each."""
    table = np.arange(N_ROWS * N_COLUMNS).reshape(N_ROWS, N_COLUMNS)
    shared = share(table)
    yield f"{in_words(shared.nbytes)} of the kind {_kind_of(shared)}"

    _check_workers()
    yield ""

    weights = np.arange(N_COLUMNS)  # integers: the sum is the same in any order
    sums = parallel_map(_weighted, shared, shared={"weights": weights}, progress=False)
    if wrong := [i for i in range(N_ROWS) if sums[i] != _weighted(table[i], weights)]:
        raise RuntimeError(f"{len(wrong)} of {N_ROWS} results differ from those of a loop: {wrong}")
    yield f"{N_ROWS} results, equal to those of a loop"

    try:
        parallel_map(_press_ctrl_c, [os.getpid()] * 2, max_workers=1, progress=False)
    except MapInterrupted:
        _check_workers()  # the next run works
    else:
        raise RuntimeError("the run was not interrupted")
    yield ""

    del shared, sums
    shutdown()
    if (held := _bytes_held()) > MOST_HELD:
        raise RuntimeError(f"this process still holds {in_words(held)} of shared memory")
    yield ""


def _kind_of(array: np.ndarray[Any, Any]) -> str:
    found = segment_of(array)
    kind = found[0].kind if found else None
    return kind.setting if kind else "unknown"


def _check_workers() -> None:
    workers = parallel_map(_process, range(2), max_workers=2, chunksize=1, progress=False)
    if os.getpid() in workers:
        raise RuntimeError("an item ran in the process that called parallel_map")


def _process(_item: int) -> int:
    return os.getpid()


def _weighted(row: np.ndarray[Any, Any], weights: np.ndarray[Any, Any]) -> int:
    return int((row * weights).sum())


def _press_ctrl_c(owner: int) -> None:
    """Interrupt the owner while this item runs."""
    os.kill(owner, signal.SIGINT)
    time.sleep(2 * LIMIT_S)


def _bytes_held() -> int:
    """Return the bytes of shared memory that this process has open."""
    nbytes = 0
    with suppress(OSError):  # no /proc
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the one that lists them
                if name_of(fd).startswith("nbshare-"):
                    nbytes += os.fstat(fd).st_blocks * 512
    return nbytes
