"""A Dask cluster as hosts."""

from __future__ import annotations

from typing import Any

from nbshare.hosts.executor import outward_address
from nbshare.hosts.protocol import Hosts
from nbshare.hosts.travel import traveller


def dask_hosts(client: Any) -> Hosts:
    """Return the workers of a cluster, as far as its client sees them: each thread is a place."""
    from distributed.comm.addressing import get_address_host

    return Hosts(
        n_workers=lambda: max(1, int(sum(client.nthreads().values()))),
        address=outward_address(get_address_host(client.scheduler.address)),
        submit=lambda boot, *task: client.submit(traveller(), tuple(boot), *task, pure=False),
    )
