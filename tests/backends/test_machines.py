"""Calls on machines with networks and memory of their own."""

from __future__ import annotations

import contextlib
import operator
import time

import numpy as np
import psutil
import pytest

import nbshare
from nbshare import map_async, parallel_map
from nbshare._core.hosts import carrier
from nbshare.errors import PartialResultWarning
from tests.support import duties, farm, machines
from tests.support.faultlab import wait_until

pytestmark = [
    pytest.mark.skipif(machines.why_not() is not None, reason=machines.why_not() or ""),
]

# A second copy makes two. Headers, small parts and packets that TCP sends again make up to 1.1.
ONCE = 1.5


@pytest.fixture
def start_dask(tmp_path):
    """Give a function that starts machines, and Dask workers on each of them."""
    pytest.importorskip("distributed")
    with contextlib.ExitStack() as stack:
        yield lambda n, n_each=1: stack.enter_context(machines.DaskMachines(n, n_each, tmp_path))
        nbshare.shutdown()


@pytest.fixture
def two_machines(request):
    """Give an executor of two machines, each of which runs some tasks at a time."""
    with machines.Machines(2, request.param) as executor:
        yield executor
        nbshare.shutdown()


def options(cluster):
    """Return options of calls on a Dask cluster of machines."""
    return {"backend": cluster.client, "progress": False}


def lives(pid, network):
    """Return whether a process of this machine is one of nbshare's workers."""
    if network != farm.network():  # there the number is another process's
        return False
    with contextlib.suppress(psutil.Error):
        parent = psutil.Process(pid).parent()
        return parent is not None and any("serve(" in part for part in parent.cmdline())
    return False


def test_inputs_cross_the_cable_once_to_each_machine(start_dask, tmp_path):
    """With several workers on a machine. Small parts do not count much."""
    table, cluster = np.ones(8 << 20), start_dask(2, 2)  # 64 MB
    found = parallel_map(
        farm.total_with_others,
        range(60),
        shared={"table": table, "folder": str(tmp_path), "n": 2},
        chunksize=2,
        **options(cluster),
    )
    assert found.tolist() == [float(table.size) + i for i in range(60)]
    for machine in cluster.machines:
        assert table.nbytes < machine.n_bytes_received < 1.2 * table.nbytes


@pytest.mark.parametrize("two_machines", [1, 8], indirect=True)
def test_an_executor_s_inputs_cross_the_cable_once_to_each_machine(two_machines, tmp_path):
    """With any number of tasks of a machine at the same time."""
    table, n = np.ones(4 << 20), two_machines.n_workers  # 32 MB
    found = parallel_map(
        farm.total_with_others,
        range(60),
        shared={"table": table, "folder": str(tmp_path), "n": 2},
        backend=two_machines,
        max_workers=n,
        chunksize=2,
        progress=False,
    )
    assert found.tolist() == [float(table.size) + i for i in range(60)]
    for machine in two_machines.machines:
        assert table.nbytes < machine.n_bytes_received < 1.2 * table.nbytes


@pytest.mark.parametrize("two_machines", [1], indirect=True)
def test_an_executor_s_next_call_with_equal_inputs(two_machines, tmp_path):
    """The machines still have them."""
    table, n_before = np.ones(4 << 20), [0, 0]  # 32 MB
    shared = {"table": table, "folder": str(tmp_path), "n": 2}
    for least, most in ((1, 1.2), (0, 0.1)):
        found = parallel_map(
            farm.total_with_others,
            range(40),
            shared=shared,
            backend=two_machines,
            max_workers=2,
            chunksize=1,
            progress=False,
        )
        assert found.tolist() == [float(table.size) + i for i in range(40)]
        n_received = [machine.n_bytes_received for machine in two_machines.machines]
        for before, now in zip(n_before, n_received, strict=True):
            assert least <= (now - before) / table.nbytes < most
        n_before = n_received


def test_inputs_leave_this_machine_once(start_dask, tmp_path):
    """With several machines. Each has the rest from others."""
    table, cluster = np.ones(4 << 20), start_dask(4)
    shared = {"table": table, "folder": str(tmp_path), "n": 4}
    found = parallel_map(
        farm.total_with_others, range(40), shared=shared, chunksize=1, **options(cluster)
    )
    assert found.tolist() == [float(table.size) + i for i in range(40)]
    for machine in cluster.machines:
        assert table.nbytes < machine.n_bytes_received < ONCE * table.nbytes
    assert machines.n_bytes_sent() < ONCE * table.nbytes


def test_a_machine_that_joins_has_inputs_from_another(start_dask):
    """Though it comes when the first items are done."""
    table, cluster = np.ones(4 << 20), start_dask(2, 0)
    first, joins = cluster.machines
    cluster.start(first)
    job = map_async(
        farm.total_slowly,
        range(200),
        shared={"table": table},
        chunksize=1,
        max_workers=2,
        **options(cluster),
    )
    wait_until(lambda: job.present.any(), 60)
    cluster.start(joins)
    assert job.result(60).tolist() == [float(table.size) + i for i in range(200)]
    assert table.nbytes < joins.n_bytes_received < ONCE * table.nbytes
    assert machines.n_bytes_sent() < ONCE * table.nbytes


def test_machines_that_cannot_reach_each_other(start_dask, tmp_path):
    """They have inputs through the scheduler, and wait for others once only."""
    table, cluster = np.ones(4 << 20), start_dask(2)  # large, as test files travel, too
    for machine in cluster.machines:
        machine.part_from_others()
    seconds = []
    for n_calls in range(1, 3):
        (folder := tmp_path / str(n_calls)).mkdir()
        shared = {"table": table, "folder": str(folder), "n": 2}
        begun = time.monotonic()
        found = parallel_map(
            farm.total_with_others, range(8), shared=shared, chunksize=1, **options(cluster)
        )
        seconds.append(time.monotonic() - begun)
        assert found.tolist() == [float(table.size) + i for i in range(8)]
        for machine in cluster.machines:
            assert n_calls <= machine.n_bytes_received / table.nbytes < n_calls - 1 + ONCE
    assert seconds[1] < carrier.PEER_S


def test_a_machine_that_is_lost_while_it_gives_inputs(start_dask, tmp_path):
    """The other one has the rest from this machine."""
    table, cluster = np.ones(16 << 20), start_dask(2)
    for machine in cluster.machines:
        machine.send_slowly()
    received = operator.attrgetter("n_bytes_received")
    half = table.nbytes / 2  # comes from this machine, and the other half from the other one
    shared = {"table": table, "folder": str(tmp_path), "n": 1}
    job = map_async(
        farm.total_with_others,
        range(2),
        shared=shared,
        chunksize=1,
        retries=1,
        **options(cluster),
    )
    wait_until(lambda: min(map(received, cluster.machines)) > half + half / 4, 60)
    child, lost = cluster.machines
    lost.shutdown()
    assert child.n_bytes_received < half + half / 2
    assert job.result(60).tolist() == [float(table.size) + i for i in range(2)]
    assert child.n_bytes_received < 1.2 * table.nbytes  # it does not begin again
    assert machines.n_bytes_sent() < 2 * table.nbytes


def test_stop_ends_the_transfer_of_inputs(start_dask, tmp_path):
    """From this machine, and from others."""
    table, cluster = np.ones(16 << 20), start_dask(2)
    for machine in cluster.machines:
        machine.send_slowly()
    half = table.nbytes / 2  # comes from this machine, and the other half from the other one
    shared = {"table": table, "folder": str(tmp_path), "n": 2}
    job = map_async(
        farm.total_with_others, range(2), shared=shared, chunksize=1, **options(cluster)
    )
    child = cluster.machines[0]
    wait_until(lambda: child.n_bytes_received > half + half / 8, 60)
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    before = child.n_bytes_received
    assert before < half + half / 2
    assert parallel_map(duties.identity, range(4), **options(cluster)).tolist() == [0, 1, 2, 3]
    assert child.n_bytes_received - before < table.nbytes / 8


@pytest.mark.parametrize("two_machines", [1, 8], indirect=True)
def test_inputs_are_once_in_the_memory_of_each_machine(two_machines, tmp_path):
    """However many workers have read all of them."""
    table, n = np.ones(16 << 20), two_machines.n_workers  # 128 MB
    job = map_async(
        farm.total_and_wait,
        range(n),
        shared={"table": table, "folder": str(tmp_path)},
        backend=two_machines,
        max_workers=n,
        chunksize=1,
    )
    read = tmp_path.glob
    wait_until(lambda: sum(path.stat().st_size > 0 for path in read("read-*")) == n, 60)
    networks = [path.read_text() for path in read("read-*")]
    assert [networks.count(network) for network in set(networks)] == [n // 2] * 2
    for machine in two_machines.machines:
        assert table.nbytes < machine.n_bytes_in_memory < 1.5 * table.nbytes + 12e6 * n
    (tmp_path / "go").touch()
    assert job.result(30).tolist() == [float(table.size) + i for i in range(n)]


def test_stop_reaches_other_machines(start_dask, tmp_path):
    """Though this one has no other way to their processes."""
    cluster = start_dask(2)
    shared = {"folder": str(tmp_path)}
    job = map_async(farm.linger, range(2), shared=shared, chunksize=1, **options(cluster))
    workers = [wait_until(lambda i=i: farm.worker_of(tmp_path, i)).split() for i in range(2)]

    def n_living():
        places = [(machine, worker) for machine in cluster.machines for worker in workers]
        return sum(m.submit(lives, int(pid), network).result() for m, (pid, network) in places)

    assert n_living() == 2
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    wait_until(lambda: not n_living())
