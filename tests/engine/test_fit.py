"""No more workers run than fit into memory. The figures of the system are invented."""

from __future__ import annotations

import itertools
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nbshare import map_async
from nbshare._core.engine import calls
from nbshare._core.engine.stats import n_that_fit
from nbshare._core.notebook.bar import Speed, describe
from nbshare._core.system import processes
from nbshare.errors import WorkerDiedError
from tests.support import large

GB = 1 << 30
sizes = st.integers(0, 8 * GB)


@given(st.lists(sizes, min_size=1, max_size=9), sizes, st.integers(0, 99 * GB))
def test_as_many_fit_as_reach_the_peak_together(workers, peak, available):
    each = max(1, peak, *workers)
    n, held = n_that_fit(workers, each, available), sum(workers)
    assert n == 1 or n * each <= held + 0.9 * available + 1
    assert (n + 1) * each > held + 0.9 * available - 1


@pytest.fixture
def memory(monkeypatch):
    """Look often. Return a setter of the free memory of the machine, in bytes."""
    monkeypatch.setattr(calls, "MEMORY_CHECK_S", 0.02)
    free = [99 * GB]
    monkeypatch.setattr(processes, "available_bytes", lambda: free[0])
    return lambda nbytes: free.__setitem__(0, nbytes)


def at_the_same_time(spans):
    """Return how many of the spans overlap at most."""
    ends = [(begun, 1) for begun, *_ in spans] + [(ended, -1) for _, ended, *_ in spans]
    return max(itertools.accumulate(step for _, step in sorted(ends)))


def wait_for(condition, timeout_s=20.0):
    until_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < until_s
        time.sleep(0.005)


def test_workers_leave_where_memory_is_short(memory):
    job = map_async(large.take, range(60), max_workers=3, chunksize=1, out="list")
    wait_for(lambda: job.n_done > 6)
    memory(-9 * GB)  # less than nothing, whatever a worker holds at the moment
    wait_for(lambda: job._run.fit() is not None)
    n_done = job.n_done
    wait_for(lambda: sum(worker.items != range(0) for worker in job._run.activity()) <= 1)
    spans = job.result()
    assert at_the_same_time(spans[n_done + 10 :]) == 1


def test_workers_return_with_the_memory(memory):
    memory(-9 * GB)  # less than nothing, whatever a worker holds at the moment
    job = map_async(large.take, range(60), max_workers=2, chunksize=1, out="list")
    wait_for(lambda: job._run.fit() is not None)
    memory(99 * GB)
    assert at_the_same_time(job.result()[-20:]) == 2
    assert job._run.fit() is None


def test_the_display_says_how_many_fit(memory):
    memory(-9 * GB)  # less than nothing, whatever a worker holds at the moment
    job = map_async(large.take, range(60), max_workers=2, chunksize=1, out="list")
    wait_for(lambda: job._run.fit() is not None and job._run.fit().each > 50_000_000)
    assert "1 of 2 workers: 0.1 GB each" in describe(job, Speed(job)).details
    job.result()


def test_an_item_that_the_system_ended_for_lack_of_memory_runs_again(memory, tmp_path, monkeypatch):
    """With fewer workers."""
    killed = tmp_path / "killed"
    monkeypatch.setattr(processes, "n_killed", killed.exists)
    shared = {"folder": str(tmp_path)}
    job = map_async(large.be_killed_once, range(40), shared=shared, max_workers=3, chunksize=1)
    assert job.result().tolist() == list(range(40))
    assert job._run.fit().n == 2


def test_a_worker_that_is_killed_otherwise_fails_its_item(memory, tmp_path):
    shared = {"folder": str(tmp_path)}
    job = map_async(large.be_killed_once, range(40), shared=shared, max_workers=3, chunksize=1)
    with pytest.raises(WorkerDiedError, match="item 5"):
        job.result()
