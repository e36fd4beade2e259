"""Stored runs of each format that there has been keep loading, and going on."""

from __future__ import annotations

import shutil
from pathlib import Path

import format_work
import numpy as np
import pytest

from nbshare import open_checkpoint, parallel_map

FORMATS = sorted(Path(__file__).parent.glob("format_[0-9]*"))


@pytest.mark.parametrize("folder", FORMATS, ids=lambda path: path.name)
@pytest.mark.parametrize("name", ["rows", "objects"])
def test_a_stored_run_loads(folder, name, tmp_path):
    """It gives its results; the same call runs nothing, and a longer one what is new."""
    path, func = tmp_path / "run", getattr(format_work, name)
    shutil.copytree(folder / name, path)
    run = open_checkpoint(path)
    expected = [func(x, 3) for x in range(4)]
    assert str(list(run.results())) == str(expected)
    assert run.outdated(func, range(5), shared={"scale": 3}) == (5, 4, 1, 0, [])
    results = parallel_map(func, range(5), shared={"scale": 3}, checkpoint=path, backend="serial")
    assert str(list(map(np.asarray, results))) == str([np.asarray(func(x, 3)) for x in range(5)])
