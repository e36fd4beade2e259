"""macOS is played on Linux, as CONTRIBUTING.md says. Other tests rely on these things."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import select
import subprocess
import sys
from contextlib import closing
from functools import partial
from multiprocessing.reduction import ForkingPickler

import numpy as np
import pytest

import nbshare
from nbshare._core import system
from nbshare._core.entries import checkup
from nbshare._core.memory import segment_of
from nbshare._core.system import locks, processes, sections
from nbshare.errors import OutOfMemoryError, StaleReferenceError
from tests.support import duties, farm
from tests.support.faultlab import wait_until

pytestmark = pytest.mark.skipif(
    system.SYSTEM != "macos", reason="NBSHARE_SYSTEM=macos is not set: see CONTRIBUTING.md"
)


def seen_by_an_item(_):
    """Return what a worker lacks, and whether its parent is the caller."""
    lacking = [not hasattr(os, "memfd_create"), not hasattr(select, "epoll")]
    return [*lacking, system.SYSTEM == "macos", os.getppid()]


def test_no_process_has_what_a_mac_lacks():
    """Neither the owner nor its workers, which are its children, as nothing forks them."""
    (found,) = nbshare.parallel_map(seen_by_an_item, [0], progress=False)
    assert found == [1, 1, 1, os.getpid()]
    assert not hasattr(os, "memfd_create")


def test_memory_has_no_name_and_takes_no_calls_of_files():
    """It can be mapped, and read through a second descriptor only."""
    segment = segment_of(nbshare.share(np.ones(100_000), mode="r"))[0]
    name = sections.name_of(segment.fd)
    assert len(name) <= 30
    assert not os.path.exists(f"/dev/shm/{name}")
    reader = segment.read_only()
    with pytest.raises(PermissionError):
        mmap.mmap(int(reader.fileno()), segment.nbytes)
    args, _ = sections.mapping(reader.fileno(), segment.nbytes, "r")
    assert mmap.mmap(*args)[:8] == np.float64(1).tobytes()


@pytest.fixture
def ends():
    """Give both ends of a connection."""
    ours, theirs = system.waiting.new_connection()
    with closing(ours), closing(theirs):
        yield ours, theirs


def test_descriptors_are_closed_in_other_programs(ends):
    """Those that were received, too."""
    ours, theirs = ends
    system.waiting.send(ours, b"x", [0], wait=True)
    _, (fd,) = system.waiting.receive(theirs, 10, wait=True)
    assert fcntl.fcntl(fd, fcntl.F_GETFD) & fcntl.FD_CLOEXEC
    os.close(fd)


def test_what_is_sent_is_kept_until_there_is_an_answer(ends):
    """The system may lose what its sender closes too early."""
    ours, theirs = ends
    system.waiting.send(ours, b"x", [0], wait=True)
    assert len(ours.sent) == 1
    system.waiting.receive(theirs, 10, wait=True)
    system.waiting.send(theirs, b"y", [], wait=True)
    system.waiting.receive(ours, 10, wait=True)
    assert not ours.sent


def test_a_half_sent_packet_ends_the_connection(ends):
    """The sender does not wait for a reader that does not read."""
    ours, theirs = ends
    with pytest.raises(BlockingIOError):
        system.waiting.send(ours, bytes(1 << 20), [], wait=False)
    with pytest.raises(BrokenPipeError):
        system.waiting.send(ours, b"x", [], wait=False)
    assert system.waiting.receive(theirs, 1 << 20, wait=False) == (b"", [])


def test_a_process_knows_when_it_began():
    """So that files which were changed since are known."""
    pid, start_us = processes.identity()
    assert pid == os.getpid()
    assert start_us > 0
    assert processes.has_ended((pid, start_us + 1))
    assert not processes.has_ended((pid, start_us))


def test_the_file_of_locks_is_where_nothing_is_cleaned(tmp_path, monkeypatch):
    """In the user's home folder, whatever the variable HOME is, which programs may change."""
    monkeypatch.setattr(locks, "_support", lambda: str(tmp_path / "new"))
    file = locks._file()
    assert os.path.samestat(os.fstat(file.fileno()), os.stat(tmp_path / "new" / "locks"))
    monkeypatch.undo()
    support = locks._support()
    assert support.endswith("/Library/Application Support/nbshare")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert locks._support() == support


@pytest.mark.parametrize(("refused", "by"), [("lockf", fcntl), ("makedirs", os)])
def test_where_that_is_impossible_it_is_in_the_folder_for_temporary_files(
    tmp_path, monkeypatch, refused, by
):
    """As of a user without a home folder, or with one on a server that refuses locks."""

    def refuse(*_, **__):
        raise OSError(45, "Operation not supported")

    monkeypatch.setattr(locks, "_support", lambda: str(tmp_path))
    monkeypatch.setattr(by, refused, refuse)
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(locks, "folder", lambda: str(temporary))
    file = locks._file()
    monkeypatch.undo()
    found = os.stat(temporary / f"nbshare-{os.geteuid()}.locks")
    assert os.path.samestat(os.fstat(file.fileno()), found)


def test_a_lock_of_a_file_that_was_removed_is_refused():
    """A process that has another file would exclude nobody."""
    memory = np.zeros(8, np.uint64)
    locks.mutexes().initialise(memory.ctypes.data)
    locks.mutexes().at(memory.ctypes.data)
    inode = ctypes.c_uint64.from_address(memory.ctypes.data + 16)
    inode.value += 1
    with pytest.raises(StaleReferenceError, match="was removed"):
        locks.mutexes().at(memory.ctypes.data)


def test_a_socket_that_was_removed_is_made_again(tmp_path):
    """When memory is sent the next time. As long as it is sent, the system does not remove it."""
    path, memory = sections._path(os.getpid()), nbshare.share(np.ones(100_000))
    with open(tmp_path / "file", "wb") as file:
        for _ in range(2):
            ForkingPickler.dumps(memory)
            os.utime(path, (0, 0))
            ForkingPickler.dumps(memory)
            assert os.stat(path).st_mtime > 0
            name = sections.name_of(file.fileno())
            sections.borrowed(os.getpid(), file.fileno(), name, os.O_RDONLY).close()
            os.unlink(path)


def test_remedies_are_possible_here(monkeypatch):
    """Arrays in files of a directory are refused, so they are recommended for Linux at most."""
    assert "file:" not in checkup.STEPS["share an array"]
    monkeypatch.setenv("NBSHARE_MEMORY", "memfd")
    with pytest.raises(ValueError, match=r"is not allowed: set shm, or leave it unset"):
        nbshare.zeros(100_000)
    monkeypatch.delenv("NBSHARE_MEMORY")
    monkeypatch.setattr(processes, "available_bytes", lambda: 1 << 24)
    with pytest.raises(OutOfMemoryError) as raised:
        nbshare.zeros(1 << 25)
    assert "or on Linux set NBSHARE_MEMORY=file:" in str(raised.value)


def test_a_notebook_on_a_mac_can_use_a_cluster_of_linux(tmp_path):
    """Results, shared objects and Stop are as on Linux."""
    distributed = pytest.importorskip("distributed")
    address, environ = f"--scheduler-file={tmp_path / 'address'}", {**os.environ}
    del environ["NBSHARE_SYSTEM"], environ["PYTHONPATH"]
    start = partial(subprocess.Popen, env=environ, cwd=tmp_path, stderr=subprocess.DEVNULL)
    command = [sys.executable, "-m", "distributed.cli.dask_{}", address, "--no-dashboard"]
    with (
        start([part.format("scheduler") for part in command] + ["--port=0"]) as scheduler,
        start([part.format("worker") for part in command]) as worker,
        distributed.Client(scheduler_file=str(tmp_path / "address")) as client,
    ):
        table = np.ones(1 << 18)
        run = partial(nbshare.parallel_map, progress=False, backend=client)
        found = run(farm.total, range(20), shared={"table": table})
        assert found.tolist() == [float(table.size) + i for i in range(20)]
        job = nbshare.map_async(duties.slow, range(2_000), backend=client)
        wait_until(lambda: job.n_done > 0, 60)
        job.cancel()
        assert 0 < job.partial().count() < 2_000
        nbshare.shutdown()
        worker.kill()
        scheduler.kill()
