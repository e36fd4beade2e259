"""The snapshot of source files that workers import, seen by several processes at once."""

from __future__ import annotations

import pytest

from nbshare._core.functions.freshness import Snapshot
from nbshare._core.memory import scratch_file
from nbshare._core.system import files as system_files
from nbshare._core.system import sections


@pytest.fixture
def files(tmp_path):
    """Write three source files."""
    paths = [tmp_path / f"source_{i}.py" for i in range(3)]
    for path in paths:
        path.write_text(f"NAME = {path.name!r}")
    return [str(path) for path in paths]


@pytest.fixture
def snapshot():
    """Return an empty snapshot, the owner's."""
    return Snapshot(scratch_file())


def another(snapshot):
    """Return the snapshot as a worker has it."""
    return Snapshot(sections.duplicate(snapshot.fileno()))


def test_a_file_is_what_it_was_when_it_was_kept(snapshot, files):
    """No worker sees an edit after that, until the file is kept again."""
    other = another(snapshot)
    snapshot.keep(files[:1])
    with open(files[0], "w") as file:
        file.write("NAME = 'edited'")
    snapshot.keep(files[1:2])
    assert other.sources().keys() == set(files[:2])
    assert b"source_0" in other.sources()[files[0]].data
    snapshot.keep(files[:1])
    assert b"edited" in other.sources()[files[0]].data
    assert other.sources() == snapshot.sources() == another(snapshot).sources()


@pytest.mark.parametrize("n_bytes", [1, 8, 10_000])
def test_what_is_half_written_is_not_read(snapshot, files, n_bytes):
    """Nor does it come between what is written after it."""
    snapshot.keep(files[:1])
    end, _ = snapshot._seen
    system_files.write_at(snapshot.fileno(), b"\x01" * n_bytes, end + 8)  # the length comes last
    assert another(snapshot).sources().keys() == set(files[:1])
    snapshot.keep(files[1:])
    assert another(snapshot).sources().keys() == set(files)


def test_large_and_missing_files_are_not_kept(snapshot, tmp_path):
    """Large ones are data, and workers import them as they are."""
    large, small = tmp_path / "large.py", tmp_path / "small.py"
    large.write_bytes(b"#" * (17 << 20))
    small.write_text("")
    snapshot.keep([str(large), str(tmp_path / "missing.py"), str(small)])
    assert [path for path, source in snapshot.sources().items() if source] == [str(small)]
