"""Sleeping until a word in shared memory changes: the system calls under every lock of Linux.

Nothing is kept in memory for a sleeper, so one that is killed leaves nothing behind. A POSIX
condition variable, built on the same calls, counts its waiters in memory: one killed inside it can
block whoever signals it, for ever.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache
from typing import Any

from nbshare.arrays.mutex import timespec
from nbshare.errors import NotBuiltYetError

__all__ = ["ALL", "require", "wait", "wake"]

ALL = 2**31 - 1  # sleepers

# From linux/futex.h and each machine's unistd.h, for programs of 64 bits.
FUTEX_WAIT = 0
FUTEX_WAKE = 1
SYS_FUTEX = {"x86_64": 202, "aarch64": 98, "riscv64": 98, "ppc64le": 221, "s390x": 238}


def require() -> None:
    """Raise NotBuiltYetError where there are no such calls."""
    _system_call()


def wait(address: int, seen: int, seconds: float) -> None:
    """Sleep for so long at most, if the word at an address (32 bits) is still what was seen.

    Returns without a reason at times: a signal ends a sleep too.
    """
    number, call = _system_call()
    call(number, address, FUTEX_WAIT, seen, timespec(seconds))


def wake(address: int, n: int) -> None:
    """Wake `n` of those who sleep at an address."""
    number, call = _system_call()
    call(number, address, FUTEX_WAKE, n, None)


@cache
def _system_call() -> tuple[int, Any]:
    machine = os.uname().machine if sys.platform == "linux" and sys.maxsize > 2**32 else ""
    if machine not in SYS_FUTEX:
        raise NotBuiltYetError(
            f"RingBuffer needs Linux in 64 bits on {', '.join(SYS_FUTEX)}. Here, send arrays "
            "through a multiprocessing.Queue."
        )
    prototype = ctypes.CFUNCTYPE(
        *(ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_int, ctypes.c_uint32),
        ctypes.c_void_p,
    )
    return SYS_FUTEX[machine], prototype(("syscall", ctypes.CDLL(None)))
