"""A system that nbshare has no worker processes for: what calls in this process need of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NoReturn

Waiter = object  # it has none yet


def at_fork(**_hooks: Callable[[], None]) -> None:
    """Call functions around a fork: it has none."""


def available() -> int:
    """Bytes that can be allocated now; it is not known, so nothing is refused."""
    return 1 << 62


def total() -> tuple[int, int]:
    """Bytes of the machine's memory, and of those that can be used; 0: it is not known."""
    return 0, 0


def usable_cpus() -> int:
    """Return the CPUs of the machine."""
    return os.cpu_count() or 1


def affinity() -> set[int] | None:
    """Return the CPUs that this process may run on; None: it is not known."""
    return None


def begun_ns() -> int:
    """Return when this process began, in ns since 1970; 0: it is not known."""
    return 0


def resident_bytes(_pid: int) -> int:
    """Return the memory of a process; 0: it is not known."""
    return 0


def peak_bytes() -> int:
    """Return the most memory that this process has had; 0: it is not known."""
    return 0


def umask() -> int | None:
    """Return the umask; None: it is not known."""
    return None


def mapped_file(_address: int) -> NoReturn:
    """Find the file that is mapped at an address: it is not known."""
    raise FileNotFoundError
