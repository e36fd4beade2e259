"""Small runs in quick succession are as right as any other."""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import itertools
import os
import shutil
import signal
import threading
import time
import weakref
from functools import partial
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nbshare
from nbshare import MapInterrupted, errors, last_job, parallel_map, share
from nbshare.errors import MixedResultsWarning, PartialResultWarning, WorkerDiedError
from tests.support import small_tasks as tasks
from tests.support.faultlab import SOON_S, await_flag, wait_until

quiet = partial(parallel_map, progress=False, max_workers=2)
again = partial(quiet, tasks.perform)


def give(*values):
    return [("give", value) for value in values]


def warm_up(n=4):
    """Run a few runs of `n` orders one after the other, so that workers wait for the next."""
    for _ in range(4):
        assert again(give(*range(n))).tolist() == list(range(n))


def workers():
    """Return the numbers of both workers."""
    return wait_until(
        lambda: pids if len(pids := set(quiet(tasks.slow_pid, range(8)))) == 2 else None
    )


def kill_idle(pids, path):
    """Kill the worker that has begun no item, when one has begun."""
    wait_until(path.read_text)
    for pid in pids - {int(line.split()[1]) for line in path.read_text().splitlines()}:
        os.kill(pid, signal.SIGKILL)


def descriptors():
    gc.collect()  # a dispatcher that has ended is garbage, with its last calls
    return len(os.listdir("/proc/self/fd"))


# ------------------------------------------------------------------------------ results


VALUES = (
    st.integers()
    | st.integers(-3, 3)
    | st.booleans()
    | st.floats()
    | st.complex_numbers()
    | st.none()
    | st.text(max_size=3)
    | st.sampled_from("?bBhHiIqQlLefdFD").map(lambda char: np.dtype(char).type(1))
    | st.tuples(st.integers(0, 2), st.text(max_size=2))
    | st.lists(st.integers(0, 9), max_size=3).map(np.array)
)
ALIKE = st.one_of(*(st.lists(kind, min_size=3, max_size=3) for kind in (*VALUES.branches, VALUES)))


def outcome_of(func, items, **options):
    """Return a result such that equal ones are equal, NaN too."""
    # One worker, because with two it matters which result comes first, in any run.
    found = parallel_map(func, items, progress=False, max_workers=1, **options)
    if isinstance(found, np.ndarray):
        return type(found), found.dtype, found.shape, found.tobytes()
    return type(found), [(type(value), repr(np.asarray(value).tolist())) for value in found]


@pytest.mark.filterwarnings("ignore::nbshare.errors.MixedResultsWarning")
@settings(max_examples=30, deadline=None)
@given(st.lists(ALIKE, min_size=3, max_size=8), st.sampled_from([None, "list"]))
def test_results_are_those_of_the_serial_loop(maps, out):
    """Those of the runs before make no difference, dtypes included."""
    for items in maps:
        found = outcome_of(tasks.echo, items, out=out)
        assert found == outcome_of(tasks.echo, items, out=out, backend="serial")


def test_results_of_earlier_maps_stay(recwarn):
    """The next one's have memory of their own. All are shared arrays."""
    found = [quiet(tasks.echo, [float(i), 2.0 * i]) for i in range(100)]
    assert [each.tolist() for each in found] == [[float(i), 2.0 * i] for i in range(100)]
    assert {type(each) for each in found} == {nbshare.SharedArray}
    assert all(quiet(tasks.echo, each[:2]).tolist() == each.tolist() for each in found[:3])


def test_several_iterables_of_all_kinds():
    """Lists, tuples and ranges, as many as there are."""
    for i in range(10):
        found = quiet(tasks.both, [i, "b", None], range(i, i + 3))
        assert found == [(i, i), ("b", i + 1), (None, i + 2)]
    for i in range(10):
        assert quiet(tasks.both, (i, i), [b"", i]) == [(i, b""), (i, i)]


ARRAYS = {
    "numbers": np.linspace(0, 1, 4),
    "rows": np.arange(12.0).reshape(4, 3),
    "columns": np.arange(12).reshape(3, 4).T,
    "halves": np.arange(4, dtype=np.float16),
    "records": np.array([(1, 0.5)] * 4, "i4,f8"),
    "dates": np.array(["2026-01-01"] * 4, "M8[D]"),
    "texts": np.array(list("abcd")),
    "every other": np.arange(8)[::2],
    "nothing in it": np.zeros((4, 0)),
}


@pytest.mark.filterwarnings("ignore::nbshare.errors.MixedResultsWarning")
@pytest.mark.parametrize("kind", ARRAYS)
def test_rows_of_small_arrays(kind):
    """They are what they are in the serial loop, and read-only in workers."""
    array = ARRAYS[kind]
    for func in (tasks.echo, tasks.describe):
        expected = outcome_of(func, array, backend="serial")
        assert [outcome_of(func, array) for _ in range(4)] == [expected] * 4
    if array.ndim > 1 and array.size:
        for _ in range(4):
            with pytest.raises(ValueError, match="read-only"):
                quiet(tasks.write_to, array)


@pytest.mark.parametrize("out", ["list", "stack"])
def test_results_as_they_were_asked_for(out):
    """As a list, or stacked by columns, in each of them."""
    for i in range(10):
        found = quiet(tasks.both, [i, i + 1], [0.5, 1.5], out=out)
        if out == "list":
            assert found == [(i, 0.5), (i + 1, 1.5)]
        else:
            assert [column.tolist() for column in found] == [[i, i + 1], [0.5, 1.5]]


def test_large_results_and_items():
    """Arrays, long texts and large items come between small ones."""
    data = share(np.arange(1000.0))
    for n in (0, 10, 3_000_000, 10, 0):
        for _ in range(3):
            assert again([("zeros", n)] * 2).shape == (2, n)
            assert list(map(len, again([("text", n), ("text", 1)]))) == [n, 1]
            assert again(give(1, 2)).tolist() == [1, 2]
            assert again(give("y" * n, n)) == ["y" * n, n]
            assert again(give(data[:4], data[2:6])).tolist() == [[0, 1, 2, 3], [2, 3, 4, 5]]
            assert [each.size for each in again(give(np.zeros(n), n), out="list")[:1]] == [n]


WRONG = {
    "a number": 3,
    "an array without rows": np.array(3.0),
    "nothing": None,
}


@pytest.mark.parametrize("items", WRONG.values(), ids=WRONG)
def test_what_gives_no_items_is_refused(items):
    """Though all other arguments are those of the runs before, which have been checked."""
    for _ in range(4):
        assert quiet(tasks.echo, [1, 2, 3]).tolist() == [1, 2, 3]
        with pytest.raises(TypeError, match="gives no items"):
            quiet(tasks.echo, items)
        with pytest.raises(ValueError, match=r"Pass iter\(range"):
            quiet(tasks.echo, range(2**63))


def test_arguments_that_change_are_seen(monkeypatch):
    """The same objects may mean something else by now, and the function, too."""
    shared = {}
    for extra in range(3):
        for _ in range(4):
            assert quiet(tasks.with_extra, [1, 2], shared=shared)[0][1] == shared.get("extra", 0)
        shared["extra"] = extra
    arguments = []
    for _ in range(4):
        quiet(tasks.echo, [1, 2], initargs=arguments)
    arguments.append(1)
    with pytest.raises(TypeError, match="no initializer="):
        quiet(tasks.echo, [1, 2], initargs=arguments)
    for _ in range(4):
        quiet(tasks.with_extra, [1, 2])
    monkeypatch.setattr(tasks.with_extra, "__code__", tasks.of_two.__code__)
    monkeypatch.setattr(tasks.with_extra, "__defaults__", None)
    with pytest.raises(TypeError, match="cannot be called as"):
        quiet(tasks.with_extra, [1, 2])


def test_items_have_nothing_in_common_in_a_worker():
    """As in any run over so few, changes of an item to itself are seen by no other."""
    seen = []
    for _ in range(6):
        assert quiet(tasks.add_to, [(seen, i) for i in range(6)]).tolist() == [1] * 6
    assert seen == []


ODD = {
    "objects": lambda: [np.array([1, None, "a"])],
    "masked": lambda: [np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0])],
    "a generator": lambda: [range(3), (i for i in range(3))],
    "the shortest ends": lambda: [range(3), (i for i in range(4))],
    "bytes": lambda: [b"abc", [1, 2, 3]],
    "a set": lambda: [{1, 2, 3}, [1, 2, 3]],
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_iterables_of_other_kinds(make):
    """Between runs over lists they give what they give to the built-in `map`."""
    func = [tasks.echo, tasks.both][len(make()) - 1]
    for _ in range(4):
        for _ in range(3):
            quiet(func, *([1, 2, 3] for _ in make()), out="list")
        assert repr(quiet(func, *make(), out="list")) == repr(list(map(func, *make())))


class Slow:
    """Takes its time to be pickled."""

    def __reduce__(self):
        time.sleep(0.002)
        return float, (1.5,)


def test_items_that_take_long_to_pickle():
    """A worker that was told early that they come is told again when they are there."""
    for _ in range(4):
        quiet(tasks.echo, [Slow(), Slow()])
    start = time.monotonic()
    for _ in range(20):
        assert quiet(tasks.echo, [Slow(), Slow()]).tolist() == [1.5, 1.5]
    assert time.monotonic() - start < 1.0  # 0.1 s each if nobody looked before it is time to


def test_items_are_let_go():
    """A little after the run they are freed."""

    class Thing(set):
        def __reduce__(self):
            return float, (1.5,)

    seen = []
    for _ in range(6):
        things = [Thing(), Thing()]
        seen += map(weakref.ref, things)
        assert quiet(tasks.echo, things).tolist() == [1.5, 1.5]
    del things
    wait_until(lambda: gc.collect() is not None and not any(ref() is not None for ref in seen))


# ------------------------------------------------------------------ as calls of their own


def test_each_runs_the_code_of_its_moment(tmp_path, monkeypatch):
    """A file that is edited between two of them is run as it is, and so is what it imports."""
    monkeypatch.syspath_prepend(str(tmp_path))
    helper, module = tmp_path / "lap_helper.py", tmp_path / "lap_module.py"
    module.write_text("import lap_helper\ndef f(x): return x + lap_helper.value")
    helper.write_text("value = 0")
    f = importlib.import_module("lap_module").f
    for value in range(1, 6):
        for _ in range(5):
            found = quiet(f, [10, 20, 30])
        helper.write_text(f"value = {value}{' ' * value}")
        found = quiet(f, [10, 20, 30])
        assert found.tolist() == [10 + value, 20 + value, 30 + value]


def test_what_an_item_imports_is_watched(tmp_path):
    """A file that workers have imported in the middle of a call is run as edited by the next."""
    module = tmp_path / "lap_late.py"
    module.write_text("def version(): return 0")
    warm_up()
    order = [("import", str(tmp_path / "lap_late")), *give(-1, -1, -1)]
    for version in range(1, 5):
        for _ in range(3):
            assert again(order).tolist() == [version - 1, -1, -1, -1]
        module.write_text(f"def version(): return {version}{' ' * version}")


def test_a_directory_of_the_same_name_is_another_one(tmp_path, monkeypatch):
    """Workers stand in the one that is there now."""
    folder = tmp_path / "results"
    for i in range(6):
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("here").write_text(str(i))
        assert quiet(tasks.first_line, ["here"] * 3) == [str(i)] * 3
        monkeypatch.chdir(tmp_path)
        shutil.rmtree(folder)


# It goes by value, with its state, while functions by name would run the file's.
@pytest.mark.filterwarnings("ignore:lap_closure.state is")
def test_a_closure_has_the_state_of_its_moment(tmp_path, monkeypatch):
    """Also if it has the name under which its module has it."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "lap_closure.py").write_text(
        "state = [0]\ndef make(state=state):\n    def f(x): return x + state[0]\n"
        "    return f\nf = make()\n"
    )
    module = importlib.import_module("lap_closure")
    for i in range(6):
        module.state[0] = i
        assert quiet(module.f, [1, 2]).tolist() == [1 + i, 2 + i]


def test_long_items_after_quick_ones_are_shared_out():
    """The pace of the runs before does not keep one worker from half of the work."""
    workers()
    for _ in range(3):
        for _ in range(4):
            quiet(tasks.slow_if_large, [0] * 10)
        pids = quiet(tasks.slow_if_large, [0.05] * 10).tolist()
        assert min(map(pids.count, {*pids})) < 10


def test_late_items_that_are_slow_are_shared_out():
    """Wherever they are in what one worker has claimed."""
    workers()
    for _ in range(40):
        quiet(tasks.slow_if_large, [0] * 127)
    pids = quiet(tasks.slow_if_large, [0] * 64 + [0.01] * 63).tolist()[64:]
    assert min(map(pids.count, {*pids})) > 8
    assert len({*pids}) == 2


def test_a_chunk_is_as_large_as_was_asked_for():
    """All of it is run by the worker that claimed it, however slow."""
    run = partial(quiet, tasks.slow_if_large, chunksize=6)
    for _ in range(5):
        run([0] * 6)
    assert len({*run([0.02] * 6).tolist()}) == 1


def test_statistics_count_what_was_done_before_a_failure():
    """And name the slowest items of that run, not of those before."""
    run = partial(parallel_map, tasks.perform, progress=False, max_workers=1)
    for slow in (("give", 0), ("give", 0), ("give", 0), ("sleep", 0.3)):
        run([slow, *give(*range(29))])
    with pytest.raises(ValueError, match="no"):
        run(
            [
                *give(*range(10)),
                ("sleep", 0.02),
                *give(*range(9)),
                ("raise", "no"),
                *give(*range(9)),
            ]
        )
    (stats,) = last_job().stats
    assert stats.n_items == last_job().n_done == 20
    seconds = [slow.elapsed_s for slow in stats.slowest]
    assert seconds == sorted(seconds, reverse=True)
    assert 1e-3 < seconds[0] < 0.2  # tiny items may have been measured together


def test_a_failed_one_keeps_its_items():
    """Later changes of the list by the caller change nothing."""
    for _ in range(4):
        again(give(1, 2, 3))
    items = [*give(1), ("raise", "no"), *give(3)]
    with pytest.raises(ValueError, match="no"):
        again(items)
    items.clear()
    assert last_job().debug(0) == 1


def test_each_has_the_surroundings_of_its_moment(tmp_path, monkeypatch):
    """Changes by the caller between two of them are seen, changes by items are not."""
    for i in range(4):
        folder = tmp_path / str(i)
        folder.mkdir()
        monkeypatch.chdir(folder)
        monkeypatch.setenv("SETTLED", str(i))
        umask = os.umask(0o20 + i)
        try:
            for _ in range(4):
                found, _ = again([("littered", None), ("give", 0)])
                assert found["cwd"] == str(folder)
                assert found["environ"][0] == str(i)
                assert found["umask"] == 0o20 + i
                assert "/elsewhere" not in found["path"]
                assert found["stdout"] != "NoneType"
        finally:
            os.umask(umask)


def test_prints_are_there_with_the_results(capsys):
    """And where the caller's own are, also if that changes."""
    for i in range(20):
        again([("say", f"here {i}"), ("give", 0.0)])
        assert capsys.readouterr().out == f"here {i}\n"
        with contextlib.redirect_stdout(io.StringIO()) as elsewhere:
            again([("say", f"there {i}"), ("give", 0.0)])
        assert elsewhere.getvalue() == f"there {i}\n"
        assert capsys.readouterr().out == ""


def test_other_maps_find_the_workers_free():
    """No more workers than were asked for, in any sequence. Afterwards all is at rest."""
    nbshare.shutdown()
    pids = workers()
    for _ in range(10):
        for _ in range(4):
            pids |= set(quiet(tasks.pid, [1, 2, 3]).tolist())
        pids |= set(quiet(tasks.other_pid, range(10), chunksize=1).tolist())
    assert len(pids) == 2


@pytest.mark.parametrize("n_alike", [2, 3])
def test_maps_in_quick_succession_start_no_more_workers(n_alike):
    """Also where one has ended before all workers have turned to it."""
    workers()
    me = psutil.Process()
    before = set(me.children(recursive=True))
    for func in (tasks.pid, tasks.other_pid) * 50:
        for _ in range(n_alike):
            quiet(func, [1, 2])
    assert set(me.children(recursive=True)) <= before


def test_nothing_stays_open():
    """A little after the last one all descriptors are closed."""
    warm_up()
    time.sleep(0.2)
    before = descriptors()
    for n in range(1, 12):
        warm_up(n)
    wait_until(lambda: descriptors() <= before, what=lambda: f"{descriptors()}, before {before}")


# ------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("n_before", range(4))
def test_an_item_fails(n_before):
    """It is named as it counts in its map, the others are kept, and the next run is right."""
    for _ in range(n_before):
        again(give(1, 2, 3))
    with pytest.raises(ValueError, match="no way") as caught:
        again([("sleep", 0.0), ("raise", "no way"), ("sleep", 60.0)])
    assert "item 1" in caught.value.__notes__[0]
    job = last_job()
    assert job.partial()[0] == 0.0
    assert job.n_items == 3
    assert sum(each.n_items for each in job.stats) <= 2
    assert all(each.starting_s >= 0 for each in job.stats)
    assert again(give(4, 5, 6)).tolist() == [4, 5, 6]
    assert job.n_done == 1


def test_an_item_cannot_be_sent_or_returned():
    """The error says so, each time, and the next run is right."""
    for _ in range(3):
        warm_up(2)
        with pytest.raises(errors.UnsendableError, match="item 1"):
            again(give(0, threading.Lock()))
        warm_up(2)


def test_a_worker_dies_in_an_item():
    """The item is named. The next runs have their workers."""
    for _ in range(5):
        warm_up()
        with pytest.raises(WorkerDiedError, match=r"item 2 \(|items [01] \(.* to 3"):
            again([*give(0, 1), ("die", 0), *give(3)])


class Deadly:
    """Ends the process in which it is unpickled."""

    def __reduce__(self):
        return os._exit, (3,)


def test_an_item_ends_its_worker_while_it_is_loaded():
    """That is an error soon, and not workers for ever."""
    for _ in range(3):
        for _ in range(5):
            assert again(give([1], 2, 3, 4, 5), out="list") == [[1], 2, 3, 4, 5]
        for _ in range(2):
            start = time.monotonic()
            with pytest.raises(WorkerDiedError):
                again([*give(1, 2, 3), ("give", Deadly()), *give(5)], out="list")
            assert time.monotonic() - start < SOON_S
        assert again(give(1, 2)).tolist() == [1, 2]


def test_idle_workers_are_killed():
    """One or both, between two runs, and the next run works."""
    for n in (1, 2, 1, 2, 1, 1, 1, 2):
        pids = workers()
        warm_up()
        for pid in list(pids)[:n]:
            os.kill(pid, signal.SIGKILL)
        for _ in range(3):
            assert again(give(1, 2, 3, 4)).tolist() == [1, 2, 3, 4]


def test_an_idle_worker_is_killed_while_the_other_works(tmp_path):
    """Each item runs once."""
    path = tmp_path / "runs"
    run = partial(quiet, tasks.note_run, chunksize=4)
    for _ in range(8):
        pids = workers()
        for _ in range(4):
            run([(str(path), i, 0.0) for i in range(4)])
        path.write_text("")
        killer = threading.Thread(target=kill_idle, args=(pids, path))
        killer.start()
        assert run([(str(path), i, 0.01) for i in range(4)]).tolist() == [0, 1, 2, 3]
        killer.join()
        assert [int(line.split()[0]) for line in path.read_text().splitlines()] == [0, 1, 2, 3]


@pytest.fixture
def alarm():
    """Have the alarm clock interrupt as Ctrl-C does."""
    handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
    gc.disable()  # what others call back there may swallow an interrupt
    try:
        yield
    finally:
        gc.enable()
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def alarm_in(seconds):
    """Ring the alarm clock in the middle of what is done here, or not at all."""
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def strike_at(flag):
    await_flag(flag)
    os.kill(os.getpid(), signal.SIGALRM)


@pytest.mark.usefixtures("alarm")
def test_a_map_is_interrupted(tmp_path):
    """Any of them ends at once and keeps what is done. The next ones are right."""
    for i in range(4):
        warm_up()
        flag = str(tmp_path / str(i))
        striker = threading.Thread(target=strike_at, args=(flag,))
        striker.start()
        start = time.monotonic()
        with pytest.raises(MapInterrupted):
            again([("sleep", 0.0), ("flag", flag), ("sleep", 60), ("sleep", 60)])
        assert time.monotonic() - start < SOON_S
        striker.join()
        assert last_job().partial()[0] == 0.0


class Endless:
    """Takes longer to be pickled than anybody waits."""

    def __reduce__(self):
        time.sleep(60)


@pytest.mark.usefixtures("alarm")
def test_items_are_interrupted_while_they_are_pickled():
    """As a run that has not begun, with no error of another kind."""
    for _ in range(3):
        for _ in range(4):
            quiet(tasks.echo, [Slow(), Slow()])
        with pytest.raises(MapInterrupted, match="before it had started"), alarm_in(0.05):
            quiet(tasks.echo, [Slow(), Endless()])


@pytest.mark.usefixtures("alarm")
def test_what_an_interrupted_one_had_done_stays():
    """Also if the interrupt came when all was done, and whatever runs follow."""
    run = partial(quiet, tasks.both, out="stack")
    n_jobs = 0
    for k in range(100):
        begun = time.perf_counter()
        for _ in range(3):
            run([k, k], [k, k])
        took_s = (time.perf_counter() - begun) / 3
        with contextlib.suppress(KeyboardInterrupt), alarm_in(1e-5 + k / 100 * took_s):
            run([k, k], [-k, -k])
        if (job := last_job()) is not None:
            before, n_jobs = repr(job.partial()), n_jobs + 1
            for _ in range(3):
                run([-1, -1], [-2, -2])
            assert repr(job.partial()) == before
    assert n_jobs > 20


@pytest.mark.usefixtures("alarm")
def test_interrupts_at_any_moment():
    """A result is right or there is none. Nothing hangs, and nothing grows."""
    dice = np.random.default_rng(20261122)
    n_interrupted = 0
    warm_up()
    for i in range(150):
        if i == 30:
            nbshare.shutdown()  # so that it does not matter how many workers there are
            before = descriptors()
        try:
            with alarm_in(dice.uniform(1e-4, 3e-3)):
                for k in range(20):
                    assert again(give(i, k, -1)).tolist() == [i, k, -1]
        except KeyboardInterrupt:
            n_interrupted += 1
        start = time.monotonic()
        assert again(give(i, i, i)).tolist() == [i, i, i]
        assert time.monotonic() - start < SOON_S
    assert n_interrupted > 50
    nbshare.shutdown()
    allowed = before + 2  # those of a segment that the last job keeps
    wait_until(lambda: descriptors() <= allowed, what=lambda: f"{descriptors()}, {before}")


def test_threads_have_as_many_workers_as_they_asked_for():
    """However their runs end and begin."""
    nbshare.shutdown()
    pids, end = set(), time.monotonic() + 1

    def map_on(func):
        while time.monotonic() < end:
            pids.update(quiet(func, [1, 2, 3]).tolist())

    threads = [threading.Thread(target=map_on, args=(f,)) for f in (tasks.pid, tasks.other_pid) * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(pids) <= 12  # a worker that is still at the last map is not waited for


@pytest.mark.parametrize("with_shutdown", [False, True])
def test_threads_map_the_same_function(with_shutdown):
    """Each has its own results, also when another thread calls shutdown in between."""
    wrong, ended = [], threading.Event()
    n_done = 0

    def map_on(k):
        nonlocal n_done
        for i in itertools.takewhile(lambda _: not ended.is_set(), itertools.count(1)):
            items = [k, i, k * i]
            try:
                found = quiet(tasks.echo, items)
            except Exception as error:
                wrong.append(error)
                return
            values = list(found)
            is_partial = with_shutdown and (nbshare.MISSING in values or len(values) != 3)
            if not is_partial and not isinstance(found, np.ma.MaskedArray) and values != items:
                wrong.append((values, items))
            n_done += 1

    threads = [threading.Thread(target=map_on, args=(k,)) for k in range(1, 5)]
    with pytest.warns(PartialResultWarning) if with_shutdown else contextlib.nullcontext():
        for thread in threads:
            thread.start()
        for turn in itertools.count():
            if with_shutdown:
                nbshare.shutdown()
            time.sleep(0.05)
            n_turns = 20 if with_shutdown else 5
            if wrong or (turn > n_turns and n_done > 20):  # a busy machine takes longer
                break
        ended.set()
        for thread in threads:
            thread.join()
    assert not wrong, wrong[:3]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_forks_between_two():
    """The child has workers of its own, the parent goes on with its."""
    for _ in range(3):
        warm_up()
        pid = os.fork()
        if pid == 0:
            status = 1
            with contextlib.suppress(BaseException):
                warm_up()
                status = 0
            nbshare.shutdown()
            os._exit(status)
        warm_up()
        assert os.waitpid(pid, 0)[1] == 0
        warm_up()


def test_results_that_differ_are_told():
    """A warning each time, as of any run."""
    for _ in range(5):
        with pytest.warns(MixedResultsWarning, match="item 0 gave an int, item 1 a str"):
            assert quiet(tasks.echo, [1, "a"], max_workers=1) == [1, "a"]
