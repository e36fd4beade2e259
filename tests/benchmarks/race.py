"""The race itself, in fresh processes, one after the other, within a budget of seconds."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from contestants import Contestant
from report import Report
from workloads import GROUPS

HERE = Path(__file__).parent
MARK = "NBSHARE_BENCHMARK"


class Fresh:
    """A new process that carries out one order of ``child``, and all that it starts.

    Every process that inherits its environment belongs to it, and is ended with it.
    """

    def __init__(self, contestant: type[Contestant], job: str, **order):
        self.mark = f"{MARK}={uuid.uuid4().hex}"
        self.folder = Path(tempfile.mkdtemp(prefix="nbshare-benchmark-"))
        self.record, self.log = self.folder / "record", self.folder / "log"
        self.record.touch()
        self.touched = self.folder / "touched"
        order |= {
            "job": job,
            "contestant": contestant.name,
            "module": contestant.module,
            "record": str(self.record),
            "mark": str(self.touched),
        }
        path = [str(HERE), *filter(None, [os.environ.get("PYTHONPATH")]), os.getcwd()]
        key, value = self.mark.split("=")
        self.environ = {
            **os.environ,
            key: value,
            "PYTHONPATH": os.pathsep.join(path),
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
        }
        # Like a notebook's, its main module has no file that workers could import.
        code = "import child; child.main()"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", code, json.dumps(order)],
                env=self.environ,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def __enter__(self) -> Fresh:
        """Give the process."""
        return self

    def __exit__(self, *_):
        """End all that is left. Those that clean up after others have two seconds for it."""
        for patience in (2, 0):
            for pid in self.pids():
                with contextlib.suppress(OSError):
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                    if not patience or b"resource_tracker" not in command:
                        os.kill(pid, signal.SIGKILL)
            self.process.wait()
            end = time.monotonic() + patience
            while self.pids() and time.monotonic() < end:
                time.sleep(0.02)
        shutil.rmtree(self.folder, ignore_errors=True)

    def pids(self) -> list[int]:
        """Return the living processes, found by what they inherited."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
                environ = (folder / "environ").read_bytes()
                if state != "Z" and self.mark.encode() in environ:
                    found.append(int(folder.name))
        return found

    def lines(self) -> list[dict]:
        """Return what the process has told so far."""
        return [json.loads(line) for line in self.record.read_text().splitlines()]

    def wait(self, seconds: float) -> bool:
        """Wait for the end of the process. Return whether it came."""
        try:
            self.process.wait(max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            return False
        return True

    def wait_for(self, happened, seconds: float) -> bool:
        """Wait until something is true, or the process has ended. Return whether it is true."""
        end = time.monotonic() + seconds
        while not happened():
            if time.monotonic() > end or self.process.poll() is not None:
                return bool(happened())
            time.sleep(0.02)
        return True

    def complaint(self) -> str:
        """Return the last line that the process has printed."""
        return (self.log.read_text(errors="replace").strip().splitlines() or ["nothing said"])[-1]


def execute(contestant: type[Contestant], job: str, timeout: float, **order) -> list[dict]:
    """Run one order to its end. Return what was told, and why there may be no more."""
    with Fresh(contestant, job, **order) as fresh:
        ended = fresh.wait(timeout)
        lines = fresh.lines()
        if not ended:
            lines.append({"error": f"not done after {timeout:.0f} s"})
        elif fresh.process.returncode:
            lines.append({"error": f"exit status {fresh.process.returncode}: {fresh.complaint()}"})
        return lines


# ------------------------------------------------------------------------- parts and rounds


class Schedule:
    """Runs part after part while the budget of seconds lasts, and notes what it leaves out."""

    def __init__(self, options: Namespace, report: Report):
        self.options, self.notes = options, report.notes
        self.deadline = time.monotonic() + options.budget
        self.spent: dict[str, float] = {}  # what the last round of a part took

    def left(self) -> float:
        """Return the seconds of the budget that are left."""
        return self.deadline - time.monotonic()

    def say(self, text: str):
        """Tell how far it is on stderr, with dots behind the line of their part."""
        print(text if len(text) == 1 else f"\n{text} ", end="", file=sys.stderr, flush=True)

    def run(self, parts: dict[str, Callable[[int, Schedule], None]]):
        """Run first every part once, then more rounds, two of the race to one of scaling."""
        plan = ["race", "facts", "scaling", *["race", "race", "scaling"] * self.options.rounds]
        wanted = {"race": self.options.rounds, "facts": 1, "scaling": min(2, self.options.rounds)}
        done = dict.fromkeys(wanted, 0)
        for part in plan:
            if part not in self.options.parts or done[part] == wanted[part]:
                continue
            if self.spent.get(part, 0) > self.left():
                continue
            begin = time.monotonic()
            self.say(f"{part}, round {done[part] + 1} ({self.left():.0f} s left)")
            parts[part](done[part], self)
            done[part] += 1
            self.spent[part] = time.monotonic() - begin
        self.say("done")
        for part in self.options.parts:
            if done[part] < wanted[part]:
                self.notes.append(
                    f"{part}: {done[part]} of {wanted[part]} rounds in the budget of "
                    f"{self.options.budget:.0f} s"
                )


def race_round(options: Namespace, report: Report, k: int, schedule: Schedule):
    """Run every contestant on every group of workloads. Each round begins with another one."""
    loop, *others = options.contestants
    shift = k % max(1, len(others))
    for group in GROUPS:
        names = [name for name in group if name in options.workloads]
        for contestant in [loop, *others[shift:], *others[:shift]] if names else []:
            if schedule.left() < 1:
                report.notes.append(f"race: no time for {contestant.name} on {', '.join(names)}")
                continue
            order = {"workloads": names, "size": options.size, "workers": options.workers}
            timeout = min(60, schedule.left())
            told = execute(contestant, "run_workloads", timeout, **order)
            missing = set(names) - {each.get("workload") for each in told}
            *told, last = told or [{}]
            told += [{**last, "workload": name} for name in missing] or [last]
            report.race += [{**each, "contestant": contestant.name, "round": k} for each in told]
            schedule.say("." if all("error" not in each for each in told) else "!")
        if names and group != GROUPS[0]:  # where bytes decide
            told = execute(loop, "bandwidth", 30, **order)
            report.race += [{**each, "contestant": "bandwidth", "round": k} for each in told]


SIZES = {
    "items": [10**k for k in range(3, 8)],
    "bytes": [10**6 * 4**k for k in range(7)],
    "workers": [1, 2, 4, 8, 16, 32, 64],
}
COSTS = {"items": 150, "bytes": 3.5, "workers": 60e6}  # bytes of memory for each
SCALED = ("loop", "nbshare", "Pool (fork)", "ProcessPoolExecutor", "joblib")


def scaling_round(options: Namespace, report: Report, k: int, schedule: Schedule):
    """Measure how the time of a call grows with items, bytes and workers."""
    for axis, sizes in SIZES.items():
        fitting = [size for size in sizes if size * COSTS[axis] <= options.memory] or sizes[:1]
        if k == 0 and fitting != sizes:
            report.notes.append(
                f"scaling: {axis} over {fitting[-1]:,}, for {options.memory / 1e9:.1f} GB of memory"
            )
        for contestant in options.contestants:
            apart = contestant.name == "loop" and axis == "workers"  # it has none
            if contestant.name not in SCALED or apart or schedule.left() < 5:
                continue
            seconds = min(30.0, schedule.left())
            order = {"axis": axis, "sizes": fitting, "workers": options.workers}
            told = execute(contestant, "scale", 2 * seconds, seconds=seconds, **order)
            where = {"contestant": contestant.name, "axis": axis, "round": k}
            report.scaling += [{**each, **where} for each in told]
            schedule.say(".")
