"""The base of other tests if Windows' Python runs, as under Wine (see CONTRIBUTING.md)."""

from __future__ import annotations

import _thread
import operator
import os
import random
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest

import nbshare
from nbshare._core.system import files, processes
from tests.support.faultlab import SOON_S, wait_until

pytestmark = pytest.mark.skipif(sys.platform != "win32", reason="this is not Windows")


def test_an_interrupt_while_memory_ends_is_not_lost():
    """As it would be in a `__del__`, of which Python only prints the error."""
    arrays = [nbshare.share(np.ones(100_000))]
    with pytest.raises(KeyboardInterrupt):
        any(map(operator.call, [_thread.interrupt_main, arrays.clear]))


STARTS = """
import os, sys
from nbshare._core.system import channels, workers

while True:
    ours, theirs = channels.pair()
    print(flush=True)
    command = sys.executable, "-c", "while True: pass"
    child = workers.spawned(command, dict(os.environ), [theirs.fileno()], ours, workers.Life())
"""


@pytest.mark.slow  # and Wine's own process may stay, which waits for what is no process any more
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
