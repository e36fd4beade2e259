"""A worker in an interpreter of its own."""

from __future__ import annotations

import gc

from nbshare._core.system import processes
from nbshare._core.worker import process as worker


def live() -> None:
    """Take over what the owner has given to this process, and work until it ends."""
    gc.enable()  # off since the start, because during imports it takes a tenth of the time
    owner, fds = processes.inherited()
    worker.run(worker.InheritedFds(owner, -1, *fds))
