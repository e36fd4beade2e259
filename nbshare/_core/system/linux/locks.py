"""Locks between processes, which the kernel releases if their holder dies."""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from nbshare._core.system.descriptors import NOT_MINE
from nbshare._core.system.linux.processes import has_thread
from nbshare._core.system.linux.waiting import timespec as timespec
from nbshare._core.system.posix import FileLock, lock_file

# From pthread.h, the same in glibc and musl.
PTHREAD_MUTEX_ERRORCHECK = 2
PTHREAD_PROCESS_SHARED = 1
PTHREAD_MUTEX_ROBUST = 1


class _Mutexes:
    """The C library's functions for mutexes. Each takes a lock and returns an errno.

    Attributes
    ----------
    holder_offset : int
        The offset of a mutex's futex word, which has the kernel's format for robust mutexes: the
        number of the thread that holds the mutex, and flags.
    """

    HOLDER = 0x3FFFFFFF  # FUTEX_TID_MASK of linux/futex.h, for that word (the rest are flags)
    # Bound here, because at exit the module's names may be deleted before the last lock.
    has_thread = staticmethod(has_thread)

    def __init__(self) -> None:
        c: Any = ctypes.CDLL(None)
        self._c = c
        self.trylock, self.timedlock = c.pthread_mutex_trylock, c.pthread_mutex_timedlock
        self.consistent, self.unlock = c.pthread_mutex_consistent, c.pthread_mutex_unlock
        self.unlock.errcheck = _check_unlocked
        # Adds a reference that is never dropped.
        self.keep = ctypes.PyDLL(None).Py_IncRef
        self.keep.argtypes, self.keep.restype = (ctypes.py_object,), None
        self.holder_offset = 0 if hasattr(c, "gnu_get_libc_version") else 4  # glibc or musl

    def initialise(self, address: int) -> None:
        """Create a mutex in zeroed memory."""
        c, attributes = self._c, (ctypes.c_uint64 * 8)()  # larger than any library's
        code = max(
            c.pthread_mutexattr_init(attributes),
            c.pthread_mutexattr_settype(attributes, PTHREAD_MUTEX_ERRORCHECK),
            c.pthread_mutexattr_setpshared(attributes, PTHREAD_PROCESS_SHARED),
            c.pthread_mutexattr_setrobust(attributes, PTHREAD_MUTEX_ROBUST),
            c.pthread_mutex_init(ctypes.c_void_p(address), attributes),
        )
        if code:
            raise OSError(code, f"the system cannot make a robust mutex: {os.strerror(code)}")

    def at(self, address: int) -> tuple[Any, Any]:
        """Return the mutex at an address, as an argument for the functions, and its futex word."""
        word = ctypes.c_uint32.from_address(address + self.holder_offset)
        return ctypes.c_void_p(address), word


mutexes = cache(_Mutexes)


def _check_unlocked(code: int, _function: Any, _arguments: Any) -> None:
    if code:
        raise RuntimeError(NOT_MINE)
