"""Calls on a Ray cluster that this machine reaches by an address ``ray://`` only."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from tests.support import gateway, machines
from tests.support.faultlab import TESTS, wait_until

pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.skipif(machines.why_not() is not None, reason=machines.why_not() or ""),
]

CLUSTER = r"""
ip link set lo up
{python} -m tests.support.gateway {path} {port} &
exec {ray} start --head --block --num-cpus=2 --node-ip-address=127.0.0.1 --port=6399 \
    --ray-client-server-port={port} --include-dashboard=false --disable-usage-stats \
    --temp-dir={folder}
"""

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
import psutil
import ray
import nbshare
from tests.support import duties, farm
from tests.support.faultlab import wait_until

def listening():
    found = psutil.Process().net_connections("inet")
    return {one.laddr.port for one in found if one.status == psutil.CONN_LISTEN}

def connect():
    try:
        return ray.init(address, logging_level="ERROR", log_to_driver=False)
    except Exception as error:
        print(repr(error), file=sys.stderr)

address, folder, processes = sys.argv[1:]
wait_until(connect, 120)
before, options = listening(), {"backend": address, "progress": False}
found = nbshare.parallel_map(duties.identity, range(200), **options)
print("small", found.tolist() == list(range(200)))
table = np.ones(1 << 21)
found = nbshare.parallel_map(farm.total, range(3), shared={"table": table}, **options)
print("shared", found.tolist() == [float(table.size) + i for i in range(3)])
job = nbshare.map_async(farm.linger, range(4), shared={"folder": folder}, chunksize=1, **options)
worker, _ = wait_until(lambda: farm.worker_of(folder, 0), 60).split()
assert Path(processes, worker).exists()
job.cancel()
wait_until(lambda: not Path(processes, worker).exists(), 10)
print("stopped", job.state)
print("listens", sorted(listening() - before))
sys.stdout.flush()
os._exit(0)
"""


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """Start a node with a network of its own. Give its address behind a gateway, and its /proc."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("PYTHONPATH", str(TESTS.parent))
    ray = Path(sys.executable).with_name("ray")
    with (
        gateway.outside(tmp_path / "gate") as port,
        tempfile.TemporaryDirectory(prefix="ray", ignore_cleanup_errors=True) as folder,  # is short
    ):
        command = CLUSTER.format(
            python=sys.executable, path=tmp_path / "gate", port=port, ray=ray, folder=folder
        )
        inside = [*machines.OWN, "--mount-proc", "--kill-child", "sh", "-c", command]
        with subprocess.Popen(inside, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT) as node:
            (init,) = wait_until(psutil.Process(node.pid).children)
            yield f"ray://127.0.0.1:{port}", f"/proc/{init.pid}/root/proc"
            node.kill()


def test_a_call_through_a_gateway(cluster, tmp_path):
    """It needs no other way, there or back, also to stop what runs."""
    (path := tmp_path / "client.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, path, cluster[0], tmp_path, cluster[1]],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert ran.stdout == "small True\nshared True\nstopped stopped\nlistens []\n", ran.stderr
