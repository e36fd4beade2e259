"""Memory that processes share: randomly named sections of the system's paging file."""

from __future__ import annotations

import _winapi
import ctypes
import errno
import mmap
import os
from typing import Any, ClassVar, NamedTuple

from nbshare._core.system.descriptors import Descriptor, MemoryFd
from nbshare._core.system.portable import (
    CAN_BE_FILES,
    CAN_WRITE,
    PRIVATE,
    bytes_held,
    free,
    in_folder,
    inode_of,
    new_name,
)
from nbshare._core.system.windows import handles, processes
from nbshare._core.system.windows.handles import OwnedHandle

PAGE_READWRITE, SEC_RESERVE, MEM_COMMIT = 0x4, 0x4000000, 0x1000
FILE_MAP_READ, FILE_MAP_WRITE = 0x4, 0x2
LENGTH = 8  # number of zero bytes after the written part
SCRATCH = 64 << 20  # largest size of a small file, in bytes (reserved: only used ones take memory)

_ACCESS = {"r": mmap.ACCESS_READ, "r+": mmap.ACCESS_WRITE, "c": mmap.ACCESS_COPY}

_commit = handles.function(
    *("VirtualAlloc", handles.POINTER, handles.POINTER),
    *(handles.SIZE, handles.DWORD, handles.DWORD),
)


class Section(NamedTuple):
    """Memory of the paging file. Other processes find it by name."""

    setting: str = "section"  # its name for users
    folder: str = ""

    def open(self) -> Descriptor:
        """Create an empty file, which grows as it is written."""
        return _Scratch(_new(0, SCRATCH))

    def grow(self, fd: int, nbytes: int) -> None:
        """Commit a larger part of the memory that is reserved for a growing section."""
        assert isinstance(fd, MemoryFd)
        if nbytes > fd.reserved:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _commit_first(fd, nbytes)
        fd.nbytes = nbytes

    def protect(self, fd: int) -> None:
        """No-op, because workers map the section read-only, which the processor enforces."""


Shared = Section


def kinds(_temporary: str) -> dict[str, Section]:
    """Return the kinds by their settings."""
    return {"section": Section()}


def made(_kind: Section, nbytes: int, *, grows: bool) -> Descriptor:
    """Allocate zeroed memory of this size.

    For growing memory, reserve as much as the machine has.
    """
    if not grows:
        return OwnedHandle(_new(nbytes, nbytes))
    handle = _new(nbytes, max(nbytes, handles.aligned(processes.total_bytes()[0])))
    _commit_first(handle, nbytes)
    return OwnedHandle(handle)


def _new(nbytes: int, reserved: int) -> MemoryFd:
    name = new_name()
    flags = PAGE_READWRITE | (SEC_RESERVE if reserved > nbytes else 0)
    size = reserved >> 32, reserved & 0xFFFFFFFF
    handle = _winapi.CreateFileMapping(handles.NO_HANDLE, 0, flags, *size, name)
    return MemoryFd(handle).of(name, nbytes, reserved)


def _commit_first(handle: MemoryFd, nbytes: int) -> None:
    address = _winapi.MapViewOfFile(handle, FILE_MAP_WRITE, 0, 0, nbytes)
    try:
        _commit(address, nbytes, MEM_COMMIT, PAGE_READWRITE)
    finally:
        _winapi.UnmapViewOfFile(address)


def mapping(fd: int, nbytes: int, mode: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which `mmap.mmap` maps memory in a mode of `numpy.memmap`."""
    if not isinstance(fd, MemoryFd):
        return (fd, nbytes), {"access": _ACCESS[mode]}
    # All reserved memory is mapped, so that growing memory need not be mapped again. In a
    # copy-on-write mapping, all of it would count as promised memory.
    most = nbytes if mode == "c" else max(nbytes, fd.reserved)
    return (-1, most, fd.name), {"access": _ACCESS[mode]}


def is_written(_address: int, _nbytes: int) -> bool:
    """Return True, because writes to a copy-on-write mapping are not recorded."""
    return True


def name_of(fd: int) -> str:
    """Return the name of a section."""
    assert isinstance(fd, MemoryFd)
    return fd.name


def size_of(fd: int) -> int:
    """Return the size of memory, or of a file, in bytes."""
    return fd.nbytes if isinstance(fd, MemoryFd) else os.fstat(fd).st_size


def key_of(fd: int) -> tuple[Any, ...]:
    """Return a tuple that identifies the memory of a descriptor.

    Its last element is the size in bytes.
    """
    return name_of(fd), size_of(fd)


def owned(fd: int) -> Descriptor:
    """Wrap a handle of memory or of a small file. The handle closes with the wrapper."""
    return OwnedHandle(fd) if size_of(fd) else _Scratch(fd)


def duplicate(fd: int) -> Descriptor:
    """Open memory or a small file again."""
    return owned(handles.duplicate(fd))


def read_only(fd: int) -> Descriptor:
    """Open a read-only descriptor of shared memory."""
    return OwnedHandle(handles.duplicate(fd, access=FILE_MAP_READ))


def open_of(_pid: int, fd: int, _inode: int, name: str, access: int) -> Descriptor:
    """Open memory of another process.

    Raises
    ------
    FileNotFoundError
        If no process holds the section any more.
    """
    rights = FILE_MAP_READ if access == os.O_RDONLY else FILE_MAP_READ | FILE_MAP_WRITE
    handle = _winapi.OpenFileMapping(rights, False, name)
    assert isinstance(fd, MemoryFd)  # from the creator of the memory, like the name
    return owned(MemoryFd(handle).of(name, fd.nbytes, fd.reserved))


def file_at(path: str) -> tuple[int, int]:
    """Return the inode and the device of the file at a path, if other processes can open it."""
    with open(path, "rb") as file:  # the path alone does not show all files open elsewhere
        return os.fstat(file.fileno())[1:3]


def mapped_file(address: int, memmap: Any) -> tuple[str, tuple[int, int], int]:
    """Find the file that `numpy.memmap` has mapped at an address.

    A mapped file cannot be replaced, renamed or removed, so it still has its name.

    Returns
    -------
    tuple of str, tuple of int, and int
        The file's path, inode and device, and the address at which its first byte would be.

    Raises
    ------
    OSError
        If the mapping is copy-on-write or has no name, or no other process can open it.
    """
    if memmap.mode == "c" or memmap.filename is None:
        raise FileNotFoundError
    identity = file_at(memmap.filename)
    begin = memmap.offset // handles.GRAIN * handles.GRAIN  # start of the mapping in the file
    return os.fspath(memmap.filename), identity, address - begin


# ------------------------------------------------------------------------------- small files


class _Scratch(OwnedHandle):
    """A reserved section that serves as a file. Its pages are committed as they are written."""

    all: ClassVar[dict[int, _Scratch]] = {}  # by handle

    def __init__(self, handle: int) -> None:
        super().__init__(handle)
        self.all[int(handle)] = self
        args, options = mapping(handle, 0, "r+")
        self.memory = mmap.mmap(*args, **options)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        self._n_committed = 0
        self.commit(mmap.PAGESIZE)

    def commit(self, nbytes: int) -> None:
        """Commit memory up to an offset. Committed memory is never released."""
        if nbytes <= self._n_committed:
            return
        if nbytes > SCRATCH:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        _commit(self._address, nbytes, MEM_COMMIT, PAGE_READWRITE)
        self._n_committed = -(-nbytes // mmap.PAGESIZE) * mmap.PAGESIZE

    def close(self) -> None:
        """Close the section now."""
        self.all.pop(int(self.fileno()), None)
        super().close()


def read_scratch(fd: int, nbytes: int, offset: int) -> bytes:
    """Read from a small file. Bytes that were never written are zero."""
    scratch = _Scratch.all[int(fd)]
    scratch.commit(offset + nbytes)
    return scratch.memory[offset : offset + nbytes]


def write_scratch(fd: int, data: Any, offset: int) -> int:
    """Write to a small file, and return the number of bytes written."""
    scratch, stop = _Scratch.all[int(fd)], offset + len(data)
    scratch.commit(stop)
    scratch.memory[offset:stop] = bytes(data)
    return len(data)
