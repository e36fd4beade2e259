"""Reading and writing at a place in a file, its space on the disk, and its owner."""

from __future__ import annotations

import _winapi
import ctypes
import os
import threading
import time
from typing import Any

from nbshare._core.system.windows import handles, sections
from nbshare._core.system.windows.handles import Handle, unix_ns

CAN_SYNC_FOLDERS = False
MODE = os.O_BINARY | os.O_NOINHERIT
REPLACE_S = 2.0  # that another process may have a file open which is replaced
PAUSE_S = 0.01

_moving = threading.Lock()  # the place of a descriptor is that of all threads

sync = os.fsync


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Read from a file at a place, or from a small file of `system.sections`."""
    if isinstance(fd, Handle):
        return sections.read_scratch(fd, nbytes, offset)
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, nbytes)


def write_at(fd: int, data: Any, offset: int) -> int:
    """Write to a file at a place. Return how many bytes."""
    if isinstance(fd, Handle):
        return sections.write_scratch(fd, data, offset)
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def cut(fd: int, nbytes: int) -> None:
    """Set the size of a file."""
    if isinstance(fd, Handle):
        sections.write_scratch(fd, bytes(sections.LENGTH), nbytes)  # it ends with a length of 0
    else:
        os.ftruncate(fd, nbytes)


def allocate(fd: int, start: int, stop: int) -> None:  # noqa: ARG001
    """Make a file so large that a part of it is there."""
    if os.fstat(fd).st_size < stop:
        os.ftruncate(fd, stop)


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Put a file in the place of another, but not while another process has that open."""
    until_s = time.monotonic() + REPLACE_S
    while True:
        try:
            os.replace(source, target)
        except PermissionError:
            if time.monotonic() > until_s:
                raise
            time.sleep(PAUSE_S)
        else:
            return


class _Basic(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("created", "read", "written", "changed")),
        ("attributes", ctypes.c_int64),
    )


class _Standard(ctypes.Structure):
    _fields_ = (("allocated", ctypes.c_int64), ("size", ctypes.c_int64), ("rest", ctypes.c_int64))


BASIC, STANDARD = 0, 1  # classes of information
READ_ATTRIBUTES, SHARE_ALL = 0x80, 7
_information = handles.function(
    *("GetFileInformationByHandleEx", handles.BOOL, handles.HANDLE, ctypes.c_int),
    *(handles.POINTER, handles.DWORD),
)


def stamp(path: str) -> tuple[int, int, int, int]:
    """Return what changes when a file is edited or replaced (mtime, size, nothing, ctime).

    `os.stat` knows the time of the creation only, and takes longer.
    """
    how = READ_ATTRIBUTES, SHARE_ALL, 0, _winapi.OPEN_EXISTING, 0, 0
    handle = _winapi.CreateFile(path, *how)
    try:
        basic, standard = _Basic(), _Standard()
        _information(handle, BASIC, ctypes.byref(basic), ctypes.sizeof(basic))
        _information(handle, STANDARD, ctypes.byref(standard), ctypes.sizeof(standard))
    finally:
        handles.close(handle)
    return unix_ns(basic.written), standard.size, 0, unix_ns(basic.changed)


def other_owner(_status: os.stat_result) -> int | None:
    """Return None, because files have owners of another kind here."""
    return None
