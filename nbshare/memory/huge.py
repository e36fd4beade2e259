"""Huge pages: fresh memory costs half as much, and is read as fast as a process's own.

By default Linux gives them to shared memory only if an administrator enables it
(``shmem_enabled``), which is rare. But a process can ask for them: it touches one small page of
each, and the kernel replaces it with a huge one. The mapping must be aligned to huge pages, so the
kernel is left one gap of exactly the right place and size.

References
----------
madvise(2), MADV_COLLAPSE (Linux 6.1); ``Documentation/admin-guide/mm/transhuge.rst``.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from nbshare.interrupts import uninterrupted
from nbshare.memory import copying
from nbshare.memory.budget import aligned

SMALLEST = 4 << 20  # bytes of a mapping; below, the gain is less than half a millisecond
LARGEST = 32 << 20  # of a huge page: larger ones, as on some ARM machines, would rarely be full
SETTINGS = "/sys/kernel/mm/transparent_hugepage"
# Bytes per second, about the rate of small pages. Huge ones are five times faster, unless memory is
# fragmented, or the host of a virtual machine must fetch them again. Slower ones cost more than
# they gain.
SLOWEST = 1.5e9
PATIENCE_S = 6e-3  # for a slow one among many: the host fetches it in 5 ms
PAUSE_S = 60.0  # after a slow or failed attempt, which may take 15 ms
MADV_COLLAPSE = 25  # from linux/mman.h
_FAILED: Any = ctypes.c_void_p(-1).value  # as mmap(2) says it

T = TypeVar("T")

_resume_at = -math.inf  # on the monotonic clock; until then huge pages are not requested


@cache
def _page_bytes() -> int:
    """Return the size of a huge page; 0 if there are none, or they are switched off."""
    try:
        with open(f"{SETTINGS}/enabled") as enabled, open(f"{SETTINGS}/hpage_pmd_size") as size:
            n_bytes = 0 if "[never]" in enabled.read() else int(size.read())
    except (OSError, ValueError):
        return 0
    return n_bytes if n_bytes <= LARGEST else 0


@cache
def _libc() -> Any:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *3 * [ctypes.c_int], ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


def on_boundaries(nbytes: int, map_it: Callable[[], T]) -> T:
    """Map `nbytes` with `map_it`, aligned to huge pages if possible.

    Notes
    -----
    Safe from any thread. If another thread takes the gap at the same moment, or the kernel prefers
    another gap, the mapping is elsewhere and has small pages.
    """
    page = _page_bytes()
    if not page or nbytes < max(SMALLEST, page):
        return map_it()
    nbytes = aligned(nbytes, mmap.PAGESIZE)
    libc = _libc()
    with uninterrupted():
        # Not readable or writable, so it takes no memory.
        begin = libc.mmap(None, nbytes + page, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        if begin == _FAILED:  # a limit of the address space
            return map_it()
        gap = aligned(begin, page)
        libc.munmap(gap, nbytes)
        try:
            return map_it()
        finally:  # the parts before the gap, and after it
            libc.munmap(begin, gap - begin)  # a length of 0 is refused
            libc.munmap(gap + nbytes, begin + page - gap)


def make_huge(memory: npt.NDArray[np.uint8]) -> bool:
    """Give a fresh shared mapping huge pages, except for its ends; return whether it has them.

    If they are slower than small ones, the memory stays as it was.
    """
    page = _page_bytes()
    fits = page and memory.nbytes >= max(SMALLEST, page) and memory.ctypes.data % page == 0
    if not fits or _is_paused():
        return False
    end, step = memory.nbytes // page * page, max(copying.PIECE, page)
    pieces = [memory[start : min(start + step, end)] for start in range(0, end, step)]
    copying.run([partial(_collapse, piece, page) for piece in pieces])
    return not _is_paused()


def _is_paused() -> bool:
    return time.monotonic() < _resume_at


def _collapse(memory: npt.NDArray[np.uint8], page: int) -> None:
    global _resume_at
    begin, began_s = memory.ctypes.data, time.thread_time()
    for offset in range(0, len(memory), page):
        if _is_paused():
            return
        memory.item(offset)  # a huge page needs a small one to begin with
        has_failed = _libc().madvise(begin + offset, page, MADV_COLLAPSE)
        # CPU time, since other processes may use the CPU too.
        is_slow = time.thread_time() - began_s > PATIENCE_S + (offset + page) / SLOWEST
        if has_failed or is_slow:
            _resume_at = time.monotonic() + PAUSE_S
