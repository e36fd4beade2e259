"""The parts of nbshare that are sent to clusters: the task's modules, and the whole library."""

from __future__ import annotations

import inspect
import secrets
from functools import cache

from nbshare._core import PACKAGE
from nbshare._core.engine.local import at_shutdown
from nbshare._core.hosts import carrier, messages, starting
from nbshare._core.system import processes

running: dict[str, str] = {}  # names of this process's running calls, and of their inputs


@cache
def traveller() -> carrier.Carry:
    """Return the task of clusters."""
    modules = {"messages": messages, "starting": starting, "carrier": carrier}
    sources = [(name, inspect.getsource(module)) for name, module in modules.items()]
    return carrier.Carry(f"nbshare_{boot().library.hex()}", sources)


@cache
def library() -> bytes:
    """Return this package as a zip file, for hosts that do not have it."""
    return starting.zipped(PACKAGE)


@cache  # because it takes 10 ms
def boot() -> starting.Boot:
    """Return the information with which hosts find or start agents of this process."""
    versions = dict(starting.versions())
    return starting.Boot(secrets.token_hex(8), versions, starting.digest_of(PACKAGE))


def _close() -> None:
    """End the agents on this machine. Others end after some idle time."""
    running.clear()
    starting.end(boot().name, "")
    boot.cache_clear()  # so that no carrier connects to an agent that is ending


def _forget() -> None:
    """Use other agents than the parent, in a forked child."""
    running.clear()
    boot.cache_clear()


at_shutdown.append(_close)
processes.at_fork(after_in_child=_forget)
