"""Which kind of cluster a value of ``backend=`` is; imports what that needs, and nothing else."""

from __future__ import annotations

import sys
from typing import Any

from nbshare.hosts.protocol import Hosts

__all__ = ["hosts_for"]


def hosts_for(backend: Any) -> Hosts | None:
    """Return the hosts that a value of ``backend=`` means; None if it means none.

    Raises
    ------
    ImportError
        Ray is asked for, but not installed.
    ValueError
        An executor that has the workers of this machine.
    """
    if isinstance(backend, str) and (backend == "ray" or backend.startswith("ray://")):
        from nbshare.hosts.ray import RayHosts

        return RayHosts(backend)
    distributed: Any = sys.modules.get("distributed")
    if distributed is not None and isinstance(backend, distributed.Client):
        from nbshare.hosts.dask import DaskHosts

        return DaskHosts(backend)
    if "concurrent.futures" in sys.modules:
        from concurrent.futures import Executor

        from nbshare.hosts.executor import ExecutorHosts

        if isinstance(backend, Executor):
            if type(backend).__module__ == "nbshare.executor":
                raise ValueError(
                    "backend=nbshare.Executor(): leave backend= out, and pass max_workers="
                )
            return ExecutorHosts(backend)
    return None
