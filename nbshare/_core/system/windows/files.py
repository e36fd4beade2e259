"""Reading and writing at an offset of a file, disk space, and the owner of a file.

A mapped file can be renamed, but not removed. It is therefore moved aside instead (`OLD`).
"""

from __future__ import annotations

import _winapi
import ctypes
import errno
import msvcrt
import os
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from ctypes import wintypes
from typing import Any, TypeVar

from nbshare._core.interrupts import uninterrupted
from nbshare._core.system.descriptors import MemoryFd
from nbshare._core.system.portable import other_owner
from nbshare._core.system.windows import handles, sections

CAN_SYNC_FOLDERS = False
TO_SYNC = os.O_RDWR  # the system syncs no file opened for reading only
MODE = os.O_BINARY | os.O_NOINHERIT
EPOCH_100NS = 116444736000000000  # from 1601, where the system's times begin, to 1970
OLD = ".old."  # names of files that were removed or replaced begin with it, until they are closed
READ, WRITE = _winapi.GENERIC_READ, _winapi.GENERIC_WRITE
ACCESS = {os.O_RDONLY: READ, os.O_WRONLY: WRITE, os.O_RDWR: READ | WRITE}
OPEN_ALWAYS, CREATE_ALWAYS = 4, 2  # create an empty file if none exists, or in any case
SHARE_ALL = 7

# Virus scanners, backups and programs that copy folders to the cloud open new files for some
# seconds, and forbid some of our operations on these files.
HELD = {32, 33}  # ERROR_SHARING_VIOLATION, ERROR_LOCK_VIOLATION
MAYBE_HELD = {*HELD, 5}  # ERROR_ACCESS_DENIED, if it is the target, or in a folder, or unlinked
HELD_S = 10.0  # time to wait for such a program
READ_S = 2.0  # time for another process of ours to read a file
PAUSE_S = 0.01
STAYS_HELD = (
    f"Another program, maybe a virus scanner or a backup, has had it open for {HELD_S:g} s. Close "
    "it there, or exclude the folder from it, and try again."
)

T = TypeVar("T")

END = 6  # the class of information FileEndOfFileInfo
_set = handles.function(
    *("SetFileInformationByHandle", handles.BOOL, handles.HANDLE, ctypes.c_int),
    *(handles.POINTER, handles.DWORD),
)
_moving = threading.Lock()  # all threads share a descriptor's offset

sync = os.fsync


def open_safely(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, and allow others to move it aside meanwhile (`os.open` forbids that)."""
    access = ACCESS[flags & (os.O_WRONLY | os.O_RDWR)]
    made = CREATE_ALWAYS if flags & os.O_TRUNC else OPEN_ALWAYS
    how = made if flags & os.O_CREAT else _winapi.OPEN_EXISTING
    name = os.fspath(path)
    try:
        handle = _when_free(HELD, _winapi.CreateFile, name, access, SHARE_ALL, 0, how, 0, 0)
    except OSError as error:
        error.filename = path
        raise
    return msvcrt.open_osfhandle(handle, flags | MODE)


def read_at(fd: int, nbytes: int, offset: int) -> bytes:
    """Read from a file at an offset, or from a small file of `system.sections`."""
    if isinstance(fd, MemoryFd):
        return sections.read_scratch(fd, nbytes, offset)
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, nbytes)


def write_at(fd: int, data: Any, offset: int) -> int:
    """Write to a file at an offset, and return the number of bytes written."""
    if isinstance(fd, MemoryFd):
        return sections.write_scratch(fd, data, offset)
    with _moving:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


def cut(fd: int, nbytes: int) -> None:
    """Set the size of a file in one step (`os.ftruncate` would write all new bytes)."""
    if isinstance(fd, MemoryFd):
        sections.write_scratch(fd, bytes(sections.LENGTH), nbytes)  # it ends with a length of 0
        return
    end = ctypes.c_int64(nbytes)
    _set(msvcrt.get_osfhandle(fd), END, ctypes.byref(end), ctypes.sizeof(end))


def allocate(fd: int, start: int, stop: int) -> None:  # noqa: ARG001
    """Enlarge a file so that a part of it exists."""
    if os.fstat(fd).st_size < stop:
        cut(fd, stop)


def _when_free(codes: Collection[int], action: Callable[..., T], *args: Any) -> T:
    """Call a function again while it fails because another program holds the file."""
    until_s = time.monotonic() + HELD_S
    while True:
        try:
            return action(*args)
        except OSError as error:
            if error.winerror not in codes:
                raise
            if time.monotonic() > until_s:
                if error.winerror in HELD:
                    error.add_note(STAYS_HELD)
                raise
        time.sleep(PAUSE_S)


def move(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Rename a folder in which no file is open."""
    _when_free(MAYBE_HELD, os.rename, source, target)


def replace(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Replace a file with another. If the old file is open, it is moved aside.

    If that fails, the old file is still in place.

    Raises
    ------
    IsADirectoryError
        If one of the paths is a folder.
    PermissionError
        If a program has one of the files open and forbids moving it.
    """
    begun_s = time.monotonic()

    def attempt() -> None:
        try:
            os.replace(source, target)
        except PermissionError as error:
            _check_file(target)
            is_source = error.winerror in HELD  # else the target is open
            is_early = time.monotonic() < begun_s + READ_S
            if is_source or is_early or not os.path.exists(target):
                raise
            with uninterrupted():
                _exchange(source, target)

    _when_free(MAYBE_HELD, attempt)


def _exchange(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Replace a file with another, and move the old file aside.

    If this fails, restore the old file.
    """
    old = _name_aside(target)
    os.rename(target, old)
    try:
        os.rename(source, target)
    except OSError:
        _when_free(HELD, os.rename, old, target)
        raise
    with suppress(PermissionError):
        os.unlink(old)


def remove(path: str | os.PathLike[str]) -> None:
    """Remove a file, or move it aside if it is open.

    Raises
    ------
    IsADirectoryError
        If the path is a folder.
    PermissionError
        If a program has the file open and forbids moving it.
    """
    _check_file(path)
    old = _name_aside(path)
    _when_free(HELD, os.rename, path, old)
    with suppress(PermissionError):
        os.unlink(old)


def _name_aside(path: str | os.PathLike[str]) -> str:
    return os.path.join(os.path.dirname(path), f"{OLD}{os.urandom(7).hex()}")


def _check_file(path: str | os.PathLike[str]) -> None:
    if os.path.isdir(path):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)


def remove_old(folder: str | os.PathLike[str]) -> None:
    """Remove the files of a folder that were moved aside and are no longer open."""
    for name in os.listdir(folder):
        if name.startswith(OLD):
            with suppress(OSError):
                os.unlink(os.path.join(folder, name))


class _Text(ctypes.Structure):  # UNICODE_STRING
    _fields_ = (
        ("nbytes", wintypes.USHORT),
        ("most", wintypes.USHORT),
        ("start", handles.POINTER),
    )


class _Place(ctypes.Structure):  # OBJECT_ATTRIBUTES
    _fields_ = (
        ("nbytes", wintypes.ULONG),
        ("folder", handles.HANDLE),
        ("name", ctypes.POINTER(_Text)),
        ("flags", wintypes.ULONG),
        ("security", handles.POINTER * 2),
    )


class _Attributes(ctypes.Structure):  # FILE_NETWORK_OPEN_INFORMATION
    _fields_ = (
        *((name, ctypes.c_int64) for name in ("created", "read", "written", "changed")),
        *((name, ctypes.c_int64) for name in ("allocated", "size")),
        ("flags", wintypes.ULONG),
    )


ANY_CASE, LINK = 0x40, 0x400  # OBJ_CASE_INSENSITIVE, FILE_ATTRIBUTE_REPARSE_POINT
_system = ctypes.WinDLL("ntdll")
_query = _system.NtQueryFullAttributesFile
_query.argtypes = ctypes.POINTER(_Place), ctypes.POINTER(_Attributes)


def _unix_ns(time_100ns: int) -> int:
    """Return a time of the system in ns since 1970."""
    return (time_100ns - EPOCH_100NS) * 100


def stamp(path: str) -> tuple[int, int, int, int]:
    """Return metadata that changes when a file is edited or replaced (mtime, size, 0, ctime).

    `os.stat` returns only the time of creation. It also opens the file, which takes much longer.
    """
    found = _attributes(path)
    if found.flags & LINK:
        found = _attributes(os.path.realpath(path))
    return _unix_ns(found.written), found.size, 0, _unix_ns(found.changed)


def _attributes(path: str) -> _Attributes:
    path = os.path.abspath(path)
    if path.startswith("\\\\"):  # on another machine, or in the long form
        path = path[4:] if path.startswith("\\\\?\\") else f"UNC{path[1:]}"
    text = ctypes.create_unicode_buffer(f"\\??\\{path}")
    nbytes = ctypes.sizeof(text) - ctypes.sizeof(ctypes.c_wchar)  # without its end
    name = _Text(nbytes, nbytes, ctypes.addressof(text))
    place = _Place(ctypes.sizeof(_Place), None, ctypes.pointer(name), ANY_CASE)
    found = _Attributes()
    if status := _query(ctypes.byref(place), ctypes.byref(found)):
        raise ctypes.WinError(_system.RtlNtStatusToDosError(status))
    return found


def enter(folder: str) -> None:
    """Change to a folder, because the current folder cannot be removed or renamed."""
    if os.getcwd() != folder:
        os.chdir(folder)


def is_open(fd: int) -> bool:
    """Return whether the C library knows a descriptor as open."""
    try:
        msvcrt.get_osfhandle(fd)
    except OSError:
        return False
    return True


# Like `shutil.disk_usage`, but importing that module takes a worker 30 ms.
_disk = handles.function(
    "GetDiskFreeSpaceExW", handles.BOOL, wintypes.LPCWSTR, *[handles.POINTER] * 3
)


def free_in(folder: str) -> int:
    """Return the number of free bytes in a directory."""
    free = ctypes.c_uint64()
    _disk(folder or os.curdir, ctypes.byref(free), None, None)
    return free.value
