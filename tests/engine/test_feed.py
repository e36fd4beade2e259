"""Long lists: workers begin while the rest is still being packed."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import suppress
from functools import partial

import feeds
import numpy as np
import pytest
from faultlab import memfd_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from interrupts import InterruptAt

import nbshare
from nbshare import MapInterrupted, last_job, map_async, parallel_map
from nbshare.arrays.arena import BLOCK_BYTES, Arena
from nbshare.engine import call, preparing, supply
from nbshare.errors import PartialResultWarning, UnsendableError
from nbshare.wire import feed

MANY = 40_000  # small items, which are packed in 32 blocks


def pair(*args, **options):
    return parallel_map(*args, max_workers=2, progress=False, **options)


def still_works():
    assert pair(feeds.identity, list(range(MANY))).tolist() == list(range(MANY))


def test_items_run_before_the_last_one_is_packed(tmp_path):
    """The last waits, when it is pickled, for the first to have run."""
    path = str(tmp_path / "running")
    items = [*range(MANY), feeds.Awaits(path)]
    assert pair(feeds.mark, items, shared={"path": path})[-1] == 7


def test_what_a_function_keeps_of_an_item_stays_as_it_came():
    """Its memory is not used for another one, though the item is done."""
    assert pair(feeds.keep, (np.full(60_000, float(i)) for i in range(60))).all()


def test_items_that_are_done_take_no_memory():
    """Of many arrays that a generator gives, those under way do, and as many that wait."""
    arrays = (np.full(250_000, float(i)) for i in range(300))  # 600 MB in all
    most = 0
    for _ in map_async(np.max, arrays, max_workers=2, progress=False):
        most = max(most, memfd_bytes([os.getpid()]))
    assert most < 200e6


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_other_backends_pack_first(backend, tmp_path):
    """They have no second CPU to use in the meantime, and lists mean the same to them."""
    (path := tmp_path / "there").touch()
    items = [*range(MANY), feeds.Awaits(path)]
    found = parallel_map(feeds.identity, items, backend=backend, progress=False)
    assert found.tolist() == [*range(MANY), 7]


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
def test_results_are_those_of_a_loop(monkeypatch, some, n, n_more, chunksize):
    """Whatever the items, in one list or several, next to an array and a range."""
    monkeypatch.setattr(preparing, "ENOUGH_ITEMS", 0)
    lists = [[*(some[k:] * n)[:n]] for k in range(1 + n_more) if some[k:]]
    columns = [*lists, np.arange(2.0 * n).reshape(n, 2), range(n)]
    found = pair(feeds.joined, *columns, chunksize=chunksize)
    assert found == [feeds.joined(*args) for args in zip(*columns, strict=True)]


@pytest.mark.parametrize("kind", ["memfd", "named", "file"])
def test_items_may_grow(kind, monkeypatch, tmp_path):
    """By far more than the first ones let expect, in each kind of memory."""
    monkeypatch.setenv("NBSHARE_MEMORY", f"file:{tmp_path}" if kind == "file" else kind)
    items = ["x" * (i // 40) for i in range(MANY)]
    assert pair(len, items).tolist() == [i // 40 for i in range(MANY)]


def test_arrays_that_come_late_arrive_as_arrays():
    """Large and small ones may be written to; shared memory is the caller's own."""
    shared = nbshare.share(np.ones(1000))
    items = [*range(MANY), np.ones(3), np.ones(9000), shared]
    assert pair(feeds.total, items)[-3:].tolist() == [3, 9000, 1000]
    assert (shared == -1).all()
    assert (items[-2] == 1).all()


def test_locks_and_their_memory_that_come_late_are_the_callers():
    """Also in blocks that both workers load."""
    counter, lock = nbshare.zeros(3, int), nbshare.SharedLock()
    pair(feeds.add_to, [*range(MANY), *[(counter, lock)] * 500], chunksize=7)
    assert counter.tolist() == [500] * 3


def test_an_item_that_cannot_be_packed_is_named():
    """Though others have run by then; what is done is kept, and the next run is right."""
    items = [*range(MANY), threading.Lock(), 5]
    with pytest.raises(UnsendableError, match=rf"item {MANY} .*lock"):
        pair(feeds.identity, items)
    assert last_job().state == "failed"
    assert last_job().n_done <= MANY
    still_works()


def test_an_error_ends_the_packing():
    """A million items of a failed run are not pickled."""
    feeds.Counted.n = 0
    items = [*range(MANY), *[feeds.Counted() for _ in range(1_000_000)]]
    with pytest.raises(ValueError, match="the first one"):
        pair(feeds.fail_at_first, items)
    assert feeds.Counted.n < 1_000_000


def test_ctrl_c_while_items_are_packed(tmp_path):
    """Results up to then are kept, and the next run is right."""
    path = str(tmp_path / "running")
    items = [
        *range(MANY),
        feeds.Awaits(path),
        feeds.Calls(partial(signal.raise_signal, signal.SIGINT)),
        *range(100),
    ]
    with pytest.raises(MapInterrupted):
        pair(feeds.mark, items, shared={"path": path})
    job = last_job()
    assert job.state == "interrupted"
    done = np.flatnonzero(job.present)
    assert 0 < len(done) <= MANY
    assert (job.partial()[done] == done).all()
    still_works()


@pytest.mark.parametrize("first", range(0, 600, 40))
def test_interrupts_at_many_moments_of_the_packing(first):
    """No worker waits for items that never come."""
    items = [bytes(5000 + i) for i in range(70)]
    for moment in range(first, first + 40, 9):
        with suppress(MapInterrupted), InterruptAt(moment, {feed.__file__, supply.__file__}):
            assert pair(len, items).tolist() == [*map(len, items)]
    assert pair(len, items).tolist() == [*map(len, items)]


def test_a_worker_that_dies_is_replaced_while_items_are_packed(tmp_path):
    """The new one has the items that were packed before it came, and those after."""
    path = str(tmp_path / "died")
    items = [*range(MANY), feeds.Awaits(f"{path}.again")]
    found = pair(feeds.die_once, items, shared={"path": path}, retries=1)
    assert found.tolist() == [*range(MANY), 7]


def test_waiting_for_items_is_no_items_time():
    """A time-out is of an item that runs."""
    items = [*range(MANY), feeds.Slow(0.6)]
    assert pair(feeds.identity, items, timeout=0.2)[-1] == 7


def test_a_map_may_be_stopped_while_items_are_packed(tmp_path, monkeypatch):
    """The one that packs notices before the next block."""
    runs = []

    def start(run, start=call.Call.start):
        runs.append(run)
        start(run)

    monkeypatch.setattr(call.Call, "start", start)
    path = str(tmp_path / "running")
    stops = feeds.Calls(lambda: runs[0].stop())
    items = [*range(MANY), feeds.Awaits(path), stops, *[feeds.Counted() for _ in range(100_000)]]
    feeds.Counted.n = 0
    with pytest.warns(PartialResultWarning):
        found = pair(feeds.mark, items, shared={"path": path})
    assert 0 < len(last_job().present.nonzero()[0]) <= MANY
    assert len(found) == len(items)
    assert feeds.Counted.n < 100_000
    still_works()


def test_a_class_that_goes_by_value_is_not_counted_for_each_of_its_objects():
    """Thousands of small objects of a notebook's class go together, as those of a module's do."""

    class Local:
        def __init__(self, x):
            self.x = x

    size, blocks = Arena().pack_items([Local(i) for i in range(6400)], 0)
    assert (size, len(blocks)) == (200, 32)
    assert Arena().pack_items([feeds.Counted() for _ in range(6400)], 0)[0] == size
    large = [bytes(BLOCK_BYTES + i) for i in range(64)]
    assert Arena().pack_items(large, 0)[0] == 1
