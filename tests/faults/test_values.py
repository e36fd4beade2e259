"""The fault catalogue: memory, writes, values, handles of others.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import os
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.catalogue import ENDINGS, LEAVE
from tests.support.faultlab import may_mount


def guarded(code):
    """Return a script that lets the processes of other people's pools import it."""
    head = "from concurrent.futures import ProcessPoolExecutor\nimport multiprocessing\n"
    head += "from multiprocessing.reduction import ForkingPickler\n"
    head += "SPAWN = multiprocessing.get_context('spawn')\n"
    return head + 'if __name__ == "__main__":\n' + textwrap.indent(code, "    ")


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


@pytest.mark.first
@pytest.mark.parametrize("call", CALLS)
def test_m4_memory_goes_back(run_script, call):
    """After a call of any outcome its memory is free again, even if its exception is kept."""
    run_script(f"""
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
wait_until(lambda: len(os.listdir("/proc/self/fd")) == before, SOON_S, "descriptors are kept")
tasks.check_double()
""")


SHORTAGES = {
    "machine": """
from nbshare._core.system import processes
processes._machine_room = lambda: 100 << 20
""",
    "cgroup v2": """
from nbshare._core.system import processes
group, inner = Path("group"), Path("group/inner")
inner.mkdir(parents=True)
for folder, limit in ((group, str(1 << 30)), (inner, "max")):
    (folder / "memory.max").write_text(limit)
    (folder / "memory.current").write_text(str((1 << 30) - (100 << 20)))
    (folder / "memory.stat").write_text("anon 5\\ninactive_file 0\\n")
processes.ancestors = lambda controller: [(2, inner), (2, group)]
""",
    "cgroup v1": """
from nbshare._core.system import processes
group = Path("group")
group.mkdir()
(group / "memory.limit_in_bytes").write_text(str(1 << 30))
(group / "memory.usage_in_bytes").write_text(str((1 << 30) - (60 << 20)))
(group / "memory.stat").write_text("cache 5\\ntotal_inactive_file 41943040\\n")
processes.ancestors = lambda controller: [(1, group)]
""",
}


REQUESTS = [
    "nbshare.zeros(200 << 20, np.uint8)",
    "nbshare.share(np.zeros(200 << 20, np.uint8))",
    "quiet(tasks.last_of, range(4), shared={'elevation': np.zeros(200 << 20, np.uint8)})",
    "quiet(len, np.zeros((20, 10 << 20), np.uint8))",
    "quiet(tasks.echo, range(20), out=np.zeros((20, 10 << 20), np.uint8))",
    # The last, since it needs workers, which give the first row.
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


# ------------------------------------------------------- W, R: writes and values


# What Python does is refused, and so is the descriptor. What compiled code writes, or `mprotect`
# lets it write, is a private copy: True if the worker itself sees the bytes unchanged.
REFUSALS = {
    "assign": ("ValueError", True),
    "in-place": ("ValueError", True),
    "flag": ("ValueError", True),
    "flag-of-base": ("ValueError", True),
    "mprotect": ("allowed", False),
    "pwrite": ("PermissionError", True),
    "mmap": ("PermissionError", True),
    "truncate": ("PermissionError", True),
    "poke": ("allowed", False),
}


@pytest.mark.parametrize("kind", ["plain", "SharedArray"])
def test_w1_shared_inputs_cannot_be_written(run, kind):
    """The shared bytes stay as they are, whatever a worker tries."""
    refusals = dict(REFUSALS)
    if kind == "SharedArray":  # a writable segment is open to its own user's descriptors
        del refusals["pwrite"], refusals["mmap"]
    run(f"""
for how, outcome in {refusals!r}.items():
    elevation = np.ones(1 << 18)
    given = nbshare.share(elevation) if {kind!r} == "SharedArray" else elevation
    attack = functools.partial(quiet, tasks.attack, shared={{"elevation": given}}, out="list")
    found = attack([how])[0]
    assert found == outcome, (how, found)
    assert (elevation == 1.0).all() and (given == 1.0).all(), how
    assert given.flags.writeable, how
    given[0] = 2.0
    found = quiet(tasks.first_of, range(2), shared={{"elevation": given}})
    assert found.tolist() == [2.0, 2.0], (how, found)
""")


@pytest.mark.parametrize("who", ["owner", "worker", "stranger"])
def test_w1_nobody_can_write_to_what_was_shared_read_only(run, who):
    """Python and the kernel refuse all of it. `mprotect` gives other processes a private copy."""
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
is_owner = {who!r} == "owner"
refusals["mprotect"] = ("PermissionError", True) if is_owner else ("allowed", False)
refusals |= {{how: ("PermissionError", is_owner) for how in ("pwrite", "mmap", "truncate")}}
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
    while (found := one(tasks.kept, [0], out="list")[0])[0] != pid:
        pass  # a loaded machine has another worker free
    assert found[1] == [3.0], (i, found)
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


@pytest.mark.first
@pytest.mark.parametrize("way", WAYS_TO_SEND)
def test_w5_an_array_arrives_after_its_senders_last_reference_died(run, way):
    """An array under way is held until it has arrived, and no longer."""
    run(
        guarded(f"""
def make_others():
    for i in range(100):
        nbshare.full(1000, 9.0)
make_others()  # another array under way may keep the segment of small arrays
before = faultlab.memfd_bytes([os.getpid()])
arrays = [nbshare.full(1000, float(i)) for i in range(3)]
def look_for_receipts():
    held = faultlab.memfd_bytes([os.getpid()])
    marker = nbshare.ones(1_000_000)
    ForkingPickler.loads(ForkingPickler.dumps(marker))  # it has arrived
    del marker
    wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) < held + 8_000_000)
def let_go():
    gc.collect()
    look_for_receipts()
    look_for_receipts()
    make_others()
    raise_flag("go")
{WAYS_TO_SEND[way]}
assert sums == [0.0, 1000.0, 2000.0], sums
found = later = None
def held():
    gc.collect()
    return faultlab.memfd_bytes([os.getpid()])
wait_until(lambda: held() <= before + 4096, SOON_S, lambda: f"{{held()}} bytes are kept")
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
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= before + 4096, SOON_S, "memory is kept")
""")
    assert subject.stderr == ""


@pytest.mark.parametrize("does", ["maps", "waits", "iterates", "shuts down"])
def test_w6_finalizers_that_use_nbshare(run_script, does):
    """In any collecting thread. If it would wait for itself it is refused, others are right."""
    run_script(f"""
from nbshare._core.engine.local import dispatcher
does, n, seen = {does!r}, 20 if {does!r} == "shuts down" else 40, []
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
gc.set_threshold(17)  # so that threads of nbshare collect, too
for i in range(n):
    if i % 2:  # certainly
        gc.disable()
        Session()
        dispatcher()._events.post(lambda: (gc.collect(), gc.enable()))
    else:
        Session()
    result = quiet(lambda i: i, iter(range(50)), max_workers=2)
    assert does == "shuts down" or result.tolist() == list(range(50))
gc.set_threshold(700)
assert set(seen) - {{os.getpid()}}, "only the main thread has collected: nothing is tested"
wait_until(lambda: gc.collect() >= 0 and len(seen) == i + 1, what="sessions are kept")
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
    """Partial results are the caller's, so rows can be assigned, done ones and missing ones."""
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


def test_r3_values_are_exact(run_script):
    """Awkward arrays go in and come out with their values, dtype and shape, and are writable."""
    rows = "\n".join(f"    {name!r}: lambda: ({code})," for name, code in VALUES.items())
    run_script(
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
    """Offsets beyond 2 GiB are right, in a sparse array, of which one page is touched."""
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


@pytest.mark.first
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
import nbshare
from tests.support import faultlab_tasks as tasks
from nbshare._core.memory import handle_of, segment_of
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
    """It is refused, whatever the descriptor's number means by now, and nothing blocks."""
    run(f"""
import pickle, subprocess
owner = subprocess.Popen([sys.executable, "-c", {LETS_GO!r}], stdin=-1, stdout=-1)
sent = pickle.load(owner.stdout)
for how, reference in zip(tasks.STALE, sent, strict=True):
    text = tasks.refusal(reference)
    assert "freed it" in text and "numpy.array" in text, (how, text)
owner.communicate(timeout=10)
for reference in sent:
    assert "has ended" in tasks.refusal(reference)
tasks.check_double()
""")


def test_h1_a_forged_handle_is_an_error_at_once(run):
    """A handle that is wrong in one word is refused. So is that of a recycled process number."""
    run(
        guarded("""
from nbshare.errors import StaleReferenceError
from nbshare._core.memory import handle_of, segment_of
array = nbshare.full(1_000_000, 1.0)  # small ones share a segment
handle = handle_of(segment_of(array)[0])
wrong = {"pid": os.getppid(), "name": "nbshare-" + "0" * 16, "fd": os.open("/dev/null", 0)}
for word in ("pid", "fd", "inode", "name"):
    forged = handle._replace(**{word: wrong.get(word) or getattr(handle, word) + 1})
    with SPAWN.Pool(1) as pool:
        try:
            found = pool.apply(tasks.open_and_read, [forged])
        except StaleReferenceError:
            pass
        else:
            raise AssertionError(f"taken for {found}, though its {word} is wrong")
        assert (pool.apply(tasks.open_and_read, [handle]) == 1.0).all(), word
""")
    )


@dataclass(frozen=True)
class Elsewhere:
    """A place of a receiver that cannot have the memory."""

    wrapper: str  # of its command
    enter: str  # what it does when it has read the reference
    reason: str  # that it must be given

    def visit(self, run: Callable[[str], Any], code: str) -> None:
        """Run code there. A reference to an array of ours is in a file."""
        command = [*self.wrapper.split(), "true"]
        if os.getuid() or subprocess.run(command, capture_output=True).returncode:
            pytest.skip("to get there takes privileges that this process lacks")
        there = f"""
import ctypes, os, subprocess, sys
from pathlib import Path
import numpy as np
import nbshare
from tests.support import faultlab_tasks as tasks
def be_dumpable():  # as processes are that such a user has started
    assert ctypes.CDLL(None).prctl(4, 1, 0, 0, 0) == 0
def mount(*arguments):
    subprocess.run(["mount", *arguments], check=True)
nbshare.parallel_map  # with all that it imports: another user may not read its files
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
    """It is told why and what to do, at once. The owner, and its own workers, are unaffected."""
    place = ELSEWHERE[where]
    place.visit(
        run,
        f"""
text = tasks.refusal(reference)
assert {place.reason!r} in text and "numpy.array" in text, text
if os.access(sys.executable, os.X_OK) and os.access(os.__file__, os.R_OK):
    tasks.check_double()
    own = nbshare.full(1000, 2.0)
    assert nbshare.parallel_map(tasks.echo, [own, own], progress=False).sum() == 4000.0
    nbshare.shutdown()
""",
    )
