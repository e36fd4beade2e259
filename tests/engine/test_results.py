"""The results of a run: tuples, arrays of many shapes, objects, and the workers' figures."""

from __future__ import annotations

import functools
import gc
import itertools
import math
import os
import time
import warnings
import weakref
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import Job, map_async, parallel_map
from nbshare._core.engine.outputs import OutputRows
from nbshare._core.engine.request import Request
from nbshare._core.memory import segment_of
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.specs import spec_for
from nbshare._core.wire.board import Board
from nbshare._core.wire.threads import threads_per_worker
from nbshare.errors import MixedResultsWarning, TaskError
from tests.support import figures
from tests.support.faultlab import wait_until
from tests.support.outcomes import backends


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


@pytest.mark.skipif(np.lib.NumpyVersion(np.__version__) < "2.0.0", reason="NumPy 1 loads it itself")
def test_storing_results_loads_no_part_of_numpy(cold):
    """Masked arrays take 15 ms of each worker's start, and 2.5 MB."""
    found = parallel_map(figures.has_loaded, range(5), shared={"name": "numpy.ma"}, max_workers=1)
    assert not found.any()


def test_objects_are_loaded_while_others_are_still_made(tmp_path):
    """So a run of many is over soon after its last item."""
    flag = str(tmp_path / "loaded")
    shared = {"path": flag}
    results = parallel_map(figures.await_load, range(2), shared=shared, max_workers=2, chunksize=1)
    assert [result.path for result in results] == [flag, flag]


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
    """Work is never lost, because results that are not tuples come as a list."""
    with pytest.warns(MixedResultsWarning, match="stack"):
        assert parallel_map(figures.sleep_for, [0, 0], out="stack") == [0, 0]


@pytest.mark.parametrize("n_bad", [0, 1])
def test_what_cannot_be_stacked_is_a_list_with_failures_too(n_bad):
    """With on_error="return" as without, a list and no tuple."""
    values = [1, 2, *[ValueError("no")] * n_bad]
    with pytest.warns(MixedResultsWarning, match="stack"):
        found = finished(values, range(3), out="stack", on_error="return")
    assert type(found) is list
    assert found[:2] == [1, 2]
    assert list(map(type, found[2:])) == [ValueError] * n_bad


# ------------------------------------------------------- in any order, by any worker


KINDS = {
    "bool": True,
    "int": 1,
    "odd int": 2**53 + 1,
    "2**63": 2**63,
    "2**63 + 5": 2**63 + 5,
    "huge int": 2**70,
    "float": 2.5,
    "complex": 1j,
    "None": None,
    "text": "text",
    "int8": np.int8(3),
    "int64": np.int64(4),
    "uint64": np.uint64(2**63 + 5),
    "float16": np.float16(0.1),
    "float32": np.float32(0.1),
    "day": np.datetime64("2020-01-01"),
    "float64s": np.arange(2.0),
    "big-endian": np.array([0.5, 2], ">f8"),
    "float32s": np.array([0.1, 0.2], "f4"),
    "int64s": np.array([1, 2**53 + 1]),
    "uint64s": np.array([1, 2**63 + 5], "u8"),
    "shared": nbshare.share(np.arange(3.0))[:2],
    "tagged": np.arange(2.0).view(figures.Tagged),
    "masked": np.ma.array([1.0, 2.0], mask=[True, False]),
    "three": np.arange(3.0),
    "texts": np.array(["a", "b"]),
    "big-endian texts": np.array(["long", "b"], ">U4"),
    "records": np.array([(1, 0.5)] * 2, [("n", "i2"), ("x", "f8")]),
    "big-endian records": np.array([(1, 0.5)] * 2, [("n", ">i2"), ("x", ">f8")]),
}


def finished(values, order, **options):
    """Return the result of a run whose items are done in this order, each by another worker."""
    turn = nbshare.zeros(1, int)
    shared = {"values": values, "ranks": np.argsort(order).tolist(), "turn": turn}
    options = {"max_workers": len(values), "chunksize": 1} | options
    job = map_async(figures.in_turn, range(len(values)), shared=shared, **options)
    while not job.wait(2e-4):
        turn[0] = job.n_done
    return job.result()


def is_stacked(value):
    if isinstance(value, np.ndarray):
        return type(value) in (np.ndarray, nbshare.SharedArray)
    is_number = isinstance(value, bool | int | float | complex | np.generic)
    return is_number and np.asarray(value).dtype != object


def expected(values):
    """Return what NumPy makes of results, or their list if it makes nothing, or something else."""
    there = [value for value in values if not isinstance(value, Exception)]
    if there and all(map(is_stacked, there)):
        try:
            stacked = np.stack([np.asarray(value) for value in there])
        except (TypeError, ValueError):  # several shapes, or no common dtype
            return values
        pairs = zip(map(np.asarray, there), stacked, strict=True)
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of casts of what does not survive
            if all(v.tolist() == s.astype(v.dtype).tolist() for v, s in pairs):
                return stacked
    return values


def check(found, values, *, is_masked=False):
    """Raise unless this is the result of a run whose items gave these values."""
    wanted, text = expected(values), f"{found!r} of {values!r}"
    if isinstance(wanted, list):
        assert type(found) is list, text
        for value, other in zip(found, wanted, strict=True):
            np.testing.assert_equal(
                repr(value) if isinstance(other, Exception) else value,
                repr(other) if isinstance(other, Exception) else other,
            )
            assert np.asarray(value).shape == np.asarray(other).shape
            assert isinstance(value, figures.Tagged) == isinstance(other, figures.Tagged)
        return
    failed = [isinstance(value, Exception) for value in values]
    assert type(found) is (np.ma.MaskedArray if is_masked else nbshare.SharedArray), text
    rows = found
    if is_masked:
        mask = found.mask.view(bool)  # of each field of records
        assert mask.reshape(len(values), -1).all(1).tolist() == failed
        rows = found.data[~np.array(failed)]
    assert rows.dtype == wanted.dtype, text
    assert rows.tolist() == wanted.tolist()


@pytest.mark.filterwarnings("ignore:results differ")
@pytest.mark.parametrize("share", range(5))
@pytest.mark.parametrize("name", KINDS)
def test_results_are_those_of_numpy_whichever_is_done_first(name, share):
    """With any other kind of result, array or list, dtype and values are the same in each order."""
    names = list(KINDS)
    for other in names[names.index(name) + share :: 5]:
        values = [KINDS[name], KINDS[other]]
        for order in itertools.permutations(range(2)):
            check(finished(values, order), values)


VALUES = st.lists(
    st.sampled_from([*KINDS.values(), ValueError("no")]), min_size=2, max_size=4
).filter(lambda values: not all(isinstance(value, Exception) for value in values))


@pytest.mark.first
@pytest.mark.filterwarnings("ignore:results differ")
@settings(max_examples=30, deadline=None)
@given(VALUES, st.data())
def test_results_are_those_of_numpy_with_failures_too(values, data):
    """In each order, and by however many workers, of a list or a generator. Failures are masked."""
    order = data.draw(st.permutations(range(len(values))))
    options = {"on_error": "return", "shared": {"values": values, "ranks": [0] * 4, "turn": [0]}}
    check(finished(values, order, on_error="return"), values, is_masked=True)
    for n_workers, backend in [(1, None), (2, None), (1, "serial"), (2, "threads")]:
        for items in (range(len(values)), iter(range(len(values)))):
            more = {"max_workers": n_workers, "backend": backend, "progress": False}
            check(parallel_map(figures.in_turn, items, **options, **more), values, is_masked=True)


@pytest.mark.parametrize("values", [[1, None], [None, 1], [1.5, 2**70], [2**70, 1.5], ["a", 1]])
def test_a_warning_of_mixed_results_depends_on_their_order_in_the_list_only(values):
    """In any order of completion there is one if the first of the list is a number or an array."""
    found = []
    for order in itertools.permutations(range(2)):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            finished(values, order)
        found.append([str(warning.message) for warning in caught])
    assert found[0] == found[1]
    assert len(found[0]) == is_stacked(values[0])


# --------------------------------------------------------------- arrays of many shapes


@pytest.mark.filterwarnings("ignore::nbshare.errors.MixedResultsWarning")
def test_arrays_of_many_shapes_are_not_copied_here():
    """They stay where the workers wrote them, can be written to, and are freed with their views."""
    parallel_map(figures.triangle, [1, 2], out="list")
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
    """Buffers of dicts and of users' classes come back next to the pickle, and others within."""
    for n, result in enumerate(parallel_map(figures.table, range(1, 6)), start=1):
        assert result["n"] == n
        assert np.array_equal(result["values"], np.arange(n * 10_000.0))
        assert np.array_equal(result["strided"], np.arange(20_000)[::-2])
        assert segment_of(result["values"]) is not None
    for n, result in enumerate(parallel_map(figures.local, range(1, 4)), start=1):
        assert (result.values == n).all()
        assert segment_of(result.values) is not None


def test_a_shared_array_is_a_result_like_any_other():
    """An array that a worker makes in shared memory comes back, and can be written to."""
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
    assert len(os.listdir("/proc/self/fd")) - before <= 16
    assert sum(len(array) for array in results) == 300 * 150


def test_a_worker_needs_no_garbage_collection_to_release_its_inputs():
    """With many modules each would take as long as many a call."""
    data = np.zeros(100_000)
    for items in ([("item",)] * 10, list(range(MANY)), range(10)):
        run = functools.partial(parallel_map, figures.n_collections, items, max_workers=1)
        assert run(shared={"data": data}).max() == run(shared={"data": data}).max()


# ------------------------------------------------------------ objects from tiny items

MANY = 20_000


def test_small_objects_of_tiny_items_are_all_there():
    """They are pickled and read many at a time, from each worker. `tests/benchmarks` times it."""
    results = parallel_map(figures.record, range(MANY), max_workers=2)
    assert results == [figures.record(i) for i in range(MANY)]


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_one_object_of_all_tiny_items_comes_as_it_was_after_each(backend):
    """Also inside it. Each result is what the item returned, and an object of its own."""
    records = parallel_map(figures.kept_record, range(MANY), max_workers=1, backend=backend)
    assert [record["i"] for record in records] == list(range(MANY))
    assert [record["last"][1] for record in records] == list(range(MANY))
    assert len({id(record["last"]) for record in records}) == MANY


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_a_result_that_a_later_tiny_item_changes_comes_as_it_was_returned(backend):
    """Also if nothing but the result refers to it after the change."""
    records = parallel_map(figures.replaced_record, range(MANY), max_workers=1, backend=backend)
    assert [record["i"] for record in records] == list(range(MANY))


@pytest.mark.parametrize(
    ("bad", "is_key"), [(7, False), (12_345, False), (12_345, True), (MANY - 1, False)]
)
def test_of_tiny_items_the_result_that_cannot_be_unpickled_fails_alone(bad, is_key):
    """Its item is named, and those that were sent together with it are there."""
    options = {"shared": {"bad": bad, "is_key": is_key}, "max_workers": 2}
    with pytest.raises(TaskError, match=f"result of item {bad} cannot be unpickled") as caught:
        parallel_map(figures.record_or_unloadable, range(MANY), **options)
    assert caught.value.index == bad
    results = parallel_map(figures.record_or_unloadable, range(MANY), on_error="return", **options)
    assert isinstance(results[bad], TaskError)
    assert results[bad].index == bad
    del results[bad]
    assert results == [figures.record(i) for i in range(MANY) if i != bad]


@pytest.mark.parametrize("look", [list, Job.partial, Job.result])
def test_a_result_that_cannot_be_unpickled_fails_each_time(look):
    """Nobody gets the error in place of the result, whatever has met it before."""
    job = map_async(figures.record_or_unloadable, range(3), shared={"bad": 1})
    assert job.wait()
    with suppress(TaskError):
        look(job)
    for again in (list, Job.result, Job.result):
        with pytest.raises(TaskError, match="result of item 1 cannot be unpickled"):
            again(job)
    for _ in range(2):
        assert job.partial() == [figures.record(0), nbshare.MISSING, figures.record(2)]


@pytest.mark.parametrize("backend", [None, "threads"])
@pytest.mark.parametrize("kind", ["rows", "tiles"])
def test_partial_results_cannot_be_changed_while_workers_fill_them(tmp_path, kind, backend):
    """In place, it would change the results. When the run is over they are the caller's."""
    rows = np.arange(12.0).reshape(4, 3)
    items = rows if kind == "rows" else nbshare.tiles(rows, shape=(1, 3), overlap=0)
    shared = {"folder": tmp_path, "at": 2}
    job = map_async(row_when_asked, items, shared=shared, max_workers=1, backend=backend)
    wait_until(lambda: job.n_done == 2)
    partial = job.partial()
    with pytest.raises(ValueError, match="read-only"):
        partial *= 2
    assert (partial + 1).count() == 6
    (tmp_path / "go").touch()
    assert np.array_equal(job.result(60), rows)
    again = job.partial()
    again *= 2
    assert np.array_equal(again, 2 * rows)


def row_when_asked(row, folder, at):
    """Return a row, from the one that begins with 3 * `at` on only when the file is there."""
    while row.min() >= 3 * at and not (folder / "go").exists():
        time.sleep(0.001)
    return row


def test_results_that_were_looked_at_and_changed_are_as_new_in_the_end():
    """The results of a loop over the job, or of `partial`, are copies of their own."""
    job = map_async(figures.record, range(MANY), max_workers=2)
    for i, record in job:
        assert record.pop("i") == i
    for record in job.partial():
        record.clear()
    assert job.result() == [figures.record(i) for i in range(MANY)]


def test_tiny_items_of_mixed_results_are_an_array_or_list_as_others():
    """Numbers among them, stored as objects are, keep value and class. None is lost."""
    with pytest.warns(MixedResultsWarning):
        found = parallel_map(figures.number_or_none, range(1, MANY), max_workers=2)
    assert found == [figures.number_or_none(i) for i in range(1, MANY)]
    numbers, halves = parallel_map(figures.pair_of_numbers, range(MANY), out="stack")
    np.testing.assert_array_equal(numbers, np.arange(MANY))
    np.testing.assert_array_equal(halves, np.arange(MANY) / 2)
    assert numbers.dtype == np.int64


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
    slowest = max((item for s in stats for item in s.slowest), key=lambda item: item.elapsed_s)
    assert (slowest.index, slowest.item) == (1, "0.2")
    assert slowest.elapsed_s >= 0.2
    for s in stats:
        assert s.slowest[0].elapsed_s >= s.slowest[-1].elapsed_s
        assert s.starting_s >= 0
        assert s.waiting_s >= 0
        assert 1 << 20 < s.peak_bytes < 1 << 34


@pytest.mark.parametrize("backend", ["threads", None])
def test_items_are_counted_by_how_long_they_take(backend):
    job = map_async(time.sleep, [0.001] * 50 + [0.5], max_workers=2, backend=backend)
    job.wait()
    assert sum(job._run.durations()) == 51
    assert sum(job._run.durations()[: (5 * 10**8).bit_length() - 1]) == 50  # less than 0.27 s


def test_short_items_that_run_together_are_counted_by_their_mean():
    job = map_async(math.sqrt, range(20_000), max_workers=2)
    job.wait()
    assert sum(job._run.durations()) == 20_000
    assert sum(job._run.durations()[: (10**6).bit_length()]) > 15_000


def test_stats_count_what_was_done_before_a_failure():
    """The item that failed is none of the slowest."""
    with pytest.raises(ValueError, match="4"):
        parallel_map(figures.pair_but_4, [0, 1, 2, 3, 4, 5, 6], max_workers=1)
    (stats,) = nbshare.last_job().stats
    assert stats.n_items == nbshare.last_job().n_done == 4
    assert {item.index for item in stats.slowest} <= {0, 1, 2, 3}


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


def test_a_failed_run_keeps_its_items():
    """Later changes of the list by the caller change nothing."""
    items = [*range(6)]
    with pytest.raises(ValueError, match="4"):
        parallel_map(figures.pair_but_4, items)
    items.clear()
    assert nbshare.last_job().debug(3)[0] == 3


# ------------------------------------------------------------------------------ threads


@pytest.mark.parametrize(
    ("n_cpus", "n_workers", "environ", "n"),
    [
        (16, 4, {}, 4),
        (2, 8, {}, 1),
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


def test_room_for_results_does_not_shrink():
    """A worker of a stage may ask for fewer places after another one has asked for more."""
    request = Request(**dict.fromkeys(Request._fields) | {"iterables": ()})
    rows = OutputRows(Board.create(None, 2), request)
    rows.reserve(3)
    rows.reserve(1)
    rows.decide(spec_for(np.zeros(1 << 16)))
    assert rows.array.shape == (3, 1 << 16)


def test_a_result_is_whole_once_it_is_there():
    """Also a large one, which takes the worker some time to store."""
    n = 4_000_000
    job = map_async(np.full, [n], [7.0], max_workers=1)
    while not job.present[0]:
        pass
    assert job.partial().data[0, -1] == 7


class Large:
    """Something of the caller's."""


@backends
@pytest.mark.parametrize("items", [nbshare.grid(a=range(3)), range(3)], ids=["grid", "list"])
def test_kept_errors_keep_nothing_of_the_caller(backend, items):
    """Results with errors in their places hold no frame that holds them, nor its variables."""

    def call():
        large = Large()
        results = parallel_map(figures.fail_one, items, on_error="return", backend=backend)
        (error,) = (x for x in results if isinstance(x, BaseException))
        assert "in fail_one" in "\n".join(error.__notes__)
        return weakref.ref(large)

    is_left = call()
    parallel_map(abs, [1], backend=backend)  # the last job
    gc.collect()
    assert is_left() is None


@given(looks=st.lists(st.lists(st.booleans(), max_size=9), max_size=9), n=st.integers(0, 9))
@settings(max_examples=50, deadline=None)
def test_a_cursor_gives_each_result_once(looks, n):
    """As soon as a look shows it, however many results there are by then."""
    cursor, found = Cursor(n), []
    for present in looks:
        new = cursor.new(np.array(present, bool))
        assert len(new) == len(present)
        cursor.take(np.flatnonzero(new))
        found += np.flatnonzero(new).tolist()
        assert set(found) >= set(np.flatnonzero(present))
    assert sorted(found) == sorted(
        {i for present in looks for i, is_there in enumerate(present) if is_there}
    )
    assert sorted(found) == np.flatnonzero(cursor.taken).tolist()
