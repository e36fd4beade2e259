"""`doctor`, which tests nbshare on this machine, and its report.

The self-test is a small job, step by step, in a separate process, so that it does not disturb the
caller's runs, even if it crashes or hangs, and all leftovers are known to be its own::

    caller ── new process, new session ──►  run: share, start, map, interrupt, free
           ◄── one line of JSON a step ──
           ── checks processes of that session   ──►  none may be left
"""

from __future__ import annotations

import json
import os
import platform
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np

from nbshare import __version__
from nbshare._core import PACKAGE as FOLDER
from nbshare._core.arrays.share import share
from nbshare._core.engine.local import refuse_frozen, shutdown
from nbshare._core.entries.mapping import parallel_map
from nbshare._core.memory import can_share, segment_of
from nbshare._core.memory.budget import in_words
from nbshare._core.memory.kinds import SETTING
from nbshare._core.notebook.environment import front_end, has_server, is_static, surroundings
from nbshare._core.system import processes, sections
from nbshare._core.tracebacks import shown_from_the_call
from nbshare._core.wire.failures import name_of_signal
from nbshare.errors import MapInterrupted

# Settings of users. The docstring of nbshare explains each.
VARIABLES = {SETTING, "NBSHARE_STATIC", "NBSHARE_HOST"}
PACKAGES: tuple[str, ...] = "numpy", "tqdm", "ipykernel", "ipywidgets", "matplotlib"
PACKAGES += "cloudpickle", "threadpoolctl", "psutil"
WIDTH = 88  # characters of a line of text

LIMIT_S = 30.0  # limit for all steps together, which take one second
PRESS_S = 0.3  # until the run is interrupted
END_S = 5.0  # limit for processes to end, because a busy machine may be slow
N_ROWS, N_COLUMNS = 200, 1000
MOST_HELD = 1 << 16  # bytes that may stay, for locks (the table is 25 times larger)

_REPORT_IT = "Report it, with this whole text."
_NOT_STARTED = (
    'Check that python -c "import nbshare" works in a terminal, with this Python. A machine that '
    "is very busy, or has a slow disk, may need longer: try again later."
)
_SLOW = "The machine may be very busy: try again later. If it is not: "
# The steps, in order, each with a remedy for errors that name none.
STEPS = {
    "share an array": (
        f"Set {SETTING}=file:DIRECTORY, with a directory that you can write to."
        if sections.CAN_BE_FILES
        else 'Use backend="threads" or "serial", which need no shared memory.'
    ),
    "start workers": 'Use backend="threads" or "serial", which need no worker processes.',
    "run a parallel map": _REPORT_IT,
    "interrupt a run": _REPORT_IT,
    "free shared memory": _REPORT_IT,
    "end all processes": "End them with kill. " + _REPORT_IT,
}


@dataclass(frozen=True)
class CheckStep:
    """A step of the self-test.

    Attributes
    ----------
    name : str
        The name of the step.
    state : {"ok", "failed", "not run"}
        The outcome. After a failed step, only the last step is run.
    elapsed_s : float
        Duration in seconds.
    detail : str
        The findings, or the failure.
    remedy : str
        The remedy if the step failed.
    """

    name: str
    state: str = "not run"
    elapsed_s: float = 0.0
    detail: str = ""
    remedy: str = ""


@dataclass(frozen=True, repr=False)
class Report:
    """The report of `nbshare.doctor`. Its repr is a text.

    Attributes
    ----------
    found : dict of str to str
        CPUs, memory, versions and other facts.
    steps : list of CheckStep
        The steps of the self-test, each with its `name`, `state`, `elapsed_s`, `detail` and
        `remedy`.
    """

    found: dict[str, str]
    steps: list[CheckStep]

    @property
    def ok(self) -> bool:
        """Whether the self-test passed."""
        return all(step.state == "ok" for step in self.steps)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as a dict for JSON."""
        return {"ok": self.ok, "found": self.found, "self_test": list(map(asdict, self.steps))}

    def __repr__(self) -> str:
        lines = [_entry(name, text) for name, text in self.found.items()]
        lines += ["", f"The self-test {'passed' if self.ok else 'FAILED'}."]
        lines += [
            _entry(f"  {step.name}", f"{step.state:9}{_outcome(step)}") for step in self.steps
        ]
        return "\n".join(lines)


@shown_from_the_call
def doctor() -> Report:
    """Report the resources of this machine, and test whether nbshare works on it.

    The self-test takes about a second. In a separate process, it shares an array, starts two
    workers, checks the result of a parallel map, interrupts a run, and checks that no process and
    no shared memory is left. ``python -m nbshare doctor`` prints the same in a terminal.

    Examples
    --------
    Does nbshare work here?

    >>> import nbshare
    >>> report = nbshare.doctor()
    >>> report.ok
    True

    Its steps, and the facts that it found:

    >>> [step.name for step in report.steps][:3]
    ['share an array', 'start workers', 'run a parallel map']
    >>> "CPUs" in report.found, "memory" in report.found
    (True, True)

    Returns
    -------
    Report
        Shown as text. ``report.ok`` is True if the self-test passed,
        ``report.found`` is a dict of facts about the machine, ``report.steps`` lists the steps of
        the self-test, and ``report.to_dict()`` returns everything for JSON.
    """
    return Report({name: _answer(ask) for name, ask in _QUESTIONS.items()}, self_test())


# ------------------------------------------------------------------------- the machine


def _answer(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001 - nothing a broken system lacks may hide the rest
        return f"not known: {error}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "(not installed)"


def _cpus() -> str:
    usable, total = processes.usable_cpus(), os.cpu_count() or 1
    allowed = len(processes.affinity() or range(total))
    reasons = []
    if allowed < total:
        reasons.append(f"the affinity mask allows {allowed}")
    if usable < allowed:
        reasons.append(f"a cgroup's quota allows {usable}")
    return f"{usable} of {total} can be used: {' and '.join(reasons) or 'nothing limits them'}"


def _memory() -> str:
    total, least = processes.total_bytes()
    if not total:
        return "not known: this system does not report it"
    limit = f"the cgroup's limit is {in_words(least)}" if least < total else "no cgroup limit"
    left = in_words(processes.available_bytes())
    return f"{left} available, the machine has {in_words(total)}; {limit}"


def _display() -> str:
    match surroundings():
        case "kernel":
            stop = "with a Stop button" if has_server() else "without a Stop button"
            frames = "; last frames only (NBSHARE_STATIC)" if is_static() else ""
            page = front_end() or "a kernel without a page, as under nbconvert"
            return f"{page}: progress display {stop}, and plots{frames}"
        case "marimo":
            return "marimo: progress display without a Stop button, and plots, of runs that wait"
        case "terminal":
            return "progress bar of tqdm; no plots"
        case "log":
            return "nothing, or with progress=True a line now and then; no plots"


def _settings() -> str:
    names = sorted(name for name in os.environ if name.startswith("NBSHARE_"))
    unknown = {name: "" if name in VARIABLES else " (unknown)" for name in names}
    return (
        ", ".join(f"{n}={os.environ[n]}{unknown[n]}" for n in names)
        or "no NBSHARE_ variable is set"
    )


_QUESTIONS = {
    "nbshare": lambda: f"{__version__} in {FOLDER}",
    "Python": lambda: f"{platform.python_version()} ({sys.executable})",
    "system": lambda: f"{platform.system()} {platform.release()} on {platform.machine()}",
    "packages": lambda: ", ".join(f"{name} {_version(name)}" for name in PACKAGES),
    "CPUs": _cpus,
    "memory": _memory,
    "display": _display,
    "settings": _settings,
}


# ------------------------------------------------------------------------ how it is shown


def _entry(name: str, text: str) -> str:
    """Return a name with a text next to it, wrapped into lines."""
    indent = 24 * " "
    return textwrap.fill(
        text, WIDTH, initial_indent=f"{name:24}", subsequent_indent=indent, break_long_words=False
    )


def _outcome(step: CheckStep) -> str:
    seconds = f"{step.elapsed_s:.2f} s" if step.state == "ok" else ""
    remedy = f"To do: {step.remedy}" if step.remedy else ""
    return "  ".join(filter(None, [seconds, step.detail, remedy]))


# ------------------------------------------------------------------------ the self-test


def self_test() -> list[CheckStep]:
    """Run all steps in a new process, and check that it leaves nothing behind."""
    if not can_share():
        problem = "worker processes need Linux, macOS or Windows; arrays are in private memory"
        return [_failed("start workers", problem)]
    refuse_frozen("the self-test", "run python -m nbshare doctor where the program was made")
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import run; run()"
    is_late = False
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # identifies its processes
    ) as child:
        try:
            told, errors = child.communicate(timeout=LIMIT_S)
            problem = _problem(child.returncode, errors)
        except subprocess.TimeoutExpired:
            child.kill()
            told, is_late = child.communicate()[0], True
            problem = f"it was not over after {LIMIT_S:.0f} s"
        finally:
            child.kill()  # if this was interrupted
    steps = _steps_of(told, problem, is_late=is_late)
    return [*steps[:-1], _await_end(child.pid)]


def _failed(name: str, problem: str, seconds: float = 0.0) -> CheckStep:
    return CheckStep(name, "failed", seconds, problem, STEPS[name])


def _problem(status: int, errors: str) -> str:
    """Return how the process failed, or an empty string."""
    how = name_of_signal(-status) if status < 0 else f"status {status}"
    last_line = errors.strip().rpartition("\n")[2]
    return f"the process ended with {how}: {last_line}" if status else ""


def _steps_of(told: str, problem: str, *, is_late: bool) -> list[CheckStep]:
    """Return all steps. The first step that was not reported is the one that failed."""
    has_started, _, lines = told.partition("\n")
    done = [CheckStep(**json.loads(line)) for line in lines.splitlines()]
    rest = [CheckStep(name) for name in list(STEPS)[len(done) :]]
    if problem and all(step.state == "ok" for step in done):
        rest[0] = failed = _failed(rest[0].name, problem)
        if not has_started:
            detail = f"{problem}, before a new Python had imported nbshare"
            rest[0] = replace(failed, detail=detail, remedy=_NOT_STARTED)
        elif is_late:
            rest[0] = replace(failed, remedy=_SLOW + failed.remedy)
    return done + rest


def _await_end(session: int) -> CheckStep:
    """Wait for all processes of the self-test to end."""
    name, began = "end all processes", time.monotonic()
    while (left := processes.members_of(session)) and time.monotonic() < began + END_S:
        time.sleep(0.01)
    seconds = time.monotonic() - began
    return (
        _failed(name, f"still running: {left}", seconds) if left else CheckStep(name, "ok", seconds)
    )


# ---------------------------------------------------------------- in the new process


def run() -> None:
    """Run the steps and report each step."""
    print("started", flush=True)  # noqa: T201
    signal.signal(signal.SIGINT, signal.default_int_handler)  # off in a shell's background job
    steps = _steps()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for name in list(STEPS)[:-1]:
            began = time.perf_counter()
            try:
                step = CheckStep(name, "ok", detail=next(steps))
            except BaseException as error:  # noqa: BLE001 - any error is reported
                step = _failed(name, f"{type(error).__name__}: {error}")
            detail = " ".join([step.detail, *(str(each.message) for each in said)])
            said.clear()
            step = replace(step, elapsed_s=time.perf_counter() - began, detail=detail)
            print(json.dumps(asdict(step)), flush=True)  # noqa: T201
            if step.state != "ok":
                return


def _steps() -> Iterator[str]:
    """Run the steps one after the other. Yield the findings of each step."""
    table = np.arange(N_ROWS * N_COLUMNS).reshape(N_ROWS, N_COLUMNS)
    shared = share(table)
    yield f"{in_words(shared.nbytes)} of the kind {_kind_of(shared)}"

    _check_workers()
    yield ""

    weights = np.arange(N_COLUMNS)  # integers, so that the sum is the same in any order
    sums = parallel_map(_weighted, shared, shared={"weights": weights}, progress=False)
    if wrong := [i for i in range(N_ROWS) if sums[i] != _weighted(table[i], weights)]:
        raise RuntimeError(f"{len(wrong)} of {N_ROWS} results differ from those of a loop: {wrong}")
    yield f"{N_ROWS} results, equal to those of a loop"

    try:
        threading.Timer(PRESS_S, processes.interrupt).start()
        parallel_map(time.sleep, [2 * LIMIT_S] * 2, max_workers=1, progress=False)
    except MapInterrupted:
        _check_workers()  # the next run works
    else:
        raise RuntimeError("the run was not interrupted")
    yield ""

    del shared, sums
    shutdown()
    if (held := sections.bytes_held()) > MOST_HELD:
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
