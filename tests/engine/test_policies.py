"""The actions of a run on failures and slow items."""

from __future__ import annotations

import functools
import operator
import re
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import last_job, map_async, parallel_map
from nbshare.errors import (
    NbshareError,
    TaskError,
    TaskTimeoutError,
    WorkerDiedError,
)
from tests.support import policies
from tests.support.grids import combined
from tests.support.outcomes import MANY, SOON_S, backends, no_interrupt, runs, said, worker_pids


class Bar:
    """A tqdm of the user's own, as far as it is used."""

    last = None

    def __init__(self, total, desc=None):
        self.total, self.n, self.is_closed = total, 0, False
        Bar.last = self

    def update(self, n):
        """Count."""
        self.n += n

    def close(self):
        """Note that it is over."""
        self.is_closed = True


# ------------------------------------------------------------------ on_error="return"


@backends
def test_three_of_a_hundred_fail(backend):
    """97 results are there and 3 masked, with their errors by index, and the bar ends at 100."""
    bad = {0, 50, 99}
    result = parallel_map(
        policies.fail_some,
        range(100),
        shared={"bad": bad},
        on_error="return",
        progress=Bar,
        backend=backend,
    )
    assert isinstance(result, np.ma.MaskedArray)
    assert set(np.flatnonzero(result.mask)) == bad
    assert result.compressed().tolist() == [i for i in range(100) if i not in bad]
    errors = last_job().errors
    assert set(errors) == bad
    for i, error in errors.items():
        assert type(error) is ValueError
        assert str(error) == f"no way on at {i}"
        assert f"item {i}" in said(error)
    assert (Bar.last.total, Bar.last.n, Bar.last.is_closed) == (100, 100, True)


def test_an_error_that_is_returned_names_its_worker():
    """The notes of an error in its place name the item, the worker and the line."""
    parallel_map(policies.fail_some, range(5), shared={"bad": {3}}, on_error="return")
    (error,) = last_job().errors.values()
    assert "item 3 in worker " in said(error)
    assert "in befall" in said(error)


@backends
def test_without_failures_the_result_is_masked_all_the_same(backend):
    """A masked array comes back whether or not anything failed, and then no job is kept."""
    result = parallel_map(
        policies.fail_some, range(20), shared={"bad": ()}, on_error="return", backend=backend
    )
    assert isinstance(result, np.ma.MaskedArray)
    assert result.mask.shape == (20,)
    assert not result.mask.any()
    assert result.tolist() == list(range(20))
    assert last_job() is None


@pytest.mark.parametrize("kind", ["int, then float", "float, then int", "int, then complex"])
def test_promoted_results_are_masked_as_any_others(kind):
    """Results of which the dtype changed in the middle come as a masked array as well."""
    items = range(4_490, 4_510)
    result = parallel_map(policies.give, items, shared={"kind": kind}, on_error="return")
    assert isinstance(result, np.ma.MaskedArray)
    np.testing.assert_array_equal(result, [policies.give(i, kind) for i in items])


@pytest.mark.parametrize("bad", [(), (0,), (2, 5)], ids=["none", "first", "two"])
def test_stacked_tuples_are_masked(bad):
    """With ``out="stack"`` each array of the tuple is masked, whether or not anything failed."""
    firsts, seconds = parallel_map(
        policies.pair_some, range(6), shared={"bad": bad}, on_error="return", out="stack"
    )
    assert isinstance(firsts, np.ma.MaskedArray)
    assert isinstance(seconds, np.ma.MaskedArray)
    good = [i for i in range(6) if i not in bad]
    assert tuple(np.flatnonzero(firsts.mask)) == bad
    assert firsts.compressed().tolist() == good
    assert seconds[good].tolist() == [[i, i] for i in good]
    assert tuple(np.flatnonzero(seconds.mask.all(axis=1))) == bad


def test_rows_are_masked_whole():
    """Results that are arrays are masked row by row."""
    table = np.arange(12.0).reshape(4, 3)
    result = parallel_map(policies.fail_row, table, shared={"bad": 3.0}, on_error="return")
    assert result.mask.tolist() == [[False] * 3, [True] * 3, [False] * 3, [False] * 3]
    np.testing.assert_array_equal(result[[0, 2, 3]], table[[0, 2, 3]])


def test_the_mask_of_a_result_can_be_changed():
    """The result is the caller's, so values and mask can be assigned."""
    result = parallel_map(policies.fail_some, range(4), shared={"bad": {1}}, on_error="return")
    result[1] = 10.0
    result[2] = np.ma.masked
    assert result.tolist() == [0.0, 10.0, None, 3.0]


@pytest.mark.parametrize(
    ("backend", "on_error"),
    [(None, "raise"), (None, "return"), ("serial", "raise"), ("threads", "return")],
)
def test_an_exception_that_takes_no_notes_is_a_failure_like_others(backend, on_error):
    """A frozen dataclass, say, is raised, or its text with item and worker, and no other."""
    run = functools.partial(
        parallel_map, policies.refuse_notes_at, range(8), shared={"bad": 3}, backend=backend
    )
    if on_error == "return":
        assert run(on_error="return").mask.tolist() == [i == 3 for i in range(8)]
        error = last_job().errors[3]
    else:
        with pytest.raises((policies.Frozen, TaskError)) as caught:
            run()
        error = caught.value
        assert last_job().partial()[0] == 0
    assert isinstance(error, policies.Frozen) or ("Frozen" in str(error) and "item 3" in str(error))


@pytest.mark.parametrize(
    ("backend", "on_error"),
    [(None, "raise"), (None, "return"), ("serial", "raise"), ("threads", "return")],
)
def test_an_exception_whose_attributes_all_raise_is_a_failure_like_others(backend, on_error):
    """It is the failure of its item, raised as itself or named by its class."""
    task = partial(policies.refuse_all_at, bad=3)
    run = partial(parallel_map, task, range(8), backend=backend, progress=False)
    if on_error == "return":
        assert run(on_error="return").mask.tolist() == [i == 3 for i in range(8)]
        error = last_job().errors[3]
    else:
        with pytest.raises((policies.Untouchable, TaskError)) as caught:
            run()
        error = caught.value
    if backend is None:
        assert "Untouchable" in str(error)
        assert "item 3" in str(error)
    else:
        assert type(error) is policies.Untouchable


def test_a_child_that_an_item_forks_is_no_second_worker():
    """It may end with sys.exit or an exception, which is its own end, and no item fails."""
    statuses = parallel_map(policies.fork_and_end, ["exit 3", "exit", "raise"], max_workers=2)
    assert statuses.tolist() == [3, 0, 1]


@pytest.mark.parametrize(
    ("backend", "out"), [(None, None), ("serial", None), ("threads", None), (None, "list")]
)
def test_a_list_holds_the_exceptions_in_their_places(backend, out):
    """Of results that are no numbers, a list comes, with each error where its result would be."""
    result = parallel_map(
        policies.say_some,
        range(10),
        shared={"bad": {0, 7}},
        on_error="return",
        out=out,
        backend=backend,
    )
    assert type(result) is list
    errors = last_job().errors
    assert set(errors) == {0, 7}
    assert all(result[i] is error for i, error in errors.items())
    assert [x for x in result if isinstance(x, str)] == [
        f"item {i}" for i in range(10) if i not in (0, 7)
    ]


@backends
@pytest.mark.parametrize("make", [np.full, nbshare.full], ids=["plain", "shared"])
def test_a_given_array_comes_back_masked(backend, make):
    """With ``out=`` a masked array over it is returned, whether or not anything failed."""
    for bad in ((), (0, 3)):
        out = make((6,), -1.0, np.float32)
        result = parallel_map(
            policies.fail_some,
            range(6),
            shared={"bad": bad},
            on_error="return",
            out=out,
            backend=backend,
        )
        assert isinstance(result, np.ma.MaskedArray)
        assert np.shares_memory(result, out)
        assert tuple(np.flatnonzero(result.mask)) == bad
        good = [i for i in range(6) if i not in bad]
        assert out[good].tolist() == good


@backends
def test_a_result_that_does_not_fit_is_one_failure(backend):
    """A result that the given array cannot take fails its item alone."""
    out = np.zeros(6)
    result = parallel_map(
        policies.give_complex_at,
        range(6),
        shared={"bad": {3}},
        on_error="return",
        out=out,
        backend=backend,
    )
    assert result.tolist() == [0.0, 1.0, 2.0, None, 4.0, 5.0]
    assert "cannot hold" in str(last_job().errors[3])


def test_an_error_that_is_raised_is_kept_too():
    """The failure that a run ended with is among the errors of the last job."""
    with pytest.raises(ValueError, match="no way on at 3") as caught:
        parallel_map(policies.fail_some, range(6), shared={"bad": {3}})
    assert last_job().errors[3] is caught.value


@backends
def test_all_items_fail(backend):
    """If nothing has a result, a masked array comes back as if some had. The job has the errors."""
    result = parallel_map(
        policies.fail_some, range(9), shared={"bad": range(9)}, on_error="return", backend=backend
    )
    assert type(result) is np.ma.MaskedArray
    assert result.shape == (9,)
    assert result.mask.all()
    assert {i: str(e) for i, e in last_job().errors.items()} == {
        i: f"no way on at {i}" for i in range(9)
    }


def test_many_failures_are_no_hang():
    """Thousands of failing items cost no more than their errors."""
    start = time.monotonic()
    bad = range(0, 4_000, 2)
    result = parallel_map(policies.fail_some, range(4_000), shared={"bad": bad}, on_error="return")
    assert time.monotonic() - start < 20  # a quadratic cost takes minutes
    assert result.mask.tolist() == [i in bad for i in range(4_000)]


@pytest.mark.parametrize(("backend", "first"), [(None, 0), (None, 1), ("threads", 0)])
def test_a_result_that_cannot_be_sent_is_one_failure(backend, first):
    """A result that does not pickle fails its item alone."""
    bad = {first, 5}
    result = parallel_map(
        policies.give_lock_at,
        range(8),
        shared={"bad": bad},
        on_error="return",
        chunksize=1,
        max_workers=1,
        backend=backend,
    )
    errors = last_job().errors
    assert set(errors) == bad
    assert all(isinstance(error, TypeError | NbshareError) for error in errors.values())
    for i in set(range(8)) - bad:
        assert result[i] == i


def test_an_item_that_cannot_be_loaded_is_one_failure():
    """A large item that does not unpickle in the worker fails alone, not those before it."""
    items = [np.full(8000, i) if i != 5 else policies.Unloadable() for i in range(10)]
    result = parallel_map(policies.first_of, items, on_error="return", chunksize=10)
    assert result.mask.nonzero()[0].tolist() == [5]
    assert result.compressed().tolist() == [i for i in range(10) if i != 5]
    assert "not to be had again" in said(last_job().errors[5])


def test_an_item_ends_its_worker_while_it_is_loaded():
    """That is an error soon, and not workers for ever. The next call works."""
    start = time.monotonic()
    with pytest.raises(WorkerDiedError):
        parallel_map(id, [1, 2, policies.Deadly(), 4], max_workers=2)
    assert time.monotonic() - start < SOON_S
    assert parallel_map(abs, [-1, -2], max_workers=2).tolist() == [1, 2]


@pytest.mark.parametrize("chunksize", [None, 10])
def test_an_item_that_ends_its_worker_while_it_is_loaded_is_one_failure(chunksize):
    """Those that are loaded together with it run again, and it is named."""
    items = [np.full(8000, i) if i != 5 else policies.Deadly() for i in range(10)]
    options = {"on_error": "return", "chunksize": chunksize, "max_workers": 2}
    result = parallel_map(policies.first_of, items, **options)
    assert result.mask.nonzero()[0].tolist() == [5]
    assert result.compressed().tolist() == [i for i in range(10) if i != 5]
    assert "item 5" in str(last_job().errors[5])


@pytest.mark.parametrize("n", [100, 20_000])
def test_of_many_items_one_that_cannot_be_loaded_fails_those_pickled_with_it(n):
    """Small items travel many in one pickle. Its items fail by name, and no others."""
    bad = {n // 2, n - 1}
    common = policies.Stubborn(), ["shared"]
    items = [(common[0], i) if i in bad else (common[1], i) for i in range(n)]
    result = parallel_map(operator.itemgetter(1), items, on_error="return", progress=False)
    errors, failed = last_job().errors, set()
    for i in bad:
        assert "not to be had again" in said(errors[i])
        found = re.search(r"Item (\d+) and up to (\d+) items after it", said(errors[i]))
        first, n_more = map(int, found.groups())
        failed |= {*range(first, min(first + n_more + 1, n))}
    assert set(result.mask.nonzero()[0].tolist()) == set(errors) == failed
    assert len(failed) <= n / 10
    assert result.compressed().tolist() == [i for i in range(n) if i not in failed]


def test_a_result_that_cannot_be_loaded_is_one_failure():
    """A result that pickles in the worker and does not unpickle here fails its item alone."""
    result = parallel_map(
        policies.give_stubborn_at, range(8), shared={"bad": {5}}, on_error="return"
    )
    assert result.mask.nonzero()[0].tolist() == [5]
    assert set(last_job().errors) == {5}
    assert isinstance(last_job().errors[5], TaskError)
    assert "item 5" in said(last_job().errors[5])
    assert result.compressed().tolist() == [0, 1, 2, 3, 4, 6, 7]


@backends
def test_a_result_is_gone_when_the_next_item_begins(backend):
    """Its memory is there for the next one, because two large ones at a time may be too many."""
    lives = parallel_map(
        policies.tell_whether_the_last_result_lives, range(50), max_workers=1, backend=backend
    )
    assert lives.shape == (50, 1000)
    assert not lives.any()


def test_an_item_that_ends_its_worker_is_one_failure():
    """A worker killed in an item fails that item alone. The rest is there."""
    result = parallel_map(
        policies.fail_some,
        range(20),
        shared={"bad": {3, 11}, "way": "die", "seconds": 0.001},
        on_error="return",
        chunksize=5,
        max_workers=2,
    )
    errors = last_job().errors
    assert set(errors) == set(np.flatnonzero(result.mask)) == {3, 11}
    for i, error in errors.items():
        assert isinstance(error, WorkerDiedError)
        assert error.index == i
        assert f"item {i}" in str(error)
        assert "SIGKILL" in str(error)
    assert result.compressed().tolist() == [i for i in range(20) if i not in (3, 11)]


@pytest.mark.parametrize(("way", "timeout"), [("die", None), ("sleep", 0.3)])
def test_of_tiny_items_the_one_that_takes_the_worker_fails(way, timeout):
    """A worker lost in one of thousands of tiny items costs that item, though no retries are."""
    n, bad = 50_000, 20_000
    result = parallel_map(
        policies.fail_some,
        range(n),
        shared={"bad": {bad}, "way": way},
        on_error="return",
        timeout=timeout,
    )
    assert np.flatnonzero(result.mask).tolist() == [bad]
    ((i, error),) = last_job().errors.items()
    assert i == error.index == bad
    assert f"item {bad}" in str(error)
    np.testing.assert_array_equal(result.compressed(), np.delete(np.arange(n), bad))


@pytest.mark.parametrize(("way", "timeout"), [("die", None), ("sleep", 0.3)])
def test_the_tiny_item_that_takes_the_worker_is_named(way, timeout):
    """The error of a run that ends with it is about that item of thousands, no other."""
    shared = {"bad": {20_000}, "way": way}
    with pytest.raises((WorkerDiedError, TaskTimeoutError), match="item 20000") as caught:
        parallel_map(policies.fail_some, range(50_000), shared=shared, timeout=timeout)
    assert caught.value.index == 20_000


@pytest.mark.parametrize(
    ("kind", "remedy", "reduce"),
    [
        ("lock", "arrays", None),
        ("generator", r"list\(", None),
        ("coroutine", "asyncio.run", None),
        ("lock", "arrays", max),
    ],
)
def test_a_result_that_cannot_be_sent_is_named_with_the_remedy(kind, remedy, reduce):
    """The error is that of the item, and says what to return instead."""
    with pytest.raises(TypeError) as caught:
        parallel_map(policies.give_unsendable, [kind], reduce=reduce)
    notes = "\n".join(caught.value.__notes__)
    assert re.search(f"(?s)result, a {kind}, cannot be sent: .*{remedy}.*item 0", notes), notes


@pytest.mark.parametrize("backend", [None, "threads"])
def test_an_interrupt_that_the_function_raises_is_a_failure_of_the_item(backend):
    """It is that item's TaskError."""
    task, shared = policies.raise_interrupt_at, {"bad": 3}
    with no_interrupt():
        result = parallel_map(task, range(6), shared=shared, on_error="return", backend=backend)
    assert result.mask.tolist() == [i == 3 for i in range(6)]
    error = last_job().errors[3]
    assert isinstance(error, TaskError)
    assert error.index == 3


def test_what_was_done_before_is_kept_if_tiny_items_become_slow():
    """Of items that were taken for tiny ones and are not, few are lost with their worker."""
    task = functools.partial(policies.slow_down_and_die, slow=range(4_500, 4_600), seconds=0.005)
    result = parallel_map(task, range(MANY), on_error="return", max_workers=1)
    assert result.mask[4_600]
    assert not result.mask[4_500:4_590].any()


def test_the_next_map_after_returned_errors_is_right():
    """Failures leave nothing behind for the next call."""
    for _ in range(3):
        parallel_map(
            policies.fail_some, range(9), shared={"bad": {3}, "way": "die"}, on_error="return"
        )
        assert parallel_map(policies.identity, range(50)).tolist() == list(range(50))
        assert last_job() is None


# ---------------------------------------------------------------------------- retries


@backends
def test_of_a_list_a_failing_item_alone_is_tried_again(backend, tally):
    """An item that fails twice is run three times with ``retries=2``, each other one once."""
    n, out = MANY, "list"
    bad = {0, n // 2, n // 2 + 1, n - 1}
    shared = {"tally": tally, "bad": bad, "ways": ["raise", "raise"]}
    result = parallel_map(
        policies.attempt, range(n), shared=shared, retries=2, out=out, backend=backend
    )
    assert list(result) == list(range(n))
    assert runs(tally, n) == [3 if i in bad else 1 for i in range(n)]


@pytest.mark.parametrize(
    "ways",
    [["die", "die"], ["raise", "die"], ["die", "raise"], ["sleep", "raise"], ["freeze", "die"]],
    ids=" ".join,
)
def test_whatever_happens_counts_as_an_attempt(ways, tally):
    """Exceptions, dead workers and time-outs are tried again alike, and told."""
    shared = {"tally": tally, "bad": {3}, "ways": ways}
    timeout = 0.3 if {"sleep", "freeze"} & set(ways) else None
    job = map_async(
        policies.attempt, range(8), shared=shared, retries=2, timeout=timeout, chunksize=1
    )
    assert job.result().tolist() == list(range(8))
    assert job._run.retried().tolist() == [3]
    assert sum(worker.n_retried for worker in job.stats) == 2
    assert runs(tally, 8) == [3 if i == 3 else 1 for i in range(8)]


def test_retries_of_a_long_generator_are_told_to_its_end():
    """Though its items, and what is known of each, are freed on the way."""
    n, bad = 50_000, {3, 20_000, 49_999}
    options = {"shared": {"bad": bad}, "retries": 1, "max_workers": 1}
    job = map_async(policies.fail_first, (i for i in range(n)), **options)
    assert sum(1 for _ in job) == n
    assert job._run.retried().tolist() == sorted(bad)


def test_what_fails_at_once_is_not_told_as_run_again():
    job = map_async(
        policies.fail_some, range(9), shared={"bad": {3}}, on_error="return", progress=False
    )
    job.wait()
    assert (job._run.retried().tolist(), sum(worker.n_retried for worker in job.stats)) == ([], 0)


@pytest.mark.parametrize("on_error", ["raise", "return"])
@pytest.mark.parametrize(
    ("ways", "kind"),
    [
        (["raise"] * 9, ValueError),
        (["die"] * 9, WorkerDiedError),
        (["raise", "die"] * 9, ValueError),
        (["die", "raise"] * 9, WorkerDiedError),
    ],
    ids=["raise", "die", "raise, die", "die, raise"],
)
def test_after_the_last_attempt_the_item_has_failed(ways, kind, on_error, tally):
    """With ``retries=2`` an item is run three times, whatever happens, and its last error comes."""
    shared = {"tally": tally, "bad": {3}, "ways": ways}
    options = {"retries": 2, "chunksize": 1, "on_error": on_error}
    if on_error == "raise":
        with pytest.raises(kind) as caught:
            parallel_map(policies.attempt, range(8), shared=shared, **options)
        assert "item 3" in said(caught.value)
    else:
        result = parallel_map(policies.attempt, range(8), shared=shared, **options)
        assert result.mask.tolist() == [i == 3 for i in range(8)]
        assert type(last_job().errors[3]) is kind
    assert runs(tally, 8)[3] == 3


@pytest.mark.parametrize("backend", [None, "threads"])
@pytest.mark.parametrize("ways", [["leave"], ["raise", "leave"]], ids=" ".join)
def test_leaving_is_not_tried_again(backend, ways, tally):
    """SystemExit is final, whatever attempts are left."""
    shared = {"tally": tally, "bad": {3}, "ways": ways}
    with pytest.raises(TaskError, match="SystemExit"):
        parallel_map(policies.attempt, range(6), shared=shared, retries=5, backend=backend)
    assert runs(tally, 6)[3] == len(ways)


def test_many_items_end_their_worker_once(tally):
    """Each item of a long chunk may cost a worker, if it may be tried again."""
    n = 12
    shared = {"tally": tally, "bad": range(n), "ways": ["die"]}
    result = parallel_map(
        policies.attempt, range(n), shared=shared, retries=1, chunksize=n, max_workers=1
    )
    assert result.tolist() == list(range(n))
    assert runs(tally, n) == [2] * n


def test_two_deaths_among_tiny_items_count_for_their_own_item_each(tally):
    """Of tiny items that ran together, one item's death is not counted as its neighbour's."""
    shared = {"tally": tally, "bad": {4_500, 4_503}, "ways": ["die"]}
    result = parallel_map(policies.attempt, range(MANY), shared=shared, retries=1, max_workers=1)
    assert result.tolist() == list(range(MANY))


@pytest.mark.parametrize("size", [None, 1000], ids=["numbers", "arrays"])
@pytest.mark.parametrize("chunksize", [None, 20])
def test_a_result_of_a_second_attempt_is_kept_though_others_fail(tally, cold, size, chunksize):
    """A row torn by a worker's death counts as missing only until it has been done again."""
    task = functools.partial(policies.survive_or_fail, tally=tally, dying={5}, failing={12, 19})
    result = parallel_map(
        functools.partial(task, size=size),
        range(20),
        retries=1,
        on_error="return",
        chunksize=chunksize,
        max_workers=2,
    )
    assert runs(tally, 20)[5] == 2
    assert set(last_job().errors) == {12, 19}
    first = result if size is None else result[:, -1]
    assert first.compressed().tolist() == [i + 1 for i in range(20) if i not in (12, 19)]
    assert last_job().present.tolist() == [i not in (12, 19) for i in range(20)]


def test_a_result_that_does_not_fit_is_tried_again(tally):
    """A result that the given array cannot take is a failure like any other."""
    shared = {"tally": tally, "bad": (), "ways": ()}
    with pytest.raises(TypeError, match="dtype float64, which out= of dtype int64 cannot hold"):
        parallel_map(
            policies.attempt,
            range(1),
            shared=shared,
            retries=2,
            out=np.zeros(1, int),
        )
    assert runs(tally, 1) == [3]


# ---------------------------------------------------------------------------- timeout


@pytest.mark.parametrize(("way", "on_error"), combined(["sleep", "freeze"], ["raise", "return"]))
def test_an_item_that_takes_too_long(way, on_error, tmp_path, cold):
    """Past the time-out the item's worker alone is ended, the item named, the others kept."""
    task = functools.partial(policies.tell_and, way)
    before = _pids_once_ready(tmp_path)
    options = {"timeout": 0.5, "max_workers": 2, "chunksize": 1, "on_error": on_error}
    shared = {"folder": str(tmp_path)}
    start = time.monotonic()
    if on_error == "raise":
        with pytest.raises(TaskTimeoutError) as caught:
            parallel_map(task, range(8), shared=shared, **options)
        error = caught.value
        result = last_job().partial()
    else:
        result = parallel_map(task, range(8), shared=shared, **options)
        error = last_job().errors[3]
    took_s = time.monotonic() - start
    assert 0.5 <= took_s < 0.5 + SOON_S
    assert isinstance(error, TimeoutError)
    assert error.index == 3
    assert "item 3" in str(error)
    assert "timeout=0.5" in str(error)
    assert set(np.flatnonzero(result.mask)) == {3}
    late = int((tmp_path / "pid").read_text())
    assert before - worker_pids() == {late}


def _pids_once_ready(folder):
    """Start two workers and return them."""
    met = folder / "met"
    met.mkdir()
    parallel_map(
        policies.read_together,
        range(2),
        shared={"folder": str(met), "n": 2},
        chunksize=1,
        max_workers=2,
    )
    return worker_pids()


@pytest.mark.parametrize(("n", "seconds"), [(MANY, 0.0), (80, 0.02)], ids=["tiny", "short"])
def test_a_time_out_does_not_disturb_quick_items(n, seconds, tmp_path, cold):
    """The limit is for an item, not for a chunk or a call, so no worker is replaced."""
    before = _pids_once_ready(tmp_path)
    shared = {"slow": range(n) if seconds else (), "seconds": seconds}
    result = parallel_map(
        policies.slow_down, range(n), shared=shared, timeout=0.4, chunksize=n // 2, max_workers=2
    )
    assert result.tolist() == list(range(n))
    assert worker_pids() == before


def test_a_time_out_is_for_one_item_also_if_items_become_slower():
    """Items that were taken for tiny ones and are not have the whole time each."""
    slow = range(9_000, 9_250)
    result = parallel_map(
        policies.slow_down,
        range(100_000),
        shared={"slow": slow, "seconds": 0.005},
        timeout=0.5,
        max_workers=1,
    )
    assert result.tolist() == list(range(100_000))


@pytest.mark.parametrize("timeout", [1e6, 1e12, float("inf")])
def test_a_very_long_time_out_is_none(timeout):
    """A limit that is never reached changes nothing."""
    assert parallel_map(policies.identity, range(5), timeout=timeout).tolist() == [0, 1, 2, 3, 4]


# -------------------------------------------------------------------------- wrong use


WRONG = {
    "on_error": ({"on_error": "ignore"}, ValueError, "on_error='ignore'.*'return'"),
    "retries -1": ({"retries": -1}, ValueError, "retries=-1"),
    "retries 1.5": ({"retries": 1.5}, (TypeError, ValueError), r"retries=1\.5"),
    "timeout 0": ({"timeout": 0}, ValueError, "timeout=0"),
    "timeout nan": ({"timeout": float("nan")}, ValueError, "timeout=nan"),
    "timeout a string": ({"timeout": "3"}, (TypeError, ValueError), "timeout='3'"),
    "timeout in serial": ({"timeout": 1, "backend": "serial"}, ValueError, "timeout=1.*serial"),
    "seed a string": ({"seed": "abc"}, (TypeError, ValueError), "seed='abc'"),
    "seed -1": ({"seed": -1}, ValueError, "seed=-1"),
    "seed a generator": (
        {"seed": np.random.default_rng(1)},
        (TypeError, ValueError),
        "seed=.*SeedSequence",
    ),
    "out 0-d": ({"out": np.zeros(())}, ValueError, "out= .*0-d.*first axis"),
    "initargs alone": ({"initargs": (1,)}, TypeError, "initargs=.*initializer="),
    "initializer a number": ({"initializer": 3}, TypeError, "initializer"),
    "initializer with too few": ({"initializer": policies.prepare}, TypeError, "prepare.*folder"),
    "initializer with a lock": (
        {"initializer": policies.keep_array, "initargs": (threading.Lock(),)},
        TypeError,
        "initargs=.*lock",
    ),
    "backend unknown": ({"backend": "cluster"}, (ValueError, NotImplementedError), "'cluster'"),
}


@pytest.mark.parametrize(("options", "error", "text"), WRONG.values(), ids=WRONG)
def test_wrong_use_is_refused_before_any_process_starts(options, error, text, cold):
    """A mistake in an option is an error that names it, and nothing has been started."""
    with pytest.raises(error, match=f"(?s){text}"):
        parallel_map(policies.draw if "seed" in options else policies.identity, [1, 2], **options)
    assert set(psutil.Process().children()) <= cold
