"""A Ray cluster as hosts."""

from __future__ import annotations

import importlib
from typing import Any

from nbshare.hosts.carrier import Boot
from nbshare.hosts.protocol import Future, Hosts
from nbshare.hosts.travel import traveller


def ray_hosts(address: str) -> Hosts:
    """Return the nodes of the cluster that this process is connected to: each CPU is a place.

    `address`: where to connect, if it is not yet; "ray" for a cluster that is found, or a new local
    one.
    """
    ray: Any = importlib.import_module("ray")
    if not ray.is_initialized():
        ray.init(**({} if address == "ray" else {"address": address}))
    carry = traveller()
    # Ray sends a function without a name by value.
    task_of_ray = ray.remote(num_cpus=1, max_retries=0)(lambda *args: carry(*args))

    def submit(boot: Boot, *task: Any) -> Future:
        reference = task_of_ray.remote(tuple(boot), *task)
        future = reference.future()
        future.cancel = lambda: ray.cancel(reference)  # its own would not reach Ray
        return future  # type: ignore[no-any-return]

    return Hosts(
        n_workers=lambda: max(1, int(ray.cluster_resources().get("CPU", 1))),
        address=str(ray.util.get_node_ip_address()),
        submit=submit,
    )
