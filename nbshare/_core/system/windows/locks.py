"""Locks between processes, which the kernel releases if their holder dies."""

from __future__ import annotations

import _winapi
import ctypes
import errno
import math
import msvcrt
import os
import threading
import time
from ctypes import wintypes
from functools import cache, cached_property
from typing import Any, NamedTuple

from nbshare._core.system.descriptors import NOT_MINE
from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import OwnedHandle
from nbshare._core.system.windows.sections import name_of

WAIT_ABANDONED, WAIT_TIMEOUT = 0x80, 0x102
FAR = 1 << 30  # an offset in a file
NAME_AT, NAME_BYTES = 8, 16  # the name of a mutex in memory

_new_mutex = handles.function(
    "CreateMutexW", handles.HANDLE, handles.POINTER, handles.BOOL, wintypes.LPCWSTR
)
_release = handles.function("ReleaseMutex", handles.BOOL, handles.HANDLE)
# `msvcrt.locking` does not distinguish a locked file from one that cannot be locked.
_lock = handles.function("LockFile", handles.BOOL, handles.HANDLE, *[handles.DWORD] * 4)
# Returns the count of a mutex without acquiring it, 1 if no thread holds it.
_query: Any = ctypes.WinDLL("ntdll").NtQueryMutant
_query.argtypes = handles.HANDLE, ctypes.c_int, handles.POINTER, handles.DWORD, handles.POINTER


class FileLock:
    """A lock between processes: a mutex named after a file.

    The lock is reentrant: a thread that holds it can acquire it again.

    Parameters
    ----------
    fd : int
        The descriptor of the file.
    """

    def __init__(self, fd: int) -> None:
        self._name = f"{name_of(fd)}-lock"

    @cached_property  # a late worker needs none
    def _mutex(self) -> OwnedHandle:
        return OwnedHandle(_new_mutex(None, False, self._name))

    def __enter__(self) -> None:
        _winapi.WaitForSingleObject(self._mutex.fileno(), _winapi.INFINITE)

    def __exit__(self, *_: object) -> None:
        _release(self._mutex.fileno())


def lock_file(fd: int) -> None:
    """Lock a file until it is closed.

    Raises
    ------
    PermissionError
        If another process has locked the file.
    """
    _lock(msvcrt.get_osfhandle(fd), FAR, 0, 1, 0)  # others cannot read a locked range


class _Mutexes:
    """Functions for mutexes in shared memory. Each takes a lock and returns an errno.

    The memory stores the number of the thread that holds the mutex, and the end of its name.
    """

    HOLDER = 0xFFFFFFFF

    def initialise(self, address: int) -> None:
        """Create a mutex in zeroed memory."""
        ctypes.memmove(address + NAME_AT, os.urandom(NAME_BYTES), NAME_BYTES)

    def at(self, address: int) -> tuple[_Mutex, _Mutex]:
        """Return the mutex at an address twice: as an argument for the functions, and the word."""
        word = ctypes.c_uint32.from_address(address)
        name = ctypes.string_at(address + NAME_AT, NAME_BYTES).hex()
        mutex = _Mutex(OwnedHandle(_new_mutex(None, False, f"nbshare-{name}")), word)
        return mutex, mutex

    def trylock(self, lock: Any) -> int:
        """Acquire a lock if it is free."""
        return self._wait(lock, 0)

    def timedlock(self, lock: Any, until: float) -> int:
        """Acquire a lock, waiting at most until the system clock reaches `until`."""
        return self._wait(lock, max(0.0, until - time.time()))

    def _wait(self, lock: Any, timeout_s: float) -> int:
        mutex: _Mutex = lock._as_parameter_
        ms = math.ceil(timeout_s * 1e3)
        code = _winapi.WaitForSingleObject(mutex.handle.fileno(), ms)
        if code == WAIT_TIMEOUT:
            return errno.EBUSY
        mutex.holder.value = threading.get_native_id()
        return errno.EOWNERDEAD if code == WAIT_ABANDONED else 0

    def consistent(self, lock: Any) -> None:
        """No-op, because a dead holder leaves nothing to repair in a mutex."""

    def unlock(self, lock: Any) -> None:
        """Release a lock.

        Raises
        ------
        RuntimeError
            If this thread does not hold the lock.
        """
        mutex: _Mutex = lock._as_parameter_
        if mutex.holder.value != threading.get_native_id():
            raise RuntimeError(NOT_MINE)
        mutex.holder.value = 0
        _release(mutex.handle.fileno())

    def has_thread(self, number: int) -> bool:  # noqa: ARG002
        """Return False, because a held lock here does not need its memory."""
        return False


class _Mutex(NamedTuple):
    handle: OwnedHandle
    holder: ctypes.c_uint32  # a dead holder stays until the next thread acquires the mutex

    @property
    def value(self) -> int:
        """The number of the live thread that holds the lock, or 0."""
        holder, state = self.holder.value, (ctypes.c_int32 * 2)()
        if holder:
            _query(self.handle.fileno(), 0, state, ctypes.sizeof(state), None)
        return 0 if state[0] > 0 else holder


mutexes = cache(_Mutexes)


def timespec(seconds: float) -> float:
    """Return the time for `timedlock` unchanged."""
    return seconds
