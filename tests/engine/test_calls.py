"""The running of calls: failures, workers, chunks, surroundings, memory, a missing server."""

from __future__ import annotations

import decimal
import functools
import importlib
import inspect
import os
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import MapInterrupted, last_job, map_async, parallel_map
from nbshare._core.engine import local
from nbshare._core.memory import pool
from nbshare.errors import (
    NbshareError,
    OutOfMemoryError,
    TaskError,
)
from tests.support import tasks
from tests.support.faultlab import N_SERVERS, memfd_bytes, wait_until
from tests.support.interrupts import InterruptAt
from tests.support.outcomes import notes_of

bound = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity"), reason="this system binds no process to CPUs"
)


def line_of(function, text):
    """Return the number of the line of a function that holds a text."""
    lines, start = inspect.getsourcelines(function)
    return start + next(i for i, line in enumerate(lines) if text in line)


# --------------------------------------------------------------------------- failures


@pytest.mark.parametrize("kind", [ValueError, KeyError, ZeroDivisionError, OSError, StopIteration])
def test_an_exception_comes_as_itself_with_its_place(kind):
    """The exception is the function's own. A note names item, worker, file and line."""
    with pytest.raises(kind) as caught:
        parallel_map(functools.partial(tasks.fail_at, kind=kind), [*"0b2"], ["x", "b", "y"])
    note = notes_of(caught.value)
    assert type(caught.value) is kind
    assert caught.value.args == ("no way on at b",)
    assert "item 1" in note
    assert "'b'" in note
    assert f'tasks.py", line {line_of(tasks.fail_at, "raise ")}, in fail_at' in note
    assert "worker" in note
    assert os.sep + "_core" + os.sep + "engine" not in note


def test_an_exception_that_holds_a_lambda_comes_as_itself():
    """An object that plain pickle refuses travels by value."""
    with pytest.raises(ValueError, match="holds a lambda"):
        parallel_map(tasks.raise_holding_lambda, ["only"])


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (tasks.raise_two_arguments, "TwoArgumentError"),
        (tasks.leave, "SystemExit"),
        (tasks.interrupt, "KeyboardInterrupt"),
    ],
)
def test_an_exception_that_cannot_travel_is_a_task_error(function, name):
    """An error that cannot be raised as itself is a TaskError with type, text, item and place."""
    with pytest.raises(TaskError, match=name) as caught:
        parallel_map(function, ["only"])
    error = caught.value
    assert (error.index, error.item) == (0, "'only'")
    assert error.type_name.endswith(name)
    assert f"in {function.__name__}" in notes_of(error)
    assert isinstance(error, RuntimeError | NbshareError)


@pytest.mark.parametrize(
    "item", [tasks.Silent(), tasks.Loud(), "x" * 10_000_000, b"y" * 10_000_000]
)
@pytest.mark.parametrize(
    ("function", "error"),
    [
        (tasks.raise_plain, LookupError),
        (tasks.raise_mute, (tasks.MuteError, TaskError)),
        (tasks.raise_long, (ValueError, TaskError)),
    ],
)
def test_items_and_exceptions_that_cannot_be_shown(function, error, item):
    """However an item or exception shows itself, the failure is reported, and briefly."""
    with pytest.raises(error) as caught:
        parallel_map(function, [item])
    assert "item 0" in notes_of(caught.value)
    assert len(notes_of(caught.value)) < 30_000
    assert parallel_map(tasks.double, [1]).tolist() == [2]


def test_a_result_that_does_not_pickle_names_its_item():
    """A result that cannot travel is its item's failure."""
    with pytest.raises(Exception, match="generator") as caught:
        parallel_map(tasks.give_generator, [5])
    assert "item 0" in notes_of(caught.value)


def test_the_results_of_a_failed_map_are_kept(tmp_path):
    """After a failure last_job() has every finished result, and says which are there."""
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=9)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(10), max_workers=2, chunksize=1)
    job = last_job()
    partial = job.partial()
    assert job.state == "failed"
    assert list(job.errors) == [0]
    assert not job.present[0]
    assert job.present[1:9].all()
    assert job.n_done == job.present.sum()
    assert isinstance(partial, np.ma.MaskedArray)
    assert partial.mask.tolist() == (~job.present).tolist()
    assert partial[1:9].tolist() == [float(i) for i in range(1, 9)]
    assert partial.data[0] == 0


def test_the_gaps_in_a_list_are_missing(tmp_path):
    """After a failure a list of results has MISSING in its gaps."""
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=5)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(6), max_workers=2, chunksize=1, out="list")
    partial = last_job().partial()
    assert partial[0] is nbshare.MISSING
    assert partial[1:5] == [1.0, 2.0, 3.0, 4.0]


@pytest.mark.parametrize("make", [np.full, nbshare.full])
def test_a_given_array_has_what_a_failed_map_had_done(tmp_path, make):
    """After a failure the array given as ``out=`` holds every finished row."""
    out = make(10, 99.0)
    task = functools.partial(tasks.fail_late, flag=tmp_path / "flag", last=9)
    with pytest.raises(ValueError, match="after the others"):
        parallel_map(task, range(10), max_workers=2, chunksize=1, out=out)
    assert out[1:9].tolist() == [float(i) for i in range(1, 9)]


def test_the_last_job_is_forgotten_after_a_success():
    """A finished map keeps nothing, neither its own results nor those of the failed one before."""
    with pytest.raises(ValueError, match="no way"):
        parallel_map(tasks.fail_at, [1], [1])
    assert last_job() is not None
    parallel_map(tasks.double, [1])
    assert last_job() is None


def test_the_next_map_after_a_failure_is_right():
    """Fifty failures in a row leave nothing behind that the next run would notice."""
    for i in range(50):
        with pytest.raises(ValueError, match=f"no way on at {i}"):
            parallel_map(tasks.fail_at, range(i + 1), [i] * (i + 1))
        assert parallel_map(tasks.double, [i]).tolist() == [2 * i]


# ---------------------------------------------------------------- workers and chunks


@pytest.mark.parametrize("chunksize", [1, 7, 1000, np.int64(3)])
def test_any_chunksize_gives_the_same_results(chunksize):
    """Chunks decide which worker runs an item, never the results."""
    result = parallel_map(tasks.double, range(100), chunksize=chunksize)
    assert result.tolist() == list(range(0, 200, 2))


def test_the_items_of_a_chunk_stay_together():
    """A given chunksize is obeyed, so the items of a chunk run in one worker."""
    pids = parallel_map(tasks.pid, range(40), chunksize=5).reshape(8, 5)
    assert (pids == pids[:, :1]).all()


def test_late_items_that_are_slow_are_shared_out(tmp_path):
    """The pace of the quick ones before them does not leave them all to one worker."""
    parallel_map(tasks.meet, range(2), shared={"folder": tmp_path, "n": 2}, max_workers=2)
    seconds = [0] * 64 + [0.01] * 63
    pids = parallel_map(tasks.pid_after, seconds, max_workers=2, progress=False)[64:].tolist()
    assert len({*pids}) == 2
    assert min(map(pids.count, {*pids})) > 8


@pytest.mark.parametrize("n", [1, 3, 5])
def test_as_many_workers_as_asked_for_work_at_once(tmp_path, n):
    """Exactly `max_workers` processes work on a run, at the same time, none of them the caller."""
    pids = parallel_map(tasks.meet, range(n), shared={"folder": tmp_path, "n": n}, max_workers=n)
    assert len({*pids.tolist(), os.getpid()}) == n + 1
    more = parallel_map(tasks.pid, range(500), max_workers=n, chunksize=1)
    assert len(set(more.tolist())) <= n


@bound
def test_by_default_as_many_workers_as_usable_cpus(tmp_path):
    """Without max_workers there is one worker for each CPU that this process may use."""
    n = len(os.sched_getaffinity(0))
    pids = parallel_map(tasks.meet, range(n), shared={"folder": tmp_path, "n": n})
    assert len(set(pids.tolist())) == n


def test_two_threads_map_at_once(tmp_path):
    """Two calls at the same time both go on, each with workers of its own."""
    shared = {"folder": tmp_path, "n": 4}
    with ThreadPoolExecutor(2) as threads:
        calls = [
            threads.submit(parallel_map, tasks.meet, range(2), shared=shared, max_workers=2)
            for _ in range(2)
        ]
        pids = {pid for call in calls for pid in call.result(20).tolist()}
    assert len(pids) == 4


def test_many_jobs_have_the_workers_that_they_asked_for(cold, tmp_path):
    """More than the server can be asked for at the same time."""
    n, signal = 40, nbshare.zeros(1)
    before = psutil.Process().children(recursive=True)  # of another test
    readies = [tmp_path / str(k) for k in range(n)]
    jobs = [
        map_async(tasks.await_value, range(8), shared=shared, max_workers=8, progress=False)
        for shared in ({"signal": signal, "ready": ready} for ready in readies)
    ]
    wait_until(lambda: all(ready.exists() for ready in readies), 60)
    processes = {*psutil.Process().children(recursive=True)}.difference(before)
    alive = [process for process in processes if process.status() != psutil.STATUS_ZOMBIE]
    assert len(alive) <= 8 * n + 1  # and the server
    signal[0] = 7
    assert all(job.result(60).tolist() == [7.0] * 8 for job in jobs)


def test_many_threads_get_their_own_results():
    """Calls from several threads do not mix results or failures."""

    def work(k):
        for i in range(15):
            n = 1 + (k * 7 + i) % 30
            assert parallel_map(tasks.add, range(n), [k] * n).tolist() == [k + j for j in range(n)]
            with pytest.raises(ValueError, match=f"no way on at {k}$"):
                parallel_map(tasks.fail_at, [k], [k])

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))


def test_a_map_in_a_worker_runs_there():
    """A nested map gives right results in the worker itself, with no more processes."""
    for n, (squares, is_alone) in zip(
        [3, 4], parallel_map(tasks.nest, [3, 4], out="list"), strict=True
    ):
        assert squares.tolist() == [2 * i for i in range(n)]
        assert is_alone
    assert parallel_map(tasks.nest_deeply, [3]).tolist() == [3]


@pytest.mark.parametrize("function", [tasks.nest_into_integers, tasks.nest_writing])
def test_a_map_in_a_worker_has_the_rules_of_any_other(function):
    """A nested map loses no digits in ``out=`` and guards plain rows, as it does elsewhere."""
    with pytest.raises((TypeError, ValueError), match=r"int64|read-only"):
        parallel_map(function, [0])


@pytest.mark.filterwarnings("ignore::nbshare.errors.UnseededWarning")
def test_workers_draw_different_random_numbers(cold):
    """NumPy's global random state differs between workers, and from one start to the next."""
    first = parallel_map(tasks.draw_number, range(64), max_workers=4, chunksize=1)
    nbshare.shutdown()
    second = parallel_map(tasks.draw_number, range(64), max_workers=4, chunksize=1)
    assert len({*first.tolist(), *second.tolist()}) == 128


def test_an_interrupt_while_the_engine_starts_is_the_maps():
    """`except MapInterrupted` catches it too, and the next run is right."""
    nbshare.shutdown()
    with pytest.raises(MapInterrupted), InterruptAt(1, {local.__file__}):
        parallel_map(tasks.double, [1, 2])
    assert parallel_map(tasks.double, [1, 2]).tolist() == [2, 4]


def test_workers_are_kept_for_the_next_call():
    """A second call runs in the workers of the first one."""
    nbshare.shutdown()  # or there are several that are idle
    first, second = (parallel_map(tasks.pid, [0], max_workers=1)[0] for _ in range(2))
    assert first == second


def test_calls_in_quick_succession_start_no_more_workers(tmp_path):
    """Also where one has ended before both workers have turned to it."""
    parallel_map(tasks.meet, range(2), shared={"folder": tmp_path, "n": 2}, max_workers=2)
    me = psutil.Process()
    before = set(me.children(recursive=True))
    for function in (tasks.pid, tasks.double) * 50:
        parallel_map(function, [1, 2], max_workers=2, progress=False)
    assert set(me.children(recursive=True)) <= before


# -------------------------------------------------------------------- the surroundings


@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_workers_stand_in_the_new_directory_of_the_old_name(monkeypatch, tmp_path, how):
    """Also where the caller's own folder was replaced between two calls."""
    folder = tmp_path / "results"
    for _ in range(3):
        folder.mkdir()
        monkeypatch.chdir(folder)
        assert set(parallel_map(tasks.directory, range(4), max_workers=2)) == {folder.stat().st_ino}
        monkeypatch.chdir(tmp_path)
        if how == "removed":
            folder.rmdir()
        else:
            folder.rename(tmp_path / f"old {folder.stat().st_ino}")


def test_workers_see_the_callers_surroundings(monkeypatch, tmp_path):
    """Environment, folder, import path and umask are those of the call's start, each time."""
    for i in range(3):
        folder = tmp_path / str(i)
        folder.mkdir()
        monkeypatch.setenv("NBSHARE_TEST", f"value {i}")
        monkeypatch.chdir(folder)
        monkeypatch.setattr(sys, "path", [*sys.path, str(folder)])
        before = os.umask(0o20 + i)
        try:
            found = parallel_map(tasks.surroundings, ["NBSHARE_TEST"])
        finally:
            os.umask(before)
        path = [os.path.abspath(p) if p == "" else p for p in sys.path]
        assert found == [(f"value {i}", str(folder), path, 0o20 + i)]
    monkeypatch.delenv("NBSHARE_TEST")
    assert parallel_map(tasks.surroundings, ["NBSHARE_TEST"])[0][0] is None


def test_workers_compute_as_the_caller_does(monkeypatch):
    """Arguments of the program, recursion limit, NumPy's errors and decimal, at each call."""
    limit = sys.getrecursionlimit()
    for i in range(3):
        monkeypatch.setattr(sys, "argv", ["program", str(i)])
        sys.setrecursionlimit(limit + i)
        try:
            with np.errstate(divide="raise" if i else "warn"), decimal.localcontext() as context:
                context.prec, context.rounding = 5 + i, decimal.ROUND_FLOOR
                context.traps[decimal.Inexact] = i == 2
                expected = tasks.arithmetic(0)
                assert parallel_map(tasks.arithmetic, range(4), out="list") == [expected] * 4
                tasks_seen = nbshare.Executor(1).submit(tasks.arithmetic, 0).result()
                assert tasks_seen == expected
        finally:
            sys.setrecursionlimit(limit)


def test_what_a_function_changes_of_them_is_undone():
    """For the next call, and for the next task of an executor after a pause."""
    expected = tasks.arithmetic(0)
    for _ in range(2):
        parallel_map(tasks.spoil_arithmetic, range(8), max_workers=2, chunksize=1)
        found = parallel_map(tasks.arithmetic, range(8), max_workers=2, chunksize=1, out="list")
        assert found == [expected] * 8
    executor = nbshare.Executor(1)
    executor.submit(tasks.spoil_arithmetic, 0).result()
    assert executor.submit(tasks.arithmetic, 0).result() == expected


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_in_this_process_too_items_compute_as_the_caller_does(backend):
    """Threads have the decimal context, and NumPy's errors, of the thread that calls."""
    with np.errstate(divide="raise"), decimal.localcontext() as context:
        context.prec = 5
        found = parallel_map(tasks.arithmetic, range(4), backend=backend, out="list")
        assert found == [tasks.arithmetic(0)] * 4


def test_errors_that_go_to_a_function_of_the_caller_are_warnings_in_workers():
    """Its function stays there. Without one NumPy would raise a NameError."""
    with np.errstate(divide="call", call=print), warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning, match="divide by zero"):
            parallel_map(lambda x: np.float64(1) / x, [0.0])


def test_a_worker_imports_with_the_arguments_of_the_program(tmp_path, script):
    """A module that reads them when it is imported has the caller's, also after they change."""
    (tmp_path / "options.py").write_text("import sys\nvalue = sys.argv[1:]\ndef f(x): return value")
    code = """
import sys
from nbshare import parallel_map
for given in ["--a"], ["--b", "1"]:
    sys.argv[1:] = given
    sys.modules.pop("options", None)
    import options
    print(parallel_map(options.f, [0])[0])
"""
    assert script(code).splitlines() == ["['--a']", "['--b', '1']"]


@bound
def test_workers_use_the_callers_cpus():
    """A process that may use one CPU only has workers on that CPU, and back again."""
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert parallel_map(tasks.cpus, [0], out="list") == [[min(allowed)]]
    finally:
        os.sched_setaffinity(0, allowed)
    assert parallel_map(tasks.cpus, [0], out="list") == [sorted(allowed)]


def test_workers_use_the_callers_warning_filters():
    """A warning that the caller has made an error is one in the workers, one that is off is off."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="careful"):
            parallel_map(tasks.warn, ["careful"])
        warnings.simplefilter("ignore")
        assert parallel_map(tasks.warn, ["careful"]).tolist() == [0]


def test_a_filter_of_a_library_s_warning_does_not_import_the_library(tmp_path, monkeypatch):
    """It holds in workers whose function imports the library, and costs others nothing."""
    (tmp_path / "library.py").write_text("class LibraryWarning(UserWarning): pass\n")
    (tmp_path / "user_of_library.py").write_text(
        "import warnings\n"
        "from library import LibraryWarning\n\n"
        "def warn(text):\n"
        "    warnings.warn(text, LibraryWarning)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    library = importlib.import_module("library")
    with warnings.catch_warnings():
        warnings.simplefilter("error", library.LibraryWarning)
        assert parallel_map(tasks.is_imported, ["library"], out="list") == [False]
        with pytest.raises(library.LibraryWarning, match="careful"):
            parallel_map(importlib.import_module("user_of_library").warn, ["careful"])


def test_a_filter_holds_for_a_library_that_an_item_imports(tmp_path, monkeypatch):
    """A category is known by its name until its module is imported, and so are its subclasses."""
    (tmp_path / "late_library.py").write_text(
        "class LateWarning(UserWarning): pass\nclass LaterWarning(LateWarning): pass\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    category = importlib.import_module("late_library").LateWarning
    with warnings.catch_warnings():
        warnings.resetwarnings()  # the tests make all of them errors
        warnings.simplefilter("error", category)
        errors = parallel_map(tasks.warn_late, [1, 2], on_error="return", out="list")
    assert [type(error).__name__ for error in errors] == ["LaterWarning", "LaterWarning"]


def test_a_filter_of_a_warning_of_the_script_holds(script):
    """A class that workers cannot import is sent by value, and its filter by its name."""
    printed = script(
        "import nbshare, warnings\n"
        "class Own(UserWarning): pass\n"
        "warnings.resetwarnings()\n"
        "warnings.simplefilter('error', Own)\n"
        "def careful(x):\n"
        "    try: warnings.warn('careful', Own)\n"
        "    except Own: return 'error'\n"
        "print(nbshare.parallel_map(careful, [1, 2], out='list'))\n"
    )
    assert printed.strip() == "['error', 'error']"


def test_much_output_from_many_threads_does_not_block(script):
    """Workers print megabytes from several threads, and every line arrives."""
    printed = script(
        "import nbshare\nfrom tests.support import tasks\n"
        'nbshare.parallel_map(tasks.chatter, range(8), shared={"n_lines": 6_000}, max_workers=4)'
    )
    assert printed.count("x") == 8 * 2 * 6_000 * 99


def test_a_caller_without_standard_streams(tmp_path):
    """A process that has closed its input and outputs, as services do, can map."""
    code = (
        "import os, pathlib, sys\n"
        "for fd in (0, 1, 2): os.close(fd)\n"
        "sys.stdin = sys.stdout = sys.stderr = None\n"
        f"sys.path[:0] = {sys.path!r}\n"
        "import nbshare\nfrom tests.support import tasks\n"
        "result = nbshare.parallel_map(tasks.double, range(3))\n"
        "pathlib.Path('result').write_text(str(result.tolist()))\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, timeout=60)
    assert (tmp_path / "result").exists(), "the map has failed"
    assert (tmp_path / "result").read_text() == "[0, 2, 4]"


# ------------------------------------------------------------------------------ memory


@pytest.fixture
def little_memory(monkeypatch):
    """Let the machine have 64 MiB left, in its figures, not its memory."""
    monkeypatch.setattr("nbshare._core.system.processes.available_bytes", lambda: 64 << 20)


@pytest.mark.parametrize("place", ["shared", "items"])
def test_inputs_that_do_not_fit_are_refused_before_they_are_copied(place, little_memory, cold):
    """Too large an input is a MemoryError with both figures, before anything is allocated."""
    table = np.zeros((8, 10 << 20), np.uint8)  # not touched, so it takes no memory
    items, shared = ([0], {"table": table}) if place == "shared" else (table, {})
    function = tasks.shared_facts if place == "shared" else tasks.total
    before = memfd_bytes([os.getpid()])
    with pytest.raises(MemoryError, match=r"80 MiB.* 64 MiB") as caught:
        parallel_map(function, items, shared=shared)
    assert isinstance(caught.value, OutOfMemoryError)
    assert memfd_bytes([os.getpid()]) <= before
    nbshare.shutdown()
    assert set(psutil.Process().children()) <= cold


def test_workers_start_while_inputs_are_copied(cold, monkeypatch):
    """All of them, or the server that forks them, begin before the first byte is copied."""
    filled = pool.filled

    def have_begun():
        return len({*psutil.Process().children()} - cold) == (N_SERVERS or 2)

    def filled_later(*args, **options):
        wait_until(have_begun)
        return filled(*args, **options)

    monkeypatch.setattr(pool, "filled", filled_later)
    shared = {"table": np.ones((100, 1000))}
    result = parallel_map(lambda i, table: table[i].sum(), range(100), shared=shared, max_workers=2)
    assert result.tolist() == [1000] * 100
    assert N_SERVERS or have_begun()


def test_results_that_do_not_fit_are_refused(little_memory):
    """Too large an output is a MemoryError with both figures. The next run works."""
    items = [(1 << 20, i) for i in range(100)]
    with pytest.raises(MemoryError, match=r"100 MiB.* 64 MiB"):
        parallel_map(tasks.make_bytes, items)
    assert parallel_map(tasks.double, [1]).tolist() == [2]
