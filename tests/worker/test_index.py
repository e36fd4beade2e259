"""`nbshare.worker_index`, where workers that run at the same time have different numbers."""

from __future__ import annotations

from concurrent.futures import wait

import psutil
import pytest

import nbshare
from nbshare import parallel_map
from tests.support import numbered


@pytest.fixture
def together(tmp_path_factory):
    """Give results of items that all run at the same time, each in a worker of its own."""

    def run(func, n, **options):
        folder = str(tmp_path_factory.mktemp("together"))
        inputs = {"folder": folder, "n": n} | options.pop("more", {})
        options = {"shared": inputs, "chunksize": 1, "max_workers": n} | options
        return parallel_map(func, range(n), out="list", progress=False, **options)

    return run


@pytest.mark.parametrize("backend", [None, "threads"])
def test_the_numbers_are_those_from_0(together, backend):
    """Outside of workers there is none."""
    for n in (2, 3, 1):
        found = dict(together(numbered.meet, n, backend=backend))
        assert sorted(found.values()) == list(range(n))
    assert nbshare.worker_index() is None


def test_a_worker_keeps_its_number(together):
    """So what its initializer has opened for it stays right."""
    for n in (2, 3):
        for _ in range(2):
            found = together(numbered.meet_prepared, n, initializer=numbered.note_index)
            assert sorted(found) == [(k, k) for k in range(n)]


def free_slowly(together):
    """Two of three workers may still free what the first has given up."""
    together(numbered.meet_with, 3, more={"thing": numbered.FreedSlowly()})


def free_for_ever(together):
    """All three workers still free that."""
    together(numbered.meet_with, 3, more={"thing": numbered.FreedSlowly(numbered.LATE_S)})


def leave_slowly(together):
    """Three workers may have to leave something, when others are wanted."""
    together(numbered.meet_prepared, 3, initializer=numbered.note_index_and_leave_slowly)


def lose_some(together, numbers=(0, 1)):
    """Of three idle workers these are gone."""
    pids = {index: pid for (pid, _), index in together(numbered.meet, 3)}
    for index in numbers:
        worker = psutil.Process(pids[index])
        worker.kill()
        psutil.wait_procs([worker])


@pytest.mark.parametrize("before", [free_slowly, leave_slowly, lose_some])
def test_the_numbers_are_those_from_0_whatever_was_before(together, cold, before):
    """With two devices, `worker_index()` would fit none otherwise, or one of them twice."""
    for options in ({}, {"initializer": numbered.note_index}):
        before(together)
        found = dict(together(numbered.meet, 2, **options))
        assert sorted(found.values()) == [0, 1]


def test_one_late_worker_is_replaced_if_a_call_has_no_other(together, cold):
    """It may import something long that later calls need, so others wait for it."""
    free_for_ever(together)
    assert [number for _, number in together(numbered.meet, 1)] == [0]


def test_a_new_worker_takes_the_number_of_a_dead_one(together, cold):
    """It runs the item again."""
    assert sorted(together(numbered.die_once, 2, retries=1)) == [0, 1]


@pytest.mark.parametrize("before", [free_for_ever, leave_slowly])
def test_renewed_workers_begin_with_0(together, monkeypatch, before):
    """Outdated ones end first, also those that are late."""
    before(together)
    monkeypatch.setenv("RENEWED", "yes")
    assert sorted(dict(together(numbered.meet, 3)).values()) == [0, 1, 2]


def test_a_nested_call_has_the_number_of_its_worker():
    """It runs there."""
    found = parallel_map(numbered.nested, range(8), max_workers=2, out="list")
    assert all(set(numbers) == {own} for own, *numbers in found)


@pytest.mark.parametrize("backend", ["threads", "serial"])
def test_an_initializer_of_this_process_runs_as_worker_0(backend):
    """Once for all threads."""
    numbered.first.clear()
    parallel_map(numbered.index, [0], initializer=numbered.note_index, backend=backend)
    assert numbered.first == [0]


def test_tasks_and_stages_have_numbers(tmp_path):
    """They run in the same workers, at the same time with different ones."""
    with nbshare.Executor(2) as executor:
        tasks = [executor.submit(numbered.meet, i, str(tmp_path), 2) for i in range(2)]
        wait(tasks)
    assert sorted(task.result()[1] for task in tasks) == [0, 1]
    found = nbshare.pipeline(numbered.load, numbered.index, slots=2, shape=(), dtype=float)
    assert set(found.results) <= {0, 1}


def test_a_pipeline_has_the_numbers_below_that_of_its_workers(together, cold):
    """Its loader takes one, and its stage has only one worker itself."""
    lose_some(together, [1])
    found = nbshare.pipeline(numbered.load, numbered.index, slots=2, shape=(), dtype=float)
    assert set(found.results) <= {0, 1}
