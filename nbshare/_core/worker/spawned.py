"""A worker in an interpreter of its own."""

from __future__ import annotations

import gc

from nbshare._core.system import processes
from nbshare._core.worker import process as worker


def live() -> None:
    """Receive the descriptors that the owner sends to this process, and work until it ends."""
    gc.enable()  # off from the start: it takes a tenth of the time of imports
    owner, fds = processes.inherited()
    worker.run(worker.InheritedFds(owner, -1, *fds))
