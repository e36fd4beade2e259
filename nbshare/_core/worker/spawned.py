"""Runs a worker in a new interpreter."""

from __future__ import annotations

import gc

from nbshare._core.system import processes
from nbshare._core.worker import process as worker


def live() -> None:
    """Receive the descriptors that the owner sends, and work until the owner ends."""
    gc.enable()  # it was off during imports, because it takes a tenth of their time
    owner, fds = processes.inherited()
    worker.run(worker.InheritedFds(owner, -1, *fds))
