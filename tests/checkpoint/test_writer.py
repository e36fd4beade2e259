"""One process writes to a checkpoint, and others know which."""

from __future__ import annotations

import os
import shutil
import sys
import threading

import pytest

from nbshare import attach, map_async, open_checkpoint, parallel_map
from nbshare._core.checkpoint.writer import Writer
from nbshare._core.store.files import read_json, replace_json
from nbshare._core.system import SYSTEM, processes
from nbshare.errors import CheckpointInUseError, WorkerDiedError
from tests.support import sweeps
from tests.support.faultlab import wait_until
from tests.support.processes import end_drivers


@pytest.fixture(autouse=True)
def nobody_left():
    """Leave no driver of a detached run, not even one that has ended."""
    yield
    end_drivers()


@pytest.fixture
def begin(tmp_path):
    """Start a sweep that waits after item 4 until its gate is opened."""
    options = {"shared": {"log": str(tmp_path / "log")}, "checkpoint": tmp_path / "run"}
    return lambda **more: map_async(sweeps.gated, range(12), **(options | more))


def test_threads_that_begin_at_once(tmp_path):
    """One of them runs, and the others are refused."""
    gate, outcomes, shared = threading.Barrier(4), [], {"log": str(tmp_path / "log")}

    def call(path):
        gate.wait()
        try:
            outcomes.append(parallel_map(sweeps.slow, range(9), shared=shared, checkpoint=path)[-1])
        except CheckpointInUseError:
            outcomes.append("refused")

    for k in range(3):
        threads = [threading.Thread(target=call, args=[tmp_path / str(k)]) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(map(str, outcomes)) == ["16.0"] * 3 + ["refused"] * 9


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes do not fork on Windows")
def test_a_forked_process_goes_on_when_its_parent_is_done(begin, tmp_path):
    """It is refused until then, though it has a copy of all that the parent has."""
    job, (end, start), (heard, refused) = begin(), os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        status = 1
        try:
            with pytest.raises(CheckpointInUseError, match=f"process {os.getppid()} on"):
                Writer(tmp_path / "run")
            os.write(refused, b"x")
            os.read(end, 1)
            Writer(tmp_path / "run")
            status = 0
        finally:
            os._exit(status)
    os.close(refused)
    assert os.read(heard, 1)  # nothing, if the child has ended
    (tmp_path / "gate").touch()
    job.wait()
    os.write(start, b"x")
    assert os.waitpid(child, 0)[1] == 0
    for each in (start, end, heard):
        os.close(each)


def test_a_copy_of_a_run_that_is_on(begin, tmp_path):
    """Nobody writes to it. It is not stopped by its job, and the same call may go on there."""
    job = begin(detach=True)
    wait_until(lambda: job.n_done >= 4)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    assert open_checkpoint(tmp_path / "copy").state == "ended"
    copied = attach(tmp_path / "copy")
    assert not copied.cancel()
    with pytest.raises(WorkerDiedError, match="after 4 of 12 items"):
        copied.result()
    (tmp_path / "gate").touch()
    again = begin(detach=True, checkpoint=tmp_path / "copy")
    assert again.result().tolist() == job.result().tolist() == [2.0 * i for i in range(12)]


@pytest.mark.skipif(sys.platform == "win32", reason="a working directory stays there")
def test_a_removed_working_directory(tmp_path, monkeypatch):
    """Does not matter to a run with a full path, detached or not."""
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for k, more in enumerate([{}, {"detach": True}]):
        job = map_async(abs, [-1, 2], checkpoint=tmp_path / str(k), **more)
        assert job.result().tolist() == [1, 2]


def left_by_another(path, monkeypatch):
    """Leave the lease of a run whose process number is another user's, as after a restart."""
    parallel_map(abs, [-1, -2], checkpoint=path, backend="serial")
    lease = read_json(path / "lease.json")
    me = dict.fromkeys(lease.keys() & {"ended", "n_printed"}, False)
    replace_json(path / "lease.json", lease | me)
    monkeypatch.setattr(processes, "has_ended", lambda who: None)


def test_the_number_of_another_users_process_does_not_keep_a_writer_away(tmp_path, monkeypatch):
    """A process that can lock the folder continues immediately."""
    left_by_another(tmp_path / "run", monkeypatch)
    assert parallel_map(abs, [-1, -2, -3], checkpoint=tmp_path / "run").tolist() == [1, 2, 3]


def test_the_number_of_another_users_process_is_no_run_for_ever(tmp_path, monkeypatch):
    """Readers have no lock. They recognise a running call by its lease."""
    left_by_another(tmp_path / "run", monkeypatch)
    assert open_checkpoint(tmp_path / "run").state == "running"
    os.utime(tmp_path / "run" / "lease.json", (0, 0))
    assert open_checkpoint(tmp_path / "run").state == "ended"
    with pytest.raises(WorkerDiedError, match="was killed, or the machine restarted"):
        attach(tmp_path / "run").result()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the number of a process is known there")
def test_a_process_that_may_not_be_asked_may_be_known(monkeypatch):
    """Where the system tells when it began. Elsewhere nothing is known of it."""

    def refused(pid, signal):
        raise PermissionError

    monkeypatch.setattr(os, "kill", refused)
    pid, start = processes.identity()
    assert processes.has_ended((pid, start + 1)) is (True if SYSTEM == "linux" else None)
    assert not processes.has_ended((pid, start))
