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
from nbshare._core.hosts import inputs
from nbshare.errors import PartialResultWarning
from tests.support import duties, farm, machines
from tests.support.faultlab import wait_until

pytestmark = [
    pytest.mark.skipif(machines.why_not() is not None, reason=machines.why_not() or ""),
]

# A second copy makes two. Headers, small parts and packets that TCP sends again make up to 1.1.
ONCE = 1.5


@pytest.fixture
def start_machines(monkeypatch):
    """Give a function that starts machines, each of which runs some tasks at the same time."""
    monkeypatch.setenv("NBSHARE_ADDRESS", machines.ADDRESS.format(1))
    with contextlib.ExitStack() as stack:
        yield lambda n, n_each=1: stack.enter_context(machines.Machines(n, n_each))
        nbshare.shutdown()


@pytest.fixture
def two_machines(start_machines, request):
    """Give two machines, each of which runs as many tasks at a time as the parameter says."""
    return start_machines(2, getattr(request, "param", 1))


def options(executor):
    """Return options of calls that use all machines."""
    return {"backend": executor, "max_workers": executor.n_workers, "progress": False}


def lives(pid, network):
    """Return whether a process of this machine is one of nbshare's workers."""
    with contextlib.suppress(psutil.Error):
        parents = psutil.Process(pid).parent().cmdline()
        return network == farm.network() and any("serve(" in part for part in parents)
    return False


@pytest.mark.parametrize("two_machines", [1, 2, 8], indirect=True)
def test_inputs_cross_the_cable_once_to_each_machine(two_machines, tmp_path):
    """With any number of tasks of a machine at the same time. Small parts do not count much."""
    table = np.ones(4 << 20)  # 32 MB
    found = parallel_map(
        farm.total_with_others,
        range(60),
        shared={"table": table, "folder": str(tmp_path), "n": 2},
        backend=two_machines,
        max_workers=two_machines.n_workers,
        chunksize=2,
        progress=False,
    )
    assert found.tolist() == [float(table.size) + i for i in range(60)]
    for machine in two_machines.machines:
        assert table.nbytes < machine.n_bytes_received < ONCE * table.nbytes


@pytest.mark.parametrize("n", [2, 3, 5])
def test_inputs_leave_this_machine_once(start_machines, n, tmp_path):
    """With any number of machines, each has them from another one, but the first."""
    table, executor = np.ones(4 << 20), start_machines(n)
    shared = {"table": table, "folder": str(tmp_path), "n": n}
    found = parallel_map(
        farm.total_with_others, range(40), shared=shared, chunksize=1, **options(executor)
    )
    assert found.tolist() == [float(table.size) + i for i in range(40)]
    for machine in executor.machines:
        assert table.nbytes < machine.n_bytes_received < ONCE * table.nbytes
    assert machines.n_bytes_sent() < ONCE * table.nbytes


def test_a_machine_that_joins_has_inputs_from_another(start_machines):
    """Though it comes when the first items are done."""
    table, executor = np.ones(4 << 20), start_machines(2)
    joins = executor.in_use.pop()
    job = map_async(
        farm.total_slowly, range(60), shared={"table": table}, chunksize=1, **options(executor)
    )
    wait_until(lambda: job.present.any(), 60)
    executor.in_use.append(joins)
    assert job.result(60).tolist() == [float(table.size) + i for i in range(60)]
    assert table.nbytes < joins.n_bytes_received < ONCE * table.nbytes
    assert machines.n_bytes_sent() < ONCE * table.nbytes


def test_machines_that_cannot_reach_each_other(start_machines, tmp_path):
    """They have inputs from this machine, and wait for others once only."""
    table, executor = np.ones(4 << 20), start_machines(2)  # large, as test files travel, too
    for machine in executor.machines:
        machine.part_from_others()
    seconds = []
    for n_calls in range(1, 3):
        (folder := tmp_path / str(n_calls)).mkdir()
        shared = {"table": table, "folder": str(folder), "n": 2}
        # The tasks of the call before have ended.
        wait_until(lambda: not any(machine.load for machine in executor.machines))
        begun = time.monotonic()
        found = parallel_map(
            farm.total_with_others, range(8), shared=shared, chunksize=1, **options(executor)
        )
        seconds.append(time.monotonic() - begun)
        assert found.tolist() == [float(table.size) + i for i in range(8)]
        for machine in executor.machines:
            assert n_calls <= machine.n_bytes_received / table.nbytes < n_calls - 1 + ONCE
    assert seconds[1] < inputs.PEER_S


def test_a_machine_that_is_lost_while_it_gives_inputs(start_machines, tmp_path):
    """The other one has the rest from this machine."""
    table, executor = np.ones(16 << 20), start_machines(2)
    for machine in executor.machines:
        machine.send_slowly()
    received = operator.attrgetter("n_bytes_received")
    shared = {"table": table, "folder": str(tmp_path), "n": 2}
    job = map_async(
        farm.total_with_others,
        range(2),
        shared=shared,
        chunksize=1,
        retries=1,
        **options(executor),
    )
    wait_until((tmp_path / "met").exists, 60)
    child, parent = sorted(executor.machines, key=received)
    wait_until(lambda: child.n_bytes_received > table.nbytes / 4, 60)
    executor.in_use.remove(parent)
    parent.shutdown()
    assert child.n_bytes_received < table.nbytes / 2
    assert job.result(60).tolist() == [float(table.size) + i for i in range(2)]
    assert child.n_bytes_received < 1.2 * table.nbytes  # it does not begin again
    assert machines.n_bytes_sent() < 2 * table.nbytes


def test_stop_ends_the_transfer_of_inputs(start_machines, tmp_path):
    """From this machine, and from others."""
    table, executor = np.ones(16 << 20), start_machines(2)
    for machine in executor.machines:
        machine.send_slowly()
    shared = {"table": table, "folder": str(tmp_path), "n": 2}
    job = map_async(
        farm.total_with_others, range(2), shared=shared, chunksize=1, **options(executor)
    )
    child = executor.machines[0]

    def begun():
        nonlocal child
        child = min(executor.machines, key=operator.attrgetter("n_bytes_received"))
        return child.n_bytes_received > table.nbytes / 8

    wait_until(begun, 60)
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    before = child.n_bytes_received
    assert before < table.nbytes / 2
    assert parallel_map(duties.identity, range(4), **options(executor)).tolist() == [0, 1, 2, 3]
    assert child.n_bytes_received - before < table.nbytes / 8


@pytest.mark.parametrize("two_machines", [1, 2, 8], indirect=True)
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


@pytest.mark.parametrize("two_machines", [2], indirect=True)
def test_stop_reaches_other_machines(two_machines, tmp_path):
    """Though this one has no other way to their processes."""
    job = map_async(
        farm.linger,
        range(2),
        shared={"folder": str(tmp_path)},
        chunksize=1,
        backend=two_machines,
        max_workers=2,
    )
    workers = [wait_until(lambda i=i: farm.worker_of(tmp_path, i)).split() for i in range(2)]

    def n_living():
        places = [(machine, worker) for machine in two_machines.machines for worker in workers]
        return sum(m.submit(lives, int(pid), network).result() for m, (pid, network) in places)

    assert n_living() == 2
    job.cancel()
    with pytest.warns(PartialResultWarning):
        job.result(5)
    wait_until(lambda: not n_living())
