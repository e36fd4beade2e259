"""`plan` tells what a run takes, from two of its items."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

import nbshare
from nbshare import grid, plan
from nbshare._core.system import SYSTEM, processes
from tests.support.faultlab import SOON_S
from tests.support.processes import IS_WINE

FIGURES = np.ones((1000, 1000))


def row(i, figures):
    return figures[i]


def note(i, place):
    place[i] = 1
    return i


def nap(i):
    time.sleep(0.1)
    return {"i": i}


def take(i, nbytes):
    return float(np.ones(nbytes, np.uint8).sum())


def power(base, exponent):
    return base**exponent


def test_the_bytes_are_those_of_the_run():
    found = plan(row, range(500), shared={"figures": FIGURES})
    result = nbshare.parallel_map(row, range(500), shared={"figures": FIGURES})
    assert found.n_items == 500
    assert found.result_bytes == result.nbytes
    assert FIGURES.nbytes <= found.input_bytes < 1.01 * FIGURES.nbytes


def test_the_first_item_and_the_middle_one_run():
    place = nbshare.zeros(9)
    plan(lambda i: note(i, place), range(9))
    assert np.flatnonzero(place).tolist() == [0, 4]


def test_the_time_is_that_of_all_items_on_its_workers():
    found = plan(nap, range(100), max_workers=2)
    assert 0.1 <= found.item_s < SOON_S
    assert found.elapsed_s == pytest.approx(50 * found.item_s)


@pytest.mark.skipif(SYSTEM == "macos", reason="the memory of a worker alone is unknown there")
@pytest.mark.skipif(IS_WINE, reason="Wine has the present memory of a process for its peak")
def test_workers_are_as_many_as_fit(monkeypatch):
    monkeypatch.setattr(processes, "available_bytes", lambda: 1_000_000_000)
    found = plan(take, range(100), shared={"nbytes": 250_000_000}, max_workers=8)
    assert 250_000_000 < found.worker_bytes < 450_000_000
    assert found.workers == int((900_000_000 - found.input_bytes - 800) // found.worker_bytes)
    assert found.refused == []


def test_a_lack_of_memory_is_told(monkeypatch):
    monkeypatch.setattr(processes, "available_bytes", lambda: 100_000_000)
    found = plan(np.ones, [1_000_000] * 1000)
    assert "more than is available" in found.refused[0]


def test_grids_are_planned_too():
    found = plan(power, grid(base=np.arange(1000.0), exponent=range(1000)))
    assert found.n_items == 1_000_000
    assert found.result_bytes == 8_000_000


def test_a_reduction_keeps_a_result_for_each_worker():
    def until(value, n):
        return n > 3

    found = plan(np.ones, [1000] * 500, max_workers=3, reduce=np.add, until=until)
    assert (found.n_items, found.result_bytes, found.refused) == (500, 24_000, [])
    assert "reduce=5" in plan(np.ones, [1], reduce=5).refused[0]


def test_items_of_a_generator_are_left_in_it():
    items = iter(range(10))
    found = plan(nap, items)
    assert found.n_items is None
    assert list(items) == list(range(10))


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_in_this_process(backend):
    found = plan(nap, range(10), backend=backend)
    assert found.n_items == 10
    assert found.worker_bytes == 0


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: plan(nap, 3), "int is not iterable"),
        (lambda: plan(nap, [threading.Lock()]), "item 0 cannot be sent"),
        (lambda: plan(row, [1]), "figures"),
        (lambda: plan(float, ["1", "x", "y"]), r"item 1 ('x') fails: ValueError"),
        (lambda: plan(nap, range(3), max_workers=0), "max_workers=0"),
    ],
)
def test_what_would_be_refused_is_told(call, text):
    assert text in call().refused[0]


def test_an_argument_that_there_is_not_is_an_error():
    with pytest.raises(TypeError, match=r"plan\(\) has no argument max_worker="):
        plan(nap, [1], max_worker=3)


def test_it_is_shown_in_words_and_as_a_table():
    found = plan(nap, range(10))
    assert "items    10" in repr(found)
    assert "<td" in found._repr_html_()
    assert "workers" in found._repr_html_()


def test_a_plan_shows_seconds_as_a_person_writes_them():
    shown = repr(
        nbshare.types.Plan(n_items=500, item_s=0.2, elapsed_s=101.3, workers=1, refused=[])
    )
    assert "time     101 s, 0.2 s per item" in shown
