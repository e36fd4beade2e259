"""Several threads that wait for one job, iterate over it and ask it, at the same time."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from nbshare import MISSING, SharedArray, map_async, parallel_map, shutdown
from nbshare._core.arrays.known import KnownObjects
from nbshare._core.engine.feed import ItemFeed
from nbshare._core.functions import files
from nbshare._core.functions.files import register_files
from nbshare._core.functions.freshness import ImportLog
from nbshare._core.wire.board import Board

N = 12_000
N_THREADS = 8


@pytest.fixture(autouse=True)
def _switching_threads():
    """Let threads take turns as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def described(i):
    return {"i": i, "text": "x" * 20, "part": [i]}


def right(i, value):
    expected = described(i)
    return value is MISSING or value == (expected if isinstance(value, dict) else float(i))


def ask_result(job):
    result = job.result(60)
    assert len(result) == N
    assert all(right(i, value) and value is not MISSING for i, value in enumerate(result))


def ask_partial(job):
    while not job.done():
        job.wait(0.001)
    for _ in range(3):
        partial = job.partial()
        assert len(partial) == N
        assert all(right(i, value) for i, value in enumerate(partial))


def ask_now(job):
    while not job.wait(0.002):
        partial = job.partial()
        if partial is not None and not isinstance(partial, np.ndarray):
            assert all(right(i, value) for i, value in enumerate(partial))
        assert 0 <= job.n_done <= N
        assert len(job.present) <= N
        assert job.errors == {}
        assert sum(worker.n_items for worker in job.stats) <= N


KINDS = {"objects": described, "numbers": float}


@pytest.mark.parametrize("backend", [None, "threads"])
@pytest.mark.parametrize("func", KINDS.values(), ids=KINDS)
def test_all_threads_get_the_results_in_their_places(func, backend):
    """Those that wait, a done-callback, and those that ask during the run and after it."""
    asks = [ask_result, ask_partial, ask_now, ask_result] * 2
    for _ in range(2):
        job = map_async(func, range(N), max_workers=2, backend=backend)
        told = threading.Event()
        wrong = []

        def tell(job, told=told, wrong=wrong):
            try:
                ask_result(job)
            except BaseException as error:
                wrong.append(error)
            told.set()

        job.add_done_callback(tell)
        with ThreadPoolExecutor(N_THREADS) as pool:
            for asked in [pool.submit(ask, job) for ask in asks]:
                asked.result(60)
        assert told.wait(60)
        assert not wrong


both_load = threading.Barrier(2)


def load():
    with contextlib.suppress(threading.BrokenBarrierError):
        both_load.wait(0.5)
        return "while another item was loaded"
    return "alone"


class LoadedSlowly:
    """Is loaded by `load`."""

    def __reduce__(self):
        return load, ()


def test_items_are_loaded_by_one_thread_at_a_time():
    """Libraries such as pint complete their setup at the first object that is loaded."""
    items = [LoadedSlowly(), LoadedSlowly()]
    found = parallel_map(str, items, max_workers=2, chunksize=1, backend="threads")
    assert found == ["alone", "alone"]


@pytest.mark.parametrize("kind", ["list", "generator"])
def test_threads_that_iterate_share_the_results(kind):
    """Each result goes to one of them, and is that of its item."""
    items = range(N) if kind == "list" else iter(range(N))
    job = map_async(described, items, max_workers=2)
    with ThreadPoolExecutor(N_THREADS) as pool:
        parts = list(pool.map(lambda _: list(job), range(N_THREADS)))
    taken = [pair for part in parts for pair in part]
    assert sorted(i for i, _ in taken) == list(range(N))
    assert all(value == described(i) for i, value in taken)


def test_threads_that_iterate_in_order_share_the_results():
    """Each gets some of them, in order, and each result goes to one of them."""
    for _ in range(5):
        job = map_async(str, range(N), max_workers=2)
        with ThreadPoolExecutor(N_THREADS) as pool:
            parts = pool.map(lambda _, job=job: list(map(int, job.in_order())), range(N_THREADS))
            parts = list(parts)
        assert all(part == sorted(part) for part in parts)
        assert sorted(itertools.chain(*parts)) == list(range(N))


def test_what_one_thread_changes_in_out_stays():
    """A thread that waits, too, does not copy the results again."""
    for _ in range(5):
        out = np.zeros(N)
        job = map_async(float, range(N), max_workers=2, out=out)
        with ThreadPoolExecutor(N_THREADS) as pool:
            waits = [pool.submit(job.result, 60) for _ in range(N_THREADS)]
            waits.pop().result(60)
            out[:] = -1
            for wait in waits:
                wait.result(60)
        assert (out == -1).all()


@pytest.mark.filterwarnings("ignore::nbshare.errors.PartialResultWarning")
def test_threads_may_call_while_another_one_calls_shutdown():
    """Each has its own results, or those that were done."""

    def call(k):
        items = [k, -k, 2 * k]
        found = parallel_map(float, items, max_workers=2, progress=False)
        is_whole = isinstance(found, SharedArray)
        values = [each for each in found if each is not MISSING and each is not np.ma.masked]
        assert values == items if is_whole else set(values) <= set(items)

    with ThreadPoolExecutor(3) as pool:
        calls = [pool.submit(call, k) for k in range(30)]
        while not all(each.done() for each in calls):
            shutdown()
        for each in calls:
            each.result()


def set_model(value):
    global model
    model = value


def read_model(_):
    return model


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_an_initializer_runs_once_for_each_call_of_this_process(backend):
    """Its variables may be gone, as when the cells of a notebook run again."""
    for _ in range(2):
        set_model(None)
        options = {"initializer": set_model, "initargs": ("ours",), "backend": backend}
        assert set(parallel_map(read_model, range(4), **options)) == {"ours"}


N_PREPARED = Counter()


def prepare(k):
    N_PREPARED[k] += 1  # of one call alone


def test_an_initializer_runs_once_whatever_calls_begin_at_the_same_time():
    """Those of other threads, with initializers of their own, do not make it run again."""

    def call(k):
        for i in range(20):
            options = {"initializer": prepare, "initargs": [(k, i)], "max_workers": 3}
            parallel_map(float, range(3), backend="threads", progress=False, **options)

    with ThreadPoolExecutor(N_THREADS) as pool:
        list(pool.map(call, range(N_THREADS)))
    assert set(N_PREPARED.values()) == {1}


def all_at_once(*actions):
    """Do things again and again for a second, each in a thread of its own."""
    end = time.monotonic() + 1.0

    def act(action):
        while time.monotonic() < end:
            action()

    with ThreadPoolExecutor(len(actions)) as pool:
        for acting in [pool.submit(act, action) for action in actions]:
            acting.result(60)


def test_calls_may_begin_and_end_while_other_threads_execute_files(tmp_path):
    """Each notes the files that are executed meanwhile."""
    path = tmp_path / "executed.py"
    path.touch()
    code, log = compile("", str(path), "exec"), ImportLog()
    all_at_once(lambda: exec(code), ImportLog, log.take, log.take, lambda: exec(code))


def test_modules_may_be_searched_for_while_other_threads_register_files(monkeypatch):
    """As calls do."""
    monkeypatch.setattr(files, "_paths", {})
    names = (f"registered_{k}" for k in itertools.count())
    all_at_once(
        lambda: register_files({next(names): "/no/such/file.py"}),
        *[lambda: importlib.util.find_spec("no_such_module")] * 2,
    )


def test_items_are_read_while_others_come():
    """As threads that give a generator's items to hosts do."""
    board = Board.create(None, 1, is_private=True)
    feed = ItemFeed(board, KnownObjects())
    feed.append([["first"]])
    with ThreadPoolExecutor(1) as others:
        coming = others.submit(lambda: [feed.append([[i]]) for i in range(500)])
        while not coming.done():
            assert feed.columns(0, 1) == (["first"],)
        coming.result()
