"""A system that nbshare has no worker processes for: what calls in this process need of it."""

from __future__ import annotations


def begun_ns() -> int:
    """Return when this process began, in ns since 1970; 0: it is not known."""
    return 0


def resident_bytes(_pid: int) -> int:
    """Return the memory of a process; 0: it is not known."""
    return 0


def peak_bytes() -> int:
    """Return the most memory that this process has had; 0: it is not known."""
    return 0


def has_thread(_number: int) -> bool:
    """Return whether this process has a thread of that number; False: it is not known."""
    return False


def umask() -> int | None:
    """Return the umask; None: it is not known."""
    return None
