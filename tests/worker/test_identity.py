"""How `multiprocessing` and `logging` see a worker."""

from __future__ import annotations

import os
import sys

import pytest

from nbshare import Executor, parallel_map
from tests.support import identities


def worker(n):
    name = f"nbshare-worker-{n}"
    return {
        "name": name,
        "in logs": name,
        "identity": (n,),
        "pid": True,
        "is alive": True,
        "daemon": False,
        "parent": (os.getpid(), "MainProcess", True),
    }


def test_a_worker_has_a_name_a_number_and_a_parent():
    """As a process of a pool has, but that it may have children."""
    assert parallel_map(identities.who, [0], max_workers=1, out="list") == [worker(1)]
    with Executor(1) as executor:
        assert executor.submit(identities.who, 0).result() == worker(1)
    found = parallel_map(identities.who, range(40), max_workers=2, out="list", chunksize=1)
    assert {each["identity"] for each in found} <= {(1,), (2,)}


def test_multiprocessing_is_not_imported_for_that(cold):
    """As it takes 5 ms."""
    names = ["multiprocessing.process", "multiprocessing"]
    assert parallel_map(identities.has_imported, names, out="list", max_workers=1) == [False, False]


@pytest.mark.skipif(sys.platform == "win32", reason="nothing forks there")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pools_and_maps_within_items_work():
    """The processes of a pool are the worker's children."""
    for i, found in enumerate(
        parallel_map(identities.in_a_pool, range(3), max_workers=2, out="list")
    ):
        assert found[0] == [i, i]
        assert found[1][0] in (1, 2)
        assert found[1][1]
    assert parallel_map(identities.nested, range(3), out="list") == [[i, i] for i in range(3)]
