"""Calls on a Dask cluster, and on Ray: real schedulers and workers, in processes over TCP."""

from __future__ import annotations

import warnings

import pytest
from contract import BackendContract

import nbshare

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def dask_client():
    """Give the client of a cluster of two worker processes."""
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client
        nbshare.shutdown()


@pytest.fixture(scope="module")
def ray_address():
    """Start a cluster of one node; give what stands for it."""
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
