"""The snapshot of source files that workers import, seen by several processes at once."""

from __future__ import annotations

import fcntl
import multiprocessing
import os

import pytest

from nbshare.functions import Snapshot
from nbshare.memory import scratch_file
from nbshare.memory.descriptors import owned


@pytest.fixture
def files(tmp_path):
    """Write three source files."""
    paths = [tmp_path / f"source_{i}.py" for i in range(3)]
    for path in paths:
        path.write_text(f"NAME = {path.name!r}")
    return [str(path) for path in paths]


def another(snapshot):
    """Return the snapshot as another process has it."""
    return Snapshot(owned(os.dup(snapshot.fileno())))


def test_who_keeps_a_file_first_decides_what_it_is(files):
    """An edit after that is seen by nobody, until the file is dropped."""
    one = Snapshot.of([])
    other = another(one)
    one.keep(files[:1])
    with open(files[0], "w") as file:
        file.write("NAME = 'edited'")
    other.keep(files[:2])
    assert other.get(files[0]) == one.get(files[0])
    assert b"source_0" in one.get(files[0]).data
    one.drop(files[:1])
    assert other.get(files[0]) is None
    other.keep(files[:1])
    assert b"edited" in one.get(files[0]).data
    assert one.stamps.keys() == set(files[:2])


@pytest.mark.parametrize("n_bytes", [1, 8, 10_000])
def test_what_a_killed_process_has_half_written_is_not_read(files, n_bytes):
    """Neither before another one writes, nor after it."""
    snapshot = Snapshot.of(files[:1])
    end = os.fstat(snapshot.fileno()).st_size
    os.pwrite(snapshot.fileno(), b"\x01" * n_bytes, end + 8)  # the length comes last
    other = another(snapshot)
    assert other.get(files[1]) is None
    other.keep(files[1:2])
    third = another(snapshot)
    assert b"source_1" in third.get(files[1]).data
    third.keep(files[2:])
    assert snapshot.get(files[2]) == third.get(files[2]) is not None


def _lock(fd, pipe):
    fcntl.lockf(fd, fcntl.LOCK_EX)
    pipe.send("locked")
    pipe.recv()


def test_a_process_that_was_stopped_while_it_writes_holds_up_nobody_for_long(files):
    """Files are not kept then, and can be once it is gone."""
    snapshot = Snapshot.of(files[:1])
    pipe, theirs = multiprocessing.Pipe()
    context = multiprocessing.get_context("fork")
    holder = context.Process(target=_lock, args=(snapshot.fileno(), theirs))
    holder.start()
    try:
        assert pipe.recv() == "locked"
        snapshot.keep(files[1:])
        assert snapshot.stamps.keys() == set(files[:1])
    finally:
        holder.kill()
        holder.join()
    snapshot.keep(files[1:])
    assert snapshot.stamps.keys() == set(files)


def test_large_files_are_not_kept(tmp_path):
    """They are data: workers import them as they are."""
    large, small = tmp_path / "large.py", tmp_path / "small.py"
    large.write_bytes(b"#" * (17 << 20))
    small.write_text("")
    snapshot = Snapshot(scratch_file())
    snapshot.keep([str(large), str(small)])
    assert snapshot.stamps.keys() == {str(small)}
