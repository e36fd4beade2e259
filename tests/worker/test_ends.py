"""Workers that end in peace write what is open and run exit handlers. Killed ones do nothing."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial

import numpy as np
import pytest

import nbshare
from nbshare import Executor, parallel_map
from nbshare._core.engine import process
from tests.support import leaving
from tests.support.faultlab import SOON_S, TESTS, wait_until
from tests.support.processes import kill_now, lives

# The functions leave things open on purpose, and workers warn as the caller does.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

N = 12  # items, which the workers note


def note(folder, **options):
    """Have two workers note items. Return the processes."""
    shared = {"folder": str(folder)}
    return {
        pid
        for pid, _ in parallel_map(
            leaving.note, range(N), shared=shared, max_workers=2, out="list", **options
        )
    }


def check(folder, pids):
    """Check that these processes have ended as any interpreter does, and have lost nothing."""
    found = leaving.left_in(folder)
    assert found.keys() == pids
    assert sorted(int(i) for files in found.values() for i in files["log"].split()) == [*range(N)]
    for files in found.values():
        assert {"ended", "thread"} <= files.keys()
    assert not [*folder.glob("temporary-*")]


def test_at_shutdown_they_write_what_is_open(tmp_path, cold):
    """Files, temporary folders, ``atexit`` handlers and threads are as at the end of a script."""
    pids = note(tmp_path)
    nbshare.shutdown()
    check(tmp_path, pids)


def test_renewed_ones_write_what_is_open(tmp_path, cold):
    """After so many items as they may run."""
    pids = note(tmp_path, max_tasks_per_child=4)
    assert len(pids) >= 3
    nbshare.shutdown()
    check(tmp_path, pids)


def test_outdated_ones_write_what_is_open(tmp_path, cold, monkeypatch):
    """Before the call that renews them returns, as they are replaced one by one."""
    pids = note(tmp_path)
    monkeypatch.setenv("CHANGED", "yes")
    parallel_map(abs, range(N), max_workers=2)
    wait_until(lambda: not any(map(lives, pids)), SOON_S)
    check(tmp_path, pids)


def test_idle_ones_write_what_is_open(tmp_path, cold, monkeypatch):
    """When nothing has needed them for long."""
    monkeypatch.setitem(process.LIMITS_S, "idle", 0.2)
    pids = note(tmp_path)
    wait_until(lambda: not any(map(lives, pids)), SOON_S)
    check(tmp_path, pids)


def test_those_that_wait_for_tasks_write_what_is_open(tmp_path, cold):
    """At the shutdown of nbshare, while an executor takes tasks."""
    executor = Executor(2)
    pids = {pid for pid, _ in executor.map(partial(leaving.note, folder=tmp_path), range(N))}
    nbshare.shutdown()
    check(tmp_path, pids)
    executor.shutdown()


PROGRAM = """
import sys
import nbshare
from functools import partial
from tests.support import leaving

def call():
    return nbshare.parallel_map(
        leaving.note, range({n}), shared={{"folder": {folder!r}}}, max_workers=2, progress=False
    )

def tasks(executor):
    return list(executor.map(partial(leaving.note, folder={folder!r}), range({n})))

def block():
    with nbshare.Executor(2) as executor:
        tasks(executor)

{end}
"""
OWNERS = {
    "ends": ("call()", 0),
    "exits": ("call(); sys.exit(3)", 3),
    "fails": ("call(); 1 / 0", 1),
    "ends a block": ("block()", 0),
    "keeps an executor": ("executor = nbshare.Executor(2); tasks(executor)", 0),
}


@pytest.mark.parametrize("owner", OWNERS)
def test_with_the_owner_they_write_what_is_open(tmp_path, owner):
    """However it ends, unless it is killed. Nothing is printed of it."""
    end, code = OWNERS[owner]
    program = PROGRAM.format(n=N, folder=str(tmp_path), end=end)
    command = [sys.executable, "-c", program]
    ended = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (code, "")
    assert ended.stderr == "" or code == 1
    check(tmp_path, leaving.left_in(tmp_path).keys())


@pytest.mark.parametrize(
    "hang", [leaving.hang_in_handler, leaving.hang_in_thread, leaving.hang_in_finalizer]
)
def test_one_that_hangs_delays_the_end_by_a_second(hang, cold):
    """And is killed then."""
    (pid,) = parallel_map(hang, [0])
    began = time.monotonic()
    nbshare.shutdown()
    assert time.monotonic() - began < 10  # not an hour
    assert not lives(pid)


def by_class(folder):
    """Return a function that keeps a file in a class."""

    class Log:
        file = None

    def note(i):
        Log.file = Log.file or leaving.new_log(folder)
        Log.file.write(f"{i}\n")

    return note


def by_itself(folder):
    """Return a function that keeps a file as its attribute."""

    def note(i):
        if not hasattr(note, "file"):
            note.file = leaving.new_log(folder)
        note.file.write(f"{i}\n")

    return note


def by_cache(folder):
    """Return a function that keeps a file in the cache of another one."""

    @cache
    def log():
        return log and leaving.new_log(folder)

    return lambda i: log().write(f"{i}\n")


def by_threads(folder):
    """Return a function that writes in a thread, later."""

    @cache
    def tools():
        return tools and (ThreadPoolExecutor(1), leaving.new_log(folder))

    def note(i):
        pool, file = tools()
        pool.submit(lambda: (time.sleep(0.02), file.write(f"{i}\n")))

    return note


@pytest.mark.parametrize("make", [by_class, by_itself, by_cache, by_threads])
@pytest.mark.parametrize("limit", [None, 4])
def test_a_function_that_is_sent_by_value_may_leave_files_open(tmp_path, cold, make, limit):
    """The file is written, although the call's end makes the function and the file garbage."""
    parallel_map(make(tmp_path), range(N), max_workers=2, max_tasks_per_child=limit)
    nbshare.shutdown()
    lines = [line for path in tmp_path.iterdir() for line in path.read_text().split()]
    assert sorted(map(int, lines)) == [*range(N)]


def test_prints_of_exit_handlers_appear(cold, capfd):
    parallel_map(leaving.print_at_end, [0], max_workers=1)
    nbshare.shutdown()
    assert capfd.readouterr().out == "worker 0 ends\n"


MANY = pytest.param(500, marks=[pytest.mark.soak, pytest.mark.timeout(1200)], id="many")


@pytest.mark.parametrize("n_rounds", [pytest.param(40, id="some"), MANY])
def test_only_killed_workers_lose_lines(tmp_path, cold, monkeypatch, n_rounds):
    """Random calls, deaths, renewals and shutdowns. All lines of other workers are in files."""
    dice = random.Random()
    done, killed = [], set()
    for k in range(n_rounds):
        fatal = {dice.randrange(N)} if dice.random() < 0.3 else set()
        results = parallel_map(
            leaving.note_or_die,
            range(N),
            shared={"folder": str(tmp_path), "fatal": fatal},
            max_workers=2,
            on_error="return",
            out="list",
            max_tasks_per_child=dice.choice([None, None, 5]),
        )
        done += [result for result in results if isinstance(result, tuple)]
        match dice.randrange(6):
            case 0:
                nbshare.shutdown()
            case 1:
                monkeypatch.setenv("CHANGED", str(k))  # renews them
            case 2:
                pid = done[-1][0]
                killed.add(pid)
                kill_now(pid)
    nbshare.shutdown()
    found = leaving.left_in(tmp_path)
    killed |= {pid for pid, files in found.items() if "killed" in files}
    lines, expected = {}, {}
    for pid, i in done:
        if pid not in killed:
            expected.setdefault(pid, []).append(i)
            lines[pid] = [*map(int, found[pid]["log"].split())]
    # Items of a dead worker run out of order.
    assert {pid: sorted(of) for pid, of in lines.items()} == {
        pid: sorted(of) for pid, of in expected.items()
    }


def test_one_that_cannot_load_a_call_is_replaced(cold):
    """As an item of an earlier call may have broken what every call needs."""
    parallel_map(leaving.break_numpy, range(4), max_workers=2)
    for _ in range(2):
        with suppress(TypeError):  # of the broken workers, once for each
            parallel_map(np.sum, np.ones((4, 1000)), max_workers=2)
    assert parallel_map(np.sum, np.ones((4, 1000)), max_workers=2).tolist() == [1000] * 4
