"""Whole jobs on real input are equal to the serial loop bit for bit, with one copy of the data."""

from __future__ import annotations

import numpy as np
import pytest

import nbshare
from nbshare import SharedArray, parallel_map
from nbshare._core.entries import demo
from tests.support import tasks


def assert_equal_bits(result, expected):
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    assert np.asarray(result).tobytes() == expected.tobytes()


@pytest.fixture(scope="module")
def jacksboro():
    elevation, dx, dy = demo.load()
    return {"elevation": elevation[:150, :200].copy(), "dx": dx[:150], "dy": dy}


@pytest.mark.parametrize("max_workers", [1, 2, 3])
def test_horizons_of_a_landscape(jacksboro, max_workers):
    """The horizons of a map in several directions are those of the loop, for any workers."""
    azimuths = [0.0, 30.0, 225.0, 359.5]
    expected = np.stack([demo.horizon(azimuth, **jacksboro) for azimuth in azimuths])
    result = parallel_map(demo.horizon, azimuths, shared=jacksboro, max_workers=max_workers)
    assert type(result) is SharedArray
    assert expected.any()
    assert_equal_bits(result, expected)


def test_horizons_into_an_array_of_the_callers(jacksboro):
    """The same job into a given array, from a map that is in shared memory already."""
    azimuths = np.array([90.0, 180.0])
    shared = {**jacksboro, "elevation": nbshare.share(jacksboro["elevation"])}
    out = np.full((2, 150, 200), np.nan, np.float32)
    parallel_map(demo.horizon, azimuths, shared=shared, out=out)
    assert_equal_bits(out, np.stack([demo.horizon(a, **jacksboro) for a in azimuths]))


@pytest.mark.parametrize("is_shared", [False, True])
def test_strided_means_of_a_float16_data_set(is_shared):
    """A hundred strided means of a float16 data set are those of the loop."""
    dataset = np.random.default_rng(7).random((100, 20_000)).astype(np.float16)
    expected = np.array([dataset.ravel()[:: i + 1].mean() for i in range(100)])
    given = nbshare.share(dataset) if is_shared else dataset
    result = parallel_map(tasks.strided_mean, range(100), shared={"dataset": given})
    assert expected.dtype == np.float16
    assert_equal_bits(result, expected)


def test_sums_of_the_rows_of_a_file(tmp_path):
    """The rows of a file that `numpy.load` maps are items, and their sums are those of the loop."""
    np.save(tmp_path / "data.npy", np.random.default_rng(7).random((300, 1000)).astype("f4"))
    data = np.load(tmp_path / "data.npy", mmap_mode="r")
    assert_equal_bits(parallel_map(tasks.total, data), np.array([np.sum(row) for row in data]))


MEMORY = """
import os, pathlib, threading
import numpy as np, psutil
from tests.support import tasks
from tests.support.faultlab import wait_until
from nbshare import parallel_map

n = int(os.environ["N_WORKERS"])
folder = pathlib.Path("flags")
folder.mkdir()

def pss():
    me = psutil.Process()
    total = 0
    for process in [me, *me.children(recursive=True)]:
        for line in open(f"/proc/{process.pid}/smaps_rollup"):
            if line.startswith("Pss:"):
                total += int(line.split()[1]) << 10
    return total

dataset = np.ones(100_000_000, np.uint8)
parallel_map(tasks.meet, range(n), shared={"folder": folder, "n": n}, max_workers=n)
for path in folder.iterdir():
    path.unlink()
before = pss()
shared = {"dataset": dataset, "folder": folder}
results = []
def call():
    results.append(parallel_map(tasks.read_and_stay, range(n), shared=shared, max_workers=n))
thread = threading.Thread(target=call)
thread.start()
wait_until(lambda: len(list(folder.glob("read-*"))) == n, what="they have not read it")
grown = pss() - before
(folder / "go").touch()
thread.join()
assert results[0].tolist() == [100_000_000 // 64] * n
print(grown / dataset.nbytes)
"""


@pytest.mark.parametrize("n_workers", [1, 4])
def test_shared_data_exist_once_for_all_workers(script, n_workers):
    """A plain array in ``shared=`` costs one copy in all processes together, however many read."""
    copies = float(script(MEMORY, N_WORKERS=str(n_workers)))
    assert 0.9 < copies < 1.5
