"""What comes back from a map: tuples, arrays of many shapes, objects; and the workers' figures."""

from __future__ import annotations

import gc
import os

import figures
import numpy as np
import pytest

import nbshare
from nbshare import parallel_map
from nbshare.errors import MixedResultsWarning
from nbshare.memory import segment_of
from nbshare.worker.blas import threads_per_worker
from nbshare.worker.log import MAX_ALONE


@pytest.fixture
def jobs(monkeypatch):
    """Return a list of the jobs of the test, which finished ones are not kept in otherwise."""
    made = []
    first = nbshare.Job.__init__

    def init(self, *args):
        first(self, *args)
        made.append(self)

    monkeypatch.setattr(nbshare.Job, "__init__", init)
    return made


def test_storing_results_loads_no_part_of_numpy(cold):
    """Masked arrays take 15 ms of each worker's start, and 2.5 MB."""
    found = parallel_map(figures.has_loaded, range(5), shared={"name": "numpy.ma"}, max_workers=1)
    assert not found.any()


# ------------------------------------------------------------------------------ tuples


def test_tuples_are_stacked():
    """With out="stack" the k-th parts of the results are one array."""
    numbers, rows = parallel_map(figures.pair, range(20), out="stack")
    assert np.array_equal(numbers, np.arange(20))
    assert np.array_equal(rows, np.repeat(np.arange(20) / 2, 3).reshape(20, 3))


def test_parts_that_fit_no_array_are_a_list():
    """A part that is no number comes as a list of its values."""
    numbers, texts = parallel_map(figures.pair_with_text, range(3), out="stack")
    assert np.array_equal(numbers, np.arange(3))
    assert texts == ["text 0", "text 1", "text 2"]


def test_failed_items_are_masked_in_stacks():
    """With on_error="return" each of the arrays is masked where the item failed."""
    numbers, rows = parallel_map(figures.pair_but_4, range(6), out="stack", on_error="return")
    assert numbers.mask.tolist() == [False] * 4 + [True, False]
    assert numbers.compressed().tolist() == [0, 1, 2, 3, 5]
    assert rows.mask[:, 0].tolist() == numbers.mask.tolist()
    assert rows[5].tolist() == [2.5] * 3


def test_what_cannot_be_stacked_is_a_list_with_a_warning():
    """Work is never lost: results that are no tuples come as a list."""
    with pytest.warns(MixedResultsWarning, match="stack"):
        assert parallel_map(figures.sleep_for, [0, 0], out="stack") == [0, 0]


# --------------------------------------------------------------- arrays of many shapes


@pytest.mark.filterwarnings("ignore::nbshare.errors.MixedResultsWarning")
def test_arrays_of_many_shapes_are_not_copied_here():
    """They lie where the workers have put them, can be written to, and go with their views."""
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    results = parallel_map(figures.triangle, range(2, 10), out="list")
    for n, array in enumerate(results, start=2):
        assert np.array_equal(array, figures.triangle(n))
        assert segment_of(array) is not None
        array += 1
    del results, array
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 8  # workers, if they were not there


def test_large_arrays_inside_objects_are_not_copied_here():
    """Buffers of dicts and of users' classes come back beside the pickle; others within."""
    for n, result in enumerate(parallel_map(figures.table, range(1, 6)), start=1):
        assert result["n"] == n
        assert np.array_equal(result["values"], np.arange(n * 10_000.0))
        assert np.array_equal(result["strided"], np.arange(20_000)[::-2])
        assert segment_of(result["values"]) is not None
    for n, result in enumerate(parallel_map(figures.local, range(1, 4)), start=1):
        assert (result.values == n).all()
        assert segment_of(result.values) is not None


def test_a_shared_array_is_a_result_like_any_other():
    """What a worker makes in shared memory comes back, and can be written to."""
    results = parallel_map(figures.shared, range(1, 4), out="list")
    for n, array in enumerate(results, start=1):
        array[0] += 1
        assert array[0] == n + 1
        assert (array[1:] == n).all()


def test_descriptors_do_not_grow_with_the_number_of_results():
    """Hundreds of large results of many shapes take some dozens of descriptors a worker."""
    parallel_map(figures.triangle, [1, 2], out="list")
    before = len(os.listdir("/proc/self/fd"))
    results = parallel_map(figures.triangle, [300] * 150, out="list", max_workers=1)
    assert len(os.listdir("/proc/self/fd")) - before <= 2 * (MAX_ALONE + 8)
    assert sum(len(array) for array in results) == 300 * 150


# --------------------------------------------------------------------------- the figures


def test_stats_say_what_workers_did(jobs):
    """Items, working time and the slowest items add up."""
    durations = [0.01, 0.2, 0.01, 0.05, 0.01, 0.01]
    parallel_map(figures.sleep_for, durations, max_workers=2)
    stats = jobs[0].stats
    assert len({s.pid for s in stats}) == len(stats) <= 2
    assert sum(s.n_items for s in stats) == len(durations)
    worked = sum(s.working_s for s in stats)
    assert sum(durations) <= worked < sum(durations) + 1
    slowest = max((item for s in stats for item in s.slowest), key=lambda item: item.seconds)
    assert (slowest.index, slowest.item) == (1, "0.2")
    assert slowest.seconds >= 0.2
    for s in stats:
        assert s.slowest[0].seconds >= s.slowest[-1].seconds
        assert s.starting_s >= 0
        assert s.waiting_s >= 0
        assert 1 << 20 < s.peak_bytes < 1 << 34


def test_debug_runs_an_item_here(jobs):
    """`Job.debug` gives the same result, with the same random numbers, in this process."""
    results = parallel_map(figures.noise, range(8), seed=3)
    assert jobs[0].debug(5) == results[5]
    assert jobs[0].debug(-1) == results[7]
    with pytest.raises(IndexError):
        jobs[0].debug(8)


def test_debug_raises_what_the_item_raises():
    """The failed item of the last job can be run under the debugger."""
    with pytest.raises(ValueError, match="4"):
        parallel_map(figures.pair_but_4, range(6))
    with pytest.raises(ValueError, match="4"):
        nbshare.last_job().debug(4)


# ------------------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    ("n_cpus", "n_workers", "environ", "n"),
    [
        (16, 4, {}, 4),
        (2, 2, {}, 1),
        (2, 8, {}, 1),
        (16, 1, {}, 16),
        (16, 4, {"OMP_NUM_THREADS": "2"}, 2),
        (16, 4, {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "3"}, 3),
        (16, 4, {"OMP_NUM_THREADS": "many"}, 4),
    ],
)
def test_workers_share_the_cpus(n_cpus, n_workers, environ, n):
    """Workers times threads are no more than the CPUs, unless the caller's environment says."""
    assert threads_per_worker(n_cpus, n_workers, environ) == n


@pytest.mark.parametrize("wanted", [None, "1", "3"])
def test_libraries_in_workers_keep_to_their_threads(wanted, monkeypatch, cold):
    """Those that are loaded, and those that will be, have what the environment or the CPUs say."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    if wanted is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", wanted)
    n_cpus = len(os.sched_getaffinity(0))
    for n_workers in (n_cpus, 1):
        n = int(wanted or n_cpus // n_workers)
        results = parallel_map(figures.blas_threads, range(4), max_workers=n_workers)
        assert results == [(n, str(n))] * 4
