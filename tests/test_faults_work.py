"""The fault catalogue, where work goes wrong in ways that its first tests leave out.

The ids are the catalogue's, as in ``test_faults.py``; that nothing is left in ``/dev/shm``,
``TMPDIR`` or among the processes is checked after every one (`Lab.close`).
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import signal
import subprocess
import sys
import termios
import time

import pytest
from faultlab import PREAMBLE, SOON_S, wait_until
from test_kernel import Kernel

from nbshare.memory import Segment

# What a process holds; the collector may not help.
CENSUS = """
gc.disable()
def census():
    servers, workers = helpers()
    with open("/proc/self/maps") as maps:
        n_maps = sum("nbshare-" in line for line in maps)
    return {
        "descriptors": len(os.listdir("/proc/self/fd")), "maps": n_maps, "servers": len(servers),
        "workers": len(workers), "threads": len(os.listdir("/proc/self/task")),
    }
def is_as(before):
    return all(n <= before[name] for name, n in census().items())
def await_census(before, what):
    wait_until(lambda: is_as(before), 2, lambda: f"{what}: {before}, then {census()}")
def meet(folder, i):
    Path(folder, str(i)).touch()
    wait_until(lambda: len(os.listdir(folder)) == 2)
    return i
def warm():
    "Have two workers at work, and none too many."
    import tempfile
    with tempfile.TemporaryDirectory() as folder:
        assert pair(functools.partial(meet, folder), range(2)).tolist() == [0, 1]
def renew():
    nbshare.shutdown()
    warm()
"""


# --------------------------------------------------------------- after every case

OUTCOMES = {
    "raises": "pair(functools.partial(tasks.stumble, 'raises'), stones)",
    "raises_odd": "pair(functools.partial(tasks.stumble, 'raises_odd'), stones)",
    "gives_unloadable": "pair(functools.partial(tasks.stumble, 'gives_unloadable'), stones)",
    "is_killed": "pair(functools.partial(tasks.stumble, 'is_killed'), stones)",
    "leaves": "pair(functools.partial(tasks.stumble, 'leaves'), stones)",
    "is killed, errors returned": """
assert sum(pair(functools.partial(tasks.stumble, "is_killed"), stones, on_error="return").mask) == 1
""",
    "takes too long": "pair(functools.partial(tasks.hang, 'gil'), range(3, 5), timeout=0.2)",
    "is interrupted": """
signal.signal(signal.SIGALRM, signal.default_int_handler)
signal.setitimer(signal.ITIMER_REAL, 0.1)
pair(functools.partial(tasks.hang, "sleep"), range(8))
""",
    "is cancelled": """
job = nbshare.map_async(tasks.pause, [0.05] * 50, range(50), max_workers=2)
next(iter(job))
job.cancel()
job.result()
""",
    "is refused": "pair(tasks.double, [threading.Lock()])",
    "broken input": "pair(tasks.double, (1 / (3 - i) for i in range(5)))",
    "generator": "assert pair(tasks.double, (i for i in range(500)))[499] == 998",
    "arrays of a generator": "pair(tasks.row_of, (i for i in range(50)))",
    "generator, raises": "pair(functools.partial(tasks.stumble, 'raises'), iter(stones))",
    "generator, cancelled": """
job = nbshare.map_async(tasks.pause, itertools.repeat(0.01), itertools.count(), max_workers=2)
next(iter(job))
job.cancel()
job.result()
""",
    "objects": "assert len(pair(tasks.row_of, range(8), out='list')) == 8",
    "background": """
job = nbshare.map_async(tasks.pause, [0.001] * 20, range(20), max_workers=2)
assert sorted(job) == [(i, 10.0 * i) for i in range(20)]
""",
}


def test_every_outcome_leaves_the_process_as_it_was(lab):
    """Whatever becomes of a call, descriptors, maps, threads, workers and inputs are as before it.

    Without a collection of garbage: a notebook may not have one for hours.
    """
    lab.run(
        CENSUS
        + f"""
import itertools, warnings
warnings.simplefilter("ignore", nbshare.errors.PartialResultWarning)
stones = [f"stone-{{i}}" for i in range(8)]
elevation = np.random.default_rng(1).random(50_000)
bytes_before = elevation.tobytes()
nbshare.zeros(1)
start, before = census(), None
for name, code in {OUTCOMES!r}.items():
    for turn in range(4):
        for path in Path().glob("returned-*"):
            path.unlink()
        try:
            exec(code)
        except (Exception, KeyboardInterrupt):
            pass
        assert pair(tasks.last_of, range(4), shared={{"elevation": elevation}})[3] == elevation[-1]
        job = error = None
        tasks.check_double()  # the last job is forgotten
    assert len(helpers()[1]) <= 3, (name, helpers())  # one may have started late
    renew()
    if before is None:
        before = census()
    await_census(before, name)
assert elevation.tobytes() == bytes_before and elevation.flags.writeable
nbshare.shutdown()
start["threads"] += 1  # the last one ends by itself
await_census(start, "after shutdown")
""",
        limit_s=100,
    )


# ------------------------------------------------------- N2: what items start themselves

STARTS = {
    "threads": """
    for _ in range(3):
        threading.Thread(target=time.sleep, args=(40,), daemon=True).start()
""",
    "subprocesses": """
    subprocess.Popen(["sh", "-c", "sleep 40 & sleep 40"])
""",
    "Pool, fork": """
    pool = multiprocessing.get_context("fork").Pool(2)
    assert pool.map(abs, [-1, 2]) == [1, 2]
    pool.map_async(time.sleep, [40, 40])
    KEPT.append(pool)
""",
    "Executor, fork": """
    pool = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork"))
    assert list(pool.map(abs, [-1, 2])) == [1, 2]
    KEPT.append([pool, pool.submit(time.sleep, 40)])
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
    time.sleep(40)
"""


@pytest.mark.parametrize("how", STARTS)
@pytest.mark.parametrize("end", ["of the call", "of the owner", "of its group"])
def test_n2_what_an_item_starts(lab, how, end):
    """Threads, programs and pools of an item work; they go with an interrupt, and the owner."""
    lab.folder.joinpath("starter.py").write_text(starter(how))
    subject = lab.start("""
import starter
assert pair(starter.starts, range(2)).tolist() == [0, 1]
tasks.check_double()
try:
    pair(starter.hangs, range(2))
except MapInterrupted:
    own = {os.getpid()}.union(*helpers())
    wait_until(lambda: faultlab.tagged() <= own.union(*helpers()), 2, lambda: faultlab.tagged())
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
def test_x2_a_child_comes_back(lab, what):
    """What a function forks is no second worker: it ends, and no later call notices."""
    lab.folder.joinpath("forking.py").write_text("""
import os
if "IS_OWNER" not in os.environ:
    os.fork()
def same(i):
    return i
""")
    lab.run(f"""
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
    """Where items run in the program itself its copy says why it ends, and takes no results."""
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
    assert subject.stderr.count("the function has called os.fork") == 1


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
    """Though the end of the workers fails then: whoever waits is told, and nobody is left."""
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
wait_until(lambda: not any(helpers()), 2, "helpers after shutdown")
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
def test_c6_items_that_wreck_their_process(lab, deed):
    """Whatever an item does to its own process, the call ends and the next one is right."""
    lab.run(f"""
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
assert time.monotonic() - start < 4
for _ in range(4):
    pair(tasks.double, range(8), on_error="return")  # meets every worker there is
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < faultlab.SOON_S
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
    "importing endless (endless.py, line 4)": "endless.double, range(4)",
    "running the initializer await_flag (faultlab.py, line": (
        "tasks.double, range(4), initializer=await_flag, initargs=('on',)"
    ),
}


@pytest.mark.parametrize("what", LOADED_FOR_LONG)
def test_c3_what_a_worker_loads_for_long_is_shown(lab, what):
    """One warning and the progress display name worker, place and line; no worker is ended."""
    lab.environ["NBSHARE_LONG_LOADING_S"] = "0.2"
    module = """import time
from pathlib import Path
while not Path("on").exists():
    time.sleep(0.01)
def double(x): return 2.0 * x
"""
    lab.folder.joinpath("endless.py").write_text(module)
    subject = lab.start(f"""
import warnings
from nbshare.notebook.bar import Pace, TerminalBar, describe
raise_flag("on")
import endless
Path("on").unlink()
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    job = nbshare.map_async({LOADED_FOR_LONG[what]}, chunksize=1, max_workers=2, progress=False)
    wait_until(lambda: sum({what!r} in worker.report for worker in job.activity) == 2)
    wait_until(lambda: said, what="no warning")
    workers = helpers()[1]
    for k in "12":
        _, details = describe(job, Pace(job))
        assert f"worker {{k}} is {what}" in details, details
    TerminalBar(job, "").draw(final=False)
    raise_flag("on")
    assert job.result().tolist() == [0, 2, 4, 6]
    assert helpers()[1] == workers
(warning,) = said
assert warning.category is nbshare.errors.SlowLoadingWarning
assert {what!r} in str(warning.message), warning.message
assert str(warning.message).startswith(("worker 1 has been", "worker 2 has been")), warning.message
""")
    assert subject.wait() == 0, subject.stderr
    assert f"worker 1 is {what}" in subject.stderr


def test_c3_a_warning_made_an_error_ends_no_run(lab):
    """Where warnings are errors, that of an import that takes long is said all the same."""
    lab.environ["NBSHARE_LONG_LOADING_S"] = "0.2"
    subject = lab.run("""
import io, warnings

class Ends(io.TextIOBase):
    def write(self, text):
        sys.__stderr__.write(text)
        if "SlowLoadingWarning" in text:
            raise_flag("on")

sys.stderr = Ends()
warnings.simplefilter("error")
found = quiet(tasks.double, range(4), initializer=await_flag, initargs=("on",))
assert found.tolist() == [0, 2, 4, 6]
""")
    assert subject.stderr.count("SlowLoadingWarning: worker") == 1


def test_c2_edits_at_any_moment_of_a_call_are_seen_by_the_next(lab):
    """An edit while workers import the file, or before an item does, is not missed."""
    lab.run("""
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
Path("user.py").write_text("import faultlab\\ndef f(flag):\\n    import lazy\\n"
    "    faultlab.raise_flag('in')\\n    faultlab.await_flag(flag)\\n    return lazy.V\\n")
import user
job = nbshare.map_async(user.f, ["edited"], max_workers=1)
await_flag("in")
lazy.write_text("V = 22\\n")
raise_flag("edited")
assert job.result().tolist() == [1]
assert quiet(user.f, ["edited"]).tolist() == [22]
""")


def test_c2_an_edit_while_workers_start_for_a_cancelled_call(lab):
    """Workers that were born for a call that ended without them do not run its code in the next."""
    lab.run("""
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


# ------------------------------------------------------------- D, I, M: deaths and memory


def test_d5_a_worker_is_killed_while_it_writes_an_object(lab):
    """Of an object that was half written nothing is seen, and the others are whole."""
    lab.run("""
from nbshare.errors import WorkerDiedError
class Dying:
    "Pickles some megabytes of itself, then its process is gone."
    def __reduce_ex__(self, protocol):
        os.kill(os.getpid(), signal.SIGKILL)
def rows(i):
    large = [np.full(100_000 + i, float(i)) for _ in range(8)]
    return {"rows": large, "last": Dying() if i == 5 else i}
def is_whole(i, value):
    rows = value["rows"]
    return value["last"] == i and all((r == i).all() and r.size == 100_000 + i for r in rows)
for _ in range(3):
    found = pair(rows, range(10), on_error="return")
    assert isinstance(found[5], WorkerDiedError) and found[5].index == 5
    assert all(is_whole(i, value) for i, value in enumerate(found) if i != 5)
del found
tasks.check_double()
nbshare.shutdown()
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= 4096, 2, "memory is kept")
""")


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_d7_the_server_is_lost_while_workers_start(lab, how):
    """A server that ends or stands still at any moment of a cold call is replaced unnoticed."""
    lab.run(
        f"""
for i in range(6):
    nbshare.shutdown()
    def is_server(pid):  # before, its owner is in vfork, which ends with this moment only
        return b"serve(" in Path(f"/proc/{{pid}}/cmdline").read_bytes()
    def strike():
        (server,) = wait_until(lambda: set(filter(is_server, helpers()[0])))
        time.sleep(0.02 * i)
        os.kill(server, signal.{how})
    thread = threading.Thread(target=strike)
    thread.start()
    start = time.monotonic()
    found = quiet(tasks.double, range(40), max_workers=6, chunksize=1)
    assert found.tolist() == [2.0 * i for i in range(40)]
    assert time.monotonic() - start < 3 * faultlab.SOON_S  # it has two cold starts in it
    thread.join()
    tasks.check_double()
""",
        limit_s=40,
    )


def test_i2_an_interrupt_at_any_moment_of_a_call_with_objects(lab):
    """Interrupted while objects are sent, made, stored or collected, all is as it should be."""
    lab.run(
        """
import random
dice = random.Random(20261121)
signal.signal(signal.SIGALRM, signal.default_int_handler)
items = [{"n": i, "row": np.full(20_000, float(i))} for i in range(60)]
copy = [row["row"].copy() for row in items]
def turn(item):
    return [item["n"], item["row"] + 1, str(item["n"])]
def check(found):
    for i, (n, row, text) in found:
        assert n == i and text == str(i) and (row == i + 1).all()
start = time.monotonic()
check(enumerate(pair(turn, items)))
start = time.monotonic()
check(enumerate(pair(turn, items)))
whole_s = time.monotonic() - start
n_interrupted = 0
for _ in range(40):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-4, 1.2 * whole_s))
        try:
            found = pair(turn, items)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        n_interrupted += 1
        if last_job() is not None:  # it had begun
            partial = last_job().partial() or []
            check((i, x) for i, x in enumerate(partial) if x is not nbshare.MISSING)
    else:
        check(enumerate(found))
    tasks.check_double()
assert n_interrupted > 10, n_interrupted
assert all(np.array_equal(item["row"], row) for item, row in zip(items, copy))
""",
        limit_s=40,
    )


@pytest.mark.parametrize("way", ["create", "filled", "attach"])
def test_i2_an_interrupt_as_a_segment_comes_into_being(way, monkeypatch):
    """Its descriptor is closed once: by the second time, the number may be another thread's."""
    new, closed = Segment.__new__, []

    def interrupted(*args):
        closed.append(new(*args).fd)
        raise KeyboardInterrupt

    make = {
        "create": lambda: Segment.create(4096),
        "filled": lambda: Segment.filled(4096, []),
        "attach": lambda: Segment.attach(os.dup(existing.fd), "r"),
    }[way]
    existing = Segment.create(4096)
    monkeypatch.setattr(Segment, "__new__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        make()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(closed[0])


def test_m2_an_item_asks_for_more_than_its_limit(lab):
    """Past RLIMIT_AS an item fails with its own MemoryError, and the next call is right."""
    lab.run("""
import resource
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
def asks(i):
    return np.zeros((6 << 30) if i == 3 else 8, np.uint8).size
try:
    pair(asks, range(8))
except MemoryError as error:
    assert error.index == 3 if hasattr(error, "index") else "item 3" in str(error.__notes__)
else:
    raise AssertionError("no error")
tasks.check_double()
try:
    nbshare.zeros(6 << 30, np.uint8)
except MemoryError:
    pass
else:
    raise AssertionError("no error")
tasks.check_double()
""")


# ---------------------------------------------------------------- R: the system's limits


TAKE_ALL = """
import resource
def take_all_but(n_free, limit=256):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    taken = []
    try:
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        for _ in range(n_free):
            os.close(taken.pop())
    return taken
"""


def test_r1_the_last_descriptors(lab):
    """With a few descriptors free, a call is right or names the limit; the next one is right."""
    lab.run(
        CENSUS
        + TAKE_ALL
        + """
renew()
before = census()
rows = [np.full(3000, float(i)) for i in range(20)]
n_right = 0
for n_free in (0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 14, 16, 18, 21):
    nbshare.shutdown()
    if n_free % 2:
        warm()
    taken = take_all_but(n_free)
    start, error = time.monotonic(), None
    try:
        found = pair(tasks.echo, rows, out="list")
    except Exception as caught:
        error = caught
    finally:
        for fd in taken:
            os.close(fd)
    assert time.monotonic() - start < 4, n_free
    if error is None:
        assert all(map(np.array_equal, found, rows))
        n_right += 1
    else:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
        assert "open files" in text or "descriptors" in text, (n_free, repr(error))
    error = found = None
    tasks.check_double()
assert n_right > 5
renew()
gc.collect()  # of errors that the system itself raised
await_census(before, "in the end")
""",
        limit_s=40,
    )


def test_r1_more_descriptors_on_their_way_than_a_user_may_have(lab):
    """Workers that are about to start are told of more arrays than that, and all is right."""
    lab.run("""
import ctypes, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
# Root's, which the limit does not hold for: version 3 of the interface, this process, none left.
assert ctypes.CDLL(None).capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) == 0
arrays = [nbshare.full(1000, float(i)) for i in range(160)]
found = quiet(tasks.echo, arrays, max_workers=10, out="list")
assert [row[0] for row in found] == list(range(160))
""")


def test_r1_no_descriptor_for_the_output(lab):
    """The error names the limit, not the worker whose result it would have taken."""
    lab.run(
        TAKE_ALL
        + """
tasks.check_double()
def row(i):
    raise_flag(f"at-{i}")
    await_flag("go on")
    return np.full(3, float(i))
job = nbshare.map_async(row, range(2), max_workers=2, progress=False)
await_flag("at-0")
taken = take_all_but(0)
os.mkdir("go on")  # a flag that takes no descriptor
error = job.exception(10)
for fd in taken:
    os.close(fd)
text = " ".join([str(error), *getattr(error, "__notes__", ())])
assert isinstance(error, OSError) and "died" not in text, repr(error)
assert "open files" in text, text
tasks.check_double()
"""
    )


def test_r1_thousands_of_small_arrays(lab):
    """They share descriptors: where 1024 files may be open, 3000 are made, and maps work."""
    lab.run("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024))
n_before = len(os.listdir("/proc/self/fd"))
given = [nbshare.full(10, float(i)) for i in range(1000)]
zeros = [nbshare.zeros(10) for i in range(1000)]
copies = [nbshare.share(array) for array in map(np.array, given)]
kept = [quiet(tasks.double, range(i, i + 3)) for i in range(20)]
assert len(os.listdir("/proc/self/fd")) < n_before + 60
assert all((array == i).all() for array, i in zip(given, range(1000)))
assert not any(array.any() for array in zeros)
assert all((array == i).all() for array, i in zip(copies, range(1000)))
assert all(array.tolist() == [2.0 * i, 2.0 * i + 2, 2.0 * i + 4] for i, array in enumerate(kept))
assert quiet(np.sum, given).tolist() == [10.0 * i for i in range(1000)]
""")


def test_r1_a_segment_takes_one_descriptor(lab):
    """Made, shared, attached or a result: for each large array that is kept there is one."""
    lab.run("""
def n_held(make):
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    kept = [make() for _ in range(10)]
    return len(os.listdir("/proc/self/fd")) - before
large = np.ones(100_000)
tasks.check_double()
for make in (
    lambda: nbshare.zeros(100_000),
    lambda: nbshare.share(large),
    lambda: nbshare.share(large, mode="r"),
    lambda: nbshare.share(large, mode="c"),
    lambda: nbshare.share({"a": large}),
    lambda: quiet(np.sqrt, large.reshape(4, -1)),
):
    n = n_held(make)
    assert n <= 12, n  # what a map keeps for the next one
""")


def test_r1_the_soft_limit_is_raised_when_it_is_in_the_way(lab):
    """600 arrays of 1 MB where 256 files may be open and 4096 may be allowed; then a map works."""
    lab.run("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
tasks.check_double()  # workers that are there have the old limit
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 4096)
arrays = [nbshare.zeros(1 << 20, "u1") for _ in range(600)]
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (4096, 4096)
for i, array in enumerate(arrays):
    array[-1] = i % 256
assert quiet(np.max, arrays).tolist() == [i % 256 for i in range(600)]
""")


def test_r1_past_the_limit_an_error_says_what_to_do(lab):
    """It is an OSError that names limit and ways out; when some arrays are gone a map works."""
    lab.run("""
import errno, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
tasks.check_double()
arrays = []
try:
    while len(arrays) < 200:
        arrays.append(nbshare.zeros(10_000))
except nbshare.errors.TooManyFilesError as error:
    assert isinstance(error, OSError) and error.errno == errno.EMFILE
    for words in ("128", "ulimit -n", "32 KiB", "SharedBuffer", "raise the limit"):
        assert words in str(error), error
assert 90 < len(arrays) < 128, len(arrays)
del arrays[:40]
tasks.check_double()
assert (quiet(np.sqrt, np.ones((4, 100_000))) == 1).all()
""")


# Root may have as many processes as it likes; another user with root's access to files may not.
AS_ANOTHER = [
    *("setpriv", "--reuid", "54321", "--clear-groups"),
    *(f"--{which}-caps=-all,+dac_override,+dac_read_search" for which in ("inh", "ambient")),
]


LIMIT = """
import resource
from nbshare.errors import WorkerDiedError
def limit(n):
    resource.setrlimit(resource.RLIMIT_NPROC, (n, 500))
"""


@pytest.fixture
def may_be_another():
    """Skip where one cannot become that other user."""
    if os.getuid() or subprocess.run([*AS_ANOTHER, "true"], capture_output=True).returncode:
        pytest.skip("to become a user without privileges takes privileges")


@pytest.fixture
def run_limited(may_be_another, lab):
    """Run code as a user who may not have as many processes and threads as root may."""

    def run(code):
        lab.folder.joinpath("limited.py").write_text(f"{PREAMBLE}{CENSUS}{LIMIT}{code}")
        lab.folder.chmod(0o777)
        lab.run(f"""
import subprocess
subprocess.run([*{AS_ANOTHER!r}, sys.executable, "limited.py"], check=True, timeout=20)
""")

    return run


def test_r2_no_more_processes(run_limited):
    """Where no thread or process may be started the error says so, and it ends with the limit."""
    run_limited("""
before, n_right = census(), 0
for n in (1, 2, 3, 2, 5, 2, 8, 20):
    limit(n)
    start = time.monotonic()
    try:
        tasks.check_double()
        n_right += 1
    except WorkerDiedError as error:
        assert "process" in str(error) or "thread" in str(error), error
    assert time.monotonic() - start < 2 * faultlab.SOON_S, n
assert n_right
nbshare.shutdown()
before["threads"] += 1
await_census(before, "after shutdown")
limit(500)
tasks.check_double()
""")


def test_r2_no_thread_for_what_follows_a_map(run_limited):
    """What is to be called when a map is over is called, and the workers live on."""
    run_limited("""
tasks.check_double()
workers, called = helpers()[1], []
def row(i):
    raise_flag(f"at-{i}")
    await_flag("go on")
    return i
job = nbshare.map_async(row, range(2), max_workers=2, progress=False)
job.add_done_callback(called.append)
await_flag("at-0")
limit(1)
os.mkdir("go on")  # a flag that takes no thread
assert job.result(10).tolist() == [0, 1]
wait_until(lambda: called == [job])
limit(500)
tasks.check_double()
assert workers <= helpers()[1]
""")


def test_x6_what_needs_no_thread_goes_on_without_one(run_limited):
    """Large arrays, maps of them, generators, threads and references work; no memory is kept."""
    run_limited("""
import queue
from multiprocessing.reduction import ForkingPickler
from nbshare.memory import pool
def mapped():
    return sum("nbshare-" in line for line in Path("/proc/self/maps").read_text().splitlines())
tasks.check_double()
large = np.ones((4, 300_000))
limit(1)
before = mapped()
shared = nbshare.share(large)
assert (shared == large).all()
del shared
assert mapped() == before
assert (pair(np.sqrt, large) == large).all()
assert pair(float, (i for i in range(20))).tolist() == [*range(20)]
assert quiet(float, range(20), backend="threads").tolist() == [*range(20)]
sent = ForkingPickler.dumps(nbshare.full(3, 7.0))
limit(500)
shared = nbshare.share(large)
kept, _ = nbshare.memory.segment_of(shared)
name = kept.name
del shared, kept
again = nbshare.share(large)
assert nbshare.memory.segment_of(again)[0].name == name
""")


@pytest.mark.usefixtures("may_be_another")
def test_x6_what_is_drawn_by_threads_is_drawn_without_them(lab):
    """In a kernel that may start none, jobs run and their displays have the last state."""
    for folder in (lab.folder, lab.tmp):
        folder.chmod(0o777)
    kernel = Kernel(lab, wrapper=AS_ANOTHER)
    try:
        kernel.run_well(f"{LIMIT}\ntasks.check_double()")
        cell = kernel.run_well("""
def held(i):
    await_flag("go on")
    return i
limit(1)
job = nbshare.map_async(held, range(4), max_workers=2)
job.add_done_callback(lambda _: raise_flag("over"))
raise_flag("go on")
await_flag("over")
assert job.result(10).tolist() == [0, 1, 2, 3]
parallel_map(held, range(40), max_workers=2, plot="line")
limit(500)
""")
        rows = " ".join(cell.rows)
        assert "4/4" in rows, rows
        assert "40/40" in rows, rows
        assert "40 of 40" in rows, rows  # the plot's
        assert "Traceback" not in cell.stderr
    finally:
        kernel.close()
        for folder in lab.tmp.iterdir():  # IPython's and matplotlib's, which another user owns
            shutil.rmtree(folder)


@pytest.mark.usefixtures("may_be_another")
def test_r2_no_more_processes_in_a_kernel(lab):
    """The cell's error says so, the kernel goes on, and with the limit gone the call is right."""
    for folder in (lab.folder, lab.tmp):
        folder.chmod(0o777)
    kernel = Kernel(lab, wrapper=AS_ANOTHER)
    try:
        cell = kernel.run_well(f"""{CENSUS}{LIMIT}
assert os.getuid() == 54321
for limit_of in (1, census()["threads"] + 1, census()["threads"] + 2):
    limit(limit_of)
    start = time.monotonic()
    try:
        tasks.check_double()
    except WorkerDiedError as error:
        assert "process" in str(error) or "thread" in str(error), error
    else:
        raise AssertionError(f"no error where {{limit_of}} threads are allowed")
    finally:
        limit(500)
    assert time.monotonic() - start < 2 * faultlab.SOON_S, limit_of
    tasks.check_double()
    nbshare.shutdown()
wait_until(lambda: not any(helpers()), 2, "helpers are left")
""")
        assert "Traceback" not in cell.stderr
    finally:
        kernel.close()
        for folder in lab.tmp.glob("tmp*"):  # IPython's, to whom access(2) denies the user's own
            shutil.rmtree(folder)


# X4: arguments of `refused.refuse`: the number on x86-64, the error, an argument and its value.
on_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="these are x86-64's numbers")
WITH_ANOTHER_WAY = {
    "pidfd_open": "434",
    "an unknown pidfd_open": "434, errno.ENOSYS",
    "fcntl(F_SETSIG)": "72, errno.EINVAL, 1, 10",
    "fcntl(F_ADD_SEALS)": "72, errno.EINVAL, 1, 1033",
    "madvise(MADV_COLLAPSE)": "28, errno.EINVAL, 2, 25",
}
REFUSE = """
import errno, refused, warnings
warnings.simplefilter("ignore", nbshare.errors.MemoryFallbackWarning)
refused.refuse({})
"""


@on_x86
@pytest.mark.parametrize("call", WITH_ANOTHER_WAY)
def test_x4_a_system_call_that_is_refused_and_not_needed(lab, call):
    """Maps work, and deaths are noticed, named and made good, also those of idle workers."""
    subject = lab.run(f"""
{REFUSE.format(WITH_ANOTHER_WAY[call])}
tasks.check_double()
sums = quiet(np.sum, np.ones((4, 1 << 20)), max_workers=2)
assert sums.tolist() == [1 << 20] * 4
kill(helpers()[1])
tasks.check_double()
try:
    pair(tasks.die_with_a_child, range(8))
except nbshare.errors.WorkerDiedError as error:
    assert "SIGKILL while it worked on item 3" in str(error), error
else:
    raise AssertionError("no error")
tasks.check_double()
nbshare.shutdown()
wait_until(lambda: not any(helpers()), 2, "helpers after shutdown")
""")
    assert not subject.stderr


@on_x86
@pytest.mark.parametrize("call", WITH_ANOTHER_WAY)
def test_x4_nobody_is_left_where_a_system_call_is_refused(lab, call):
    """Workers that are at work end with their owner, however it ends."""
    subject = lab.start(f"""
{REFUSE.format(WITH_ANOTHER_WAY[call])}
def spin(i):
    raise_flag(f"at-{{i}}")
    while True:
        pass
pair(spin, range(2))
""")
    lab.await_flag("at-*", 2)
    subject.signal(signal.SIGKILL)
    assert lab.nobody_left()


@on_x86
@pytest.mark.parametrize(
    ("call", "number"),
    [("eventfd", 290), ("epoll_create1", 291), ("pipe2", 293), ("socketpair", 53), ("sendmsg", 46)],
)
def test_x4_a_system_call_that_is_refused_and_needed(lab, call, number):
    """One sentence names it and the way out, which works."""
    subject = lab.run(f"""
{REFUSE.format(number)}
start = time.monotonic()
try:
    quiet(tasks.double, range(4))
except nbshare.errors.WorkerDiedError as error:
    text = str(error)
else:
    raise AssertionError("no error")
assert time.monotonic() - start < faultlab.SOON_S
assert "this system refuses" in text and {call!r} in text and 'backend="threads"' in text, text
assert quiet(tasks.double, range(4), backend="threads").tolist() == [0, 2, 4, 6]
""")
    assert not subject.stderr


# -------------------------------------------------------------------- P: in parallel


def test_p1_a_callback_maps_again(lab):
    """A map inside a bar, inside a done-callback or inside a generator of items is a map."""
    lab.run("""
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


def test_p1_threads_shut_down_while_others_map(lab):
    """A call that another thread's shutdown hits is right or partial; it never hangs."""
    subject = lab.run("""
import random, warnings
warnings.simplefilter("ignore", nbshare.errors.PartialResultWarning)
end = time.monotonic() + 3
outcomes = []
def map_on():
    while time.monotonic() < end:
        job = nbshare.map_async(tasks.double, range(20), max_workers=2)
        job.result(timeout=faultlab.SOON_S)
        outcomes.append(job.state)
        if job.state == "done":
            assert job.result().tolist() == [2.0 * i for i in range(20)]
def close_on():
    dice = random.Random(1)
    while time.monotonic() < end:
        nbshare.shutdown()
        time.sleep(dice.uniform(0, 0.05))
threads = [threading.Thread(target=t) for t in (map_on, map_on, map_on, close_on)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert set(outcomes) <= {"done", "stopped"} and len(outcomes) > 20, outcomes
tasks.check_double()
""")
    assert subject.stderr == ""


def test_p2_a_child_of_multiprocessing_maps_while_its_parent_does(lab):
    """Processes that are forked while other threads are in maps have their own workers."""
    lab.run("""
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
wait_until(lambda: faultlab.tagged() <= own, 2, "orphans")
""")


@pytest.mark.parametrize("call", ["quick", "with all"])
def test_p3_a_worker_starts_late(lab, call):
    """Replies of a worker that is seconds late are dropped; calls before and after are right."""
    lab.run(f"""
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
threading.Timer(1.5, lambda: os.kill(int(stopped[0]), signal.SIGCONT)).start()
start = time.monotonic()
while time.monotonic() < start + 2.5:
    n = 2 if {call!r} == "with all" else 30
    found = pair(functools.partial(tasks.pause, 0.001), range(n))
    assert found.tolist() == [10.0 * i for i in range(n)]
    found = quiet(tasks.double, range(n, 2 * n), max_workers=2)
    assert found.tolist() == [2.0 * i for i in range(n, 2 * n)]
thread.join()
""")


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
    "D7-server-stopped": """
nbshare.shutdown()  # a server that was killed is not replaced before it is needed
tasks.check_double()
(server,) = helpers()[0]
os.kill(server, signal.SIGSTOP)
kill(helpers()[1])
start = time.monotonic()
tasks.check_double()
assert time.monotonic() - start < 2 * faultlab.SOON_S
""",
    "D6-stopped-worker": """
def stops(i):
    if i == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    return i
try:
    pair(stops, range(4), timeout=0.5)
except TimeoutError as error:
    assert "item 1 (1)" in str(error)
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
assert time.monotonic() - start < 3
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
        before = count()
wait_until(lambda: count() <= before, 2, lambda: f"{count()}, before {before}")
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
    """What goes wrong in a call leaves the kernel right and quiet; the next call is soon right."""
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
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= before + 4096, 2, "memory is kept")
""")


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
    n_items = sorted(row.split("/")[1].split()[0] for row in cell.rows)
    assert n_items == ["5", "6", "6", "6", "7"], cell.rows
    assert all("✓" in row or "done" in row for row in cell.rows), cell.rows


@pytest.mark.parametrize("how", ["gather", "await"])
def test_p1_an_interrupt_of_an_awaiting_cell(lab, common, how):
    """■ ends a cell that awaits maps; nobody computes on, and the next cell works."""
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
wait_until(job.done, 2, "the map goes on")
tasks.check_double()
""")
    assert cell.status == "ok", cell.traceback


# ------------------------------------------------------------------------ many workers

WORKERS = """
import resource
def meet(n, i):
    raise_flag(f"met-{n}-{i}")
    wait_until(lambda: len(list(Path().glob(f"met-{n}-*"))) == n)
    return i * 10.0
def pss():
    total = 0
    for pid in faultlab.tagged():
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        total += int(text.partition("Pss:")[2].split()[0]) << 10
    return total
def run(n):
    start = time.monotonic()
    found = quiet(functools.partial(meet, n), range(n), max_workers=n, chunksize=1)
    assert found.tolist() == [i * 10.0 for i in range(n)]
    return time.monotonic() - start
n_before = len(os.listdir("/proc/self/fd"))
quiet(time.sleep, [0.01], max_workers=1)
one = pss()
quiet(time.sleep, [1.0] * N, max_workers=N, chunksize=1)
each = (pss() - one) / (N - 1)
nbshare.shutdown()
first_s = run(N)
second = quiet(tasks.double, np.arange(100_000.0), max_workers=N)
assert np.array_equal(second, 2 * np.arange(100_000.0))
data = np.arange(1_000_000.0)
found = quiet(tasks.last_of, range(200), shared={"elevation": data}, max_workers=N)
assert (found == data[-1]).all()
wait_until(lambda: len(helpers()[1]) == N, 5, lambda: len(helpers()[1]))
del second, found
tell(first_s=first_s, each=each, servers=len(helpers()[0]),
     descriptors=len(os.listdir("/proc/self/fd")) - n_before)
kill(helpers()[1])
tasks.check_double()
start = time.monotonic()
nbshare.shutdown()
wait_until(lambda: not any(helpers()), 2, "helpers after shutdown")
wait_until(lambda: len(os.listdir("/proc/self/fd")) <= n_before + 1, 2, "descriptors")
"""


def test_sixteen_workers(lab):
    """Many more workers than processors: right, soon there, 8 MB each, a few descriptors each."""
    lab.run(f"N = 16\n{WORKERS}")
    facts = lab.facts
    assert facts["first_s"] < 3
    assert facts["each"] < 8 << 20
    assert facts["servers"] == 1
    # Of each a socket, a pidfd, and two pipes for what it prints.
    assert facts["descriptors"] <= 16 * 4 + 12


# ------------------------------------------- X: the owner closes what is not its own to close

CLOSING = """
tasks.check_double()
kept = quiet(tasks.double, range(100_000))  # large enough to be used again
helpers_before = set.union(*helpers())

def close_all():
    os.closerange(3, 4096)
    return [open(f"file-{i}", "w+") for i in range(60)]  # have the numbers now
"""


def test_x7_the_owner_closes_all_descriptors(lab):
    """Each call says so in one sentence; no file that has a number of ours is touched."""
    subject = lab.run(
        CLOSING
        + """
job = nbshare.map_async(functools.partial(tasks.hang, "gil"), range(4, 8), max_workers=2)
wait_until(lambda: len(list(Path().glob("busy-*"))) == 2)
files = close_all()
owners = [os.fstat(file.fileno()).st_ino for file in files]
try:
    job.result(faultlab.SOON_S)
except RuntimeError as error:
    assert "has closed the files" in str(error), error
for _ in range(3):
    try:
        tasks.check_double()
    except RuntimeError as error:
        assert "has closed the files" in str(error), error
    else:
        raise AssertionError("no error")
    nbshare.shutdown()
del job
gc.collect()
assert kept[-1] == 199_998.0
wait_until(lambda: not faultlab.tagged() & helpers_before, what="workers live")
assert [os.fstat(file.fileno()).st_ino for file in files] == owners
assert {os.fstat(file.fileno()).st_size for file in files} == {0}
"""
    )
    assert subject.stderr == ""


def test_x7_after_a_shutdown_all_descriptors_may_be_closed(lab):
    """The next call starts anew."""
    lab.run(CLOSING + "nbshare.shutdown()\nfiles = close_all()\ntasks.check_double()")
