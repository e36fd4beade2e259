"""Executor with failures, initializers, shared memory, its end, and other processes."""

from __future__ import annotations

import gc
import os
import pickle
import sys
import threading
import time
import traceback
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import nbshare
from nbshare import Executor, errors
from nbshare._core.system import processes
from tests.support import pool_tasks as tasks
from tests.support import streams
from tests.support.faultlab import LIMIT_S, SIGKILL, wait_until

KILLED = "exited with status" if sys.platform == "win32" else "SIGKILL"


# ------------------------------------------------------------------------------ failures


def test_an_exception_is_itself_with_the_workers_traceback(executor):
    """Class and arguments stay. The line that raised, in the worker, is shown."""
    with pytest.raises(RuntimeError) as found:
        executor.submit(tasks.raise_with_comment).result()
    assert found.value.args == (123,)
    text = "".join(traceback.format_exception(found.value))
    assert "raise RuntimeError(123)  # some comment" in text
    assert "nbshare/" not in "".join(found.value.__notes__)
    assert executor.submit(tasks.raise_with_comment).exception().args == (123,)


def test_an_exception_that_cannot_travel_is_told(executor):
    """It comes as a TaskError that names it."""
    with pytest.raises(errors.TaskError, match=r"OddError.*1 and 2"):
        executor.submit(tasks.raise_odd).result()
    with pytest.raises(errors.TaskError, match="SystemExit"):
        executor.submit(sys.exit, 3).result()


def test_what_cannot_be_sent_fails_its_own_future(executor):
    """Among good tasks, bad functions, arguments and results fail alone."""
    lock = threading.Lock()
    pairs = [
        (executor.submit(tasks.capture, lock), errors.UnsendableError),
        (executor.submit(lock.acquire), errors.UnsendableError),
        (executor.submit(tasks.capture, tasks.Unloadable()), ValueError),
        (executor.submit(tasks.a_lock), TypeError),
        (executor.submit(tasks.Unloadable), errors.TaskError),
        (executor.submit(3), TypeError),
        (executor.submit(tasks.capture, streams.Raises(SystemExit)), errors.UnsendableError),
        (executor.submit(tasks.capture, streams.Raises(KeyboardInterrupt)), errors.UnsendableError),
    ]
    good = [executor.submit(abs, i) for i in range(100)]
    for future, error in pairs:
        assert isinstance(future.exception(), error)
    assert [f.result() for f in good] == list(range(100))


def test_what_cannot_be_sent_is_named_as_it_was_called(executor):
    """Function and arguments are those of its `submit` or `map`. It is a PicklingError too."""
    lock = threading.Lock()
    mapped = executor.map(tasks.capture, [1, lock], chunksize=2)
    calls = {
        r"capture\('three', lock=<unlocked": executor.submit(tasks.capture, "three", lock=lock),
        r"acquire\(\) cannot be sent": executor.submit(lock.acquire),
        r"capture\(\(1,\), \(<unlocked": SimpleNamespace(result=lambda: next(mapped)),
    }
    for text, future in calls.items():
        with pytest.raises(pickle.PicklingError, match=f"^{text}.* cannot be pickled") as e:
            future.result()
        assert isinstance(e.value, TypeError)
        assert "item" not in str(e.value)


def test_a_dead_worker_fails_its_task_only(executor):
    """Its own future raises a BrokenProcessPool of its own. The executor goes on."""
    mixed = [executor.submit(*((tasks.die,) if i % 10 == 5 else (abs, i))) for i in range(40)]
    found = [f.exception() for f in mixed]
    dead = [i for i, error in enumerate(found) if error is not None]
    assert dead == [5, 15, 25, 35]
    for i in dead:
        assert isinstance(found[i], errors.WorkerDiedError)
        assert isinstance(found[i], BrokenProcessPool)
        assert "status 3" in str(found[i])
        assert "die" in str(found[i])
    assert len({id(found[i]) for i in dead}) == 4
    assert executor.submit(pow, 2, 8).result() == 256


def test_a_killed_worker_is_named(executor, tmp_path, gate):
    """A killed worker is its task's failure."""
    begun = tmp_path / "begun"
    future = executor.submit(tasks.begin_and_wait_for, begun, gate)
    wait_until(begun.exists)
    os.kill(int(begun.read_text()), SIGKILL)
    with pytest.raises(errors.WorkerDiedError, match=KILLED):
        future.result(LIMIT_S)


# --------------------------------------------------------------------------- initializer


def test_the_initializer_runs_in_each_worker():
    """Each worker has run it before its first task, also a new one."""
    with Executor(2, None, tasks.set_state, ("ready",)) as executor:
        assert set(executor.map(tasks.get_state, range(50))) == {"ready"}
        assert isinstance(executor.submit(tasks.die).exception(), errors.WorkerDiedError)
        assert set(executor.map(tasks.get_state, range(50))) == {"ready"}
    with Executor(2) as executor:
        assert executor.submit(abs, -1).result() == 1


def test_an_initializer_that_raises_fails_the_tasks():
    """Every task raises what it has raised, and nothing hangs."""
    with Executor(2, initializer=tasks.fail_to_start, initargs=("no model",)) as executor:
        for future in [executor.submit(abs, i) for i in range(5)]:
            with pytest.raises(RuntimeError, match="no model"):
                future.result(LIMIT_S)
    with Executor(2, initializer=tasks.die) as executor, pytest.raises(BrokenProcessPool):
        executor.submit(abs, 1).result(LIMIT_S)


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"max_workers": 0}, ValueError, "max_workers"),
        ({"max_workers": 1.5}, TypeError, "max_workers"),
        ({"initializer": 3}, TypeError, "initializer"),
        ({"initializer": threading.Lock().acquire}, errors.UnsendableError, "initializer"),
        ({"mp_context": "fork"}, ValueError, "mp_context.*Leave out mp_context="),
        ({"max_tasks_per_child": 0}, ValueError, "max_tasks_per_child"),
    ],
)
def test_wrong_use_is_refused_before_anything_starts(arguments, error, text):
    """An executor says what it cannot have when it is made."""
    with pytest.raises(error, match=text):
        Executor(**arguments)


# ------------------------------------------------------------------------- shared memory


def test_many_tasks_fill_one_shared_result(executor):
    """Tasks read one shared array and each write their place of another, as the loop would."""
    n = 300
    data = np.random.default_rng(0).normal(size=2 * n)
    expected = np.zeros(n, "f2")
    for i in range(n):
        tasks.fill(data, expected, i)
    shared, result = nbshare.share(data), nbshare.zeros(n, "f2")
    tasks_ = [executor.submit(tasks.fill, shared, result, i) for i in range(n)]
    for future in futures.as_completed(tasks_):
        future.result()
    np.testing.assert_array_equal(result, expected)


def test_arrays_travel_by_shared_memory(executor):
    """Plain ones arrive read-only, results are in shared memory and writable. Views go in place."""
    large = np.arange(1e6)
    for plain in (large, np.zeros(3)):
        with pytest.raises(ValueError, match="read-only"):
            executor.submit(tasks.add_in_place, plain).result()
    shared = nbshare.share(large)
    found = executor.submit(tasks.add_in_place, shared[10:20]).result()
    np.testing.assert_array_equal(shared[10:20], large[10:20] + 1)
    np.testing.assert_array_equal(found, shared[10:20])
    copy = executor.submit(np.copy, shared).result()
    copy[0] = -1
    assert shared[0] == 0


def test_tasks_with_much_data_go_in_small_windows(executor):
    """Tasks with large arrays of their own all come back, each with its own."""
    arrays = (np.full(500_000, i, "f8") for i in range(30))
    means = executor.map(np.mean, arrays, buffersize=4)
    assert list(means) == list(range(30))


def test_functions_without_a_module(executor):
    """Closures and partials with arrays go by value, arrays in them by reference."""
    shared = nbshare.zeros(10)
    data = np.arange(1000.0)

    def closure(i):
        shared[i] = data.sum()
        return i

    assert list(executor.map(closure, range(10))) == list(range(10))
    by_partial = executor.submit(partial(tasks.add_in_place, shared))
    by_partial.result()
    assert shared.tolist() == [499_501.0] * 10


# ------------------------------------------------------------------------------ its end


def test_nothing_is_taken_after_shutdown():
    """A submit or a run after shutdown is a RuntimeError. Another shutdown is none."""
    executor = Executor(1)
    future = executor.submit(abs, -1)
    executor.shutdown()
    assert future.done()
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.submit(abs, 1)
    with pytest.raises(RuntimeError, match="after shutdown"):
        executor.map(abs, [1])
    executor.shutdown()
    Executor(1).shutdown()


def test_shutdown_waits_for_what_is_queued():
    """All tasks are done when it returns, or soon after if it does not wait."""
    with Executor(2) as executor:
        queued = [executor.submit(time.sleep, 0.002) for _ in range(50)]
    assert all(f.done() and f.exception() is None for f in queued)
    executor = Executor(2)
    results = executor.map(abs, range(-5, 5))
    executor.shutdown(wait=False)
    del executor
    gc.collect()
    assert list(results) == [abs(i) for i in range(-5, 5)]


@pytest.mark.parametrize("wait", [True, False])
def test_shutdown_can_cancel_what_is_queued(gate, wait):
    """Tasks that have not begun are cancelled. The others end well."""
    executor = Executor(2)
    for future in [executor.submit(abs, 1) for _ in range(300)]:  # so that windows are large
        future.result()
    queued = [executor.submit(tasks.wait_for, gate) for _ in range(50)]
    wait_until(lambda: queued[0].running() and queued[1].running())
    threading.Timer(0.1, gate.touch).start()
    executor.shutdown(wait=wait, cancel_futures=True)
    futures.wait(queued, LIMIT_S)
    assert [f.cancelled() for f in queued] == [False] * 2 + [True] * 48
    assert all(f.exception() is None for f in queued[:2])


def test_a_cancelled_last_task_does_not_hold_up_shutdown():
    """A task that is cancelled right before shutdown is none to wait for."""
    executor = Executor(1)
    executor.submit(int).result()
    executor.submit(int).cancel()
    executor.shutdown()


@pytest.mark.parametrize("name", ["terminate_workers", "kill_workers"])
def test_workers_can_be_ended(tmp_path, gate, name):
    """Tasks under way fail at once, each with an error of its own. Queued ones are cancelled."""
    executor = Executor(2)
    begun = [tmp_path / str(i) for i in range(2)]
    running = [executor.submit(tasks.begin_and_wait_for, path, gate) for path in begun]
    queued = [executor.submit(tasks.wait_for, gate) for _ in range(10)]
    for path in begun:
        wait_until(path.exists)
    getattr(executor, name)()
    for future in running:
        assert isinstance(future.exception(LIMIT_S), BrokenProcessPool)
    assert len({id(f.exception()) for f in running}) == 2
    futures.wait(queued, LIMIT_S)
    assert sum(f.cancelled() for f in queued) >= 8
    with pytest.raises(RuntimeError):
        executor.submit(abs, 1)


def test_an_interrupt_ends_the_block(tmp_path, gate):
    """Ctrl-C while the block waits, or at its end, ends the tasks. The next executor works."""
    begun = tmp_path / "begun"

    def interrupt():
        wait_until(begun.exists)
        processes.interrupt()

    for waits in (True, False):
        begun.unlink(missing_ok=True)
        threading.Thread(target=interrupt).start()
        start_s = time.monotonic()
        with pytest.raises(KeyboardInterrupt), Executor(1) as executor:  # noqa: PT012
            future = executor.submit(tasks.begin_and_wait_for, begun, gate)
            if waits:
                future.result()
        assert isinstance(future.exception(LIMIT_S), errors.WorkerDiedError)
        assert time.monotonic() - start_s < LIMIT_S
    with Executor(1) as executor:
        assert executor.submit(abs, -1).result() == 1


def test_ending_all_workers_fails_what_runs_and_no_more(gate, tmp_path):
    """After `nbshare.shutdown` in the middle, what is queued runs on new workers."""
    begun = tmp_path / "begun"
    with Executor(1) as executor:
        running = executor.submit(tasks.begin_and_wait_for, begun, gate)
        wait_until(begun.exists)
        queued = [executor.submit(abs, -i) for i in range(5)]
        nbshare.shutdown()
        assert isinstance(running.exception(LIMIT_S), errors.WorkerDiedError)
        assert [f.result(LIMIT_S) for f in queued] == [0, 1, 2, 3, 4]


def test_tasks_that_print_outlive_the_end_of_all_workers(capfd):
    """Each gives its result, or says that its worker was ended."""
    for n_done in (0, 10, 30, 70):
        with Executor(2) as executor:
            queued = [executor.submit(print, i) for i in range(100)]
            queued[n_done].result()
            nbshare.shutdown()
            failed = [f.exception(LIMIT_S) for f in queued if f.exception(LIMIT_S)]
        assert all(isinstance(error, errors.WorkerDiedError) for error in failed)
    assert "Traceback" not in capfd.readouterr().err


starts_threads_at_the_end = pytest.mark.skipif(
    (3, 12) <= sys.version_info[:3] < (3, 12, 2),
    reason="Python 3.12.0 and 3.12.1 start no thread after the main one's end",
)


@starts_threads_at_the_end
@pytest.mark.parametrize(
    "last",
    [
        "",
        "executor.shutdown(wait=False)",
        "del executor",
        "executor.submit(abs, (x for x in ()))",
        "executor.submit(tasks.die); executor.shutdown(wait=False)",
    ],
    ids=["kept", "shut", "dropped", "unsendable", "dead"],
)
def test_the_interpreter_waits_for_what_is_queued(script, last):
    """At the end of a script queued tasks are done, without a word of complaint."""
    code = f"""
import nbshare
from tests.support import pool_tasks as tasks
executor = nbshare.Executor(1)
executor.submit(tasks.sleep_and_print, 0.1, "apple")
executor.submit(tasks.sleep_and_print, 0.1, "pear")
{last}
"""
    assert script(code, as_command=True) == "apple\npear\n"


@starts_threads_at_the_end
def test_a_death_while_the_interpreter_ends_is_told_as_ever(script):
    """Though what a WorkerDiedError is based on cannot be imported any more."""
    code = """
import nbshare
from tests.support import pool_tasks as tasks
executor = nbshare.Executor(1)
executor.submit(tasks.sleep_and_print, 0.1, "apple")
future = executor.submit(tasks.die)
future.add_done_callback(lambda future: print(future.exception()))
"""
    apple, death = script(code).splitlines()
    assert apple == "apple"
    assert "exited with status 3 while it worked on item" in death


def test_nothing_is_taken_when_the_interpreter_ends(script):
    """A submit in an atexit handler is a RuntimeError, not a hang."""
    code = """
import atexit
import nbshare
executor = nbshare.Executor(1)
executor.submit(abs, 1).result()
@atexit.register
def late():
    try:
        executor.submit(abs, 1)
    except RuntimeError as error:
        print(error)
"""
    assert script(code) == "cannot schedule new futures after interpreter shutdown\n"


def test_it_needs_nothing_before_it_is_used(script):
    """``import nbshare`` does not load concurrent.futures. An unused executor has no thread."""
    code = """
import sys, threading
import nbshare
print("concurrent.futures" in sys.modules, "logging" in sys.modules)
executor = nbshare.Executor()
print(threading.active_count())
"""
    assert script(code) == "False False\n1\n"


# ------------------------------------------------------------------- in other processes


def test_within_a_worker_it_runs_inline(executor):
    """A task's own executor starts no process."""
    found, is_inline = executor.submit(tasks.nested, 3).result()
    assert (found, is_inline) == ([0, 2, 4], True)


def test_within_a_worker_no_task_runs_uninitialized(executor):
    """A task's own executor whose initializer fails has every task fail, not the first alone."""
    assert executor.submit(tasks.nested_failures, 3).result() == ["ValueError"] * 3


def test_a_forked_process_makes_its_own(script):
    """The parent's executor says so in the child, and does not hang. A new one works there."""
    code = """
import os
import nbshare
with nbshare.Executor(1) as executor:
    executor.submit(abs, 1).result()
    if (pid := os.fork()) == 0:
        try:
            executor.submit(abs, 1)
        except RuntimeError as error:
            assert "was forked" in str(error)
        executor.shutdown()
        with nbshare.Executor(1) as other:
            os._exit(other.submit(abs, -7).result())
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), executor.submit(abs, -2).result())
"""
    assert script(code) == "7 2\n"
