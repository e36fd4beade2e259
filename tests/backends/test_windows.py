"""The base of other tests if Windows' Python runs, as under Wine (see CONTRIBUTING.md)."""

from __future__ import annotations

import _thread
import contextlib
import ctypes
import operator
import os
import random
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import Checkpoint, open_checkpoint, parallel_map
from nbshare._core import magics
from nbshare._core.hosts import cluster
from nbshare._core.system import descriptors, files, processes
from tests.support.faultlab import SOON_S, wait_until

BREAKAWAY = 0x800  # JOB_OBJECT_LIMIT_BREAKAWAY_OK

if sys.platform == "win32":
    import _winapi

    from nbshare._core.system.windows import handles

    put = handles.function(
        *("AssignProcessToJobObject", handles.BOOL, handles.HANDLE, handles.HANDLE)
    )

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="this is not Windows")


def test_an_interrupt_while_memory_ends_is_not_lost():
    """As it would be in a `__del__`, of which Python only prints the error."""
    arrays = [nbshare.share(np.ones(100_000))]
    with pytest.raises(KeyboardInterrupt):
        any(map(operator.call, [_thread.interrupt_main, arrays.clear]))


STARTS = """
import os, sys
from nbshare._core.system import waiting, processes

while True:
    ours, theirs = waiting.new_connection()
    print(flush=True)
    command = sys.executable, "-c", "while True: pass"
    child = processes.spawned(command, dict(os.environ), [theirs.fileno()], ours, processes.Life())
"""


def test_an_owner_killed_while_it_starts_workers_leaves_none():
    """A process that has been made, and waits to run, is in the job already."""
    for _ in range(10):
        kill_owner(after_s=random.uniform(0.0, 0.1))


def kill_owner(after_s):
    """Kill a process that starts workers, and wait for the end of these."""
    with subprocess.Popen([sys.executable, "-c", STARTS], stdout=subprocess.PIPE) as owner:
        start_s = psutil.Process(owner.pid).create_time()
        owner.stdout.readline()
        time.sleep(after_s)
        owner.kill()
        owner.wait()
        wait_until(lambda: not children_since(owner.pid, start_s), SOON_S)


def children_since(pid, start_s):
    """Return the processes that one has started since some time, even if it has ended."""
    found = (process.info for process in psutil.process_iter(["pid", "ppid", "create_time"]))
    return [p["pid"] for p in found if p["ppid"] == pid and p["create_time"] >= start_s]


def test_a_stamp_tells_that_an_older_file_has_taken_the_place(tmp_path):
    """A copy keeps the time of its last edit, so the time of the change is in the stamp, too."""
    path = tmp_path / "ö.py"
    path.write_text("new")
    *_, before_ns = files.stamp(str(path))
    os.utime(path, ns=(10**18, 10**18))
    edited_ns, size, _, changed_ns = files.stamp(str(path))
    assert (edited_ns, size) == (10**18, 3)
    assert changed_ns >= before_ns > 10**18


@pytest.mark.parametrize("spelled", [str.upper, lambda p: p.replace("\\", "/"), r"\\?\{}".format])
def test_a_stamp_is_that_of_the_file_however_its_path_is_spelled(tmp_path, spelled):
    path = tmp_path / "module.py"
    path.write_text("")
    assert files.stamp(spelled(str(path))) == files.stamp(str(path))


def test_a_missing_file_has_no_stamp(tmp_path):
    with pytest.raises(FileNotFoundError):
        files.stamp(str(tmp_path / "gone" / "module.py"))


def test_a_process_knows_its_memory_and_that_of_others():
    """Shared memory is in its peak, and not in its own memory."""
    taken = np.ones(20 << 20, np.uint8)
    own, own_peak, peak = processes.private_bytes(os.getpid())
    assert taken.nbytes < own <= own_peak
    assert processes.resident_bytes(os.getpid()) > taken.nbytes
    assert peak == processes.peak_bytes() > taken.nbytes


def test_a_process_that_is_gone_cannot_be_interrupted():
    """As on other systems."""
    with pytest.raises(ProcessLookupError):
        processes.interrupt(1 << 30)


def test_too_many_open_files_are_an_error_that_says_what_helps():
    """No limit can be raised there."""
    text = str(descriptors.too_many())
    assert "too many open files" in text
    assert "ulimit" not in text


def test_hosts_of_a_cluster_know_which_modules_are_packages():
    """They run Linux, and tell it by the paths of files here."""
    files = cluster._with_slashes({"nbshare": nbshare.__file__})
    assert files["nbshare"].endswith("/nbshare/__init__.py")


# ---------------------------------------------------- processes that outlive this one


ASLEEP = sys.executable, "-c", "import time; time.sleep(1000)"


def test_a_detached_process_is_no_descendant(tmp_path):
    """Jupyter ends those of a kernel that it shuts down."""
    with open(tmp_path / "log", "wb") as log:
        process = processes.detached(ASLEEP, os.environ, log)
    assert process.poll() is None
    assert process.pid not in {child.pid for child in psutil.Process().children(recursive=True)}
    process.terminate()
    wait_until(lambda: process.poll() is not None)
    process.terminate()  # again does nothing


def test_a_detached_process_that_cannot_start_says_so(tmp_path):
    """With the system's error."""
    with open(tmp_path / "log", "wb") as log, pytest.raises(OSError, match="cannot be started"):
        processes.detached(["python", "a\0b"], os.environ, log)


DETACHES = f"""
import os
from nbshare._core.system import processes
with open(os.devnull, "wb") as log:
    print(processes.detached({ASLEEP!r}, os.environ, log).pid, flush=True)
input()
"""


@pytest.mark.parametrize("lets_go", [True, False])
def test_a_detached_process_leaves_a_job_that_lets_it_go(lets_go):
    """As programs of an editor, of ssh or of tests are in one, which ends all that is in it."""
    job = processes.new_job()
    limits = processes._Limits(flags=processes.KILL_ON_CLOSE | (BREAKAWAY if lets_go else 0))
    processes._limit_job(job.fileno(), 9, ctypes.byref(limits), ctypes.sizeof(limits))
    with subprocess.Popen(
        [sys.executable, "-c", DETACHES], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as program:
        put(job.fileno(), int(program._handle))
        detached = psutil.Process(int(program.stdout.readline()))
        job.close()
    wait_until(lambda: lets_go or not detached.is_running())
    assert detached.is_running() == lets_go
    if lets_go:
        detached.kill()


# ------------------------------------------------ files that another program has open


NOTHING, READING, BOTH = 0, 1, 3  # what others may do meanwhile, which is never to remove it


def held(path, shared=BOTH):
    """Open a file, as a virus scanner, a backup or OneDrive does. Return what closes it."""
    handle = _winapi.CreateFile(str(path), _winapi.GENERIC_READ, shared, 0, 3, 0, 0)
    return partial(_winapi.CloseHandle, handle)


@pytest.fixture
def impatient(monkeypatch):
    """Wait only shortly for what others have open."""
    monkeypatch.setattr(files, "HELD_S", 0.3)
    monkeypatch.setattr(files, "READ_S", 0.1)


@pytest.fixture
def pair(tmp_path):
    """Return a new file, and one in whose place it is to be."""
    source, target = tmp_path / "new", tmp_path / "target"
    source.write_text("new")
    target.write_text("old")
    return source, target


ACTIONS = {
    "replace, new": (files.replace, 0),
    "replace, old": (files.replace, 1),
    "remove": (lambda _, path: files.remove(path), 1),
    "read": (lambda _, path: os.close(files.open_safely(path, os.O_RDONLY)), 1),
    "write": (lambda _, path: os.close(files.open_safely(path, os.O_RDWR)), 1),
    "move": (lambda source, _: files.move(source, source.with_name("moved")), 0),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("shared", [NOTHING, READING, BOTH])
def test_a_file_is_awaited_that_another_program_has_open(pair, action, shared):
    """Each change of a file, and its opening, waits for the end of that."""
    act, which = ACTIONS[action]
    threading.Timer(0.1, held(pair[which], shared)).start()
    act(*pair)


@pytest.mark.parametrize("which", [0, 1])
def test_a_file_that_stays_open_elsewhere_destroys_none(pair, which, impatient):
    """Neither the new one nor that in whose place it would be. The error tells the cause."""
    close = held(pair[which])
    with pytest.raises(PermissionError, match=pair[which].name) as raised:
        files.replace(*pair)
    close()
    assert raised.value.winerror == 32  # sharing violation
    assert "virus scanner" in raised.value.__notes__[0]
    assert [path.read_text() for path in pair] == ["new", "old"]
    assert len(list(pair[0].parent.iterdir())) == 2


def test_the_first_file_of_its_name_may_be_held_too(pair, impatient):
    """The error is about the new file, though there is no other one."""
    source, target = pair
    target.unlink()
    close = held(source)
    with pytest.raises(PermissionError, match=r"new.* -> .*target"):
        files.replace(source, target)
    close()
    assert source.read_text() == "new"


def test_a_file_that_was_moved_aside_for_nothing_comes_back(pair):
    """When the new one turns out to be gone."""
    source, target = pair
    source.unlink()
    with pytest.raises(FileNotFoundError, match="new"):
        files._exchange(source, target)
    assert target.read_text() == "old"


def test_a_folder_is_no_file(pair, tmp_path):
    """It is refused at once."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(IsADirectoryError):
        files.replace(pair[0], tmp_path / "folder")


class Scanner:
    """Has new files open from before they are in their place on, if their name is `wanted`."""

    def __init__(self, replace):
        self.wanted, self._replace, self._closing = "", replace, []

    def __call__(self, source, target):
        """Replace a file."""
        if os.path.basename(target) == self.wanted:
            self._closing.append(held(source))
        self._replace(source, target)

    def end(self):
        """Close them, and open no more. Return whether there were any."""
        found, self._closing, self.wanted = self._closing, [], ""
        for close in found:
            close()
        return bool(found)


@pytest.fixture
def scanner(monkeypatch, impatient):
    """Give a scanner, which does nothing yet."""
    scanner = Scanner(files.replace)
    monkeypatch.setattr(files, "replace", scanner)
    yield scanner
    scanner.end()


def double(i):
    return 2.0 * i


def triple(i):
    return 3.0 * i


@pytest.mark.parametrize("name", ["meta.json", "code.json", "order.npy", "lease.json"])
def test_a_scanner_that_holds_what_is_written_destroys_no_checkpoint(tmp_path, scanner, name):
    """A call that must write the file fails or continues. The next call has all results."""
    path = tmp_path / "run"
    call = partial(parallel_map, backend="threads", progress=False)
    call(double, range(6), checkpoint=path)
    changed = Checkpoint(path, if_changed="accept")
    scanner.wanted = name
    with contextlib.suppress(PermissionError):
        call(triple, range(8), checkpoint=changed)
    assert open_checkpoint(path).n_done >= 6
    assert scanner.end()
    assert call(triple, range(6), checkpoint=changed).tolist() == [2.0 * i for i in range(6)]


def test_a_scanner_that_holds_a_worker_file_leaves_that_before(tmp_path, scanner):
    """The cell is refused, and its functions are those of the cell before."""
    file = tmp_path / "steps.py"
    magics._replace(file, b"old")
    scanner.wanted = file.name
    with pytest.raises(PermissionError, match=r"-> .*steps\.py"):
        magics._replace(file, b"new")
    assert file.read_bytes() == b"old"
