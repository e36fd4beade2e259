"""Workers keep the memory of temporary arrays while they work, and return it when they are idle."""

from __future__ import annotations

import os

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import parallel_map
from nbshare._core.system import SYSTEM
from tests.support.faultlab import wait_until

resource = pytest.importorskip("resource", reason="Windows does not tell the faults of a process")
pytestmark = pytest.mark.skipif(SYSTEM != "linux", reason="the settings of malloc are glibc's")

TEMPORARY = 3 << 20  # bytes, as several such arrays live at a time in NumPy's expressions


def faults_of_temporaries(n):
    """Return the page faults of `n` rounds of some temporary arrays, and this process."""
    x = np.ones(TEMPORARY // 8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(n):
        (abs(np.sin(x * x)) + x).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before, os.getpid()


def test_temporary_arrays_are_not_made_of_fresh_pages():
    """Twenty rounds touch fewer fresh pages than one round has."""
    results = parallel_map(faults_of_temporaries, [2, 20], max_workers=1, out="list")
    assert results[1][0] < 2 * TEMPORARY // resource.getpagesize()  # of two at least


@pytest.mark.first
def test_an_idle_worker_returns_what_it_has_kept(cold):
    """Half a second after the call it is as small as before."""
    (_, pid), *_ = parallel_map(faults_of_temporaries, [1], max_workers=1, out="list")
    worker = psutil.Process(pid)
    wait_until(lambda: worker.memory_info().rss < 80 << 20, what="the heap stays")
    small = worker.memory_info().rss
    parallel_map(faults_of_temporaries, [5], max_workers=1, out="list")
    wait_until(lambda: worker.memory_info().rss < small + TEMPORARY, what="the heap stays")


@pytest.mark.parametrize("name", ["MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES"])
def test_the_user_s_own_settings_stay(name, monkeypatch):
    """If the user has set malloc up, it is left alone."""
    value = "131072" if name.startswith("MALLOC") else "glibc.malloc.trim_threshold=131072"
    nbshare.shutdown()
    monkeypatch.setenv(name, value)
    try:
        (_, (faults, _)) = parallel_map(faults_of_temporaries, [2, 20], max_workers=1, out="list")
        assert faults > 5 * TEMPORARY // resource.getpagesize()
    finally:
        nbshare.shutdown()
