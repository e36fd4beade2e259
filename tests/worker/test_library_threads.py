"""Libraries with threads of their own have a share of the CPUs, in each worker and in each call."""

from __future__ import annotations

import importlib
import sys

import pytest

from nbshare import parallel_map
from nbshare._core.system import processes
from nbshare._core.wire.threads import VARIABLES
from tests.support import library_threads as seen

ALL = processes.usable_cpus()
LIBRARY = """
import os
n = int(os.environ.get("OMP_NUM_THREADS", 99))
def get_num_threads(): return n
def set_num_threads(m):
    global n
    n = m
"""
NUMBA = """
import os, types
import torch
config = types.SimpleNamespace(NUMBA_NUM_THREADS=int(os.environ["NUMBA_NUM_THREADS"]))
n = 0
def threading_layer():
    if not n: raise ValueError("not initialized")
    return "omp"
def get_num_threads():
    if not n: set_num_threads(config.NUMBA_NUM_THREADS)
    if int(os.environ["NUMBA_NUM_THREADS"]) != config.NUMBA_NUM_THREADS: raise RuntimeError
    return n
def set_num_threads(m):
    global n
    if not n: torch.set_num_threads(config.NUMBA_NUM_THREADS)
    if m > config.NUMBA_NUM_THREADS: raise ValueError(m)
    n = m
"""


@pytest.fixture
def libraries(tmp_path, monkeypatch, cold):
    """Give stand-ins for PyTorch and Numba, which share OpenMP's threads, to workers alone."""
    for name, code in {"torch": LIBRARY, "numba": NUMBA}.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    yield
    for name in ("torch", "numba", "own"):
        sys.modules.pop(name, None)


def called(f, n_workers, **options):
    found = parallel_map(f, range(4), max_workers=n_workers, out="list", progress=False, **options)
    assert found == [found[0]] * 4
    return found[0]


def test_every_variable_is_set_unless_the_user_has(libraries, monkeypatch):
    """For all libraries that read one when they are loaded."""
    assert called(seen.variables, ALL) == dict.fromkeys(VARIABLES, "1")
    monkeypatch.setenv("NUMBA_NUM_THREADS", "5")
    assert called(seen.variables, ALL) == {
        **dict.fromkeys(VARIABLES, "1"),
        "NUMBA_NUM_THREADS": "5",
    }


def test_what_an_item_sets_does_not_stay(libraries):
    """And a call with another number of workers has another share."""
    for n_workers in (ALL, 1, ALL):
        for _ in range(2):
            assert called(seen.number, n_workers) == ALL // n_workers
            assert called(seen.of_blas, n_workers) == {ALL // n_workers}
            called(seen.spoil, n_workers)


def test_what_the_initializer_sets_stays(libraries):
    """It does not run again."""
    for n_workers in (ALL, 1):
        options = {"initializer": seen.prepare}
        assert called(seen.number, n_workers, **options) == 3
        assert called(seen.of_blas, n_workers, **options) == {3}
        called(seen.spoil, n_workers)
        assert called(seen.number, n_workers) == 3


def test_what_a_module_sets_stays(libraries, tmp_path):
    """It is not imported again."""
    (tmp_path / "own.py").write_text(
        "import torch\ntorch.set_num_threads(3)\ndef get_num_threads(_): return torch.n"
    )
    own = importlib.import_module("own")
    for _ in range(2):
        assert called(own.get_num_threads, ALL) == 3
        called(seen.spoil, ALL)


def test_the_start_of_another_library_s_threads_changes_nothing(libraries):
    """Numba cannot take more than it began with, and its variable must not change from then on."""
    for n_workers in (1, ALL, 1):
        share = ALL // n_workers
        for _ in range(2):
            assert called(seen.both, n_workers) == (share, share, share)
