"""Checks whether memory can still be allocated.

A memfd never reports that memory is short. The kernel's OOM killer ends a process instead, often
the wrong one, because the pages of a memfd do not count in the resident size of a process. The free
memory is therefore read before anything large is allocated.
"""

from __future__ import annotations

from collections.abc import Callable

from nbshare._core.system import processes, sections
from nbshare.errors import OutOfMemoryError

ALIGNMENT = 64  # bytes, a cache line and the widest vector load
LARGE = 16 << 20  # bytes (smaller requests are not checked, because a check costs 160 µs)
SHARE = 0.9  # usable share of the available memory. The rest is for small requests

# Called when memory is short, to free caches.
reliefs: list[Callable[[], None]] = []


def check_room(nbytes: int) -> None:
    """Raise `OutOfMemoryError` if `nbytes` more bytes would not fit."""
    if nbytes < LARGE or nbytes <= SHARE * processes.available_bytes():
        return
    for relieve in reliefs:
        relieve()
    left = processes.available_bytes()
    if nbytes > SHARE * left:
        here = "" if sections.CAN_BE_FILES else "on Linux "
        raise OutOfMemoryError(
            f"{in_words(nbytes)} of shared memory was requested, but at most {SHARE:.0%} of the "
            f"{in_words(left)} available on this machine or in its container can be used. Use a "
            "smaller dtype, return fewer or smaller results, process the data in parts, or "
            f"{here}set NBSHARE_MEMORY=file:DIRECTORY to keep arrays on disk."
        )


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Round up to a multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def in_words(nbytes: int) -> str:
    """Format a size in bytes."""
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.0f} KiB"
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


def rounded(nbytes: int) -> str:
    """Format a size in bytes with fewer digits, for tables."""
    return f"{nbytes / 1e9:.1f} GB" if nbytes >= 1e9 else f"{nbytes / 1e6:.0f} MB"
