"""The default run meets each mechanism once. What tests cost decides which cases wait.

The cost of a test function is how long one of its cases takes, in units of the median function.
`tests/costs.json` has the costs that the last release run has found: see ``.ci/run``, which records
the seconds of all cases with ``--record``, and has this module, run as a program, make costs of
them. A case that is dear though the others of its function are not has a cost of its own.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import zlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

T = TypeVar("T")

FILE = Path(__file__).resolve().parents[1] / "costs.json"
CHEAP, DEAR = 0.5, 4.0
CORE = 1.0  # what a function may cost on the other Pythons
DEALT = 3  # of these Pythons, one has each function that is not cheap
BUDGET = 3600.0  # of the default run
STEADY = 1.5  # a cost that changes by less stays as it is, so that noise does not change the file

Costs = dict[str, float]  # by function, or by case


class Timed(NamedTuple):
    """How long a case took, and whether it stands for a dear mechanism."""

    case: str
    seconds: float | None  # none if it was skipped
    is_first: bool


def load() -> Costs:
    """Return the costs of the last release run."""
    return {
        f"{file}::{name}": cost
        for file, costs in json.loads(FILE.read_text()).items()
        for name, cost in costs.items()
    }


def save(costs: Costs) -> None:
    """Write them for the next runs."""
    by_file: dict[str, Costs] = defaultdict(dict)
    for name, cost in sorted(costs.items()):
        file, _, rest = name.partition("::")
        by_file[file][rest] = cost
    FILE.write_text(json.dumps(by_file, indent=0) + "\n")


# ------------------------------------------------------------------------------ the rule


def chosen(cases: Sequence[T], cost: float, firsts: Sequence[T]) -> Sequence[T]:
    """Return the cases of a function that the default run has.

    All cases of a cheap function, and one of others. Of a dear one there is none, unless it stands
    for a mechanism that nothing cheaper shows.
    """
    if cost < CHEAP:
        return cases
    return (firsts if cost >= DEAR else firsts or cases)[:1]


def spread(cases: Sequence[T], n: int) -> Sequence[T]:
    """Return some cases, from the first to the last."""
    if n < 2 or len(cases) <= n:
        return cases[:n]
    return [cases[i * (len(cases) - 1) // (n - 1)] for i in range(n)]


def wanted(
    items: Iterable[pytest.Item], which: str, minor: int = sys.version_info.minor
) -> set[pytest.Item]:
    """Return the default tests, the other ones, all, or the core of a Python."""
    costs, functions, everything = load(), defaultdict(list), set()
    for item in items:
        if not item.get_closest_marker("soak"):
            everything.add(item)
            functions[_name(item.nodeid, costs)].append(item)
    found = {"default": set(), "all": everything, "core": set()}
    for name, cases in functions.items():
        if not cases[0].get_closest_marker("repo"):
            cost = costs.get(name, 1.0)
            firsts = [case for case in cases if case.get_closest_marker("first")]
            found["default"] |= {*chosen(cases, cost, firsts)}
            if cost < CHEAP or zlib.crc32(name.encode()) % DEALT == minor % DEALT:
                found["core"] |= {*spread(cases, int(CORE / cost))}
    found["other"] = everything - found["default"]
    return found[which]


def _name(case: str, costs: Costs) -> str:
    return case if case in costs else case.partition("[")[0]


# --------------------------------------------------------------------------- the release


class Recorder:
    """A plugin of pytest that appends the seconds of each case to a file.

    Those of the test itself, as what it shares with others is not its own, and those that it would
    take if nobody else used the CPUs, as far as the machine's load tells. CPU seconds would not do:
    workers outlive tests, and a test that waits takes time, too.
    """

    def __init__(self, path: str) -> None:
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take what a process of the run reports."""
        if "repo" not in report.keywords and (report.when == "call" or report.skipped):
            load = max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))
            seconds = None if report.skipped else report.duration / load
            timed = Timed(report.nodeid, seconds, "first" in report.keywords)
            with open(self._path, "a") as file:
                file.write(json.dumps(timed) + "\n")


def costs_of(timed: Iterable[Timed], before: Costs) -> Costs:
    """Return the costs that follow from a run. What it has skipped costs what it did before."""
    functions: dict[str, Costs] = defaultdict(dict)
    for case, seconds, _ in timed:
        cases = functions[case.partition("[")[0]]
        if seconds is not None:
            cases[case] = seconds
    found = {
        name: statistics.median_low(cases.values()) for name, cases in functions.items() if cases
    }
    unit = statistics.median(found.values())
    for name in [name for name in found if found[name] < DEAR * unit]:
        found |= {case: s for case, s in functions[name].items() if s >= DEAR * unit}
    costs = {name: max(0.01, float(f"{s / unit:.2g}")) for name, s in found.items()}
    for name, cost in before.items():
        is_near = cost / STEADY < costs.get(name, 0.0) < cost * STEADY
        if is_near or functions.get(name.partition("[")[0]) == {}:
            costs[name] = cost
    return costs


def spent(timed: Iterable[Timed], costs: Costs) -> Costs:
    """Return what the functions and cases of the default run cost there."""
    functions: dict[str, list[Timed]] = defaultdict(list)
    for each in timed:
        if each.seconds is not None:
            functions[_name(each.case, costs)].append(each)
    return {
        name: costs[name] * len(chosen(cases, costs[name], [c for c in cases if c.is_first]))
        for name, cases in functions.items()
    }


def report(timed: Sequence[Timed], before: Costs) -> tuple[Costs, str]:
    """Return the new costs, and what is wrong if the default run exceeds its budget."""
    costs = costs_of(timed, before)
    shares = spent(timed, costs)
    total = sum(shares.values())
    if total <= BUDGET:
        return costs, ""
    grown = {name: share for name, share in shares.items() if costs[name] != before.get(name)}
    newest = sorted(grown, key=lambda name: (name in before, -grown[name]))
    return costs, "\n".join([
        f"The default run costs {total:.0f} medians, {BUDGET:.0f} are allowed. "
        "Make tests cheaper, from the newest on:",
        *(f"  {grown[name]:6.1f}  {name}" for name in newest[:20]),
    ])  # fmt: skip


def main(path: str) -> str | None:
    """Make costs of a record. Return what is wrong, as `sys.exit` takes it, or None."""
    timed = [Timed(*json.loads(line)) for line in Path(path).read_text().splitlines()]
    costs, problem = report(timed, load())
    save(costs)
    return problem or None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
