"""A Dask cluster as hosts."""

from __future__ import annotations

from typing import Any

from nbshare.hosts.carrier import Boot
from nbshare.hosts.executor import outward_address
from nbshare.hosts.protocol import Future
from nbshare.hosts.travel import traveller


class DaskHosts:
    """The workers of a cluster, as far as its client sees them.

    Parameters
    ----------
    client : distributed.Client
        The client.
    """

    def __init__(self, client: Any) -> None:
        self._client = client

    @property
    def n_workers(self) -> int:
        """Number of threads of all workers."""
        return max(1, int(sum(self._client.nthreads().values())))

    @property
    def address(self) -> str:
        """The address of this machine that the scheduler sees."""
        from distributed.comm.addressing import get_address_host

        return outward_address(get_address_host(self._client.scheduler.address))

    def submit(self, boot: Boot, call: str, number: int) -> Future:
        """Run `carry` on any worker."""
        return self._client.submit(traveller(), tuple(boot), call, number, pure=False)  # type: ignore[no-any-return]
