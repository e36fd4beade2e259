"""Waiting."""

from __future__ import annotations

import select


def is_readable(fd: int, timeout_s: float | None = None) -> bool:
    """Wait until a descriptor is readable or its other end is closed; return whether it is."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))
