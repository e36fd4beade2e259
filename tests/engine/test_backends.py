"""Features of runs in this process, in its threads, and within workers.

`tests/backends` has the common part of all backends.
"""

from __future__ import annotations

import os
import re
import traceback

import psutil
import pytest

from nbshare import MapInterrupted, last_job, parallel_map
from tests.support import policies
from tests.support.outcomes import MANY, no_interrupt, runs, said, worker_pids


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_an_error_shows_the_users_own_frames(backend):
    """The exception is itself, names its item, and leads to the line that raised it."""
    with pytest.raises(ValueError, match="no way on at 3") as caught:
        parallel_map(policies.fail_some, range(6), shared={"bad": {3}}, backend=backend)
    assert "item 3" in said(caught.value)
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [frame.name for frame in frames[-2:]] == ["fail_some", "befall"]


@pytest.mark.parametrize("retries", [0, 2])
@pytest.mark.parametrize("n", [20, MANY], ids=["few", "tiny"])
def test_an_interrupt_of_a_serial_map(n, retries, tally):
    """Ctrl-C keeps what is done, is not tried again, and the next call works."""
    bad = n // 2
    ways = ["raise", "interrupt"] if retries else ["interrupt"]
    shared = {"tally": tally, "bad": {bad}, "ways": ways}
    with pytest.raises(MapInterrupted, match=f"{bad} of {n} items done"), no_interrupt():
        parallel_map(policies.attempt, range(n), shared=shared, backend="serial", retries=retries)
    partial = last_job().partial()
    assert partial.compressed().tolist() == list(range(bad))
    assert last_job().state == "interrupted"
    assert parallel_map(policies.identity, range(5), backend="serial").tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("bad", [0, 3])
@pytest.mark.parametrize("make", [range, lambda n: iter(range(n))], ids=["list", "generator"])
def test_an_interrupt_says_where_results_are_only_if_there_are_any(bad, make):
    """Nothing is kept of a run that was interrupted before its first result."""
    with pytest.raises(MapInterrupted) as caught:
        parallel_map(policies.raise_interrupt_at, make(60), shared={"bad": bad}, backend="serial")
    assert re.match(rf"{bad}( of 60)? items done", str(caught.value))
    assert ("kept in nbshare.last_job().partial()" in str(caught.value)) == (bad > 0)
    assert ("kept" in str(caught.value)) == (bad > 0)


def test_threads_are_at_work_at_the_same_time():
    """Two threads meet in two items."""
    found = parallel_map(
        policies.cross_together,
        range(6),
        backend="threads",
        max_workers=2,
        chunksize=1,
    )
    assert len(set(found.tolist())) == 2


@pytest.mark.parametrize("max_workers", [1, 3])
def test_there_are_no_more_threads_than_asked_for(max_workers):
    """As many items are under way at once as workers were asked for."""
    policies.reset_running()
    options = {"backend": "threads", "max_workers": max_workers, "chunksize": 1}
    result = parallel_map(policies.count_running, range(30), shared={"seconds": 0.01}, **options)
    assert result.max() == max_workers


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_no_process_is_started_for_a_map_in_this_one(backend, cold):
    """Serial runs and threads need no worker process."""
    assert set(parallel_map(policies.pid, range(9), backend=backend).tolist()) == {os.getpid()}
    assert set(psutil.Process().children()) <= cold


@pytest.mark.parametrize(
    "options",
    [{}, {"max_workers": 4}, {"backend": "serial"}, {"backend": "threads", "max_workers": 2}],
    ids=str,
)
def test_maps_in_workers_start_no_processes(options, cold):
    """Three runs deep no process is at work but those asked for at the outside."""
    found = parallel_map(
        policies.nest, [3, 3], shared={"options": options}, max_workers=2, chunksize=1
    )
    pids = {pid for pids in found for pid in pids}
    assert 1 <= len(pids) <= 2
    assert pids <= worker_pids()
    assert len(worker_pids()) <= 2


def test_a_map_in_a_worker_returns_errors():
    """``on_error="return"`` has its meaning in a worker too."""
    found = parallel_map(policies.nest_failing, range(2), shared={"on_error": "return"})
    assert found == [([i in (2, 4) for i in range(6)], 9.0)] * 2


def test_a_map_in_a_worker_tries_again(tally):
    """``retries=`` has its meaning in a worker too."""
    found = parallel_map(policies.nest_retrying, [0], shared={"tally": tally})
    assert found.tolist() == [list(range(6))]
    assert runs(tally, 6) == [3 if i == 3 else 1 for i in range(6)]


def test_a_time_out_in_a_worker_is_refused():
    """A run in a worker has no process of its own to end, and says so."""
    options = {"timeout": 1.0}
    with pytest.raises((ValueError, NotImplementedError), match=r"timeout=1\.0.*worker"):
        parallel_map(policies.nest, [1], shared={"options": options})
