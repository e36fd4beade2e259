"""The C heap of workers: memory that NumPy's temporary arrays free is kept for the next ones.

By default glibc returns freed memory of some megabytes to the kernel immediately, so that each
temporary array of a long computation is made of fresh pages. Zeroing and mapping these can take
twice as long as the computation itself.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress

__all__ = ["keep_freed", "release_freed"]

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 64 << 20  # bytes free at the end of the heap; a worker at work holds so much more at most
LARGEST = 32 << 20  # bytes of a block that is part of the heap: the most that glibc allows


def keep_freed() -> None:
    """Keep freed memory in this process and those that it forks, unless the user set malloc up."""
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(AttributeError):  # other C libraries have no such settings
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)


def release_freed() -> None:
    """Return freed memory to the kernel."""
    with suppress(AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
