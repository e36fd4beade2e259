"""An array that `numpy.memmap` has mapped from a file goes by the file, and nothing is copied."""

from __future__ import annotations

import dataclasses
import functools
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import nbshare
from nbshare import Executor, parallel_map, pipeline, register_joblib
from nbshare._core.memory import segment_of
from nbshare.errors import StaleReferenceError
from tests.support import mapped, tasks
from tests.support.faultlab import wait_until

register_joblib()

ROWS, COLUMNS = 1024, 600  # of float64, some 5 MB
LARGE = 3 << 30  # bytes, of a file without content

kept = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows lets nobody remove or replace a file that is mapped"
)


@pytest.fixture
def path(tmp_path):
    """Return the path of a file of NumPy's."""
    np.save(tmp_path / "data.npy", np.arange(ROWS * COLUMNS, dtype=float).reshape(ROWS, COLUMNS))
    return tmp_path / "data.npy"


@pytest.fixture
def x(path):
    """Return what `numpy.load` maps of it."""
    return np.load(path, mmap_mode="r")


# ------------------------------------------------------------------------- nothing is copied


def test_a_file_larger_than_the_memory_is_read_where_it_is(tmp_path, monkeypatch):
    """A worker reads a file of 3 GB where 64 MiB are left, and no process has a copy of it."""
    monkeypatch.setattr("nbshare._core.system.processes.available_bytes", lambda: 64 << 20)
    x = np.memmap(tmp_path / "large", np.uint8, "w+", shape=(LARGE,))
    places = [0, LARGE // 2, LARGE - 1]
    x[places] = 1, 2, 3
    results = parallel_map(mapped.peek, places, shared={"x": x}, out="list")
    assert [value for value, _ in results] == [1, 2, 3]
    assert max(mapped.largest_memfd(), *(size for _, size in results)) < LARGE // 10


@dataclasses.dataclass
class Holder:
    """An object of the script, which goes by value."""

    x: Any

    def __call__(self, _):
        """Return where the array is."""
        return mapped.file_of(self.x)


def by_shared(x):
    return parallel_map(mapped.file_of_shared, [0], shared={"x": x}, out="list")[0]


def by_shared_deep_down(x):
    shared = {"item": {"x": [x]}}
    return parallel_map(lambda _, item: mapped.file_of(item["x"][0]), [0], shared=shared)[0]


def by_task(x):
    with Executor(1) as executor:
        return executor.submit(mapped.file_of, x).result(20)


def by_pipeline(x):
    stages = mapped.one_block, mapped.is_in_file, mapped.file_if_true
    return pipeline(*stages, shape=1, dtype=bool, shared={"x": x}, progress=False).results[0]


ROUTES = {
    "shared": by_shared,
    "deep in shared": by_shared_deep_down,
    "rows": lambda x: parallel_map(mapped.file_of, x, out="list")[7],
    "rows in threads": lambda x: parallel_map(mapped.file_of, x[:256], backend="threads")[7],
    "item": lambda x: parallel_map(mapped.file_of, [x, x.T], out="list")[1],
    "in an item": lambda x: parallel_map(mapped.file_in_dict, [{"x": x}], out="list")[0],
    "generated": lambda x: parallel_map(mapped.file_of, (x[k:] for k in range(3)), out="list")[2],
    "partial": lambda x: parallel_map(functools.partial(mapped.file_of_shared, x=x), [0])[0],
    "closure": lambda x: parallel_map(lambda _: mapped.file_of(x), [0])[0],
    "instance": lambda x: parallel_map(Holder(x), [0])[0],
    "subclass": lambda x: by_shared(np.ma.array(x, copy=False)),
    "nested": lambda x: parallel_map(mapped.nest, [0], shared={"x": x})[0],
    "task": by_task,
    "pipeline": by_pipeline,
}


@pytest.mark.parametrize("route", ROUTES)
def test_it_goes_by_its_file_on_all_ways_to_a_worker(route, x, path):
    """The worker's array is in a mapping of the file, whichever way it came."""
    assert ROUTES[route](x) == str(path)


def of_an_open_file(path):
    with path.open("rb") as file:
        return np.memmap(file, "c16", "r", 128)


STRUCTURE = np.dtype([("time", "<i8"), ("ozone", ">f4", (3,))])

VIEWS = {
    "whole": lambda path: np.load(path, mmap_mode="r"),
    "writable": lambda path: np.load(path, mmap_mode="r+"),
    "slice": lambda path: np.load(path, mmap_mode="r")[3:-5, 7::2],
    "reversed": lambda path: np.load(path, mmap_mode="r")[::-1, ::-2],
    "transposed": lambda path: np.load(path, mmap_mode="r").T,
    "reshaped": lambda path: np.load(path, mmap_mode="r").reshape(COLUMNS, ROWS),
    "plain": lambda path: np.asarray(np.load(path, mmap_mode="r"))[5:],
    "broadcast": lambda path: np.broadcast_to(np.load(path, mmap_mode="r")[1], (300, COLUMNS)),
    "stride tricks": lambda path: as_strided(
        np.load(path, mmap_mode="r")[1:], (500, COLUMNS), (2 * COLUMNS * 8, 8)
    ),
    "offset": lambda path: np.memmap(path, "u1", "r", offset=4099),
    "Fortran": lambda path: np.memmap(path, "f4", "r", 128, (COLUMNS, ROWS), "F"),
    "big-endian": lambda path: np.memmap(path, ">i8", "r", 128),
    "structured": lambda path: np.memmap(path, STRUCTURE, "r", 128, (ROWS * 100,)),
    "a field": lambda path: np.memmap(path, STRUCTURE, "r", 128, (ROWS * 100,))["ozone"],
    "of an open file": of_an_open_file,
}


@pytest.mark.parametrize("view", VIEWS)
def test_any_view_arrives_as_it_is(view, path):
    """Shape, strides, dtype and values survive. The worker's view is plain and read-only."""
    array = VIEWS[view](path)
    (seen,) = parallel_map(mapped.worker_facts, [0], shared={"x": array}, out="list")
    assert seen == (*mapped.facts(0, array), str(path), "ndarray", False)


NAMES = ["ä b"] if sys.platform == "win32" else ["ä b", " c ", "d (deleted)", "e\rf", "g\\012h"]


@pytest.mark.parametrize("name", NAMES)
def test_a_file_of_any_name(name, tmp_path):
    """Names that are hard to find in the kernel's list of mappings are found there."""
    (tmp_path / name).write_bytes(bytes(2 << 20))
    x = np.memmap(tmp_path / name, "u1", "r+")
    x[0] = 5
    assert parallel_map(mapped.first, [0], shared={"x": x}).tolist() == [5]
    assert by_shared(x) == str(tmp_path / name)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows does not tell what is open")
def test_many_views_of_a_file_are_one_mapping(tmp_path):
    """Hundreds of arrays in a file do not take hundreds of descriptors in a worker."""
    x = np.memmap(tmp_path / "data", "u1", "w+", shape=(300, 1 << 20))
    ((n, n_descriptors),) = parallel_map(
        mapped.count_descriptors, [0], shared={"views": list(x)}, out="list"
    )
    assert n == 300
    assert n_descriptors < 100


# ------------------------------------------------------------------------- whose values are seen


def test_what_the_caller_writes_to_the_file_is_seen(tmp_path):
    """Workers see a writable memmap as it is, while they run, before it is flushed."""
    x = np.memmap(tmp_path / "data", float, "w+", shape=(1 << 18,))
    shared = {"signal": x, "ready": tmp_path / "ready"}
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(parallel_map, tasks.await_value, [0], shared=shared)
        wait_until(shared["ready"].exists, what="the worker has not begun")
        x[0] = 7
        assert running.result(20).tolist() == [7.0]


def changed_copy_on_write(path):
    x = np.load(path, mmap_mode="c")
    x[0] = 42
    return x


def deleted(path):
    x = np.load(path, mmap_mode="r+")
    x[0] = 42
    path.unlink()
    return x


def replaced(path):
    x = deleted(path)
    np.save(path, np.zeros((ROWS, COLUMNS)))
    return x


def deleted_with_a_namesake(path):
    x = deleted(path)
    with path.with_name(f"{path.name} (deleted)").open("wb") as file:  # as the kernel calls it now
        np.save(file, np.zeros((ROWS, COLUMNS)))
    return x


def replaced_after_a_call(path):
    x = np.load(path, mmap_mode="r+")
    assert by_shared(x) == str(path)
    x[0] = 42
    other = path.with_suffix(".other")
    with other.open("wb") as file:
        np.save(file, np.zeros((ROWS, COLUMNS)))
    other.rename(path)
    return x


@pytest.mark.parametrize(
    "make",
    [
        changed_copy_on_write,
        *(
            pytest.param(make, marks=kept)
            for make in (deleted, deleted_with_a_namesake, replaced, replaced_after_a_call)
        ),
    ],
)
def test_an_array_that_its_path_does_not_lead_to_is_copied(make, path):
    """Workers see the caller's values, whatever file is at the path by now."""
    x = make(path)
    assert parallel_map(mapped.first, [0], shared={"x": x}).tolist() == [42]
    assert by_shared(x) is None


def test_a_small_array_is_copied(x):
    """A file that is copied faster than it is mapped is copied, as any array."""
    assert by_shared(x[:2]) is None
    assert by_shared(x[:0]) is None


def test_share_copies(path):
    """Shared values stay, whatever happens to the file."""
    x = np.load(path, mmap_mode="r+")
    shared = [nbshare.share(x), nbshare.share({"x": x})["x"], nbshare.share({"x": x}, wrap=True)]
    x[0] = 42
    assert shared[0][0, 1] == shared[1][0, 1] == shared[2].get()["x"][0, 1] == 1


# ------------------------------------------------------------------------- what workers write


def fill(i, x):
    x[i] = i + 1


def fill_row(row, i):
    row[...] = i + 1


def with_joblib(x):
    with joblib.parallel_config("nbshare", n_jobs=2):
        joblib.Parallel()(joblib.delayed(fill)(i, x) for i in range(8))


def with_executor(x):
    with Executor(2) as executor:
        for future in [executor.submit(fill, i, x) for i in range(8)]:
            future.result(20)


WRITERS = {
    "item": lambda x: parallel_map(fill, range(8), [x] * 8),
    "view": lambda x: parallel_map(fill_row, [np.asarray(x)[k:][:1] for k in range(8)], range(8)),
    "rows": lambda x: parallel_map(fill_row, x, range(8)),
    "rows beside a generator": lambda x: parallel_map(fill_row, x, iter(range(8))),
    "generated": lambda x: parallel_map(fill, range(8), (x for _ in range(8))),
    "in an item": lambda x: parallel_map(
        lambda i, held: fill(i, held["x"]), range(8), [{"x": x}] * 8
    ),
    "partial": lambda x: parallel_map(functools.partial(fill, x=x), range(8)),
    "closure": lambda x: parallel_map(lambda i: fill(i, x), range(8)),
    "serial": lambda x: parallel_map(fill, range(8), [x] * 8, backend="serial"),
    "threads": lambda x: parallel_map(fill, range(8), [x] * 8, backend="threads"),
    "executor": with_executor,
    "joblib": with_joblib,
}


@pytest.mark.parametrize("way", WRITERS)
@pytest.mark.parametrize("n", [3, 1_000, 200_000])
def test_workers_write_to_a_file_that_is_mapped_for_writing(way, n, tmp_path):
    """At any size. Only in ``shared=`` it is read-only."""
    x = np.memmap(tmp_path / "out", float, "w+", shape=(8, n))
    WRITERS[way](x)
    np.testing.assert_array_equal(
        np.fromfile(tmp_path / "out").reshape(8, n)[:, 0], np.arange(1, 9)
    )
    assert (x == np.arange(1.0, 9)[:, None]).all()
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(fill, range(8), shared={"x": x})


def test_a_view_that_the_caller_may_not_write_to_stays_read_only(tmp_path):
    """In any mode of the file's mapping."""
    x = np.memmap(tmp_path / "out", float, "w+", shape=(8, 200_000))
    x.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(fill, range(8), [x] * 8)


@pytest.mark.parametrize("order", "CF")
def test_rows_of_a_file_come_back_without_a_copy_here(order, path):
    """A function may return a part of what `numpy.load` maps. The caller maps the worker's log."""

    def rows(k):
        found = np.load(path, mmap_mode="r")[10 * k : 10 * k + 10]
        return found if order == "C" else found.T

    for k, found in enumerate(parallel_map(rows, range(3), out="list")):
        expected = rows(k)
        assert type(found) is np.memmap
        assert segment_of(found) is not None
        assert found.flags.f_contiguous == expected.flags.f_contiguous
        np.testing.assert_array_equal(found, expected)


# ------------------------------------------------------------------------- errors


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_workers_cannot_write_to_the_file(mode, path):
    """A write is an error that says what to do, also where the caller may write."""
    with pytest.raises(ValueError, match="read-only") as caught:
        parallel_map(mapped.write, [0], shared={"x": np.load(path, mmap_mode=mode)})
    assert "work on a copy" in "".join(caught.value.__notes__)


@kept
@pytest.mark.parametrize("mode", ["r", "r+"])
@pytest.mark.parametrize(
    ("way", "words"),
    [("gone", "No such file"), ("truncated", "has become smaller"), ("replaced", "another file")],
)
def test_a_file_that_changes_before_a_worker_maps_it_is_an_error(way, words, mode, path):
    """The error names the file. No worker dies, and none sees other data, or makes it larger."""
    x = np.load(path, mmap_mode=mode)
    with pytest.raises(StaleReferenceError, match=words) as caught:
        parallel_map(mapped.spoil, [way] * 2, [path] * 2, [None, x.ravel()], max_workers=1)
    assert str(path) in str(caught.value)
