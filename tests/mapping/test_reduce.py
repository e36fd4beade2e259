"""``reduce=`` gives one value, as a loop does, and ``until=`` ends when there is enough."""

from __future__ import annotations

import copy
import functools
import itertools
import operator
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import attach, grid, map_async, open_checkpoint, parallel_map
from nbshare._core.engine.folding import Reduction
from nbshare._core.notebook.figure import LiveFigure
from nbshare._core.system import SYSTEM
from nbshare.errors import CheckpointError, TaskError, WorkerDiedError
from tests.support import objects
from tests.support.faultlab import wait_until
from tests.support.played import pixels_in
from tests.support.reductions import (
    Loaded,
    add,
    dies,
    draw,
    flaky,
    forks_at_100,
    image,
    itself,
    itself_by_3,
    leaves_at_100,
    noted,
    odd_only,
    refilled,
    refilled_in_list,
    refilled_shared,
    refuses,
    slow,
    slow_list,
    waits_at,
)

BACKENDS = [None, "threads", "serial"]
REDUCTIONS = {
    "sum of ints": (int, operator.add),
    "texts in order": (str, operator.add),
    "arrays": (lambda x: np.arange(3) * x, np.add),
    "the largest": (lambda x: x * 37 % 101, max),
    "in place": (lambda x: [x], operator.iadd),
}


def joined(a, b):
    """Return the sum of two arrays of a class, with both labels."""
    total = a + b
    total.label = a.label + b.label
    return total


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_their_attributes_when_they_are_reduced(backend):
    """They are copied before the next item runs, and NumPy's own pickle would omit those."""
    texts = ["a", "b", "c", "d"]
    total = parallel_map(
        lambda text: objects.small_labelled(text)["array"], texts, reduce=joined, backend=backend
    )
    assert (type(total), total.label, total.tolist()) == (objects.Labelled, "abcd", [4])


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
@given(n=st.integers(1, 600), name=st.sampled_from([*REDUCTIONS]), is_known=st.booleans())
def test_the_value_is_that_of_a_loop(backend, n, name, is_known):
    """Of any associative function, also one that changes its first argument."""
    func, reduce = REDUCTIONS[name]
    items = range(n) if is_known else iter(range(n))
    found = parallel_map(func, items, reduce=reduce, backend=backend, progress=False)
    np.testing.assert_array_equal(found, functools.reduce(reduce, map(func, range(n))))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("func", "reduce"),
    [
        (refilled, np.add),
        (refilled, operator.iadd),
        (refilled_shared, operator.add),
        (refilled, lambda a, b: a if a[0] >= b[0] else b),
        (refilled_in_list, operator.add),
    ],
    ids=["sum", "in place", "in shared memory", "one of both", "kept by reference"],
)
def test_an_item_may_fill_the_array_of_the_one_before(backend, func, reduce):
    """As it may without ``reduce=``."""
    found = parallel_map(func, range(300), reduce=reduce, backend=backend, progress=False)
    expected = functools.reduce(reduce, (copy.deepcopy(func(x)) for x in range(300)))
    np.testing.assert_array_equal(found, expected)


def merge(first, second):
    """Return either argument if the other is empty, and else change the first."""
    if not first:
        return second
    first += second
    return first


@settings(max_examples=60, deadline=None)
@given(data=st.data(), n=st.integers(1, 40))
def test_no_order_of_arrival_changes_the_value(data, n):
    """For any result of `reduce`, however often the value is asked for before the end."""
    blocks = [[k] if data.draw(st.booleans()) else [] for k in range(n)]
    reduction = Reduction(merge)
    for k in data.draw(st.permutations(range(n))):
        reduction.add(k, [list(blocks[k])])
        if data.draw(st.booleans()):
            reduction.value()
    assert reduction.value() == list(itertools.chain(*blocks))


def test_an_interrupt_within_reduce_loses_nothing():
    """The run goes on, and its result has every item."""
    owner, pressed = os.getpid(), []

    def add(first, second):
        is_here = os.getpid() == owner and threading.current_thread() is threading.main_thread()
        if is_here and len(first) + len(second) >= 8 and not pressed:
            pressed.append(True)  # first, because nothing follows the interrupt
            signal.raise_signal(signal.SIGINT)
        return first + second

    job = map_async(slow_list, range(300), reduce=add, max_workers=2, chunksize=1, progress=False)
    with suppress(KeyboardInterrupt):
        job.result()
    assert job.result() == [*range(300)]
    assert pressed


def test_floats_are_the_same_bit_for_bit():
    """For any number of workers and chunks, any backend, and items that arrive during the run."""

    def value(items, **options):
        return parallel_map(draw, items, reduce=np.add, seed=3, progress=False, **options)

    wanted = value(range(700), backend="serial")
    for options in (
        {"max_workers": 1},
        {"max_workers": 3},
        {"chunksize": 5},
        {"backend": "threads"},
    ):
        np.testing.assert_array_equal(value(range(700), **options), wanted)
        np.testing.assert_array_equal(value(iter(range(700)), **options), wanted)
    if SYSTEM == "linux":  # an executor as backend needs it
        with ThreadPoolExecutor(2) as pool:
            np.testing.assert_array_equal(value(range(700), backend=pool), wanted)


def test_items_of_all_kinds_are_reduced():
    rows = np.arange(600.0).reshape(200, 3)
    np.testing.assert_array_equal(parallel_map(itself, rows, reduce=np.add), rows.sum(axis=0))
    assert parallel_map(operator.mul, range(300), [2] * 300, reduce=operator.add) == 89700
    mixed = parallel_map(operator.mul, range(300), iter([2] * 200), reduce=operator.add)
    assert mixed == 2 * sum(range(200))
    products = parallel_map(lambda a, b: a * b, grid(a=range(30), b=range(20)), reduce=operator.add)
    assert products == sum(range(30)) * sum(range(20))
    shared = parallel_map(lambda x, y: x + y, range(5), shared={"y": 10}, reduce=operator.add)
    assert shared == 60


def test_nothing_to_reduce_is_none():
    assert parallel_map(itself, [], reduce=operator.add) is None
    assert parallel_map(itself, iter([]), reduce=operator.add) is None
    assert parallel_map(odd_only, [2, 4], reduce=operator.add, on_error="return") is None


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
@pytest.mark.parametrize("is_known", [True, False])
def test_results_are_not_kept(is_known):
    """Memory is that of the blocks in flight, not of all results."""
    items = range(150) if is_known else iter(range(150))
    before, most = held_bytes(), 0
    job = map_async(image, items, reduce=np.add, max_workers=2)
    while not job.wait(0.01):
        most = max(most, held_bytes() - before)
    assert (job.result() == sum(range(150))).all()
    assert most < 400e6  # of 629 MB (two logs of each worker are some 64 MB each)


def held_bytes():
    """Return the bytes of shared memory that this process has."""
    nbytes = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if "nbshare-" in os.readlink(f"/proc/self/fd/{fd}"):
                nbytes += os.stat(f"/proc/self/fd/{fd}").st_blocks * 512
    return nbytes


def test_progress_counts_items_and_the_partial_value_runs(tmp_path):
    options = {"shared": {"folder": tmp_path, "at": 400}, "reduce": operator.add}
    # One block at a time, so that those of the first 300 items are done, whatever waits.
    job = map_async(waits_at, range(1000), chunksize=1, **options)
    while job.n_done < 300:
        assert not job.done()
        time.sleep(0.001)
    assert job.n_items == 1000
    assert job.n_done <= 400
    wait_until(lambda: job.partial() is not None)  # a log comes after what it tells of
    partial = job.partial()
    assert 0 < partial <= sum(range(400))
    assert job.partial() >= partial
    (tmp_path / "go").touch()
    assert job.result() == sum(range(1000))
    assert job.n_done == 1000
    assert job.present.shape == (1000,)
    assert job.present.all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_failed_items_are_left_out(backend):
    found = parallel_map(
        odd_only, range(300), reduce=operator.add, on_error="return", backend=backend
    )
    assert found == sum(range(1, 300, 2))
    errors = nbshare.last_job().errors
    assert sorted(errors) == list(range(0, 300, 2))
    assert str(errors[200]) == "200 is even"


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("items", [[1, 3, 4, 5], [1, 3] * 90 + [4, 1]])
def test_an_error_names_its_item(backend, items):
    with pytest.raises(ValueError, match="4 is even") as caught:
        parallel_map(odd_only, items, reduce=operator.add, backend=backend)
    assert f"raised for item {items.index(4)} (4)" in "\n".join(caught.value.__notes__)


@pytest.mark.parametrize("backend", BACKENDS)
def test_leaving_costs_the_item_alone(backend):
    """SystemExit is the failure of its item, not of the others in its block."""
    options = {"reduce": operator.add, "retries": 1, "backend": backend}
    found = parallel_map(leaves_at_100, range(400), on_error="return", **options)
    assert found == sum(range(400)) - 100
    ((i, error),) = nbshare.last_job().errors.items()
    assert (i, error.index) == (100, 100)
    with pytest.raises(TaskError, match=r"SystemExit was raised for .*100") as caught:
        parallel_map(leaves_at_100, range(400), **options)
    assert "100" in str(caught.value)
    assert nbshare.last_job()._run.retried().size == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("leaves", [False, True])
def test_a_copy_of_the_process_runs_no_further_item_of_the_block(tmp_path, leaves):
    shared = {"folder": tmp_path, "leaves": leaves}
    found = parallel_map(forks_at_100, range(400), shared=shared, reduce=operator.add, retries=1)
    assert found == sum(range(400))
    noted_items = (tmp_path / "log").read_text().split()
    assert sorted(map(int, noted_items)) == list(range(400))


@pytest.mark.parametrize("on_error", ["raise", "return"])
def test_an_item_is_tried_again_by_itself(tmp_path, on_error):
    """Not with the others of its block."""
    options = {"reduce": operator.add, "retries": 2, "on_error": on_error}
    job = map_async(flaky, range(400), shared={"folder": tmp_path}, **options)
    assert job.result() == sum(range(400))
    assert all(len((tmp_path / str(x)).read_text()) == (1 if x % 50 else 3) for x in range(400))
    assert job._run.retried().tolist() == [*range(0, 400, 50)]
    assert sum(worker.n_retried for worker in job.stats) == 2 * 8


def test_what_was_run_again_in_an_earlier_run_is_not_told(tmp_path):
    options = {"reduce": operator.add, "retries": 2, "checkpoint": tmp_path / "run"}
    for retried in [0, 50], []:
        job = map_async(flaky, range(100), shared={"folder": tmp_path}, **options)
        assert (job.result(), job._run.retried().tolist()) == (sum(range(100)), retried)


def test_a_block_whose_worker_dies_is_lost_or_runs_again(tmp_path):
    options = {"shared": {"folder": tmp_path}, "reduce": operator.add}
    with pytest.raises(WorkerDiedError, match="items 100 to 101"):
        parallel_map(dies, range(400), **options)
    (tmp_path / "died").unlink()
    found = parallel_map(dies, range(400), on_error="return", **options)
    assert found == sum(range(400)) - 100 - 101
    assert sorted(nbshare.last_job().errors) == [100, 101]
    (tmp_path / "died").unlink()
    job = map_async(dies, range(400), retries=1, **options)
    assert (job.result(), job._run.retried().tolist()) == (sum(range(400)), [100, 101])


@pytest.mark.parametrize("n", [2, 500])
def test_an_error_of_the_reduction_ends_the_run(n):
    """Whether a worker raises it or the owner, as the first blocks have one item each."""
    with pytest.raises(ArithmeticError, match="not these"):
        parallel_map(itself, range(n), reduce=refuses)


def ended(job):
    """Return a job that is over, and for which nobody has waited."""
    is_over = threading.Event()
    job.add_done_callback(lambda job: is_over.set())
    assert is_over.wait(60)
    return job


@pytest.mark.parametrize("error", [ArithmeticError, SystemExit])
@pytest.mark.parametrize("backend", [None, "threads"])
def test_an_error_of_the_reduction_of_the_last_block_fails_the_run(backend, error):
    """Though no item is left to run. State, exception and result tell the same."""

    def refuses(a, b):
        raise error("not these")

    job = ended(map_async(itself, range(2), reduce=refuses, backend=backend))
    assert job.state == "failed"
    assert isinstance(job.exception(), error)
    for _ in range(2):
        with pytest.raises(error, match="not these"):
            job.result()


def test_another_process_hears_of_an_error_of_the_reduction_of_the_last_block(tmp_path):
    """It is stored with the results."""
    ended(map_async(itself, range(2), reduce=refuses, checkpoint=tmp_path / "run"))
    error = attach(tmp_path / "run").exception()
    assert isinstance(error, ArithmeticError)
    assert str(error) == "not these"


@pytest.mark.parametrize("backend", [None, "threads"])
def test_failures_of_the_last_block_are_known_at_the_end(backend):
    job = ended(
        map_async(odd_only, [1, 4], reduce=operator.add, backend=backend, on_error="return")
    )
    assert sorted(job.errors) == [1]
    assert nbshare.last_job() is job
    assert job.partial() == 1


def test_a_worker_loads_the_items_of_its_block_alone(tmp_path):
    items = [Loaded(tmp_path, k) for k in range(100)]
    with pytest.raises(TypeError, match="operand"):
        parallel_map(lambda k: k + "", items, reduce=operator.add, max_workers=1, chunksize=1)
    assert 1 <= len(os.listdir(tmp_path)) < 10  # a few are pickled together


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_item_that_cannot_be_loaded_costs_its_block(tmp_path, backend):
    items = [Loaded(tmp_path, k, fails=k == 70) for k in range(100)]
    options = {"reduce": operator.add, "backend": backend}
    found = parallel_map(itself, items, on_error="return", **options)
    lost = nbshare.last_job().errors
    assert found == sum(range(100)) - sum(lost)
    assert {70, 71} <= {*lost} <= {*range(60, 80)}
    with pytest.raises(OSError, match="gone") as caught:
        parallel_map(itself, items, **options)
    assert re.search(r"raised for one of items \d+ to \d+", "\n".join(caught.value.__notes__))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make", [list, iter])
def test_an_interrupted_run_continues_at_whole_blocks(tmp_path, backend, make):
    """An extended one runs the new items, and the last block. The value is the same."""

    def run(n, stop=-1):
        (tmp_path / "log").write_text("")
        (tmp_path / "stop").write_text(str(stop))
        options = {"shared": {"folder": tmp_path}, "reduce": operator.add, "backend": backend}
        with suppress(ArithmeticError):
            found = parallel_map(
                noted, make(range(n)), checkpoint=tmp_path / "run", max_workers=2, **options
            )
            (tmp_path / "stop").write_text("-1")
            assert found == parallel_map(itself_by_3, range(n), reduce=operator.add)
        return len((tmp_path / "log").read_text().split())

    n_first = run(500, stop=300)
    assert 500 <= n_first + run(500) <= 540
    assert run(500) == 0
    assert 20 <= run(520) <= 30


def test_a_stored_run_has_the_value(tmp_path):
    """Of what is there, for anybody who asks, and counts blocks."""
    (tmp_path / "log").touch()
    (tmp_path / "stop").write_text("300")
    with pytest.raises(ArithmeticError):
        parallel_map(
            lambda x: [noted(x, tmp_path)], range(500), reduce=add, checkpoint=tmp_path / "run"
        )
    found = open_checkpoint(tmp_path / "run").results()
    assert found == sorted(found)
    assert 0 < len(found) < 500
    parallel_map(itself_by_3, range(500), reduce=operator.add, checkpoint=tmp_path / "whole")
    stored = open_checkpoint(tmp_path / "whole")
    assert stored.results() == parallel_map(itself_by_3, range(500), reduce=operator.add)
    assert f"{stored.n_items} of {stored.n_items} blocks done" in repr(stored)


def test_a_stored_value_needs_its_function(tmp_path):
    table = np.zeros(100_000)
    path = tmp_path / "run"
    assert parallel_map(itself, range(9), reduce=lambda a, b: a + b + table[0], checkpoint=path)
    with pytest.raises(CheckpointError, match="reduce= of this run cannot be loaded here"):
        open_checkpoint(tmp_path / "run").results()


@pytest.mark.parametrize("make", [list, iter])
def test_an_attached_job_has_the_value_and_counts_items(tmp_path, make):
    items = range(200)
    parallel_map(itself, make(items), reduce=operator.add, checkpoint=tmp_path / "run")
    job = attach(tmp_path / "run")
    assert job.result() == sum(items)
    assert (job.n_items, job.n_done, job.present.sum()) == (200, 200, 200)
    with pytest.raises(TypeError, match="one result"):
        next(iter(job))


def test_another_reduction_is_refused(tmp_path):
    parallel_map(itself, range(9), reduce=operator.add, checkpoint=tmp_path / "run")
    with pytest.raises(CheckpointError, match="reduce= changed"):
        parallel_map(itself, range(9), reduce=operator.mul, checkpoint=tmp_path / "run")
    again = parallel_map(
        itself, range(9), reduce=operator.add, checkpoint=tmp_path / "run", retries=2
    )
    assert again == 36


def test_a_job_knows_its_items():
    job = map_async(draw, range(300), reduce=np.add, seed=3)
    np.testing.assert_array_equal(job.debug(0), parallel_map(draw, [0], seed=3)[0])
    np.testing.assert_array_equal(job.debug(250), parallel_map(draw, range(251), seed=3)[250])
    for refused in (lambda: next(iter(job)), lambda: next(job.in_order()), job.explore):
        with pytest.raises(TypeError, match="one result"):
            refused()


@pytest.mark.parametrize("plot", ["image", "line", "hist"])
def test_a_plot_shows_the_running_value(plot):
    job = map_async(lambda x: np.full((4, 5), x), range(200), reduce=np.add)
    job.wait()
    figure = LiveFigure(job, plot)
    figure.frame(final=False)
    assert figure.frame(final=True).is_complete
    if plot == "image":
        assert (pixels_in(figure) == sum(range(200))).all()
    if plot == "line":
        assert figure.figure.axes[0].get_xlabel() == "element"


# ---------------------------------------------------------------------------------- until


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.filterwarnings("error::nbshare.errors.PartialResultWarning")
def test_a_run_ends_when_there_is_enough(backend):
    """It is done, not stopped, and what is there comes as after a stop."""
    found = parallel_map(slow, range(5000), until=lambda p: p.count() >= 20, backend=backend)
    assert 20 <= found.count() < 5000
    there = np.flatnonzero(~found.mask)
    np.testing.assert_array_equal(found[there].data, there)


@pytest.mark.filterwarnings("error::nbshare.errors.PartialResultWarning")
def test_nobody_need_wait_for_enough():
    job = map_async(slow, range(100_000), until=lambda p: p.count() >= 20)
    ended = []
    job.add_done_callback(ended.append)
    deadline = time.monotonic() + 60
    while not ended:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert job.state == "done"
    assert not job.cancelled()
    assert job.exception() is None
    assert job.n_done < 100_000
    assert job.result().count() == job.n_done


def test_enough_at_the_end_changes_nothing(tmp_path):
    """What is said while the last items end is too late. All are done, and the form is the same."""

    def pair_if_asked(x):
        wait_until(lambda: x < 2 or (tmp_path / "asked").exists())
        return (odd_only(2 * x + (x != 1)), 1.0)

    is_over = threading.Event()

    def is_enough(_):
        (tmp_path / "asked").touch()
        return is_over.wait(60)

    options = {"out": "stack", "on_error": "return", "max_workers": 2, "chunksize": 1}
    job = map_async(pair_if_asked, range(4), until=is_enough, **options)
    job.add_done_callback(lambda job: is_over.set())
    assert is_over.wait(60)
    wait_until(lambda: job._run.is_enough)
    first, second = job.result()
    assert first.tolist() == [1, None, 5, 7]
    assert second.tolist() == [1.0, None, 1.0, 1.0]


@pytest.mark.parametrize("backend", [None, "threads"])
def test_an_error_of_until_that_comes_after_the_end_is_too_late(tmp_path, backend):
    """State, exception and result tell the same."""
    is_over = threading.Event()

    def itself_if_asked(x):
        wait_until(lambda: x < 1 or (tmp_path / "asked").exists())
        return x

    def fails(_):
        (tmp_path / "asked").touch()
        assert is_over.wait(60)
        raise LookupError("too late")

    job = map_async(itself_if_asked, range(3), until=fails, backend=backend, chunksize=1)
    job.add_done_callback(lambda job: is_over.set())
    assert is_over.wait(60)
    wait_until(lambda: not job._until._asking.locked())
    assert job.result().tolist() == [0, 1, 2]
    assert job.exception() is None
    assert job.state == "done"


def test_results_that_are_objects_are_enough_too():
    found = parallel_map(
        lambda x: str(slow(x)),
        range(5000),
        until=lambda partial: sum(x is not nbshare.MISSING for x in partial) >= 20,
    )
    there = [x for x in found if x is not nbshare.MISSING]
    assert 20 <= len(there) < 5000


def test_a_run_that_is_never_enough_is_whole():
    found = parallel_map(slow, range(50), until=lambda _: False)
    assert isinstance(found, nbshare.SharedArray)
    assert found.tolist() == list(range(50))


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_running_value_of_an_endless_source(backend):
    """With the number of items in it, until the error bar is small enough, say."""
    asked = []

    def is_enough(value, n):
        asked.append((value, n))
        return n >= 100

    found = parallel_map(
        lambda x: 1 + 0 * slow(x),
        itertools.count(),
        reduce=operator.add,
        until=is_enough,
        backend=backend,
    )
    assert all(value == n for value, n in asked)
    assert found >= 100


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_error_of_until_ends_the_run(backend):
    def fails(partial):
        raise ArithmeticError("cannot tell")

    with pytest.raises(ArithmeticError, match="cannot tell"):
        parallel_map(slow, range(5000), until=fails, backend=backend)


def test_until_takes_a_part_of_the_time():
    """A slow one is asked rarely."""
    asked = []

    def slow_to_tell(partial):
        asked.append(time.monotonic())
        time.sleep(0.05)
        return len(asked) == 3

    parallel_map(slow, range(50_000), until=slow_to_tell)
    assert all(later - one > 0.4 for one, later in itertools.pairwise(asked))


def test_enough_is_kept_in_a_checkpoint(tmp_path):
    options = {"checkpoint": tmp_path / "run", "until": lambda p: p.count() >= 20}
    first = parallel_map(slow, range(5000), **options)
    assert open_checkpoint(tmp_path / "run").state == "done"
    attached = attach(tmp_path / "run")
    assert attached.result().count() == first.count()
    assert attached.state == "done"
    job = map_async(slow, range(5000), **options)
    assert job.result().count() < first.count() + 500
    assert job._run.n_restored >= 20


def test_the_display_says_enough(capsys):
    parallel_map(slow, range(5000), until=lambda p: p.count() >= 20, progress=True)
    assert "enough for until=" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"reduce": 5}, TypeError, "reduce=5"),
        ({"until": "x"}, TypeError, "until='x'"),
        ({"reduce": max, "out": "list"}, ValueError, "out= has no effect"),
        ({"reduce": max, "timeout": 5.0}, ValueError, "timeout="),
    ],
)
def test_what_does_not_go_together_is_refused(options, error, says):
    with pytest.raises(error, match=says):
        parallel_map(itself, [1, 2], **options)


def fails_at(x, folder, at):
    if x in at and (folder / "broken").exists():
        raise OSError("the disk is asleep")
    return x


@pytest.mark.parametrize("n", [10, 3000])  # blocks of one item, and of more
def test_items_that_failed_run_again_with_a_checkpoint(n, tmp_path):
    """Also if others of their block did not fail. What is stored tells what will run."""
    items, options = range(n), {"reduce": operator.add, "on_error": "return", "max_workers": 2}
    options |= {"shared": {"folder": tmp_path, "at": {3, n - 4}}, "checkpoint": tmp_path / "run"}
    (tmp_path / "broken").touch()
    assert parallel_map(fails_at, items, **options) == sum(items) - n + 1
    stored = open_checkpoint(tmp_path / "run")
    assert (stored.state, stored.results()) == ("done", sum(items) - n + 1)
    assert stored.outdated(fails_at, items, **options).n_new == 2
    (tmp_path / "broken").unlink()
    job = map_async(fails_at, items, **options)
    assert job.result() == sum(items)
    assert n - 110 < job._run.n_restored < n
    assert open_checkpoint(tmp_path / "run").outdated(fails_at, items, **options).n_new == 0
    (tmp_path / "broken").touch()
    assert parallel_map(fails_at, items, **options) == sum(items)  # nothing runs


def test_the_number_of_done_items_is_that_of_the_done_blocks(tmp_path):
    """Whichever blocks are done, here and as others see it."""
    options = {"reduce": operator.add, "shared": {"folder": tmp_path}, "max_workers": 2}
    job = map_async(waits_for_first, range(3000), checkpoint=tmp_path / "run", **options)
    wait_until(lambda: job.present.sum() == 2999)
    assert job.n_done == 2999
    assert "2999 of 3000 items done" in repr(job)
    seen = attach(tmp_path / "run", progress=False)
    wait_until(lambda: seen.present.sum() == 2999)
    assert (seen.n_done, seen.n_items) == (2999, 3000)
    (tmp_path / "go").touch()
    assert job.result() == 3000
    assert job.n_done == 3000
    again = map_async(waits_for_first, range(3200), checkpoint=tmp_path / "run", **options)
    assert again.result() == 3200
    assert 2950 < again._run.n_restored <= 3000


def waits_for_first(x, folder):
    while x == 0 and not (folder / "go").exists():
        time.sleep(0.001)
    return 1
