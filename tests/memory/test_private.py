"""Private memory, which calls in this process use, and which never leaves it."""

from __future__ import annotations

import gc
import os
import re
import sys
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np
import pytest

from nbshare import map_async, parallel_map
from nbshare._core.memory import Segment, View, segment_of
from nbshare._core.store.pages import PAGE_ITEMS
from tests.support.grids import combined

N = 1 << 19  # numbers, large enough for memory that is used again

in_process = pytest.mark.parametrize("backend", ["serial", "threads"])


kept = []


def keep(row, table=None):
    """Keep an array that comes. A function of a module goes by its name, with what it has kept."""
    kept.append(row if table is None else table)
    return 0


def private(n):
    """Return an array of ones in private memory."""
    array = View(Segment.create(8 * n, is_private=True)).array(float, (n,))
    array[:] = 1
    return array


@in_process
def test_inputs_of_calls_in_this_process_take_no_descriptor(backend):
    """Nor has their memory a file."""

    def look(i, table):
        return len(os.listdir("/proc/self/fd")), table.flags.writeable

    table = np.ones(N)
    before = len(os.listdir("/proc/self/fd"))
    parallel_map(abs, [1], backend=backend)  # the slab of boards takes one, and stays
    for n_open, is_writable in parallel_map(
        look, range(2), shared={"table": table}, out="list", backend=backend
    ):
        n_each = 1 if sys.version_info >= (3, 13) else 2
        assert n_open <= before + 2 * n_each  # a log of results
        assert not is_writable


def address(_, table):
    return table.ctypes.data


@in_process
def test_the_memory_of_inputs_is_used_again(backend):
    """By the next call, since nothing of this one is left. Fresh pages are the cost of memory."""
    options = {"shared": {"table": np.ones(N)}, "max_workers": 2, "progress": False}
    found = [{*parallel_map(address, [0, 1], backend=backend, **options)} for _ in range(20)]
    assert found[1:] == found[:-1]


@pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages"
)
def test_large_memory_asks_for_huge_pages():
    """As NumPy's own does, so that it is read as fast."""
    segment = Segment.create(8 << 20, is_private=True)
    maps = Path("/proc/self/smaps").read_text()
    found = re.findall(r"^(\w+)-(\w+) (?:.*\n)*?VmFlags: (.*)", maps, re.MULTILINE)
    (flags,) = [
        flags for start, stop, flags in found if int(start, 16) <= segment.address < int(stop, 16)
    ]
    assert "hg" in flags.split()


@in_process
def test_results_can_be_mapped_by_others(backend):
    """Workers write to their memory, wherever their items ran."""
    for func, items in ((float, range(4)), (np.zeros, [N] * 2)):
        results = parallel_map(func, items, backend=backend)
        assert not segment_of(results)[0].is_private
        parallel_map(np.copyto, [results], [7], max_workers=1)
        assert (results == 7).all()


def test_arrays_in_private_memory_go_by_value():
    """To workers they are copied, like any plain array. A pickle has their values."""
    array = private(N)
    assert parallel_map(np.sum, [array, array[1:]]).tolist() == [N, N - 1]
    with pytest.raises(ValueError, match="read-only"):
        parallel_map(np.copyto, [array], [7])
    assert len(ForkingPickler.dumps(array)) > array.nbytes


@pytest.mark.parametrize(
    ("where", "backend"), combined(["shared", "item", "result"], ["serial", "threads"])
)
def test_what_a_function_keeps_of_its_inputs_stays_as_it_was(backend, where):
    """Memory is used again only when no array shows it."""
    source = np.full((2, N), 3.0)
    if where == "shared":
        parallel_map(keep, [0], shared={"table": source}, backend=backend)
    elif where == "item":
        parallel_map(keep, source, backend=backend)
    else:
        parallel_map(keep, parallel_map(np.copy, source, backend=backend), backend=backend)
    gc.collect()
    for _ in range(2):
        parallel_map(np.copy, source * 2, shared={"order": "C"}, backend=backend)
    found = [(array == 3).all() for array in kept]
    kept.clear()
    assert found == [True] * (1 if where == "shared" else 2)


def test_private_memory_that_grows_keeps_what_was_read():
    """Readers go on to the larger memory, and views of the smaller one stay."""
    small = Segment.create(4096, is_private=True)
    view = View(small).array(np.uint8, (4096,))
    view[:] = 5
    large = small.grown(8192, 1 << 20).grown(1 << 20, 1 << 21)
    assert small.whole("r") is large
    assert View(large).array(np.uint8, (4096,)).tolist() == view.tolist()
    assert not View(large).array(np.uint8, (1 << 20,), 4096).any()


def test_pages_of_a_long_generator_are_given_back():
    """Results that a loop has taken need no memory."""
    n = 250_000  # 16 pages
    ahead = 100_000 // PAGE_ITEMS + 1  # pages of items that are brought ahead at most
    job = map_async(abs, iter(range(n)), backend="threads", max_workers=2)
    most = 0
    for _ in job:
        most = max(most, len(job._owners_run.board.pages))
    assert job.n_done == n
    assert most <= 2 * ahead  # and those of a look at the results, until all are taken


def test_read_only_memory_stays_so():
    """An array of it cannot be made writable, though this process could write there."""
    copy = Segment.filled(8, [(0, np.ones(1))], is_private=True).again("r")
    with pytest.raises(ValueError, match="WRITEABLE"):
        View(copy).array(float, (1,)).flags.writeable = True
