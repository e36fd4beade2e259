"""Maps over generators give the results of a list, a bounded look-ahead, nothing kept twice."""

from __future__ import annotations

import asyncio
import gc
import importlib
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from functools import partial

import numpy as np
import pytest

import nbshare
from nbshare import MapInterrupted, last_job, map_async, parallel_map
from nbshare._core.engine.supply import Intake, SourceSupply
from nbshare._core.memory import segment_of
from nbshare._core.system import SYSTEM
from nbshare._core.wire.failures import describe, safe_repr
from nbshare.errors import TaskError, TaskTimeoutError, UnsendableError
from tests.support import streams
from tests.support.faultlab import memfd_bytes, wait_until
from tests.support.grids import combined

pair = partial(parallel_map, max_workers=2, progress=False)
background = partial(map_async, max_workers=2)
BACKENDS = None, "serial", "threads"


def items(n, taken=None):
    """Yield 0 to n - 1, and note what was taken."""
    for i in range(n):
        if taken is not None:
            taken.append(i)
        yield i


def source_waits():
    """Whether a thread that reads a source waits until more items are wanted."""
    return any(frame.f_code is Intake._work.__code__ for frame in sys._current_frames().values())


def brings_items():
    """Whether a thread brings items of a source."""
    for frame in sys._current_frames().values():
        while frame is not None:
            if frame.f_code is SourceSupply._live.__code__:
                return True
            frame = frame.f_back
    return False


def same(found, expected):
    if isinstance(expected, list | tuple):
        assert type(found) is type(expected)
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    else:
        assert type(found) is type(expected)
        assert np.asarray(found).dtype == np.asarray(expected).dtype
        np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------------------ results


@pytest.mark.filterwarnings("ignore:results differ")
@pytest.mark.parametrize(
    ("kind", "n", "backend"),
    [
        *combined(streams.KINDS, [5, 300], BACKENDS),
        *(("ints", n, backend) for n in (0, 1) for backend in BACKENDS),
    ],
)
def test_results_are_those_of_a_list(kind, n, backend):
    """For any kind of results, and over any number of windows."""
    options = {"shared": {"kind": kind}, "backend": backend}
    same(pair(streams.give, items(n), **options), pair(streams.give, list(range(n)), **options))


@pytest.mark.parametrize("n", [0, 300])
@pytest.mark.parametrize("out", ["list", "stack"])
def test_results_as_list_and_as_stack(out, n):
    """``out=`` means what it means for a list."""
    options = {"shared": {"kind": "pairs"}, "out": out}
    same(pair(streams.give, items(n), **options), pair(streams.give, range(n), **options))


@pytest.mark.parametrize("make", [np.empty, nbshare.empty], ids=["plain", "shared"])
def test_results_go_to_the_given_array(make):
    """Row by row, over several windows, and it is what comes back."""
    out = make((300, 3, 2), "f8")
    assert pair(streams.give, items(300), shared={"kind": "arrays"}, out=out) is out
    assert (out == np.arange(300)[:, None, None]).all()


@pytest.mark.parametrize("n", [299, 301])
def test_a_given_array_of_another_length_is_an_error(n):
    """Too few or too many items are told, with both numbers as far as they are known."""
    with pytest.raises(ValueError, match="300 rows"):
        pair(streams.give, items(n), shared={"kind": "ints"}, out=np.empty(300))


def test_rows_and_lists_beside_a_generator():
    """The shortest ends, and rows of an array go with the items they belong to."""
    rows = np.arange(600.0).reshape(300, 2)
    found = pair(streams.add, itertools.count(), rows)
    np.testing.assert_array_equal(found, np.arange(300) + rows.sum(1))
    assert pair(streams.add, items(3), rows).tolist() == [1.0, 6.0, 11.0]


def test_a_long_list_beside_a_generator():
    """It is pickled in blocks of its own, while the generator's items come."""
    words = [str(i) for i in range(1000)]
    found = pair(str.__add__, words, (word for word in words), out="list")
    assert found == [2 * word for word in words]


def test_seeds_are_those_of_a_list():
    """The random numbers of an item depend on its index only."""
    expected = pair(streams.draw, range(300), seed=7)
    np.testing.assert_array_equal(pair(streams.draw, items(300), seed=7), expected)


@pytest.mark.parametrize(("kind", "form"), [("arrays", (-1, 1, 1)), ("numbers", (-1,))])
def test_an_array_of_unknown_length_grows_in_place(kind, form, tmp_path):
    """Stored results are never copied, because the result is where the first rows were."""
    go_on = tmp_path / "go on"

    def held_up():
        yield from range(200)
        wait_until(go_on.exists)
        yield from range(200, 5000)

    wanted = np.arange(5000).reshape(form) / (1 if kind == "arrays" else 2)
    job = background(streams.give, held_up(), shared={"kind": kind})
    wait_until(lambda: job.n_done == 200)
    early = job.partial()
    assert (early.data == wanted[:200]).all()
    go_on.touch()
    result = job.result(30)
    assert (result == wanted).all()
    name = segment_of(result)[0].name
    assert segment_of(early.data)[0].name == name
    result[7] = -1.0  # of the window that grew, not of the first one, which was on its own
    result[150] = -1.0
    assert (early.data[[7, 150]] == -1.0).all()


@pytest.mark.parametrize("kind", ["arrays", "numbers"])
def test_a_few_results_take_no_descriptor(kind):
    """Those of many short generators can be kept."""
    pair(streams.give, items(3), shared={"kind": kind})
    before = len(os.listdir("/proc/self/fd"))
    kept = [pair(streams.give, items(n), shared={"kind": kind}) for n in range(30)]
    assert len(os.listdir("/proc/self/fd")) < before + 10
    assert [len(found) for found in kept] == list(range(30))


# --------------------------------------------------------------------------- look-ahead


def test_the_source_is_not_far_ahead_in_items(tmp_path):
    """Of an endless generator no more is taken than the workers will soon need."""
    taken, most = [], 16  # a window that is worked on, and as much as two that wait
    job = background(streams.begin, items(10**12, taken), shared={"folder": str(tmp_path)})
    wait_until(lambda: len(list(tmp_path.iterdir())) == 2)  # both workers have begun
    wait_until(source_waits)
    assert len(taken) <= most
    job.cancel()
    assert job.wait(5)
    assert len(taken) <= most


def test_the_source_is_not_far_ahead_in_bytes():
    """Large items are not piled up, however quick the function is."""
    ahead, mega = [], 1 << 20
    job = None

    def large():
        for i in range(300):
            if job is not None:
                ahead.append(i - job.n_done)
            yield np.zeros(mega, np.uint8)

    job = background(streams.length, large())
    assert (job.result(60) == mega).all()
    assert max(ahead) <= 110  # three windows of 32 MB, and one that is being made


@pytest.mark.parametrize(
    ("pause_s", "n", "most"), [(0, 100_000, 110_000), (0.005, 60, 1000)], ids=["quick", "slow"]
)
def test_the_source_is_not_far_ahead_of_a_loop(pause_s, n, most):
    """However quick the function is, some items, and no more than the loop takes in a second."""
    n_given, ahead = 0, 0

    def counted():
        nonlocal ahead
        for i in itertools.count():
            ahead = max(ahead, i - n_given)
            yield i

    job = background(abs, counted())
    for _ in itertools.islice(job, n):
        n_given += 1
        if pause_s:
            time.sleep(pause_s)  # what the loop takes
    job.cancel()
    assert job.wait(5)
    assert ahead <= most


def test_the_source_of_tiny_items_is_not_far_ahead_of_the_workers():
    """Nobody iterates, and so many results will be there soon."""
    has_begun = threading.Event()
    ahead = []

    def counted():
        assert has_begun.wait(10)
        for i in range(250_000):
            if i % 1000 == 0:
                ahead.append(i - job.n_done)
            yield i

    job = background(abs, counted())
    has_begun.set()
    assert len(job.result(60)) == 250_000
    assert max(ahead) <= 110_000


def test_a_slow_source_does_not_hold_up_what_it_has_given():
    """An item is worked on when it has come, not when a window is full."""
    has_begun = threading.Event()

    def answered():  # gives an item when there is a result of the one before
        assert has_begun.wait(10)
        for i in range(20):
            yield i
            wait_until(lambda i=i: job.n_done > i)

    job = background(streams.give, answered(), shared={"kind": "ints"})
    has_begun.set()
    assert job.result(20).tolist() == [i * i for i in range(20)]


def test_iterating_serves_an_endless_generator():
    """Each result reaches the loop once, during the run. The source waits for the loop."""
    taken, given = [], {}
    job = background(streams.give, items(10**12, taken), shared={"kind": "ints"})
    for i, value in job:
        given[i] = value
        if len(given) == 3000:
            break
    assert given == {i: i * i for i in given}
    wait_until(source_waits)
    for i, value in itertools.islice(job, 5000):
        assert i not in given
        given[i] = value
    assert given == {i: i * i for i in given}
    assert job.cancel()
    assert job.wait(5)


def test_what_was_given_is_not_kept():
    """The arrays that a loop has taken from an endless run are freed."""
    job = background(streams.give, itertools.count(), shared={"kind": "arrays"})
    kept = []
    for i, value in job:
        kept.append(weakref.ref(value))
        del value
        if i > 4000:
            break
    job.cancel()
    job.wait(5)
    gc.collect()
    assert sum(ref() is not None for ref in kept) == 0


@pytest.mark.skipif(SYSTEM != "linux", reason="no part of shared memory can be freed there")
def test_memory_of_results_that_were_given_is_freed():
    """Of an endless run with rows of 4 kB."""
    before, most = memfd_bytes([os.getpid()]), 0
    job = background(streams.give, itertools.count(), shared={"kind": "pages"})
    for i, row in job:
        assert row[0] == row[-1] == i
        if i % 1000 == 0:
            most = max(most, memfd_bytes([os.getpid()]) - before)
        if i == 50_000:
            break
    job.cancel()
    assert most < 170e6  # of 205 MB, as a page of the board has 67 MB of rows


def test_an_endless_map_that_nobody_has_any_more_ends():
    """A loop that is left, and its job with it, leaves no thread and no call behind."""

    def left():
        for i, _ in map_async(streams.give, itertools.count(), shared={"kind": "ints"}):
            if i > 100:
                return

    left()
    map_async(streams.give, [1], shared={"kind": "ints"}).result()  # else it is the last job
    threads = len(os.listdir("/proc/self/task"))
    for _ in range(8):
        left()
    map_async(streams.give, [1], shared={"kind": "ints"}).result()
    wait_until(lambda: len(os.listdir("/proc/self/task")) <= threads)


def test_a_map_whose_loop_has_raised_is_let_go():
    """The error that ended the loop, and its traceback, hold nothing when they are gone."""

    def fail():
        job = map_async(streams.fail_at, items(500), shared={"bad": {300}})
        with pytest.raises(ValueError, match="300"):
            list(job)
        return weakref.ref(job)

    jobs = [fail() for _ in range(3)]
    map_async(streams.give, [1], shared={"kind": "ints"}).result()  # else it is the last job
    gc.collect()
    assert [job() for job in jobs] == [None] * 3


def test_what_is_there_of_a_map_that_was_stopped_before_its_first_result():
    """Nothing, item by item, of a generator too."""
    job = background(streams.spin, items(10**9), shared={"seconds": 3600.0})
    wait_until(lambda: job._run.activity())
    job.cancel()
    with pytest.warns(nbshare.errors.PartialResultWarning):
        result = job.result(10)
    assert len(result) == len(job.present) > 0
    assert all(value is nbshare.MISSING for value in result)


def test_an_endless_map_that_waits_for_its_reader_ends_with_the_workers():
    """After shutdown there is no thread of it, though its job is kept and could be read on."""
    job = map_async(streams.give, itertools.count(), shared={"kind": "ints"})
    assert next(iter(job))[1] >= 0
    nbshare.shutdown()
    assert job.wait(10)
    assert job.state == "stopped"


def test_errors_that_were_given_are_kept():
    """After a loop over the results of a generator, the errors of all items are still known."""
    job = background(
        streams.fail_at, items(3000), shared={"bad": {3, 777, 2999}}, on_error="return"
    )
    failed = {i for i, value in job if isinstance(value, ValueError)}
    assert failed == set(job.errors) == {3, 777, 2999}


def test_results_that_were_given_away_are_not_there_again():
    """The result of a run whose results have been iterated over says so."""
    job = background(streams.give, items(1000), shared={"kind": "ints"})
    assert len(list(job)) == 1000
    with pytest.raises(RuntimeError, match="iterating"):
        job.result()


def test_a_finite_one_is_given_whole():
    """Iteration ends when the generator has, after the last result."""
    job = background(streams.give, items(1000), shared={"kind": "numbers"})
    assert dict(job) == {i: 0.5 * i for i in range(1000)}
    assert job.done()
    assert job.n_items == 1000


# ------------------------------------------------------------------------------ failures


def test_a_failure_names_the_item_by_its_place_in_the_whole():
    """Also in a later window. Results from before are kept."""
    with pytest.raises(ValueError, match="no 250") as caught:
        pair(streams.fail_at, items(10**9), shared={"bad": {250}})
    assert any("item 250" in note for note in caught.value.__notes__)
    present = last_job().present
    assert present[:200].any()
    assert not present[250]
    assert list(last_job().errors) == [250]


def test_failures_are_returned_in_their_places():
    """With ``on_error="return"`` masked, or in the list, and by index."""
    bad = {"bad": {0, 7, 250}}
    found = pair(streams.fail_at, items(300), shared=bad, on_error="return")
    assert np.flatnonzero(found.mask).tolist() == [0, 7, 250]
    assert found.compressed().tolist() == [i for i in range(300) if i not in (0, 7, 250)]
    assert {i: str(e) for i, e in last_job().errors.items()} == {i: f"no {i}" for i in bad["bad"]}
    found = pair(streams.fail_at, items(300), shared=bad, on_error="return", out="list")
    assert [i for i, x in enumerate(found) if isinstance(x, ValueError)] == [0, 7, 250]


def test_nothing_but_failures():
    """No result says what the output is like, and the run ends all the same."""
    found = pair(streams.fail_at, items(50), shared={"bad": range(50)}, on_error="return")
    assert np.ma.getmaskarray(found).tolist() == [True] * 50
    assert [str(last_job().errors[i]) for i in range(50)] == [f"no {i}" for i in range(50)]


def test_dead_workers_are_made_up_for(tmp_path):
    """Retries are the calls' business. The stats know those that died."""
    bad = {0, 150, 299}
    shared = {"bad": bad, "folder": str(tmp_path)}
    job = background(streams.die_once_at, items(300), shared=shared, retries=1, chunksize=1)
    assert job.result(30).tolist() == list(range(300))
    assert len(job.stats) >= 1 + len(bad)
    assert sum(worker.n_items for worker in job.stats) == 300


def test_one_item_takes_too_long():
    """The time-out names it, and the rest is done."""
    options = {"shared": {"bad": {150}}, "timeout": 0.5, "on_error": "return"}
    found = pair(streams.hang_at, items(300), **options)
    assert np.flatnonzero(found.mask).tolist() == [150]
    error = last_job().errors[150]
    assert isinstance(error, TaskTimeoutError)
    assert "item 150" in str(error)


async def awaited(job):
    return await job


CALLS = {
    "local": pair,
    "serial": partial(pair, backend="serial"),
    "threads": partial(pair, backend="threads"),
    "result": lambda *args: background(*args).result(20),
    "loop": lambda *args: list(background(*args)),
    "await": lambda *args: asyncio.run(awaited(background(*args))),
}


ENDING = [SystemExit, KeyboardInterrupt, asyncio.CancelledError]  # would end the program
# Each of them in the thread of the caller and in another one, and two of them wherever else.
RAISED = [(how, kind) for how in CALLS for kind in ENDING if how in ("serial", "result")]
RAISED += [(how, kind) for how in CALLS for kind in ENDING[:2] if how not in ("serial", "result")]


@pytest.mark.parametrize(("how", "kind"), RAISED)
def test_the_source_raises_what_would_end_the_program(how, kind):
    """It is the run's failure, by the index of the item that did not come, and ends no more."""

    def source():
        yield from range(30)
        raise kind("no more files")

    # In the main thread it cannot be told from the user's interrupt.
    is_interrupt = how == "serial" and kind is KeyboardInterrupt
    with pytest.raises(MapInterrupted if is_interrupt else TaskError) as caught:
        CALLS[how](abs, source())
    if not is_interrupt:
        assert f"{kind.__name__} was raised when item 30 was taken" in str(caught.value)
        assert caught.value.type_name.endswith(kind.__name__)
        assert caught.value.index == 30
        assert "in source" in caught.value.__notes__[0]
    assert pair(abs, items(3)).tolist() == [0, 1, 2]


class Bookshelf:
    """Items that have a length, and come from somewhere."""

    def __init__(self, kind):
        self.kind = kind

    def __len__(self):
        return 10

    def __getitem__(self, i):
        if i == 7:
            raise self.kind("no more books")
        return i


@pytest.mark.parametrize(("kind", "raised"), [(ValueError, ValueError), (SystemExit, TaskError)])
def test_a_sequence_fails_as_a_generator_does(kind, raised):
    """Of a sequence of one's own, too, the item is named, and the program goes on."""
    with pytest.raises(raised, match="no more books") as caught:
        pair(abs, Bookshelf(kind))
    assert "when item 7 was taken" in caught.value.__notes__[0]


def test_an_item_that_cannot_be_sent():
    """It is named by its place in the whole, and the run ends."""
    with pytest.raises(TypeError, match="item 100"):
        pair(str, (threading.Lock() if i == 100 else i for i in range(10**9)))


@pytest.mark.parametrize(
    ("how", "source", "kind"),
    [
        *((how, iter, kind) for how, kind in RAISED if how in ("serial", "result", "local")),
        *((how, list, ENDING[i % 3]) for i, how in enumerate(CALLS)),
    ],
)
def test_an_item_raises_what_would_end_the_program_when_it_is_pickled(how, source, kind):
    """It is an item that cannot be sent like any other, and named."""
    given = [*range(40), streams.Raises(kind), *range(40)]
    # In the main thread it cannot be told from the user's interrupt.
    is_here = source is list or how in ("local", "serial", "threads")
    is_interrupt = kind is KeyboardInterrupt and is_here
    raised = KeyboardInterrupt if is_interrupt else UnsendableError
    with pytest.raises(raised, match=None if is_interrupt else f"item 40 .*{kind.__name__}"):
        CALLS[how](id, source(given))
    assert pair(abs, items(3)).tolist() == [0, 1, 2]


def test_a_late_item_of_a_long_list_raises_systemexit_when_it_is_pickled():
    """Also where the first items run while the others are being pickled."""
    given = [*range(50_000), streams.Raises(SystemExit), *range(50_000)]
    with pytest.raises(UnsendableError, match="item 50000 "):
        pair(id, given)


class Interrupts:
    """Interrupts the process that pickles it, as Ctrl-C does."""

    def __reduce__(self):
        signal.raise_signal(signal.SIGINT)
        return int, ()


@pytest.mark.parametrize("n", [3, 100_000])
@pytest.mark.parametrize("source", [list, iter], ids=["list", "generator"])
def test_an_interrupt_while_items_are_pickled(source, n):
    """It is the user's own, not the failure of the item that is being pickled."""
    with pytest.raises(MapInterrupted):
        pair(abs, source([*range(n - 1), Interrupts()]))
    assert pair(abs, items(3)).tolist() == [0, 1, 2]


def test_shared_arrays_are_placed_once():
    """However many windows there are, all of a worker's items see the same memory."""
    data = np.zeros(1 << 20)
    found = pair(streams.inode_of, items(3000), shared={"array": data})
    assert len(set(found.tolist())) == 1


# ------------------------------------------------------------------------- ended early


def test_cancel_keeps_what_is_done():
    """With the warning, as a masked array."""
    job = background(streams.spin, itertools.count(), shared={"seconds": 0.001})
    wait_until(lambda: job.n_done > 100)
    assert job.cancel()
    with pytest.warns(nbshare.errors.PartialResultWarning):
        found = job.result(5)
    done = np.flatnonzero(~found.mask)
    assert len(done) > 100
    assert (found[done] == done).all()


class HeldUp:
    """An item that waits while it is packed."""

    def __init__(self, is_packed, may_go_on):
        self.given = is_packed, may_go_on

    def __reduce__(self):
        is_packed, may_go_on = self.given
        is_packed.set()
        assert may_go_on.wait(60)
        return int, (5,)


@pytest.mark.parametrize("backend", [None, "threads"])
def test_cancel_while_items_are_packed(backend):
    """They come too late. The results are those before them, and are not known to be all."""
    is_packed, may_go_on = threading.Event(), threading.Event()
    source = itertools.chain(range(8), [HeldUp(is_packed, may_go_on)])
    job = background(streams.give, source, shared={"kind": "numbers"}, backend=backend)
    assert is_packed.wait(60)
    wait_until(lambda: job.n_done == job._run.board.n_there)
    job.cancel()
    wait_until(job.done)
    n_done = job.n_done
    may_go_on.set()
    wait_until(lambda: not brings_items())
    with pytest.warns(nbshare.errors.PartialResultWarning):
        found = job.result()
    assert found.tolist() == [streams.give(i, "numbers") for i in range(n_done)]
    assert len(job.present) == n_done
    assert job.n_items is None


@pytest.mark.parametrize("backend", [None, "threads"])
def test_a_generator_is_left_when_a_run_with_a_checkpoint_ends_early(tmp_path, backend):
    """No thread goes on waiting for room."""
    job = background(abs, itertools.count(), backend=backend, checkpoint=tmp_path / "run")
    next(iter(job))
    wait_until(source_waits)
    job.cancel()
    assert job.wait(60)
    wait_until(lambda: not source_waits(), what="its thread waits for ever")


def test_a_source_that_never_gives_anything_can_be_cancelled():
    """Though its thread hangs in it."""
    gate = threading.Event()

    def silent():
        yield 1
        gate.wait(30)
        yield 2

    job = background(streams.give, silent(), shared={"kind": "ints"})
    wait_until(lambda: job.n_done == 1)
    job.cancel()
    assert job.wait(20)
    gate.set()
    with pytest.warns(nbshare.errors.PartialResultWarning):
        assert job.result().compressed().tolist() == [1]


def test_an_interrupt_inside_the_source():
    """It is the user's own, and ends the run like any other. The next one is right."""

    def source():
        yield from range(100)
        signal.raise_signal(signal.SIGINT)
        yield 100

    with pytest.raises(MapInterrupted):
        pair(streams.give, source(), shared={"kind": "ints"})
    assert last_job().state == "interrupted"
    assert pair(streams.give, items(3), shared={"kind": "ints"}).tolist() == [0, 1, 4]


@pytest.mark.parametrize("told", [safe_repr, lambda error: describe(error, 0, "")])
def test_an_interrupt_inside_a_method_that_tells_a_text_is_not_lost(told):
    """The caller notes the texts of slow items while they arrive, and describes errors."""

    class Pressed(Exception):
        def __repr__(self):
            signal.raise_signal(signal.SIGINT)
            return "text"

        __str__ = __repr__

    with pytest.raises(KeyboardInterrupt):
        told(Pressed())


def test_a_generator_that_is_not_gone_through_ends_with_the_map():
    """Its ``finally`` runs, so that files are closed."""
    closed = []

    def source():
        try:
            yield from itertools.count()
        finally:
            closed.append(True)

    with pytest.raises(ValueError, match="no 5"):
        pair(streams.fail_at, source(), shared={"bad": {5}})
    nbshare.parallel_map(streams.fail_at, [1], shared={"bad": ()}, progress=False)
    gc.collect()
    assert closed == [True]


def test_one_version_of_the_code_in_all_windows(tmp_path, monkeypatch):
    """An edit in an early window is for the next run."""
    path = tmp_path / "stream_version.py"
    path.write_text("VERSION = 1")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("stream_version")
    shared = {"edit": "VERSION = 2", "path": str(path)}
    assert set(pair(streams.version, items(3000), shared=shared).tolist()) == {1}
    assert set(pair(streams.version, items(2), shared=shared).tolist()) == {2}
    sys.modules.pop("stream_version")


def test_another_map_renews_the_workers_meanwhile(tmp_path, monkeypatch):
    """Windows after it run on workers of the code of the stream's start, too."""
    path = tmp_path / "stream_other.py"
    path.write_text("VERSION = 1")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("stream_other")
    others = []

    def source():
        for i in range(1000):
            if i == 500:
                path.write_text("VERSION = 2")
                others.append(pair(streams.other_version, range(2)).tolist())
            yield i

    assert pair(streams.other_version, source()).tolist() == [1] * 1000
    assert others == [[2, 2]]
    assert pair(streams.other_version, range(2)).tolist() == [2, 2]
    sys.modules.pop("stream_other")


def test_streams_that_are_kept_keep_no_sources(tmp_path, monkeypatch):
    """A job of each edit is kept. Each has the descriptors of its board, and no others."""
    path = tmp_path / "stream_kept.py"
    path.write_text("VERSION = 0")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("stream_kept")
    jobs, before = [], 0
    for i in range(1, 22):
        path.write_text(f"VERSION = {i}")
        jobs.append(map_async(abs, iter([1, -2]), max_workers=2, progress=False))
        assert jobs[-1].result().tolist() == [1, 2]
        before = before or len(os.listdir("/proc/self/fd"))
    n_each = 1 if sys.version_info >= (3, 13) else 2
    assert len(os.listdir("/proc/self/fd")) < before + n_each * len(jobs) + 15
    sys.modules.pop("stream_kept")


def test_a_view_of_what_was_there_stays_as_it_is_when_all_is_taken():
    """A loop does not give back to the system what partial() gave before it began."""
    job = background(streams.give, items(40_000), shared={"kind": "arrays"})
    wait_until(lambda: job.n_done > 100)
    part = job.partial()
    before = part.copy()
    assert len(list(job)) == 40_000
    np.testing.assert_array_equal(part.compressed(), before.compressed())


def test_the_slowest_items_are_named_when_they_are_gone():
    """By their texts, though the items of a generator are not kept."""
    job = background(streams.give, items(3000), shared={"kind": "ints"})
    job.result()
    slowest = [item for worker in job.stats for item in worker.slowest]
    assert slowest
    assert all(item.item == str(item.index) for item in slowest if item.item)
    assert any(item.item for item in slowest)


def test_the_text_of_a_slow_item_is_made_once():
    """Though the slowest so far are noted with each portion, as that of an array takes long."""
    streams.Shown.times.clear()
    numbers = (streams.Shown(i) for i in range(500))
    parallel_map(type, numbers, backend="serial", out="list", progress=False)
    assert set(streams.Shown.times.values()) == {1}


@pytest.mark.parametrize("call", [pair, lambda *args: background(*args).result(20)])
def test_items_are_weighed_without_users_code(call):
    """An item that cannot be looked at is sent all the same."""
    assert call(len, (streams.Unweighable([i] * i) for i in range(3))).tolist() == [0, 1, 2]
