"""Workers that end after some items, and what their initializers leave when workers end."""

from __future__ import annotations

import operator
import os
import subprocess
import sys
import time
from collections import Counter

import pytest

import nbshare
from nbshare import Executor, parallel_map
from tests.support import renewed
from tests.support.faultlab import TESTS
from tests.support.processes import lives

INITIALIZERS = [renewed.opened, renewed.generate, renewed.Opened]


@pytest.mark.parametrize(("n", "most", "n_workers"), [(12, 1, 2), (10, 3, 1), (200, 7, 2)])
def test_no_worker_runs_more_items(n, most, n_workers):
    pids = parallel_map(renewed.pid, range(n), max_workers=n_workers, max_tasks_per_child=most)
    runs = Counter(pids.tolist())
    assert max(runs.values()) <= most
    assert len(runs) >= n / most


def test_items_of_earlier_calls_count():
    nbshare.shutdown()
    first = parallel_map(renewed.pid, range(3), max_workers=1)
    second = parallel_map(renewed.pid, range(3), max_workers=1, max_tasks_per_child=4)
    assert Counter([*first.tolist(), *second.tolist()])[first[0]] == 4


@pytest.mark.parametrize("chunksize", [None, 5])
def test_a_renewed_worker_may_die(tmp_path, chunksize):
    pids = parallel_map(
        renewed.pid_or_death,
        range(12),
        shared={"folder": str(tmp_path)},
        max_workers=2,
        max_tasks_per_child=2,
        retries=1,
        chunksize=chunksize,
        out="list",
    )
    assert len(pids) == 12


def test_items_of_a_generator_get_new_workers_too():
    pids = parallel_map(
        renewed.pid, iter(range(20)), max_workers=2, max_tasks_per_child=4, out="list"
    )
    assert max(Counter(pids).values()) <= 4


def test_items_that_are_reduced_count_one_by_one():
    """A worker ends its block, which has one or two of so few items."""
    runs = parallel_map(
        renewed.one_more, range(190), max_workers=2, max_tasks_per_child=7, reduce=operator.add
    )
    assert max(runs.values()) <= 8
    assert runs.total() == 190


def test_tasks_of_an_executor_get_new_workers():
    with Executor(2, max_tasks_per_child=3) as executor:
        pids = Counter(executor.map(renewed.pid, range(12)))
    assert max(pids.values()) <= 3


@pytest.mark.parametrize("initializer", INITIALIZERS)
def test_a_worker_that_is_renewed_leaves_what_it_has_entered(tmp_path, initializer, cold):
    parallel_map(
        renewed.pid,
        range(6),
        max_workers=1,
        max_tasks_per_child=2,
        initializer=initializer,
        initargs=(str(tmp_path),),
    )
    nbshare.shutdown()
    assert [name.split()[0] for name in renewed.names(tmp_path)] == ["in"] * 3 + ["out"] * 3


@pytest.mark.parametrize("initializer", INITIALIZERS)
@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_in_this_process_it_is_left_at_the_end_of_the_call(tmp_path, initializer, backend):
    for _ in range(2):
        parallel_map(
            renewed.pid,
            range(4),
            initializer=initializer,
            initargs=(str(tmp_path),),
            backend=backend,
        )
        assert renewed.names(tmp_path) == [f"in {os.getpid()}", f"out {os.getpid()}"]
        for name in renewed.names(tmp_path):
            (tmp_path / name).unlink()


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_it_is_left_if_the_call_cannot_begin(tmp_path, backend):
    with pytest.raises(ValueError, match="cannot be loaded"):
        parallel_map(
            renewed.pid_or_death,
            range(4),
            shared={"folder": renewed.Unloadable()},
            initializer=renewed.opened,
            initargs=(str(tmp_path),),
            backend=backend,
        )
    assert renewed.names(tmp_path) == [f"in {os.getpid()}", f"out {os.getpid()}"]


def test_another_initializer_ends_the_workers_of_the_first(tmp_path):
    parallel_map(renewed.pid, [0], initializer=renewed.opened, initargs=(str(tmp_path),))
    parallel_map(renewed.pid, [0], initializer=renewed.Opened, initargs=(str(tmp_path),))
    nbshare.shutdown()
    assert [name.split()[0] for name in renewed.names(tmp_path)].count("out") == 2


def test_one_that_hangs_delays_the_end_by_a_second(tmp_path):
    parallel_map(renewed.pid, [0], initializer=renewed.hanging, initargs=(str(tmp_path),))
    began = time.monotonic()
    nbshare.shutdown()
    assert time.monotonic() - began < 10  # not an hour
    (name,) = renewed.names(tmp_path)
    assert not lives(int(name.split()[1]))


def test_one_that_prints_much_is_left(tmp_path, capfd):
    parallel_map(renewed.pid, [0], initializer=renewed.talking, initargs=(str(tmp_path),))
    nbshare.shutdown()
    assert [name.split()[0] for name in renewed.names(tmp_path)] == ["in", "out"]
    assert capfd.readouterr().out.count("\n") == 3000


def test_a_call_inside_an_item_leaves_its_own_at_its_end(tmp_path):
    """And the worker keeps what its own initializer has entered, which does not run again."""
    for name in ("outer", "inner"):
        (tmp_path / name).mkdir()
    for _ in range(2):
        after = parallel_map(
            renewed.call_with_others,
            range(2),
            shared={"folder": tmp_path},
            max_workers=1,
            initializer=renewed.opened,
            initargs=(str(tmp_path / "outer"),),
        )
        assert after == [[["in"], ["in", "out"]]] * 2
    nbshare.shutdown()
    assert [name.split()[0] for name in renewed.names(tmp_path / "outer")] == ["in", "out"]


def test_at_the_exit_of_the_interpreter_all_workers_leave(tmp_path):
    code = (
        "import nbshare\nfrom tests.support import renewed\n"
        "nbshare.parallel_map(renewed.pid, range(50), initializer=renewed.opened, "
        "initargs=(FOLDER,), max_workers=3)".replace("FOLDER", repr(str(tmp_path)))
    )
    subprocess.run([sys.executable, "-c", code], cwd=TESTS.parent, check=True)
    came, left = (
        {name.split()[1] for name in renewed.names(tmp_path) if name.startswith(way)}
        for way in ("in ", "out ")
    )
    assert came == left != set()


def test_a_failure_of_leaving_is_printed(tmp_path, capfd):
    parallel_map(
        renewed.pid,
        range(4),
        max_workers=1,
        max_tasks_per_child=1,
        initializer=renewed.failing,
        initargs=(str(tmp_path),),
    )
    nbshare.shutdown()
    assert "OSError: the connection was lost" in capfd.readouterr().err


def test_tests_of_pytest_share_workers(monkeypatch):
    """The variable that names the running test changes with each, and nothing that is imported."""
    pids = []
    for name in ("one", "another"):
        monkeypatch.setenv("PYTEST_CURRENT_TEST", f"test_here.py::{name} (call)")
        pids += parallel_map(renewed.pid, [0], max_workers=1).tolist()
    assert pids[0] == pids[1]
