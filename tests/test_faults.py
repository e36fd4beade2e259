"""The fault catalogue in scripts: what holds when items, workers and owners come to grief.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values. That nothing is left
in ``/dev/shm``, ``TMPDIR`` or among the processes is checked after every one (`Lab.close`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from faultlab import (
    SOON_S,
    STUMBLES,
    cpu_s,
    may_mount,
    memfd_bytes,
    parent_of,
    wait_until,
)
from faultlab_tasks import LITTER

from nbshare.engine.events import Events


def guarded(code):
    """Return a script that lets the processes of other people's pools import it."""
    head = "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing\n"
    head += "SPAWN = multiprocessing.get_context('spawn')\n"
    return head + 'if __name__ == "__main__":\n' + textwrap.indent(code, "    ")


# ------------------------------------------------------------ E, D: items that fail


@pytest.mark.parametrize("row", STUMBLES, ids=lambda row: row.id)
def test_a_failing_item(lab, row):
    """The failure is named with its item at once, what is done is kept, the next call works."""
    subject = lab.run(f"faultlab.provoke({row.way!r})")
    row.check(lab.facts)
    assert row.stderr in subject.stderr
    assert "Traceback" not in subject.stderr


@pytest.mark.parametrize("how", ["fails", "exits", "is no text", "is huge"])
def test_e4_an_item_that_cannot_be_shown(lab, how):
    """The failure is raised as itself with its index, whatever the repr of its item does."""
    lab.run(f"""
tasks.check_double()
before = faultlab.peak_bytes()
items = [tasks.Shy({how!r})]
try:
    quiet(tasks.refuse, items)
except ValueError as error:
    note = "\\n".join(error.__notes__)
    assert str(error) == "no way on" and "item 0 (" in note and len(note) < 2000, note
    assert ("no end " in note) == ({how!r} == "is huge"), note
assert faultlab.peak_bytes() - before < 20 << 20
assert faultlab.peak_bytes(Path("worker").read_text()) < 4 * tasks.HUGE
tasks.check_double()
""")


BROKEN_MODULES = [
    ("C3-syntax-error", "def broken(:\n", "SyntaxError", "broken_1.py"),
    ("C3-import-error", "import no_such_module_anywhere\n", "ModuleNotFoundError", "no_such_mod"),
    ("C3-name-gone", "other = 1\n", "AttributeError", "double"),
    ("C3-asks", "name = input('who? ')\n", "EOFError", "broken_1.py"),
    ("D3-module-exits", "import sys; sys.exit(5)\n", "TaskError", "SystemExit"),
    ("D3-module-ends-process", "import os; os._exit(6)\n", "WorkerDiedError", "import"),
    (
        "D3-module-is-killed",
        "import os, signal; os.kill(os.getpid(), signal.SIGKILL)\n",
        "WorkerDiedError",
        "import",
    ),
]


@pytest.mark.parametrize(
    ("text", "error", "says"),
    [row[1:] for row in BROKEN_MODULES],
    ids=[r[0] for r in BROKEN_MODULES],
)
def test_a_module_that_workers_cannot_import(lab, text, error, says):
    """A module that is broken by an edit is one clear error, and its repair is seen."""
    lab.run(f"""
good = "def double(x): return 2 * x\\n"
module = Path("broken_1.py")
module.write_text(good)
import broken_1
assert quiet(broken_1.double, range(4)).tolist() == [0, 2, 4, 6]
module.write_text({text!r})
start = time.monotonic()
try:
    quiet(broken_1.double, range(4))
except BaseException as caught:
    error = caught
failed_s = time.monotonic() - start
module.write_text(good)
assert quiet(broken_1.double, range(4)).tolist() == [0, 2, 4, 6]
tell(classes=[cls.__name__ for cls in type(error).__mro__], failed_s=failed_s,
     text="\\n".join([str(error), *getattr(error, "__notes__", ())]))
""")
    facts = lab.facts
    assert error in facts["classes"]
    assert says in facts["text"]
    assert facts["failed_s"] < 3


def test_d4_idle_workers_are_killed(lab):
    """Idle workers killed between calls, one or all, are replaced unnoticed."""
    subject = lab.run("""
tasks.check_double()
for n_killed in (1, 2, 1, 2, 1, 1, 2):
    _, workers = helpers()
    assert workers
    for pid in list(workers)[:n_killed]:
        os.kill(pid, signal.SIGKILL)
    start = time.monotonic()
    tasks.check_double()
    assert time.monotonic() - start < faultlab.SOON_S
    kill(helpers()[1])
    tasks.check_double()
""")
    assert subject.stderr == ""


def test_d4_a_worker_dies_before_its_first_item(lab):
    """A worker that dies before an item is replaced, so that the call has all that it asked for."""
    lab.run("""
Path("fragile.py").write_text('''
import os, time
try:
    os.close(os.open("once", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    os._exit(9)
def slow_worker(i):
    time.sleep(0.05)
    return os.getpid()
''')
Path("once").touch()
import fragile
Path("once").unlink()
assert len(set(pair(fragile.slow_worker, range(20)).tolist())) == 2
""")


def test_d4_the_number_of_a_dead_workers_descriptor_is_used_again():
    """An event of a closed descriptor is not taken for one of the next to have its number."""
    reused, mistaken, spare = [], [], []
    events = Events()
    (first, first_end), (second, second_end) = os.pipe(), os.pipe()
    for end in (first_end, second_end):
        os.write(end, b"!")  # both are ready in the same round

    def take_over(mine, other):
        os.read(mine, 1)
        events.unwatch(other)
        os.close(other)
        read_end, write_end = os.pipe()  # nothing to read there, ever
        spare.append(write_end)
        reused.append(read_end == other)
        events.watch(read_end, lambda: mistaken.append(read_end))

    events.watch(first, lambda: take_over(first, second))
    events.watch(second, lambda: take_over(second, first))
    events.wait(time.monotonic() + SOON_S, lambda: None)
    events.close()
    for fd in (first, first_end, second, second_end, *spare):
        os.close(fd)
    assert reused == [True], "the test tests nothing"
    assert not mistaken


def test_d4_all_workers_are_killed_at_once_during_a_call(lab):
    """When all workers die in their items, the call fails at once and names one."""
    lab.run("""
from nbshare.errors import WorkerDiedError
def killer():
    wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
    for pid in helpers()[1]:
        os.kill(pid, signal.SIGKILL)
    tell(at=time.monotonic())
threading.Thread(target=killer).start()
try:
    pair(functools.partial(tasks.hang, "sleep"), range(8))
except WorkerDiedError as error:
    assert "SIGKILL" in str(error)
    assert error.index in (4, 5)
else:
    raise AssertionError("no error")
back = time.monotonic()
assert last_job().present.tolist() == [True] * 4 + [False] * 4
tasks.check_double()
wait_until(Path("facts.json").exists)
import json
assert back - json.loads(Path("facts.json").read_text())["at"] < faultlab.SOON_S
""")


def test_d5_a_worker_is_killed_while_it_writes_its_result(lab):
    """A row that was half written is never seen, and its memory is given back."""
    lab.run("""
from nbshare.errors import WorkerDiedError
tasks.check_double()
before = faultlab.memfd_bytes(faultlab.tagged())
NBYTES = 100 << 20
try:
    quiet(functools.partial(tasks.large_row, nbytes=NBYTES), range(2), max_workers=1, chunksize=1)
except WorkerDiedError as error:
    assert error.index == 1 and "SIGBUS" in str(error), error
else:
    raise AssertionError("no error")
partial = last_job().partial()
assert last_job().present.tolist() == [True, False]
assert (partial[0] == 1.0).all() and partial[0].size == NBYTES // 8
assert partial.mask[1].all()
assert not partial.data[1].any()
del partial
tasks.check_double()
nbshare.shutdown()
def freed():
    return faultlab.memfd_bytes(faultlab.tagged()) <= before
wait_until(freed, faultlab.SOON_S, "memory is kept")
""")


@pytest.mark.parametrize(
    ("when", "how"),
    [
        ("idle", "SIGKILL"),
        ("idle", "SIGSTOP"),
        ("idle, workers killed", "SIGKILL"),
        ("idle, workers killed", "SIGSTOP"),
        ("in a call", "SIGKILL"),
        ("in a call", "SIGSTOP"),
        ("in a call, as is a worker", "SIGSTOP"),
    ],
)
def test_d7_the_server_of_workers_is_lost(lab, when, how):
    """Without the server a call still gives the right result, and so does the next one."""
    lab.run(f"""
tasks.check_double()
def strike():
    servers, workers = helpers()
    assert len(servers) == 1 and len(workers) == 2, (servers, workers)
    os.kill(servers.pop(), signal.{how})
    if {when!r} == "idle, workers killed":
        for pid in workers:
            os.kill(pid, signal.SIGKILL)
    if "as is a worker" in {when!r}:
        os.kill(workers.pop(), signal.SIGKILL)
thread = threading.Timer(0.1, strike)
if "in a call" in {when!r}:
    thread.start()
    start = time.monotonic()
    found = pair(functools.partial(tasks.pause, 0.1), range(8), retries=1)
    assert time.monotonic() - start < faultlab.SOON_S
    thread.join()
    assert found.tolist() == [10.0 * i for i in range(8)]
else:
    strike()
start = time.monotonic()
tasks.check_double()
seconds = time.monotonic() - start
assert seconds < faultlab.SOON_S, seconds
tasks.check_double()
""")


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


@pytest.mark.parametrize("how", ["sleep", "beat", "spin", "gil", "c", "program"])
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


def test_i2_an_interrupt_that_wakes_nobody(lab):
    """An interrupt that is noted just before the caller falls asleep ends the map all the same.

    Noted in another thread, as `interrupt_main` does, it leaves the main thread where it is, and
    so does one that comes between the main thread's last look and its sleep.
    """
    lab.run("""
import _thread
def press():
    wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
    time.sleep(0.1)  # asleep by now
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


def test_i2_no_interrupt_is_lost(lab):
    """An interrupt that falls between any two steps of a cold call ends it, at once."""
    lab.run("""
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


@pytest.mark.parametrize("later_s", [0.001, 0.005, 0.01, 0.02])
def test_i2_a_second_interrupt_during_the_clean_up(lab, later_s):
    """Whoever presses Ctrl-C twice gets the same interrupt, and a library that still works."""
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
            signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 0.1))
            pair(functools.partial(tasks.pause, 0.03), range(8))
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
        wait_until(lambda: len(helpers()[1]) == 2, 2, "not two workers")
        at_ten = census()
assert interrupted > 20, interrupted
gc.collect()
both_at_work("at-40")
wait_until(lambda: census() == at_ten, 2, f"{at_ten}, then {census()}")
nbshare.shutdown()
wait_until(lambda: not any(helpers()), 2, "helpers after shutdown")
wait_until(lambda: descriptors() <= at_start, 2, f"{at_start}, then {descriptors()}")
""",
        limit_s=40,
    )


# ------------------------------------------------------------ K: ends of the owner

LIVES = {
    "idle": "raise_flag('busy-')",
    "python": "pair(functools.partial(tasks.hang, 'spin'), range(4, 12))",
    "gil-held": "pair(functools.partial(tasks.hang, 'gil'), range(4, 12))",
    "c-code": "pair(functools.partial(tasks.hang, 'c'), range(4, 12))",
    "N2-programs": "pair(functools.partial(tasks.hang, 'program'), range(4, 12))",
    # On one processor, so that a worker may hear of the owner's end before the owner is gone.
    "N2-programs-of-idle-workers": """
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
nbshare.shutdown()
pair(tasks.start_program, range(2))
raise_flag("busy-")
""",
    "K3-first-thread-ended": """
workers = helpers()[1]
nbshare.shutdown()
thread = threading.Thread(target=tasks.check_double)
thread.start()
thread.join()
workers = helpers()[1]
time.sleep(0.1)
assert helpers()[1] == workers and len(workers) == 2
pids = set(pair(functools.partial(tasks.slow_worker_of, 0.05), range(8)).tolist())
assert pids <= workers, "workers did not survive the thread that started them"
pair(functools.partial(tasks.hang, 'gil'), range(4, 12))
""",
    "K3-forked-child": """
import ctypes
libc = ctypes.PyDLL(None)  # as a library in C forks: Python is not told
child = libc.fork()
if child == 0:
    while True:
        libc.pause()
Path("stranger").write_text(str(child))
pair(functools.partial(tasks.hang, 'spin'), range(4, 12))
""",
    "P2-forked-child-of-python": """
child = os.fork()
if child == 0:
    while True:
        signal.pause()
Path("stranger").write_text(str(child))
pair(functools.partial(tasks.hang, 'gil'), range(4, 12))
""",
}
KILLS = {"K1": False, "K2": True}  # of the owner alone, of its process group


@pytest.mark.parametrize("life", LIVES)
@pytest.mark.parametrize("kill", KILLS)
def test_nobody_outlives_a_killed_owner(lab, life, kill):
    """SIGKILL for the owner, or for its group, ends workers and all that they started."""
    subject = lab.start(f"""
tasks.check_double()
shared = nbshare.zeros(1 << 20)
{LIVES[life]}
time.sleep(40)
""")
    lab.await_flag("busy-*", 1 if "idle" in life else 2)
    if life == "N2-programs":
        wait_until(lambda: len(lab.processes()) >= 6, what="no programs")
    elif life == "N2-programs-of-idle-workers":
        assert len(lab.processes()) == 6
    else:
        assert len(lab.processes()) >= 4
    stranger = lab.folder / "stranger"
    if stranger.exists() and not KILLS[kill]:
        lab.strangers = {int(stranger.read_text())}
    subject.signal(signal.SIGKILL, group=KILLS[kill])
    assert lab.nobody_left()
    if lab.strangers:
        assert cpu_s(*lab.strangers) is not None


@pytest.mark.parametrize("kill", KILLS)
def test_nobody_outlives_an_owner_killed_while_workers_start(lab, kill):
    """SIGKILL at the moment at which server or workers start leaves none of them."""
    for delay_s in (0.0, 0.005, 0.05, 0.11, 0.13):
        subject = lab.start("pair(functools.partial(tasks.hang, 'spin'), range(4, 12))")
        wait_until(lambda: len(lab.processes()) > 1)
        time.sleep(delay_s)
        subject.signal(signal.SIGKILL, group=KILLS[kill])
        assert lab.nobody_left()
        subject.wait()


ENDINGS = {
    "normal end": ("", 0),
    "sys.exit": ("sys.exit(3)", 3),
    "uncaught exception": ("raise RuntimeError('the end')", 1),
    "os._exit": ("os._exit(4)", 4),
    "SIGTERM": ("signal.raise_signal(signal.SIGTERM)", -signal.SIGTERM),
}


@pytest.mark.parametrize("during", ["idle", "gil"])
@pytest.mark.parametrize("ending", ENDINGS)
def test_k4_the_owner_ends_by_itself(lab, ending, during):
    """However the owner ends, amid a map of another thread or not, it does so at once."""
    code, status = ENDINGS[ending]
    subject = lab.start(f"""
tasks.check_double()
kept = nbshare.zeros(1 << 20)
if {during!r} != "idle":
    task = functools.partial(tasks.hang, {during!r})
    threading.Thread(target=pair, args=(task, range(8)), daemon=True).start()
    wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
tell(at=time.monotonic())
{code}
""")
    lab.told()
    assert subject.wait() == status, subject.stderr
    assert "Warning" not in subject.stderr  # to print while streams are closed may abort
    assert time.monotonic() - lab.facts["at"] < SOON_S
    assert lab.nobody_left()
    assert "Fatal" not in subject.stderr
    if ending != "uncaught exception":
        assert "Traceback" not in subject.stderr


# --------------------------------------------------------------------- M: memory


@pytest.mark.skipif(not may_mount(), reason="no private /dev/shm of 64 MB: mounting is refused")
def test_m1_a_small_shm_does_not_matter(run):
    """Arrays of 200 MB go in and come out where /dev/shm has 64 MB, in at most twice the time."""
    run("""
import subprocess
large = np.zeros(200 << 20, np.uint8)
large[-1] = 7
def map_all(mebibytes):
    size = f"remount,size={mebibytes}m"
    subprocess.run(["mount", "-o", size, "/dev/shm"], check=True)
    status = os.statvfs("/dev/shm")
    assert status.f_blocks * status.f_frsize == mebibytes << 20
    nbshare.shutdown()  # gives warm memory back
    tasks.check_double()
    start = time.perf_counter()
    assert quiet(tasks.last_of, range(4), shared={"elevation": large}).tolist() == [7.0] * 4
    rows = quiet(tasks.zeros_but_last, range(4), shared={"nbytes": 50 << 20})
    seconds = time.perf_counter() - start
    assert rows.nbytes == 200 << 20
    assert rows[:, -1].tolist() == [0, 1, 2, 3]
    return seconds
pairs = []
while len(pairs) < 2 or small_s > 2 * large_s:  # some machines bring memory slowly now and then
    assert len(pairs) < 6, pairs
    pairs.append((map_all(1024), map_all(64)))
    large_s, small_s = map(min, zip(*pairs))
""")


CALLS = {
    "that succeeds": "result = quiet(tasks.zeros_but_last, range(5), shared=given)\ndel result",
    "that fails": """
try:
    pair(tasks.zeros_but_last, range(5), shared={**given, "fail_at": 4})
except ValueError as error:
    kept = error  # as a notebook keeps the last one
""",
    "whose input is interrupted": """
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.02)
try:
    pair(tasks.last_of, range(5), shared={"elevation": np.zeros(400 << 20, np.uint8)})
except KeyboardInterrupt as error:
    kept = error
""",
}


@pytest.mark.parametrize("call", CALLS)
def test_m4_memory_goes_back(lab, call):
    """After a call of any outcome its memory is free again, even if its exception is kept."""
    lab.run(f"""
given = {{"nbytes": 20 << 20}}
tasks.check_double()
nbshare.shutdown()  # workers that are still starting have not all their descriptors
before = len(os.listdir("/proc/self/fd"))
{CALLS[call]}
tasks.check_double()
nbshare.shutdown()
def mebibytes():
    return faultlab.memfd_bytes(faultlab.tagged()) >> 20
wait_until(lambda: mebibytes() == 0, faultlab.SOON_S, "memory is kept")
wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, 2, "descriptors are kept")
tasks.check_double()
""")


SHORTAGES = {
    "machine": """
from nbshare.memory import budget
budget._machine_room = lambda: 100 << 20
""",
    "cgroup v2": """
from nbshare.memory import budget
group, inner = Path("group"), Path("group/inner")
inner.mkdir(parents=True)
for folder, limit in ((group, str(1 << 30)), (inner, "max")):
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str((1 << 30) - (100 << 20)))
    (folder / "memory.stat").write_text("anon 5\\ninactive_file 0\\n")
budget.ancestors = lambda controller: [(2, inner), (2, group)]
""",
    "cgroup v1": """
from nbshare.memory import budget
group = Path("group")
group.mkdir()
(group / "memory.limit_in_bytes").write_text(str(1 << 30))
(group / "memory.usage_in_bytes").write_text(str((1 << 30) - (60 << 20)))
(group / "memory.stat").write_text("cache 5\\ntotal_inactive_file 41943040\\n")
budget.ancestors = lambda controller: [(1, group)]
""",
}
REQUESTS = [
    "nbshare.zeros(200 << 20, np.uint8)",
    "nbshare.share(np.zeros(200 << 20, np.uint8))",
    "quiet(tasks.last_of, range(4), shared={'elevation': np.zeros(200 << 20, np.uint8)})",
    "quiet(len, np.zeros((20, 10 << 20), np.uint8))",
    "quiet(tasks.echo, range(20), out=np.zeros((20, 10 << 20), np.uint8))",
    # The last, since it needs workers: they give the first row.
    "quiet(tasks.zeros_but_last, range(40), shared={'nbytes': 5 << 20})",
]


@pytest.mark.parametrize("shortage", SHORTAGES)
def test_m3_what_does_not_fit_is_refused(lab, shortage):
    """A request over the room that is left is a MemoryError with both figures, and costs none."""
    lab.run(f"""
{SHORTAGES[shortage]}
for request in {REQUESTS!r}:
    assert not helpers()[1], f"before {{request}} workers were started"
    try:
        eval(request)
    except MemoryError as error:
        assert "200 MiB" in str(error) and "100 MiB" in str(error), (request, error)
    else:
        raise AssertionError(request)
    assert faultlab.memfd_bytes(faultlab.tagged()) < 20 << 20, request
tasks.check_double()
""")


# ---------------------------------------------------- C, N, P: code and processes


def test_c4_a_script_without_a_main_guard(lab):
    """The body of a script runs once, whatever function it gives to the workers."""
    lab.run("""
with open("runs", "a") as file:
    file.write("run\\n")
def own(x):
    return x + OFFSET
OFFSET = 5
assert quiet(own, range(4)).tolist() == [5, 6, 7, 8]
assert quiet(lambda x: x * OFFSET, range(4)).tolist() == [0, 5, 10, 15]
tasks.check_double()
""")
    assert lab.folder.joinpath("runs").read_text() == "run\n"


@pytest.mark.parametrize("how", LITTER)
def test_c6_a_worker_that_litters(lab, how):
    """What an item changes in its process or prints is no burden for the next call."""
    subject = lab.start(
        f"""
tasks.check_double()
os.umask(0o027)
def clean():
    before = pair(tasks.surroundings, range(8))
    assert len(set(map(str, before))) == 1, before
    return before[0]
before = clean()
assert before[:2] == (os.getcwd(), (None, os.environ["TMPDIR"]))
assert pair(functools.partial(tasks.litter, {how!r}), range(2)).tolist() == [True, True]
after = clean()
assert after == before, after
tasks.check_double()
""",
        stdout=subprocess.PIPE,
    )
    printed, _ = subject.popen.communicate(timeout=20)
    assert subject.wait() == 0, subject.stderr
    assert printed.count(b"x" * 999) == (20_000 if "prints" in how else 0)
    assert subject.stderr == ""


def test_c6_an_alarm_that_an_item_has_set(lab):
    """It rings neither in an idle worker nor in the items of the next call."""
    lab.run("""
def set_alarm(i):
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.2, 0.01)
    time.sleep(0.01)
pair(set_alarm, range(8))
workers = helpers()[1]
time.sleep(0.3)
pair(functools.partial(tasks.pause, 0.2), range(4))
assert helpers()[1] == workers
""")


def test_c6_signals_that_an_item_has_blocked(lab):
    """They are delivered in the next call; what an initializer blocks stays blocked."""
    lab.run("""
def mask(i):
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, ())))
def block(i):
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    return mask(i)
def block_for_good():
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
mine = [[int(signal.SIGUSR1)]] * 4
assert pair(block, range(4), out="list") == mine
assert pair(mask, range(4), out="list") == [[]] * 4
pair(block, range(4), out="list", initializer=block_for_good)
pair(mask, range(4), out="list", initializer=block_for_good)
assert pair(mask, range(4), out="list", initializer=block_for_good) == [[int(signal.SIGUSR2)]] * 4
""")


def test_c6_a_crash_in_c_after_an_item_has_set_handlers(lab):
    """The stack is shown as it is without them."""
    subject = lab.run("""
from nbshare.errors import WorkerDiedError
pair(functools.partial(tasks.litter, "handles signals"), range(2))
try:
    pair(functools.partial(tasks.stumble, "segfaults"), [f"stone-{i}" for i in range(4)])
except WorkerDiedError as error:
    assert "SIGSEGV" in str(error)
""")
    assert "Fatal Python error: Segmentation fault" in subject.stderr


def test_p1_what_threads_open_at_once_is_closed(lab):
    """Of what several calls begin with, at the same time, nothing stays open."""
    lab.run("""
from nbshare.wire import context
def held():
    return sum(os.path.realpath(f"/proc/self/fd/{fd}").endswith("status")
               for fd in os.listdir("/proc/self/fd"))
def look():
    barrier.wait()
    context.current_context()
barrier = threading.Barrier(8)
for _ in range(60):
    threads = [threading.Thread(target=look) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    nbshare.shutdown()
assert held() == 0, held()
""")


def test_p1_two_threads_call_at_once(lab):
    """Calls from several threads at once each get their own results."""
    lab.run("""
found = {}
def call(name, offset):
    for _ in range(5):
        data = np.full(1000, float(offset))
        items = np.arange(60.0).reshape(30, 2) + offset
        found.setdefault(name, []).append(
            (pair(tasks.sum_and_last, items, shared={"elevation": data}), items)
        )
threads = [threading.Thread(target=call, args=(n, 1000 * n)) for n in range(1, 4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sorted(found) == [1, 2, 3]
for n, pairs in found.items():
    assert len(pairs) == 5
    for result, items in pairs:
        assert np.array_equal(result, items.sum(axis=1) + 1000 * n)
""")


# A forked child of a kernel cannot end as a script does: its main loop is the parent's.
LEAVE = """
def leave():
    os._exit(0) if "ipykernel" in sys.modules else sys.exit(0)
"""


@pytest.mark.parametrize("child_does", ["calls", "ends", "shuts down", "is killed in a call"])
def test_p2_the_owner_forks(run, child_does):
    """A forked child has workers of its own or none; the parent's workers are unaffected."""
    run(f"""{LEAVE}
tasks.check_double()
kept = quiet(tasks.double, range(1000))
# More than two, if the second map came before a worker had found out that the first was over.
workers = wait_until(lambda: len(helpers()[1]) >= 2 and helpers()[1])
child = os.fork()
if child == 0:
    status = 1
    try:
        if {child_does!r} == "ends":
            leave()
        if {child_does!r} == "shuts down":
            nbshare.shutdown()
        if {child_does!r} == "is killed in a call":
            def strike():
                wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
                os.kill(os.getpid(), signal.SIGKILL)
            threading.Thread(target=strike).start()
            pair(functools.partial(tasks.hang, "gil"), range(4, 12))
        assert kept[-1] == 1998.0
        for _ in range(3):
            tasks.check_double()
        status = 0
    except Exception as error:
        print(repr(error), file=sys.stderr, flush=True)
    finally:
        os._exit(status) if {child_does!r} != "ends" else None
end = time.monotonic() + 10
while True:
    tasks.check_double()
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        break
    time.sleep(0.005)  # a worker to which a hundred calls are sent meanwhile counts as stopped
    assert time.monotonic() < end, "the child hangs"
expected = -signal.SIGKILL if "killed" in {child_does!r} else 0
assert os.waitstatus_to_exitcode(status) == expected
assert helpers()[1] >= workers, "the parent's workers were replaced"
wait_until(lambda: faultlab.tagged() == {{os.getpid()}}.union(*helpers()), 2, "orphans")
tasks.check_double()
""")


# ------------------------------------------------------- W, R: writes and values


@pytest.mark.parametrize("kind", ["plain", "SharedArray"])
@pytest.mark.parametrize(
    ("how", "outcome"),
    [
        ("assign", "ValueError"),
        ("in-place", "ValueError"),
        ("flag", "ValueError"),
        ("flag-of-base", "ValueError"),
        ("mprotect", "PermissionError"),
        ("pwrite", "PermissionError"),
        ("mmap", "PermissionError"),
        ("truncate", "PermissionError"),
        ("poke", "dies"),
    ],
)
def test_w1_shared_inputs_cannot_be_written(run, kind, how, outcome):
    """Whatever a worker tries, the shared bytes stay as they are, and it is told."""
    if kind == "SharedArray" and how in ("pwrite", "mmap"):
        pytest.skip("a writable segment is open to its own user's descriptors")
    run(f"""
from nbshare.errors import WorkerDiedError
elevation = np.ones(1 << 18)
given = nbshare.share(elevation) if {kind!r} == "SharedArray" else elevation
attack = functools.partial(quiet, tasks.attack, shared={{"elevation": given}}, out="list")
try:
    outcome = attack([{how!r}])[0]
except WorkerDiedError as error:
    assert "SIGSEGV" in str(error)
    outcome = ("dies", True)
assert outcome == ({outcome!r}, True), outcome
assert (elevation == 1.0).all() and (given == 1.0).all()
assert given.flags.writeable
given[0] = 2.0
assert quiet(tasks.first_of, range(2), shared={{"elevation": given}}).tolist() == [2.0, 2.0]
""")


@pytest.mark.parametrize("who", ["owner", "worker", "stranger"])
def test_w1_nobody_can_write_to_what_was_shared_read_only(run, who):
    """Writing, the flag, mprotect and the descriptor: the kernel refuses all, to the owner too."""
    run(
        guarded(f"""
array = nbshare.share(np.ones(1 << 18), mode="r")
if {who!r} == "owner":
    outcomes = tasks.outcomes(array)
elif {who!r} == "worker":
    (outcomes,) = quiet(tasks.outcomes, [array], out="list")
else:
    with SPAWN.Pool(1) as pool:
        outcomes = pool.apply(tasks.outcomes, [array])
refusals = {{how: ("ValueError", True) for how in ("assign", "in-place", "flag", "flag-of-base")}}
refusals |= {{how: ("PermissionError", True) for how in ("mprotect", "pwrite", "mmap", "truncate")}}
assert outcomes == refusals, outcomes
assert (array == 1.0).all()
""")
    )


def test_w2_the_caller_changes_its_arrays_during_a_call(run):
    """Workers see the values of the call's start of plain arrays, and the present of shared."""
    run("""
rows, plain = np.ones((3, 5000)), np.ones(5000)
live = nbshare.share(np.ones(5000))
found = {}
def call(name, items, array):
    found[name] = pair(tasks.seen_later, items, shared={"elevation": array}, out="list")
for name, items, array in (("plain", rows, plain), ("shared", list(rows), live)):
    for flag in ("begun", "changed"):
        Path(flag).unlink(missing_ok=True)
    thread = threading.Thread(target=call, args=(name, items, array))
    thread.start()
    await_flag("begun")
    rows[:] = array[:] = 9.0
    raise_flag("changed")
    thread.join()
    rows[:] = 1.0
assert found["plain"] == [(1.0, 1.0)] * 3, found
assert found["shared"] == [(1.0, 9.0)] * 3, found
""")


@pytest.mark.parametrize("given", ["plain", "SharedArray", "result"])
def test_w4_a_worker_keeps_an_input(run, given):
    """Memory that a worker keeps a view of is not used again, whatever the calls after it do."""
    run(f"""
one = functools.partial(quiet, max_workers=1)
elevation = np.full(400_000, 3.0)
if {given!r} == "SharedArray":
    elevation = nbshare.share(elevation)
elif {given!r} == "result":
    elevation = one(tasks.echo, elevation)
(pid,) = one(tasks.keep, [0], shared={{"elevation": elevation}}, out="list")
del elevation
for i in range(20):
    other = np.full(400_000, float(10 + i))
    assert one(tasks.last_of, [0], shared={{"elevation": other}}).tolist() == [10.0 + i]
    result = one(tasks.zeros_but_last, [i], shared={{"nbytes": 3_200_000}})
    assert one(tasks.kept, [0], out="list") == [(pid, [3.0])], i
    del result
""")


def test_w4_a_stranger_keeps_a_result(run):
    """Memory that a process of another pool has a view of is not used again."""
    run(
        guarded("""
with SPAWN.Pool(1) as pool:
    result = quiet(tasks.zeros_but_last, [7], shared={"nbytes": 3_200_000})
    pool.apply(tasks.keep, [0, result[0]])
    (pid, before) = pool.apply(tasks.kept, [0])
    assert before == [0.0, 7.0]
    del result
    for i in range(20):
        result = quiet(tasks.zeros_but_last, [10 + i], shared={"nbytes": 3_200_000})
        result += 1
        assert pool.apply(tasks.kept, [0]) == (pid, before), i
        del result
""")
    )


WAYS_TO_SEND = {
    "pool argument": """
with SPAWN.Pool(1) as pool:
    reply = pool.apply_async(tasks.wait_and_sum, ["go", arrays])
    del arrays
    let_go()
    sums = reply.get(10)
""",
    "executor argument": """
with ProcessPoolExecutor(1, mp_context=SPAWN) as pool:
    pool.submit(await_flag, "go")
    reply = pool.submit(tasks.wait_and_sum, "go", arrays)
    del arrays
    let_go()
    sums = reply.result(10)
""",
    "pool result": """
del arrays
with SPAWN.Pool(1) as pool:
    found = pool.apply(tasks.make_ring, [1000])
    pool.apply(gc.collect)
    for _ in range(20):
        later = pool.apply(tasks.make_ring, [1000])
sums = [float(array.sum()) for array in found]
raise_flag("go")
""",
    "queue": """
source, target = SPAWN.Queue(), SPAWN.Queue()
source.put(arrays)
del arrays
let_go()
process = SPAWN.Process(target=tasks.pass_on, args=(source, target))
process.start()
sums = target.get(timeout=10)
process.join(10)
""",
    "process argument": """
target = SPAWN.Queue()
process = SPAWN.Process(target=tasks.put_sums, args=(target, arrays))
process.start()
del arrays
let_go()
sums = target.get(timeout=10)
process.join(10)
""",
}


@pytest.mark.parametrize("way", WAYS_TO_SEND)
def test_w5_an_array_arrives_after_its_senders_last_reference_died(run, way):
    """What is under way is held until it has arrived, and no longer."""
    run(
        guarded(f"""
nbshare.zeros(5)
before = faultlab.memfd_bytes([os.getpid()])
arrays = [nbshare.full(1000, float(i)) for i in range(3)]
def let_go():
    gc.collect()
    time.sleep(0.6)  # the sender has looked twice for receipts
    for i in range(100):
        nbshare.full(1000, 9.0)  # other arrays are made in the meantime
    raise_flag("go")
{WAYS_TO_SEND[way]}
assert sums == [0.0, 1000.0, 2000.0], sums
found = later = None
def held():
    gc.collect()
    return faultlab.memfd_bytes([os.getpid()])
wait_until(lambda: held() <= before + 4096, 2, lambda: f"{{held()}} bytes are kept")
""")
    )


def test_w6_garbage_is_collected_in_any_thread(run):
    """Arrays in cyclic garbage are freed by whatever thread collects, the dispatcher's too."""
    subject = run("""
nbshare.shutdown()
before = faultlab.memfd_bytes([os.getpid()])
seen = set()
def see(phase, info):
    seen.add(threading.get_native_id())
gc.callbacks.append(see)
tasks.check_double()
threads = set(map(int, os.listdir("/proc/self/task")))
gc.set_threshold(3, 2, 2)
ended = threading.Event()
def litter():
    while not ended.is_set():
        tasks.make_ring(1 << 17)
        time.sleep(0.001)
thread = threading.Thread(target=litter)
thread.start()
for i in range(60):
    elevation = np.full(200_000, float(i))
    assert pair(tasks.last_of, range(4), shared={"elevation": elevation}).tolist() == [i] * 4
    result = pair(tasks.zeros_but_last, range(2), shared={"nbytes": 1 << 20})
    tasks.make_cycle(result)
assert pair(tasks.make_cycles, range(50)).tolist() == list(range(50))
ended.set()
thread.join()
assert seen & (threads - {os.getpid()}), "the dispatcher never collected: nothing is tested"
gc.set_threshold(700, 10, 10)
gc.callbacks.remove(see)
del result
gc.collect()
nbshare.shutdown()
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= before + 4096, 2, "memory is kept")
""")
    assert subject.stderr == ""


@pytest.mark.parametrize("does", ["maps", "waits", "iterates", "shuts down"])
def test_w6_finalizers_that_use_nbshare(lab, does):
    """Whichever thread collects: where it would wait for itself it is refused, others are right."""
    lab.run(f"""
does, n, seen = {does!r}, 30 if {does!r} == "shuts down" else 150, []
class Session:
    def __init__(self):
        self.job = nbshare.map_async(abs, range(3), max_workers=1)
        self.itself = self
    def __del__(self):
        try:
            if does == "maps":
                quiet(abs, range(3))
            elif does == "waits":
                self.job.result()
            elif does == "iterates":
                list(self.job)
            elif threading.current_thread() is not threading.main_thread():
                nbshare.shutdown()
        finally:
            seen.append(threading.get_native_id())
sys.unraisablehook = lambda raised: told.append(raised.exc_value)
told = []
gc.set_threshold(60)
for _ in range(n):
    Session()
    result = quiet(lambda i: i, iter(range(50)), max_workers=2)
    assert does == "shuts down" or result.tolist() == list(range(50))
gc.set_threshold(700)
assert set(seen) - {{os.getpid()}}, "only the main thread has collected: nothing is tested"
wait_until(lambda: gc.collect() >= 0 and len(seen) == n, what="sessions are kept")
for error in told:
    assert isinstance(error, RuntimeError) and "__del__" in str(error), error
assert told or does == "shuts down"
nbshare.shutdown()  # the end that a session may have begun
tasks.check_double()
""")


@pytest.mark.parametrize("ending", ["normal end", "sys.exit", "uncaught exception"])
def test_w6_garbage_is_left_at_exit(lab, ending):
    """An interpreter that ends with arrays in cycles, results and calls ends well."""
    code, status = ENDINGS[ending]
    subject = lab.start(f"""
class Holder:
    def __init__(self):
        self.arrays, self.own = tasks.make_ring(1000), self
        self.result = pair(tasks.zeros_but_last, range(2), shared={{"nbytes": 1 << 20}})
    def __del__(self):
        self.result[0] = self.arrays[1][0]
kept, lost = Holder(), Holder()
del lost
{code}
""")
    assert subject.wait() == status, subject.stderr
    assert "Fatal" not in subject.stderr
    assert "Exception ignored" not in subject.stderr


def test_w6_garbage_is_collected_in_a_forked_child(run):
    """A forked child that collects its parent's garbage takes nothing from the parent."""
    subject = run(
        LEAVE
        + """
import warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
gc.disable()
kept = nbshare.full(1000, 4.0)
view = pair(tasks.zeros_but_last, range(2), shared={"nbytes": 1 << 20})
for _ in range(20):
    tasks.make_ring(1000)
    tasks.make_cycle(pair(tasks.zeros_but_last, range(2), shared={"nbytes": 1 << 20}))
children = []
for how in (lambda: None, tasks.check_double, lambda: tasks.make_ring(9), nbshare.shutdown):
    children.append(os.fork())
    if children[-1] == 0:
        gc.collect()
        how()
        assert kept[0] == 4.0 and view[1, -1] == 1.0
        leave()
for child in children:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
gc.enable()
gc.collect()
tasks.check_double()
assert (kept == 4.0).all() and view[1, -1] == 1.0
"""
    )
    assert subject.stderr == ""


def test_w3_a_result_outlives_its_workers(run):
    """Results, partial results and their views stay readable and writable after everything."""
    run("""
rows = quiet(tasks.row_of, range(200))
column, plain = rows[::2, 3], np.asarray(rows)[5:]
try:
    pair(functools.partial(tasks.row_of, fail_at=50), range(60))
except ValueError:
    partial = last_job().partial()
kill(helpers()[1])
nbshare.shutdown()
tasks.check_double()
nbshare.shutdown()
del rows
gc.collect()
for _ in range(3):
    fresh = quiet(tasks.row_of, range(200)) + 1  # uses memory anew
assert column.tolist() == [3.0 + i for i in range(0, 200, 2)]
assert plain[0].tolist() == [5.0 + i for i in range(1000)]
assert partial[3].tolist() == [3.0 + i for i in range(1000)]
column[:] = 7.0
plain[:] = 8.0
partial.data[3] = 9.0
assert (plain == 8.0).all() and (column[3:] == 8.0).all() and (partial[3] == 9.0).all()
""")


def test_w3_partial_results_can_be_changed(run):
    """Partial results are the caller's: rows can be assigned, done ones and missing ones."""
    run("""
try:
    pair(functools.partial(tasks.row_of, fail_at=5), range(8))
except ValueError:
    partial = last_job().partial()
partial[1] = 9.0
partial[5] = 4.0
assert (partial[1] == 9.0).all() and (partial[5] == 4.0).all()
assert not np.ma.getmaskarray(partial)[[1, 5]].any()
""")


VALUES = {
    "no items": "quiet(tasks.double, []), np.empty(0)",
    "no items, list": "quiet(tasks.double, [], out='list'), []",
    "no rows": "quiet(tasks.double, np.empty((0, 3))), np.empty(0)",
    "one item": "quiet(tasks.double, [4]), np.array([8.0])",
    "one row": "quiet(tasks.echo, np.arange(3.0)[None]), np.arange(3.0)[None]",
    "rows of 0 bytes": "quiet(tasks.echo, np.empty((4, 0))), np.empty((4, 0))",
    "0 bytes": "quiet(tasks.echo, [np.empty((2, 0), 'i2')] * 3), np.empty((3, 2, 0), 'i2')",
    "0-d items": "quiet(tasks.echo, [np.array(1.5), np.array(2.5)]), np.array([1.5, 2.5])",
    "strided": "quiet(tasks.echo, GRID[::2, ::-3]), GRID[::2, ::-3]",
    "negative": "quiet(tasks.echo, GRID[::-1]), GRID[::-1]",
    "Fortran": "quiet(tasks.echo, FORTRAN), GRID",
    "broadcast": "quiet(tasks.echo, np.broadcast_to(GRID[0], (5, 40))), GRID[:1].repeat(5, 0)",
    "structured": "quiet(tasks.echo, [RECORDS] * 2), np.stack([RECORDS] * 2)",
    "big-endian": "quiet(tasks.echo, GRID.astype('>f4')), np.stack([*GRID.astype('>f4')])",
    "datetime": "quiet(tasks.echo, DAYS.reshape(4, 3)), DAYS.reshape(4, 3)",
    "float16": "quiet(tasks.echo, GRID.astype('f2')), GRID.astype('f2')",
    "complex256": "quiet(tasks.echo, GRID.astype('G')), GRID.astype('G')",
    "strings": "quiet(tasks.echo, [np.array(['a', 'bcd'])] * 2), np.array([['a', 'bcd']] * 2)",
    "read-only source": "quiet(tasks.echo, READ_ONLY), GRID",
    "shared Fortran": "quiet(tasks.row_in, range(3), shared={'a': FORTRAN}), GRID[:3]",
    "shared strided": "quiet(tasks.row_in, range(3), shared={'a': GRID[:, ::-2]}), GRID[:3, ::-2]",
    "shared 0-d": "quiet(tasks.plus, range(3), shared={'a': np.array(2.5)}), np.arange(3) + 2.5",
    "shared records": "quiet(tasks.row_in, [1], shared={'a': RECORDS}, out='list'), [RECORDS[1]]",
}


def test_r3_values_are_exact(lab):
    """Awkward arrays go in and come out with their values, dtype and shape, and are writable."""
    rows = "\n".join(f"    {name!r}: lambda: ({code})," for name, code in VALUES.items())
    lab.run(
        f"""
GRID = np.arange(400.0).reshape(10, 40)
FORTRAN = np.asfortranarray(GRID)
READ_ONLY = GRID.copy()
READ_ONLY.flags.writeable = False
RECORDS = np.array([(1, 2.5, b"ab"), (3, 4.5, b"c")], [("n", "i2"), ("x", ">f8"), ("s", "S3")])
DAYS = np.arange("2026-01-01", "2026-01-13", dtype="M8[D]")
CASES = {{
{rows}
}}
wrong = []
for name, case in CASES.items():
    found, expected = case()
    same = type(found) in (nbshare.SharedArray, np.ndarray) if name[:2] != "no" else True
    if isinstance(expected, list):
        same = found == expected and list(map(type, found)) == list(map(type, expected))
    else:
        same = same and found.dtype == expected.dtype and found.shape == expected.shape
        same = same and np.array_equal(found, expected) and found.flags.writeable
    if not same:
        wrong.append((name, repr(found)[:200], repr(expected)[:200]))
assert not wrong, wrong
"""
    )


def test_r3_an_array_beyond_2_gib(lab):
    """Offsets beyond 2 GiB are right: a sparse array, of which one page is touched."""
    meminfo = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    available = int(meminfo["MemAvailable"].split()[0]) << 10
    if available < 3 << 30:
        pytest.skip(f"{available >> 20} MiB are available; room for 3 GiB is asked for")
    lab.run("""
sparse = nbshare.zeros((1 << 31) + 4096, np.uint8)
sparse[-1] = 7
assert quiet(tasks.last_of, range(2), shared={"elevation": sparse}).tolist() == [7.0, 7.0]
assert faultlab.memfd_bytes([os.getpid()]) < 10 << 20
""")


def test_r1_few_descriptors(lab):
    """With 64 descriptors, a thousand arrays go in and out, or one error names the limit."""
    lab.run("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
rows = [np.full(1000 + i % 7, float(i)) for i in range(1000)]
def same(found):
    return len(found) == 1000 and all(map(np.array_equal, found, rows))
assert same(quiet(tasks.echo, rows, out="list"))
stacked = np.array([row[:1000] for row in rows])
assert np.array_equal(quiet(tasks.echo, stacked), stacked)
table = nbshare.share(stacked)
assert np.array_equal(quiet(tasks.echo, list(table)), stacked)
n_before = len(os.listdir("/proc/self/fd"))
try:
    shared = [nbshare.share(row) for row in rows]
    assert same(quiet(tasks.echo, shared, out="list"))
except OSError as error:
    shared = None
    text = " ".join([str(error), *getattr(error, "__notes__", ())])
    assert "open files" in text or "descriptors" in text, text
shared = None
gc.collect()
assert len(os.listdir("/proc/self/fd")) <= n_before
tasks.check_double()
""")


# ------------------------------------------------------------- H: handles of others


LETS_GO = """
import os, pickle, sys
import faultlab_tasks as tasks, nbshare
from nbshare.memory import handle_of, segment_of
arrays = [nbshare.full(10_000, 1.0) for _ in tasks.STALE]  # small ones share a segment
sent = [tasks.reference_to(array) for array in arrays]
for how, array in zip(tasks.STALE, arrays):
    tasks.recycle(how, handle_of(segment_of(array)[0]))
sys.stdout.buffer.write(pickle.dumps(sent))
sys.stdout.flush()
sys.stdin.read()
os._exit(0)
"""


def test_h1_a_stale_handle_is_an_error_at_once(run):
    """Whatever the descriptor's number means by now, it is refused, and nothing blocks."""
    run(f"""
import pickle, subprocess
owner = subprocess.Popen([sys.executable, "-c", {LETS_GO!r}], stdin=-1, stdout=-1)
sent = pickle.load(owner.stdout)
for how, reference in zip(tasks.STALE, sent, strict=True):
    text = tasks.refusal(reference)
    assert "let go" in text and "numpy.array" in text, (how, text)
owner.communicate(timeout=10)
for reference in sent:
    assert "has ended" in tasks.refusal(reference)
tasks.check_double()
""")


@pytest.mark.parametrize("word", ["pid", "started", "device", "inode", "nbytes", "name"])
def test_h1_a_forged_handle_is_an_error_at_once(run, word):
    """A handle that is wrong in one word is refused; so is that of a recycled process number."""
    run(
        guarded(f"""
from nbshare.errors import StaleReferenceError
from nbshare.memory import handle_of, segment_of
array = nbshare.full(1000, 1.0)
handle = handle_of(segment_of(array)[0])
wrong = {{"pid": os.getppid(), "name": "nbshare-" + "0" * 16}}
forged = handle._replace({word}=wrong.get({word!r}) or handle.{word} + 1)
with SPAWN.Pool(1) as pool:
    try:
        found = pool.apply(tasks.open_and_read, [forged])
    except StaleReferenceError:
        pass
    else:
        raise AssertionError(f"taken for {{found}}")
    assert (pool.apply(tasks.open_and_read, [handle]) == 1.0).all()
""")
    )


@dataclass(frozen=True)
class Elsewhere:
    """Where a receiver may be that cannot have the memory."""

    wrapper: str  # of its command
    enter: str  # what it does when it has read the reference
    reason: str  # that it must be given

    def visit(self, run: Callable[[str], Any], code: str) -> None:
        """Run code there; a reference to an array of ours is in a file."""
        command = [*self.wrapper.split(), "true"]
        if os.getuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("to get there takes privileges that this process lacks")
        there = f"""
import ctypes, os, subprocess, sys
from pathlib import Path
import numpy as np
import faultlab_tasks as tasks, nbshare
def be_dumpable():  # as processes are that such a user has started
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
reference = Path("reference").read_bytes()
{self.enter}
{code}
"""
        run(f"""
import pickle, subprocess
os.chmod(".", 0o777)
array = nbshare.full(1000, 3.0)
Path("reference").write_bytes(tasks.reference_to(array))
command = [*{self.wrapper.split()!r}, sys.executable, "-c", {there!r}]
subprocess.run(command, check=True, timeout=15)
assert (array == 3.0).all()
Path("reference").write_bytes(tasks.reference_to(array))
assert pickle.loads(Path("reference").read_bytes())[0] == 3.0
tasks.check_double()
""")


ELSEWHERE = {
    "other user": Elsewhere(
        "", "os.setgid(65534); os.setuid(65534); be_dumpable()", "another user"
    ),
    "other namespace": Elsewhere("unshare -p --fork --mount-proc", "", "container"),
    "other namespace, outer /proc": Elsewhere("unshare -p --fork", "", "container"),
    "no /proc": Elsewhere("unshare -m", "mount('-t', 'tmpfs', 'tmpfs', '/proc')", "/proc"),
}


@pytest.mark.parametrize("where", ELSEWHERE)
def test_h2_a_receiver_out_of_reach(run, where):
    """Who cannot have the memory is told why and what to do, at once; the owner is unaffected."""
    place = ELSEWHERE[where]
    place.visit(
        run,
        f"""
text = tasks.refusal(reference)
assert {place.reason!r} in text and "numpy.array" in text, text
""",
    )


@pytest.mark.parametrize("where", ELSEWHERE)
def test_h2_own_workers_are_unaffected(run, where):
    """A process that cannot have another's memory has its own arrays and workers all the same."""
    ELSEWHERE[where].visit(
        run,
        """
if os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK):
    tasks.check_double()
    own = nbshare.full(1000, 2.0)
    assert nbshare.parallel_map(tasks.echo, [own, own], progress=False).sum() == 4000.0
    nbshare.shutdown()
""",
    )
