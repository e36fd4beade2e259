"""Items that are pickled, those of long lists, and those that a generator gives."""

from __future__ import annotations

import os
import threading
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import MapInterrupted, last_job, map_async, parallel_map
from nbshare._core.arrays import arena
from nbshare._core.arrays.arena import BLOCK_BYTES, LEAST_BLOCKS, Arena
from nbshare._core.engine import preparing
from nbshare.errors import UnsendableError
from tests.support import feeds
from tests.support.faultlab import memfd_bytes
from tests.support.interrupts import InterruptAt

MANY = 40_000  # small items, many of which are packed together


def pair(*args, **options):
    return parallel_map(*args, max_workers=2, progress=False, **options)


def still_works():
    assert pair(feeds.identity, list(range(MANY))).tolist() == list(range(MANY))


def test_what_a_function_keeps_of_an_item_stays_as_it_came():
    """Its memory is not used for another one, though the item is done."""
    assert pair(feeds.keep, (np.full(60_000, float(i)) for i in range(60))).all()


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_arrays_of_a_generator_arrive_in_this_process(backend):
    """All of them, though their memory becomes larger while items run."""
    arrays = (np.full(30_000, float(i)) for i in range(50))
    found = pair(np.max, arrays, backend=backend)
    assert not np.ma.isMaskedArray(found)
    assert found.tolist() == list(range(50))


def test_items_that_are_done_take_no_memory():
    """Of many arrays that a generator gives, those under way do, and as many that wait."""
    arrays = (np.full(250_000, float(i)) for i in range(300))  # 600 MB in all
    before = most = memfd_bytes([os.getpid()])  # of the tests before
    for _ in map_async(np.max, arrays, max_workers=2, progress=False):
        most = max(most, memfd_bytes([os.getpid()]))
    assert most - before < 200e6


values = st.one_of(
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=50),
    st.binary(max_size=200),
    st.tuples(st.integers(), st.none()),
    st.integers(0, 9).map(lambda n: np.arange(n)),
    st.integers(600, 700).map(lambda n: np.arange(n)),  # by reference, were it packed first
)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(values, min_size=1, max_size=30),
    st.integers(60, 400),
    st.integers(0, 2),
    st.one_of(st.none(), st.integers(1, 50)),
)
def test_results_are_those_of_a_loop(some, n, n_more, chunksize):
    """For any items, in one list or several, next to an array and a range."""
    lists = [[*(some[k:] * n)[:n]] for k in range(1 + n_more) if some[k:]]
    columns = [*lists, np.arange(2.0 * n).reshape(n, 2), range(n)]
    found = pair(feeds.joined, *columns, chunksize=chunksize)
    assert found == [feeds.joined(*args) for args in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", ["memfd", "named", "file"])
def test_items_may_grow(kind, monkeypatch, tmp_path):
    """By far more than the first ones let expect, in each kind of memory."""
    monkeypatch.setenv("NBSHARE_MEMORY", f"file:{tmp_path}" if kind == "file" else kind)
    items = ["x" * (i // 40) for i in range(MANY)]
    assert pair(len, iter(items)).tolist() == [i // 40 for i in range(MANY)]


def test_arrays_that_come_late_arrive_as_arrays():
    """Plain ones are read-only, whatever their size. Shared memory is the caller's own."""
    shared = nbshare.share(np.ones(1000))
    items = [*range(MANY), np.ones(3), shared, np.ones(9000)]
    found = pair(feeds.total, items, on_error="return")
    assert found[-3:].tolist() == [None, 1000, None]
    assert all("read-only" in str(last_job().errors[MANY + k]) for k in (0, 2))
    assert (shared == -1).all()
    assert (items[-3] == 1).all()


def test_locks_and_their_memory_that_come_late_are_the_callers():
    """Also in blocks that both workers load."""
    counter, lock = nbshare.zeros(3, int), nbshare.SharedLock()
    pair(feeds.add_to, [*range(MANY), *[(counter, lock)] * 500], chunksize=7)
    assert counter.tolist() == [500] * 3


def test_an_item_that_cannot_be_packed_is_named():
    """Before any other runs, and the next run is right."""
    items = [*range(MANY), threading.Lock(), 5]
    with pytest.raises(UnsendableError, match=rf"item {MANY} .*lock"):
        pair(feeds.identity, items)
    still_works()


@pytest.mark.parametrize("first", range(0, 600, 40))
def test_interrupts_at_many_moments_of_the_packing(first):
    """The next run is right."""
    items = [bytes(5000 + i) for i in range(70)]
    for moment in range(first, first + 40, 9):
        with suppress(MapInterrupted), InterruptAt(moment, {arena.__file__, preparing.__file__}):
            assert pair(len, items).tolist() == [*map(len, items)]
    assert pair(len, items).tolist() == [*map(len, items)]


def test_a_class_that_goes_by_value_is_not_counted_for_each_of_its_objects():
    """Thousands of small objects of a notebook's class go together, as those of a module's do."""

    class Local:
        def __init__(self, x):
            self.x = x

    n = 200 * LEAST_BLOCKS
    size, blocks, _ = Arena().pack_items([[Local(i) for i in range(n)]], 0)
    assert (size, len(blocks)) == (200, LEAST_BLOCKS)
    assert Arena().pack_items([[feeds.Counted() for _ in range(n)]], 0)[0] == size
    large = [bytes(BLOCK_BYTES + i) for i in range(64)]
    assert Arena().pack_items([large], 0)[0] == 1
