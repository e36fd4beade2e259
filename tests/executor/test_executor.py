"""Executor keeps the standard library's promises of executors, on nbshare's workers.

CPython's own tests of executors (``Lib/test/test_concurrent_futures``) are here, re-expressed.
Their tests of workers that die are in ``test_executor_faults.py``. Not here, or otherwise:

=============================================  ====================================================
a dead worker breaks the whole executor        it fails its own task, with a `BrokenProcessPool`
``mp_context``                                 refused, as nbshare starts and ends workers itself
processes end, or are few, with the executor   they are all calls', and kept for the next one
a result is waited for before any is queued    no tasks are queued in pipes that could be full
limits of Windows, of semaphores, of queues    there are none of those
a failing initializer is logged                its exception is each task's
a thread that cannot be started at exit        a submit then is refused, in the same words
futures' own states and locks                  they are the standard library's, but for `cancel`
=============================================  ====================================================
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import io
import itertools
import os
import re
import signal
import sys
import threading
import time
import weakref
from concurrent import futures
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import Executor, errors
from nbshare._core.memory import segment_of
from tests.support import pool_tasks as tasks
from tests.support.faultlab import LIMIT_S, wait_until
from tests.support.reductions import refilled, refilled_in_list, refilled_shared

# --------------------------------------------------------------------------- submit, map


def test_submit_gives_the_result(executor):
    """A future gives what the function returns, called with all kinds of arguments."""
    assert executor.submit(pow, 2, 8).result() == 256
    future = executor.submit(tasks.capture, 1, self=2, fn=3)
    assert future.result() == ((1,), {"self": 2, "fn": 3})
    assert isinstance(future, futures.Future)
    assert isinstance(executor, futures.Executor)


@pytest.mark.parametrize("keywords", [{"fn": print, "arg": 1}, {"arg": 1}])
def test_submit_takes_the_function_by_position(executor, keywords):
    """A function by keyword, or none, is refused."""
    with pytest.raises(TypeError):
        executor.submit(**keywords)


@pytest.mark.first
@given(st.lists(st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text())))
@settings(max_examples=20, deadline=None)
def test_results_come_back_as_they_are(shared_executor, values):
    """Neither value nor type changes, whatever else is in the same queue."""
    arguments = [*values, *map(np.float32, range(3)), (1, [2]), 1.0, np.float64(1)]
    found = [
        f.result()[0][0] for f in [shared_executor.submit(tasks.capture, x) for x in arguments]
    ]
    assert [(type(x), repr(x)) for x in found] == [(type(x), repr(x)) for x in arguments]


def test_results_of_any_size_come_back(executor):
    """Small results are elsewhere than larger ones. All are whole, in one window and in many."""
    sizes = [*range(120, 180), 4_000, 5_000, 2_000_000, 0]
    for size, found in zip(sizes, executor.map(bytes, sizes), strict=True):
        assert found == bytes(size)


def test_workers_are_used_again(cold):
    """One after the other tasks run in one worker, and never in more than there may be."""
    with Executor(1) as executor:
        assert len({executor.submit(tasks.pid).result() for _ in range(50)}) == 1
        assert len(set(executor.map(tasks.pid, range(300)))) == 1


@pytest.mark.parametrize("size", [1, 3, 6, 40, 50])
def test_map_is_the_builtin(executor, size):
    """A run gives results in the order of the items, in chunks of any size. The shortest ends."""
    found = executor.map(pow, range(40), itertools.count(), chunksize=size)
    assert list(found) == list(map(pow, range(40), range(40)))
    assert list(executor.map(pow, [], [], chunksize=size)) == []


@pytest.mark.parametrize("size", [1, 7])
def test_an_item_may_fill_the_array_of_the_one_before(executor, size):
    """A chunk has the results as they were when their items ended."""
    found = list(executor.map(refilled, range(40), chunksize=size))
    np.testing.assert_array_equal(found, [refilled(x).copy() for x in range(40)])
    found = list(executor.map(refilled_shared, range(40), chunksize=size))
    np.testing.assert_array_equal(found, [refilled(x).copy() for x in range(40)])
    found = list(executor.map(refilled_in_list, range(40), chunksize=size))
    np.testing.assert_array_equal(found, [[refilled(x).copy()] for x in range(40)])


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("chunksize", 0, ValueError),
        ("chunksize", -1, ValueError),
        ("buffersize", 0, ValueError),
        ("buffersize", -1, ValueError),
        ("buffersize", "1", TypeError),
        ("buffersize", 1.5, TypeError),
    ],
)
def test_map_refuses_sizes_that_make_no_sense(executor, name, value, error):
    """A size below 1, or no integer, is refused at the call."""
    with pytest.raises(error, match=name):
        executor.map(abs, [1], **{name: value})


def test_map_raises_in_its_place(executor):
    """Results before a failure come, and then its exception."""
    results = executor.map(divmod, [1, 1, 1, 1], [2, 3, 0, 5])
    assert [next(results), next(results)] == [(0, 1), (0, 1)]
    with pytest.raises(ZeroDivisionError):
        next(results)


def test_map_times_out(executor, gate):
    """Past the time-out the iterator raises. In time, results come."""
    assert len(list(executor.map(tasks.wait_for, [os.devnull] * 3, timeout=LIMIT_S))) == 3
    with pytest.raises(TimeoutError):
        list(executor.map(tasks.wait_for, [gate], timeout=0.05))


@pytest.mark.parametrize("size", [1, 5])
def test_map_goes_through_its_items_as_far_as_the_buffer(executor, size):
    """With a buffersize only so many tasks are ahead. Else all items are taken at the call."""
    taken = []
    items = (taken.append(i) or i for i in itertools.count())
    results = executor.map(abs, items, buffersize=4, chunksize=size)
    assert len(taken) == 4 * size
    assert [next(results) for _ in range(10)] == list(range(10))
    assert len(taken) <= 10 + 5 * size
    everything = executor.map(abs, (taken.append(0) or -1 for _ in range(5)))
    assert taken.count(0) >= 5
    assert list(everything) == [1] * 5


def test_a_map_that_is_given_up_is_cancelled(gate):
    """Tasks that have not begun when the iterator is deleted do not run."""
    with Executor(1) as executor:
        results = executor.map(tasks.wait_for, [os.devnull, *[gate] * 50])
        next(results)
        del results
        gate.touch()
        start_s = time.monotonic()
        executor.submit(tasks.pid).result()
    assert time.monotonic() - start_s < LIMIT_S


# ------------------------------------------------------------------------------- futures


def test_futures_are_resolved_as_tasks_are_done(executor, gate):
    """A quick task's future does not wait for a slow one that was queued with it."""
    slow, *quick = [executor.submit(tasks.wait_for, p) for p in [gate, *[os.devnull] * 300]]
    done, not_done = futures.wait([slow, *quick], return_when=futures.FIRST_COMPLETED)
    assert slow in not_done
    assert done
    futures.wait(quick, timeout=LIMIT_S)
    assert all(f.done() for f in quick)
    assert slow.running()
    gate.touch()
    assert slow.result() in {f.result() for f in quick} | {slow.result()}


def test_as_completed_gives_the_quick_ones_first(executor, gate):
    """Futures come in the order in which they are done."""
    slow = executor.submit(tasks.wait_for, gate)
    quick = {executor.submit(pow, 2, i) for i in range(20)}
    completed = futures.as_completed([slow, *quick], timeout=LIMIT_S)
    assert {next(completed) for _ in quick} == quick
    gate.touch()
    assert next(completed) is slow


def test_wait_for_the_first_exception(executor, gate):
    """`concurrent.futures.wait` returns when a task fails."""
    slow, bad = executor.submit(tasks.wait_for, gate), executor.submit(divmod, 1, 0)
    done, _ = futures.wait([slow, bad], LIMIT_S, return_when=futures.FIRST_EXCEPTION)
    assert bad in done
    assert slow not in done


@pytest.mark.parametrize("n_quick", [0, 300], ids=["slow", "after-quick"])
def test_what_has_not_begun_can_be_cancelled(gate, tmp_path, n_quick):
    """It never runs, also if it was about to. One that runs cannot be cancelled."""
    with Executor(1) as executor:
        for future in [executor.submit(abs, 1) for _ in range(n_quick)]:  # so windows are large
            future.result()
        running = executor.submit(tasks.begin_and_wait_for, tmp_path / "begun", gate)
        queued = [executor.submit(tasks.pid) for _ in range(300)]
        wait_until((tmp_path / "begun").exists)
        assert running.running()
        assert not running.cancel()
        assert not any(f.running() for f in queued)
        assert all(f.cancel() for f in queued[1:])
        assert all(f.cancel() and f.cancelled() and not f.running() for f in queued[1:])
        # A waiting thread is told at once, though a worker is busy.
        done, _ = futures.wait(queued[1:], LIMIT_S)
        assert len(done) == 299
        gate.touch()
        assert running.result() is None
        assert isinstance(queued[0].result(), int)
        assert not queued[0].cancel()


@pytest.mark.parametrize("seed", range(3))
def test_a_task_is_cancelled_or_runs(executor, seed):
    """Of tasks that are cancelled while they run, each either was and did not, or did."""
    n, rng = 1500, np.random.default_rng(seed)
    runs = nbshare.zeros(n, "i4")
    queued = [executor.submit(tasks.count, runs, i) for i in range(n)]
    told = {int(i): queued[i].cancel() for i in rng.permutation(n)[: n // 2]}
    futures.wait(queued, LIMIT_S)
    assert any(told.values())
    assert [f.cancelled() for f in queued] == [told.get(i, False) for i in range(n)]
    np.testing.assert_array_equal(runs, [not f.cancelled() for f in queued])


def test_cancelled_futures_call_back(gate, tmp_path):
    """A callback of a cancelled future is called at once, in the thread that cancels."""
    threads = []
    with Executor(1) as executor:
        executor.submit(tasks.begin_and_wait_for, tmp_path / "begun", gate)
        wait_until((tmp_path / "begun").exists)
        queued = executor.submit(abs, 1)
        queued.add_done_callback(lambda f: threads.append(threading.current_thread()))
        assert queued.cancel()
        assert threads == [threading.current_thread()]
        with pytest.raises(futures.CancelledError):
            queued.result()
        gate.touch()


def test_futures_know_their_states(gate, tmp_path):
    """Waiting, running, done, failed or cancelled, one at a time, as `cancel` says too."""

    def states(future):
        return future.running(), future.done(), future.cancelled()

    with Executor(1) as executor:
        good, bad = executor.submit(abs, -1), executor.submit(divmod, 1, 0)
        futures.wait([good, bad], LIMIT_S)
        assert states(good) == states(bad) == (False, True, False)
        assert not good.cancel()
        assert not bad.cancel()
        assert good.exception() is None
        running = executor.submit(tasks.begin_and_wait_for, tmp_path / "begun", gate)
        waiting, cancelled = executor.submit(abs, -1), executor.submit(abs, -1)
        wait_until((tmp_path / "begun").exists)
        assert states(running) == (True, False, False)
        assert states(waiting) == (False, False, False)
        assert cancelled.cancel()
        assert states(cancelled) == (False, True, True)
        for kind in (running, waiting):
            with pytest.raises(TimeoutError):
                kind.exception(0)
        gate.touch()
        assert waiting.result() == 1
        seen = []
        for future in (good, bad, cancelled):  # which are done, at once
            future.add_done_callback(seen.append)
        assert seen == [good, bad, cancelled]


def test_waiting_for_futures_times_out(executor, gate):
    """`wait` and `as_completed` give what is done, once each, and then say that time is up."""
    slow, quick = executor.submit(tasks.wait_for, gate), executor.submit(abs, -1)
    quick.result()
    assert futures.wait([slow, quick], 0) == ({quick}, {slow})
    completed = futures.as_completed([quick, slow, quick], timeout=0.05)
    assert next(completed) is quick
    with pytest.raises(TimeoutError, match=r"1 \(of 2\) futures unfinished"):
        next(completed)
    gate.touch()
    assert futures.wait([slow, quick], LIMIT_S, futures.ALL_COMPLETED).done == {slow, quick}


def test_callbacks_are_called(executor, gate):
    """A callback gets its future, one that raises spoils nothing, and may submit more."""
    seen, later = [], []
    future = executor.submit(tasks.wait_for, gate)
    future.add_done_callback(lambda f: later.append(executor.submit(pow, 2, 5)))
    future.add_done_callback(seen.append)
    gate.touch()
    wait_until(lambda: seen)
    assert seen == [future]
    assert later[0].result() == 32


@pytest.mark.parametrize(
    ("args", "chunksize", "text"),
    [(["x"], 1, "(int('x'))"), (["1", "y"], 2, "(int(('1',), ('y',)))")],
)
def test_an_error_says_what_was_called(executor, args, chunksize, text):
    """The function and its arguments, as one would write it."""
    with pytest.raises(ValueError, match="invalid literal") as found:
        list(executor.map(int, args, chunksize=chunksize))
    assert text in found.value.__notes__[0]


def test_prints_come_before_the_result(executor, capsys):
    """The prints of a task are there when its result is."""
    for i in range(50):
        executor.submit(print, i).result()
        assert capsys.readouterr().out == f"{i}\n"


def test_a_line_that_has_not_ended_comes_before_the_result(executor):
    """Nobody knows whether its end will come."""
    for i in range(20):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            executor.submit(print, i, end="").result()
        assert stream.getvalue().strip() == str(i)


class SlowStream(io.StringIO):
    """As a terminal far away."""

    def write(self, text):  # noqa: D102
        time.sleep(0.003)
        return super().write(text)


def test_prints_come_before_the_result_after_a_rest():
    """When the thread that looks after the tasks has ended, and another one begins."""
    with Executor(1) as executor, contextlib.redirect_stdout(SlowStream()) as stream:
        for i in range(6):
            assert executor.submit(print, i).result() is None
            assert stream.getvalue().endswith(f"{i}\n")
            wait_until(lambda: not [t for t in threading.enumerate() if "nbshare" in t.name])


def test_prints_of_a_map_come_before_its_results(executor, capsys):
    """Also of quick tasks, many of which are under way at once."""
    printed = ""
    for i, _ in enumerate(executor.map(print, range(200))):
        printed += capsys.readouterr().out
        assert str(i) in printed.splitlines()


def test_prints_come_before_the_result_while_the_caller_computes(executor, capsys):
    """Though its threads have to wait for the interpreter lock."""
    for i in range(10):
        future = executor.submit(print, i)
        while not future.done():
            sum(range(2000))
        assert capsys.readouterr().out == f"{i}\n"


def test_tasks_see_the_environment_of_an_idle_executor(executor, tmp_path, monkeypatch):
    """However soon after the last result it has changed."""
    for i in range(20):
        folder = tmp_path / str(i)
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert executor.submit(os.getcwd).result() == str(folder)


@pytest.mark.first
@pytest.mark.parametrize("n_workers", [1, 2])
def test_tasks_run_the_code_of_an_idle_executor(tmp_path, monkeypatch, n_workers):
    """However soon after the last result a file was edited."""
    path = tmp_path / "edited_between_tasks.py"
    path.write_text("def version(): return -1\n")
    monkeypatch.syspath_prepend(tmp_path)
    version = importlib.import_module(path.stem).version
    with Executor(n_workers) as executor:
        for i in range(10):
            path.write_text(f"def version(): return {i}  # {'x' * i}\n")
            assert executor.submit(version).result() == i
    del sys.modules[path.stem]


def test_prints_go_where_the_caller_prints_at_the_time(executor):
    """However soon after the last task the caller's own stream has become another."""
    for i in range(30):
        with contextlib.redirect_stdout(io.StringIO()) as stream:
            executor.submit(print, i).result()
        assert stream.getvalue() == f"{i}\n"


@pytest.fixture
def executor_that_stays_open(monkeypatch):
    """Give one of a worker that stays at an open call, where everything happens."""
    monkeypatch.setattr("nbshare._core.engine.tasks.OPEN_S", 3600.0)
    with Executor(1) as executor:
        for _ in range(3):
            executor.submit(abs, 1).result()
        yield executor


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals, nor /proc")
def test_what_a_task_changes_is_undone_while_its_worker_waits(executor_that_stays_open, tmp_path):
    """As after a run, though the worker is there for the tasks to come."""
    executor, here = executor_that_stays_open, os.getcwd()
    pid = executor.submit(tasks.pid).result()

    def is_ignored():
        ignored = re.search(r"SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())[1]
        return bool(int(ignored, 16) >> signal.SIGUSR1 - 1 & 1)

    executor.submit(os.chdir, tmp_path).result()
    executor.submit(signal.signal, signal.SIGUSR1, signal.SIG_IGN).result()
    wait_until(lambda: os.readlink(f"/proc/{pid}/cwd") == here and not is_ignored())
    assert executor.submit(os.getcwd).result() == here


def test_what_a_task_changes_the_next_does_not_see(executor, tmp_path):
    """Of tasks that are waited for, however soon the next one comes."""
    here = os.getcwd()
    for _ in range(150):
        executor.submit(os.chdir, tmp_path).result()
        assert executor.submit(os.getcwd).result() == here


def test_what_a_task_imports_may_be_edited(executor_that_stays_open, tmp_path, monkeypatch):
    """Also if nothing has been imported there before, and its worker stays where it is."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "late_version.py").write_text(
        "def version():\n    import late_helper\n    return late_helper.version\n"
    )
    version = importlib.import_module("late_version").version
    for i in range(5):
        (tmp_path / "late_helper.py").write_text(f"version = {i}  # {'x' * i}\n")
        assert executor_that_stays_open.submit(version).result() == i
    del sys.modules["late_version"]


def test_tasks_that_come_one_by_one_need_one_worker():
    """It is not for each of them that a process is started."""
    with Executor(8) as executor:
        # Now and then the next task may come before the worker is known to be free.
        assert len({executor.submit(tasks.pid).result() for _ in range(200)}) <= 2


def test_many_tasks_that_come_one_by_one_use_all_workers(gate, tmp_path):
    """As soon as there are more tasks than workers at work."""
    with Executor(4) as executor:
        for _ in range(3):
            executor.submit(abs, 1).result()
        for i in range(4):
            begun = tmp_path / str(i)
            executor.submit(tasks.begin_and_wait_for, begun, gate)
            wait_until(begun.exists)
        gate.touch()


KINDS = {
    "small": lambda shared: (np.arange(5), 3.0),
    "large": lambda shared: (np.arange(300_000.0),),
    "larger than a window": lambda shared: (np.ones(1 << 20), b"x" * (1 << 20)),
    "long text": lambda shared: ("x" * 600_000,),
    "shared": lambda shared: (shared[0], shared[1][2:]),
    "other shared": lambda shared: (shared[1],),
    "cannot be sent": lambda shared: (threading.Lock(),),
}


@settings(deadline=None, max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(list(KINDS)), st.booleans()), max_size=30))
def test_tasks_of_all_kinds_come_one_by_one(shared_executor, kinds):
    """Each gets what it was given, in whatever order they come, and whether any is waited for."""
    shared = [nbshare.share(np.arange(100.0)), nbshare.share(np.arange(60_000, dtype="f4"))]
    queued = []
    for kind, is_awaited in kinds:
        given = KINDS[kind](shared)
        queued.append((kind, given, shared_executor.submit(tasks.capture, *given, kind=kind)))
        if is_awaited:
            futures.wait([queued[-1][-1]])
    for kind, given, future in queued:
        if kind == "cannot be sent":
            assert isinstance(future.exception(LIMIT_S), errors.UnsendableError)
            continue
        found, keywords = future.result(LIMIT_S)
        assert keywords == {"kind": kind}
        for one, other in zip(found, given, strict=True):
            np.testing.assert_array_equal(one, other)


class Pickled:
    """Counts how often it is pickled. A worker gets a number."""

    n = 0

    def __reduce__(self):
        Pickled.n += 1
        return int, (7,)


@pytest.mark.parametrize(
    ("hold", "n"),
    [
        (lambda *values: list(values), 1),  # as dask's batches
        (lambda *values: [("key", value) for value in values], 1),
        (lambda *values: dict(enumerate(values)), 2),  # not known to be large before
    ],
    ids=["list", "tuples", "other"],
)
def test_large_arguments_in_a_list_are_pickled_once(executor, hold, n):
    """Whether a task is too large to join others is seen before it is pickled, if it is plain."""
    for _ in range(3):
        Pickled.n = 0
        (found,), _ = executor.submit(tasks.capture, hold(Pickled(), bytes(2 << 20))).result()
        assert found == hold(7, bytes(2 << 20))
        assert Pickled.n <= n


def test_a_list_that_holds_itself_can_be_sent(executor):
    """It is not weighed without end."""
    loop = []
    loop += [loop, 3]
    (found,), _ = executor.submit(tasks.capture, loop).result()
    assert found[0] is found
    assert found[1] == 3


def test_memory_is_not_kept_by_tasks_that_do_without_it(gate, tmp_path):
    """A long task that comes right after some with a shared array does not keep its memory."""
    with Executor(2) as executor:
        array = nbshare.zeros(1 << 20)
        for _ in range(5):
            assert executor.submit(np.sum, array).result() == 0
        executor.submit(tasks.begin_and_wait_for, tmp_path / "begun", gate)
        segment = weakref.ref(segment_of(array)[0])
        del array
        wait_until((tmp_path / "begun").exists)
        wait_until(lambda: segment() is None)
        gate.touch()


def test_arguments_and_results_go_while_others_come(executor_that_stays_open):
    """Nobody has them when their task is done, and its future is gone."""
    for _ in range(5):
        given = np.ones(1000)
        (found,), _ = executor_that_stays_open.submit(tasks.capture, given).result()
        gone = [weakref.ref(given), weakref.ref(found)]
        del given, found
        executor_that_stays_open.submit(abs, 1).result()
        wait_until(lambda gone=gone: not any(ref() is not None for ref in gone))


def test_large_results_are_not_held(executor):
    """Those of tasks that come one by one, when they are deleted."""
    held = []
    for _ in range(20):
        array = executor.submit(np.ones, 1 << 18).result()
        held.append(weakref.ref(segment_of(array)[0]))
        del array
        assert sum(segment() is not None for segment in held) < 10  # each has a descriptor
    wait_until(lambda: not any(segment() is not None for segment in held))


def test_workers_run_at_once(tmp_path):
    """As many tasks run at a time as there are workers, because tasks may wait for each other."""
    begun = [tmp_path / str(i) for i in range(3)]
    with Executor(3) as executor:
        tiny = [executor.submit(abs, 1) for _ in range(500)]  # so that windows are large
        ring = [
            executor.submit(tasks.begin_and_wait_for, begun[i], begun[(i + 1) % 3])
            for i in range(3)
        ]
        for future in [*tiny, *ring]:
            future.result(timeout=LIMIT_S)


def test_submits_from_many_threads_and_executors():
    """Executors and threads do not disturb each other."""

    def work(executor, k):
        return sum(f.result() for f in [executor.submit(abs, k) for _ in range(50)])

    with Executor(2) as one, Executor(1) as other, futures.ThreadPoolExecutor(6) as threads:
        sums = [threads.submit(work, (one, other)[k % 2], k) for k in range(6)]
        assert [s.result() for s in sums] == [50 * k for k in range(6)]


def test_it_runs_beside_maps(executor):
    """A run in the meantime has its own workers."""
    queued = [executor.submit(abs, i) for i in range(200)]
    assert nbshare.parallel_map(abs, range(100), progress=False).sum() == 4950
    assert [f.result() for f in queued] == list(range(200))


def test_nothing_is_kept():
    """Functions, arguments and results go when their last user does, without a collection."""
    gc.collect()
    gc.disable()
    try:
        _see_what_is_kept()
    finally:
        gc.enable()


def _see_what_is_kept():
    with Executor(1) as executor:
        counter = tasks.Counter()
        gone = weakref.ref(counter)
        future = executor.submit(counter)
        del counter
        future.result()
        wait_until(lambda: gone() is None)
        for found in executor.map(tasks.capture, [tasks.Counter() for _ in range(10)]):
            counter = weakref.ref(found[0][0])
            del found
            wait_until(lambda last=counter: last() is None)  # its giver drops it, too


def test_each_task_has_its_own_function():
    """The next task does not see what a callable object changes in itself."""
    counter = tasks.Counter()
    with Executor(1) as executor:
        assert [f.result() for f in [executor.submit(counter) for _ in range(50)]] == [1] * 50


# ------------------------------------------------------------------------------- asyncio


def test_an_event_loop_runs_tasks_in_it(executor):
    """`loop.run_in_executor` awaits results and exceptions."""

    async def main():
        loop = asyncio.get_running_loop()
        found = await asyncio.gather(*(loop.run_in_executor(executor, abs, -i) for i in range(9)))
        with pytest.raises(ZeroDivisionError):
            await loop.run_in_executor(executor, divmod, 1, 0)
        return found

    assert asyncio.run(main()) == list(range(9))
