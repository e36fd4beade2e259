"""A queue of array slots, in order, in place, and no process waits for a dead one."""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import multiprocessing
import os
import pickle
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import nbshare
from nbshare import RingBuffer, SharedArray, parallel_map
from nbshare._core.memory import segment_of
from nbshare._core.system import SYSTEM, waiting
from nbshare.errors import NotBuiltYetError, RingAbortedError, RingClosedError, RingTimeoutError
from tests.support import rings
from tests.support.faultlab import PYTHON_PATH, SOON_S, TESTS, wait_until
from tests.support.ring_states import (
    QUICK,
    SPAWN,
    STARTS,
    WAITED,
    figures,
    fill,
    held_by_other,
    running,
)

pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
    ),
    pytest.mark.usefixtures("no_helpers_left"),
]


# ------------------------------------------------------------------------- in one process


def test_slots_come_in_the_order_in_which_they_were_put(numbers):
    """The slot whose block ended first comes first, wherever it is in the ring."""
    with numbers.put() as one:
        one[...] = 2
        with numbers.put() as two:
            two[...] = 1
    rings.put_numbers(numbers, 3, 1)
    numbers.close()
    assert [slot.tolist() for slot in numbers] == [[1] * 4, [2] * 4, [3] * 4]


def test_slots_come_in_the_order_of_their_numbers():
    """A number waits for those before it. If they never come, until the ring is closed."""
    ring = RingBuffer(3, 1, int, in_order=True)
    for number in (1, 0, 3):
        with (lease := ring.put()) as slot:
            lease.number = slot[0] = number
    seen = []
    for _ in range(2):
        with (lease := ring.get()) as slot:
            seen.append((lease.number, int(slot[0])))
    assert seen == [(0, 0), (1, 1)]
    with pytest.raises(RingTimeoutError), ring.get(timeout=0):
        pass
    ring.close()
    assert [int(slot[0]) for slot in ring] == [3]


def test_nothing_is_copied(numbers):
    """Producers and consumers have the same memory. Few slots are used if few take part."""
    addresses = set()
    for _ in range(20):
        with numbers.put() as slot:
            slot[...] = 7
            address = slot.ctypes.data
        with numbers.get() as slot:
            assert slot.ctypes.data == address
        addresses.add(address)
    assert len(addresses) == 1


@pytest.mark.parametrize("shape", [(), (0,), 3, (2, 3), (0, 2)], ids=repr)
@pytest.mark.parametrize(
    "dtype", ["?", "f2", ">f8", "M8[s]", "S3", "S0", "U2", [("a", "u1"), ("b", "f8", 2)], "V0"]
)
def test_slots_are_as_numpys_arrays(shape, dtype):
    """A slot of any shape and dtype is a SharedArray like NumPy's, aligned and apart."""
    ring, expected = RingBuffer(2, shape, dtype), np.zeros(shape, dtype)
    with ring.put() as one, ring.put() as two:
        for slot in (one, two):
            assert type(slot) is SharedArray
            assert segment_of(slot) is not None
            assert (slot.shape, slot.dtype) == (expected.shape, expected.dtype)
            assert slot.flags.c_contiguous
            assert slot.flags.writeable
        assert not np.shares_memory(one, two)
        if one.size and one.itemsize:
            assert one.ctypes.data % 64 == two.ctypes.data % 64 == 0
        one[...] = expected
    with ring.get() as slot:
        assert slot.shape == expected.shape
        assert slot.tobytes() == expected.tobytes()


def test_a_slot_may_be_full_in_part(numbers):
    """A consumer gets as many rows as `trim` said last. None at all are not queued."""
    for rows in (2, 0, 4, 1):
        with numbers.put() as slot:
            slot[...] = range(4)
            numbers.trim(slot, 3)
            numbers.trim(slot, rows)
    assert figures(numbers) == (3, 0, 0, 0)
    numbers.close()
    assert [slot.tolist() for slot in numbers] == [[0, 1], [0, 1, 2, 3], [0]]


def test_only_a_slot_in_hand_can_be_trimmed(numbers):
    """Errors: another array, a part of a slot, one that is over or being read, or too many rows."""
    with numbers.put() as slot:
        for array in (slot[1:], np.zeros(4), nbshare.zeros(4, int)):
            with pytest.raises(ValueError, match="not a slot"):
                numbers.trim(array, 1)
        for rows in (5, -1):
            with pytest.raises(ValueError, match=rf"rows={rows} is not allowed: .* shape \(4,\)"):
                numbers.trim(slot, rows)
    with pytest.raises(ValueError, match="not a slot"):
        numbers.trim(slot, 1)
    with numbers.get() as slot, pytest.raises(ValueError, match="not a slot"):
        numbers.trim(slot, 1)
    scalars = RingBuffer(1, ())
    with scalars.put() as slot, pytest.raises(ValueError, match=r"shape \(\)"):
        scalars.trim(slot, 0)


def test_a_failed_put_queues_nothing(numbers):
    """An exception in the block comes out as it is, and the slot is free again."""
    for _ in range(10):
        with pytest.raises(KeyError, match="mine"), numbers.put():
            raise KeyError("mine")
    assert figures(numbers) == (0, 0, 0, 3)


def test_a_failed_get_has_read_its_slot(numbers):
    """After an exception in a block or a loop, and after a break, the next slot comes."""
    rings.put_numbers(numbers, 0, 3)
    with pytest.raises(ZeroDivisionError), numbers.get():
        raise ZeroDivisionError
    with pytest.raises(TypeError):
        _ = [abs(str(slot)) for slot in numbers]
    for slot in numbers:
        assert slot[0] == 2
        break
    assert figures(numbers) == (0, 0, 0, 3)


def test_an_exit_stack_may_hold_slots(numbers):
    """Slots may be held by a contextlib.ExitStack, until it is closed or fails."""
    with contextlib.ExitStack() as stack:
        for i in range(3):
            stack.enter_context(numbers.put())[...] = i
    assert figures(numbers) == (3, 0, 0, 0)
    with pytest.raises(RingTimeoutError), contextlib.ExitStack() as stack:
        _ = [stack.enter_context(numbers.get(timeout=0)) for _ in range(4)]
    assert figures(numbers) == (0, 0, 0, 3)


def test_a_lease_is_taken_once_at_a_time(numbers):
    """The return value of put() cannot be entered while it has a slot, but again later."""
    lease = numbers.put()
    for _ in range(2):
        with lease, pytest.raises(RuntimeError, match="already holds a slot"), lease:
            pass
    assert figures(numbers) == (2, 0, 0, 1)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ((0, 1), ValueError, "slots=0"),
        ((1.5, 1), TypeError, "slots=1.5"),
        ((1, -1), ValueError, "negative"),
        ((1, 1, object), TypeError, "objects"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, says):
    """Arguments that make no ring are refused in clear words."""
    with pytest.raises(error, match=says):
        RingBuffer(*arguments)
    with pytest.raises(ValueError, match="on_death='ignore'"):
        RingBuffer(1, 1, on_death="ignore")


@pytest.mark.skipif(SYSTEM != "linux", reason="the number of a call, futex, is Linux's")
def test_it_says_where_it_is_not_built_yet(monkeypatch):
    """On a system that it does not know a ring is refused at once, not in the middle of a put."""
    waiting.futex.cache_clear()
    monkeypatch.setattr(waiting, "SYS_FUTEX", {"z80": 1})
    with pytest.raises(NotBuiltYetError, match="z80"):
        RingBuffer(1, 1)


@pytest.mark.parametrize("timeout", [-1, -0.1, float("nan")])
def test_bad_time_outs_are_refused(numbers, timeout):
    """A time-out is 0 or more."""
    for way in (numbers.put, numbers.get):
        with pytest.raises(ValueError, match="timeout"):
            way(timeout)


@pytest.mark.parametrize("timeout", [0, 0.05, 0.3])
def test_a_wait_ends_with_its_time(numbers, timeout):
    """A full ring takes nothing and an empty one gives nothing. Both say so after the time."""
    for way, word in ((numbers.get, "filled"), (numbers.put, "free")):
        started = time.monotonic()
        with pytest.raises(RingTimeoutError, match=f"{word} within {timeout}"), way(timeout):
            raise AssertionError
        assert timeout <= time.monotonic() - started < timeout + SOON_S
        fill(numbers)
    with pytest.raises(TimeoutError), numbers.put(timeout=0):
        pass


def test_figures_show_who_waits(numbers):
    """Slots are counted in each state, and the side that had to wait has its seconds."""
    with numbers.put(), numbers.put() as slot:
        assert figures(numbers) == (0, 0, 2, 1)
        numbers.trim(slot, 0)
    with numbers.get():
        assert figures(numbers) == (0, 1, 0, 2)
    for way in (numbers.get, numbers.put):
        with contextlib.suppress(RingTimeoutError), way(timeout=0.2):
            pass
        fill(numbers)
    now = numbers.stats
    assert (now.n_put, now.n_got, now.n_reclaimed) == (4, 1, 0)
    assert 0.2 <= now.consumers_waited_s < SOON_S
    assert 0.2 <= now.producers_waited_s < SOON_S
    assert repr(numbers) == "<RingBuffer of 3 slots of (4,) int64, 3 queued>"


# ------------------------------------------------------------------------------- its ends


def test_consumers_finish_what_is_queued(numbers):
    """After close() a put is an error, what was put is read, then a loop ends and a get fails."""
    with numbers.put() as slot:  # begun before
        rings.put_numbers(numbers, 0, 2)
        numbers.close()
        numbers.close()
        with pytest.raises(RingClosedError, match="after close"), numbers.put():
            pass
        slot[...] = 2
    assert [slot[0] for slot in numbers] == [0, 1, 2]
    assert list(numbers) == []
    with pytest.raises(EOFError, match="closed and empty"), numbers.get():
        pass


def test_a_closed_ring_waits_for_what_is_being_filled(numbers):
    """A loop does not end before a put that has begun. One that fails is the end."""
    with ThreadPoolExecutor(1) as thread:
        for fails in (False, True):
            ring = RingBuffer(2, 1)
            with contextlib.suppress(KeyError), ring.put():
                ring.close()
                read = thread.submit(lambda ring: len(list(ring)), ring)
                wait_until(lambda ring=ring: ring.stats.consumers_waited_s)
                if fails:
                    raise KeyError
            assert read.result(20) == (not fails)


def test_abort_stops_everybody(numbers):
    """After abort() put, get and the end of a put fail and give the first reason, for good."""
    rings.put_numbers(numbers, 0, 1)
    lease = numbers.put()
    lease.__enter__()
    numbers.abort("the disk is full")
    numbers.abort("another")
    numbers.close()
    with pytest.raises(RingAbortedError, match="aborted: the disk is full") as caught:
        lease.__exit__(None, None, None)
    assert caught.value.reason == "the disk is full"
    assert pickle.loads(pickle.dumps(caught.value)).reason == "the disk is full"
    for use in (numbers.put, numbers.get):
        with pytest.raises(RuntimeError, match="the disk is full"), use():
            pass
    with pytest.raises(RingAbortedError):
        list(numbers)


@pytest.mark.parametrize(
    "reason", ["", "ä" * 9999, "\0", "\ud800"], ids=["empty", "long", "zero", "half"]
)
def test_any_reason_will_do(reason):
    """A reason may be empty, long or odd."""
    ring = RingBuffer(1, 1)
    ring.abort(reason)
    with pytest.raises(RingAbortedError, match="aborted"), ring.get():
        pass


@pytest.mark.parametrize("way", ["put", "get"])
@pytest.mark.parametrize("end", ["close", "abort"])
def test_those_who_wait_are_told(numbers, way, end):
    """Processes and threads blocked in put or get stop when the ring is closed or aborted."""
    if way == "put":
        fill(numbers)
    errors, waits = SPAWN.SimpleQueue(), SPAWN.Event()
    arguments = (numbers, way, waits, errors)
    with running(SPAWN, rings.tell_error, *arguments), ThreadPoolExecutor(1) as thread:
        threads = thread.submit(rings.tell_error, *arguments)
        wait_until(lambda: getattr(numbers.stats, WAITED[way]) > 0.2)
        getattr(numbers, end)(*(["enough"] if end == "abort" else []))
        threads.result(20)
        told = [errors.get() for _ in range(2)]
    assert {name for name, _ in told} == {
        "RingAbortedError" if end == "abort" else "RingClosedError"
    }
    assert all("enough" in text for _, text in told) == (end == "abort")
    errors.close()


# ------------------------------------------------------------------- loaders and processors


@pytest.fixture
def lines(tmp_path):
    """Return a file of 1003 integers, one a line."""
    path = tmp_path / "numbers"
    path.write_text("".join(f"{i}\n" for i in range(1003)))
    return path


@pytest.mark.parametrize("slots", [1, 2, 5])
def test_data_end_in_the_middle_of_a_slot(lines, slots):
    """A processor gets all lines that a loader reads, in order, the last slot in part."""
    ring, result = RingBuffer(slots, 10, int), nbshare.zeros((), int)
    with running(QUICK, rings.load_lines_and_close, ring, lines) as loader:
        rings.check_sequence(ring, result)
    assert loader.exitcode == 0
    assert result == 1003
    assert ring.stats.n_got == 101


@pytest.mark.parametrize("start", STARTS)
def test_both_may_be_other_processes(lines, start):
    """Loader and processor may be processes started in any way."""
    context = multiprocessing.get_context(start)
    ring, result = RingBuffer(3, 10, int), nbshare.zeros((), int)
    with (
        running(context, rings.load_lines_and_close, ring, lines) as loader,
        running(context, rings.check_sequence, ring, result) as processor,
    ):
        pass
    assert (loader.exitcode, processor.exitcode) == (0, 0)
    assert result == 1003


def test_a_processor_that_fails_stops_the_loader(lines):
    """A processor that aborts in its trouble ends a loader blocked in put, with the reason."""
    ring, result = RingBuffer(2, 10, int), nbshare.zeros((), int)
    with (
        running(SPAWN, rings.check_or_abort, ring, result, 55),
        pytest.raises(RingAbortedError, match="cannot process 55"),
    ):
        rings.load_lines(ring, lines)
    assert result == 0


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_any_number_of_loaders_and_processors(kind):
    """Three loaders and three processors lose no slot and read none twice."""
    n, ring, seen = 150, RingBuffer(4, (2, 3), int), nbshare.zeros(450, int)
    loaders = [(rings.put_numbers, ring, n * k, n) for k in range(3)]
    processors = [(rings.count, ring, seen)] * 3
    with contextlib.ExitStack() as stack:
        if kind == "threads":
            pool = stack.enter_context(ThreadPoolExecutor(6))
            stack.callback(ring.close)
            futures = [pool.submit(*job) for job in processors + loaders]
            for future in futures[3:]:
                future.result(60)
        else:
            for job in processors:
                stack.enter_context(running(QUICK, *job))
            stack.callback(ring.close)
            for job in loaders:
                stack.enter_context(running(QUICK, *job))
    assert seen.tolist() == [1] * 3 * n
    assert figures(ring) == (0, 0, 0, 4)


# ------------------------------------------------------------------------------- travel


def test_it_travels_through_a_map():
    """Workers of a run put into a ring from their items, a partial or ``shared=``."""
    ring = RingBuffer(40, 2, int)
    parallel_map(rings.add_item, [(ring, i) for i in range(10)], max_workers=2)
    func = functools.partial(rings.add, ring=ring)
    parallel_map(func, range(10, 20), max_workers=2)
    parallel_map(rings.add, range(20, 30), shared={"ring": ring}, max_workers=2)
    ring.close()
    assert sorted(int(slot[0]) for slot in ring) == list(range(30))


@pytest.mark.parametrize("start", STARTS)
def test_it_travels_through_pools_and_queues(start):
    """Workers of a ProcessPoolExecutor and readers of a Queue put into the same ring."""
    context = multiprocessing.get_context(start)
    ring, queue = RingBuffer(4, 2, int), context.Queue()
    queue.put((ring, 0))
    with running(context, rings.add_from, queue):
        pass
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        list(pool.map(rings.add_item, [(ring, 1), (ring, 2)]))
    ring.close()
    assert [int(slot[0]) for slot in ring] == [0, 1, 2]


def test_it_travels_through_joblib(script):
    """Workers of joblib's put into a ring."""
    pytest.importorskip("joblib")
    script("""
import joblib, nbshare
from tests.support import rings
ring = nbshare.RingBuffer(9, 2, int)
with joblib.parallel_config("loky", n_jobs=2):
    joblib.Parallel()(joblib.delayed(rings.add_item)((ring, i)) for i in range(9))
ring.close()
assert sorted(int(slot[0]) for slot in ring) == list(range(9))
""")


def test_a_ring_under_way_outlives_its_sender_s_reference():
    """It arrives, with its contents and settings, though the sender has kept nothing."""
    ring = RingBuffer(2, (3, 2), "f4", on_death="leave")
    with ring.put() as slot:
        slot[...] = 7
        ring.trim(slot, 2)
    arrived = pickle.loads(bytes(ForkingPickler.dumps(ring)))
    del ring, slot
    gc.collect()
    assert (arrived.slots, arrived.shape, arrived.dtype) == (2, (3, 2), np.dtype("f4"))
    with arrived.get() as slot:
        assert slot.tolist() == [[7, 7], [7, 7]]
    with held_by_other(arrived, "put") as process:
        process.kill()
        process.join(20)
        assert figures(arrived) == (0, 0, 1, 1)


@pytest.mark.parametrize("store", [pickle.dumps, copy.copy, copy.deepcopy])
def test_it_cannot_be_stored(numbers, store):
    """Plain pickle and copy refuse it and say how it travels."""
    with pytest.raises(TypeError, match="by reference"):
        store(numbers)


# ------------------------------------------------------------------------------ lifetime


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
def test_rings_leave_nothing():
    """Rings that are used and dropped are gone at once, with their descriptors and mappings."""

    def use():
        ring = RingBuffer(2, 10)
        with ring.put():
            pass
        for _ in ring:
            break

    def held():
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("nbshare-" in line for line in maps)

    use()
    gc.collect()
    gc.disable()
    try:
        before = held()
        for _ in range(100):
            use()
        assert all(now <= then for now, then in zip(held(), before, strict=True))
    finally:
        gc.enable()


def test_a_script_may_end_in_the_middle(script):
    """A script that ends with slots in its hands ends well, and quietly."""
    said = script("""
import sys
import nbshare
sys.stderr = sys.stdout
ring = nbshare.RingBuffer(3, 1)
for i in range(2):
    with ring.put():
        pass
loop = iter(ring)
next(loop)
lease = ring.get()
lease.__enter__()
""")
    assert said == ""


@pytest.mark.skipif("fork" not in STARTS, reason="its processes are forked")
def test_twenty_runs_of_the_soak():
    """A fiftieth of what is run by hand."""
    ended = subprocess.run(
        [sys.executable, "-W", "error", TESTS / "arrays" / "soak_ring.py", "--runs", "20"],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
