"""The fault catalogue: interrupts, at every moment of a call.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import sys
import time

import pytest

from tests.support.faultlab import (
    SOON_S,
    cpu_s,
    memfd_bytes,
    parent_of,
    wait_until,
)

presses = pytest.mark.skipif(
    sys.platform == "win32", reason="no console, through which it could come"
)
ticks = pytest.mark.skipif(sys.platform == "win32", reason="no timer interrupts a process there")

# ------------------------------------------------------------------- I: interrupts


INTERRUPTED = """
tasks.check_double()
try:
    pair(functools.partial(tasks.hang, {how!r}), range(8))
except BaseException as caught:
    error, back = caught, time.monotonic()
job = last_job()
partial = job.partial()
start = time.monotonic()
tasks.check_double()
tell(error=type(error).__name__, is_interrupt=isinstance(error, KeyboardInterrupt), back=back,
     text=str(error), present=job.present.tolist(), state=job.state,
     partial=[partial[i] for i in range(4)], next_s=time.monotonic() - start)
await_flag("looked at")
"""


@pytest.mark.first
@presses
@pytest.mark.parametrize("how", ["sleep", "beat", "gil", "spin", "c", "program"])
def test_i1_i4_an_interrupt_ends_a_map_of_long_items(lab, how):
    """Ctrl-C comes back at once with what is done, nobody computes on, the next call works."""
    subject = lab.start(INTERRUPTED.format(how=how))
    flags = lab.await_flag("busy-*", 2)
    busy = {int(flag.split("-")[2]) for flag in flags}
    if how == "program":
        lab.await_flag("program")
        busy |= {pid for pid in lab.processes() if parent_of(pid) in busy}
        assert len(busy) >= 3
    at = subject.interrupt()
    facts = lab.told()
    assert facts["error"] == "MapInterrupted"
    assert facts["is_interrupt"]
    assert facts["state"] == "interrupted"
    assert facts["back"] - at < SOON_S
    assert "4 of 8" in facts["text"]
    assert facts["present"] == [True] * 4 + [False] * 4
    assert facts["partial"] == [0.0, 10.0, 20.0, 30.0]
    assert facts["next_s"] < SOON_S
    wait_until(lambda: all(cpu_s(pid) is None for pid in busy), SOON_S, "items run on")
    assert subject.runs
    lab.raise_flag("looked at")
    assert subject.wait() == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
def test_i2_an_interrupt_while_inputs_are_copied(lab):
    """Ctrl-C in the middle of a copy comes back at once, runs nothing and frees the memory."""
    subject = lab.start("""
tasks.check_double()
large = np.zeros(300 << 20, np.uint8)  # never touched, so it takes no memory itself
raise_flag("ready")
try:
    quiet(tasks.last_of, range(8), shared={"elevation": large})
except BaseException as caught:
    error, back = caught, time.monotonic()
tasks.check_double()
tell(error=type(error).__name__, back=back, n=faultlab.memfd_bytes([os.getpid()]) >> 20)
""")
    lab.await_flag("ready")
    copied = 0
    while copied < 20 << 20:
        copied = memfd_bytes([subject.pid])
        assert subject.runs
    at = subject.interrupt()
    assert copied < 300 << 20
    assert subject.wait() == 0, subject.stderr
    assert lab.facts["error"] == "MapInterrupted"
    assert lab.facts["back"] - at < SOON_S
    assert lab.facts["n"] < 20


@presses
@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.03, 0.06, 0.1, 0.15])
def test_i2_an_interrupt_while_workers_start(lab, delay_s):
    """Ctrl-C during the very first call, from the moment its server starts, is served."""
    subject = lab.start("""
raise_flag("ready")
try:
    pair(functools.partial(tasks.hang, "spin"), range(4, 12))
except BaseException as caught:
    error, back = caught, time.monotonic()
start = time.monotonic()
tasks.check_double()
tell(error=type(error).__name__, back=back, next_s=time.monotonic() - start)
await_flag("looked at")
""")
    lab.await_flag("ready")
    wait_until(lambda: len(lab.processes()) > 1)
    time.sleep(delay_s)
    at = subject.interrupt()
    facts = lab.told()
    assert facts["error"] == "MapInterrupted"
    assert facts["back"] - at < SOON_S
    assert facts["next_s"] < SOON_S
    busy = {int(flag.name.split("-")[2]) for flag in lab.folder.glob("busy-*")}
    wait_until(lambda: all(cpu_s(pid) is None for pid in busy), SOON_S, "items run on")
    lab.raise_flag("looked at")
    assert subject.wait() == 0
    assert "Traceback" not in subject.stderr


def test_i2_an_interrupt_that_wakes_nobody(run_script):
    """An interrupt that is noted just before the caller falls asleep ends the run all the same.

    Noted in another thread, as `interrupt_main` does, it leaves the main thread where it is, and
    so does one that comes between the main thread's last look and its sleep.
    """
    run_script("""
import _thread
def press():
    wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
    if sys.platform != "win32":  # which does not tell, and where waits are in slices
        wait_until(lambda: faultlab.is_asleep(os.getpid()))
    tell(at=time.monotonic())
    _thread.interrupt_main()
threading.Thread(target=press).start()
try:
    pair(functools.partial(tasks.hang, "sleep"), range(8))
except MapInterrupted:
    back = time.monotonic()
import json
assert back - json.loads(Path("facts.json").read_text())["at"] < faultlab.SOON_S
""")


@ticks
def test_i2_no_interrupt_is_lost(run_script):
    """An interrupt that falls between any two steps of a cold call ends it, at once."""
    run_script("""
import random
dice = random.Random(20261121)
signal.signal(signal.SIGALRM, signal.default_int_handler)
for _ in range(20):
    nbshare.shutdown()
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 0.02))
        pair(functools.partial(tasks.pause, 30.0), range(2))
    except KeyboardInterrupt:
        assert time.monotonic() - start < faultlab.SOON_S
    else:
        raise AssertionError("the interrupt is lost")
tasks.check_double()
""")


@presses
def test_i2_an_interrupt_while_results_come(lab):
    """Ctrl-C amid many short items keeps exactly those that are done."""
    subject = lab.start("""
try:
    pair(tasks.flagged, range(4000))
except BaseException as caught:
    error, back = caught, time.monotonic()
job = last_job()
partial, present = job.partial(), job.present
assert np.array_equal(np.ma.getmaskarray(partial), ~present)
assert partial.compressed().tolist() == [10.0 * i for i in np.flatnonzero(present)]
tasks.check_double()
tell(error=type(error).__name__, back=back, n=job.n_done)
""")
    lab.await_flag("reached-50")
    at = subject.interrupt()
    assert subject.wait() == 0, subject.stderr
    assert lab.facts["error"] == "MapInterrupted"
    assert lab.facts["back"] - at < SOON_S
    assert 49 <= lab.facts["n"] < 4000


@ticks
@pytest.mark.parametrize("later_s", [0.001, 0.005, 0.01, 0.02])
def test_i2_a_second_interrupt_during_the_clean_up(lab, later_s):
    """A second Ctrl-C gives the same interrupt, and the library still works."""
    subject = lab.start(f"""
def again(number, frame):  # the second one comes while the first is being dealt with
    signal.setitimer(signal.ITIMER_REAL, {later_s})
    raise KeyboardInterrupt
signal.signal(signal.SIGINT, again)
signal.signal(signal.SIGALRM, signal.default_int_handler)
try:
    pair(functools.partial(tasks.hang, "gil"), range(8))
except BaseException as caught:
    error, back = caught, time.monotonic()
assert signal.getitimer(signal.ITIMER_REAL)[0] == 0, "too late for a second interrupt"
job = last_job()
tasks.check_double()
tell(error=type(error).__name__, back=back, present=job.present.tolist(), state=job.state)
""")
    busy = {int(flag.split("-")[2]) for flag in lab.await_flag("busy-*", 2)}
    at = subject.interrupt()
    facts = lab.told()
    assert subject.wait() == 0, subject.stderr
    assert facts["error"] == "MapInterrupted"
    assert facts["state"] == "interrupted"
    assert facts["back"] - at < SOON_S
    assert facts["present"] == [True] * 4 + [False] * 4
    assert all(cpu_s(pid) is None for pid in busy)


@ticks
def test_i3_many_interrupts_at_any_time(lab):
    """After 40 calls interrupted anywhere, and idle workers killed, all is as after ten."""
    lab.run(
        """
import random
dice = random.Random(20261121)
signal.signal(signal.SIGALRM, signal.default_int_handler)
def descriptors():
    return len(os.listdir("/proc/self/fd"))
def census():
    servers, workers = helpers()
    return descriptors(), len(servers), len(workers), len(os.listdir("/proc/self/task"))
def both_at_work(name):  # a call this quick may do without one that starts late
    os.mkdir(name)
    pair(functools.partial(tasks.meet, os.path.abspath(name), 2), range(2), chunksize=1)
data = np.arange(1000.0)
at_start, interrupted = descriptors(), 0
for call in range(1, 41):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 0.05))
            pair(functools.partial(tasks.pause, 0.015), range(8))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        interrupted += 1
    start = time.monotonic()
    assert pair(tasks.last_of, range(4), shared={"elevation": data}).tolist() == [999.0] * 4
    assert time.monotonic() - start < faultlab.SOON_S
    if call % 4 == 0:
        kill([dice.choice(sorted(helpers()[1]))])
        tasks.check_double()
    if call == 10:
        both_at_work("at-10")
        wait_until(lambda: len(helpers()[1]) == 2, SOON_S, "not two workers")
        at_ten = census()
assert interrupted > 20, interrupted
gc.collect()
both_at_work("at-40")
wait_until(lambda: census() == at_ten, SOON_S, f"{at_ten}, then {census()}")
nbshare.shutdown()
wait_until(lambda: not any(helpers()), SOON_S, "helpers after shutdown")
wait_until(lambda: descriptors() <= at_start, SOON_S, f"{at_start}, then {descriptors()}")
""",
    )


@ticks
def test_i2_what_an_interrupted_call_had_done_stays(run_script):
    """Also if the interrupt came when all was done, and whatever calls follow."""
    run_script("""
def both(x, y):
    return x, y
def run(x, y):
    return pair(both, [x, x], [y, y], out="stack")
signal.signal(signal.SIGALRM, signal.default_int_handler)
gc.disable()  # callbacks of others may swallow an interrupt there
n_jobs = 0
for k in range(100):
    begun = time.perf_counter()
    for _ in range(3):
        run(k, k)
    took_s = (time.perf_counter() - begun) / 3
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, 1e-5 + k / 100 * took_s)
            run(k, -k)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    if (job := last_job()) is not None:
        before, n_jobs = repr(job.partial()), n_jobs + 1
        for _ in range(3):
            run(-1, -2)
        assert repr(job.partial()) == before
assert n_jobs > 20, n_jobs
""")


@pytest.mark.parametrize("n", [4, 20])
def test_i3_one_interrupt_after_the_other(run_script, n):
    """Each comes back at once with what is done, and the next call works."""
    ran = run_script(f"""
from nbshare._core.system import processes
tasks.check_double()
waits = []
def press():
    wait_until(lambda: [job for job in nbshare.jobs() if job.n_done == 4], what="not 4 of 8")
    waits.append(-time.monotonic())
    processes.interrupt()
for k in range({n}):
    thread = threading.Thread(target=press)
    thread.start()
    try:
        pair(functools.partial(tasks.hang, ("sleep", "spin")[k % 2]), range(8))
    except MapInterrupted:
        waits[-1] += time.monotonic()
    thread.join()
    assert last_job().partial().tolist() == [0, 10, 20, 30, None, None, None, None]
    tasks.check_double()
tell(waits=waits)
""")
    assert len(ran.facts["waits"]) == n
    assert 0 < max(ran.facts["waits"]) < SOON_S
