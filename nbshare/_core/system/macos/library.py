"""Functions of the system's library that Python has no others for, from its headers."""

from __future__ import annotations

import ctypes
from typing import Any

# A library of its own, for which tests on Linux have another.
_system: Any = ctypes.CDLL("/usr/lib/libSystem.B.dylib")


class ProcessInfo(ctypes.Structure):
    """proc_bsdinfo of sys/proc_info.h."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("flags", "status", "exit_status", "pid", "parent")),
        ("users", ctypes.c_uint32 * 7),
        ("names", ctypes.c_char * 48),
        ("rest", ctypes.c_uint32 * 6),
        ("start_s", ctypes.c_uint64),
        ("start_us", ctypes.c_uint64),
    )


class TaskInfo(ctypes.Structure):
    """proc_taskinfo of sys/proc_info.h."""

    _fields_ = (
        ("virtual", ctypes.c_uint64),
        ("resident", ctypes.c_uint64),
        ("rest", ctypes.c_uint64 * 10),
    )


class Pages(ctypes.Structure):
    """vm_statistics64 of mach/vm_statistics.h, in pages."""

    _fields_ = (
        *((name, ctypes.c_uint32) for name in ("free", "active", "inactive", "wired")),
        ("rest", ctypes.c_uint32 * 34),
    )


class Region(ctypes.Structure):
    """proc_regionwithpathinfo of sys/proc_info.h, memory of a process and the file it maps."""

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


# PROC_PIDTBSDINFO, PROC_PIDTASKINFO, PROC_PIDREGIONPATHINFO
FLAVORS = {ProcessInfo: 3, TaskInfo: 4, Region: 8}
HOST_VM_INFO64 = 4  # mach/host_info.h


def process(pid: int, kind: type[Any], address: int = 0) -> Any:
    """Return what the system tells of a process of this user, or None if it has ended.

    Of its memory it tells what is at an address, or after it.
    """
    info = kind()
    _system.proc_pidinfo.argtypes = (
        *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64),
        *(ctypes.c_void_p, ctypes.c_int),
    )
    size = ctypes.sizeof(info)
    n = _system.proc_pidinfo(pid, FLAVORS[kind], address, ctypes.byref(info), size)
    return info if n == size else None


def pages() -> Pages | None:
    """Return how the machine's memory is used, or None if the system does not tell."""
    found, n = Pages(), ctypes.c_uint32(ctypes.sizeof(Pages) // 4)
    host = _system.mach_host_self()
    code = _system.host_statistics64(host, HOST_VM_INFO64, ctypes.byref(found), ctypes.byref(n))
    return None if code else found


fence = _system.OSMemoryBarrier
