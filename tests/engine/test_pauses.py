"""Sources that pause. Workers leave a call that has nothing for them, and come back."""

from __future__ import annotations

import os
import threading
import time
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import map_async, parallel_map
from nbshare._core.store.pages import PAGE_ITEMS
from nbshare._core.worker.process import KEEP_S
from tests.support import streams
from tests.support.faultlab import SIGKILL, SOON_S, wait_until

LEFT_S = KEEP_S + 0.2  # then its workers have left a call without items


def bursts(n, pauses):
    """Yield the time, `n` times in a row, after each pause."""
    for pause_s in pauses:
        time.sleep(pause_s)  # the subject of these tests
        for _ in range(n):
            yield time.monotonic()


def noted(items, given):
    for item in items:
        given.append(item)
        yield item


sources = st.tuples(
    st.sampled_from([1, 2, 10, 3000]),  # items of a burst
    st.integers(1, 4),  # workers
    st.lists(st.sampled_from([0.0, 0.05, LEFT_S]), min_size=2, max_size=6),
)


@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(sources, min_size=6, max_size=12))
def test_every_item_of_sources_that_pause_runs(plans):
    """For any bursts, pauses and workers, of many sources at the same time."""
    jobs = [
        map_async(streams.when_begun, bursts(n, pauses), max_workers=n_workers, progress=False)
        for n, n_workers, pauses in plans
    ]
    for job, (n, _, pauses) in zip(jobs, plans, strict=True):
        assert len(job.result(60)) == n * len(pauses)


@pytest.mark.parametrize("n_workers", [1, 2])
def test_no_item_waits_while_a_worker_is_free(n_workers):
    """After more pauses than a call has slots, each new item begins within moments."""
    given = []
    source = noted(bursts(1, [LEFT_S] * (n_workers + 5)), given)
    job = map_async(streams.when_begun, source, max_workers=n_workers, progress=False)
    waits = job.result(60) - given
    assert waits.max() < SOON_S, waits
    assert np.median(waits) < 0.2, waits


def test_tasks_that_come_after_pauses_run():
    """An executor's call goes on while one task runs, and its other workers leave and return."""
    with nbshare.Executor(2) as executor:
        long = executor.submit(time.sleep, 8 * LEFT_S)
        for i in range(7):
            assert executor.submit(abs, -i).result(10) == i
            with pytest.raises(TimeoutError):
                long.result(LEFT_S)
        long.result(20)


def test_a_worker_that_comes_back_keeps_its_row():
    """The stats have one row for each worker process, with all its items."""
    job = map_async(streams.when_begun, bursts(4, [LEFT_S] * 3), max_workers=1, progress=False)
    job.result(30)
    (stats,) = job.stats
    assert stats.n_items == 12
    assert stats.working_s > 0
    assert stats.starting_s < LEFT_S + 1


def test_a_worker_that_dies_while_it_waits_leaves_nothing():
    """Its last items were done, and their memory may be gone, so they do not run again."""
    n = 2 * PAGE_ITEMS  # all pages of done items can be freed

    def source():
        yield from range(n)
        is_taken.wait(30)
        yield from range(n, n + 10)

    is_taken = threading.Event()
    job = map_async(abs, source(), max_workers=1, progress=False)
    seen = []
    for i, _ in job:
        seen.append(i)
        if len(seen) == n:
            wait_until(lambda: not job._run.board.pages)
            os.kill(job.stats[0].pid, SIGKILL)
            is_taken.set()
    assert sorted(seen) == [*range(n + 10)]  # two pages may be read at different times


def test_a_small_call_after_a_pause_is_right():
    """Other calls take the workers that a paused one has given up, and give them back."""
    job = map_async(streams.when_begun, bursts(2, [LEFT_S] * 6), max_workers=2, progress=False)
    call = partial(parallel_map, abs, range(-5, 0), max_workers=2, progress=False)
    while not job.done():
        assert call().tolist() == [5, 4, 3, 2, 1]
    assert len(job.result(10)) == 12
