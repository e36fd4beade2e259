"""The fault catalogue: descriptors, processes and calls that the system refuses.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import os
import platform
import resource
import shutil
import signal
import subprocess

import pytest

from nbshare._core.system import descriptors
from nbshare._core.wire.failures import Death
from tests.support.catalogue import CENSUS
from tests.support.faultlab import PREAMBLE, SOON_S, Lab
from tests.support.kernels import Kernel

# ---------------------------------------------------------------- R: the system's limits


@pytest.mark.parametrize("limit_s", [resource.RLIM_INFINITY, 1_000_000])
def test_a_killed_worker_names_the_limit_of_cpu_time_if_there_is_one(limit_s):
    """The limit of the caller, which workers take over."""
    before = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (limit_s, before[1]))
    try:
        error = Death(item=0, status=-signal.SIGKILL, has_closed=False).as_error("item 0", 1)
    finally:
        resource.setrlimit(resource.RLIMIT_CPU, before)
    assert ("ulimit -t" in str(error)) == (limit_s != resource.RLIM_INFINITY)


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


@pytest.mark.parametrize(
    "n_free",
    [
        (0, 3, 5, 8, 10, 12, 18, 21, 26, 32),
        (1, 6, 7, 9, 11, 14, 16, 20),
    ],
    ids=["some", "others"],
)
def test_r1_the_last_descriptors(lab, n_free):
    """With a few descriptors free, a call is right or names the limit. The next one is right."""
    lab.run(
        f"N_FREE = {n_free}\n"
        + CENSUS
        + TAKE_ALL
        + """
renew()
before = census()
rows = [np.full(3000, float(i)) for i in range(20)]
n_right = 0
for n_free in N_FREE:
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
    assert time.monotonic() - start < SOON_S, n_free
    if error is None:
        assert all(map(np.array_equal, found, rows))
        n_right += 1
    else:
        text = " ".join([str(error), *getattr(error, "__notes__", ())])
        assert "open files" in text or "descriptors" in text, (n_free, repr(error))
    error = found = None
    tasks.check_double()
assert n_right > 2, n_right
renew()
gc.collect()  # of errors that the system itself raised
await_census(before, "in the end")
""",
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
    """They share descriptors. 3000 are made, and runs work, though 1024 files may be open."""
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


def test_r1_a_segment_takes_one_descriptor_or_two(lab):
    """Made, shared, attached or a result, for each large array, two before Python 3.13."""
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
    assert n <= (12 if sys.version_info >= (3, 13) else 24), n  # a map keeps some for the next
""")


def test_r1_the_soft_limit_is_raised_when_it_is_in_the_way(lab):
    """600 arrays where 256 files may be open and 4096 may be allowed. Then a run works."""
    lab.run("""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (256, 4096))
tasks.check_double()  # workers that are there have the old limit
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (256, 4096)
arrays = [nbshare.zeros(1 << 17, "u1") for _ in range(600)]
assert resource.getrlimit(resource.RLIMIT_NOFILE) == (4096, 4096)
for i, array in enumerate(arrays):
    array[-1] = i % 256
assert quiet(np.max, arrays).tolist() == [i % 256 for i in range(600)]
""")


def test_r1_a_limit_that_the_system_refuses_is_tried_lower(monkeypatch):
    """As macOS up to version 11 does, where the hard limit is none but the system has another."""
    none, given = (1 << 63) - 1, []

    def setrlimit(_, limits):
        if limits[0] > 24_576:
            raise ValueError("current limit exceeds maximum limit")
        given.append(limits)

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, none))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    descriptors.raise_limit()
    assert given == [(10_240, none)]


def test_r1_past_the_limit_an_error_says_what_to_do(lab):
    """It is an OSError that names limit and ways out. When some arrays are gone a run works."""
    lab.run("""
import errno, resource
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))
tasks.check_double()
arrays = []
try:
    while len(arrays) < 200:
        arrays.append(nbshare.zeros(10_000))
except OSError as error:
    assert error.errno == errno.EMFILE
    for words in ("128", "ulimit -n", "32 KiB", "SharedBuffer", "raise the limit"):
        assert words in str(error), error
assert len(arrays) > (90 if sys.version_info >= (3, 13) else 45), len(arrays)
del arrays[:40]
tasks.check_double()
assert (quiet(np.sqrt, np.ones((4, 100_000))) == 1).all()
""")


# Root may have as many processes as it likes. Another user with root's access to files may not.
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


@pytest.fixture(scope="module")
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


@pytest.mark.first
def test_r2_no_more_processes(run_limited):
    """If no thread or process may be started the error says so, and it ends with the limit."""
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
    """A done-callback of the run is called, and the workers live on."""
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
    """Large arrays, maps of them, generators, threads and references work. No memory is kept."""
    run_limited("""
import queue
from multiprocessing.reduction import ForkingPickler
from nbshare._core.memory import pool
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
kept, _ = nbshare._core.memory.segment_of(shared)
name = kept.name
del shared, kept
again = nbshare.share(large)
assert nbshare._core.memory.segment_of(again)[0].name == name
""")


@pytest.fixture(scope="module")
def limited_kernel(may_be_another, tmp_path_factory):
    """Give a kernel of that user to two tests."""
    lab = Lab(tmp_path_factory.mktemp("limited"))
    try:
        for folder in (lab.folder, lab.tmp):
            folder.chmod(0o777)
        kernel = Kernel(lab, wrapper=AS_ANOTHER)
        try:
            kernel.run_well(f"{CENSUS}{LIMIT}\ntasks.check_double()")
            yield kernel
        finally:
            kernel.close()
            for folder in lab.tmp.iterdir():  # IPython's and matplotlib's, as access(2) denies them
                shutil.rmtree(folder)
    finally:
        lab.close()


def test_x6_what_is_drawn_by_threads_is_drawn_without_them(limited_kernel):
    """In a kernel that may start none, jobs run and their displays have the last state."""
    cell = limited_kernel.run_well("""
def held(i):
    await_flag("go on")
    return i
tasks.check_double()  # workers, and the thread that owns them, are there
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


def test_r2_no_more_processes_in_a_kernel(limited_kernel):
    """The cell's error says so, the kernel goes on, and with the limit gone the call is right."""
    cell = limited_kernel.run_well("""
assert os.getuid() == 54321
nbshare.shutdown()
for limit_of in (1, census()["threads"] + 1, census()["threads"] + 2):
    limit(limit_of)
    start = time.monotonic()
    try:
        tasks.check_double()
    except WorkerDiedError as error:
        assert "process" in str(error) or "thread" in str(error), error
    else:
        raise AssertionError(f"no error where {limit_of} threads are allowed")
    finally:
        limit(500)
    assert time.monotonic() - start < 2 * faultlab.SOON_S, limit_of
    tasks.check_double()
    nbshare.shutdown()
wait_until(lambda: not any(helpers()), SOON_S, "helpers are left")
""")
    assert "Traceback" not in cell.stderr


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
import errno, warnings
from tests.support import refused
warnings.filterwarnings("ignore", "arrays use shared memory of the kind")
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
wait_until(lambda: not any(helpers()), SOON_S, "helpers after shutdown")
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
wait_until(lambda: len(helpers()[1]) == N, SOON_S, lambda: len(helpers()[1]))
del second, found
tell(first_s=first_s, each=each, servers=len(helpers()[0]),
     descriptors=len(os.listdir("/proc/self/fd")) - n_before)
kill(helpers()[1])
tasks.check_double()
start = time.monotonic()
nbshare.shutdown()
wait_until(lambda: not any(helpers()), SOON_S, "helpers after shutdown")
wait_until(lambda: len(os.listdir("/proc/self/fd")) <= n_before + 1, SOON_S, "descriptors")
"""


def test_sixteen_workers(lab):
    """Many more workers than CPUs are right, soon there, with 8 MB and a few descriptors each."""
    lab.run(f"N = 16\n{WORKERS}")
    facts = lab.facts
    assert facts["first_s"] < SOON_S
    assert facts["each"] < 8 << 20
    assert facts["servers"] == 1
    # Of each a socket, a pidfd, and two pipes for what it prints.
    assert facts["descriptors"] <= 16 * 4 + 12


def test_after_a_shutdown_all_descriptors_may_be_closed(lab):
    """The next call starts anew, and touches no file that has a number of an earlier one."""
    lab.run("""
tasks.check_double()
kept = quiet(tasks.double, range(100_000))  # large enough to be used again
nbshare.shutdown()
os.closerange(3, 4096)
files = [open(f"file-{i}", "w+") for i in range(60)]  # have the numbers now
tasks.check_double()
assert kept[-1] == 199_998.0
assert {os.fstat(file.fileno()).st_size for file in files} == {0}
""")
