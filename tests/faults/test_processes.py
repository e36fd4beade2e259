"""The fault catalogue: code, nested processes, and calls at the same time.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import subprocess

import pytest

from tests.support.catalogue import LEAVE
from tests.support.faultlab_tasks import LITTER

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
    """Changes of an item to its process, and its prints, do not burden the next call."""
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


def test_c6_an_alarm_that_an_item_has_set(run_script):
    """It rings neither in an idle worker nor in the items of the next call."""
    run_script("""
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


def test_c6_signals_that_an_item_has_blocked(run_script):
    """They are delivered in the next call. An initializer's blocked signals stay so."""
    run_script("""
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


@pytest.mark.parametrize("how", ["handles signals", "hides crashes"])
def test_c6_a_crash_in_c_after_an_item_has_set_handlers(run_script, how):
    """The stack is shown as it is without them."""
    subject = run_script(f"""
from nbshare.errors import WorkerDiedError
pair(functools.partial(tasks.litter, {how!r}), range(2))
try:
    pair(functools.partial(tasks.stumble, "segfaults"), [f"stone-{{i}}" for i in range(4)])
except WorkerDiedError as error:
    assert "SIGSEGV" in str(error)
""")
    assert "Fatal Python error: Segmentation fault" in subject.stderr


def test_p1_what_threads_open_at_once_is_closed(run_script):
    """Of what several calls begin with, at the same time, nothing stays open."""
    run_script("""
from nbshare._core.wire import context
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


def test_p1_two_threads_call_at_once(run_script):
    """Calls from several threads at once each get their own results."""
    run_script("""
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


@pytest.mark.parametrize("child_does", ["calls", "ends", "shuts down", "is killed in a call"])
def test_p2_the_owner_forks(run, child_does):
    """A forked child has workers of its own or none. The parent's workers are unaffected."""
    run(f"""{LEAVE}
nbshare.shutdown()  # workers of another script may be about to end
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
    time.sleep(0.05)  # a worker that leaves a hundred calls unread counts as stopped
    assert time.monotonic() < end, "the child hangs"
expected = -signal.SIGKILL if "killed" in {child_does!r} else 0
assert os.waitstatus_to_exitcode(status) == expected
assert helpers()[1] >= workers, "the parent's workers were replaced"
wait_until(lambda: faultlab.tagged() == {{os.getpid()}}.union(*helpers()), SOON_S, "orphans")
tasks.check_double()
""")
