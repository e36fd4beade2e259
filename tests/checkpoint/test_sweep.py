"""A run that several processes share, with nothing in common but a folder."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import nbshare
from nbshare import attach, import_file, open_checkpoint, parallel_map
from nbshare._core.checkpoint import writer
from nbshare._core.store import files
from nbshare.errors import CheckpointInUseError
from tests.support import machines
from tests.support import sweeps as module
from tests.support.faultlab import LIMIT_S, PYTHON_PATH, wait_until
from tests.support.processes import kill_now

sweeps = import_file(module.__file__)  # by the name that it has in the command's processes

ENVIRON = os.environ | {"PYTHONPATH": PYTHON_PATH}  # also where nbshare is not installed
TWICE = [2.0 * i for i in range(12)]
WHY_NOT = machines.why_not()
needs_machines = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))
# A machine has a network, process numbers, mounts and shared memory of its own.
MACHINE = ["unshare", "-n", "-p", "-m", "-i", "-f", "--mount-proc", "--kill-child", "sh", "-c"]
SETUP = 'mount -t tmpfs tmpfs /dev/shm; exec "$@"'
SHORT = "import sys; from nbshare._core.checkpoint import writer; writer.LEASE_S['part'] = 1.0\n"
SHORT += "from nbshare.__main__ import main; sys.exit(main())"


class Sweep:
    """Starts processes that share a run."""

    def __init__(self, folder, function, n, *options):
        self.folder, self.path, self.log = folder, folder / "run", folder / "log"
        np.save(folder / "items.npy", np.arange(n))
        (folder / "log.json").write_text(json.dumps(str(self.log)))
        (folder / "out").mkdir(exist_ok=True)
        self.given = f"run {sweeps.__file__}:{function} --items items.npy --shared log=log.json"
        self.given = [*self.given.split(), "--checkpoint", "run", "--max-workers", "2", *options]
        self.processes = []

    def start(self, *, on_machine=False, begin=("-m", "nbshare"), given=None):
        """Start one. Return it."""
        words = [sys.executable, *begin, *(given or self.given)]
        if on_machine:
            words = [*MACHINE, SETUP, "sh", *words]
        place = self.folder / "out" / str(len(self.processes))
        with place.open("w") as out:
            started = subprocess.Popen(
                words, cwd=self.folder, stdout=out, stderr=out, start_new_session=True, env=ENVIRON
            )
        started.place = place
        self.processes.append(started)
        return started

    def ended(self, process, limit_s=LIMIT_S):
        """Wait for the end of a process. Return its exit code, and what it has written."""
        return process.wait(limit_s), process.place.read_text()

    def ran(self):
        """Return how often each item has run."""
        lines = self.log.read_text().split()
        return np.bincount([int(x) for x in lines])

    def await_done(self, n):
        """Wait until so many results are stored."""
        wait_until((self.path / "parts").exists)
        wait_until(lambda: open_checkpoint(self.path).n_done >= n)

    def lose_one(self, n):
        """Start a process, and kill it when so many results are stored."""
        process = self.start()
        self.await_done(n)
        process.kill()
        process.wait()

    def owner_of(self, item):
        """Return the number of the process that has claimed an item."""
        claims = self.path / "parts" / "claims"
        for name in sorted((x.name for x in claims.glob("[0-9]*")), key=int)[::-1]:
            claim = json.loads((claims / name).read_text())
            if any(start <= item < stop for start, stop in claim["runs"]):
                lease = self.path / "parts" / claim["by"] / "lease.json"
                return json.loads(lease.read_text())["pid"]
        return None


@pytest.fixture
def shared(tmp_path):
    """Give a function that prepares a run, and end what is left of it."""
    made = []

    def make(*words):
        made.append(Sweep(tmp_path, *words))
        return made[-1]

    yield make
    for process in [x for each in made for x in each.processes]:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------- on one machine


def test_processes_share_the_items(shared):
    """Each item runs once, both processes end well, and the checkpoint is an ordinary one."""
    sweep = shared("slow", 400)
    both = [sweep.start(), sweep.start()]
    wait_until((sweep.path / "parts").exists)
    wait_until(lambda: len(list((sweep.path / "parts").glob("*/lease.json"))) == 2)
    for process in both:
        code, text = sweep.ended(process)
        assert code == 0, text
    assert sweep.ran().tolist() == [1] * 400
    assert open_checkpoint(sweep.path).results().tolist() == [2.0 * i for i in range(400)]
    assert open_checkpoint(sweep.path).state == "done"
    assert not list(sweep.path.glob("*parts*"))
    assert np.load(sweep.path / "results.npy").tolist() == [2.0 * i for i in range(400)]
    code, text = sweep.ended(sweep.start())
    assert (code, sweep.ran().sum()) == (0, 400), text


def test_merged_parts_that_could_not_be_removed_go_with_the_next_process(shared):
    """On NFS a folder stays as long as another process has one of its files open."""
    sweep = shared("number", 4)
    assert sweep.ended(sweep.start())[0] == 0
    (sweep.path / ".parts.0123" / "a part").mkdir(parents=True)
    assert sweep.ended(sweep.start())[0] == 0
    assert not list(sweep.path.glob("*parts*"))


@pytest.mark.filterwarnings("ignore:results differ in type")
@pytest.mark.parametrize("function", ["mixed", "record", "row", "integer"])
def test_results_of_all_kinds_are_merged(shared, function, tmp_path):
    """Also if the processes have stored them in other ways."""
    sweep = shared(function, 40)
    code, text = sweep.ended(sweep.start(begin=("-c", INTERRUPTED)))
    assert code == 130, text
    (part,) = (sweep.path / "parts").glob("*/index.npy")
    assert 0 < np.count_nonzero(np.load(part)["state"]) < 40
    code, text = sweep.ended(sweep.start())
    assert code == 0, text
    sweeps.noted(sweep.log)
    call = partial(parallel_map, getattr(sweeps, function), np.arange(40))
    found = call(shared={"log": str(sweep.log)}, checkpoint=sweep.path)
    assert not sweeps.noted(sweep.log)
    expected = call(shared={"log": str(tmp_path / "other")})
    if isinstance(expected, list):
        assert repr(found) == repr(expected)
    else:
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)


# Is interrupted in the middle, as by Ctrl-C. The items then are those of two processes.
INTERRUPTED = """
import sys, time
from nbshare._core.checkpoint import sweep
from nbshare._core.system import processes
claim = sweep.Sweep.claim
def claim_few(self, wanted, least, first):
    if first >= 20:
        processes.interrupt()
        time.sleep(0.1)
    return claim(self, min(wanted, 5), 0, first)
sweep.Sweep.claim = claim_few
from nbshare.__main__ import main
sys.exit(main())
"""


@pytest.mark.first
def test_items_of_a_killed_process_are_taken_over(shared):
    """At once on the same machine. Its stored items do not run again."""
    sweep = shared("gated", 12)
    sweep.start()
    sweep.await_done(4)
    second = sweep.start()
    kill_now(sweep.owner_of(4))
    (sweep.folder / "gate").touch()
    code, text = sweep.ended(second)
    assert code == 0, text
    assert sweep.ran()[:4].tolist() == [1] * 4
    assert open_checkpoint(sweep.path).results().tolist() == TWICE


def test_something_else_is_refused_meanwhile(shared, tmp_path):
    """Another function, other items, and a run of this process, in words, and nothing changes."""
    sweep = shared("gated", 12)
    first = sweep.start()
    sweep.await_done(4)
    np.save(tmp_path / "others.npy", np.arange(13))
    other = [x.replace(":gated", ":slow") for x in sweep.given]
    more = [x.replace("items.npy", "others.npy") for x in sweep.given]
    for given, says in [(other, "slow is new"), (more, "other items")]:
        code, text = sweep.ended(sweep.start(given=given))
        assert code == 1
        assert "is writing to this checkpoint" in text
        assert f"The run in progress differs from this one: {says}" in text or (
            says in text and given is other
        )
    options = {"shared": {"log": str(sweep.log)}, "checkpoint": sweep.path, "progress": False}
    with pytest.raises(CheckpointInUseError, match="is writing to this checkpoint"):
        parallel_map(sweeps.gated, np.arange(12), **options)
    (tmp_path / "gate").touch()
    assert sweep.ended(first)[0] == 0
    assert sweep.ran().tolist() == [1] * 12


def test_readers_see_all_results_while_the_parts_are_merged(shared, tmp_path):
    """None is missing or called damaged in between, and no file is looked for where it was."""
    sweep = shared("gated", 12)
    sweep.lose_one(4)
    (sweep.folder / "gate").touch()
    copies = [shutil.copytree(sweep.path, tmp_path / f"copy {k}") for k in range(3)]
    for path in copies:
        merging = sweep.start(given=[*sweep.given, "--checkpoint", str(path)])
        looks = []
        while (path / "parts").exists():
            assert merging.poll() in (None, 0), merging.place.read_text()
            stored = open_checkpoint(path)
            looks.append((stored.n_done, np.ma.compressed(stored.results())[:4].tolist()))
            assert stored.state
            assert not stored.errors
        assert sweep.ended(merging)[0] == 0
        assert {(n >= 4, *first) for n, first in looks} == {(True, *TWICE[:4])}


def test_a_call_uses_what_killed_processes_have_stored(shared):
    """It merges the parts, and runs the rest."""
    sweep = shared("gated", 12)
    sweep.lose_one(4)
    assert open_checkpoint(sweep.path).state == "ended"
    sweeps.noted(sweep.log)
    (sweep.folder / "gate").touch()
    options = {"shared": {"log": str(sweep.log)}, "checkpoint": sweep.path}
    outdated = open_checkpoint(sweep.path).outdated
    assert outdated(sweeps.gated, np.arange(14), **options) == (14, 4, 10, 0, [])
    changed = {"shared": {"log": "another"}, "checkpoint": sweep.path}
    assert outdated(sweeps.gated, np.arange(2, 12), **changed)[:4] == (10, 0, 8, 2)
    found = parallel_map(sweeps.gated, np.arange(12), **options)
    assert found.tolist() == TWICE
    assert sweeps.noted(sweep.log) == sorted(map(str, range(4, 12)))
    assert not (sweep.path / "parts").exists()


def test_damaged_results_of_a_part_run_again(shared):
    """Their checksums tell."""
    sweep = shared("gated", 12)
    sweep.lose_one(4)
    (results,) = (sweep.path / "parts").glob("*/results.npy")
    stored = np.load(results, mmap_mode="r+")
    stored[2] = 99
    stored.flush()
    (sweep.folder / "gate").touch()
    code, text = sweep.ended(sweep.start())
    assert code == 0, text
    assert sweep.ran()[:4].tolist() == [1, 1, 2, 1]
    assert open_checkpoint(sweep.path).results().tolist() == TWICE


FILES = ["results.npy", "objects*.log", "meta.json", "code.json"]


@pytest.mark.parametrize("gone", FILES)
def test_a_file_of_a_part_that_is_gone_costs_its_items(shared, gone):
    """They run again. The other results are kept."""
    sweep = shared("gated_mixed", 12)
    sweep.lose_one(4)
    (part,) = (sweep.path / "parts").glob("*/index.npy")
    assert np.load(part)["state"].tolist() == [1, 1, 1, 2] + [0] * 8
    for file in part.parent.glob(gone):
        file.unlink()
    (sweep.folder / "gate").touch()
    code, text = sweep.ended(sweep.start())
    assert code == 0, text
    lost = {"objects*.log": [3], "results.npy": [0, 1, 2]}
    assert np.flatnonzero(sweep.ran()[:4] - 1).tolist() == lost.get(gone, [0, 1, 2, 3])
    expected = [f"text {x}" if x % 4 == 3 else 1.0 * x for x in range(12)]
    assert open_checkpoint(sweep.path).results() == expected


# Ends like a machine that loses power at a call of the merge.
DYING = """
import os, signal, sys
from nbshare._core.checkpoint import directory
from nbshare.__main__ import main
where, what = sys.argv[1].split(".")
def die(*_, **__):
    os.kill(os.getpid(), 9)
merge = directory.Directory._merge
def merge_and_die(self):
    setattr(getattr(directory, where), what, die)
    return merge(self)
directory.Directory._merge = merge_and_die
sys.exit(main(sys.argv[2:]))
"""


MOMENTS = ["Directory.decide", "RowWriter.put", "Directory._sync", "shutil.rmtree"]


@pytest.mark.parametrize("moment", ["RowWriter.commit", *MOMENTS])
def test_a_merge_may_be_cut_short(shared, moment):
    """The next process does it. No item runs again."""
    sweep = shared("number", 40)
    assert sweep.ended(sweep.start(begin=("-c", DYING, moment)))[0] in (-9, 9)
    code, text = sweep.ended(sweep.start())
    assert code == 0, text
    assert open_checkpoint(sweep.path).results().tolist() == [1.5 * i for i in range(40)]
    assert sweep.ran().tolist() == [1] * 40
    assert not list(sweep.path.glob("parts"))


# Says which files of the parts are open when their folder is renamed.
WATCHED = """
import psutil, sys
from nbshare._core.system import files
from nbshare.__main__ import main
def watched(source, target, move=files.move):
    me = psutil.Process()
    all = [me, *me.children(recursive=True)]
    paths = [file.path for each in all for file in (*each.open_files(), *each.memory_maps())]
    print("open:", [path for path in paths if str(source) in path], flush=True)
    move(source, target)
files.move = watched
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
@pytest.mark.parametrize("function", ["row", "record"])
def test_nothing_of_a_part_is_open_when_it_is_merged(shared, function):
    """Windows renames no folder in which a file is open."""
    sweep = shared(function, 40)
    code, text = sweep.ended(sweep.start(begin=("-c", WATCHED)))
    assert code == 0, text
    assert "open: []" in text


def has_handler(pid):
    """Whether a process handles SIGUSR1."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (mask,) = [line.split()[1] for line in lines if line.startswith("SigCgt")]
    return bool(int(mask, 16) >> (signal.SIGUSR1 - 1) & 1)


def test_a_notice_while_others_run_all_that_is_left(shared):
    """Exit 75 immediately, though there is nothing to stop."""
    sweep = shared("gated", 6)
    first = sweep.start()
    sweep.await_done(4)
    second = sweep.start()
    wait_until(lambda: has_handler(second.pid))
    second.send_signal(signal.SIGUSR1)
    assert sweep.ended(second)[0] == 75
    (sweep.folder / "gate").touch()
    assert sweep.ended(first)[0] == 0
    assert sweep.ran().tolist() == [1] * 6


def test_an_attached_job_stops_all(shared):
    """They exit as after Ctrl-C. The next ones run the rest."""
    sweep = shared("gated", 1000)
    both = [sweep.start()]
    sweep.await_done(4)
    job = attach(sweep.path)
    assert (job.state, job.n_done, job.n_items) == ("running", 4, 1000)
    assert job.partial().compressed().tolist() == TWICE[:4]
    both.append(sweep.start())
    parts = sweep.path / "parts"
    wait_until(lambda: len(list(parts.glob("*/lease.json"))) == 2, what="one has not joined")
    assert job.cancel()
    assert job.wait(LIMIT_S)
    for process in both:
        assert sweep.ended(process)[0] == 130
        assert "finished results are in" in process.place.read_text()
    (sweep.folder / "gate").touch()
    code, text = sweep.ended(sweep.start())
    assert code == 0, text
    assert open_checkpoint(sweep.path).results().tolist() == [2.0 * x for x in range(1000)]


def test_an_item_that_misses_a_file_fails_the_run(shared):
    """It is not taken for the loss of the run's own files, which others may have merged."""
    code, text = (sweep := shared("misses_its_file", 6)).ended(sweep.start())
    assert code == 1
    assert "/data 0'" in text or "/data 1'" in text  # there are two workers


def test_failed_items_run_again_in_the_next_run(shared, tmp_path):
    """With on_error="return" each fails once, whichever process runs it."""
    (tmp_path / "broken").touch()
    sweep = shared("fragile", 20, "--on-error", "return")
    for process in [sweep.start(), sweep.start()]:
        code, text = sweep.ended(process)
        assert code == 0, text
    errors = open_checkpoint(sweep.path).errors
    assert {i: str(x) for i, x in errors.items()} == {
        i: f"ValueError: no {i}" for i in (3, 8, 13, 18)
    }
    (tmp_path / "broken").unlink()
    assert sweep.ended(sweep.start())[0] == 0
    assert open_checkpoint(sweep.path).results().tolist() == [float(i) for i in range(20)]
    assert sweep.ran().tolist() == [1] * 20


def test_processes_of_another_container_are_known_by_their_lease(tmp_path):
    """Their numbers mean nothing here, though host and boot are the same."""
    me = writer.this_process()
    gone = {**me, "pid": 2**22 - 1, "start": 1, "nonce": "", "ended": False, "role": "part"}
    for name in ("lock", "lease.json"):
        (tmp_path / name).touch()
    assert not writer.is_alive(tmp_path, gone)
    other = gone | {"pids": me["pids"] + 1}
    assert writer.is_alive(tmp_path, other)
    old_s = time.time() - 30
    os.utime(tmp_path / "lease.json", (old_s, old_s))
    assert not writer.is_alive(tmp_path, other)
    assert writer.is_alive(tmp_path, other | {"role": "run"})
    assert writer.is_alive(tmp_path, {**me, "nonce": "", "ended": False})
    (tmp_path / "lock").unlink()  # as if it could not be touched
    assert not writer.is_alive(tmp_path, other)
    os.utime(tmp_path / "lease.json")
    assert writer.is_alive(tmp_path, other)


def test_a_writer_that_was_away_leaves_the_lease_to_its_successor(tmp_path, monkeypatch):
    """It finds out when it renews the lease, and does not end that of another."""
    monkeypatch.setitem(writer.LEASE_S, "run", 0.0)
    before = writer.Writer(tmp_path)
    before.take()
    assert before.renew()
    other = writer.writer_of(tmp_path) | {"nonce": "another"}
    files.replace_json(tmp_path / "lease.json", other)
    assert not before.renew()
    before.close(is_whole=True)
    assert writer.writer_of(tmp_path) == other


# -------------------------------------------------------------------- on several machines


@needs_machines
def test_a_process_that_was_away_spoils_nothing(shared):
    """Stopped for longer than its lease, it finds its items taken. Both runs give the same."""
    sweep = shared("gated", 12)
    first = sweep.start(on_machine=True, begin=("-c", SHORT))
    sweep.await_done(4)
    (child,) = Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
    os.kill(int(child), signal.SIGSTOP)
    (sweep.folder / "gate").touch()
    second = sweep.start(on_machine=True, begin=("-c", SHORT))
    code, text = sweep.ended(second)
    assert code == 0, text
    assert open_checkpoint(sweep.path).results().tolist() == TWICE
    os.kill(int(child), signal.SIGCONT)
    code, text = sweep.ended(first)
    assert code == 0, text
    assert open_checkpoint(sweep.path).results().tolist() == TWICE
    assert sweep.ran()[:4].tolist() == [1] * 4
    assert not list(sweep.path.glob("*parts*"))


@needs_machines
def test_four_machines_with_a_folder_in_common(shared):
    """Idle items of 1 s take at least 0.9 of ideal. A watcher on this machine sees all of them."""
    n = 80
    sweep = shared("gated_napping", n)
    four = [sweep.start(on_machine=True) for _ in range(4)]
    parts, seen = sweep.path / "parts", set()
    wait_until(lambda: len(list(parts.glob("*/lease.json"))) == 4)
    (sweep.folder / "gate").touch()
    while any(process.poll() is None for process in four):
        stored = open_checkpoint(sweep.path)
        seen.add(stored.n_done)
        time.sleep(0.1)
    for process in four:
        code, text = sweep.ended(process)
        assert code == 0, text
    assert len(seen) > n / 8  # workers
    assert sweep.ran().tolist() == [1] * n
    assert stored.results().tolist() == [2.0 * i for i in range(n)]
    when = np.load(sweep.path / "index.npy")["stored_at"]
    took_s = when.max() - when.min() + 1  # from the begin of the first item
    assert n / 8 / took_s >= 0.9, took_s


SOAK = [pytest.mark.soak, pytest.mark.timeout(500)]


@needs_machines
@pytest.mark.parametrize("n_kills", [12, pytest.param(50, marks=SOAK)])
def test_kills_of_machines(shared, tmp_path, n_kills):
    """Results are those of an uninterrupted run, and no item that is stored runs again."""
    n, chance = 120 * n_kills, random.Random()
    sweep = shared("dozing_drawn", n, "--seed", "7")
    running = [sweep.start(on_machine=True) for _ in range(4)]
    wait_until((sweep.path / "parts").exists)
    looks = []
    for _ in range(n_kills):
        time.sleep(chance.uniform(0.1, 1.0))
        k = chance.randrange(4)
        assert running[k].poll() is None, running[k].place.read_text()
        running[k].kill()
        running[k].wait()
        present = open_checkpoint(sweep.path).present
        looks.append((present, sweep.log.stat().st_size if sweep.log.exists() else 0))
        running[k] = sweep.start(on_machine=True)
    assert 0 < looks[-1][0].sum() < n
    for process in running:
        code, text = sweep.ended(process, 300)
        assert code == 0, text
    log = sweep.log.read_bytes()
    for present, size in looks:
        later = np.array(log[size:].split(), np.int64)
        assert not present[later].any()
    for (before, _), (after, _) in itertools.pairwise(looks):
        assert after[before].all()
    found = open_checkpoint(sweep.path).results()
    options = {"seed": 7, "max_workers": 16, "shared": {"log": str(tmp_path / "other")}}
    expected = parallel_map(sweeps.dozing_drawn, np.arange(n), **options)
    assert np.array_equal(found, expected)
    nbshare.shutdown()
