"""How much memory is left, and how many CPUs can be used."""

from __future__ import annotations

import ctypes
import os
from ctypes import byref, wintypes

from nbshare._core.system.windows import handles


class _Status(ctypes.Structure):
    _fields_ = (
        ("size", handles.DWORD),
        ("load", handles.DWORD),
        *((name, ctypes.c_uint64) for name in ("total", "free", "total_page", "free_page")),
        ("rest", ctypes.c_uint64 * 3),
    )


_read = handles.function("GlobalMemoryStatusEx", handles.BOOL, handles.POINTER)

# As `shutil.disk_usage`, whose module takes a worker 30 ms to import.
_disk = handles.function(
    "GetDiskFreeSpaceExW", handles.BOOL, wintypes.LPCWSTR, *[handles.POINTER] * 3
)


def _status() -> _Status:
    status = _Status(ctypes.sizeof(_Status))
    _read(byref(status))
    return status


def available() -> int:
    """Bytes that can be allocated now, in memory, and without a larger paging file."""
    status = _status()
    return int(min(status.free, status.free_page))


def total() -> tuple[int, int]:
    """Bytes of the machine's memory, and of those that can be used."""
    nbytes = int(_status().total)
    return nbytes, nbytes


def n_killed() -> int:
    """Return how many processes the system has ended for lack of memory. It ends none here."""
    return 0


def free_in(folder: str) -> int:
    """Free bytes in a directory."""
    free = ctypes.c_uint64()
    _disk(folder or os.curdir, byref(free), None, None)
    return free.value


def usable_cpus() -> int:
    """Return the CPUs that this process may run on."""
    count = getattr(os, "process_cpu_count", os.cpu_count)
    return count() or 1


def affinity() -> set[int] | None:
    """Return None, because workers inherit the CPUs that this process may run on."""
    return None


def set_affinity(cpus: object) -> None:
    """Do nothing (see `affinity`)."""
