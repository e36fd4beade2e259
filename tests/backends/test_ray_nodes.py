"""Calls on a Ray cluster of several nodes, which are hosts of their own or share one's memory."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import last_job, map_async, parallel_map
from nbshare._core.hosts import starting
from nbshare._core.hosts.ray import RayHosts
from nbshare.errors import WorkerDiedError
from tests.support import duties, farm
from tests.support.faultlab import SOON_S, wait_until

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),  # of processes that Ray leaves open
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(scope="module")
def cluster():
    """Start a Ray cluster without CPUs, and connect to it."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
        ray.init(cluster.address, log_to_driver=False)
    yield cluster
    nbshare.shutdown()
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def add_nodes(cluster):
    """Give a function that adds nodes of one CPU, by the names of their hosts."""

    def add(*names):
        return [cluster.add_node(env_vars={"NBSHARE_HOST": name}) for name in names]

    yield add
    nbshare.shutdown()
    for node in list(cluster.worker_nodes):
        cluster.remove_node(node, allow_graceful=False)


@pytest.fixture
def given(monkeypatch):
    """Give a list of the sizes of inputs, one for each time that this process gives them."""
    return farm.Given(monkeypatch)


@pytest.fixture
def asked(monkeypatch, tmp_path):
    """Give the hosts that ask for inputs, one for each time that they do."""
    return farm.Asked(monkeypatch, tmp_path / "asked")


def agents(table):
    """Return a function's results for 40 items, with the hosts that ran them, and their agents."""
    found = parallel_map(
        farm.agent_of, range(40), shared={"table": table}, out="list", chunksize=1, backend="ray"
    )
    assert [i for i, *_ in found] == list(range(40))
    return {(host, agent) for _, host, agent in found}


def test_inputs_come_once_to_each_node(add_nodes, given, asked):
    """Both nodes work, each with an agent of its own."""
    add_nodes("one", "two")
    found = agents(np.ones(1 << 18))
    assert sorted(host for host, _ in found) == ["one", "two"]
    assert len(given) == 1
    assert asked.hosts == ["one", "two"]


def test_nodes_that_share_memory_share_an_agent(add_nodes, given, asked):
    """Inputs are once in the memory of a machine, however many nodes it has."""
    add_nodes("same", "same")
    assert len(agents(np.ones(1 << 18))) == len(given) == len(asked.hosts) == 1


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_node(cluster, add_nodes, tmp_path, retries):
    """Its items run again only as ``retries`` says, and what it ran is ended."""
    add_nodes("kept")
    (lost,) = add_nodes("lost")
    job = map_async(
        farm.stay_on,
        range(12),
        shared={"host": "lost", "folder": str(tmp_path)},
        chunksize=2,
        retries=retries,
        backend="ray",
    )
    worker = wait_until(lambda: farm.worker_of(tmp_path, "lost"), 60)
    cluster.remove_node(lost, allow_graceful=False)
    if retries:
        assert job.result(60).tolist() == list(range(12))
    else:
        with pytest.raises(WorkerDiedError, match=r"host .*lost.* was lost .* items? \d"):
            job.result(60)
        i = int(Path(tmp_path, "lost").read_text())
        assert not last_job().present[i]
    ran = duties.noted(tmp_path / "ran")
    assert len(ran) - len(set(ran)) == retries
    wait_until(lambda: not psutil.pid_exists(int(worker)))


def test_a_lost_node_does_not_take_the_agent_of_others_along(cluster, add_nodes, tmp_path):
    """The other goes on, whichever node started it."""
    nodes = add_nodes("same", "same")
    ((_, before),) = agents(np.ones(8))
    cluster.remove_node(nodes[0], allow_graceful=False)
    wait_until(lambda: RayHosts("ray").n_workers() == 1, 4 * SOON_S)
    ((_, after),) = agents(np.ones(8))
    assert after == before


def test_stop_reaches_nodes_that_this_machine_cannot(add_nodes, monkeypatch, tmp_path):
    """Ray brings them the news, for running items and for blocks that wait."""
    monkeypatch.setattr(starting, "end", lambda *_: None)
    add_nodes("one")
    shared = {"folder": str(tmp_path)}
    job = map_async(farm.linger, range(4), shared=shared, chunksize=1, backend="ray")
    worker, _ = wait_until(lambda: farm.worker_of(tmp_path, 0)).split()
    job.cancel()
    wait_until(lambda: not psutil.pid_exists(int(worker)), 4 * SOON_S)
    assert parallel_map(duties.identity, range(2), backend="ray").tolist() == [0, 1]
    assert not farm.worker_of(tmp_path, 1)
