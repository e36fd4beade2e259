"""Calls on machines with networks and memory of their own."""

from __future__ import annotations

import contextlib

import farm
import machines
import numpy as np
import psutil
import pytest
from faultlab import wait_until

import nbshare
from nbshare import map_async, parallel_map
from nbshare.errors import PartialResultWarning

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(machines.why_not() is not None, reason=machines.why_not() or ""),
]


@pytest.fixture
def two_machines(monkeypatch, request):
    """Give two machines, each of which runs as many tasks at a time as the parameter says."""
    monkeypatch.setenv("NBSHARE_ADDRESS", machines.ADDRESS.format(1, 1))
    with machines.Machines(2, getattr(request, "param", 1)) as executor:
        yield executor
        nbshare.shutdown()


def lives(pid, network):
    """Return whether a process of this machine is one of nbshare's workers."""
    with contextlib.suppress(psutil.Error):
        parents = psutil.Process(pid).parent().cmdline()
        return network == farm.network() and any("serve(" in part for part in parents)
    return False


@pytest.mark.parametrize("two_machines", [1, 2, 8], indirect=True)
def test_inputs_cross_the_cable_once_to_each_machine(two_machines):
    """However many tasks a machine runs at the same time; small parts do not count much."""
    table = np.ones(4 << 20)  # 32 MB
    found = parallel_map(
        farm.total,
        range(60),
        shared={"table": table},
        backend=two_machines,
        max_workers=two_machines.n_workers,
        chunksize=2,
        progress=False,
    )
    assert found.tolist() == [float(table.size) + i for i in range(60)]
    for machine in two_machines.machines:
        assert table.nbytes < machine.n_bytes_received < 1.05 * table.nbytes


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
    wait_until(lambda: len(list(tmp_path.glob("read-*"))) == n, 60, what="they read")
    networks = [path.read_text() for path in tmp_path.glob("read-*")]
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
