"""The fault catalogue for pipelines and rings: deaths, interrupts, ends of the owner, time.

The ids are the catalogue's, as in ``test_deaths.py``. That nothing is left in ``/dev/shm``,
``TMPDIR`` or among the processes is checked after every one, or after those that
share a process (`Lab.close`).
"""

from __future__ import annotations

import os
import re
import sys
import time

import pytest

from tests.support.faultlab import LIMIT_S, N_SERVERS, NO_SERVER, SOON_S, cpu_s, wait_until

posix = pytest.mark.skipif(not hasattr(os, "fork"), reason="Windows has no signals, and no fork")
HEAD = """
import contextlib
from tests.support import plumbing
from nbshare.errors import TaskTimeoutError, WorkerDiedError
pipeline = functools.partial(nbshare.pipeline, shape=plumbing.ROWS, dtype=int, progress=False)
def check():
    load = functools.partial(plumbing.numbers, 12)
    done = pipeline(load, plumbing.doubled, plumbing.total, workers=(2, 1))
    assert done.results.tolist() == [12, 44, 76]
"""


@pytest.fixture
def page(page):
    """Give a kernel that a server has started."""
    page.run_well(HEAD)
    return page


# ----------------------------------------------------------------- D: workers that die


KILLED = "exited with status 9" if sys.platform == "win32" else "SIGKILL"
WAYS = {
    "D1": ("os.kill(os.getpid(), 9)", KILLED),
    "D2": ("os.abort()", "SIGABRT" if KILLED == "SIGKILL" else "exited with status 3"),
    "D3": ("os._exit(3)", "exited with status 3"),
}


@pytest.mark.parametrize(("way", "place"), [("D1", 0), ("D1", 1), ("D1", 2), ("D2", 1), ("D3", 2)])
def test_a_worker_dies_in_a_block(run_script, place, way):
    """Within a second all stages end. The error names stage and block, finished blocks are kept."""
    deed, says = WAYS[way]
    run_script(f"""{HEAD}
def fatal(block):
    if block[0] == 4 * 5:
        wait_until(Path("go").exists)
        Path("at").write_text(str(time.monotonic()))
        {deed}
    return block
def fatal_load():
    yield from map(fatal, plumbing.numbers(400))
stages = [functools.partial(plumbing.numbers, 400), plumbing.whole, plumbing.total]
stages[{place}] = fatal_load if {place} == 0 else fatal
name = stages[{place}].__name__
check()
threading.Timer(0.3, Path("go").touch).start()
try:
    pipeline(*stages, workers=2)
except WorkerDiedError as error:
    back = time.monotonic()
    assert {says!r} in str(error) and f"block 5 in stage {{name!r}}" in str(error), error
    assert error.index == 5
else:
    raise AssertionError("no error")
assert back - float(Path("at").read_text()) < faultlab.SOON_S
job = last_job()
assert job.state == "failed" and job.errors.keys() == {{5}}
kept = np.flatnonzero(job.present)
assert 5 not in kept and ({place} < 2 or set(kept) >= set(range(5)))
expected = [[*range(4 * i, 4 * i + 4)] for i in kept]
assert job.partial()[kept].tolist() == (expected if {place} == 2 else [*map(sum, expected)])
check()
""")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell who waits")
def test_d4_idle_workers_are_killed(run_script):
    """Between pipelines it changes nothing. One that waits for a block is an error, of no block."""
    run_script(f"""{HEAD}
check()
kill(helpers()[1])
check()
def load():
    yield [0] * 4
    await_flag("never")
def tells(block):
    Path("stage").write_text(str(os.getpid()))
    return block
def strike():
    wait_until(lambda: Path("stage").exists() and Path("stage").read_text())
    worker = int(Path("stage").read_text())
    wait_until(lambda: faultlab.is_asleep(worker))
    os.kill(worker, 9)
threading.Thread(target=strike).start()
try:
    pipeline(load, tells, plumbing.total)
except WorkerDiedError as error:
    assert "{KILLED} while it waited for a block in stage 'tells'" in str(error), error
    assert not last_job().errors
else:
    raise AssertionError("no error")
check()
""")


def test_d1_a_death_that_the_ring_tells_first(run_script):
    """The next stage may hear of a death before the engine does, but the error is the death."""
    run_script(f"""{HEAD}
from nbshare._core.engine.calls import Calls
at_once, heard_at = Calls.lose, []
def late(calls, worker, **options):
    if (call := calls._call_of(worker)) is not None:  # else it ends in peace
        heard_at.append(time.monotonic())
    if call is None or call.board.stopped or time.monotonic() > heard_at[0] + 1:
        at_once(calls, worker, **options)
Calls.lose = late
def fatal(block):
    if block[0] == 4 * 5:
        os.kill(os.getpid(), 9)
    return block
try:
    pipeline(functools.partial(plumbing.numbers, 400), fatal, plumbing.total, workers=2)
except WorkerDiedError as error:
    assert "block 5 in stage 'fatal'" in str(error), error
else:
    raise AssertionError("no error")
assert len(heard_at) > 1
Calls.lose = at_once
check()
""")


def test_d1_a_ring_is_closed_when_its_producer_is_gone(run_script):
    """Killed with a slot in hands or without, the loop over the slots ends, the future says why."""
    run_script(f"""{HEAD}
def put_and_die(ring, holds):
    with ring.put() as slot:
        slot[:] = 7
    with ring.put() if holds else contextlib.nullcontext():
        os.kill(os.getpid(), 9)
for holds in (True, False):
    ring = nbshare.RingBuffer(2, 3)
    with nbshare.Executor(max_workers=1) as executor:
        future = executor.submit(put_and_die, ring, holds)
        future.add_done_callback(lambda _: ring.close())
        assert [slot.tolist() for slot in ring] == [[7, 7, 7]]
        assert isinstance(future.exception(), WorkerDiedError)
""")


def test_d4_all_workers_are_killed_at_once(run_script):
    """The pipeline is an error within a second, and the next one has workers."""
    run_script(f"""{HEAD}
def strike():
    await_flag("started")
    Path("at").write_text(str(time.monotonic()))
    kill(helpers()[1])
threading.Thread(target=strike).start()
try:
    load = functools.partial(plumbing.endless, started="started")
    pipeline(load, plumbing.doubled, plumbing.total, workers=2)
except WorkerDiedError as error:
    back = time.monotonic()
    assert "in stage" in str(error), error
else:
    raise AssertionError("no error")
assert back - float(Path("at").read_text()) < faultlab.SOON_S
check()
""")


@pytest.mark.skipif(not N_SERVERS, reason="a Mac's shared memory is not in a small /dev/shm")
def test_d5_a_worker_is_killed_while_it_sends_its_result(run_script):
    """Blocks it has sent before are kept, the torn one is not, and its memory is freed."""
    run_script(f"""{HEAD}
check()
before = faultlab.memfd_bytes(faultlab.tagged())
try:
    pipeline(functools.partial(plumbing.numbers, 12), plumbing.killed_as_it_sends)
except WorkerDiedError as error:
    assert "block 1 in stage" in str(error), error
else:
    raise AssertionError("no error")
assert last_job().present.tolist() == [True, False, False][:last_job().present.size]
assert not last_job().partial()[0].any()
nbshare._core.jobs.job.remember(None)
check()
wait_until(lambda: faultlab.memfd_bytes(faultlab.tagged()) < before + (20 << 20))
""")


@pytest.mark.skipif(not N_SERVERS, reason=NO_SERVER)
def test_d7_the_server_of_workers_is_lost(run_script):
    """A pipeline that runs comes to its right end, and so does the next one."""
    run_script(f"""{HEAD}
check()
threading.Timer(0.1, lambda: os.kill(helpers()[0].pop(), signal.SIGKILL)).start()
slow = functools.partial(plumbing.slow, pause_s=0.02)
done = pipeline(functools.partial(plumbing.numbers, 80), slow, plumbing.total)
assert done.results.tolist() == [16 * i + 6 for i in range(20)]
start = time.monotonic()
check()
assert time.monotonic() - start < 2 * faultlab.SOON_S
""")


# ------------------------------------------------------------------------- T: time


@pytest.mark.parametrize("how", ["sleep", "gil", pytest.param("stop", marks=posix)])
def test_t1_d6_a_block_takes_too_long(run_script, how):
    """The error names stage and block, comes soon after the limit, and the worker is gone."""
    run_script(f"""{HEAD}
check()
waits = functools.partial(plumbing.waits, for_s=60, at=3, how={how!r})
start = time.monotonic()
try:
    pipeline(functools.partial(plumbing.numbers, 400), waits, plumbing.total, timeout=0.6)
except TaskTimeoutError as error:
    seconds = time.monotonic() - start
    assert "block 3 in stage 'waits' took longer than timeout=0.6 s" in str(error), error
    assert error.index == 3
else:
    raise AssertionError("no error")
assert 0.6 <= seconds < 0.6 + faultlab.SOON_S, seconds
assert last_job().partial()[:3].tolist() == [6, 22, 38]
assert last_job().errors.keys() == {{3}}
(flag,) = Path().glob("busy-*")
wait_until(lambda: faultlab.cpu_s(int(flag.name[5:])) is None, faultlab.SOON_S)
check()
""")


def test_t1_a_loader_takes_too_long_and_waiting_does_not_count(run_script):
    """A stage that waits for blocks, or a loader for slots, is not late. A loader that hangs is."""
    run_script(f"""{HEAD}
slow = functools.partial(plumbing.slow, pause_s=0.2)
for load in (plumbing.numbers, plumbing.numbers_in_place):
    load = functools.partial(load, n=24)
    done = pipeline(load, plumbing.doubled, slow, timeout=1.2, slots=1)
    assert len(done.results) == 6
try:
    pipeline(functools.partial(plumbing.numbers_late, 40, 2, 60), plumbing.total, timeout=1.2)
except TaskTimeoutError as error:
    assert "block 2 in stage 'numbers_late'" in str(error), error
else:
    raise AssertionError("no error")
check()
""")


# ------------------------------------------------------------------- I: interrupts, Stop


ENDLESS = """
load = functools.partial(plumbing.endless, started="started")
waits = functools.partial(plumbing.waits, for_s=60, at={at}, how={how!r})
done = pipeline(load, plumbing.whole, waits, workers=(2, 1), progress=True)
"""


@pytest.mark.parametrize(("how", "presses"), [("sleep", 1), ("gil", 3)])
def test_i1_i4_an_interrupt_keeps_what_is_finished(lab, how, presses):
    """Ctrl-C ends all stages within a second. All workers stop, the next pipeline works."""
    subject = lab.start(
        f"""{HEAD}
check()
load = functools.partial(plumbing.numbers, 400)
waits = functools.partial(plumbing.waits, for_s=60, at=7, how={how!r})
try:
    pipeline(load, plumbing.doubled, plumbing.whole, waits, workers=1)
except BaseException as caught:
    error, back = caught, time.monotonic()
while not Path("pressed").exists():  # on a busy machine the last one comes late
    with contextlib.suppress(KeyboardInterrupt):
        await_flag("pressed")
job = last_job()
start = time.monotonic()
check()
tell(error=type(error).__name__, back=back, state=job.state, next_s=time.monotonic() - start,
     n=job.n_done, kept=job.partial()[:job.n_done, 0].tolist(), text=str(error))
""".replace("at=7", "at=14")
    )
    (flag,) = lab.await_flag("busy-*")
    at = subject.interrupt()
    for _ in range(presses - 1):
        time.sleep(0.01)
        subject.interrupt()
    lab.folder.joinpath("pressed").touch()
    assert subject.wait() == 0, subject.stderr
    facts = lab.facts
    assert facts["error"] == "MapInterrupted"
    assert facts["state"] == "interrupted"
    assert facts["back"] - at < SOON_S
    assert facts["next_s"] < SOON_S
    assert facts["n"] == 7
    assert facts["kept"] == [8 * i for i in range(7)]
    assert "7 items done, kept in nbshare.last_job().partial()" in facts["text"]
    wait_until(lambda: cpu_s(int(flag[5:])) is None, SOON_S, "a stage runs on")


@posix
def test_i3_many_interrupts_at_any_time(run_script):
    """After 20 pipelines that are interrupted anywhere, shutdown leaves what it left before."""
    run_script(
        f"""{HEAD}
import random
dice = random.Random(20261121)
signal.signal(signal.SIGALRM, signal.default_int_handler)
nothing = functools.partial(plumbing.slow, pause_s=0.002)
def census():
    check()
    nbshare.shutdown()
    gc.collect()
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))
before, n_interrupted = census(), 0
check()  # so that workers are warm
for call in range(20):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 0.08))
            pipeline(functools.partial(plumbing.numbers, 100), nothing, plumbing.total)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        n_interrupted += 1
    start = time.monotonic()
    check()
    assert time.monotonic() - start < faultlab.SOON_S
assert n_interrupted > 7, n_interrupted
wait_until(lambda: census() <= before, faultlab.SOON_S, f"{{before}}, then {{census()}}")
""",
        limit_s=LIMIT_S if N_SERVERS else 200,  # each call starts workers, and no server forks them
    )


@pytest.mark.parametrize("how", ["sleep", "gil"])
def test_stop_gives_what_is_done_and_the_notebook_goes_on(page, how):
    """The display shows which stage holds up the others. Stop ends all, and queued cells run."""
    stopped = page.start(ENDLESS.format(at=10, how=how))
    queued = page.start("print(done.results[:3].sum(axis=1), last_job().state, len(done.stages))")
    (row,) = page.await_rows(stopped)
    full = "waits: 40 blocks, queue 3/4"  # and one in the stage's hands, the bottleneck
    wait_until(lambda: page._listen() or full in page._cells[stopped].rows[0], what=full)
    at = time.monotonic()
    page.press(row)
    cell = page.finish(stopped)
    assert time.monotonic() - at < SOON_S
    assert cell.status == "ok", cell.traceback
    assert re.search(r"■ .*stopped\s+40 .* the result is partial", cell.rows[0])
    assert not cell.stderr
    assert page.finish(queued).stdout == "[0 4 8] stopped 3\n"
    assert page.run("check()").status == "ok"


def test_i1_the_kernel_is_interrupted(page):
    """■ ends the cell in one line, Run All stops, and what was finished is kept."""
    interrupted = page.start(ENDLESS.format(at=10, how="sleep"))
    queued = page.start("raise SystemError('a queued cell ran')")
    page.await_rows(interrupted)
    wait_until(lambda: page._listen() or " 40 " in page._cells[interrupted].rows[0])
    at = time.monotonic()
    page.manager.interrupt_kernel()
    cell = page.finish(interrupted)
    assert time.monotonic() - at < SOON_S
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) <= 5
    assert re.search(r"■ .*interrupted\s+40", cell.rows[0])
    assert page.finish(queued).status == "aborted"
    cell = page.run("print(last_job().n_done, last_job().partial()[39]); check()")
    assert cell.stdout == "40 [39 39 39 39]\n", cell.traceback


def test_i1_a_cell_that_waits_for_a_slot_is_interrupted(page):
    """■ ends the wait within a second, and the ring is as it was."""
    waiting = page.start(
        "ring = nbshare.RingBuffer(2, 3); raise_flag('waits')\nfor _ in ring: pass"
    )
    page._lab.await_flag("waits")
    at = time.monotonic()
    page.manager.interrupt_kernel()
    assert page.finish(waiting).error == "KeyboardInterrupt"
    assert time.monotonic() - at < SOON_S
    cell = page.run("with ring.put() as slot: slot[:] = 1\nprint(ring.stats.queued)")
    assert cell.stdout == "1\n"


# ---------------------------------------------------------------- K: ends of the owner


@pytest.mark.parametrize("group", [False, True], ids=["K1", "K2"])
def test_nobody_outlives_a_killed_owner(lab, group):
    """SIGKILL of the owner, or its group, ends all stages, one that never lets Python run too."""
    subject = lab.start(f"""{HEAD}
thread = threading.Thread(target=check)  # K3: the workers' first thread has ended
thread.start()
thread.join()
waits = functools.partial(plumbing.waits, at=20, how="gil")
pipeline(plumbing.endless, plumbing.whole, waits, workers=(2, 1))
""")
    lab.await_flag("busy-*")
    assert len(lab.processes()) >= 5 + N_SERVERS  # owner, loader, stages
    subject.signal(9, group=group)
    assert lab.nobody_left()


@pytest.mark.parametrize(
    ("ending", "status"), [("sys.exit(3)", 3), ("raise SystemError", 1), ("os._exit(4)", 4)]
)
def test_k4_the_owner_ends_by_itself(lab, ending, status):
    """However the owner ends amid the pipeline of another thread, it does so at once."""
    subject = lab.start(f"""{HEAD}
waits = functools.partial(plumbing.waits, at=20, how="gil")
threading.Thread(target=pipeline, args=(plumbing.endless, waits), daemon=True).start()
wait_until(lambda: list(Path().glob("busy-*")))
tell(at=time.monotonic())
{ending}
""")
    lab.told()
    assert subject.wait() == status, subject.stderr
    assert time.monotonic() - lab.facts["at"] < SOON_S
    assert lab.nobody_left()
    assert "Fatal" not in subject.stderr
    assert ("Traceback" in subject.stderr) == ("raise" in ending)


# -------------------------------------------------------------------- P: in parallel


def test_p1_pipelines_in_threads_callbacks_and_loaders(page):
    """Pipelines of several threads, of a bar and of a plot get their own results. So do rows."""
    cell = page.run("""
found = []
def call(n):
    load = functools.partial(plumbing.numbers, n)
    done = nbshare.pipeline(load, plumbing.doubled, plumbing.total, shape=4, dtype=int)
    found.append(done.results.sum() == n * (n - 1))
threads = [threading.Thread(target=call, args=(n,)) for n in (8, 80, 800)]
for thread in threads: thread.start()
for thread in threads: thread.join()
class Bar:
    def __init__(self, *args, **kwargs): pass
    def update(self, n): call(12)
    def close(self): pass
def draw(ax, partial):
    call(16)
load = functools.partial(plumbing.numbers, 40)
done = pipeline(load, plumbing.slow, plumbing.total, progress=Bar, plot=draw)
async def two():
    import asyncio
    await asyncio.gather(*[asyncio.to_thread(call, n) for n in (20, 24)])
await two()
print(len(found) >= 7, all(found), len(done.results))
""")
    assert cell.stdout == "True True 10\n", cell.traceback + cell.stderr
    assert cell.stderr == ""


@posix
def test_p2_the_owner_forks(run_script):
    """A forked child has workers of its own. The parent's are unaffected."""
    run_script(f"""{HEAD}
check()
workers = helpers()[1]
child = os.fork()
if child == 0:
    status = 1
    try:
        check()
        status = 0
    finally:
        os._exit(status)
check()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert workers <= helpers()[1]
check()
""")


@pytest.mark.skipif(not N_SERVERS, reason=NO_SERVER)
def test_p3_a_worker_starts_late(run_script):
    """A stage whose worker is stopped as it starts begins late, and results are right."""
    run_script(f"""{HEAD}
check()
kill(helpers()[1])
(server,) = helpers()[0]
def stop_the_first():
    stopped = []
    while not stopped:
        stopped = Path(f"/proc/{{server}}/task/{{server}}/children").read_text().split()
    os.kill(int(stopped[0]), signal.SIGSTOP)
    time.sleep(1)
    os.kill(int(stopped[0]), signal.SIGCONT)
thread = threading.Thread(target=stop_the_first)
thread.start()
for _ in range(3):
    check()
thread.join()
check()
""")
