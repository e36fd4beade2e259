"""Mutexes of the C library's (POSIX threads) that processes share and the dead do not keep.

With three attributes: *process-shared*, so that they work in memory that several processes map;
*robust*, so that the kernel releases one when the thread that holds it ends, however it ends;
*error-checking*, so that taking one twice, or releasing somebody else's, is an error and no hang.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from functools import cache
from typing import Any

from nbshare.errors import NotBuiltYetError

__all__ = ["HOLDER_MASK", "NBYTES", "pthread", "timespec"]

NBYTES = 64  # of a mutex's place; a pthread_mutex_t has 40 to 48, the rest is free

# From pthread.h and linux/futex.h: the same in glibc and musl.
PTHREAD_MUTEX_ERRORCHECK = 2
PTHREAD_PROCESS_SHARED = 1
PTHREAD_MUTEX_ROBUST = 1
HOLDER_MASK = 0x3FFFFFFF  # of the holder's number in its word


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Pthread:
    """The C library's functions for mutexes; each takes the lock, or an address, and gives errno.

    Attributes
    ----------
    holder_offset : int
        Where in a mutex the number of the thread stands that holds it. The kernel demands such a
        word of a robust mutex, so that reading it is all that `locked` takes.
    """

    def __init__(self) -> None:
        try:
            c = ctypes.CDLL(None)
            self._new_attributes = c.pthread_mutexattr_init
            self._setters = (
                (c.pthread_mutexattr_settype, PTHREAD_MUTEX_ERRORCHECK),
                (c.pthread_mutexattr_setpshared, PTHREAD_PROCESS_SHARED),
                (c.pthread_mutexattr_setrobust, PTHREAD_MUTEX_ROBUST),
            )
            self._new = c.pthread_mutex_init
            self.trylock = _function(c, "pthread_mutex_trylock")
            self.consistent = _function(c, "pthread_mutex_consistent")
            self.unlock = _function(c, "pthread_mutex_unlock")
            # What a with block adds, the exception, a C function does not look at.
            self.unlock_at_exit = _function(c, "pthread_mutex_unlock", *[ctypes.py_object] * 3)
            self._timedlock = _function(c, "pthread_mutex_timedlock", ctypes.POINTER(_Timespec))
        except (AttributeError, TypeError, OSError):
            raise NotBuiltYetError(
                "SharedLock needs the robust mutexes of Linux's C libraries, which this system "
                "does not have. Let the workers return what they found, and add it up here."
            ) from None
        self.unlock.errcheck = self.unlock_at_exit.errcheck = _check_unlocked
        if hasattr(c, "pthread_mutex_clocklock"):  # glibc 2.30
            self._clocklock = _function(
                c, "pthread_mutex_clocklock", ctypes.c_int, ctypes.POINTER(_Timespec)
            )
            self.wait = self._wait_steadily  # type: ignore[method-assign]
        # Raises the count of references by one, for ever.
        self.keep = ctypes.PyDLL(None).Py_IncRef
        self.keep.argtypes, self.keep.restype = (ctypes.py_object,), None
        self.holder_offset = self._find_holder()

    def initialise(self, address: int) -> None:
        """Make a mutex in zeroed memory."""
        attributes = (ctypes.c_uint64 * 8)()  # larger than any library's
        codes = [self._new_attributes(attributes)]
        codes += [setter(attributes, value) for setter, value in self._setters]
        codes += [self._new(ctypes.c_void_p(address), attributes)]
        for code in filter(None, codes):
            raise OSError(code, f"the system cannot make a robust mutex: {os.strerror(code)}")

    def wait(self, lock: Any, seconds: float) -> int:
        """Wait for so long at most."""
        until = timespec(time.clock_gettime(time.CLOCK_REALTIME) + seconds)
        return int(self._timedlock(lock, until))

    def _wait_steadily(self, lock: Any, seconds: float) -> int:
        """Wait, by the clock that nobody sets."""
        until = timespec(time.clock_gettime(time.CLOCK_MONOTONIC) + seconds)
        return int(self._clocklock(lock, time.CLOCK_MONOTONIC, until))

    def _find_holder(self) -> int:
        """Take a mutex, and see where the library has written the number of this thread."""
        mutex = (ctypes.c_uint64 * (NBYTES // 8))()
        words = (ctypes.c_uint32 * (NBYTES // 4)).from_buffer(mutex)
        address = ctypes.addressof(mutex)
        self.initialise(address)
        before = list(words)
        try:
            self.trylock(address)
            held = list(words)
        finally:
            self.unlock(address)
        me = threading.get_native_id()
        places = [i for i, word in enumerate(held) if word == me != before[i]]
        if not places:
            raise NotBuiltYetError("SharedLock does not know the mutexes of this C library")
        return 4 * places[0]


@cache
def pthread() -> Pthread:
    """Return the C library's mutexes."""
    return Pthread()


def _function(library: ctypes.CDLL, name: str, *more: Any) -> Any:
    # With arguments of its own: the library's attribute would be the same object each time.
    return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, *more)((name, library))


def timespec(seconds: float) -> Any:
    """Return a time as the C library's functions take it."""
    whole, part = divmod(seconds, 1)
    return ctypes.byref(_Timespec(int(whole), int(part * 1e9)))


def _check_unlocked(code: int, _function: Any, _arguments: Any) -> None:
    if code:
        raise RuntimeError(
            "this thread does not hold the SharedLock, and cannot release it: only the thread "
            "that has taken it can, and once"
        )
