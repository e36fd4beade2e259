"""Memory that processes share: its kinds, and the files under it."""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import re
from contextlib import suppress
from typing import Any, NamedTuple

from nbshare._core.system import posix
from nbshare._core.system.descriptors import Descriptor, opened
from nbshare._core.system.descriptors import owned as owned
from nbshare._core.system.linux.processes import has_ended
from nbshare._core.system.portable import PRIVATE, new_name
from nbshare._core.system.posix import file_at, free_in, unnamed_file

# From linux/fcntl.h, because the module fcntl lacks the last constant.
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE = 0x0002, 0x0010

# For copy-on-write mappings: only their written pages take memory. Python before 3.13 lacks this
# constant. The few processors with another value ignore this one.
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)

# The highest byte of an entry of /proc/self/pagemap for a page that is no copy. A copy is in memory
# or swapped out (the highest two bits), and neither of a file nor shared (the third bit).
PAGES = 1 << 18  # pages whose entries are read at a time
NO_COPY = bytes(byte for byte in range(256) if byte >> 5 not in (0b100, 0b010))

# Bytes per allocation. A signal undoes the current allocation, so a timer could undo a large one
# forever.
PIECE = 64 << 20

# The line of /proc/self/maps for a file that is mapped, but not copy-on-write: first address, end
# address, offset, inode and path. The path of a deleted file ends in " (deleted)".
ROW = rb"(?m)^(\w+)-(\w+) r..s (\w+) \S+ (\d+) +(/.*)"


# Whether fresh memory can also be written like a file, at half the cost of page faults through a
# mapping.
CAN_BE_FILES = True  # in any directory
CAN_WRITE = True


class Memfd(NamedTuple):
    """Anonymous memory without a name, which can be sealed."""

    setting: str = "memfd"  # its name for users
    folder: str = ""  # the directory whose space it takes

    def open(self) -> Descriptor:
        """Create an empty file, which grows as it is written."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return opened(os.memfd_create, new_name(), flags)

    def grow(self, fd: int, nbytes: int) -> None:
        """Set a fixed size, so that no access can fail."""
        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)

    def protect(self, fd: int) -> None:
        """Seal the memory, so that other processes can only read it."""
        with suppress(OSError):  # Linux before 5.1 lacks this seal
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)


class MappedFile(NamedTuple):
    """An unnamed file with allocated space. Processes that may write to it can change its size."""

    setting: str
    folder: str

    def open(self) -> Descriptor:
        """Create an empty file, which grows as it is written."""
        if not has_proc():
            raise OSError(errno.ENOTSUP, "needs /proc, which is not mounted here")
        return unnamed_file(self.folder, has_ended)

    def grow(self, fd: int, nbytes: int) -> None:
        """Set the size, and allocate space for it."""
        if nbytes > free_in(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, nbytes)
        # Without allocation, touching a page in a full directory would kill the process (SIGBUS).
        for start in range(0, nbytes, PIECE):
            os.posix_fallocate(fd, start, min(PIECE, nbytes - start))

    def protect(self, fd: int) -> None:
        """Make the file read-only by its mode, so that others write only on purpose."""
        with suppress(OSError):  # some file systems lack modes
            os.fchmod(fd, 0o400)


Shared = Memfd | MappedFile


def kinds(temporary: str) -> dict[str, Shared]:
    """Return the kinds by their settings, the best first. One kind uses files in `temporary`."""
    return {
        "memfd": Memfd(),
        "named": MappedFile("named", "/dev/shm"),  # noqa: S108
        "file": MappedFile(f"file:{temporary}", temporary),
    }


def in_folder(setting: str, folder: str) -> Shared:
    """Return the kind that uses files in a directory."""
    return MappedFile(setting, folder)


def made(kind: Shared, nbytes: int, *, grows: bool) -> Descriptor:  # noqa: ARG001 - all can
    """Allocate zeroed memory of a kind and size."""
    file = kind.open()
    kind.grow(file.fileno(), nbytes)
    return file


def mapping(fd: int, nbytes: int, mode: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which `mmap.mmap` maps memory in a mode of `numpy.memmap`."""
    (*what, flags, protection), options = posix.mapping(fd, nbytes, mode)
    return (*what, flags | (MAP_NORESERVE if mode == "c" else 0), protection), options


def is_written(address: int, nbytes: int) -> bool:
    """Return whether this process may have written to this part of a copy-on-write mapping."""
    first, stop = address // mmap.PAGESIZE, -(-(address + nbytes) // mmap.PAGESIZE)
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as file:
            for page in range(first, stop, PAGES):
                n = min(PAGES, stop - page)
                entries = os.pread(file.fileno(), 8 * n, 8 * page)
                if len(entries) < 8 * n or entries[7::8].translate(None, NO_COPY):
                    return True
    except OSError:  # no /proc
        return True
    return False


def free(memory: mmap.mmap, start: int, nbytes: int) -> None:
    """Free a part of mapped memory, which then reads as zeros."""
    memory.madvise(mmap.MADV_REMOVE, start, nbytes)


def size_of(fd: int) -> int:
    """Return the size of memory, in bytes."""
    return os.fstat(fd).st_size


def key_of(fd: int) -> tuple[int, ...]:
    """Return a tuple that identifies the memory of a descriptor.

    Its last element is the size in bytes.
    """
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size


def inode_of(fd: int) -> int:
    """Return the inode of the file under memory, unique while it is open."""
    return os.fstat(fd).st_ino


def duplicate(fd: int) -> Descriptor:
    """Open memory again."""
    return opened(os.dup, fd)


def has_proc() -> bool:
    """Return whether ``/proc`` gives access to open descriptors here."""
    return os.path.exists("/proc/self/fd")  # checked each time, because it may be unmounted


def name_of(fd: int) -> str:
    """Return the name that the file of a descriptor had. This needs ``/proc``."""
    link = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    return os.path.basename(link).removeprefix("memfd:")


def reopened(fd: int, flags: int, pid: int | str = "self") -> Descriptor:
    """Open the file of a descriptor again, even of another process. This needs ``/proc``."""
    return opened(os.open, f"/proc/{pid}/fd/{fd}", flags | os.O_CLOEXEC)


def read_only(fd: int) -> Descriptor:
    """Open a read-only descriptor of shared memory."""
    if has_proc():
        return reopened(fd, os.O_RDONLY)
    return opened(os.dup, fd)  # a memfd is read-only by its seal


def open_of(pid: int, fd: int, inode: int, name: str, access: int) -> Descriptor:
    """Open a descriptor of another process, after a check that it refers to the right file.

    Raises
    ------
    OSError
        If the descriptor no longer refers to that file, or cannot be opened.
    """
    # O_PATH first, because a plain open of a descriptor number that means a pipe now could block.
    found = reopened(fd, os.O_PATH, pid)
    if (os.fstat(found.fileno()).st_ino, name_of(found.fileno())) != (inode, name):
        raise FileNotFoundError
    return reopened(found.fileno(), access)


def bytes_held() -> int:
    """Return the bytes of shared memory that this process has open."""
    nbytes = 0
    with suppress(OSError):  # no /proc
        for fd in map(int, os.listdir("/proc/self/fd")):
            with suppress(OSError):  # the one that lists them
                if name_of(fd).startswith("nbshare-"):
                    nbytes += os.fstat(fd).st_blocks * 512
    return nbytes


def mapped_file(address: int, _memmap: object) -> tuple[str, tuple[int, int], int]:
    """Find the file that `numpy.memmap` has mapped at an address.

    Returns
    -------
    tuple of str, tuple of int, and int
        The file's path, inode and device, and the address at which its first byte would be.

    Raises
    ------
    OSError
        If no file is mapped, or the mapping is copy-on-write, or the file was removed.
    """
    with open("/proc/self/maps", "rb") as rows:
        for first, end, offset, inode, path in re.findall(ROW, rows.read()):
            if int(first, 16) <= address < int(end, 16):
                identity = file_at(os.fsdecode(path))
                if identity[0] == int(inode):  # the device differs from the file's on btrfs
                    return os.fsdecode(path), identity, int(first, 16) - int(offset, 16)
    raise FileNotFoundError
