"""Calls on executors of `concurrent.futures`, whose tasks an agent on the host runs."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest
from contract import BackendContract

import nbshare


@pytest.fixture(scope="module")
def threads():
    """Give an executor with two threads of this process."""
    with ThreadPoolExecutor(2) as executor:
        yield executor
    nbshare.shutdown()


@pytest.fixture(scope="module")
def processes(no_helpers_left):
    """Give an executor with two processes."""
    with ProcessPoolExecutor(2, get_context("forkserver")) as executor:
        yield executor
    nbshare.shutdown()


class TestThreadPool(BackendContract):
    """Calls on a pool of threads."""

    lacks = frozenset({"in place"})

    @pytest.fixture
    def backend(self, threads):
        """Give the value for ``backend=``."""
        return threads


class TestProcessPool(BackendContract):
    """Calls on a pool of processes."""

    lacks = frozenset({"in place"})

    @pytest.fixture
    def backend(self, processes):
        """Give the value for ``backend=``."""
        return processes
