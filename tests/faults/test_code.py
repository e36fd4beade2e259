"""The fault catalogue: processes and deeds of items, and runs at once.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import termios

import pytest

from tests.support.faultlab import SOON_S, wait_until
from tests.support.grids import combined

# ------------------------------------------------------- N2: what items start themselves


STARTS = {
    "threads": """
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
""",
    "subprocesses": """
    subprocess.Popen(["sh", "-c", "sleep 100 & sleep 100"])
""",
    "Pool, fork": """
    pool = multiprocessing.get_context("fork").Pool(2)
    assert pool.map(abs, [-1, 2]) == [1, 2]
    pool.map_async(time.sleep, [100, 100])
    KEPT.append(pool)
""",
    "Executor, fork": """
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    assert list(pool.map(abs, [-1, 2])) == [1, 2]
    KEPT.append([pool, pool.submit(time.sleep, 100)])
""",
    "os.fork": """
    if os.fork() == 0:
        while True:
            signal.pause()
""",
}


def starter(how):
    """Return a module whose items start something, work out a result, and hang."""
    return f"""
import multiprocessing, os, signal, subprocess, threading, time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
KEPT = []
def starts(i):
    {STARTS[how].strip()}
    Path(f"started-{{i}}").touch()
    return i
def hangs(i):
    starts(i)
    Path(f"hangs-{{i}}").touch()
    time.sleep(100)
"""


ENDS = ["of the call", "of the owner", "of its group"]


@pytest.mark.parametrize(("how", "end"), combined(STARTS, ENDS, soak=True))
def test_n2_what_an_item_starts(lab, how, end):
    """Threads, programs and pools of an item work. They go with an interrupt, and the owner."""
    lab.folder.joinpath("starter.py").write_text(starter(how))
    subject = lab.start("""
import starter
assert pair(starter.starts, range(2)).tolist() == [0, 1]
tasks.check_double()
try:
    pair(starter.hangs, range(2))
except MapInterrupted:
    own = {os.getpid()}.union(*helpers())
    wait_until(lambda: faultlab.tagged() <= own.union(*helpers()), SOON_S, faultlab.tagged)
    tasks.check_double()
    raise_flag("right")
    sys.exit(0)
""")
    lab.await_flag("hangs-*", 2)
    if end == "of the call":
        subject.interrupt()
        assert subject.wait() == 0, subject.stderr
        assert lab.folder.joinpath("right").exists()
    else:
        subject.signal(signal.SIGKILL, group="group" in end)
    assert lab.nobody_left()


FORKS = {
    "an item": "[i for i in range(8)], lambda i: (i == 3 and os.fork(), i)[1]",
    "a tiny item": "range(50_000), lambda i: (i == 40_003 and os.fork(), i)[1]",
    "an initializer": "range(8), abs, initializer=os.fork",
    "an item's loading": "[tasks.Forks(i) for i in range(8)], lambda item: item.i",
    "a module": "range(8), forking.same",
}


@pytest.mark.parametrize("what", FORKS)
def test_x2_a_child_comes_back(run_script, tmp_path, what):
    """A process that a function forks is not a second worker. It ends. Later calls work."""
    tmp_path.joinpath("forking.py").write_text("""
import os
if "IS_OWNER" not in os.environ:
    os.fork()
def same(i):
    return i
""")
    run_script(f"""
nbshare.shutdown()
os.environ["IS_OWNER"] = ""
import forking
del os.environ["IS_OWNER"]
def run(items, func, **options):
    found = nbshare.parallel_map(func, items, max_workers=2, progress=False, **options)
    assert found.tolist() == list(range(len(items))), found
for _ in range(2):
    run({FORKS[what]})
    for _ in range(3):
        tasks.check_double()
    wait_until(lambda: len(faultlab.tagged()) <= 4, what="children that came back")
""")


@pytest.mark.parametrize("backend", ["serial", "threads"])
def test_x2_a_copy_of_the_program_comes_back(lab, backend):
    """If items run in the program itself, its copy says why it ends, and takes no results."""
    subject = lab.run(f"""
def fork(i):
    if i == 3:
        os.fork()
    time.sleep(0.02)
    return i
found = nbshare.parallel_map(fork, range(8), backend={backend!r}, progress=False)
assert found.tolist() == list(range(8)), found
assert os.wait()[1], "the copy ends with success"
raise_flag("over")
""")
    lab.await_flag("over")
    assert subject.stderr.count("the function called os.fork") == 1


# ------------------------------------------------------------------- C: code that works


PRINTER = """
def prints(i):
    line = "x" * 999 + "\\n"
    for _ in range(50_000):
        sys.stdout.write(line)
    return i
"""


def test_c6_a_worker_prints_100_mb(lab):
    """All of 100 MB arrives, however late it is read, and the next call is right."""
    subject = lab.start(
        PRINTER + "assert pair(prints, range(2)).tolist() == [0, 1]\ntasks.check_double()",
        stdout=subprocess.PIPE,
    )
    n_read = 0
    while data := os.read(subject.popen.stdout.fileno(), 1 << 20):
        n_read += len(data)
    subject.popen.stdout.close()
    assert subject.wait() == 0, subject.stderr
    assert n_read == 100_000_000


def test_c6_an_interrupt_while_nobody_reads_what_workers_print(lab):
    """Workers that wait for a reader of their prints do not hold up an interrupt, nor later calls.

    As in a terminal that was stopped with Ctrl-S.
    """
    subject = lab.start(
        PRINTER
        + """
raise_flag("ready")
try:
    pair(prints, range(2))
except MapInterrupted:
    back = time.monotonic()
    tasks.check_double()
    tell(back=back, next_s=time.monotonic() - back)
""",
        stdout=subprocess.PIPE,
    )
    lab.await_flag("ready")

    def is_full():
        n_unread = fcntl.ioctl(subject.popen.stdout, termios.FIONREAD, bytes(4))
        return int.from_bytes(n_unread, sys.byteorder) > 32 << 10

    wait_until(is_full, what="nothing is printed")
    at = subject.interrupt()
    facts = lab.told()
    assert subject.wait() == 0, subject.stderr
    subject.popen.stdout.close()
    assert facts["back"] - at < SOON_S
    assert facts["next_s"] < SOON_S


def test_c6_a_program_that_closes_what_it_does_not_know(lab):
    """Though the end of the workers fails then. Waiting threads are told, no process is left."""
    lab.run("""
from contextlib import suppress
job = nbshare.map_async(functools.partial(tasks.pause, 0.1), range(1000), max_workers=2)
def pidfds():
    found = []
    for fd in range(64):
        with suppress(FileNotFoundError):
            if os.readlink(f"/proc/self/fd/{fd}").endswith("[pidfd]"):
                found.append(fd)
    return found
wait_until(lambda: len(pidfds()) == 2)
for fd in pidfds():
    os.close(fd)
nbshare.shutdown()
assert job.wait(faultlab.SOON_S)
wait_until(lambda: not any(helpers()), SOON_S, "helpers after shutdown")
tasks.check_double()
""")


@pytest.mark.parametrize(
    "deed",
    [
        "os.closerange(3, 256)",
        "os.close(1); os.close(2)",
        "os.close(0); os.open('/dev/null', os.O_RDONLY)",
        "gc.disable(); sys.setrecursionlimit(60)",
        "signal.setitimer(signal.ITIMER_REAL, 0.001); time.sleep(1)",
        "sys.stdout = sys.stderr = open(os.devnull, 'w')",
        "sys.modules.clear()",
        "threading.Thread(target=os._exit, args=(5,)).start(); time.sleep(1)",
        "os.kill(os.getppid(), signal.SIGKILL); time.sleep(0.1)",
        "os.environ.clear()",
        "import builtins; builtins.len = None",
    ],
)
def test_c6_items_that_wreck_their_process(run_script, deed):
    """The call ends, whatever an item does to its own process, and the next one is right."""
    run_script(f"""
def wreck(i):
    if i == 3:
        {deed}
    time.sleep(0.001)
    return 2.0 * i
tasks.check_double()
start = time.monotonic()
try:
    found = pair(wreck, range(8))
except Exception as error:
    assert "item " in "".join([str(error), *getattr(error, "__notes__", ())]), error
else:
    assert found.tolist() == [2.0 * i for i in range(8)], found
assert time.monotonic() - start < SOON_S
for _ in range(4):
    pair(tasks.double, range(8), on_error="return")  # meets every worker there is
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < faultlab.SOON_S
nbshare.shutdown()  # of workers that may live on with what was done to them
""")


def test_c3_a_module_that_never_comes_to_an_end(lab):
    """An endless loop at the top of a module can be interrupted, and its repair is seen."""
    subject = lab.start("""
good = "def double(x): return 2 * x\\n"
module = Path("endless.py")
module.write_text(good)
import endless
assert quiet(endless.double, range(4)).tolist() == [0, 2, 4, 6]
module.write_text("from pathlib import Path\\nPath('looping').touch()\\nwhile True: pass\\n")
try:
    pair(endless.double, range(4))
except MapInterrupted:
    back = time.monotonic()
module.write_text(good + "# repaired\\n")
assert pair(endless.double, range(4)).tolist() == [0, 2, 4, 6]
tell(back=back, next_s=time.monotonic() - back)
""")
    lab.await_flag("looping")
    at = subject.interrupt()
    assert subject.wait() == 0, subject.stderr
    assert lab.facts["back"] - at < SOON_S
    assert lab.facts["next_s"] < SOON_S


LOADED_FOR_LONG = {
    "import": "endless.double, range(4)",
    "initializer": "tasks.double, range(4), initializer=await_flag, initargs=('on',)",
}


@pytest.mark.parametrize("what", LOADED_FOR_LONG)
def test_c3_the_display_says_for_how_long_workers_load(lab, what):
    """It counts the seconds while nothing else happens. No worker is ended."""
    module = """import time
from pathlib import Path
while not Path("on").exists():
    time.sleep(0.01)
def double(x): return 2.0 * x
"""
    lab.folder.joinpath("endless.py").write_text(module)
    subject = lab.start(f"""
from nbshare._core.notebook.bar import Speed, TerminalBar, describe
raise_flag("on")
import endless
Path("on").unlink()
job = nbshare.map_async({LOADED_FOR_LONG[what]}, chunksize=1, max_workers=2, progress=False)
for said in ("loading for 1 s", "loading for 2 s"):
    wait_until(lambda: said in str(describe(job, Speed(job))), SOON_S, said)
TerminalBar(job).draw(final=False)
workers = helpers()[1]
raise_flag("on")
assert job.result().tolist() == [0, 2, 4, 6]
assert helpers()[1] == workers
# The other worker may have loaded for longer than the items took.
wait_until(lambda: not [w for w in job._run.activity() if w.is_loading], SOON_S, "still loading")
""")
    assert subject.wait() == 0, subject.stderr
    assert "loading for 2 s" in subject.stderr


def test_c2_edits_at_any_moment_of_a_call_are_seen_by_the_next(run_script):
    """An edit while workers import the file, or before an item does, is not missed."""
    run_script("""
code = "V = {}\\ndef f(i):\\n    import time\\n    time.sleep(0.002)\\n    return V\\n"
for i in range(30):
    path = Path(f"edited_{i}.py")
    path.write_text(code.format(1))
    module = __import__(path.stem)
    job = nbshare.map_async(module.f, range(12), max_workers=2, chunksize=1)
    time.sleep(0.0005 * i)
    path.write_text(code.format(22))
    job.result()
    assert set(quiet(module.f, range(4)).tolist()) == {22}, i
lazy = Path("lazy.py")
lazy.write_text("V = 1\\n")
Path("user.py").write_text("from tests.support import faultlab\\ndef f(flag):\\n    import lazy\\n"
    "    faultlab.raise_flag('in')\\n    faultlab.await_flag(flag)\\n    return lazy.V\\n")
import user
job = nbshare.map_async(user.f, ["edited"], max_workers=1)
await_flag("in")
lazy.write_text("V = 22\\n")
raise_flag("edited")
assert job.result().tolist() == [1]
assert quiet(user.f, ["edited"]).tolist() == [22]
""")


def test_c2_an_edit_while_workers_start_for_a_cancelled_call(run_script):
    """Workers that were born for a call that ended without them do not run its code in the next."""
    run_script("""
import warnings
warnings.simplefilter("ignore", nbshare.errors.PartialResultWarning)
path = Path("reborn.py")
code = "V = {}\\ndef f(i):\\n    return V\\n"
path.write_text(code.format(0))
import reborn
tasks.check_double()
for i in range(1, 16):
    kill(helpers()[1])  # the server stays, so that workers start soon
    path.write_text(code.format(-i))
    job = nbshare.map_async(reborn.f, range(50), max_workers=3, chunksize=1)
    time.sleep(0.001 * i)
    job.cancel()
    job.wait()
    path.write_text(code.format(i))
    assert set(quiet(reborn.f, range(50), max_workers=3, chunksize=1).tolist()) == {i}
""")


# -------------------------------------------------------------------- P: in parallel


def test_p1_a_callback_maps_again(run_script):
    """A run inside a bar, a done-callback or a generator of items is a run like any other."""
    run_script("""
found = []
class Bar:  # as of a user's own tqdm
    def __init__(self, *args, **kwargs):
        self.n = 0
    def update(self, n=1):
        found.append(quiet(tasks.double, range(3)).tolist())
    def close(self):
        pass
    def __getattr__(self, name):
        return lambda *args, **kwargs: None
result = parallel_map(functools.partial(tasks.pause, 0.1), range(8), max_workers=2, progress=Bar)
assert result.tolist() == [10.0 * i for i in range(8)]
assert found and all(x == [0.0, 2.0, 4.0] for x in found)
job = nbshare.map_async(tasks.double, range(4))
inner = []
job.add_done_callback(lambda job: inner.append(pair(tasks.double, job.result())))
wait_until(lambda: inner)
assert inner[0].tolist() == [0.0, 4.0, 8.0, 12.0]
items = (float(quiet(tasks.double, [i])[0]) for i in range(5))
assert pair(tasks.double, items).tolist() == [0.0, 4.0, 8.0, 12.0, 16.0]
""")


def test_p1_threads_shut_down_while_others_map(run_script):
    """A call that another thread's shutdown hits is right or partial. It never hangs."""
    subject = run_script("""
import random, warnings
warnings.simplefilter("ignore", nbshare.errors.PartialResultWarning)
outcomes, ended = [], threading.Event()
def map_on():
    for _ in range(10):
        job = nbshare.map_async(tasks.double, range(20), max_workers=2)
        job.result(timeout=faultlab.SOON_S)
        outcomes.append(job.state)
        if job.state == "done":
            assert job.result().tolist() == [2.0 * i for i in range(20)]
def close_on():
    dice = random.Random(1)
    while not ended.wait(dice.uniform(0, 0.05)):
        nbshare.shutdown()
closing = threading.Thread(target=close_on)
threads = [threading.Thread(target=map_on) for _ in range(3)]
for thread in (closing, *threads):
    thread.start()
for thread in threads:
    thread.join()
ended.set()
closing.join()
assert set(outcomes) <= {"done", "stopped"} and len(outcomes) == 30, outcomes
tasks.check_double()
""")
    assert subject.stderr == ""


def test_p2_a_child_of_multiprocessing_maps_while_its_parent_does(run_script):
    """Processes that are forked while other threads are in runs have their own workers."""
    run_script("""
import multiprocessing, warnings
warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
fork = multiprocessing.get_context("fork")
ended = threading.Event()
wrong = []
def map_on():
    while not ended.is_set():
        data = np.full(30_000, 7.0)
        if pair(tasks.last_of, range(4), shared={"elevation": data}).tolist() != [7.0] * 4:
            wrong.append("parent")
threads = [threading.Thread(target=map_on) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(2):
    children = [fork.Process(target=tasks.check_double) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join(10)
    assert [child.exitcode for child in children] == [0, 0]
ended.set()
for thread in threads:
    thread.join()
assert not wrong
own = {os.getpid()}.union(*helpers())
wait_until(lambda: faultlab.tagged() <= own, SOON_S, "orphans")
""")


@pytest.mark.parametrize("call", ["quick", "with all"])
def test_p3_a_worker_starts_late(run_script, call):
    """Replies of a worker that is very late are dropped. Calls before and after are right."""
    run_script(f"""
tasks.check_double()
kill(helpers()[1])
(server,) = helpers()[0]
stopped = []
def stop_the_first():
    while not stopped:
        stopped.extend(Path(f"/proc/{{server}}/task/{{server}}/children").read_text().split())
    os.kill(int(stopped[0]), signal.SIGSTOP)
    sys.setswitchinterval(0.005)
thread = threading.Thread(target=stop_the_first)
thread.start()
sys.setswitchinterval(1e-5)
threading.Timer(0.8, lambda: os.kill(int(stopped[0]), signal.SIGCONT)).start()
start = time.monotonic()
while time.monotonic() < start + 1.4:
    n = 2 if {call!r} == "with all" else 30
    found = pair(functools.partial(tasks.pause, 0.001), range(n))
    assert found.tolist() == [10.0 * i for i in range(n)]
    found = quiet(tasks.double, range(n, 2 * n), max_workers=2)
    assert found.tolist() == [2.0 * i for i in range(n, 2 * n)]
thread.join()
""")
