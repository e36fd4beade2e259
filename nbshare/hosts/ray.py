"""A Ray cluster as hosts."""

from __future__ import annotations

import importlib
from typing import Any

from nbshare.hosts.carrier import carry
from nbshare.hosts.protocol import Boot, Future

__all__ = ["RayHosts"]


class RayHosts:
    """The nodes of the cluster that this process is connected to.

    Parameters
    ----------
    address : str
        Where to connect, if it is not yet; "ray" for a cluster that is found, or a new local one.
    """

    is_anonymous = False

    def __init__(self, address: str) -> None:
        ray: Any = importlib.import_module("ray")
        if not ray.is_initialized():
            ray.init(**({} if address == "ray" else {"address": address}))
        self._ray = ray
        # A task that is repeated would only be refused.
        self._carry = ray.remote(num_cpus=1, max_retries=0)(_carry)

    @property
    def n_workers(self) -> int:
        """Number of CPUs of the cluster."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    @property
    def address(self) -> str:
        """The address of this machine that the other nodes see."""
        return str(self._ray.util.get_node_ip_address())

    def submit(self, boot: Boot, message: bytes) -> Future:
        """Run `carry` on any node."""
        return _Task(self._ray, self._carry.remote(boot, message))

    def put(self, data: bytes) -> Any:
        """Put data into the memory of this node; others fetch them from any that has them."""
        return self._ray.put(data)

    def give(self, boot: Boot, message: bytes, content: Any, place: Any) -> Future:
        """Run `carry` on one node."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node_id=place, soft=False)
        run = self._carry.options(scheduling_strategy=there)
        return _Task(self._ray, run.remote(boot, message, content))


class _Task:
    """A task of Ray as a future."""

    def __init__(self, ray: Any, reference: Any) -> None:
        self._ray, self._reference = ray, reference
        self._future = reference.future()
        self.result, self.add_done_callback = self._future.result, self._future.add_done_callback

    def cancel(self) -> None:
        self._ray.cancel(self._reference)


def _carry(boot: Boot, message: bytes, data: bytes | None = None) -> bytes:
    import ray

    return carry(boot, message, data, ray.get_runtime_context().get_node_id())
