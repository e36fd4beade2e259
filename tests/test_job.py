"""Maps in the background. A Job has a Future's methods, gives results as they come, and stops."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gc
import inspect
import io
import itertools
import operator
import os
import queue
import signal
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import Job, last_job, map_async, parallel_map
from nbshare._core.arguments.options import MapOptions
from nbshare.errors import PartialResultWarning
from tests.support import figures, streams, tasks
from tests.support.faultlab import wait_until

LONG_S = 60.0
FORKS = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
)


@pytest.fixture
def long_job():
    """Return a job of which some items are done and others take very long."""
    job = map_async(
        figures.sleep_for, [0.0, 0.0, LONG_S, LONG_S, LONG_S], max_workers=2, chunksize=1
    )
    wait_until(lambda: job.n_done == 2)
    yield job
    job.cancel()
    job.wait(10)


def test_results_are_those_of_parallel_map():
    """`result` waits and gives the same array."""
    job = map_async(tasks.double, range(100))
    assert np.array_equal(job.result(), parallel_map(tasks.double, range(100)))
    assert job.done()
    assert not job.running()
    assert not job.cancelled()
    assert job.exception() is None
    assert np.array_equal(job.result(), np.arange(100) * 2)


def test_starting_does_not_wait(long_job):
    """`map_async` returns while items run, and says how far it is."""
    assert long_job.running()
    assert not long_job.done()
    assert (long_job.n_done, long_job.n_items) == (2, 5)
    assert long_job.present.tolist() == [True, True, False, False, False]
    assert long_job.partial().mask.tolist() == [False, False, True, True, True]


def test_waiting_has_a_limit(long_job):
    """`wait`, `result` and `exception` give up in time, and the run goes on."""
    assert long_job.wait(0.05) is False
    with pytest.raises(TimeoutError, match="2 of 5"):
        long_job.result(timeout=0.05)
    with pytest.raises(TimeoutError):
        long_job.exception(timeout=0)
    assert long_job.running()


def test_cancelling_keeps_what_is_done(long_job):
    """A cancelled map ends at once, and its result is what is there, with a warning."""
    assert long_job.cancel() is True
    assert long_job.wait(5)
    assert long_job.cancelled()
    assert long_job.cancel() is False
    with pytest.warns(PartialResultWarning, match="2 of 5"):
        assert long_job.result().tolist() == [0.0, 0.0, None, None, None]
    assert last_job() is long_job
    assert parallel_map(tasks.double, [4]).tolist() == [8]


def test_a_stop_comes_between_the_items_of_a_chunk():
    """Where it can end no process, the item that runs is the last one."""
    has_begun, gate, begun = threading.Event(), threading.Event(), []

    def hold(i):
        begun.append(i)
        has_begun.set()
        assert gate.wait(20)
        return i

    options = {"backend": "threads", "chunksize": 50, "max_workers": 1, "progress": False}
    job = map_async(hold, range(50), **options)
    assert has_begun.wait(20)
    job.cancel()
    gate.set()
    assert job.wait(20)
    assert begun == [0]


def test_failures_are_raised_by_result():
    """The error of an item comes out of `result` and `exception`, as itself."""
    job = map_async(figures.pair_but_4, range(6))
    assert isinstance(job.exception(), ValueError)
    with pytest.raises(ValueError, match="4"):
        job.result()
    assert job.done()
    assert list(job.errors) == [4]
    assert last_job() is job


def test_finished_jobs_are_not_kept_alive():
    """`last_job` has a background job while it runs, and forgets it when it is done."""
    job = map_async(tasks.double, range(10))
    job.wait()
    wait_until(lambda: last_job() is None)  # the callback runs in a thread of its own


def test_callbacks_are_called_once(long_job):
    """Those added before the end are called at the end, later ones at once, each with the job."""
    called = queue.SimpleQueue()
    long_job.add_done_callback(called.put)
    assert called.empty()
    long_job.cancel()
    assert called.get(timeout=5) is long_job
    long_job.add_done_callback(called.put)
    assert called.get(timeout=5) is long_job
    assert called.empty()


def test_a_callback_that_raises_harms_nobody(monkeypatch):
    """Its error is printed, and the run, and other callbacks, are not affected."""
    called, printed = queue.SimpleQueue(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    job = map_async(figures.sleep_for, [0.05] * 4)
    job.add_done_callback(lambda job: 1 / 0)
    job.add_done_callback(called.put)
    assert called.get(timeout=10) is job
    assert job.result().tolist() == [0.05] * 4
    wait_until(lambda: "ZeroDivisionError" in printed.getvalue())


def test_a_job_can_be_awaited():
    """In a coroutine other tasks go on while a run is awaited."""

    async def both():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        ticking = asyncio.create_task(tick())
        result = await map_async(figures.sleep_for, [0.2, 0.2])
        ticking.cancel()
        return result.tolist(), ticks

    result, ticks = asyncio.run(both())
    assert result == [0.2, 0.2]
    assert ticks > 3


CHILDS = {
    "result": lambda job: job.result(5),
    "exception": lambda job: job.exception(5),
    "wait": lambda job: job.wait(5),
    "done": Job.done,
    "cancel": Job.cancel,
    "partial": Job.partial,
    "iterating": next,
    "await": lambda job: asyncio.run(asyncio.wait_for(job, 5)),
    "add_done_callback": lambda job: job.add_done_callback(print),
    "n_done": lambda job: job.n_done,
}


def forked(action):
    """Return what an action gives or raises in a forked child, as text."""
    reading, writing = os.pipe()
    if (pid := os.fork()) == 0:
        signal.alarm(10)
        try:
            told = str(action())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        told = pipe.read()
    assert os.waitpid(pid, 0)[1] == 0, "the child hangs"
    return told


@FORKS
@pytest.mark.parametrize("do", CHILDS.values(), ids=CHILDS)
def test_a_forked_child_is_told_whose_job_it_is(do, tmp_path):
    """Methods that wait, read or end raise in the child. The parent's run goes on to its end."""
    go = tmp_path / "go"
    job = map_async(streams.wait_for, range(6), shared={"path": go}, max_workers=2)
    it = iter(job)
    told = forked(lambda: do(it if do is next else job))
    assert f" was forked from process {os.getpid()} " in told, told
    assert forked(lambda: repr(job)) == f"<Job wait_for: of process {os.getpid()}>"
    go.touch()
    assert job.result(20).tolist() == list(range(6))


@FORKS
def test_a_forked_child_that_drops_an_endless_job_leaves_it_running():
    """The child has its own runs. The parent keeps its run, which continues."""
    source = itertools.chain([0.0], itertools.repeat(0.4))
    jobs = [map_async(figures.sleep_for, source, max_workers=2, chunksize=1)]
    next(iter(jobs[0]))

    def drop():
        is_gone = weakref.ref(jobs.pop())
        parallel_map(tasks.double, [1])  # is the last job now
        return is_gone()

    assert forked(drop) == "None"
    assert {1, 2, 3, 4} <= {i for i, _ in itertools.islice(jobs[0], 6)}
    assert jobs[0].cancel()


@FORKS
def test_a_forked_child_can_read_a_job_that_was_over():
    """Its results are there, in memory that both have."""
    job = map_async(tasks.double, range(4))
    job.wait()
    assert forked(job.result) == "[0 2 4 6]"


def test_a_cancelled_await_ends_the_map(long_job):
    """A task that awaits a job takes it along when it is cancelled."""

    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(long_job, 0.1)

    asyncio.run(impatient())
    assert long_job.wait(5)
    assert long_job.state == "interrupted"


def test_a_cancelled_await_cancels_others_and_the_event_loop_goes_on(long_job):
    """Another task that awaits the same job is cancelled as of a Future, not interrupted."""

    async def both():
        waiting = [asyncio.ensure_future(long_job) for _ in range(2)]
        await asyncio.wait(waiting, timeout=0.05)
        waiting[0].cancel()
        await asyncio.wait(waiting, timeout=5)
        await asyncio.sleep(0)  # the loop would end now
        return [task.cancelled() for task in waiting]

    assert asyncio.run(both()) == [True, True]


def test_a_cancelled_await_of_a_job_that_is_over_changes_nothing():
    """Its end is not known yet to the tasks that await it. The others get the results."""
    job = map_async(tasks.double, range(4))

    async def both():
        waiting = [asyncio.ensure_future(job) for _ in range(2)]
        await asyncio.sleep(0)
        wait_until(job.done)  # in the thread of the loop
        waiting[0].cancel()
        return await waiting[1]

    assert asyncio.run(both()).tolist() == [0, 2, 4, 6]
    assert job.state == "done"
    assert job.result().tolist() == [0, 2, 4, 6]


def test_a_shielded_await_leaves_the_map_running(long_job):
    """A time-out ends the wait alone, and the job can be awaited again."""

    async def look():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.shield(long_job), 0.05)
        running = long_job.running()
        long_job.cancel()  # or the shielded wait would go on with the loop
        with pytest.warns(PartialResultWarning, match="2 of 5"):
            await long_job
        return running

    assert asyncio.run(look())


@pytest.mark.parametrize("items", [range(4), iter(range(4))], ids=["list", "generator"])
def test_a_loop_in_a_coroutine_gives_results_while_other_tasks_go_on(items, tmp_path):
    """The run waits for another task, which runs while the loop waits."""
    go = tmp_path / "go"
    job = map_async(streams.wait_for, items, shared={"path": go}, max_workers=2)

    async def let_go():
        go.touch()

    async def loop():
        letting = asyncio.create_task(let_go())
        taken = [pair async for pair in job]
        return taken, letting.done()

    taken, is_done = asyncio.run(asyncio.wait_for(loop(), 20))
    assert (sorted(taken), is_done) == ([(i, i) for i in range(4)], True)


def test_a_loop_in_a_coroutine_raises_the_error_after_the_results():
    """As a plain loop does, and a run with reduce= is refused."""

    async def look():
        loop = aiter(map_async(float, ["1.5", "off"], max_workers=1, chunksize=1))
        assert await anext(loop) == (0, 1.5)
        with pytest.raises(ValueError, match="'off'"):
            await anext(loop)
        with pytest.raises(TypeError, match="reduce="):
            await anext(aiter(map_async(float, ["1.5"], reduce=max)))

    asyncio.run(look())


def test_a_cancelled_loop_in_a_coroutine_ends_the_map(long_job):
    """As a cancelled await does."""

    async def loop():
        async for _ in long_job:
            pass

    async def impatient():
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(loop(), 0.1)

    asyncio.run(impatient())
    assert long_job.wait(5)
    assert long_job.state == "interrupted"


def test_waits_for_futures_tell_what_to_use_for_jobs(long_job):
    """Those of asyncio would hang, because a job calls functions in a thread."""

    async def wait():
        await asyncio.wait([long_job])

    with pytest.raises(TypeError, match="ensure_future"):
        asyncio.run(asyncio.wait_for(wait(), 5))
    with pytest.raises(AttributeError, match=r"wait\(\)"):
        concurrent.futures.wait([long_job])
    long_job.cancel()


def test_results_come_in_order_of_completion():
    """Iterating gives each index and result once, as soon as it is there."""
    job = map_async(figures.sleep_for, [0.6, 0.0, 0.1], max_workers=3, chunksize=1)
    assert list(job) == [(1, 0.0), (2, 0.1), (0, 0.6)]


@pytest.mark.parametrize("make", [tasks.double, figures.table, figures.pair_with_text])
def test_any_result_can_be_iterated_over(make):
    """Numbers, objects and tuples are the same as those of `parallel_map`."""
    results = dict(map_async(make, range(1, 8)))
    expected = parallel_map(make, range(1, 8), out="list")
    assert sorted(results) == list(range(7))
    assert all(str(results[i]) == str(expected[i]) for i in range(7))


@pytest.mark.parametrize("items", [range(40), iter(range(40))], ids=["list", "generator"])
def test_loops_in_turn_are_given_each_result_once(items):
    """No result goes to two loops."""
    job = map_async(tasks.double, items)
    job.wait(10)
    loops = [iter(job), iter(job)]
    given = [next(loops[k % 2]) for k in range(7)]
    given += [*loops[0], *loops[1]]
    assert sorted(given) == [(i, 2 * i) for i in range(40)]


def test_loops_in_threads_are_given_each_result_once():
    """However many threads take results of a job, each is taken by one of them."""
    job = map_async(tasks.double, range(20_000))
    start = threading.Barrier(4)

    def take():
        start.wait()
        return list(job)

    with ThreadPoolExecutor(4) as threads:
        taken = [threads.submit(take) for _ in range(4)]
    assert sorted(pair for future in taken for pair in future.result()) == [
        (i, 2 * i) for i in range(20_000)
    ]


def test_iterating_raises_the_failure_after_what_was_done():
    """Results from before the failure come first."""
    results = iter(map_async(figures.pair_but_4, range(6), max_workers=1, chunksize=1))
    assert [next(results)[0] for _ in range(4)] == [0, 1, 2, 3]
    with pytest.raises(ValueError, match="4"):
        next(results)


def test_failures_can_be_iterated_over():
    """With on_error="return" the exception is in its place."""
    results = dict(map_async(figures.pair_but_4, range(6), on_error="return"))
    assert isinstance(results[4], ValueError)
    assert results[5][0] == 5


def test_two_jobs_run_at_once():
    """A second job does not wait for the first."""
    slow = map_async(figures.sleep_for, [LONG_S] * 2)
    assert map_async(tasks.double, [1, 2]).result(timeout=10).tolist() == [2, 4]
    assert slow.running()
    assert slow.cancel()
    assert slow.wait(5)


def test_first_calls_of_many_threads_share_one_engine(cold):
    """However many threads begin at once, the end of the workers leaves no process."""
    for _ in range(3):
        start = threading.Barrier(8)

        def begin(start=start):
            start.wait()
            return parallel_map(tasks.double, [1, 2]).tolist()

        before = set(psutil.Process().children())
        with ThreadPoolExecutor(8) as threads:
            assert [f.result() for f in [threads.submit(begin) for _ in range(8)]] == [[2, 4]] * 8
        nbshare.shutdown()
        assert set(psutil.Process().children()) <= before


def test_a_job_goes_on_if_nobody_keeps_it(tmp_path):
    """Dropping the job neither ends nor breaks the run."""
    out = nbshare.zeros(4)
    map_async(figures.sleep_for, [0.1] * 4, out=out)
    gc.collect()
    wait_until(out.all)
    assert out.tolist() == [0.1] * 4


def test_a_plain_array_is_filled():
    """out= is filled when `result` returns."""
    out = np.zeros(50)
    assert map_async(tasks.double, range(50), out=out).result() is out
    assert out.tolist() == [2 * i for i in range(50)]


@pytest.mark.parametrize(("out", "expected"), [(None, (0,)), ("list", [])])
def test_no_items(out, expected):
    """A job of nothing is over at once."""
    result = map_async(tasks.double, [], out=out).result(timeout=5)
    assert (result.shape if out is None else result) == expected


def test_wrong_use_is_refused_at_once():
    """`map_async` refuses the same as `parallel_map`, before anything starts."""
    with pytest.raises(TypeError, match="callable"):
        map_async(3, [1])
    with pytest.raises(TypeError, match="iterable"):
        map_async(tasks.double)
    with pytest.raises(ValueError, match="background"):
        map_async(tasks.double, [1], backend="serial")
    with pytest.raises(ValueError, match="plot"):
        map_async(tasks.double, [1], plot="images")
    with pytest.raises(TypeError, match="typo"):
        map_async(tasks.double, [1], typo=1)


def test_the_arguments_are_those_of_parallel_map():
    """The options of both have the names and the defaults that `parallel_map` shows."""
    parameters = inspect.signature(parallel_map).parameters.values()
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    assert MapOptions()._asdict() | {"progress": None, "plot": None} == keywords


def test_an_interrupt_ends_the_wait_and_not_the_map(script):
    """Ctrl-C during `result` gives the prompt back. The job goes on, and can be cancelled."""
    out = script(
        """
import os, signal, threading, time
import nbshare
from tests.support import tasks, figures
signal.signal(signal.SIGINT, signal.default_int_handler)
job = nbshare.map_async(figures.sleep_for, [0.0, 60.0], max_workers=2)
while not job.n_done:
    time.sleep(0.01)
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    job.result()
except KeyboardInterrupt:
    print("interrupted", job.running())
print(job.cancel(), job.wait(5), job.n_done)
print(nbshare.parallel_map(tasks.double, [1], progress=False))
"""
    )
    assert out.splitlines() == ["interrupted True", "True True 1", "[2]"]


# -------------------------------------------------------------------------- results in order


@pytest.mark.parametrize("make", [list, iter], ids=["list", "generator"])
def test_results_come_in_the_order_of_the_items(make):
    """In any order of completion, all come, each once, as objects and numbers."""
    for func in (tasks.identity, str):
        job = map_async(func, make(range(3_000)), max_workers=3)
        assert list(job.in_order()) == list(map(func, range(3_000)))


def test_an_early_result_waits_for_those_before_it(tmp_path):
    """The first item is awaited though others are done. Those after it are there at once."""
    gate = tmp_path / "gate"

    def behind_the_gate(i):
        wait_until(lambda: i or gate.exists())
        return i

    job = map_async(behind_the_gate, range(20), max_workers=2, chunksize=1)
    wait_until(lambda: job.n_done == 19)
    found = job.in_order()
    gate.touch()
    assert next(found) == 0
    assert list(found) == list(range(1, 20))


def test_a_failure_comes_after_the_results_before_it():
    found = []
    with pytest.raises(ZeroDivisionError):
        found.extend(map_async(operator.floordiv, [6] * 4, [1, 2, 0, 3], max_workers=1).in_order())
    assert found == [6, 3]
    job = map_async(operator.floordiv, [6] * 3, [1, 0, 3], on_error="return")
    first, error, last = job.in_order()
    assert (first, last) == (6, 2)
    assert isinstance(error, ZeroDivisionError)


@pytest.mark.parametrize("is_enough", [True, False], ids=["until", "cancel"])
def test_a_loop_in_order_ends_at_the_gap_of_a_run_that_ends_early(is_enough):
    """The results after it are those of `partial`."""
    until = (lambda partial: partial.count() == 3) if is_enough else None
    options = {"until": until, "max_workers": 2, "chunksize": 1}
    job = map_async(figures.sleep_for, [0.0, LONG_S, 0.0, 0.0], **options)
    wait_until(lambda: job.n_done == 3)
    found = job.in_order()
    assert next(found) == 0.0
    if is_enough:
        assert list(found) == []
    else:
        job.cancel()
        with pytest.warns(PartialResultWarning, match="3 of 4"):
            assert list(found) == []
    assert job.partial().count() == 3


def test_a_loop_in_order_that_was_left_goes_on():
    job = map_async(tasks.identity, range(100), max_workers=2)
    assert next(job.in_order()) == 0
    assert [value for value, _ in zip(job.in_order(), range(10), strict=False)] == list(
        range(1, 11)
    )
    assert list(job.in_order())[-1] == 99


def test_a_loop_in_order_says_that_another_one_has_taken_results():
    job = map_async(tasks.identity, range(100), max_workers=2)
    assert job.wait()
    next(iter(job))
    with pytest.raises(RuntimeError, match="another loop"):
        list(job.in_order())


@pytest.mark.parametrize("wait", ["await job", "[i async for i in job]"])
def test_ctrl_c_in_a_loop_that_would_go_on_later_ends_the_run(script, wait):
    """IPython's terminal runs a loop for one cell and keeps what has not ended, as this does."""
    code = f"""
import asyncio, os, signal, threading, time
import nbshare
signal.signal(signal.SIGINT, signal.default_int_handler)
loop = asyncio.new_event_loop()
job = nbshare.map_async(time.sleep, [60, 60])
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
async def cell():
    return {wait}
try:
    loop.run_until_complete(cell())
except nbshare.MapInterrupted as error:
    print(error)
job.wait()
print(job.state, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
"""
    assert script(code).splitlines() == ["0 of 2 items done", "interrupted True"]
