"""Handles, which serve as descriptors here, and functions of the system."""

from __future__ import annotations

import _overlapped
import _winapi
import ctypes
from collections.abc import Callable
from ctypes import wintypes
from typing import Any

from nbshare._core.system.descriptors import MemoryFd

NO_HANDLE = -1
GRAIN = 1 << 16  # bytes, the allocation granularity of the system
SAME_ACCESS = 2  # DUPLICATE_SAME_ACCESS
HERE = _winapi.GetCurrentProcess()  # a constant that stands for the calling process

_kernel = ctypes.WinDLL("kernel32", use_last_error=True)


class OwnedHandle:
    """A handle that is closed with this object."""

    def __init__(self, handle: int) -> None:
        self._handle = handle
        # This class is meant for the handles of events, but can own and close any handle without a
        # `__del__` (see `system.descriptors`).
        self._owner: Any = _overlapped.Overlapped(handle)

    def fileno(self) -> int:
        """Return the handle's number, or -1 if it is closed."""
        return self._handle

    def close(self) -> None:
        """Close the handle now."""
        self._handle, self._owner = NO_HANDLE, None


close: Callable[[int], None] = _winapi.CloseHandle


def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
    """Return a function of the system, wrapped to raise OSError if its result is 0."""
    wanted = getattr(_kernel, name)
    wanted.restype, wanted.argtypes = result, arguments

    def call(*values: Any) -> Any:
        found = wanted(*values)
        if not found:
            raise ctypes.WinError(ctypes.get_last_error())
        return found

    return call


def duplicate(handle: int, process: int = HERE, access: int | None = None) -> MemoryFd:
    """Duplicate a handle into this process or into another process."""
    options = SAME_ACCESS if access is None else 0
    number = _winapi.DuplicateHandle(HERE, handle, process, access or 0, False, options)
    copy = MemoryFd(number)
    if isinstance(handle, MemoryFd):
        copy.of(*handle.facts())
    return copy


def aligned(nbytes: int) -> int:
    """Round up to a multiple of the granularity of sections."""
    return -(-nbytes // GRAIN) * GRAIN


BOOL, DWORD, HANDLE, SIZE = wintypes.BOOL, wintypes.DWORD, wintypes.HANDLE, ctypes.c_size_t
POINTER = ctypes.c_void_p
