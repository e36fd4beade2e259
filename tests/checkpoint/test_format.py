"""Stored runs of the format keep loading, and going on. Those of others are refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from nbshare import attach, import_file, open_checkpoint, parallel_map
from nbshare._core.store.rows import INDEX, FilePlace, RowWriter
from nbshare.errors import CheckpointError
from tests.support import format_work as module

format_work = import_file(module.__file__)  # by the name that the stored results tell

FORMATS = sorted(Path(__file__).parent.glob("format_[0-9]*"))


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["rows", "objects"])
def test_a_stored_run_loads(folder, name, tmp_path):
    """It gives its results. The same call runs nothing, and a longer one the new items."""
    if name == "objects" and np.__version__ < "2":
        pytest.skip("NumPy 2 has pickled them, which names modules that NumPy 1 has not")
    path, func = tmp_path / "run", getattr(format_work, name)
    shutil.copytree(folder / name, path)
    run = open_checkpoint(path)
    expected = [func(x, 3) for x in range(4)]
    assert str(list(run.results())) == str(expected)
    assert run.outdated(func, range(5), shared={"scale": 3}) == (5, 4, 1, 0, [])
    results = parallel_map(func, range(5), shared={"scale": 3}, checkpoint=path, backend="serial")
    assert str(list(map(np.asarray, results))) == str([np.asarray(func(x, 3)) for x in range(5)])


def test_rows_next_to_items_without_a_row_are_written(tmp_path):
    """The disk has refused these, so their row is -1, next to 0."""
    path = tmp_path / "run"
    parallel_map(abs, [-1.5, -2.5, -3.5], checkpoint=path)
    place = FilePlace(str(path), {"results.npy": 256, "index.npy": 256}, 0, 9)
    values = np.arange(4.0)
    RowWriter(place).put(np.array([-1, 0, 1, -1]), values, np.zeros(4, INDEX))
    assert np.load(path / "results.npy").tolist() == [1.0, 2.0, 3.5]


@pytest.mark.parametrize(
    "use",
    [open_checkpoint, attach, lambda path: parallel_map(abs, [1], checkpoint=path)],
    ids=["open", "attach", "map"],
)
@pytest.mark.parametrize("version", [1, 99])
def test_a_run_of_another_format_is_refused_and_left_alone(use, version, tmp_path):
    """The error names its format, and who can read it."""
    path = tmp_path / "run"
    shutil.copytree(FORMATS[-1] / "rows", path)
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"format": version}))
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    with pytest.raises(CheckpointError, match=f"has format {version}, of nbshare"):
        use(path)
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
