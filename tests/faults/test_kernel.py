"""The fault catalogue in a real Jupyter kernel, spoken to as a notebook does.

The ids are the catalogue's, as in ``test_deaths.py``. That nothing is left in ``/dev/shm``,
``TMPDIR`` or among the processes is checked after every one, or after those that
share a process (`Lab.close`).
"""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.faults.test_crash_table import STUMBLES
from tests.support.faultlab import SOON_S, cpu_s, wait_until
from tests.support.grids import combined
from tests.support.kernels import LONG, Kernel


@pytest.fixture
def kernel(lab):
    """Give a kernel of its own to a test."""
    kernel = Kernel(lab)
    try:
        yield kernel
    finally:
        kernel.close()


# ------------------------------------------------------------ E, D: items that fail


PLOTTED = "E1-exception", "E3-result-unpicklable", "D1-SIGKILL", "D3-exit"


@pytest.mark.parametrize("row", combined([row for row in STUMBLES if row.id not in PLOTTED]))
def test_a_failing_item(common, row):
    """The failure is named with its item at once, what is done is kept, the next call works."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    cell = kernel.run(f"faultlab.provoke({row.way!r})")
    assert cell.status == "ok", cell.traceback
    row.check(lab.facts)


@pytest.mark.parametrize("row", [s for s in STUMBLES if s.id in PLOTTED], ids=lambda row: row.id)
def test_a_failing_item_under_a_live_plot(common, row):
    """The failure is the same with a picture of the results on the page, which stays."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    kernel.run_well("parallel_map(tasks.double, range(4), plot='line')")  # imports Matplotlib
    cell = kernel.run_well(f"faultlab.provoke({row.way!r}, plot='line')")
    row.check(lab.facts)
    assert "image/png" in cell.mimetypes
    assert "Traceback" not in cell.stderr


def test_t1_an_item_takes_too_long_under_a_live_plot(common):
    """The time-out is the same with a picture of the results on the page, which stays."""
    _, kernel = common
    cell = kernel.run_well("""
start = time.monotonic()
try:
    parallel_map(functools.partial(tasks.hang, "gil"), range(6), max_workers=2, chunksize=1,
                 timeout=0.5, plot="line")
except TimeoutError as error:
    assert "item 4" in str(error) or "item 5" in str(error), error
else:
    raise AssertionError("no error")
assert time.monotonic() - start < 0.5 + faultlab.SOON_S
assert last_job().partial()[:4].tolist() == [0.0, 10.0, 20.0, 30.0]
tasks.check_double()
""")
    assert "image/png" in cell.mimetypes


def test_e1_what_a_failed_cell_shows(common):
    """A failed cell shows the worker's line and the item. Its row says so, and the queue stops."""
    lab, kernel = common
    for path in lab.folder.glob("returned-*"):
        path.unlink()
    failing = kernel.start("""
stones = [f"stone-{i}" for i in range(8)]
parallel_map(functools.partial(tasks.stumble, "raises"), stones, max_workers=2, chunksize=1)
""")
    queued = kernel.start("raise SystemError('a queued cell ran')")
    cell = kernel.finish(failing)
    assert cell.error == "ValueError"
    assert "no way on" in cell.traceback
    assert "in raises" in cell.traceback
    assert "item 3 ('stone-3')" in cell.traceback
    assert kernel.finish(queued).status == "aborted"
    (row,) = cell.rows
    assert "failed" in row
    cell = kernel.run("print(last_job().errors[3], last_job().n_done)")
    assert cell.stdout.startswith("no way on ")


# ------------------------------------------------------------------- I: interrupts


@pytest.mark.parametrize(("how", "presses"), combined(["sleep", "beat", "gil", "c"], [1, 3]))
def test_i1_i4_the_kernel_is_interrupted(common, how, presses):
    """■ ends the cell at once in one line, Run All stops, nobody computes on, results are kept."""
    lab, kernel = common
    for path in lab.folder.glob("busy-*"):
        path.unlink()
    assert kernel.run("tasks.check_double()").status == "ok"
    interrupted = kernel.start(LONG.format(how=how))
    queued = kernel.start("raise SystemError('a queued cell ran')")
    busy = {int(flag.split("-")[2]) for flag in lab.await_flag("busy-*", 2)}
    kernel.await_row(interrupted)
    at = time.monotonic()
    for _ in range(presses):
        kernel.manager.interrupt_kernel()
        time.sleep(0.01)
    cell = kernel.finish(interrupted)
    assert time.monotonic() - at < SOON_S
    assert cell.status == "error"
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) <= 5
    assert "4 of 8" in cell.traceback
    assert "Traceback" not in cell.stderr + cell.stdout
    (row,) = cell.rows
    assert "■" in row
    assert "interrupted" in row
    assert "4/8" in row
    assert kernel.finish(queued).status == "aborted"
    wait_until(lambda: all(cpu_s(pid) is None for pid in busy), SOON_S, "items run on")
    start = time.monotonic()
    cell = kernel.run("print(last_job().partial())")
    assert cell.status == "ok", cell.traceback
    assert cell.stdout == "[0.0 10.0 20.0 30.0 -- -- -- --]\n"
    cell = kernel.run("tasks.check_double()")
    assert cell.status == "ok", cell.traceback
    assert time.monotonic() - start < SOON_S


PRESSING = """
def press(i, kernel):
    os.kill(kernel, signal.SIGINT)
    time.sleep(60)
pressing = functools.partial(quiet, press, [0], max_workers=1, shared={"kernel": os.getpid()})
"""


def test_i2_a_second_press_after_the_call_is_the_same_one(common):
    """Before ipykernel has replied, it would lose the error, and Run All would go on."""
    _, kernel = common
    interrupted = kernel.start(f"""{PRESSING}
def press_again():
    events.unregister("post_execute", press_again)
    signal.raise_signal(signal.SIGINT)
events = get_ipython().events
events.register("post_execute", press_again)
pressing()
""")
    queued = kernel.start("raise SystemError('a queued cell ran')")
    assert kernel.finish(interrupted).error == "MapInterrupted"
    assert kernel.finish(queued).status == "aborted"
    assert kernel.run("signal.raise_signal(signal.SIGINT)").error == "KeyboardInterrupt"


def test_i2_a_cell_that_goes_on_after_an_interrupt_can_be_interrupted(common):
    """A press counts again when some time has passed."""
    _, kernel = common
    cell = kernel.run(f"""{PRESSING}
try:
    pressing()
except MapInterrupted:
    end = time.monotonic() + faultlab.SOON_S
    while time.monotonic() < end:
        signal.raise_signal(signal.SIGINT)
""")
    assert cell.error == "KeyboardInterrupt"


def test_r1_background_runs_leave_no_descriptors(common):
    """The kernel gives a socket to each thread that prints, until that has ended."""
    _, kernel = common
    kernel.run_well("""
for _ in range(3):
    job = nbshare.map_async(print, range(4), max_workers=2)
    job.wait()
    quiet(tasks.double, (print("taken") or i for i in range(3)), max_workers=2)
wait_until(lambda: threading.active_count() <= 10)
""")
    cell = kernel.run("print([t.name for t in sys.stdout.pub_thread._event_pipes])")
    assert "Dummy" not in cell.stdout


def test_i1_the_kernel_is_interrupted_under_a_live_plot(common):
    """■ ends the cell at once, keeps what is done and the picture of it. The next call works."""
    lab, kernel = common
    for path in lab.folder.glob("busy-*"):
        path.unlink()
    interrupted = kernel.start("""
task = functools.partial(tasks.hang, "gil")
parallel_map(task, range(8), max_workers=2, chunksize=1, plot="line")
""")
    lab.await_flag("busy-*", 2)
    kernel.await_row(interrupted)
    at = time.monotonic()
    kernel.manager.interrupt_kernel()
    cell = kernel.finish(interrupted)
    assert time.monotonic() - at < SOON_S
    assert cell.error == "MapInterrupted"
    assert "image/png" in cell.mimetypes
    kernel.run_well("""
assert last_job().partial().compressed().tolist() == [0.0, 10.0, 20.0, 30.0]
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < faultlab.SOON_S
""")


def test_i2_the_kernel_is_interrupted_while_matplotlib_is_imported(kernel):
    """■ leaves it whole. The last frame is drawn, and later cells can import the rest."""
    cell = kernel.run("""
def press():
    wait_until(lambda: "matplotlib.colors" in sys.modules)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
pair(functools.partial(tasks.hang, "sleep"), range(8), plot="line")
""")
    assert cell.error == "MapInterrupted"
    assert "image/png" in cell.mimetypes
    kernel.run_well("import matplotlib.pyplot")


def test_i2_the_kernel_is_interrupted_while_inputs_are_copied(common):
    """■ in the middle of a copy ends the cell in one line, and frees the memory."""
    _, kernel = common
    kernel.run_well("nbshare.shutdown(); tasks.check_double()")
    # The kernel presses the button itself, as soon as some of the copy is there.
    cell = kernel.run("""
def press():
    wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) > 20 << 20)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=press).start()
parallel_map(tasks.last_of, range(4), shared={"elevation": np.zeros(300 << 20, np.uint8)})
""")
    assert cell.error == "MapInterrupted"
    assert len(cell.traceback.splitlines()) <= 5
    cell = kernel.run("print(faultlab.memfd_bytes([os.getpid()]) >> 20)")
    assert int(cell.stdout) < 20


# -------------------------------------------------------------- K: ends of the kernel


ENDS = {
    "K1-killed": lambda kernel: os.kill(kernel.pid, signal.SIGKILL),
    "K2-group-killed": lambda kernel: os.killpg(kernel.pid, signal.SIGKILL),
    "K2-restarted-at-once": lambda kernel: kernel.manager.restart_kernel(now=True),
    "K2-restarted": lambda kernel: kernel.manager.restart_kernel(now=False),
    "K4-shut-down": lambda kernel: kernel.manager.shutdown_kernel(now=False),
}


DURING = ["idle", "beat", "gil", "program"]


@pytest.mark.first
@pytest.mark.parametrize(("end", "during"), combined(ENDS, DURING, soak=True))
def test_nobody_outlives_a_kernel(lab, kernel, end, during):
    """Workers and what they started go, however the kernel ends. A new kernel works at once."""
    assert kernel.run("kept = nbshare.zeros(1 << 20); tasks.check_double()").status == "ok"
    if during != "idle":
        kernel.start(LONG.format(how=during))
        lab.await_flag("busy-*", 2)
    if during == "program":
        wait_until(lambda: len(lab.processes()) >= 6, what="no programs")
    before = lab.processes()
    assert len(before) >= 4
    ENDS[end](kernel)
    wait_until(lambda: not before & lab.processes(), SOON_S, lambda: f"alive: {lab.names()}")
    if "restarted" in end:
        kernel.meet()
        cell = kernel.run("tasks.check_double(); print('right')")
        assert cell.stdout == "right\n", cell
        assert cell.stderr == ""


# ------------------------------------------------------------------------ in a kernel


IN_A_KERNEL = {
    "D4-idle-workers-killed": "tasks.check_double()\nkill(helpers()[1])",
    "D7-server-killed": "tasks.check_double()\nkill(helpers()[0])",
    "D4-killed-in-a-call": """
from nbshare.errors import WorkerDiedError
nbshare.shutdown()  # a server that was killed tells no exit status
for path in Path().glob("busy-*"):
    path.unlink()
def strike():
    wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
    for path in Path().glob("busy-*"):
        os.kill(int(path.name.split("-")[2]), signal.SIGKILL)
threading.Thread(target=strike).start()
try:
    pair(functools.partial(tasks.hang, "sleep"), range(8))
except WorkerDiedError as error:
    assert "SIGKILL" in str(error)
else:
    raise AssertionError("no error")
""",
    "D6-stopped-worker": """
def stops(i):
    if i == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return i
try:
    pair(stops, range(4), timeout=0.5)
except TimeoutError as error:
    assert "item 1" in str(error)
else:
    raise AssertionError("no error")
""",
    "D3-module-broken": """
Path("brittle.py").write_text("def same(x): return x")
sys.path.insert(0, os.getcwd())
import brittle
Path("brittle.py").write_text("import not_there")
start = time.monotonic()
try:
    pair(brittle.same, range(4))
except ModuleNotFoundError as error:
    assert error.name == "not_there"
else:
    raise AssertionError("no error")
assert time.monotonic() - start < SOON_S
""",
    "I2-while-workers-start": """
handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
for delay_s in (0.001, 0.01, 0.03, 0.1):
    nbshare.shutdown()
    start = time.monotonic()
    try:
        signal.setitimer(signal.ITIMER_REAL, delay_s)
        pair(functools.partial(tasks.pause, 30.0), range(2))
    except KeyboardInterrupt:
        assert time.monotonic() - start < faultlab.SOON_S
    else:
        raise AssertionError("the interrupt is lost")
signal.signal(signal.SIGALRM, handler)
tasks.check_double()
""",
    "I3-many-interrupts": """
import random
dice = random.Random(20261121)
handler = signal.signal(signal.SIGALRM, signal.default_int_handler)
def count():
    gc.collect()
    return len(os.listdir("/proc/self/fd")), sum(map(len, helpers()))
for k in range(30):
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 0.1))
            pair(functools.partial(tasks.pause, 0.001), range(200))
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        pass
    if dice.random() < 0.3:
        kill(list(helpers()[1])[:1])
    tasks.check_double()
    if k == 9:
        os.mkdir("at-9")
        pair(functools.partial(tasks.meet, os.path.abspath("at-9"), 2), range(2))  # both are there
        before = count()
wait_until(lambda: count() <= before, SOON_S, lambda: f"{count()}, before {before}")
signal.signal(signal.SIGALRM, handler)
""",
    "T1-time-out": """
start = time.monotonic()
try:
    pair(functools.partial(tasks.hang, "gil"), range(3, 5), timeout=0.5)
except TimeoutError as error:
    assert "item 1 (4)" in str(error) and time.monotonic() - start < 0.5 + faultlab.SOON_S
else:
    raise AssertionError("no error")
""",
    "E4-repr-fails": """
for how in ("fails", "exits", "is no text"):
    try:
        quiet(tasks.refuse, [tasks.Shy(how)])
    except ValueError as error:
        assert "item 0 (" in str(error.__notes__)
""",
    "E6-errors-returned": """
def odd(i):
    if i in (3, 50, 99):
        raise ValueError(i)
    return i
result = parallel_map(odd, range(100), on_error="return")
assert result.count() == 97 and sorted(last_job().errors) == [3, 50, 99]
""",
    "D5-large-result-torn": """
from nbshare.errors import WorkerDiedError
task = functools.partial(tasks.large_row, nbytes=20 << 20)
try:
    quiet(task, range(2), max_workers=1, chunksize=1)
except WorkerDiedError as error:
    assert error.index == 1 and "SIGBUS" in str(error), error
assert last_job().partial().mask[1].all() and not last_job().partial().mask[0].any()
""",
    "N2-own-pool": """
def pools(i):
    import multiprocessing
    with multiprocessing.get_context("fork").Pool(2) as pool:
        return sum(pool.map(abs, [-i, i]))
assert pair(pools, range(4)).tolist() == [0, 2, 4, 6]
""",
    "M2-limit": """
def asks(i):
    import resource
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    return np.zeros(6 << 30, np.uint8).size
try:
    pair(asks, range(2))
except MemoryError as error:
    assert "item " in str(error.__notes__)
else:
    raise AssertionError("no error")
""",
}


@pytest.mark.parametrize("row", IN_A_KERNEL)
def test_the_kernel_survives(common, row):
    """A fault in a call leaves the kernel right and quiet. The next call is soon right."""
    _, kernel = common
    cell = kernel.run(IN_A_KERNEL[row])
    assert cell.status == "ok", cell.traceback
    assert "Traceback" not in cell.stderr
    cell = kernel.run("""
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < faultlab.SOON_S
""")
    assert cell.status == "ok", cell.traceback
    assert cell.stderr == ""


def test_m4_a_failed_cell_keeps_no_memory(common):
    """Though the kernel keeps its last traceback, the memory of a failed call is free again."""
    _, kernel = common
    kernel.run_well("nbshare.shutdown(); before = faultlab.memfd_bytes([os.getpid()])")
    cell = kernel.run("pair(tasks.zeros_but_last, range(5), shared=dict(nbytes=20<<20, fail_at=4))")
    assert cell.error == "ValueError"
    kernel.run_well("""
assert sys.last_value is not None
tasks.check_double()
nbshare.shutdown()
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= before + 4096, SOON_S, "memory is kept")
""")


@pytest.mark.first
def test_p1_maps_in_an_asyncio_cell(common):
    """Maps that are awaited, run in threads or called in a coroutine: right, one bar each."""
    _, kernel = common
    cell = kernel.run("""
import asyncio
ticks = 0
async def tick():
    global ticks
    while True:
        ticks += 1
        await asyncio.sleep(0.01)
ticking = asyncio.create_task(tick())
jobs = [nbshare.map_async(tasks.pause, [0.05] * 6, range(6), max_workers=2) for _ in range(2)]
found = await asyncio.gather(*jobs)
assert [x.tolist() for x in found] == [[0, 10, 20, 30, 40, 50]] * 2
assert ticks > 5, ticks
ticking.cancel()
in_threads = await asyncio.gather(*[
    asyncio.to_thread(parallel_map, functools.partial(tasks.pause, 0.1), range(n), max_workers=2)
    for n in (5, 6)
])
assert [len(x) for x in in_threads] == [5, 6]
async def within():
    return parallel_map(functools.partial(tasks.pause, 0.1), range(7), max_workers=2)
assert len(await within()) == 7
""")
    assert cell.status == "ok", cell.traceback
    rows = [row for row in cell.rows if "pause" in row]  # others are of cells before, drawn late
    assert sorted(row.split("/")[1].split()[0] for row in rows) == ["5", "6", "6", "6", "7"], rows
    assert all("✓" in row or "done" in row for row in rows), rows


@pytest.mark.parametrize("how", ["gather", "await"])
def test_p1_an_interrupt_of_an_awaiting_cell(lab, common, how):
    """■ ends a cell that awaits runs. All workers stop, and the next cell works."""
    lab, kernel = common
    for path in lab.folder.glob("busy-*"):
        path.unlink()
    awaited = "asyncio.gather(job, job2)" if how == "gather" else "job"
    request = kernel.start(f"""
import asyncio
task = functools.partial(tasks.hang, "sleep")
job = nbshare.map_async(task, range(4, 6), max_workers=2)
job2 = nbshare.map_async(tasks.double, range(4))
await {awaited}
""")
    lab.await_flag("busy-*", 2)
    at = time.monotonic()
    kernel.manager.interrupt_kernel()
    cell = kernel.finish(request)
    assert time.monotonic() - at < SOON_S
    assert cell.status == "error"
    cell = kernel.run("""
wait_until(job.done, SOON_S, "the map goes on")
tasks.check_double()
""")
    assert cell.status == "ok", cell.traceback
