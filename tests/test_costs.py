"""The rule by which cases wait for the release run, and the budget of the default run."""

from __future__ import annotations

import json

import pytest

from tests.support import costs
from tests.support.costs import Timed, chosen, costs_of, report, wanted


@pytest.mark.parametrize(
    ("cost", "n", "places"),
    [
        (0.4, 9, range(9)),  # a grid of three by three
        (0.5, 9, [5]),
        (4.0, 9, [5]),
    ],
)
def test_the_cases_of_a_function_that_the_default_run_has(cost, n, places):
    """All if they are cheap, and of others the first that stands for its mechanism."""
    assert list(chosen(range(n), cost, [5, 7])) == list(places)


def test_a_function_that_stands_for_nothing_has_its_first_case():
    assert list(chosen(range(9), 3.9, [])) == [0]


def test_a_dear_function_that_stands_for_nothing_waits():
    assert not chosen(range(9), 4.0, [])


class Item:
    """A test of pytest, of which the rule sees no more."""

    def __init__(self, name, *marks):
        self.nodeid = f"tests/test_x.py::{name}"
        self.get_closest_marker = {mark: mark for mark in marks}.get


def test_each_test_is_in_the_default_run_or_waits(monkeypatch):
    """But those of the soak. A function without a cost has one case, as the median one has."""
    known = {"tests/test_x.py::dear": 50.0, "tests/test_x.py::grid[3]": 50.0}
    monkeypatch.setattr(costs, "load", lambda: known)
    grid = [Item(f"grid[{i}]") for i in range(6)]
    first = [Item("dear[a]"), Item("dear[b]", "first")]
    items = [*grid, *first, Item("check", "repo"), Item("power", "soak")]
    default, other, everything = (wanted(items, which) for which in ("default", "other", "all"))
    assert sorted(each.nodeid.partition("::")[2] for each in default) == [
        "dear[b]", "grid[0]",
    ]  # fmt: skip
    assert everything == {*items[:-1]}
    assert (default & other, default | other) == (set(), everything)


def test_one_in_three_pythons_has_a_function_that_is_not_cheap(monkeypatch):
    """And each of them has the cheap ones. What costs more than its share is in none."""
    known = {f"tests/test_x.py::{name}": cost for name, cost in [("cheap", 0.4), ("dear", 1.1)]}
    monkeypatch.setattr(costs, "load", lambda: known)
    items = [Item(name) for name in ("cheap[0]", "cheap[1]", "cheap[2]", "dear", "usual[0]", "new")]
    cheap = {*items[:3:2]}
    cores = [wanted(items, "core", minor=minor) for minor in (12, 13, 14, 15)]
    assert cores[0] == cores[3]
    assert all(core > cheap or core == cheap for core in cores)
    assert sorted(each.nodeid for core in cores[:3] for each in core - cheap) == [
        "tests/test_x.py::new", "tests/test_x.py::usual[0]",
    ]  # fmt: skip


def timed(**seconds):
    return [
        Timed(f"t.py::{name}[{i}]", s, False)
        for name, cases in seconds.items()
        for i, s in enumerate(cases)
    ]


def test_costs_are_relative_to_the_median_function():
    """Of a function's cases too. One that is dear alone has a cost of its own."""
    found = costs_of(timed(a=[0.2], b=[0.1, 0.3, 0.2], c=[0.04, 0.05, 4.0], d=[9.0, 9.0]), {})
    assert found == {
        "t.py::a": 1.0, "t.py::b": 1.0, "t.py::c": 0.25, "t.py::c[2]": 20.0, "t.py::d": 45.0,
    }  # fmt: skip


def test_small_changes_and_skipped_tests_change_no_cost():
    """So most lines of the file stay as they are. What is gone leaves it."""
    before = {"t.py::a": 1.2, "t.py::b": 7.0, "t.py::c": 3.0, "t.py::gone": 1.0}
    found = costs_of(timed(a=[0.2], b=[0.6], d=[0.2], c=[None]), before)
    assert found == {"t.py::a": 1.2, "t.py::b": 3.0, "t.py::c": 3.0, "t.py::d": 1.0}


def test_a_default_run_beyond_its_budget_names_the_newest_tests(monkeypatch):
    """Those that are new, the dearest first, and then those that have become dearer."""
    record = timed(skipped=[None], a=[0.2] * 3, grown=[0.4] * 3, little=[0.1], new=[0.7] * 3)
    before = {"t.py::a": 1.0, "t.py::grown": 0.5, "t.py::little": 0.4}
    assert report(record, before)[1] == ""
    monkeypatch.setattr(costs, "BUDGET", 4.0)
    first, *names = report(record, before)[1].splitlines()
    assert "4 are allowed" in first
    assert [name.partition("::")[2] for name in names] == ["new", "grown"]


@pytest.mark.parametrize(("budget", "fails"), [(2.0, False), (0.5, True)])
def test_a_release_run_fails_only_beyond_the_budget(tmp_path, monkeypatch, budget, fails):
    """The status of its last program, to which `sys.exit` makes any text a failure."""
    monkeypatch.setattr(costs, "FILE", tmp_path / "costs.json")
    monkeypatch.setattr(costs, "BUDGET", budget)
    costs.save({})
    (tmp_path / "record").write_text("\n".join(map(json.dumps, timed(a=[0.2]))))
    assert (costs.main(str(tmp_path / "record")) is not None) == fails
    assert costs.load() == {"t.py::a": 1.0}
