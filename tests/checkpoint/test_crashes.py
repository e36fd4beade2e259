"""The disk may cut off, lose or refuse anything, without a wrong result, or a lost one."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import zlib
from pathlib import Path

import numpy as np
import psutil
import pytest

from nbshare import Checkpoint, map_async, open_checkpoint, parallel_map, shutdown
from nbshare._core.checkpoint import directory, keeper, writer
from nbshare._core.checkpoint.reader import RowReader
from nbshare._core.checkpoint.versions import Versions
from nbshare._core.memory import disk as disk_calls
from nbshare._core.store import files
from nbshare._core.store.rows import INDEX
from nbshare._core.system import locks
from nbshare.errors import CheckpointError, CheckpointInUseError, CheckpointWarning
from tests.support import disks, small_sweeps, sweeps
from tests.support.faultlab import SIGKILL, SYSTEM, wait_until
from tests.support.grids import combined
from tests.support.processes import kill_now

N = 6
MOST_QUICK = 90  # states, but in the soak
MAY_ALL = sys.platform == "win32" or os.getuid() == 0


FUNCTIONS = [small_sweeps.values, small_sweeps.objects, small_sweeps.twos]


def run(func, path, n=N, **stored):
    """Run a sweep here, in this process. Return its results and what has run."""
    small_sweeps.CALLS.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = parallel_map(
            func,
            range(n),
            checkpoint=Checkpoint(path, version="", **stored),
            backend="serial",
            progress=False,
        )
    return results, list(small_sweeps.CALLS)


def plain(results):
    return [repr(lists_in(x)) for x in results]


def lists_in(x):
    """Return lists for arrays, of which repr would take a third of the time here."""
    if isinstance(x, dict):
        return {name: lists_in(each) for name, each in x.items()}
    return np.asarray(x).tolist()


@pytest.fixture
def tmp_path():
    """Give a folder in memory, as the real disk would take a minute to sync, if there is one."""
    has_files = os.path.isdir("/dev/shm") and not SYSTEM  # a Mac's shared memory has none
    in_memory = "/dev/shm" if has_files else None
    # On Windows it stays if a failed run has files open, which its error keeps.
    is_kept = sys.platform == "win32"
    with tempfile.TemporaryDirectory(dir=in_memory, ignore_cleanup_errors=is_kept) as folder:
        yield Path(folder)


@pytest.fixture
def quick(monkeypatch):
    """Have results stored as soon as they are there."""
    monkeypatch.setattr(keeper, "SAVE_S", 1e-3)
    monkeypatch.setattr(directory, "FLUSH_S", 1e-2)


def record(func, tmp_path, monkeypatch, durability):
    """Return the calls of a sweep in two parts, and when results were there for good."""
    disk = disks.Recording()
    monkeypatch.setitem(small_sweeps.PAUSE_S, 0, 5e-3)
    monkeypatch.setattr(disk_calls, "system", disk)
    run(func, tmp_path / "recorded", n=3, durability=durability)
    results, _ = run(func, tmp_path / "recorded", durability=durability)
    monkeypatch.setattr(disk_calls, "system", disk_calls.System())
    monkeypatch.setitem(small_sweeps.PAUSE_S, 0, 0.0)
    return disk.ops, plain(results)


def written(state, tmp_path):
    """Return a folder with a state."""
    path = tmp_path / "state"
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir()
    for name, data in state.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data)
    return path


def resume(func, tmp_path, state, expected, durability, *, is_new_boot=False):
    """Write a state, go on from it, and compare. Return what has run."""
    path = written(state, tmp_path)
    with contextlib.suppress(KeyError, ValueError):  # it is not there, or not whole
        if is_new_boot:
            told = files.unsealed(state["lease.json"])
            files.replace_json(path / "lease.json", told | {"boot": "another"})
    results, ran = run(func, path, durability=durability)
    assert plain(results) == expected
    again, ran_again = run(func, path, durability=durability)
    assert plain(again) == expected
    assert ran_again == []
    return ran


def stored_in(state) -> set[int]:
    """Return the items whose index words say that they are there. Rows are items here."""
    index = state.get("index.npy", b"")
    size = N * INDEX.itemsize
    words = np.frombuffer(index[256 : 256 + size].ljust(size, b"\0"), INDEX)
    return set(np.flatnonzero(np.isin(words["state"], (1, 2))).tolist())


def whole_in(state, tmp_path) -> set[int]:
    """Return those of them whose results are there, too."""
    reader, rows = RowReader(written(state, tmp_path)), np.array([*stored_in(state)], np.int64)
    return set(rows[reader.are_whole(rows, reader.words()[rows])].tolist()) if len(rows) else set()


def pieces(op):
    """Return a write as a crash may cut it. Words of the index stay whole, and headers."""
    data = op.data
    if op.kind != "write" or op.offset == 0 or len(data) < 16:
        return []
    cut = len(data) // 16 * 8
    return [op._replace(data=data[:cut])]


def prefixes(ops):
    """Yield each beginning of some calls, also those that end in the middle of a write."""
    for k in range(len(ops) + 1):
        yield ops[:k]
        if k < len(ops):
            for piece in pieces(ops[k]):
                yield [*ops[:k], piece]


def indexed(ops):
    """Yield the beginnings of some calls that end with a word of the index, which comes last."""
    for k, op in enumerate(ops):
        if op.kind == "write" and op.name == "index.npy":
            yield ops[: k + 1]


def some(states, most, is_slow):
    """Return all states for the soak, and else some of them, those at the end too."""
    states = list(states)
    step = 1 if is_slow else max(1, len(states) // most)
    return states[::-step]


SLOW = [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(1800)])]


@pytest.mark.first
@pytest.mark.parametrize("is_slow", SLOW, ids=["some", "all"])
@pytest.mark.parametrize("func", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_moment_of_a_kill(func, is_slow, tmp_path, monkeypatch, quick):
    """The process ends between two calls of the system, or in one. Indexed results are there."""
    ops, expected = record(func, tmp_path, monkeypatch, "process")
    for part in [*indexed(ops), *some(prefixes(ops), MOST_QUICK // 4, is_slow)]:
        state = disks.after(part)
        ran = resume(func, tmp_path, state, expected, "process")
        assert not set(ran) & stored_in(state)


@pytest.mark.first
@pytest.mark.parametrize("is_slow", SLOW, ids=["some", "all"])
@pytest.mark.parametrize("durability", ["power", "process"])
@pytest.mark.parametrize("func", FUNCTIONS, ids=lambda f: f.__name__)
def test_every_moment_of_a_power_failure(func, durability, is_slow, tmp_path, monkeypatch, quick):
    """The disk forgets any of the calls that nobody waited for, but with "power" no result."""
    ops, expected = record(func, tmp_path, monkeypatch, durability)
    chance = random.Random(1)
    n_each = 60 if is_slow else 6
    states = []
    for k in range(len(ops) + 1):
        pending = disks.unsynced(ops[:k])
        on_disk = disks.after([op for i, op in enumerate(ops[:k]) if i not in pending])
        safe = whole_in(on_disk, tmp_path)
        for lost in disks.subsets(pending, chance, n_each):
            kept = [op for i, op in enumerate(ops[:k]) if i not in lost]
            states.append((kept, safe))
    assert safe == set(range(N)) or durability == "process"
    for kept, safe in some(states, MOST_QUICK // 4, is_slow):
        try:
            state = disks.after(kept)
        except KeyError:  # a file was renamed that is not there, so no such state
            continue
        ran = resume(func, tmp_path, state, expected, durability, is_new_boot=True)
        if durability == "power":
            assert not set(ran) & safe


@pytest.mark.first
@pytest.mark.parametrize(
    ("func", "durability", "how"),
    combined(FUNCTIONS[:2], ["process", "power"], ["ENOSPC", "EIO", "EINTR", "short"], soak=True),
)
def test_a_disk_that_fails_at_any_call(func, durability, how, tmp_path, monkeypatch, quick):
    """A clear error before anything runs, or one warning and all results. Then all is well."""
    monkeypatch.setattr(keeper, "PAUSE_S", 0.0)
    _, expected = record(func, tmp_path, monkeypatch, durability)
    at = 0
    while True:
        path = tmp_path / f"run {at}"
        disk = disks.Failing(at, how)
        monkeypatch.setattr(disk_calls, "system", disk)
        try:
            results, _ = run(func, path, durability=durability)
            assert plain(results) == expected
        except OSError:
            assert small_sweeps.CALLS == []
        monkeypatch.setattr(disk_calls, "system", disk_calls.System())
        results, _ = run(func, path, durability=durability)
        assert plain(results) == expected
        if not disk.has_failed:
            break
        at += 1
    assert at > 20


def test_logs_of_earlier_runs_are_waited_for_once(tmp_path, monkeypatch, quick):
    """A run that was continued a hundred times has hundreds of them."""
    path = tmp_path / "run"
    for n in range(1, 6):
        run(small_sweeps.objects, path, n=n)
    logs = sorted(path.glob("objects*.log"))
    disk = disks.Recording()
    monkeypatch.setattr(disk_calls, "system", disk)
    monkeypatch.setitem(small_sweeps.PAUSE_S, 0, 0.05)
    run(small_sweeps.objects, path, n=9, durability="power")
    synced = [op.name for op in disk.ops if op.kind == "sync"]
    assert synced.count("index.npy") > 2
    assert [synced.count(log.name) for log in logs] == [1] * 5


@pytest.mark.parametrize(
    ("on_full", "is_driver"), [("continue", False), ("stop", False), ("continue", True)]
)
@pytest.mark.filterwarnings("ignore:.*results cannot be stored")
def test_a_full_disk(on_full, is_driver, tmp_path, monkeypatch, quick):
    """One warning, and all results in memory, or the error, and stored results stay.

    The process of a detached run ends with the error, as nobody else has its memory.
    """
    monkeypatch.setattr(writer, "is_driver", is_driver)
    monkeypatch.setattr(keeper, "PAUSE_S", 0.01)
    path = tmp_path / "run"
    run(small_sweeps.values, path)
    disk = disks.Failing(0, "ENOSPC")
    n_calls = len(record(small_sweeps.values, tmp_path, monkeypatch, "process")[0])
    disk = disks.Failing(n_calls // 2, "ENOSPC", lasting=True)
    monkeypatch.setattr(disk_calls, "system", disk)

    def call():
        stored = Checkpoint(path, version="", on_full=on_full)
        return parallel_map(
            small_sweeps.values, range(40), checkpoint=stored, backend="serial", progress=False
        )

    if on_full == "stop" or is_driver:
        with pytest.raises(OSError, match="No space left") as told:
            call()
        assert str(path) in told.value.__notes__[0]
    else:
        with pytest.warns(CheckpointWarning, match="No space left") as told:
            assert len(call()) == 40
        assert len(told) == 1
    monkeypatch.setattr(disk_calls, "system", disk_calls.System())
    results, ran = run(small_sweeps.values, path, n=40)
    assert len(results) == 40
    assert not set(ran) & set(range(N))


@pytest.mark.parametrize("backend", [None, "serial", "threads"])
def test_stored_results_that_cannot_be_mapped_end_the_run(backend, tmp_path, monkeypatch):
    """With the error, at once. The call has not begun, so nothing has to be stored."""
    items = np.arange(40.0)
    stored = Checkpoint(tmp_path / "run", on_full="stop")
    options = {"checkpoint": stored, "backend": backend, "progress": False, "max_workers": 2}
    parallel_map(np.atleast_1d, items, **options)

    def refuse(self, spec):
        raise OSError(errno.ENOMEM, "no memory for a mapping")

    n_threads = threading.active_count()
    with monkeypatch.context() as patch:
        patch.setattr(directory.Directory, "output", refuse)
        for _ in range(3):
            with pytest.raises(OSError, match="no memory for a mapping"):
                parallel_map(np.atleast_1d, items, **options)
    assert threading.active_count() <= n_threads
    assert np.array_equal(parallel_map(np.atleast_1d, items, **options)[:, 0], items)


def test_an_error_of_the_thread_that_stores_ends_the_run(tmp_path, monkeypatch, quick):
    """Such as one of the user's own way to show warnings. The run does not wait for ever."""

    def refuse(*_, **__):
        raise ValueError("warnings cannot be shown")

    monkeypatch.setitem(small_sweeps.PAUSE_S, 0, 0.02)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", refuse)
        stored = Checkpoint(tmp_path / "run", version="")
        job = map_async(
            small_sweeps.objects, range(40), checkpoint=stored,
            backend="threads", progress=False, max_workers=1,
        )  # fmt: skip
        wait_until(lambda: job.n_done > 2)  # later, only that thread says that the disk fails
        monkeypatch.setattr(disk_calls, "system", disks.Failing(0, "ENOSPC", lasting=True))
        with pytest.raises(ValueError, match="cannot be shown"):
            job.result(20)
    assert job.state == "failed"


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of the size of files there")
@pytest.mark.parametrize("durability", ["process", "power"])
def test_a_disk_that_refuses_a_workers_rows(durability, tmp_path):
    """Files of workers may not get larger than 1 MB. Later rows go through memory to the disk."""
    path = tmp_path / "run"

    def call():
        stored = Checkpoint(path, durability=durability)
        return parallel_map(refused, range(20), checkpoint=stored)

    expected = np.arange(20.0)[:, None] + np.zeros(12_500)
    assert (call() == expected).all()
    shutdown()  # its workers keep the limit
    index = np.load(path / "index.npy")
    rows = np.load(path / "results.npy")
    assert set(index["state"]) == {1, 2}
    for k in np.flatnonzero(index["state"] == 1):
        assert index["crc"][k] == zlib.crc32(index[k].tobytes()[:-4], zlib.crc32(rows[k]))
    assert (call() == expected).all()


def refused(x):
    """Return 100 kB."""
    import resource

    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
    return np.full(12_500, float(x))


@pytest.mark.parametrize("kind", [int, str])
def test_a_directory_that_vanishes(kind, tmp_path, quick):
    """One warning, and all results, in memory or in files that have no name any more."""
    path = tmp_path / "run"
    options = {"shared": {"path": str(path), "kind": kind}, "checkpoint": path}
    with pytest.warns(CheckpointWarning, match="the folder was removed") as told:
        found = parallel_map(vanishing, range(20), backend="serial", **options)
    assert list(found) == [*map(kind, range(20))]
    assert len(told) == 1
    assert not path.exists()


def vanishing(x, path, kind):
    if x == 10:
        time.sleep(0.05)
        shutil.rmtree(path)
    time.sleep(0.005)
    return kind(x)


@pytest.mark.parametrize("kind", [np.array, tuple])
def test_a_directory_that_is_replaced(kind, tmp_path, cold):
    """One warning and all results, also of a worker that comes later. The new one is left alone."""
    path = tmp_path / "run"
    options = {"shared": {"path": str(path), "kind": kind}, "checkpoint": path}
    with pytest.warns(CheckpointWarning, match="the folder was removed"):
        results = parallel_map(replacing, range(8), max_workers=2, **options)
    assert [*map(list, results)] == [[x, x] for x in range(8)]
    assert list(path.iterdir()) == []


@pytest.mark.parametrize("backend", [None, "threads"])
def test_files_that_a_worker_cannot_have(backend, tmp_path, monkeypatch):
    """Its arrays stay in memory, though the others are only in the file."""

    def refuse(*_):
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr(Versions, "note_imports", refuse)
    with pytest.warns(CheckpointWarning, match="cannot be stored"):
        found = parallel_map(
            np.array, [[i, i] for i in range(5)], checkpoint=tmp_path / "run", backend=backend
        )
    assert [*map(list, found)] == [[i, i] for i in range(5)]


def replacing(x, path, kind):
    """Put another folder in its place, when the other worker has stored a result."""
    while x == 1 and not np.load(Path(path, "index.npy"), mmap_mode="r")["state"].any():
        time.sleep(0.001)
    if x == 1:
        Path(path).rename(f"{path} before")
        Path(path).mkdir()
    return kind([x, x])


def test_an_end_that_cannot_be_noted(tmp_path):
    """One warning. The next call can write to the checkpoint."""
    path = tmp_path / "run"

    def call():
        return parallel_map(
            math.sqrt, [1, 4, -9], checkpoint=path, on_error="return", backend="serial"
        )

    call()
    (path / "errors.jsonl").unlink()
    (path / "errors.jsonl").mkdir()
    with pytest.warns(CheckpointWarning, match=r"errors\.jsonl"):
        assert call().tolist() == [1, 2, None]
    (path / "errors.jsonl").rmdir()
    assert call().tolist() == [1, 2, None]
    assert list(open_checkpoint(path).errors) == [2]


@pytest.mark.skipif(MAY_ALL, reason="root, or a user of Windows, may write everywhere")
def test_a_directory_that_may_not_be_written_to(tmp_path):
    """An error before anything runs."""
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError):
        run(small_sweeps.values, tmp_path / "run")
    assert small_sweeps.CALLS == []


@pytest.mark.parametrize("damage", ["a byte", "cut off", "empty", "gone"])
def test_results_that_were_damaged_run_again(damage, tmp_path):
    """After a start of the machine, or where a file is not whole, with a warning, and only they."""
    path = tmp_path / "run"
    expected = plain(run(small_sweeps.values, path)[0])
    lease(path, boot="another")
    file = path / "results.npy"
    data = bytearray(file.read_bytes())
    data[256 + 3 * 12] ^= 1
    file.write_bytes({"a byte": data, "cut off": data[:-20], "empty": b"", "gone": data}[damage])
    if damage == "gone":
        file.unlink()
    small_sweeps.CALLS.clear()
    with pytest.warns(CheckpointWarning, match="runs their items again"):
        results = parallel_map(
            small_sweeps.values, range(N), checkpoint=Checkpoint(path, version=""), backend="serial"
        )
    assert plain(results) == expected
    assert {"a byte": [3], "cut off": [3, 4, 5]}.get(damage, list(range(N))) == small_sweeps.CALLS


@pytest.mark.parametrize("damage", ["empty", "cut off", "gone"])
@pytest.mark.parametrize("name", ["meta.json", "code.json"])
def test_a_damaged_file_that_says_what_results_are_is_named(name, damage, tmp_path):
    """Nothing runs or is lost, as the file can be put back. A restart does without code.json."""
    path = tmp_path / "run"
    expected = plain(run(small_sweeps.values, path)[0])
    before = (path / name).read_text()
    (path / name).write_text(before[:50] if damage == "cut off" else "")
    if damage == "gone":
        (path / name).unlink()
    with pytest.raises(CheckpointError, match=name.replace(".", r"\.")):
        run(small_sweeps.values, path, n=8)
    assert small_sweeps.CALLS == []
    if name == "code.json":
        shutil.copytree(path, other := tmp_path / "other")
        again, ran = run(small_sweeps.values, other, if_changed="restart")
        assert (plain(again), ran) == (expected, list(range(N)))
    (path / name).write_text(before)
    again, ran = run(small_sweeps.values, path)
    assert (plain(again), ran) == (expected, [])


def test_a_file_that_says_more_than_it_has_keeps_its_rows(tmp_path):
    """As after a power failure, when its header had grown, and its space had not."""
    path = tmp_path / "run"
    expected = plain(run(small_sweeps.values, path)[0])
    lease(path, boot="another")
    file = path / "results.npy"
    assert file.read_bytes().count(b"(6, 3)") == 1
    file.write_bytes(file.read_bytes().replace(b"(6, 3)", b"(9, 3)"))
    again, ran = run(small_sweeps.values, path)
    assert plain(again) == expected
    assert ran == []


def test_a_log_that_is_gone_runs_its_items_again(tmp_path):
    """As after a power failure, when its name was in no folder yet."""
    path = tmp_path / "run"
    expected = plain(run(small_sweeps.objects, path)[0])
    for log in path.glob("objects*.log"):
        log.unlink()
    with pytest.warns(CheckpointWarning, match="runs their items again"):
        results = parallel_map(
            small_sweeps.objects,
            range(N),
            checkpoint=Checkpoint(path, version=""),
            backend="serial",
        )
    assert plain(results) == expected
    assert run(small_sweeps.objects, path)[1] == []


# ---------------------------------------------------------------------------- one writer


def lease(path, **changes):
    known = files.read_json(path / "lease.json")
    files.replace_json(path / "lease.json", known | {"ended": False} | changes)


def test_a_writer_on_another_host_is_given_a_minute(tmp_path, monkeypatch):
    """By the clock of the file system. Then it is gone."""
    path = tmp_path / "run"
    run(small_sweeps.values, path)
    lease(path, host="elsewhere")
    with pytest.raises(CheckpointInUseError, match=r"on elsewhere .* try again in a minute"):
        run(small_sweeps.values, path)
    assert open_checkpoint(path).state == "running"
    old = time.time() - 61
    os.utime(path / "lease.json", (old, old))
    assert run(small_sweeps.values, path)[1] == []


def test_a_dead_writer_is_followed_at_once(tmp_path):
    """Known by its number and start. One that has the number again is another process."""
    path = tmp_path / "run"
    run(small_sweeps.values, path)
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    for changes in ({"pid": ended.pid}, {"pid": 1, "start": 12345}, {"boot": "another"}):
        lease(path, **changes)
        assert open_checkpoint(path).state == "ended"
        assert run(small_sweeps.values, path)[1] == []


@pytest.mark.skipif(sys.platform != "linux" or bool(SYSTEM), reason="its start is in /proc")
def test_a_file_system_without_locks_works_with_a_warning(tmp_path, monkeypatch):
    """The lease alone tells which process writes."""
    import errno

    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(locks, "lock_file", refuse)
    with pytest.warns(CheckpointWarning, match="refuses locks"):
        parallel_map(abs, [1], checkpoint=tmp_path / "run", backend="serial")
    lease(tmp_path / "run", pid=1, start=nbshare_start_of(1))
    with (
        pytest.warns(CheckpointWarning, match="refuses locks"),
        pytest.raises(CheckpointInUseError, match="process 1 on"),
    ):
        parallel_map(abs, [1], checkpoint=tmp_path / "run", backend="serial")


def nbshare_start_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[19])


# --------------------------------------------------------------------------------- kills

PROGRAM = """
import sys, numpy as np, nbshare
from tests.support import sweeps
func, path, log, seed = sys.argv[1:5]
seed = int(seed) if seed != "None" else None
results = nbshare.parallel_map(getattr(sweeps, func), range(60), shared={"log": log}, seed=seed,
                               checkpoint=path, retries=3, progress=False)
print(repr([x if isinstance(x, list) else np.asarray(x).tolist() for x in results]))
"""


SLEEPERS = ["slow_drawn", "slow", "slow_record"]
SOAK = [pytest.mark.soak, pytest.mark.timeout(1200)]


@pytest.mark.parametrize(
    ("func", "n_kills"),
    [
        (SLEEPERS[0], 3),
        *((func, 4) for func in SLEEPERS[1:]),
        *(pytest.param(func, 70, marks=SOAK) for func in SLEEPERS),
    ],
)
def test_kills_at_any_moment(func, n_kills, tmp_path):
    """Of the owner, a worker, or all. In the end all is right, and stored items ran once."""
    chance = random.Random(func)
    log, path = str(tmp_path / "log"), tmp_path / "run"
    seed = "3" if func == "slow_drawn" else "None"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", PROGRAM, func]
    expected = subprocess.run(
        [*command, str(tmp_path / "whole"), log, seed], capture_output=True, env=env, check=True
    ).stdout
    for kill in range(n_kills):
        if kill % 8 == 0:
            shutil.rmtree(path, ignore_errors=True)
        sweeps.noted(log)
        before = open_checkpoint(path).present if (path / "meta.json").exists() else []
        process = subprocess.Popen(
            [*command, str(path), log, seed],
            env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        time.sleep(0.15 + 0.5 * chance.random())
        whom = kill % 3
        if whom == 1:
            children = [child.pid for child in psutil.Process(process.pid).children()]
            for child in children[:1]:
                kill_now(child)
            output, errors = process.communicate(timeout=60)
            assert process.returncode == 0, errors
            assert output == expected
        else:
            end = os.killpg if whom == 2 and hasattr(os, "killpg") else os.kill
            end(process.pid, SIGKILL)
            process.communicate()
        # Workers end with their owner. The log may get one more line of each.
        ran = set(map(int, sweeps.noted(log)))
        assert not ran & set(np.flatnonzero(before).tolist())
    last = subprocess.run(
        [*command, str(path), log, seed], capture_output=True, env=env, check=True
    )
    assert last.stdout == expected


KILLED = """
import os, sys, numpy as np, nbshare
from tests.support import sweeps
func, path, log, durability, kind = sys.argv[1:6]
items = list(range(5000))
seed = 3 if func == "slow_drawn" else None
if kind == "reordered":
    nbshare.parallel_map(getattr(sweeps, func), items[:3], shared={"log": log}, seed=seed,
                         checkpoint=path, progress=False)
    items = items[::-1]
job = nbshare.map_async(getattr(sweeps, func), (x for x in items) if kind == "generator" else items,
                        shared={"log": log}, seed=seed, progress=False,
                        checkpoint=nbshare.Checkpoint(path, durability=durability))
while job.n_done < 40:
    pass
print(np.flatnonzero(job.present).tolist(), flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.first
@pytest.mark.parametrize(
    ("func", "durability", "kind"),
    combined(["slow", "slow_record", "slow_drawn"], ["process", "power"],
            ["list", "generator", "reordered"], soak=True),
)  # fmt: skip
def test_a_killed_owner_loses_nothing(func, durability, kind, tmp_path):
    """All results that it has seen are there, also those of the last millisecond."""
    log, path = str(tmp_path / "log"), tmp_path / "run"
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", KILLED, func, str(path), log, durability, kind]
    killed = subprocess.run(command, env=env, capture_output=True, check=False)
    assert abs(killed.returncode) == 9, killed.stderr
    seen = json.loads(killed.stdout)
    assert len(seen) >= 40
    run = open_checkpoint(path)
    assert set(seen) <= set(np.flatnonzero(run.present).tolist())
    assert run.n_done < 5000
