"""Functions and structures of the system's library that Python and psutil lack."""

from __future__ import annotations

import ctypes
from typing import Any

# Tests on Linux replace this library.
_system: Any = ctypes.CDLL("/usr/lib/libSystem.B.dylib")


class ProcessInfo(ctypes.Structure):
    """proc_bsdinfo of sys/proc_info.h.

    Since version 7.1, psutil's start time of a process depends on the clock. Two processes that
    were started before and after the clock was set may therefore see different start times of a
    third.
    """

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("flags", "status", "exit_status", "pid", "parent")),
        ("users", ctypes.c_uint32 * 7),
        ("names", ctypes.c_char * 48),
        ("rest", ctypes.c_uint32 * 6),
        ("start_s", ctypes.c_uint64),
        ("start_us", ctypes.c_uint64),
    )


class Region(ctypes.Structure):
    """proc_regionwithpathinfo of sys/proc_info.h: memory of a process, and the file it maps."""

    _fields_ = (
        ("protection", ctypes.c_uint32 * 4),
        ("offset", ctypes.c_uint64),
        ("pages", ctypes.c_uint32 * 14),
        ("address", ctypes.c_uint64),
        ("size", ctypes.c_uint64),
        ("device", ctypes.c_uint32),
        ("mode", ctypes.c_uint16 * 2),
        ("inode", ctypes.c_uint64),
        ("status", ctypes.c_uint64 * 17),
        ("path", ctypes.c_char * 1024),
    )


FLAVORS = {ProcessInfo: 3, Region: 8}  # PROC_PIDTBSDINFO, PROC_PIDREGIONPATHINFO


def process(pid: int, kind: type[Any], address: int = 0) -> Any:
    """Return the system's data on a process of this user, or None if the process has ended.

    With `Region`, return the memory region at an address, or the next region.
    """
    info = kind()
    _system.proc_pidinfo.argtypes = (
        *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_int),
    )
    size = ctypes.sizeof(info)
    n = _system.proc_pidinfo(pid, FLAVORS[kind], address, ctypes.byref(info), size)
    return info if n == size else None


fence = _system.OSMemoryBarrier
