"""The findings of the measurements: ratios, tables, and where others are faster."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
from argparse import Namespace
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median

import contestants
from workloads import workloads

PHASES = {"first": "first call, with import and start", "later": "later call"}
NO_PEERS = ("loop", "nbshare", "bandwidth", "limit")
FACTS = {
    "memory": "peak memory of all processes with a large input, in sizes of that input",
    "interrupt": "seconds from an interrupt to the prompt",
    "next call": "whether the same workers, or new ones, take the next call after it",
    "left behind": "what is left 5 s after the notebook's process was killed",
    "failing item": "whether the error of one item says which item it was",
    "killed worker": "what happens when the kernel kills a worker",
}


def available_memory() -> int:
    """Return the bytes that new processes could use."""
    return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[1])


def machine(options: Namespace) -> dict:
    """Return where and with what was measured."""
    cpu = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    total = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())[1]
    return {
        "CPUs": f"{len(os.sched_getaffinity(0))} ({cpu[1] if cpu else platform.machine()})",
        "workers": options.workers,
        "memory": f"{int(total) / 2**20:.0f} GiB",
        "Linux": platform.release(),
        "Python": platform.python_version(),
        "NumPy": importlib.metadata.version("numpy"),
        "size": options.size,
        "versions": {each.name: contestants.version(each) for each in options.contestants[1:]},
    }


@dataclass(frozen=True)
class Ratio:
    """The median of ratios that were taken in the same round, and how far they spread."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        """Show the spread only where it is larger than the last digit."""
        middle, low, high = map(digits, (self.median, self.low, self.high))
        return middle if low == high else f"{middle} ({low}–{high})"


def digits(value: float) -> str:
    """Write a ratio with two digits or more."""
    if value < 0.01:
        return "<0.01"
    return f"{value:.0f}" if value >= 20 else f"{value:.1f}" if value >= 2 else f"{value:.2f}"


@dataclass
class Row:
    """One workload and phase, with the seconds of every contestant in every round."""

    title: str
    meaning: str
    phase: str
    times: dict[str, dict[int, float]] = field(default_factory=dict)
    troubles: dict[str, str] = field(default_factory=dict)

    def ratio(self, name: str, reference: str) -> Ratio | None:
        """Return how many times as long as the reference a contestant took."""
        mine, its = self.times.get(name, {}), self.times.get(reference, {})
        ratios = [mine[k] / its[k] for k in mine.keys() & its.keys()]
        return Ratio(median(ratios), min(ratios), max(ratios)) if ratios else None

    def typical(self, name: str) -> float:
        """Return the median of a contestant's seconds."""
        return median(self.times[name].values())

    @property
    def ranking(self) -> list[str]:
        """Return all that have a time, the fastest first."""
        return sorted(self.times, key=self.typical)

    @property
    def best_peer(self) -> str | None:
        """Return the fastest of those that are neither the loop nor nbshare nor a limit."""
        return next((n for n in self.ranking if n not in NO_PEERS), None)

    @property
    def unit(self) -> str | None:
        """Return whose time is 1, nbshare's or the fastest peer's where it takes no part."""
        return "nbshare" if "nbshare" in self.times else self.best_peer


@dataclass
class Report:
    """All that was measured, and what follows from it."""

    machine: dict
    race: list[dict] = field(default_factory=list)  # records as they come from processes
    scaling: list[dict] = field(default_factory=list)
    facts: list[dict] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what was left out, and why

    @classmethod
    def load(cls, path: Path) -> Report:
        """Read what ``save`` has written."""
        return cls(**json.loads(path.read_text()))

    def save(self, path: Path):
        """Write all measurements as JSON."""
        path.write_text(json.dumps(asdict(self), indent=1))

    def records(self) -> list[dict]:
        """Return the records of the race, each with what is wrong with it as ``trouble``."""
        right = {
            (each["workload"], each["round"]): each.get("digest")
            for each in self.race
            if each["contestant"] == "loop" and "workload" in each
        }
        judged = []
        for each in self.race:
            trouble = each.get("error")
            key = each.get("workload"), each["round"]
            if (
                not trouble
                and each["contestant"] != "bandwidth"
                and each["digest"] != right.get(key)
            ):
                trouble = "WRONG RESULTS"
            judged.append({**each, "trouble": trouble})
        return judged

    def wrong(self) -> list[str]:
        """Return which contestants gave other results than the loop."""
        bad = [each for each in self.records() if each["trouble"] == "WRONG RESULTS"]
        found = {f"{each['contestant']}: {each['workload']}" for each in bad}
        bad = [each for each in self.scaling if not each.get("ok") and "error" not in each]
        return sorted(found | {f"{each['contestant']}: {each['axis']}" for each in bad})

    def rows(self) -> list[Row]:
        """Return the rows of the tables, with the limit among the contestants."""
        records = self.records()
        rows = []
        for name, load in workloads(self.machine["size"]).items():
            mine = [each for each in records if each.get("workload") == name]
            for phase in load.phases if mine else ():
                row = Row(load.title, load.meaning, phase)
                for each in mine:
                    if each["trouble"]:
                        row.troubles[each["contestant"]] = each["trouble"]
                    elif each.get(phase):
                        row.times.setdefault(each["contestant"], {})[each["round"]] = each[phase]
                self.add_limit(row)
                rows.append(row)
        return rows

    def add_limit(self, row: Row):
        """Add the limit of all libraries, the loop divided by the workers, or the bandwidth."""
        loop, bytewise = row.times.get("loop", {}), row.times.pop("bandwidth", {})
        workers = min(self.machine["workers"], int(self.machine["CPUs"].split()[0]))
        if row.phase == "later" and loop and row.typical("loop") > 1e-4:
            row.times["limit"] = {k: max(loop[k] / workers, bytewise.get(k, 0)) for k in loop}
        if "large results" in row.title:  # made where they stay, they need no more than a loop does
            row.times["limit"] = dict(bytewise)

    def others_ahead(self) -> list[str]:
        """Return where others are faster than nbshare by more than 5 %, a line for each row."""
        found = []
        for row in self.rows():
            ratios = {
                n: row.ratio(n, "nbshare") for n in row.ranking if n not in ("nbshare", "limit")
            }
            faster = [
                f"{n} {ratio}" for n, ratio in ratios.items() if ratio and ratio.median < 0.95
            ]
            if faster:
                found.append(f"{row.title}, {row.phase} call: {', '.join(faster)}")
        return found

    # --------------------------------------------------------------------- tables

    def text(self) -> str:
        """Return all tables as plain text."""
        lines = [self.origin(), ""]
        for row in self.rows():
            lines += [f"{row.title}: {row.meaning}", f"  {PHASES[row.phase]}", *ranking(row), ""]
        lines += [*self.facts_table(), "", *self.scaling_table(), "", *self.remarks()]
        return "\n".join(lines)

    def markdown(self) -> str:
        """Return the tables for a README, with every contestant's time relative to nbshare's."""
        names = [each["contestant"] for each in self.race]
        names = ["loop", *dict.fromkeys(name for name in names if name not in NO_PEERS), "limit"]
        table = [["", "nbshare", *names]]
        for row in self.rows():
            unit = row.unit
            cells = [f"**{row.title}**, {row.phase} call: {row.meaning}"]
            cells.append(seconds(row.typical(unit)) if unit else "–")
            for name in names:
                ratio = row.ratio(name, unit) if unit else None
                cells.append(str(ratio or row.troubles.get(name, "–")))
            table.append(cells)
        parts = [self.origin(), piped(table), piped(self.facts_cells()), "\n".join(self.remarks())]
        return "\n\n".join(filter(None, parts)) + "\n"

    def origin(self) -> str:
        """Return where and with what was measured, in one sentence each."""
        machine = dict(self.machine)
        versions = ", ".join(
            f"{name} {version}" for name, version in machine.pop("versions").items()
        )
        return "; ".join(f"{name} {value}" for name, value in machine.items()) + f". {versions}."

    def facts_cells(self) -> list[list[str]]:
        """Return the facts, a row for each contestant."""
        if not self.facts:
            return []
        cells = [["", *FACTS]]
        for each in self.facts:
            values = [each[fact] for fact in FACTS]
            shown = [digits(value) if isinstance(value, float) else value for value in values]
            cells.append([each["contestant"], *shown])
        return cells

    def facts_table(self) -> list[str]:
        """Return the facts as text, with what they mean."""
        cells = self.facts_cells()
        return (
            [*(f"{fact}: {meaning}" for fact, meaning in FACTS.items()), *aligned(cells)]
            if cells
            else []
        )

    def scaling_table(self) -> list[str]:
        """Return seconds for each size of each axis."""
        lines = []
        for axis in dict.fromkeys(each["axis"] for each in self.scaling):
            curves = self.curves(axis)
            sizes = sorted({size for curve in curves.values() for size in curve})
            cells = [[axis, *curves]]
            for size in sizes:
                shown = [seconds(median(c[size])) if size in c else "–" for c in curves.values()]
                cells.append([f"{size:,}", *shown])
            lines += aligned(cells)
        return lines

    def curves(self, axis: str) -> dict[str, dict[int, list[float]]]:
        """Return the seconds of every contestant at every size of one axis."""
        curves: dict[str, dict[int, list[float]]] = {}
        for each in self.scaling:
            if each["axis"] == axis and each.get("ok"):
                curve = curves.setdefault(each["contestant"], {})
                curve.setdefault(each["size"], []).append(each["seconds"])
        return curves

    def remarks(self) -> list[str]:
        """Return what the tables do not say by themselves."""
        lines = [f"WRONG RESULTS: {each}" for each in self.wrong()]
        for each in self.scaling:
            if "error" in each:
                size = f"{each['size']:,}" if "size" in each else "more"
                lines.append(
                    f"scaling: {each['contestant']}, {size} {each['axis']}: {each['error']}"
                )
        ahead = self.others_ahead()
        if ahead:
            lines.append("Faster than nbshare (time, nbshare = 1):")
            lines += [f"- {each}" for each in ahead]
        return [*lines, *(f"Left out: {note}" for note in self.notes)]


def seconds(value: float) -> str:
    """Write a time with its unit."""
    unit, factor = ("s", 1) if value >= 1 else ("ms", 1e3) if value >= 1e-3 else ("µs", 1e6)
    return f"{value * factor:.{1 if value * factor < 10 else 0}f} {unit}"


def ranking(row: Row) -> list[str]:
    """Return one row of the race as a table, the fastest contestant first."""
    cells = [["", "time", "÷ nbshare", "÷ loop", "÷ best peer", "÷ limit", "rounds"]]
    for name in row.ranking:
        to = [row.ratio(name, reference) for reference in ("nbshare", "loop")]
        far = [row.ratio(name, reference) for reference in (row.best_peer, "limit")]
        shown = [str(ratio) if ratio else "–" for ratio in to]
        shown += [digits(ratio.median) if ratio else "–" for ratio in far]
        cells.append([name, seconds(row.typical(name)), *shown, str(len(row.times[name]))])
    return aligned(cells) + [f"  {name}: {why}" for name, why in row.troubles.items()]


def aligned(cells: list[list[str]]) -> list[str]:
    """Return a table in columns."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    return ["  " + "  ".join(map(str.ljust, line, widths)).rstrip() for line in cells]


def piped(cells: list[list[str]]) -> str:
    """Return a table as Markdown."""
    if not cells:
        return ""
    lines = [cells[0], ["---"] * len(cells[0]), *cells[1:]]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
