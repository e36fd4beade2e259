"""Chooses the hosts for a value of ``backend=``."""

from __future__ import annotations

import sys
from concurrent.futures import Executor
from typing import Any

from nbshare._core.functions.modules import variables_of
from nbshare._core.hosts.protocol import Hosts


def hosts_for(backend: Any) -> Hosts | None:
    """Return the hosts for a value of ``backend=``, or None if it is none of these clusters.

    Raises
    ------
    ImportError
        If Ray is requested, but not installed.
    ValueError
        If `backend` is nbshare's own executor, one with sub-interpreters, or an asynchronous client
        of Dask in the thread of its event loop.
    """
    client = variables_of(sys.modules.get("distributed")).get("Client")
    if isinstance(client, type) and isinstance(backend, client):
        from nbshare._core.hosts.dask import DaskHosts  # late, for calls that need it

        return DaskHosts(backend)
    if isinstance(backend, str) and (backend == "ray" or backend.startswith("ray://")):
        from nbshare._core.hosts.ray import RayHosts

        return RayHosts(backend)
    if not isinstance(backend, Executor):
        return None
    if type(backend).__module__.startswith("nbshare"):
        raise ValueError(
            "backend= is an nbshare.Executor, whose workers run on this machine. Remove backend=, "
            "and pass max_workers=."
        )
    interpreters = sys.modules.get("concurrent.futures.interpreter")
    if interpreters is not None and isinstance(backend, interpreters.InterpreterPoolExecutor):
        raise ValueError(
            "backend= is an InterpreterPoolExecutor, but NumPy does not run in sub-interpreters. "
            "Remove backend= to use processes, or pass backend='threads'."
        )
    from nbshare._core.hosts.executor import ExecutorHosts

    return ExecutorHosts(backend)
