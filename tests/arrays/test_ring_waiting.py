"""A queue of array slots. No process waits for a dead one, and an interrupt loses nothing."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import nbshare
from nbshare import RingBuffer
from nbshare._core.arrays import buffer, lock, ring, ring_slots, ring_waiting
from nbshare._core.system import locks, waiting
from nbshare.errors import RingAbortedError, RingTimeoutError
from tests.support import rings
from tests.support.faultlab import SOON_S, wait_until
from tests.support.interrupts import each_interrupt
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

FILES = {
    module.__file__ for module in (buffer, lock, locks, ring, ring_slots, ring_waiting, waiting)
}

posix = pytest.mark.skipif("fork" not in STARTS, reason="Windows has no signals, and no fork")
pytestmark = [
    pytest.mark.filterwarnings(
        "ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"
    ),
    pytest.mark.usefixtures("no_helpers_left"),
]


# ------------------------------------------------------------------------------ the dead


@pytest.mark.parametrize("start", [start for start in STARTS if start != "forkserver"])
def test_a_dead_producer_s_slot_is_free_again(start):
    """One that waits for the slot gets it. A half-filled slot does not come."""
    ring = RingBuffer(1, 2, int)
    with held_by_other(ring, "put", multiprocessing.get_context(start)) as process:
        with pytest.raises(RingTimeoutError), ring.put(timeout=0.01):
            pass
        process.kill()
        with ring.put(timeout=20) as slot:
            slot[...] = 3
    assert ring.stats.n_reclaimed == 1
    ring.close()
    assert [slot.tolist() for slot in ring] == [[3, 3]]


def test_a_dead_consumer_s_slot_comes_again_in_its_place(numbers):
    """Another consumer gets it before the later ones."""
    rings.put_numbers(numbers, 1, 3)
    with held_by_other(numbers, "get") as process:
        process.kill()
        process.join()
    with numbers.get() as slot:
        assert slot[0] == 2
    wait_until(lambda: numbers.stats.n_reclaimed)
    with numbers.get() as slot:
        assert slot[0] == -2  # what the dead one has made of it
    assert figures(numbers) == (1, 0, 0, 2)


@pytest.mark.parametrize("is_waiting", [False, True])
def test_the_end_of_the_data_comes_after_the_dead_one_s_slot(numbers, is_waiting):
    """A loop on a closed ring does not end before it has read what a dead consumer had."""
    rings.put_numbers(numbers, 1, 1)
    with held_by_other(numbers, "get") as process, ThreadPoolExecutor(1) as thread:
        if is_waiting:
            read = thread.submit(lambda: [int(slot[0]) for slot in numbers])
            wait_until(lambda: numbers.stats.consumers_waited_s)
        process.kill()
        process.join()
        if is_waiting:
            wait_until(lambda: figures(numbers) == (0, 0, 0, 3))
        numbers.close()
        if not is_waiting:
            read = thread.submit(lambda: [int(slot[0]) for slot in numbers])
        assert read.result(20) == [-2]


def test_the_end_of_the_data_does_not_wait_for_a_dead_producer(numbers):
    """A loop on a closed ring ends though a producer died while filling a slot."""
    with held_by_other(numbers, "put") as process, ThreadPoolExecutor(1) as thread:
        numbers.close()
        read = thread.submit(list, numbers)
        wait_until(lambda: numbers.stats.consumers_waited_s)
        process.kill()
        assert read.result(20) == []


def test_a_slot_of_the_dead_may_be_left():
    """With on_death="leave" its slot stays taken. The others go on until the ring is aborted."""
    ring = RingBuffer(2, 2, int, on_death="leave")
    with held_by_other(ring, "put") as process:
        process.kill()
        process.join(20)
        with pytest.raises(RingTimeoutError), ring.get(timeout=0.4):
            pass
        for _ in range(3):
            fill(ring)
            with ring.get(timeout=20):
                assert ring.stats.n_reclaimed == 0
        ring.abort("by its supervisor")
        with pytest.raises(RingAbortedError, match="by its supervisor"), ring.get(timeout=20):
            pass


@posix
def test_a_stopped_holder_is_not_dead(numbers):
    """A process that is merely stopped keeps its slot."""
    with held_by_other(numbers, "put") as process:
        os.kill(process.pid, signal.SIGSTOP)
        with pytest.raises(RingTimeoutError), numbers.get(timeout=0.4):
            pass
        assert figures(numbers) == (0, 0, 1, 2)


@posix
def test_a_child_that_leaves_the_block_does_not_take_the_slot_along(numbers):
    """A fork inside a block, whose child leaves it, changes nothing for the parent."""
    with numbers.put() as slot:
        pid = os.fork()
        if pid:
            assert os.waitpid(pid, 0)[1] == 0
            assert figures(numbers) == (0, 0, 1, 2)
            slot[...] = 5
    if not pid:
        os._exit(0)
    with numbers.get() as slot:
        assert slot.tolist() == [5] * 4


N_DEATHS = 25


@pytest.mark.first
@posix
@pytest.mark.parametrize("way", ["put", "get"])
def test_deaths_at_any_moment_cost_nobody_anything(way):
    """Processes are killed anywhere in put or get. The rest get everything, whole, and end."""
    ring, seen = RingBuffer(2, 16, int), nbshare.zeros(100_000, int)
    with contextlib.ExitStack() as stack:
        if way == "put":
            stack.enter_context(running(QUICK, rings.count, ring, seen))
        else:
            loader = stack.enter_context(running(QUICK, rings.put_numbers, ring, 0, 3000))
        for k in range(N_DEATHS):
            process = QUICK.Process(
                target=rings.die_at_random, args=(ring, way, 1000 * k, 1000, seen)
            )
            process.start()
            process.join(20)
            assert process.exitcode == -signal.SIGALRM
        if way == "put":
            ring.close()
        else:
            closer = threading.Thread(target=lambda: (loader.join(60), ring.close()))
            closer.start()
            rings.count(ring, seen)
            closer.join()
    now = ring.stats
    assert (now.queued, now.reading, now.filling) == (0, 0, 0)
    if way == "get":
        assert seen[:3000].all()  # at least once
    else:
        assert seen.max() == 1
        assert 0 <= now.n_put - seen.sum() <= N_DEATHS  # killed between count and commit
        for k in range(N_DEATHS):
            of_one = seen[1000 * k : 1000 * (k + 1)]
            assert of_one[: of_one.sum()].all()  # up to somewhere


# ------------------------------------------------------------------------------ waiting


def test_waiting_costs_no_cpu_time(numbers):
    """A second of waiting takes less than a fifth of a second of CPU time."""
    started = time.process_time()
    with pytest.raises(RingTimeoutError), numbers.get(timeout=1):
        pass
    assert time.process_time() - started < 0.2


@posix
@pytest.mark.parametrize("way", ["put", "get"])
def test_ctrl_c_ends_a_wait(way):
    """Ctrl-C ends a wait soon, and the ring can still be used."""
    ring = RingBuffer(1, 1, int)
    if way == "put":
        fill(ring)
    errors, waits = SPAWN.SimpleQueue(), SPAWN.Event()
    with running(SPAWN, rings.tell_error, ring, way, waits, errors) as process:
        assert waits.wait(20)
        wait_until(lambda: getattr(ring.stats, WAITED[way]) > 0.1)
        sent = time.monotonic()
        os.kill(process.pid, signal.SIGINT)
        assert errors.get()[0] == "KeyboardInterrupt"
        assert time.monotonic() - sent < SOON_S
    errors.close()
    with ring.get() if way == "put" else ring.put():
        pass


@posix
def test_interrupts_of_long_calls_leave_no_slot_held(script):
    """After each interrupt while a slot is filled, when its traceback is gone, all are free."""
    script("""
import signal
import nbshare
ring = nbshare.RingBuffer(2, 1 << 18)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for i in range(200):
    try:
        signal.setitimer(signal.ITIMER_REAL, 1e-4 + i * 1e-5, 1)
        while True:
            with ring.put() as slot:
                slot[...] = i
            with ring.get() as slot:
                slot.sum()
    except KeyboardInterrupt:
        signal.setitimer(signal.ITIMER_REAL, 0)
    while ring.stats.queued:
        with ring.get():
            pass
    assert ring.stats.free == 2, (i, ring.stats)
""")


def in_a_thread(work):
    """Do something where tracing disturbs no other test."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(work).result(100)


def test_no_moment_of_a_put_leaves_its_slot_held(numbers):
    """Wherever an interrupt comes, but as the block ends, the slot is queued whole or free."""

    def block():
        with numbers.put() as slot:
            slot[...] = 8

    def check():
        for _ in each_interrupt(block, FILES, but=ring_waiting.SlotLease.__exit__):
            queued, *held, free = figures(numbers)
            assert (queued + free, held) == (3, [0, 0])
            if queued:
                with numbers.get() as slot:
                    assert slot.tolist() == [8] * 4

    in_a_thread(check)


def test_no_moment_of_a_get_loses_its_slot(numbers):
    """Wherever an interrupt comes, but as the block ends, the slot is read or still queued."""
    began = []

    def block():
        with numbers.get():
            began.append(True)

    def check():
        rings.put_numbers(numbers, 0, 1)
        for _ in each_interrupt(block, FILES, but=ring_waiting.SlotLease.__exit__):
            queued, *held, free = figures(numbers)
            assert (queued + free, held) == (3, [0, 0])
            assert queued + len(began) == 1
            began.clear()
            if not queued:
                rings.put_numbers(numbers, 0, 1)

    in_a_thread(check)


def test_no_moment_of_a_wait_takes_anything(numbers):
    """Wherever an interrupt comes in a wait, no slot is touched."""

    def wait():
        with contextlib.suppress(RingTimeoutError), numbers.get(timeout=0.001):
            pass

    def check():
        for _ in each_interrupt(wait, FILES):
            assert figures(numbers) == (0, 0, 0, 3)

    in_a_thread(check)
