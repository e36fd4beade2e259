"""Locks between processes; the kernel releases them if their holder dies."""

from __future__ import annotations

import _winapi
import msvcrt
from ctypes import wintypes
from typing import NoReturn

from nbshare.errors import NotBuiltYetError
from nbshare.system.windows import handles
from nbshare.system.windows.handles import OwnedHandle
from nbshare.system.windows.sections import name_of

_new_mutex = handles.function(
    "CreateMutexW", handles.HANDLE, handles.POINTER, handles.BOOL, wintypes.LPCWSTR
)
_release = handles.function("ReleaseMutex", handles.BOOL, handles.HANDLE)


class FileLock:
    """A lock between processes: a mutex, whose name is that of a file and a place in it.

    It does not exclude a thread of this process from itself.

    Parameters
    ----------
    fd : int
        Of the file.
    byte : int
        The place.
    """

    def __init__(self, fd: int, byte: int) -> None:
        name = f"{name_of(fd)}-{byte}"
        self._mutex = OwnedHandle(_new_mutex(None, False, name))

    def __enter__(self) -> None:
        _winapi.WaitForSingleObject(self._mutex.fileno(), _winapi.INFINITE)

    def __exit__(self, *_: object) -> None:
        _release(self._mutex.fileno())


def lock_file(fd: int) -> None:
    """Lock a file until it is closed.

    Raises
    ------
    PermissionError
        Another process has locked it.
    """
    msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)


def mutexes() -> NoReturn:
    """Refuse: these locks are not built here yet."""
    raise NotBuiltYetError("a SharedLock needs Linux. Here, use multiprocessing.Lock.")


def timespec(_seconds: float) -> NoReturn:
    """Refuse: see `mutexes`."""
    mutexes()
