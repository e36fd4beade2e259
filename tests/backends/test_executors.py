"""Calls on executors of `concurrent.futures`, whose tasks an agent on the host runs."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context

import pytest

import nbshare
from nbshare import map_async
from nbshare._core.store import logs
from nbshare._core.store.logs import LogReader
from tests.support import duties
from tests.support.contract import BackendContract


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


class ExecutorContract(BackendContract):
    """The promises of calls on an executor, which tells nothing but that a task has ended."""

    lacks = frozenset({"in place"})

    def test_a_report_is_seen_while_its_item_runs(self, run, tmp_path):
        """Not here. It comes with the end of the item."""
        (tmp_path / "go").touch()
        shared = {"first": 4, "folder": str(tmp_path)}
        found = run(duties.report_from, range(5), shared=shared, chunksize=3)
        assert found.tolist() == [0, 1, 2, 3, 4]


class TestThreadPool(ExecutorContract):
    """Calls on a pool of threads."""

    @pytest.fixture
    def backend(self, threads):
        """Give the value for ``backend=``."""
        return threads


class TestProcessPool(ExecutorContract):
    """Calls on a pool of processes."""

    @pytest.fixture
    def backend(self, processes):
        """Give the value for ``backend=``."""
        return processes


def test_a_loop_has_the_results_of_every_log(threads, monkeypatch):
    """Also if those that nobody seems to need are dropped whenever another one is announced."""
    jobs, announce = [], LogReader.add

    def announce_and_drop(self, key, log):
        announce(self, key, log)
        for job in jobs:
            job._run.results.drop_logs()

    monkeypatch.setattr(LogReader, "add", announce_and_drop)
    monkeypatch.setattr(logs, "LOG_BYTES", 1 << 13)
    monkeypatch.setattr(logs, "MOST_LOG_BYTES", 1 << 13)
    jobs.append(map_async(duties.long_text, iter(range(1_000)), backend=threads, max_workers=2))
    found = {i: len(text) for i, text in jobs[0]}
    assert found == {i: 4_000 + i for i in range(1_000)}
