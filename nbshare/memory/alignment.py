"""Places in memory that are multiples of something."""

from __future__ import annotations

__all__ = ["ALIGNMENT", "aligned"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load


def aligned(offset: int, alignment: int = ALIGNMENT) -> int:
    """Return the next multiple of `alignment`."""
    return -(-offset // alignment) * alignment
