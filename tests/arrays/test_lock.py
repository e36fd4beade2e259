"""A lock that excludes threads, processes and its own copies, and that no dead process keeps."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import math
import multiprocessing
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import pytest

import nbshare
from nbshare import SharedLock, parallel_map
from nbshare._core.arrays import lock as lock_module
from nbshare.errors import WorkerDiedError
from tests.support import locking
from tests.support.faultlab import PYTHON_PATH, SOON_S, wait_until
from tests.support.interrupts import each_interrupt

STARTS = multiprocessing.get_all_start_methods()
N = 300  # increments by each of two
forks = pytest.mark.skipif("fork" not in STARTS, reason="processes do not fork on Windows")
FILES = {lock_module.__file__}  # in which interrupts come
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
    ),
    pytest.mark.usefixtures("no_helpers_left"),
]


@pytest.fixture
def lock():
    """Return a lock."""
    return SharedLock()


@pytest.fixture
def counter():
    """Return a number, and places where two say that they are there."""
    return nbshare.zeros(3, int)


@pytest.fixture
def other():
    """Return another thread, that does what it is given."""
    with ThreadPoolExecutor(1) as thread:
        yield lambda func, *args, **kwargs: thread.submit(func, *args, **kwargs).result(20)


def a_copy(lock):
    """Return what another process would get, in this one."""
    return pickle.loads(bytes(ForkingPickler.dumps(lock)))


def run_together(context, target, arguments):
    """Run one process for each tuple of arguments. All have to end well."""
    processes = [context.Process(target=target, args=args) for args in arguments]
    for process in processes:
        process.start()
    for process in processes:
        process.join(20)
    assert [process.exitcode for process in processes] == [0] * len(processes)


# ----------------------------------------------------------------------------- exclusion


def test_it_excludes_threads(lock, counter):
    """No increment by two threads is lost."""
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda me: locking.count(lock, counter, me, N), range(2)))
    assert counter[0] == 2 * N


@pytest.mark.parametrize("start", STARTS)
def test_it_excludes_workers_of_an_executor(lock, counter, start):
    """It travels to a ProcessPoolExecutor, where no increment is lost."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(start)) as pool:
        futures = [pool.submit(locking.count, lock, counter, me, N) for me in range(2)]
        for future in futures:
            future.result(20)
    assert counter[0] == 2 * N


@pytest.mark.parametrize("start", STARTS)
def test_it_excludes_processes_that_get_it_as_an_argument(lock, counter, start):
    """It travels as an argument of a Process, where no increment is lost."""
    arguments = [(lock, counter, me, N) for me in range(2)]
    run_together(multiprocessing.get_context(start), locking.count, arguments)
    assert counter[0] == 2 * N


@pytest.mark.parametrize("start", STARTS)
def test_it_excludes_processes_that_get_it_from_a_queue(lock, counter, start):
    """It travels through a Queue, and no increment is lost."""
    context = multiprocessing.get_context(start)
    queue = context.Queue()
    for me in range(2):
        queue.put((lock, counter, me, N))
    run_together(context, locking.count_from, [(queue,)] * 2)
    assert counter[0] == 2 * N


@forks
def test_it_excludes_a_process_and_its_parent(lock, counter):
    """Parent and child exclude each other."""
    process = multiprocessing.get_context("fork").Process(
        target=locking.count, args=(lock, counter, 0, N)
    )
    process.start()
    locking.count(lock, counter, 1, N)
    process.join(20)
    assert counter[0] == 2 * N


def test_it_travels_as_an_item(lock, counter):
    """Workers of a run that get it in their items exclude each other."""
    items = [(lock, counter, me, N) for me in range(2)]
    parallel_map(locking.count_item, items, max_workers=2, chunksize=1)
    assert counter[0] == 2 * N


def test_it_travels_in_a_partial(lock, counter):
    """Workers of a run that get it in a partial exclude each other."""
    func = functools.partial(locking.count, lock, counter)
    parallel_map(func, range(2), [N, N], max_workers=2, chunksize=1)
    assert counter[0] == 2 * N


def test_it_travels_in_shared(lock, counter):
    """Workers of a run can take it though they get it in ``shared=``."""
    func = functools.partial(locking.count_with, counter)
    parallel_map(func, range(2), [N, N], shared={"lock": lock}, max_workers=2, chunksize=1)
    assert counter[0] == 2 * N


def test_it_travels_in_a_buffer():
    """Workers of a run exclude each other by the lock of a buffer."""
    layout = {"counter": (3, int)}
    buffer = nbshare.SharedBuffer(24)
    items = [(buffer, layout, me, N) for me in range(2)]
    parallel_map(locking.count_under_buffer, items, max_workers=2, chunksize=1)
    assert buffer.layout(layout)["counter"][0] == 2 * N


def test_it_travels_through_joblib(script):
    """Workers of joblib's exclude each other."""
    pytest.importorskip("joblib")
    script(f"""
import joblib, nbshare
from tests.support import locking
lock, counter = nbshare.SharedLock(), nbshare.zeros(3, int)
with joblib.parallel_config("loky", n_jobs=2):
    joblib.Parallel()(joblib.delayed(locking.count)(lock, counter, me, {N}) for me in range(2))
assert counter[0] == {2 * N}, counter
""")


def test_two_copies_in_one_process_exclude_each_other(lock, other):
    """Two arrived copies and the original are one lock."""
    one, two = a_copy(lock), a_copy(lock)
    with one:
        assert [x.locked() for x in (lock, one, two)] == [True] * 3
        assert not two.acquire(blocking=False)
        assert not other(two.acquire, timeout=0.01)
        with pytest.raises(RuntimeError, match="already"):
            lock.acquire()
    assert two.acquire(blocking=False)
    lock.release()
    assert not one.locked()


def test_copies_keep_threads_apart(lock, counter):
    """No increment by two threads with a copy each is lost."""
    copies = [a_copy(lock), a_copy(lock)]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda me: locking.count(copies[me], counter, me, N), range(2)))
    assert counter[0] == 2 * N


def test_a_lock_under_way_outlives_its_sender_s_reference():
    """``queue.put(SharedLock())`` arrives, though the sender has kept nothing."""
    arrived = a_copy(SharedLock())
    gc.collect()
    with arrived:
        assert arrived.locked()
    assert not arrived.locked()


# -------------------------------------------------------------------------- dead holders


@pytest.mark.parametrize("start", STARTS)
def test_a_killed_process_releases_it(lock, start):
    """The one that waits gets it from a killed holder, and is told, once."""
    context = multiprocessing.get_context(start)
    held = context.Event()
    process = context.Process(target=locking.hold, args=(lock, held))
    process.start()
    assert held.wait(20)
    assert not lock.acquire(blocking=False)
    with ThreadPoolExecutor(1) as thread:

        def wait():
            with lock:
                return lock.was_abandoned

        waiting = thread.submit(wait)
        process.kill()
        assert waiting.result(20)
    process.join(20)
    for _ in range(2):
        with lock:
            assert not lock.was_abandoned
    assert not lock.locked()


@pytest.mark.parametrize("start", [start for start in STARTS if start != "forkserver"])
def test_a_process_that_ends_releases_it(lock, start):
    """The next holder after a process that has just ended with it is told, once."""
    run_together(multiprocessing.get_context(start), locking.end_holding, [(lock,)])
    assert not lock.locked()
    for expected in (True, False):
        with lock:
            assert lock.was_abandoned is expected


def test_a_thread_that_ends_releases_it(lock):
    """The next holder after a thread that has just ended with it is told, once."""
    thread = threading.Thread(target=lock.acquire)
    thread.start()
    thread.join()
    for expected in (True, False):
        assert lock.acquire(timeout=20)
        assert lock.was_abandoned is expected
        lock.release()


@forks
def test_another_copy_s_takeover_is_not_told_again(lock):
    """One holder is told of the dead one, whichever object it uses."""
    run_together(multiprocessing.get_context("fork"), locking.end_holding, [(lock,)])
    told = []
    for each in (a_copy(lock), lock, a_copy(lock)):
        with each:
            told.append(each.was_abandoned)
    assert told == [True, False, False]


def test_a_killed_worker_does_not_block_the_others(lock):
    """A worker of a run killed with the lock fails its item. Another takes the lock over."""
    results = parallel_map(
        functools.partial(locking.die_holding, nbshare.zeros(1, bool)),
        range(2),
        shared={"lock": lock},
        out="list",
        max_workers=2,
        chunksize=1,
        on_error="return",
    )
    assert isinstance(results[0], WorkerDiedError)
    assert results[1] == (1, True)
    assert not lock.locked()


def test_hundreds_of_dead_holders_do_no_harm(lock):
    """After each of many threads that end with it, the lock is taken over and told."""
    for _ in range(300):
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        with lock:
            assert lock.was_abandoned


# ------------------------------------------------------------------ as threading.Lock is

ARGUMENTS = [
    *[(), (True,), (False,), (1,), (0,), (None,), ([],)],
    *[(True, -1), (False, -1), (True, 0), (True, 0.0), (True, 0.01), (1, -1.0), (False, 0)],
    *[(False, 1), (False, 0.5), (True, -2), (True, -0.5), (True, 1e20), (True, math.inf)],
    *[(True, -math.inf), (True, math.nan), (True, None), (True, "1"), (True, 1j), ("no", 0.01)],
    (True, -1, 3),
]


def outcome(func, *args, **kwargs):
    """Return the outcome of a call, a value or an error's type."""
    try:
        return func(*args, **kwargs)
    except Exception as error:
        return type(error)


@pytest.mark.parametrize("args", ARGUMENTS, ids=repr)
def test_arguments_mean_what_they_mean_to_threading(lock, args):
    """A free lock is taken, or the arguments refused, as by threading.Lock."""
    theirs = threading.Lock()
    assert outcome(lock.acquire, *args) == outcome(theirs.acquire, *args)
    assert lock.locked() is theirs.locked()


@pytest.mark.parametrize(
    "args", [args for args in ARGUMENTS if args not in ((), (True,), (1,), (True, -1), (1, -1.0))]
)
def test_a_taken_lock_answers_as_threading_s(lock, other, args):
    """Another's lock is waited for, or not, and the arguments refused, as by threading.Lock."""
    theirs = threading.Lock()
    other(lock.acquire)
    theirs.acquire()
    assert outcome(lock.acquire, *args) == outcome(theirs.acquire, *args)
    other(lock.release)


@pytest.mark.parametrize("kwargs", [{"timeout": 0.05}, {"blocking": True, "timeout": 0.35}])
def test_a_wait_ends_with_its_time(lock, other, kwargs):
    """A wait lasts as long as was said, also where that is more than one look at the signals."""
    other(lock.acquire)
    started = time.monotonic()
    assert lock.acquire(**kwargs) is False
    assert kwargs["timeout"] <= time.monotonic() - started < kwargs["timeout"] + SOON_S
    other(lock.release)


def test_a_wait_ends_as_soon_as_the_lock_is_free(lock, other):
    """A wait without end gets the lock when its holder releases it."""
    other(lock.acquire)
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(lambda: (lock.acquire(), lock.release()))
        assert not waiting.done()
        other(lock.release)
        assert waiting.result(20) == (True, None)


def test_waiting_costs_no_cpu_time(lock, other):
    """A second of waiting takes less than a fifth of a second of CPU time."""
    other(lock.acquire)
    started = time.thread_time()
    assert not lock.acquire(timeout=1)
    assert time.thread_time() - started < 0.2
    other(lock.release)


def test_it_is_not_reentrant(lock):
    """Its holder would wait for itself for ever, so it gets an error, and still holds the lock."""
    with lock:
        started = time.monotonic()
        for kwargs in ({}, {"timeout": 60}):
            with pytest.raises(RuntimeError, match="not reentrant"):
                lock.acquire(**kwargs)
        with pytest.raises(RuntimeError, match="not reentrant"), lock:
            pass
        assert lock.acquire(blocking=False) is lock.acquire(timeout=0) is False
        assert time.monotonic() - started < 10
        assert lock.locked()
    assert not lock.locked()


def test_the_block_ends_the_hold_and_keeps_the_error(lock):
    """A with block that fails releases the lock, and the error comes out as it is."""
    with pytest.raises(KeyError, match="mine"), lock:
        raise KeyError("mine")
    assert not lock.locked()


def test_a_block_may_release_it_too_early(lock):
    """A with block that has released the lock itself is an error at its end."""
    with pytest.raises(RuntimeError, match="does not hold"), lock:
        lock.release()
    assert not lock.locked()


def test_an_exit_stack_may_hold_it(lock):
    """A contextlib.ExitStack takes the lock, and releases it when it is closed or fails."""
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(lock) is True
        assert lock.locked()
    assert not lock.locked()
    with contextlib.suppress(KeyError), contextlib.ExitStack() as stack:
        stack.enter_context(lock)
        raise KeyError
    assert not lock.locked()


# ----------------------------------------------------------------------- whose lock it is


def test_another_thread_cannot_release_it(lock, other):
    """A release by a thread that does not hold it is an error and releases nothing."""
    with lock:
        with pytest.raises(RuntimeError, match="does not hold"):
            other(lock.release)
        assert lock.locked()
        assert not other(lock.acquire, blocking=False)


def test_nobody_s_lock_cannot_be_released(lock):
    """A release of a free lock, or a second one, is an error, and it can be taken afterwards."""
    with pytest.raises(RuntimeError, match="does not hold"):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError, match="does not hold"):
        lock.release()
    assert lock.acquire(blocking=False)


@pytest.mark.parametrize("start", STARTS)
def test_another_process_sees_it_taken_and_cannot_release_it(lock, start):
    """Another process, a forked child of the holder too, sees that it is taken and leaves it so."""
    context = multiprocessing.get_context(start)
    results = context.SimpleQueue()
    with lock:
        run_together(context, locking.send_all, [(lock, results)])
        found = results.get()
        assert "does not hold" in found.pop("release")
        assert found == {"locked": True, "taken": False, "locked after": True}
        assert lock.locked()
    results.close()
    assert not lock.was_abandoned
    with lock:
        assert not lock.was_abandoned


@forks
def test_the_child_of_a_holder_waits_for_its_parent(lock):
    """A child forked while its parent holds the lock gets it once the parent has released it."""
    context = multiprocessing.get_context("fork")
    held = context.Event()
    with lock:
        process = context.Process(target=locking.hold, args=(lock, held))
        process.start()
        assert not held.wait(0.2)
    assert held.wait(20)
    assert not lock.acquire(blocking=False)
    process.kill()
    process.join(20)


def test_it_says_who_holds_it(lock, other):
    """Its repr tells whether it is free, this thread's or another's, as locked() does."""
    assert (repr(lock), lock.locked()) == ("<SharedLock unlocked>", False)
    with lock:
        assert (repr(lock), lock.locked()) == ("<SharedLock held by this thread>", True)
        number = threading.get_native_id()
        assert other(repr, lock) == f"<SharedLock held by thread {number}>"
        assert other(lock.locked) is True
    assert (repr(lock), lock.locked()) == ("<SharedLock unlocked>", False)


@pytest.mark.parametrize(
    "store", [pickle.dumps, copy.copy, copy.deepcopy], ids=lambda f: f.__name__
)
def test_it_cannot_be_stored(lock, store):
    """Plain pickle and copy refuse it and say how it travels."""
    with pytest.raises(TypeError, match="by reference"):
        store(lock)


# ---------------------------------------------------------------------------- interrupts


def test_ctrl_c_ends_a_wait(tmp_path):
    """Ctrl-C ends a wait within a second. Afterwards the lock can be taken."""
    path = tmp_path / "waits.py"
    path.write_text("""
import signal, threading, time
import nbshare
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
lock, held, leave = nbshare.SharedLock(), threading.Event(), threading.Event()
def hold():
    with lock:
        held.set()
        leave.wait()
thread = threading.Thread(target=hold)
thread.start()
held.wait()
try:
    print("waiting", flush=True)
    lock.acquire()
except KeyboardInterrupt:
    ended = time.monotonic()
leave.set()
print(lock.acquire(timeout=20), lock.was_abandoned)
print(ended)
""")
    environ = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    with subprocess.Popen(
        [sys.executable, str(path)], stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        wait_until(lambda: state(process.pid) == "S")
        sent = time.monotonic()
        process.send_signal(signal.SIGINT)
        taken, ended = process.stdout.read().splitlines()
    assert process.returncode == 0
    assert taken == "True False"
    assert float(ended) - sent < SOON_S


def state(pid):
    """Return the letter of the state of a process's first thread, S for sleeping."""
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("rival", [False, True], ids=["alone", "contended"])
def test_interrupts_at_any_moment_leave_it_free_or_with_this_thread(script, rival):
    """After each of hundreds of interrupts of a loop of with blocks, this thread can free it."""
    script(f"""
import random, signal, threading, time
import nbshare
lock, over = nbshare.SharedLock(), threading.Event()
def contend():
    while not over.is_set():
        with lock:
            time.sleep(0)
thread = threading.Thread(target=contend)
{"thread.start()" if rival else ""}
signal.signal(signal.SIGALRM, signal.default_int_handler)
interrupts = 0
for _ in range(500):
    try:
        # The next one, a second later, is for an interrupt that a finalizer has swallowed.
        signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-5, 1e-3), 1)
        while True:
            with lock:
                pass
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
        interrupts += 1
    try:
        assert lock.acquire(timeout=20)
    except RuntimeError as error:  # the interrupt came as the block ended
        assert "call release()" in str(error)
    assert not lock.was_abandoned
    lock.release()
assert interrupts == 500
over.set()
""")


def test_only_the_end_of_a_with_block_can_leave_it_held(lock, other):
    """Wherever else an interrupt comes while the lock is taken or released, it is free then."""
    held = []

    def block():
        with lock:
            pass

    def check():
        for _ in each_interrupt(block, FILES):
            held.append(lock.locked())
            if held[-1]:
                lock.release()
            assert lock.acquire(blocking=False)
            assert not lock.was_abandoned
            lock.release()
        assert sum(held) <= 2  # as __exit__ and release begin

    other(check)  # in a thread of its own, as the tracing is


def test_no_moment_of_a_takeover_makes_the_lock_useless(lock, other):
    """Wherever an interrupt comes while a dead holder's lock is taken, others can take it."""

    def block():
        thread = threading.Thread(target=lock.acquire)
        thread.start()
        thread.join()
        with lock:
            pass

    def check():
        for _ in each_interrupt(block, FILES):
            with contextlib.suppress(RuntimeError):
                lock.release()  # that of a block at whose end it came
            with lock:
                pass

    other(check)


def test_no_moment_of_a_wait_touches_the_holder_s_hold(lock, other):
    """Wherever an interrupt comes in a wait, the holder, and no other, has the lock."""

    def check():
        for _ in each_interrupt(lambda: lock.acquire(timeout=0.01), FILES):
            assert lock.locked()
            with pytest.raises(RuntimeError, match="does not hold"):
                lock.release()

    with lock:
        other(check)
        assert lock.locked()


# ----------------------------------------------------------------------------- lifetime


def test_a_lock_dropped_while_held_does_no_harm(script):
    """Locks that are thrown away held, by threads alive or ended, do not crash the process."""
    script("""
import gc, threading
import numpy as np
import nbshare
def drop(n):
    for _ in range(n):
        nbshare.SharedLock().acquire()
drop(50)
threads = [threading.Thread(target=drop, args=(50,)) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
gc.collect()
# Where unmapped memory would be mapped anew, and the library's list of held locks leads.
arrays = [nbshare.full(512, i) for i in range(200)]
lock = nbshare.SharedLock()
for _ in range(50):
    with lock:
        drop(1)
gc.collect()
assert all((array == i).all() for i, array in enumerate(arrays))
assert lock.acquire(blocking=False)
""")


def test_dropping_one_copy_leaves_the_others_held(lock, other):
    """The lock is held as long as its holder holds it, whatever becomes of the object it used."""
    one = a_copy(lock)
    one.acquire()
    del one
    gc.collect()
    assert lock.locked()
    assert not other(lock.acquire, blocking=False)
    lock.release()
    assert other(lock.acquire, blocking=False)


def test_exit_while_holding_is_quiet(script):
    """A script that ends with the lock held ends well."""
    script("import nbshare\nlock = nbshare.SharedLock()\nlock.acquire()\n")


def test_thousands_of_locks_leave_nothing():
    """Locks that are made, used and dropped leave no descriptor and no mapping."""

    def use():
        lock = SharedLock()
        with lock:
            pass

    def held():
        gc.collect()
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("nbshare-" in line for line in maps)

    use()
    before = held()
    for _ in range(3000):
        use()
    assert all(now <= then for now, then in zip(held(), before, strict=True))


def test_thousands_of_locks_at_once():
    """A thousand locks held at once by one thread are a thousand locks."""
    locks = [SharedLock() for _ in range(1000)]
    for lock in locks:
        assert lock.acquire(blocking=False)
    for lock in locks[::2]:
        lock.release()
    assert [lock.locked() for lock in locks] == [False, True] * 500
    for lock in locks[1::2]:
        lock.release()
