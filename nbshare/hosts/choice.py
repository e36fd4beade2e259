"""Which kind of cluster a value of ``backend=`` is; imports what that needs, and nothing else."""

from __future__ import annotations

import sys
from typing import Any

from nbshare.hosts.protocol import Hosts
from nbshare.memory import need_linux


def hosts_for(backend: Any) -> Hosts | None:
    """Return the hosts that a value of ``backend=`` means; None if it means none.

    Raises
    ------
    ImportError
        Ray is asked for, but not installed.
    ValueError
        An executor that has the workers of this machine.
    NotBuiltYetError
        This system is not Linux.
    """
    from concurrent.futures import Executor  # late: few calls need any of these

    distributed: Any = sys.modules.get("distributed")
    is_dask = distributed is not None and isinstance(backend, distributed.Client)
    is_ray = isinstance(backend, str) and (backend == "ray" or backend.startswith("ray://"))
    if not (is_dask or is_ray or isinstance(backend, Executor)):
        return None
    need_linux("backend= with a cluster", "use backend='threads'")
    if is_dask:
        from nbshare.hosts.dask import dask_hosts

        return dask_hosts(backend)
    if is_ray:
        from nbshare.hosts.ray import ray_hosts

        return ray_hosts(backend)
    from nbshare.hosts.executor import executor_hosts

    if type(backend).__module__.startswith("nbshare"):
        raise ValueError(
            "backend= is an nbshare.Executor, whose workers are those of this machine: leave "
            "backend= out, and pass max_workers="
        )
    return executor_hosts(backend)
