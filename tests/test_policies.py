"""What a map does about failures, slow items and chance; first steps, tiny items, backends."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import re
import signal
import threading
import time
import traceback
import warnings
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import policies
import psutil
import pytest
from faultlab import wait_until

import nbshare
from nbshare import MapInterrupted, SharedArray, last_job, parallel_map
from nbshare.errors import (
    MixedResultsWarning,
    NbshareError,
    TaskError,
    TaskTimeoutError,
    WorkerDiedError,
)

BACKENDS = [None, "serial", "threads"]
MANY = 10_000  # tiny items: hundreds to thousands of them run together
SOME = 6_000  # where each one is looked at
SOON_S = 8.0  # for what takes a fraction of it on a machine with nothing else to do

backends = pytest.mark.parametrize("backend", BACKENDS, ids=["processes", "serial", "threads"])


@pytest.fixture
def tally(tmp_path):
    """Give the file in which workers count how often each item was begun."""
    path = tmp_path / "tally"
    path.write_bytes(bytes(MANY))
    return str(path)


def runs(tally, n):
    return np.fromfile(tally, np.uint8)[:n].tolist()


def worker_pids():
    """Return the workers: the children of the server."""
    return {worker.pid for server in psutil.Process().children() for worker in server.children()}


def said(error):
    return "\n".join([str(error), *getattr(error, "__notes__", ())])


@contextlib.contextmanager
def no_interrupt():
    """Have an interrupt that comes through fail the test, not end them all."""
    try:
        yield
    except MapInterrupted:
        raise
    except KeyboardInterrupt:
        pytest.fail("a KeyboardInterrupt came through")


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
        assert f"item {i} " in said(error)
    assert (Bar.last.total, Bar.last.n, Bar.last.is_closed) == (100, 100, True)


def test_an_error_that_is_returned_names_its_worker():
    """The notes of an error in its place name the item, the worker and the line."""
    parallel_map(policies.fail_some, range(5), shared={"bad": {3}}, on_error="return")
    (error,) = last_job().errors.values()
    assert "item 3 (3) in worker " in said(error)
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
    """What was returned is the caller's: values and mask can be assigned."""
    result = parallel_map(policies.fail_some, range(4), shared={"bad": {1}}, on_error="return")
    result[1] = 10.0
    result[2] = np.ma.masked
    assert result.tolist() == [0.0, 10.0, None, 3.0]


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_an_exception_that_takes_no_notes_is_a_failure_like_others(backend, on_error):
    """A frozen dataclass, say: it is raised, or its text with item and worker, and no other."""
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


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
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
        assert "item 3 (3)" in str(error)
    else:
        assert type(error) is policies.Untouchable


def test_a_child_that_an_item_forks_is_no_second_worker():
    """It may end with sys.exit or an exception: that is its own end, and no item fails."""
    statuses = parallel_map(policies.fork_and_end, ["exit 3", "exit", "raise"], max_workers=2)
    assert statuses.tolist() == [3, 0, 1]


@backends
@pytest.mark.parametrize("out", [None, "list"])
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
@pytest.mark.parametrize("bad", [(), (0, 3)], ids=["none fails", "two fail"])
def test_a_given_array_comes_back_masked(backend, make, bad):
    """With ``out=`` a masked array over it is returned, whether or not anything failed."""
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
    assert "same_kind" in str(last_job().errors[3])


@backends
def test_an_error_that_is_raised_is_kept_too(backend):
    """The failure that a map ended with is among the errors of the last job."""
    with pytest.raises(ValueError, match="no way on at 3") as caught:
        parallel_map(policies.fail_some, range(6), shared={"bad": {3}}, backend=backend)
    assert last_job().errors[3] is caught.value


@backends
def test_all_items_fail(backend):
    """If nothing has a result, a list of all the errors comes back."""
    result = parallel_map(
        policies.fail_some, range(9), shared={"bad": range(9)}, on_error="return", backend=backend
    )
    assert type(result) is list
    assert [str(error) for error in result] == [f"no way on at {i}" for i in range(9)]


def test_many_failures_are_no_hang():
    """Thousands of failing items cost no more than their errors."""
    start = time.monotonic()
    bad = range(0, 4_000, 2)
    result = parallel_map(policies.fail_some, range(4_000), shared={"bad": bad}, on_error="return")
    assert time.monotonic() - start < 4
    assert result.mask.tolist() == [i in bad for i in range(4_000)]


@backends
@pytest.mark.parametrize("first", [0, 1], ids=["first", "second"])
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


@pytest.mark.parametrize("n", [100, 20_000])
def test_among_many_items_one_that_cannot_be_loaded_fails_alone(n):
    """Small items travel many in one pickle, and share what they refer to."""
    bad = {n // 2, n - 1}
    common = policies.Stubborn(), ["shared"]
    items = [(common[0], i) if i in bad else (common[1], i) for i in range(n)]
    result = parallel_map(operator.itemgetter(1), items, on_error="return", progress=False)
    assert set(result.mask.nonzero()[0].tolist()) == set(last_job().errors) == bad
    assert all("not to be had again" in said(error) for error in last_job().errors.values())
    assert result.compressed().tolist() == [i for i in range(n) if i not in bad]


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
    """Its memory is there for the next one: two large ones at a time may be too many."""
    lives = parallel_map(
        policies.tell_whether_the_last_result_lives, range(50), max_workers=1, backend=backend
    )
    assert lives.shape == (50, 1000)
    assert not lives.any()


def test_an_item_that_ends_its_worker_is_one_failure():
    """A worker killed in an item fails that item alone; the rest is there."""
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
        assert f"item {i} ({i})" in str(error)
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
    assert f"item {bad} ({bad})" in str(error)
    np.testing.assert_array_equal(result.compressed(), np.delete(np.arange(n), bad))


@pytest.mark.parametrize(("way", "timeout"), [("die", None), ("sleep", 0.3)])
def test_the_tiny_item_that_takes_the_worker_is_named(way, timeout):
    """The error of a map that ends with it is about that item of thousands, no other."""
    shared = {"bad": {20_000}, "way": way}
    with pytest.raises(
        (WorkerDiedError, TaskTimeoutError), match=r"item 20000 \(20000\)"
    ) as caught:
        parallel_map(policies.fail_some, range(50_000), shared=shared, timeout=timeout)
    assert caught.value.index == 20_000


@pytest.mark.parametrize(
    ("kind", "remedy"), [("lock", "arrays"), ("generator", r"list\("), ("coroutine", "asyncio.run")]
)
def test_a_result_that_cannot_be_sent_is_named_with_the_remedy(kind, remedy):
    """The error is that of the item, and says what to return instead."""
    with pytest.raises(TypeError) as caught:
        parallel_map(policies.give_unsendable, [kind])
    notes = "\n".join(caught.value.__notes__)
    assert re.search(f"(?s)result, a {kind}, cannot be sent: .*{remedy}.*item 0", notes), notes


@pytest.mark.parametrize("backend", [None, "threads"])
@pytest.mark.parametrize("leave", ["leave", "interrupt itself"])
def test_leaving_is_a_failure_of_the_item(backend, leave):
    """SystemExit and KeyboardInterrupt raised by the function are that item's TaskError."""
    if leave == "leave":
        task, shared = policies.fail_some, {"bad": {3}, "way": "leave"}
    else:
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
    """What failed leaves nothing behind for the next call."""
    for _ in range(3):
        parallel_map(
            policies.fail_some, range(9), shared={"bad": {3}, "way": "die"}, on_error="return"
        )
        assert parallel_map(policies.identity, range(50)).tolist() == list(range(50))
        assert last_job() is None


# ---------------------------------------------------------------------------- retries


@backends
@pytest.mark.parametrize("n", [7, MANY], ids=["few", "tiny"])
@pytest.mark.parametrize("out", [None, "list"])
def test_a_failing_item_alone_is_tried_again(backend, n, out, tally):
    """An item that fails twice is run three times with ``retries=2``, each other one once."""
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
    """Exceptions, dead workers and time-outs are tried again alike."""
    shared = {"tally": tally, "bad": {3}, "ways": ways}
    timeout = 0.3 if {"sleep", "freeze"} & set(ways) else None
    result = parallel_map(
        policies.attempt, range(8), shared=shared, retries=2, timeout=timeout, chunksize=1
    )
    assert result.tolist() == list(range(8))
    assert runs(tally, 8) == [3 if i == 3 else 1 for i in range(8)]


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
        assert "item 3 " in said(caught.value)
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
    n = 30
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
    """What a worker's death has torn counts as missing only until it has been done again."""
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
    with pytest.raises(TypeError, match="same_kind"):
        parallel_map(
            policies.attempt,
            range(1),
            shared=shared,
            retries=2,
            out=np.zeros(1, int),
        )
    assert runs(tally, 1) == [3]


# ---------------------------------------------------------------------------- timeout


@pytest.mark.parametrize("way", ["sleep", "freeze"])
@pytest.mark.parametrize("on_error", ["raise", "return"])
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
    assert "item 3 (3)" in str(error)
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


def test_an_idle_worker_that_was_stopped_holds_up_no_map_with_a_time_out(tmp_path, cold):
    """A worker that somebody has stopped between two calls is replaced at the time-out."""
    frozen = min(_pids_once_ready(tmp_path))
    os.kill(frozen, signal.SIGSTOP)
    rescue = threading.Timer(2 * SOON_S, lambda: os.kill(frozen, signal.SIGKILL))
    rescue.start()
    start = time.monotonic()
    result = parallel_map(policies.identity, range(20), timeout=0.5, max_workers=2)
    took_s = time.monotonic() - start
    rescue.cancel()
    assert result.tolist() == list(range(20))
    assert took_s < SOON_S


@pytest.mark.parametrize(("n", "seconds"), [(MANY, 0.0), (80, 0.02)], ids=["tiny", "short"])
def test_a_time_out_does_not_disturb_quick_items(n, seconds, tmp_path, cold):
    """The limit is for an item, not for a chunk or a call: no worker is replaced."""
    before = _pids_once_ready(tmp_path)
    shared = {"slow": range(n) if seconds else (), "seconds": seconds}
    result = parallel_map(
        policies.slow_down, range(n), shared=shared, timeout=0.4, chunksize=n // 2, max_workers=2
    )
    assert result.tolist() == list(range(n))
    assert worker_pids() == before


def test_a_time_out_is_for_one_item_also_if_items_become_slower():
    """Items that were taken for tiny ones and are not have the whole time each."""
    slow = range(9_000, 9_400)
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


# ------------------------------------------------------------------------------- seed


def numbers(seed, n):
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    return [np.random.default_rng(child).random() for child in sequence.spawn(n)]


@pytest.mark.parametrize("max_workers", [1, 2, 5])
@pytest.mark.parametrize("chunksize", [None, 1, 7])
def test_a_seed_gives_the_numbers_of_the_spawned_sequences(max_workers, chunksize):
    """Item i draws from the i-th child, whatever the number of workers and chunks."""
    result = parallel_map(
        policies.draw, range(100), seed=42, max_workers=max_workers, chunksize=chunksize
    )
    assert result.tolist() == numbers(42, 100)


@backends
@pytest.mark.parametrize(("n", "seconds"), [(3_000, 0.0), (30, 0.003)], ids=["tiny", "long"])
def test_a_seed_gives_the_same_numbers_however_long_items_are(backend, n, seconds):
    """Also items that are run together, or in another backend, have their own numbers."""
    shared = {"seconds": seconds}
    result = parallel_map(policies.draw, range(n), shared=shared, seed=7, backend=backend)
    assert result.tolist() == numbers(7, n)


@backends
def test_an_item_that_is_tried_again_has_its_numbers_again(backend, tally):
    """A failed attempt uses up nothing."""
    result = parallel_map(
        policies.draw_again, range(10), shared={"tally": tally}, seed=3, retries=1, backend=backend
    )
    assert result.tolist() == numbers(3, 10)
    assert runs(tally, 10) == [2] * 10


def test_a_seed_in_a_worker_gives_the_same_numbers():
    """A map within a worker has the numbers of any other."""
    result = parallel_map(policies.draw_nested, [5, 6], shared={"n": 4})
    assert result.tolist() == [numbers(5, 4), numbers(6, 4)]


def test_a_sequence_is_not_advanced():
    """A SeedSequence that is given is left as it was, and gives the same numbers each time."""
    sequence = np.random.SeedSequence(11)
    first = parallel_map(policies.draw, range(5), seed=sequence).tolist()
    assert sequence.n_children_spawned == 0
    assert first == numbers(np.random.SeedSequence(11), 5)
    sequence.spawn(3)
    assert parallel_map(policies.draw, range(5), seed=sequence).tolist() == first
    assert sequence.n_children_spawned == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.SeedSequence(11).spawn(3)[2],
        lambda: np.random.SeedSequence(11).spawn(2)[1].spawn(2)[0],
        lambda: np.random.SeedSequence(11, pool_size=8),
        lambda: np.random.SeedSequence([1, 2, 3]),
        lambda: np.random.SeedSequence(2**200),
    ],
    ids=["child", "grandchild", "pool", "words", "long"],
)
def test_every_sequence_gives_its_childrens_numbers(make):
    """A child's key, a larger pool and long entropy go into the numbers."""
    assert parallel_map(policies.draw, range(5), seed=make()).tolist() == numbers(make(), 5)


@pytest.mark.parametrize(
    "make",
    [
        lambda: np.random.SeedSequence([1, [2, 3]]),
        lambda: np.random.SeedSequence(5, spawn_key=([1, 2],)),
        lambda: np.array([7, 8]),
        lambda: 1 << 200,
    ],
    ids=["nested", "spawned", "array", "large"],
)
def test_any_seed_of_numpy_gives_its_numbers(make):
    """However deep its sequences are."""
    try:
        seed = make()
    except TypeError:
        pytest.skip("NumPy 2.5 and later takes no nested sequences")
    assert parallel_map(policies.draw, range(5), seed=seed).tolist() == numbers(seed, 5)


def test_a_function_that_has_every_attribute_fails_like_others():
    """What messages call its items is their repr."""
    with pytest.raises(ValueError, match="the third") as found:
        parallel_map(policies.Open(), range(6))
    assert found.value.__notes__[0].startswith("raised for item 3 (3) in worker")


def test_what_an_item_makes_of_the_import_path_is_undone(capfd):
    """Also where it is no list any more; nobody hears of it."""
    for _ in range(2):
        assert parallel_map(policies.spoil_path, range(4), max_workers=1).tolist() == [0, 1, 2, 3]
    assert "Traceback" not in capfd.readouterr().err


def test_the_error_of_a_seeded_item_shows_the_item():
    """What a failing item is called with beside its generator is shown as it was given."""
    with pytest.raises(LookupError) as caught:
        parallel_map(policies.draw_and_fail, ["stone"], [(1, 2)], seed=1)
    assert "item 0 (('stone', (1, 2)))" in said(caught.value)


SEEDED = {
    "no rng": (policies.identity, {"seed": 1}),
    "rng in shared": (policies.draw, {"seed": 1, "shared": {"rng": 3}}),
    "rng in a partial": (functools.partial(policies.draw, rng=3), {"seed": 1}),
}


@pytest.mark.parametrize(("task", "options"), SEEDED.values(), ids=SEEDED)
def test_a_function_that_cannot_take_a_generator_is_refused(task, options, cold):
    """Without a parameter ``rng``, or with it given twice, nothing is started."""
    with pytest.raises(TypeError, match="rng"):
        parallel_map(task, [1, 2], **options)
    assert not psutil.Process().children()


def test_without_a_seed_no_numbers_are_drawn_twice(tally, cold):
    """Workers, replaced ones too, and calls draw different numbers from the global states."""
    drawn = []
    for call in range(3):
        shared = {"bad": {20, 40} if call == 1 else (), "tally": tally}
        drawn += parallel_map(
            policies.draw_globally, range(64), shared=shared, chunksize=4, max_workers=2, retries=1
        )
    for numbers_drawn in zip(*drawn, strict=True):
        assert len(set(numbers_drawn)) == 3 * 64


# ------------------------------------------------------------------------ initializer


def marks(folder):
    """Return the process numbers of all runs of an initializer."""
    return sorted(int(p.name.split("-")[0]) for p in Path(folder).iterdir() if p.name[0].isdigit())


def read_in_two(folder, **options):
    """Read what was prepared in two workers that are there at once."""
    for path in Path(folder).glob("met-*"):
        path.unlink()
    shared = {"folder": str(folder), "n": 2}
    return dict(
        parallel_map(
            policies.read_together, range(2), shared=shared, chunksize=1, max_workers=2, **options
        )
    )


def test_an_initializer_runs_once_in_each_worker(tmp_path, cold):
    """It has run before the first item, and is not run again while the same one is given."""
    options = {"initializer": policies.prepare, "initargs": (str(tmp_path), 7)}
    first = read_in_two(tmp_path, **options)
    assert set(first.values()) == {7}
    assert read_in_two(tmp_path) == first  # a call without one keeps the workers
    assert read_in_two(tmp_path, **options) == first
    assert marks(tmp_path) == sorted(first)


def test_a_worker_whose_initializer_takes_longer_is_waited_for_by_none(tmp_path, cold):
    """Maps go on without it, do not end it, and have it when it has come, also in their middle."""
    options = {"initializer": policies.prepare_slowly, "initargs": (str(tmp_path), 0)}
    functions = policies.identity, abs
    for i in range(100):
        assert len(parallel_map(functions[i % 2], [1, 2], max_workers=2, **options)) == 2
    threading.Timer(0.2, (tmp_path / "go").touch).start()
    found = read_in_two(tmp_path, **options)
    assert marks(tmp_path) == sorted(found)


def test_a_worker_that_dies_while_it_is_late_is_replaced(tmp_path, cold):
    """In the map that has gone on without it."""
    options = {"initializer": policies.prepare_slowly, "initargs": (str(tmp_path), 0)}
    for i in range(10):
        pids = parallel_map((abs, policies.pid)[i % 2], [1, 2], max_workers=2, **options)
    wait_until(lambda: len(marks(tmp_path)) == 2)
    (late,) = set(marks(tmp_path)) - set(pids.tolist())

    def end_it():
        os.kill(late, signal.SIGKILL)
        (tmp_path / "go").touch()

    threading.Timer(0.2, end_it).start()
    assert late not in read_in_two(tmp_path, **options)


def test_a_worker_that_is_stopped_while_it_is_late_is_replaced(tmp_path, cold):
    """A few small maps have gone on without it; then one needs two."""
    stopped, _ = read_in_two(tmp_path)
    os.kill(stopped, signal.SIGSTOP)
    for i in range(10):
        parallel_map((policies.identity, abs)[i % 2], [1, 2], max_workers=2)
    start = time.monotonic()
    assert stopped not in read_in_two(tmp_path)
    assert time.monotonic() - start < SOON_S


def test_another_initializer_has_fresh_workers(tmp_path, cold):
    """What one initializer has set is not there for another, nor for other arguments."""
    seen = [
        read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), value))
        for value in (1, 2, 1)
    ]
    assert [set(found.values()) for found in seen] == [{1}, {2}, {1}]
    assert not any(set(a) & set(b) for a, b in pairwise(seen))
    assert marks(tmp_path) == sorted(pid for found in seen for pid in found)


def test_fresh_workers_are_not_renewed_for_their_first_initializer(tmp_path, cold, monkeypatch):
    """Those that have come with a new environment have run none: any may be given them."""
    read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), 1))
    monkeypatch.setenv("CHANGED", "yes")
    workers = set(read_in_two(tmp_path))
    found = read_in_two(tmp_path, initializer=policies.prepare, initargs=(str(tmp_path), 2))
    assert set(found.values()) == {2}
    assert set(found) == workers


def test_two_threads_have_their_own_initializers(tmp_path):
    """Calls at the same time with different initializers see their own values each."""
    seen = {}

    def call(value):
        options = {"initializer": policies.prepare, "initargs": (str(tmp_path), value)}
        seen[value] = [parallel_map(policies.read, range(20), **options) for _ in range(5)]

    threads = [threading.Thread(target=call, args=(value,)) for value in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for value in (1, 2):
        assert [result.tolist() for result in seen[value]] == [[value] * 20] * 5


def test_what_an_initializer_changes_in_its_process_stays(tmp_path, cold, monkeypatch):
    """Items find its settings in every call that it counts for, whatever other items have done."""
    monkeypatch.setenv("UNSETTLED", "yes")
    look = partial(parallel_map, policies.look_and_litter, out="list")
    (before,) = look([0], max_workers=1)
    options = {"initializer": policies.settle, "initargs": (str(tmp_path),)}
    calls = [look([0], max_workers=n, **options) for n in (1, 1, 2)]
    (found,) = calls[0]
    assert found["environ"] == ["yes", None, "3", before["environ"][-1]]
    assert found["cwd"] == str(tmp_path)
    assert found["path"] == [*before["path"], str(tmp_path)]
    assert all(found[name] != before[name] for name in found), found
    assert calls == [[found]] * 3
    monkeypatch.chdir(tmp_path.parent)
    assert look([0], max_workers=1, **options) == [found]
    assert look([0], max_workers=1, initializer=abs, initargs=(1,)) == [
        {**before, "cwd": str(tmp_path.parent)}
    ]


def test_items_that_end_as_their_time_does_are_done_or_late():
    """None is lost with its worker, and none is blamed that the worker has just gone on to."""
    n_late, until_s = 0, time.monotonic() + 6
    begun = nbshare.zeros(20)
    for off_ms in np.random.default_rng(1).uniform(-0.2, 2, 1000):
        shared = {"long": 0.05 + off_ms / 1e3, "short": 0.002}
        result = parallel_map(
            functools.partial(policies.sleep_in_turn, begun),
            range(20),
            shared=shared,
            timeout=0.05,
            on_error="return",
            chunksize=10,
            max_workers=2,
        )
        failed = {i for i, text in enumerate(result) if isinstance(text, BaseException)}
        assert all(isinstance(result[i], TaskTimeoutError) for i in failed), result
        # The next one of its ten is another worker's, and begins after the late one's end. Not all
        # that should be quick are: the machine may be busy.
        lasted_s = {i: begun[i + 1] - begun[i] for i in failed if i % 10 < 9}
        assert min(lasted_s.values(), default=1) > 0.04, lasted_s
        assert all(result[i] == f"item {i}" for i in set(range(20)) - failed), result
        job = last_job()
        assert set(job.errors if job is not None else ()) == failed
        n_late += len(failed)
        if time.monotonic() > until_s:
            break
    assert n_late


def test_a_time_out_is_not_for_the_initializer(cold):
    """The limit is for an item: what comes before the first one has its time."""
    result = parallel_map(
        policies.identity, range(4), timeout=0.2, initializer=time.sleep, initargs=(0.5,)
    )
    assert result.tolist() == [0, 1, 2, 3]


def test_a_closure_is_an_initializer(tmp_path, cold):
    """A function that is sent by value works, and is kept like any other."""
    folder, value = str(tmp_path), {"a": np.arange(3).tolist()}

    def set_up(more):
        policies.prepare(folder, [value, more])

    first = read_in_two_lists(tmp_path, set_up)
    assert list(first.values()) == [[value, "b"]] * 2
    assert read_in_two_lists(tmp_path, set_up) == first
    assert marks(tmp_path) == sorted(first)


def read_in_two_lists(folder, initializer):
    return read_in_two(folder, initializer=initializer, initargs=["b"])


@backends
def test_an_initializer_runs_before_the_items_of_every_backend(backend, tmp_path):
    """What it sets is there for all items."""
    for value in (3, 4):
        result = parallel_map(
            policies.read,
            range(5),
            initializer=policies.prepare,
            initargs=(str(tmp_path), value),
            backend=backend,
        )
        assert result.tolist() == [value] * 5


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_a_failing_initializer_is_one_error(backend, on_error):
    """Its exception ends the call, says where it comes from, and leaves the next call right."""
    start = time.monotonic()
    with pytest.raises(LookupError, match="no licence") as caught:
        parallel_map(
            policies.identity,
            range(50),
            initializer=policies.refuse_to_start,
            initargs=("no licence",),
            on_error=on_error,
            backend=backend,
        )
    assert time.monotonic() - start < SOON_S
    assert "initializer" in said(caught.value)
    assert parallel_map(policies.identity, range(5), backend=backend).tolist() == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("initializer", "kind", "text"),
    [
        (policies.leave_at_start, TaskError, "SystemExit"),
        (policies.end_at_start, WorkerDiedError, "died"),
    ],
)
def test_an_initializer_that_leaves_is_one_error(initializer, kind, text):
    """One that exits, or ends its process, is an error soon, not an endless refill."""
    start = time.monotonic()
    with pytest.raises(kind, match=text):
        parallel_map(policies.identity, range(50), initializer=initializer, on_error="return")
    assert time.monotonic() - start < SOON_S


def test_an_initializer_keeps_a_large_array(cold):
    """An array among its arguments stays as it was, whatever later calls put into memory."""
    array = np.arange(100_000.0)
    expected = array.sum()
    for k in range(8):
        result = parallel_map(
            policies.sum_kept,
            np.full((4, 100_000), float(k)),
            initializer=policies.keep_array if k % 2 == 0 else None,
            initargs=(array,) if k % 2 == 0 else (),
            max_workers=2,
        )
        assert result.tolist() == [expected] * 4


def test_a_replaced_worker_is_initialized(tally, tmp_path, cold):
    """A worker that takes the place of a dead one has run the initializer too."""
    result = parallel_map(
        policies.read_and_die_once,
        range(6),
        shared={"tally": tally},
        initializer=policies.prepare,
        initargs=(str(tmp_path), 5),
        retries=1,
        chunksize=1,
        max_workers=1,
    )
    assert result.tolist() == [5] * 6
    assert len(set(marks(tmp_path))) == len(marks(tmp_path)) == 2


# ------------------------------------------------------------------------- tiny items


@pytest.mark.parametrize("kind", policies.KINDS)
def test_tiny_items_give_exactly_what_the_function_returns(kind):
    """Results that are stored together are those of the built-in map, in value and class."""
    values = [policies.give(i, kind) for i in range(SOME)]
    result = parallel_map(policies.give, range(SOME), shared={"kind": kind}, out="list")
    assert list(map(facts, result)) == list(map(facts, values))


def facts(value):
    if isinstance(value, np.ndarray | np.generic):
        return type(value), value.dtype, value.tolist()
    return type(value), value


@pytest.mark.parametrize("kind", [k for k in policies.KINDS if k not in ("str", "tuple")])
def test_tiny_items_give_one_array_or_a_list(kind):
    """One array comes where every value survives in it, else the values themselves."""
    values = [policies.give(i, kind) for i in range(SOME)]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = parallel_map(policies.give, range(SOME), shared={"kind": kind})
    if isinstance(result, SharedArray):
        assert not caught
        assert result.dtype == np.result_type(*{np.asarray(v).dtype for v in values})
        np.testing.assert_array_equal(result, np.array(values))
    else:
        assert [w.category for w in caught] == [MixedResultsWarning]
        assert [type(v) for v in result] == [type(v) for v in values]
        assert result == values


UNEVEN = {"int, then float, then str", "int, then 2**63 + 1", "int, then -2**64", "int, then None"}


@pytest.mark.parametrize("kind", sorted(UNEVEN))
def test_tiny_items_that_fit_no_array_are_a_list(kind):
    """A value in the middle that no array can hold with the others loses no work."""
    with pytest.warns(MixedResultsWarning):
        result = parallel_map(policies.give, range(MANY), shared={"kind": kind})
    assert result == [policies.give(i, kind) for i in range(MANY)]


@backends
@pytest.mark.parametrize(
    ("task", "out"),
    [
        (policies.give_same_array, None),
        (policies.give_same_array, "list"),
        (policies.give_same_list, None),
        (policies.give_same_scalar, None),
    ],
    ids=["array", "array to list", "list", "0-d array"],
)
def test_a_function_may_use_one_object_for_all_its_results(backend, task, out):
    """A result is what was returned for its item, also if the next item changes that object."""
    result = parallel_map(task, range(MANY), out=out, max_workers=1, backend=backend)
    assert [np.ravel(value)[0] for value in result] == list(range(MANY))


@backends
@pytest.mark.parametrize("bad", [0, 1, 777, 4_500, MANY - 1])
def test_a_failing_tiny_item_is_named(backend, bad):
    """An exception among thousands of items that run together names the right one."""
    with pytest.raises(ValueError, match=f"no way on at {bad}") as caught:
        parallel_map(
            policies.fail_some, range(MANY), shared={"bad": {bad}}, max_workers=1, backend=backend
        )
    assert f"item {bad} ({bad})" in said(caught.value)
    assert np.flatnonzero(last_job().present).tolist() == list(range(bad))


@backends
@pytest.mark.parametrize("bad", [0, 4_500])
def test_stop_iteration_is_that_items_error(backend, bad):
    """StopIteration raised by the function fails its item, as itself, and ends nothing quietly.

    Among tiny items, which `map` runs, its arguments are lost.
    """
    with pytest.raises(StopIteration) as caught:
        parallel_map(
            policies.stop_at, range(MANY), shared={"bad": bad}, max_workers=1, backend=backend
        )
    assert f"item {bad} ({bad})" in said(caught.value)
    assert bad or caught.value.args == ("that is all",)


@backends
def test_stop_iteration_can_be_returned(backend):
    """The items after one that raised StopIteration are run."""
    result = parallel_map(
        policies.stop_at,
        range(MANY),
        shared={"bad": 4_500},
        max_workers=1,
        on_error="return",
        backend=backend,
    )
    assert np.flatnonzero(result.mask).tolist() == [4_500]
    assert result.compressed().tolist() == [i for i in range(MANY) if i != 4_500]


@backends
def test_tiny_items_after_a_failure_are_not_run(backend, tally):
    """With ``on_error="raise"`` a worker begins no item after the one that failed."""
    shared = {"tally": tally, "bad": {4_500}, "ways": ["raise"]}
    with pytest.raises(ValueError, match="4500"):
        parallel_map(policies.attempt, range(MANY), shared=shared, max_workers=1, backend=backend)
    assert runs(tally, MANY) == [1] * 4_501 + [0] * (MANY - 4_501)


@backends
@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_each_tiny_item_is_run_once(backend, on_error, tally):
    """Nothing is run twice because something beside it failed or did not fit."""
    bad = {5, 4_500, 4_501, MANY - 1} if on_error == "return" else ()
    shared = {"tally": tally, "bad": bad, "ways": ["raise"]}
    parallel_map(policies.attempt, range(MANY), shared=shared, on_error=on_error, backend=backend)
    assert runs(tally, MANY) == [1] * MANY


@backends
@pytest.mark.parametrize("make", [np.zeros, nbshare.zeros], ids=["plain", "shared"])
@pytest.mark.parametrize(
    ("dtype", "factor"),
    [(np.float32, 1), (np.float64, 1), (np.complex128, 0.5), (">f8", 0.5), (np.float16, 0.0)],
    ids=str,
)
def test_tiny_items_fill_a_given_array_of_another_dtype(backend, make, dtype, factor):
    """Values are cast to the dtype of ``out=`` as NumPy would."""
    out = make(SOME, dtype)
    result = parallel_map(
        policies.scaled, range(SOME), shared={"factor": factor}, out=out, backend=backend
    )
    assert result is out
    np.testing.assert_array_equal(out, (np.arange(SOME) * factor).astype(dtype))


# --------------------------------------------------------------------------- backends

TABLE = np.arange(12.0).reshape(4, 3)
CASES = {
    "numbers": (policies.identity, [range(50)], {}),
    "floats": (policies.identity, [[0.5, np.nan, np.inf]], {}),
    "rows": (policies.identity, [TABLE], {}),
    "columns": (policies.identity, [TABLE.T], {}),
    "scalars": (policies.identity, [np.arange(5, dtype=np.int16)], {}),
    "strings": (policies.identity, [["a", "", "ß"]], {}),
    "objects": (policies.identity, [[{"a": 1}, None, [2]]], {}),
    "shared": (policies.add, [range(5), TABLE[0].repeat(2)], {"shared": {"z": TABLE[:, 1]}}),
    "partial": (functools.partial(policies.add, 1), [range(5)], {"shared": {"z": 0.5}}),
    "lambda": (lambda x: x + 1, [range(5)], {}),
    "two": (policies.add, [range(5), range(9)], {}),
    "list": (policies.identity, [range(5)], {"out": "list"}),
    "one": (policies.identity, [[7]], {}),
    "none": (policies.identity, [[]], {}),
    "chunks": (policies.identity, [range(50)], {"chunksize": 3, "max_workers": 3}),
}


@pytest.mark.parametrize("case", CASES)
def test_all_backends_give_the_same(case):
    """Results of the backends are of the same class, dtype, order and value."""
    task, iterables, options = CASES[case]
    found = [parallel_map(task, *iterables, backend=backend, **options) for backend in BACKENDS]
    shared = options.get("shared", {})
    expected = [task(*args, **shared) for args in zip(*iterables, strict=False)]
    for result in found:
        assert type(result) is type(found[0])
        assert getattr(result, "dtype", None) == getattr(found[0], "dtype", None)
        np.testing.assert_equal(list(result), expected)


@backends
def test_shared_is_read_only_in_every_backend(backend):
    """A write into ``shared=`` raises, and the caller's array stays as it was."""
    for table in (np.zeros(3), np.zeros(10_000), nbshare.zeros(3)):
        with pytest.raises(ValueError, match="read-only"):
            parallel_map(policies.assign, range(3), shared={"table": table}, backend=backend)
        assert not table.any()


@backends
def test_items_are_copies_in_every_backend(backend):
    """What a function does to its item is not seen by the caller."""
    items = [[], [1], [1, 2]]
    assert parallel_map(policies.swallow, items, backend=backend).tolist() == [1, 2, 3]
    assert items == [[], [1], [1, 2]]


@backends
def test_rows_of_a_shared_array_are_written_in_place_in_every_backend(backend):
    """The rows of a SharedArray are the caller's memory."""
    table = nbshare.zeros((4, 2))
    parallel_map(policies.fill, table, range(4), backend=backend)
    np.testing.assert_array_equal(table, np.arange(4.0)[:, None] * [1, 1])


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_an_error_shows_the_users_own_frames(backend):
    """The exception is itself, names its item, and leads to the line that raised it."""
    with pytest.raises(ValueError, match="no way on at 3") as caught:
        parallel_map(policies.fail_some, range(6), shared={"bad": {3}}, backend=backend)
    assert "item 3 (3)" in said(caught.value)
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
    """Nothing is kept of a map that was interrupted before its first result."""
    with pytest.raises(MapInterrupted) as caught:
        parallel_map(policies.raise_interrupt_at, make(60), shared={"bad": bad}, backend="serial")
    assert re.match(rf"{bad}( of 60)? items done", str(caught.value))
    assert ("kept in nbshare.last_job().partial()" in str(caught.value)) == (bad > 0)
    assert ("kept" in str(caught.value)) == (bad > 0)


def test_an_interrupt_of_a_map_in_threads():
    """Ctrl-C ends it soon, keeps what is done, and the next call works."""
    with pytest.raises(MapInterrupted), no_interrupt():
        parallel_map(
            policies.interrupt_owner_at,
            range(1_000),
            shared={"bad": 20},
            backend="threads",
            chunksize=1,
            max_workers=2,
        )
    assert 20 <= last_job().n_done < 1_000
    assert last_job().partial()[:20].tolist() == list(range(20))
    assert parallel_map(policies.identity, range(5), backend="threads").tolist() == [0, 1, 2, 3, 4]


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
    """Serial maps and threads need no worker process."""
    assert set(parallel_map(policies.pid, range(9), backend=backend).tolist()) == {os.getpid()}
    assert not psutil.Process().children()


@pytest.mark.parametrize(
    "options",
    [{}, {"max_workers": 4}, {"backend": "serial"}, {"backend": "threads", "max_workers": 2}],
    ids=str,
)
def test_maps_in_workers_start_no_processes(options, cold):
    """Three maps deep no process is at work but those asked for at the outside."""
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
    """A map in a worker has no process of its own to end, and says so."""
    options = {"timeout": 1.0}
    with pytest.raises((ValueError, NotImplementedError), match=r"timeout=1\.0.*worker"):
        parallel_map(policies.nest, [1], shared={"options": options})


# -------------------------------------------------------------------------- wrong use

WRONG = {
    "on_error": ({"on_error": "ignore"}, ValueError, "on_error='ignore'.*'return'"),
    "retries -1": ({"retries": -1}, ValueError, "retries=-1"),
    "retries 1.5": ({"retries": 1.5}, (TypeError, ValueError), r"retries=1\.5"),
    "retries None": ({"retries": None}, (TypeError, ValueError), "retries=None"),
    "timeout 0": ({"timeout": 0}, ValueError, "timeout=0"),
    "timeout -1": ({"timeout": -1.0}, ValueError, r"timeout=-1\.0"),
    "timeout nan": ({"timeout": float("nan")}, ValueError, "timeout=nan"),
    "timeout a string": ({"timeout": "3"}, (TypeError, ValueError), "timeout='3'"),
    "timeout in serial": ({"timeout": 1, "backend": "serial"}, ValueError, "timeout=1.*serial"),
    "timeout in threads": ({"timeout": 1, "backend": "threads"}, ValueError, "timeout=1.*threads"),
    "seed a string": ({"seed": "abc"}, (TypeError, ValueError), "seed='abc'"),
    "seed -1": ({"seed": -1}, ValueError, "seed=-1"),
    "seed 1.5": ({"seed": 1.5}, (TypeError, ValueError), r"seed=1\.5"),
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
    assert not psutil.Process().children()
