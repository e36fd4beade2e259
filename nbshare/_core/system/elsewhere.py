"""A system that nbshare has no worker processes for, with what calls in this process need."""

from __future__ import annotations

import mmap
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

IS_WEAKLY_ORDERED = False  # one process needs no order of memory between processes
Waiter = object  # it has none

CAN_BE_FILES = CAN_WRITE = False  # memory has no file

# Memory that is not shared with forked processes. Windows knows no flags, and no forks.
PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)


def available_bytes() -> int:
    """Return the bytes that can be allocated, none of which are refused."""
    return 1 << 62


def usable_cpus() -> int:
    """Return the CPUs of the machine."""
    return os.cpu_count() or 1


def total_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, and of its usable part, which are unknown."""
    return 0, 0


def stamp(path: str) -> tuple[int, int, int, int]:
    """Return what changes when a file is edited or replaced (mtime, size, inode, ctime)."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def is_written(_address: int, _nbytes: int) -> bool:
    """Return whether a part of private memory was written to, which matters to nobody else."""
    return False


def interrupt(_pid: int = 0) -> None:
    """Interrupt this process as Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def mapped_file(_address: int, _memmap: object) -> NoReturn:
    """Find the file that is mapped at an address, which is unknown."""
    raise FileNotFoundError


def interruptible(wait: Callable[[Any], bool], timeout_s: float | None) -> bool:
    """Call what waits at most some seconds, or endlessly."""
    return wait(timeout_s)


def _no_figure(*_: object) -> int:
    return 0


def _nothing(*_: object, **__: object) -> None:
    pass


begun_ns = resident_bytes = peak_bytes = n_faults = n_killed = _no_figure
affinity = umask = limits = priority = user = at_fork = heed_interrupts = _nothing
set_affinity = set_limits = set_priority = _nothing
replace = os.replace
