"""A Ray cluster as hosts."""

from __future__ import annotations

import importlib
from typing import Any

from nbshare.hosts.carrier import Boot
from nbshare.hosts.protocol import Future
from nbshare.hosts.travel import traveller


class RayHosts:
    """The nodes of the cluster that this process is connected to.

    Parameters
    ----------
    address : str
        Where to connect, if it is not yet; "ray" for a cluster that is found, or a new local one.
    """

    def __init__(self, address: str) -> None:
        ray: Any = importlib.import_module("ray")
        if not ray.is_initialized():
            ray.init(**({} if address == "ray" else {"address": address}))
        self._ray = ray
        carry = traveller()
        # Ray sends a function without a name by value.
        self._carry = ray.remote(num_cpus=1, max_retries=0)(lambda *args: carry(*args))

    @property
    def n_workers(self) -> int:
        """Number of CPUs of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def address(self) -> str:
        """The address of this machine that the other nodes see."""
        return str(self._ray.util.get_node_ip_address())

    def submit(self, boot: Boot, call: str, number: int) -> Future:
        """Run `carry` on any node."""
        reference = self._carry.remote(tuple(boot), call, number)
        future = reference.future()
        future.cancel = lambda: self._ray.cancel(reference)  # its own would not reach Ray
        return future  # type: ignore[no-any-return]
