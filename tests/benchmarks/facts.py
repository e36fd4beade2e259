"""Facts that no stop-watch shows: memory, interrupts, what is left behind, what an error says."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from argparse import Namespace
from pathlib import Path

from contestants import Contestant
from race import Fresh, Schedule
from report import Report

WORKERS = 4
PATIENCE = 5  # seconds
ITEM = 777_777  # the item that fails, a number that nothing else has
ITEMS = list(range(ITEM - 50, ITEM + 50))
INPUT = {"smoke": 10**6, "quick": 100 * 10**6, "full": 200 * 10**6}  # bytes of the large input


def facts_round(options: Namespace, report: Report, k: int, schedule: Schedule):
    """Ask every contestant for every fact, once."""
    nbytes = INPUT[options.size]
    for contestant in options.contestants:
        if schedule.left() < 5:
            report.notes.append(f"facts: no time for {contestant.name}")
            continue
        found = {
            "memory": memory(contestant, nbytes),
            **interrupt(contestant),
            "left behind": left_behind(contestant, nbytes),
            "failing item": failing_item(contestant),
            "killed worker": killed_worker(contestant),
        }
        report.facts.append({"contestant": contestant.name, **found})
        schedule.say(".")


def pss(pids) -> int:
    """Return the bytes of memory that processes use. Shared memory counts once."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
            total += int(next(line for line in lines if line.startswith("Pss:")).split()[1])
    return total * 1024


def memory(contestant: type[Contestant], nbytes: int) -> float | str:
    """Return the peak memory of all processes of a run over a large input."""
    with Fresh(contestant, "memory", nbytes=nbytes, workers=WORKERS) as fresh:
        peak, end = 0, time.monotonic() + 40
        while fresh.process.poll() is None and time.monotonic() < end:
            peak = max(peak, pss(fresh.pids()))
            if any(line["at"] == "end" for line in fresh.lines()):
                return peak / nbytes
        return "not done"


def interrupt(contestant: type[Contestant]) -> dict:
    """Interrupt a run of long items, as Jupyter does, and try the next call."""
    with Fresh(contestant, "interrupted", workers=WORKERS) as fresh:
        if not fresh.wait_for(fresh.touched.exists, 30):
            return {"interrupt": "did not start", "next call": "–"}
        time.sleep(0.3)  # all workers are in the middle of an item
        sent = time.monotonic()
        os.killpg(fresh.process.pid, signal.SIGINT)
        fresh.wait_for(lambda: any(each["at"] == "next" for each in fresh.lines()), PATIENCE)
        told = {each["at"]: each for each in fresh.lines()}
        if "prompt" not in told:
            return {"interrupt": f"over {PATIENCE} s", "next call": "–"}
        works = told.get("next", {}).get("works", False)
        return {
            "interrupt": told["prompt"]["when"] - sent,
            "next call": "works" if works else "fails" if fresh.process.poll() else "hangs",
        }


def shared_files(pids) -> set[Path]:
    """Return the files in /dev/shm that processes have mapped or open."""
    found = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            found |= {line.split(maxsplit=5)[5] for line in lines if "/dev/shm/" in line}
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with contextlib.suppress(OSError):
                    found.add(os.readlink(link))
    return {Path(name) for name in found if name.startswith("/dev/shm/")}


def left_behind(contestant: type[Contestant], nbytes: int) -> str:
    """Kill the process that called, and look for processes and files that it has left."""
    with Fresh(contestant, "killed", nbytes=nbytes, workers=WORKERS) as fresh:
        if not fresh.wait_for(fresh.touched.exists, 30):
            return "did not start"
        time.sleep(0.3)
        files = shared_files(fresh.pids())
        fresh.process.kill()
        fresh.process.wait()
        end = time.monotonic() + PATIENCE
        while fresh.pids() and time.monotonic() < end:
            time.sleep(0.05)
        processes = len(fresh.pids())
    files = {path for path in files if path.exists()}
    megabytes = sum(path.stat().st_size for path in files) / 1e6
    left = [f"{processes} processes"] * bool(processes) + [f"{megabytes:.0f} MB"] * (megabytes >= 1)
    return " and ".join(left) or "nothing"


def failing_item(contestant: type[Contestant]) -> str:
    """Let one of many items raise, and read what the error says."""
    with Fresh(contestant, "failing", items=ITEMS, item=ITEM, workers=WORKERS) as fresh:
        fresh.wait(30)
        told = (fresh.lines() or [{"raised": None}])[0]
        log = fresh.log.read_text(errors="replace")
    if not told["raised"]:
        return "no error"
    named = "named" if told["named"] else "in the log" if str(ITEM) in log else "not named"
    return named if told["kept"] else f"{named}, {told['raised']}"


def killed_worker(contestant: type[Contestant]) -> str:
    """Let one of many items end its worker, as the kernel does when memory runs out."""
    with Fresh(contestant, "dying", items=ITEMS, item=ITEM, workers=WORKERS) as fresh:

        def over():
            return any(each["at"] == "end" for each in fresh.lines())

        if not fresh.wait_for(over, 2 * PATIENCE):
            died = fresh.process.poll() == -signal.SIGKILL
            return "the notebook dies" if died else "hangs"
        told = fresh.lines()[-1]
    if told["raised"]:
        return told["raised"] + (", item named" if told["named"] else "")
    return "retried" if told["right"] else "wrong results"
