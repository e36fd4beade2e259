"""The fault catalogue: items that fail, deaths of workers, ends of the owner.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time

import pytest

from nbshare._core.engine.events import Events
from nbshare._core.system import SYSTEM
from tests.support.catalogue import ENDINGS
from tests.support.faultlab import N_SERVERS, NO_SERVER, SIGKILL, SOON_S, cpu_s, wait_until
from tests.support.grids import combined

# ------------------------------------------------------------ E, D: items that fail


def test_e4_an_item_that_cannot_be_shown(lab):
    """The failure is raised as itself with its index, whatever the repr of its item does."""
    lab.run("""
tasks.check_double()
before = faultlab.peak_bytes()
for how in ("fails", "exits", "is no text", "is huge"):
    try:
        quiet(tasks.refuse, [tasks.Shy(how)])
    except ValueError as error:
        note = "\\n".join(error.__notes__)
        assert str(error) == "no way on" and "item 0 (" in note and len(note) < 2000, (how, note)
        assert ("no end " in note) == (how == "is huge"), (how, note)
    else:
        raise AssertionError(how)
    assert faultlab.peak_bytes() - before < 20 << 20, how
    assert faultlab.peak_bytes(Path("worker").read_text()) < 4 * tasks.HUGE, how
    tasks.check_double()
""")


@pytest.mark.skipif(sys.platform != "win32", reason="exit codes of Windows")
def test_d1_a_crash_on_windows_is_named(run_script):
    """By its exit code, and in words."""
    ran = run_script("""
import faulthandler
try:
    quiet(faulthandler._sigsegv, [0])
except nbshare.errors.WorkerDiedError as error:
    tell(text=str(error))
""")
    assert "crashed with 0xC0000005 (access violation) while it worked on" in ran.facts["text"]


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
def test_a_module_that_workers_cannot_import(run_script, text, error, says):
    """A module that is broken by an edit is one clear error, and its repair is seen."""
    ran = run_script(f"""
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
    facts = ran.facts
    assert error in facts["classes"]
    assert says in facts["text"]
    assert facts["failed_s"] < SOON_S


def test_d4_idle_workers_are_killed(run_script):
    """Idle workers killed between calls, one or all, are replaced unnoticed."""
    subject = run_script("""
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


def test_d4_a_worker_dies_before_its_first_item(run_script):
    """A worker that dies before an item is replaced, so that the call has all that it asked for."""
    run_script("""
Path("fragile.py").write_text('''
import os
from tests.support import faultlab
from pathlib import Path
try:
    os.close(os.open("once", os.O_CREAT | os.O_EXCL))
except FileExistsError:
    pass
else:
    os._exit(9)
def worker(i):
    faultlab.raise_flag(f"worker-{os.getpid()}")
    faultlab.wait_until(lambda: len(list(Path().glob("worker-*"))) == 2)
    return os.getpid()
''')
Path("once").touch()
import fragile
Path("once").unlink()
assert len(set(pair(fragile.worker, range(20)).tolist())) == 2
""")


def test_d4_the_number_of_a_dead_workers_descriptor_is_used_again():
    """An event of a closed descriptor is not taken for one of the next to have its number."""
    events, old, new = Events(), object(), object()
    read_end, write_end = os.pipe()
    os.write(write_end, b"!")
    events.watch(read_end, old)
    ready = events.wait(time.monotonic() + SOON_S)
    events.unwatch(read_end)
    os.close(read_end)
    reused, other_end = os.pipe()  # nothing to read there, ever
    assert reused == read_end, "the test tests nothing"
    events.watch(reused, new)
    assert ready == [old]
    assert events.wait(time.monotonic()) == []
    events.close()
    for fd in (write_end, reused, other_end):
        os.close(fd)


def test_d4_all_workers_are_killed_at_once_during_a_call(run_script):
    """When all workers die in their items, the call fails at once and names one."""
    run_script("""
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


@pytest.mark.skipif(not N_SERVERS, reason="the end of its channel tells of a death here")
def test_d4_a_killed_worker_is_missed_though_its_child_holds_its_channel(run_script):
    """A library may fork without exec in C, where no hook of Python closes the channel."""
    run_script("""
def leaves_a_child(i):
    import ctypes, os, signal
    libc = ctypes.CDLL(None)
    if i == 2:
        if libc.fork() == 0:
            libc.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    return i
try:
    quiet(leaves_a_child, range(6), max_workers=2)
except nbshare.errors.WorkerDiedError as error:
    assert error.index == 2 and "SIGKILL" in str(error), error
else:
    raise AssertionError("no error")
nbshare.shutdown()
wait_until(lambda: faultlab.tagged() == {os.getpid()}, faultlab.SOON_S, "the child lives")
""")


@pytest.mark.first
@pytest.mark.skipif(not N_SERVERS, reason="a Mac's shared memory is not in a small /dev/shm")
def test_d5_a_worker_is_killed_while_it_writes_its_result(run_script):
    """A row that was half written is never seen, and its memory is given back."""
    run_script("""
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


@pytest.mark.skipif(not N_SERVERS, reason=NO_SERVER)
@pytest.mark.parametrize(
    "when", ["idle", "idle, workers killed", "in a call", "in a call, as is a worker"]
)
def test_d7_the_server_of_workers_is_lost(run_script, when):
    """Without the server a call still gives the right result, and so does the next one."""
    run_script(f"""
tasks.check_double()
def strike():
    servers, workers = helpers()
    assert len(servers) == 1 and len(workers) == 2, (servers, workers)
    os.kill(servers.pop(), signal.SIGKILL)
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
wait_until(lambda: not Path(f"/proc/self/task/{thread.native_id}").exists())
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


@pytest.mark.parametrize(("kill", "life"), combined(KILLS, LIVES, soak=True))
def test_nobody_outlives_a_killed_owner(lab, life, kill):
    """SIGKILL for the owner, or for its group, ends workers and all that they started."""
    if "idle-workers" in life and not N_SERVERS:
        pytest.skip("no process can be bound to a CPU on this system")
    if life == "K3-forked-child" and SYSTEM == "macos" and not KILLS[kill]:
        pytest.skip("the child keeps the pipe open whose end tells macOS that the owner is gone")
    subject = lab.start(f"""
tasks.check_double()
shared = nbshare.zeros(1 << 20)
{LIVES[life]}
time.sleep(100)
""")
    lab.await_flag("busy-*", 1 if "idle" in life else 2)
    if life == "N2-programs":
        wait_until(lambda: len(lab.processes()) >= 5 + N_SERVERS, what="no programs")
    elif life == "N2-programs-of-idle-workers":
        assert len(lab.processes()) == 5 + N_SERVERS
    else:
        assert len(lab.processes()) >= 3 + N_SERVERS
    stranger = lab.folder / "stranger"
    if stranger.exists() and not KILLS[kill]:
        lab.strangers = {int(stranger.read_text())}
    subject.signal(signal.SIGKILL, group=KILLS[kill])
    assert lab.nobody_left()
    if lab.strangers:
        assert cpu_s(*lab.strangers) is not None


@pytest.mark.parametrize("kill", ["K1", "K2"])
def test_nobody_outlives_an_owner_killed_while_workers_start(lab, kill):
    """SIGKILL at the moment at which server or workers start leaves none of them."""
    for delay_s in (0.0, 0.005, 0.05, 0.11, 0.13):
        subject = lab.start("pair(functools.partial(tasks.hang, 'spin'), range(4, 12))")
        wait_until(lambda: len(lab.processes()) > 1)
        time.sleep(delay_s)
        subject.signal(signal.SIGKILL, group=KILLS[kill])
        assert lab.nobody_left()
        subject.wait()


@pytest.mark.parametrize("n", [2, 10])
def test_nobody_outlives_an_owner_killed_at_any_moment(lab, n):
    """From the start of its interpreter until its workers have been at work for a while."""
    dice, start = random.Random(n), time.monotonic()
    code = "pair(functools.partial(tasks.hang, 'sleep'), range(4, 12))"
    subject = lab.start(code)
    lab.await_flag("busy-*", 2)
    until_busy_s = time.monotonic() - start
    for _ in range(n):
        subject.signal(SIGKILL)
        subject.wait()
        assert lab.nobody_left()
        subject = lab.start(code)
        time.sleep(dice.uniform(0, 1.3 * until_busy_s))


@pytest.mark.parametrize(("ending", "during"), combined(ENDINGS, ["idle", "gil"]))
def test_k4_the_owner_ends_by_itself(lab, ending, during):
    """However the owner ends, during a run of another thread or not, it does so immediately."""
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
