"""A Dask cluster as hosts."""

from __future__ import annotations

import itertools
from typing import Any

from nbshare.hosts.carrier import carry
from nbshare.hosts.executor import outward_address
from nbshare.hosts.protocol import Boot, Future

__all__ = ["DaskHosts"]

LARGE = 1 << 20  # bytes; larger messages do not go into the task graph

_numbers = itertools.count()


class DaskHosts:
    """The workers of a cluster, as far as its client sees them.

    Parameters
    ----------
    client : distributed.Client
        The client.
    """

    is_anonymous = False

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

    def submit(self, boot: Boot, message: bytes) -> Future:
        """Run `carry` on any worker."""
        content = self.put(message)
        return self._client.submit(_carry, boot, content, **_options(boot))  # type: ignore[no-any-return]

    def put(self, data: bytes) -> Any:
        """Bring data to a worker; others fetch them from any that has them."""
        return self._client.scatter(data, hash=False) if len(data) > LARGE else data

    def give(self, boot: Boot, message: bytes, content: Any, place: Any) -> Future:
        """Run `carry` on one worker."""
        return self._client.submit(  # type: ignore[no-any-return]
            _carry, boot, message, content, workers=[place], **_options(boot)
        )


def _options(boot: Boot) -> dict[str, Any]:
    # A scheduler's keys are common to all its clients.
    return {"pure": False, "key": f"nbshare-{boot.name}-{next(_numbers)}"}


def _carry(boot: Boot, message: bytes, data: bytes | None = None) -> bytes:
    from distributed import get_worker

    return carry(boot, message, data, get_worker().address)
