"""Calls on a Dask cluster, and on Ray, with real schedulers and workers, in processes over TCP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import resource
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import last_job, map_async, parallel_map
from nbshare._core.hosts import dask
from nbshare.errors import PartialResultWarning, WorkerDiedError
from tests.support import duties, farm, shapes
from tests.support.contract import BackendContract
from tests.support.faultlab import wait_until


@pytest.fixture(scope="module")
def dask_client():
    """Give the client of a cluster of two worker processes."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as client,
    ):
        yield client
        nbshare.shutdown()


@pytest.fixture(scope="module")
def ray_address():
    """Start a cluster of one node. Give its address."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield "ray"
    nbshare.shutdown()
    ray.shutdown()


class TestDask(BackendContract):
    """Calls on a Dask cluster."""

    lacks = frozenset({"in place"})

    @pytest.fixture
    def backend(self, dask_client):
        """Give the value for ``backend=``."""
        return dask_client


class TestRay(BackendContract):
    """Calls on a Ray cluster."""

    lacks = frozenset({"in place"})

    @pytest.fixture
    def backend(self, ray_address):
        """Give the value for ``backend=``."""
        return ray_address


@pytest.mark.parametrize("is_stopped", [True, False])
def test_inputs_leave_nothing_in_the_store_of_ray(ray_address, tmp_path, is_stopped):
    """Also if the call is stopped."""
    store = pytest.importorskip("ray.experimental.internal_kv")
    shared = {"table": np.ones(1 << 18), "folder": str(tmp_path)}
    job = map_async(farm.total_and_wait, range(2), shared=shared, backend="ray")
    wait_until((tmp_path / "read-0").exists, 60)
    if is_stopped:
        job.cancel()
        with pytest.warns(PartialResultWarning):
            job.result(5)
    (tmp_path / "go").touch()
    job.wait(20)
    assert not store._internal_kv_list("nbshare-")


def test_an_asynchronous_dask_client(dask_client):
    """It is refused where its event loop would wait for the call, and works in other threads."""
    distributed, address = pytest.importorskip("distributed"), dask_client.scheduler.address
    call = functools.partial(parallel_map, duties.identity, range(3), progress=False)

    async def use():
        async with distributed.Client(address, asynchronous=True) as client:
            with pytest.raises(ValueError, match="event loop runs in this thread"):
                call(backend=client)
            return await asyncio.to_thread(call, backend=client)

    assert asyncio.run(use()).tolist() == [0, 1, 2]


@pytest.mark.parametrize("kind", shapes.KINDS)
def test_items_with_a_shape_on_dask(dask_client, kind):
    """As a loop gives them, interrupted and continued."""
    shapes.check(kind, dask_client)


def be_host(dask_worker):
    """Make a worker a host of its own."""
    farm.be_host(dask_worker.address)


@pytest.fixture
def two_hosts(dask_client):
    """Give the client of the cluster, whose two workers are hosts of their own."""
    # The scheduler may still count a worker that has just been killed.
    wait_until(lambda: len(dask_client.run(be_host, on_error="ignore")) == 2, 60)
    yield dask_client
    dask_client.run(os.environ.pop, "NBSHARE_HOST", "", on_error="ignore")
    nbshare.shutdown()


class Large(list):
    """Indices of items, too many bytes to go with each block."""

    def __reduce__(self):
        return _large, (list(self), bytes(1 << 20))


def _large(given, _):
    return Large(given)


def options(client, folder):
    """Return options of a call in which a host is lost."""
    shared = {"bad": {7}, "folder": str(folder)}
    return {"shared": shared, "chunksize": 2, "backend": client, "progress": False}


def test_a_lost_dask_worker_and_its_host(two_hosts, tmp_path):
    """Dask repeats tasks of lost workers. Items run again only as ``retries`` says."""
    found = parallel_map(farm.lose_machine_at, range(20), retries=1, **options(two_hosts, tmp_path))
    assert found.tolist() == list(range(20))
    ran = duties.noted(tmp_path / "ran")
    assert ran.count("7") == 2
    # The worker may also have held results of the block before, which nobody had fetched yet.
    assert {ran.count(str(i)) for i in range(20)} == {1, 2}
    assert len(ran) <= 24


def test_a_lost_dask_worker_is_named(two_hosts, tmp_path):
    """Without retries nothing runs twice."""
    with pytest.raises(WorkerDiedError, match=r"host .* was lost .* items \d to \d"):
        parallel_map(farm.lose_machine_at, range(20), **options(two_hosts, tmp_path))
    ran = duties.noted(tmp_path / "ran")
    assert len(ran) == len(set(ran))
    assert not last_job().present[7]


@contextlib.contextmanager
def one_worker(limit_if, n_allowed):
    """Give a client of a Dask cluster of one worker. What replaces it is a host of its own.

    Those that start when there is such a file have no memory for inputs.
    """
    distributed = pytest.importorskip("distributed")
    config = pytest.importorskip("dask").config

    class EachIsAHost(distributed.WorkerPlugin):
        def setup(self, worker):
            be_host(worker)
            if limit_if.exists():
                resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))

    with (
        config.set({"distributed.scheduler.allowed-failures": n_allowed}),
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as client,
    ):
        client.register_plugin(EachIsAHost())
        yield client
        nbshare.shutdown()


@pytest.mark.parametrize(
    ("bad", "n_allowed", "limited"),
    [(Large([2]), 3, False), (Large([2]), 3, True), ([2], 0, False)],
    ids=["inputs", "memory", "killed"],
)
def test_dask_repeats_no_item(tmp_path, monkeypatch, bad, n_allowed, limited):
    """Neither on a host that lacks the inputs or memory, nor if Dask itself gives a task up."""
    monkeypatch.setattr(dask, "NO_WORKERS_S", duties.ENOUGH_S)
    shared = {"bad": bad, "folder": str(tmp_path)}
    limit_if = tmp_path / ("lost-2" if limited else "never")
    with (
        one_worker(limit_if, n_allowed) as client,
        pytest.raises(WorkerDiedError, match=r"host .*was lost"),
    ):
        parallel_map(farm.lose_machine_at, range(4), shared=shared, backend=client, progress=False)
    assert duties.noted(tmp_path / "ran").count("2") == 1


@pytest.mark.parametrize(("nbytes", "n_early"), [(100_000, 6), (600_000, 0)])
def test_news_of_a_long_block_with_large_results(dask_client, tmp_path, nbytes, n_early):
    """Some at a time. What is too large for the scheduler comes at the block's end."""
    shared = {"nbytes": nbytes, "folder": str(tmp_path)}
    job = map_async(farm.row_of, range(7), shared=shared, chunksize=7, backend=dask_client)
    wait_until(lambda: any(worker.fraction == 0.5 for worker in job._run.activity()), 20)
    wait_until(lambda: job.n_done == n_early, 20)
    (tmp_path / "go").touch()
    assert job.result(60)[:, -1].tolist() == list(range(7))


@pytest.mark.parametrize(
    ("way", "size", "are_hosts"),
    [
        ("retired", 1, True),
        ("retired", 1, False),
        ("closed", 1, True),
        ("closed", 1, False),
        ("retired", 8, True),
        ("retired", 8, False),
    ],
)
def test_a_retired_dask_worker(tmp_path, way, size, are_hosts):
    """Its items run again elsewhere without counting as retries. It leaves no process or note.

    So do those of a block that has already sent results.
    """
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as client,
    ):
        if are_hosts:
            client.run(be_host)
        before, shared = client.run_on_scheduler(metadata_of), {"folder": str(tmp_path)}
        job = map_async(farm.stay_once, range(8), shared=shared, chunksize=size, backend=client)
        wait_until(lambda: job.n_done == 7 and (tmp_path / "stays").exists(), 60)
        # Until then, Dask would run the last finished block again.
        wait_until(lambda: len(client.run_on_scheduler(blocks_of)) == 1, what="Dask keeps results")
        (address,) = [at for at, tasks in client.processing().items() if tasks]
        if way == "retired":
            client.retire_workers([address])
        else:  # as by Cluster.scale, or SIGTERM
            nannies = {nanny.worker_address: nanny for nanny in local.workers.values()}
            local.sync(nannies[address].close)
        assert job.result(60).tolist() == list(range(8))
        assert duties.noted(tmp_path / "ran") == list("012345677")
        assert sum(worker.n_retried for worker in job.stats) == 0
        (process,) = duties.noted(tmp_path / "stays")
        wait_until(lambda: not psutil.pid_exists(int(process)), what="it computes")
        wait_until(lambda: client.run_on_scheduler(metadata_of) == before, what="notes are left")
        nbshare.shutdown()


def blocks_of(dask_scheduler):
    """Return the keys of the blocks that the scheduler has."""
    return [key for key in dask_scheduler.tasks if str(key).startswith("nbshare-")]


def metadata_of(dask_scheduler):
    """Return whose notes the scheduler has."""
    return list(dask_scheduler.task_metadata)


def test_inputs_come_once_to_each_dask_host(two_hosts, monkeypatch, tmp_path):
    """And not again for a later block."""
    given, asked = farm.Given(monkeypatch), farm.Asked(monkeypatch, tmp_path / "asked")
    table = np.ones(1 << 18)
    found = parallel_map(
        farm.total_with_others,
        range(30),
        shared={"table": table, "folder": str(tmp_path), "n": 2},
        chunksize=1,
        backend=two_hosts,
        progress=False,
    )
    assert found.tolist() == [float(table.size) + i for i in range(30)]
    assert len(given) == 1
    assert len(asked.hosts) == len(set(asked.hosts)) == len(two_hosts.nthreads()) == 2


@pytest.mark.parametrize("then", ["lost", "stopped"])
def test_a_worker_to_which_inputs_go_hangs(two_hosts, monkeypatch, then):
    """Others get them once it is lost. Stop does not wait for that."""
    distributed = pytest.importorskip("distributed")
    scatter, go, hung = distributed.Client.scatter, threading.Event(), threading.Event()

    async def hang():
        hung.set()
        while not go.is_set():
            await asyncio.sleep(0.01)
        raise OSError("the worker is lost")

    def scatter_after_one(*args, **options):
        return scatter(*args, **options) if hung.is_set() else hang()

    monkeypatch.setattr(distributed.Client, "scatter", scatter_after_one)
    table = np.ones(1 << 18)
    job = map_async(farm.total, range(3), shared={"table": table}, backend=two_hosts)
    assert hung.wait(60)
    if then == "stopped":
        job.cancel()
        with pytest.warns(PartialResultWarning):
            job.result(2)
        go.set()
    else:
        go.set()
        assert job.result(60).tolist() == [float(table.size) + i for i in range(3)]


def sockets():
    """Return the ports where this process listens, and pairs of ports of its connections."""
    found = psutil.Process().net_connections("inet")
    listening = {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}
    pairs = {(one.laddr.port, one.raddr.port) for one in found if one.raddr}
    return listening, pairs


def test_everything_goes_through_dask_and_its_encryption(tmp_path):
    """The client listens nowhere else, and has no connections but Dask's."""
    distributed = pytest.importorskip("distributed")
    pytest.importorskip("cryptography")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            dashboard_address=":0",
            security=distributed.Security.temporary(),
        ) as local,
        distributed.Client(local) as client,
    ):
        places = client.run(be_host)
        before, others = sockets()
        dask = before | {int(address.rpartition(":")[2]) for address in places}
        table = np.ones(1 << 18)
        job = map_async(
            farm.total_and_wait,
            range(2),
            shared={"table": table, "folder": str(tmp_path)},
            backend=client,
        )
        for i in range(2):
            wait_until((tmp_path / f"read-{i}").exists, 60)
        listening, pairs = sockets()
        (tmp_path / "go").touch()
        assert job.result(30).tolist() == [float(table.size) + i for i in range(2)]
        assert listening == before
        assert [pair for pair in pairs - others if not dask & {*pair}] == []
        nbshare.shutdown()


@pytest.mark.parametrize("retries", [0, 1])
def test_a_lost_scheduler_is_named(tmp_path, retries):
    """With everything that was done. The call does not wait for another one."""
    distributed = pytest.importorskip("distributed")
    address = f"--scheduler-file={tmp_path / 'address'}"
    start = functools.partial(
        subprocess.Popen, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    command = (sys.executable, "-m", "distributed.cli.dask_{}", address)
    with (
        start([part.format("scheduler") for part in command] + ["--port=0"]) as scheduler,
        start([part.format("worker") for part in command]) as worker,
        distributed.Client(scheduler_file=str(tmp_path / "address")) as client,
    ):
        client.wait_for_workers(1)
        job = map_async(duties.slow, range(2_000), backend=client, retries=retries)
        wait_until(lambda: job.n_done > 50, 60)
        scheduler.kill()
        with pytest.raises(ConnectionError, match="lost its scheduler"):
            job.result(20)
        assert job.partial().count() == job.n_done > 50
        nbshare.shutdown()
        worker.kill()


@pytest.mark.parametrize("when_s", [0.0, 0.3, 1.5])
def test_a_closed_client_ends_the_run(dask_client, when_s):
    """At any moment. Finished results are kept, and another client can run the rest."""
    distributed = pytest.importorskip("distributed")
    with distributed.Client(dask_client.cluster) as client:
        job = map_async(duties.slow, range(2_000), backend=client, chunksize=1)
        time.sleep(when_s)
    with pytest.raises(ConnectionError, match="is closed"):
        job.result(5)
    assert job.present.sum() == job.n_done
    with pytest.raises(ConnectionError, match="is closed"):
        parallel_map(duties.identity, range(3), backend=client)
    found = parallel_map(duties.identity, range(3), backend=dask_client, progress=False)
    assert found.tolist() == [0, 1, 2]


def test_a_cluster_that_has_lost_its_workers_ends_the_run():
    """After some seconds, with what was done. Not while a new cluster starts its first workers."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=1, processes=True, dashboard_address=":0"
        ) as local,
        distributed.Client(local) as client,
    ):
        job = map_async(duties.slow, range(5_000), backend=client, chunksize=1)
        wait_until(lambda: job.n_done > 0)
        local.scale(0)
        with pytest.raises(ConnectionError, match="no workers"):
            job.result(60)
        assert job.present.sum() == job.n_done
        nbshare.shutdown()


def test_a_client_is_closed_while_the_call_waits(dask_client):
    """From another thread."""
    distributed = pytest.importorskip("distributed")
    client = distributed.Client(dask_client.cluster)
    closing = threading.Timer(0.5, client.close)
    closing.start()
    with pytest.raises(ConnectionError, match="is closed"):
        parallel_map(duties.slow, range(5_000), backend=client, progress=False)
    closing.join()
