"""What travels to all clusters: the carrier as its source, and this library."""

from __future__ import annotations

import inspect
import secrets
from functools import cache

from nbshare._core import PACKAGE
from nbshare._core.engine.local import at_shutdown
from nbshare._core.hosts import carrier
from nbshare._core.system import processes

running: set[str] = set()  # calls of this process


@cache
def traveller() -> carrier.Carry:
    """Return what clusters run."""
    return carrier.Carry(f"nbshare_{boot().library.hex()}", inspect.getsource(carrier))


@cache
def library() -> bytes:
    """Return this package, for hosts that lack it."""
    return carrier.zipped(PACKAGE)


@cache  # it takes 10 ms
def boot() -> carrier.Boot:
    """Return how hosts find the agents of this process."""
    versions = dict(carrier.versions())
    return carrier.Boot(secrets.token_hex(8), versions, carrier.digest_of(PACKAGE))


def _close() -> None:
    """Have the agents on this machine end. Others do so when they have had nothing to do."""
    running.clear()
    carrier.end(boot().name, "")
    boot.cache_clear()  # none comes to one that is about to end


def _forget() -> None:
    """Have other agents than the parent, in a forked child."""
    running.clear()
    boot.cache_clear()


at_shutdown.append(_close)
processes.at_fork(after_in_child=_forget)
