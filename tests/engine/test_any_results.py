"""Results of any kind, order, store and readers equal those of the plain loop."""

from __future__ import annotations

import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import map_async, open_checkpoint, parallel_map
from tests.support.results import are_same, expected, is_missing, kinds, result

names = st.lists(st.sampled_from(sorted(kinds())), min_size=1, max_size=4)
BACKENDS = st.sampled_from(["serial", "threads", None])


def check(found, items, kinds):
    """Compare what came with the plain loop."""
    wanted = expected(items, kinds)
    assert len(found) == len(wanted)
    wrong = [
        i for i, one, other in zip(items, found, wanted, strict=True) if not are_same(one, other)
    ]
    assert not wrong, (wrong, kinds)


@pytest.fixture(autouse=True)
def _mixed():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", nbshare.errors.MixedResultsWarning)
        yield


@pytest.mark.first
@settings(deadline=None, max_examples=30)
@given(
    kinds=names,
    n=st.integers(1, 300),
    backend=BACKENDS,
    out=st.sampled_from([None, "list"]),
    has_length=st.booleans(),
)
def test_results_in_memory(kinds, n, backend, out, has_length):
    """From a list and from a generator, as an array or a list."""
    items = range(n) if has_length else iter(range(n))
    options = {"out": out, "on_error": "return", "progress": False, "max_workers": 2}
    found = parallel_map(result, items, shared={"names": kinds}, backend=backend, **options)
    check(found, range(n), kinds)


@settings(deadline=None, max_examples=20)
@given(kinds=names, data=st.data(), n=st.integers(1, 200), backend=BACKENDS)
def test_results_in_a_directory(tmp_path_factory, kinds, data, n, backend):
    """Some are stored by a first run, in any order. Another order and more items resume it."""
    path = tmp_path_factory.mktemp("run")
    first = data.draw(st.lists(st.integers(0, n - 1), unique=True), "first")
    then = data.draw(st.permutations(range(n)), "then")
    options = {"on_error": "return", "progress": False, "max_workers": 2, "checkpoint": path}
    options |= {"shared": {"names": kinds}, "backend": backend}
    check(parallel_map(result, first, **options), first, kinds)
    check(parallel_map(result, then, **options), then, kinds)
    stored = open_checkpoint(path)
    wanted = expected(then, kinds)
    assert stored.present.tolist() == [not isinstance(x, ValueError) for x in wanted]
    for found, one in zip(stored.results(), wanted, strict=True):
        is_failed = isinstance(one, ValueError)
        assert (is_failed and is_missing(found)) or are_same(found, one)


@pytest.fixture(scope="module")
def hosts():
    with ThreadPoolExecutor(2) as executor:
        yield executor
        nbshare.shutdown()


@settings(deadline=None, max_examples=10)
@given(kinds=names, n=st.integers(1, 300), has_length=st.booleans(), is_stored=st.booleans())
def test_results_of_hosts(tmp_path_factory, hosts, kinds, n, has_length, is_stored):
    """From a list and from a generator, in memory and in a directory, where the rest resumes."""
    options = {"on_error": "return", "progress": False, "max_workers": 2, "backend": hosts}
    options["shared"] = {"names": kinds}
    if is_stored:
        options["checkpoint"] = tmp_path_factory.mktemp("run")
        check(parallel_map(result, range(0, n, 2), **options), range(0, n, 2), kinds)
    items = range(n) if has_length else iter(range(n))
    check(parallel_map(result, items, **options), range(n), kinds)


@settings(deadline=None, max_examples=15)
@given(
    kinds=names,
    n=st.integers(1, 1000),
    backend=BACKENDS.filter(lambda name: name != "serial"),
    has_length=st.booleans(),
    n_before=st.integers(0, 200),
)
def test_a_stopped_run_resumes(tmp_path_factory, kinds, n, backend, has_length, n_before):
    """What it has when it is stopped is the loop's, and so is what the same call adds."""
    options = {"on_error": "return", "max_workers": 2, "backend": backend}
    options |= {"shared": {"names": kinds}, "checkpoint": tmp_path_factory.mktemp("run")}

    def items():
        return range(n) if has_length else iter(range(n))

    job = map_async(result, items(), **options)
    while job.n_done < min(n, n_before) and not job.wait(0):
        time.sleep(0)
    job.cancel()
    assert job.wait(20)
    partial, wanted = job.partial(), expected(range(n), kinds)
    for found, one in zip(() if partial is None else partial, wanted, strict=False):
        assert is_missing(found) or are_same(found, one)
    check(parallel_map(result, items(), progress=False, **options), range(n), kinds)


@settings(deadline=None, max_examples=10)
@given(kinds=names, n=st.integers(1, 2000), has_length=st.booleans())
def test_two_threads_read_while_it_runs(kinds, n, has_length):
    """One takes each result once, the other looks at all that are there. Both see the loop's."""
    items = range(n) if has_length else iter(range(n))
    options = {"on_error": "return", "progress": False, "max_workers": 2}
    job = map_async(result, items, shared={"names": kinds}, **options)
    wanted, wrong = expected(range(n), kinds), []

    def look():
        while not wrong:
            is_over = job.done()
            partial = job.partial()
            for found, one in zip(() if partial is None else partial, wanted, strict=False):
                if not is_missing(found) and not are_same(found, one):
                    wrong.append((found, one))
            if is_over:
                return

    reader = threading.Thread(target=look)
    reader.start()
    taken = dict(job)
    reader.join()
    assert not wrong
    check([taken[i] for i in range(n)], range(n), kinds)
