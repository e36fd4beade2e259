"""The fault catalogue: nothing is left after any outcome, nor half written.

The ids are the catalogue's. E: errors, D: deaths of workers, I: interrupts, K: ends of the owner,
M: memory, C: code, N: nested processes, P: parallel use, W: writes, R: values, limits, H: handles,
X: what else may happen to a process. That nothing is left in ``/dev/shm``, ``TMPDIR`` or among the
processes is checked after every one, or after those that share a process (`Lab.close`).
"""

from __future__ import annotations

import os

import pytest

from nbshare._core.memory import Segment
from tests.support.catalogue import CENSUS

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


are_slow = {  # each is much like one of the others
    *("raises_odd", "gives_unloadable", "leaves", "is killed, errors returned", "is refused"),
    *("arrays of a generator", "generator, raises", "generator, cancelled"),
}


@pytest.mark.first
@pytest.mark.parametrize(
    "outcomes",
    [
        {name: code for name, code in OUTCOMES.items() if name not in are_slow},
        pytest.param(
            {name: code for name, code in OUTCOMES.items() if name in are_slow},
        ),
    ],
    ids=["some", "others"],
)
def test_every_outcome_leaves_the_process_as_it_was(lab, outcomes):
    """After any call, descriptors, memory maps, threads, workers and inputs are as before it.

    Without a collection of garbage, because a notebook may not have one for hours.
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
for name, code in {outcomes!r}.items():
    for turn in range(2):
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


# ------------------------------------------------------------- D, I, M: deaths and memory


def test_d5_a_worker_is_killed_while_it_writes_an_object(run_script):
    """Of an object that was half written nothing is seen, and the others are whole."""
    run_script("""
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
wait_until(lambda: faultlab.memfd_bytes([os.getpid()]) <= 4096, SOON_S, "memory is kept")
""")


def test_d7_the_server_is_lost_while_workers_start(lab):
    """A server that ends at any moment of a cold call is replaced unnoticed."""
    lab.run(
        """
for i in range(6):
    nbshare.shutdown()
    def is_server(pid):  # before, its owner is in vfork, which ends with this moment only
        return b"serve(" in Path(f"/proc/{pid}/cmdline").read_bytes()
    def strike():
        (server,) = wait_until(lambda: set(filter(is_server, helpers()[0])))
        time.sleep(0.02 * i)
        os.kill(server, signal.SIGKILL)
    thread = threading.Thread(target=strike)
    thread.start()
    start = time.monotonic()
    found = quiet(tasks.double, range(40), max_workers=6, chunksize=1)
    assert found.tolist() == [2.0 * i for i in range(40)]
    assert time.monotonic() - start < 3 * faultlab.SOON_S  # it has two cold starts in it
    thread.join()
    tasks.check_double()
""",
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
    start = time.monotonic()
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
        whole_s = time.monotonic() - start  # which changes on a busy machine
        check(enumerate(found))
    tasks.check_double()
assert n_interrupted > 10, n_interrupted
assert all(np.array_equal(item["row"], row) for item, row in zip(items, copy))
""",
    )


@pytest.mark.parametrize("way", ["create", "filled", "attach"])
def test_i2_an_interrupt_as_a_segment_comes_into_being(way, monkeypatch):
    """Its descriptor is closed once. At a second time the number may be another thread's."""
    new, closed = Segment.__new__, []

    def interrupted(*args):
        closed.append(new(*args).fd)
        raise KeyboardInterrupt

    make = {
        "create": lambda: Segment.create(4096),
        "filled": lambda: Segment.filled(4096, []),
        "attach": lambda: Segment.open(os.dup(existing.fd), "r"),
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
