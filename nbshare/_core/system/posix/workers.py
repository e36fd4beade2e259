"""The ends of workers, which lead groups of processes."""

from __future__ import annotations

import os
import signal

from nbshare._core.system.posix.waiting import is_readable


def kill_group() -> None:
    """End this process, and those that it has started."""
    os.killpg(0, signal.SIGKILL)


def kill_group_after(owner_fd: int) -> None:
    """End them when a descriptor becomes readable."""
    is_readable(owner_fd)
    kill_group()


def stream(fd: int) -> int:
    """Return a descriptor of the C library for a pipe: the same."""
    return fd
