"""Executor when things go wrong.

Deadlines of single tasks and workers that start late are the engine's business, with its own tests,
because an executor has no time-out per task. A script that ends while tasks run waits for them, as
with the standard library's executors, unless it is killed.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from concurrent import futures

import pytest

import nbshare
from nbshare import Executor, errors
from nbshare._core import interrupts
from nbshare._core.engine import tasks as engine_tasks
from tests.support import pool_tasks as tasks
from tests.support.faultlab import N_SERVERS, NO_SERVER, SIGKILL, parent_of, wait_until
from tests.support.grids import combined
from tests.support.interrupts import each_interrupt
from tests.support.processes import kill_now

SHORT_S = 20  # of a wait for what comes at once
FILES = {
    module.__file__ for module in (engine_tasks, interrupts, threading)
}  # in which interrupts come


@pytest.fixture
def executor(monkeypatch):
    """Give an executor of two workers, which waits for less long at its end than others do."""
    monkeypatch.setattr(engine_tasks, "OPEN_S", 0.02)
    with Executor(2) as executor:
        yield executor


# ------------------------------------------------------------ where a task can go wrong

HOWS = {
    "raises": (ValueError, "sprung"),
    "exits": (errors.TaskError, "SystemExit"),
    "os._exit": (errors.WorkerDiedError, "status 3"),
    "SIGKILL": (errors.WorkerDiedError, "SIGKILL"),
    "SIGSEGV": (errors.WorkerDiedError, "SIGSEGV"),
    "SIGABRT": (errors.WorkerDiedError, "SIGABRT"),
}
if sys.platform == "win32":  # where a death has an exit code
    HOWS = {how: outcome for how, outcome in HOWS.items() if not how.startswith("SIG")}
PLACES = {
    "argument-loaded": lambda executor, how: executor.submit(id, tasks.TrapWhenLoaded(how)),
    "running": lambda executor, how: executor.submit(tasks.spring, how),
    "result-saved": lambda executor, how: executor.submit(tasks.TrapWhenSaved, how),
    "large-result-saved": lambda executor, how: executor.submit(tasks.large_trap, how),
}


@pytest.mark.parametrize(("place", "how"), combined(PLACES, HOWS))
def test_a_task_that_goes_wrong_fails_alone(executor, place, how):
    """Wherever it raises, exits or dies, its own future says so. Those next to it are right."""
    before = [executor.submit(abs, -i) for i in range(20)]
    bad = PLACES[place](executor, how)
    after = [executor.submit(abs, -i) for i in range(20)]
    kind, text = HOWS[how]
    error = bad.exception(SHORT_S)
    assert isinstance(error, kind)
    assert text in str(error)
    assert [f.result(SHORT_S) for f in before + after] == [*range(20)] * 2


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_result_that_cannot_be_loaded_fails_alone(executor, how):
    """Code that runs here, as a result is unpickled, ends nothing but its own future."""
    bad = executor.submit(tasks.TrapWhenLoaded, how)
    good = executor.submit(abs, -1)
    assert isinstance(bad.exception(SHORT_S), errors.TaskError)
    assert good.result(SHORT_S) == 1


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_an_argument_that_cannot_be_saved_fails_alone(executor, how):
    """Code that runs here, as an argument is pickled, ends nothing but its own future."""
    bad = executor.submit(id, tasks.TrapWhenSaved(how))
    good = executor.submit(abs, -1)
    assert isinstance(bad.exception(SHORT_S), errors.UnsendableError)
    assert good.result(SHORT_S) == 1


def test_an_exception_that_is_false_is_one(executor):
    """A future has it. Whether `result` raises it depends on the version of Python."""
    assert type(executor.submit(tasks.raise_false).exception(SHORT_S)) is tasks.FalseError


def test_all_workers_die_at_once(executor, tmp_path):
    """Each task under way fails with an error of its own. Queued ones run on new workers."""
    gate = tmp_path / "gate"
    begun = [tmp_path / str(i) for i in range(2)]
    running = [executor.submit(tasks.begin_and_wait_for, path, gate) for path in begun]
    queued = [executor.submit(abs, -i) for i in range(20)]
    for path in begun:
        wait_until(path.exists)
        kill_now(int(path.read_text()))
    for future in running:
        assert isinstance(future.exception(SHORT_S), errors.WorkerDiedError)
    assert [f.result(SHORT_S) for f in queued] == list(range(20))


@pytest.mark.parametrize(
    "who",
    [
        "worker",
        pytest.param("server", marks=pytest.mark.skipif(not N_SERVERS, reason=NO_SERVER)),
    ],
)
def test_nobody_notices_who_died_while_idle(executor, who):
    """After idle workers, or the server that forks them, were killed, tasks run as ever."""
    for _ in range(3):
        pids = set(executor.map(tasks.pid, range(50)))
        for pid in pids if who == "worker" else {*map(parent_of, pids)}:
            kill_now(pid)
        assert executor.submit(abs, -1).result(SHORT_S) == 1
        assert list(executor.map(abs, range(50))) == list(range(50))


def test_workers_that_die_between_tasks_fail_none(executor):
    """Those that wait for the next of the tasks that come one by one."""
    for i in range(12):
        kill_now(executor.submit(os.getpid).result())
        assert executor.submit(abs, -i).result(SHORT_S) == i


def test_workers_that_die_after_tasks_that_fail_fail_no_others(executor):
    """However often, because each has run something, and that says nothing of the tasks to come."""
    for i in range(12):
        with pytest.raises(tasks.PidError) as raised:
            executor.submit(tasks.raise_pid).result(SHORT_S)
        kill_now(raised.value.args[0])
        assert executor.submit(abs, -i).result(SHORT_S) == i


@pytest.fixture
def waiting(monkeypatch):
    """Give an executor, and the process of its worker that waits at an open call for tasks."""
    monkeypatch.setattr("nbshare._core.engine.tasks.OPEN_S", 3600.0)
    with Executor(2) as executor:
        for _ in range(3):
            pid = executor.submit(os.getpid).result()
        yield executor, pid


@pytest.mark.skipif(sys.platform == "win32", reason="no process gets interrupts there")
def test_an_interrupt_of_a_worker_that_waits_fails_no_task(waiting, tmp_path):
    """Somebody has sent it, by mistake say. The worker ends, the others go on."""
    executor, _ = waiting
    begun, gate = tmp_path / "begun", tmp_path / "gate"
    busy = executor.submit(tasks.begin_and_wait_for, begun, gate)
    wait_until(begun.exists)
    other = executor.submit(os.getpid).result(SHORT_S)
    os.kill(other, signal.SIGINT)
    assert executor.submit(os.getpid).result(SHORT_S) != other
    gate.touch()
    assert busy.result(SHORT_S) is None


def test_what_a_worker_imports_late_in_the_place_of_one_that_died_is_as_it_is_now(
    waiting, tmp_path, monkeypatch
):
    """Though it was to begin with the files as they were."""
    executor, _ = waiting
    monkeypatch.syspath_prepend(tmp_path)
    for i in range(8):
        helper = tmp_path / f"late_{i}.py"
        helper.write_text("version = 1\n")
        __import__(helper.stem)
        kill_now(executor.submit(os.getpid).result(SHORT_S))
        assert executor.submit(abs, -1).result(SHORT_S) == 1
        helper.write_text("version = 22\n")
        assert executor.submit(tasks.version_of, helper.stem).result(SHORT_S) == 22


def test_all_workers_are_ended_amid_tasks_that_come_one_by_one(executor):
    """A task gives its result, or says that its worker was ended."""
    ended, n_ended = 0, 8
    for k in range(n_ended):
        ender = threading.Timer(0.002 * k, nbshare.shutdown)
        ender.start()
        while ender.is_alive():
            try:
                assert executor.submit(abs, -k).result(SHORT_S) == k
            except errors.WorkerDiedError:
                ended += 1
        ender.join()
    assert ended <= n_ended


def test_a_shutdown_after_a_death_ends():
    """Workers that die while it waits do not keep a shutdown waiting."""
    executor = Executor(2)
    mixed = [executor.submit(tasks.spring, "os._exit") for _ in range(3)]
    mixed += [executor.submit(abs, -1), executor.submit(id, tasks.TrapWhenSaved("raises"))]
    executor.shutdown()
    assert all(f.done() for f in mixed)
    assert mixed[3].result() == 1


# -------------------------------------------------------------------- threads, interrupts


def test_it_outlives_the_thread_that_used_it_first(cold):
    """Workers belong to the process, not to the thread that had them started."""
    with Executor(1) as executor:
        first = set()
        thread = threading.Thread(target=lambda: first.update(executor.map(tasks.pid, range(50))))
        thread.start()
        thread.join()
        assert len(first) == 1
        assert set(executor.map(tasks.pid, range(50))) == first


@pytest.mark.skipif(sys.platform == "win32", reason="no process sends itself signals there")
def test_many_interrupts(cold):
    """Whenever Ctrl-C comes, the next executor works, and no thread or descriptor is left."""
    rng = random.Random(3)
    _use()
    nbshare.shutdown()
    n_open = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        with pytest.raises(KeyboardInterrupt):
            _be_interrupted(rng.uniform(0.0001, 0.03))
        _use()
        wait_until(lambda: _n_executor_threads() == 0)
    nbshare.shutdown()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= n_open)


def test_an_interrupt_at_any_moment_of_submit(executor):
    """The executor takes what comes next, as do all of the process."""
    executor.submit(abs, 0).result()
    for _ in each_interrupt(lambda: executor.submit(abs, -1), FILES):
        assert executor.submit(abs, -3).result(SHORT_S) == 3
    with Executor(1) as another:
        assert another.submit(abs, -3).result(SHORT_S) == 3


def test_an_interrupt_at_any_moment_of_a_threads_start():
    """No thread that does nothing is left, nor one that ends with an error."""
    fresh = [Executor(1)]
    for _ in each_interrupt(lambda: fresh[-1].submit(abs, -1), FILES):
        fresh.pop().shutdown()
        wait_until(lambda: _n_executor_threads() == 0)
        fresh.append(Executor(1))


def _be_interrupted(delay_s):
    threading.Timer(delay_s, os.kill, [os.getpid(), signal.SIGINT]).start()
    with Executor(2) as executor:
        queued = [executor.submit(time.sleep, 0.002) for _ in range(20)]
        for future in futures.as_completed(queued):
            future.result()
        time.sleep(SHORT_S)  # until it comes


def _use():
    with Executor(2) as executor:
        assert list(executor.map(abs, range(20))) == list(range(20))


def _n_executor_threads():
    return sum(t.name == "nbshare executor" for t in threading.enumerate())


def test_a_time_out_leaves_the_task_as_it_is(executor, tmp_path):
    """A `result` that is waited for no longer can be had later."""
    future = executor.submit(tasks.wait_for, tmp_path / "gate")
    with pytest.raises(TimeoutError):
        future.result(0.01)
    assert not future.done()
    (tmp_path / "gate").touch()
    assert isinstance(future.result(SHORT_S), int)


# --------------------------------------------------------------------- the owner's death


@pytest.mark.parametrize(
    ("how", "is_group"), combined(["sleep", "gil", "idle"], [False, True], soak=True)
)
def test_nobody_outlives_a_killed_owner(lab, how, is_group):
    """SIGKILL for the owner ends tasks and workers, busy in Python, in C, or idle."""
    subject = lab.start(f"""
executor = nbshare.Executor(2)
assert executor.submit(abs, -1).result() == 1
if {how!r} == "idle":
    assert sorted(executor.map(abs, range(50))) == list(range(50))
    raise_flag("busy-0")
else:
    for i in range(4, 12):
        executor.submit(tasks.hang, {how!r}, i)
time.sleep(100)
""")
    lab.await_flag("busy-*", 1 if how == "idle" else 2)
    subject.signal(SIGKILL, group=is_group)
    assert lab.nobody_left()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork on Windows")
def test_a_fork_amid_tasks_harms_nobody(script):
    """The child can wait for no future, and cancels none of the parent's."""
    code = """
import os, time
import nbshare
with nbshare.Executor(1) as executor:
    for future in [executor.submit(abs, 1) for _ in range(300)]:  # so that many are given at once
        future.result()
    queued = [executor.submit(time.sleep, 0.01) for _ in range(20)]
    while not (queued[0].running() or queued[0].done()):  # it may have been done between two looks
        pass
    if (pid := os.fork()) == 0:
        for future in queued:
            future.cancel()
        executor.shutdown(cancel_futures=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
print([f.exception() for f in queued].count(None))
"""
    assert script(code) == "20\n"
