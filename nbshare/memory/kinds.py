"""The kinds of memory that processes can share. Each is a file, had by its descriptor only.

======  ======================  ====================  ===================================
kind    made of                 room                  others cannot write to it because of
======  ======================  ====================  ===================================
memfd   anonymous memory        memory                a seal
named   a file in ``/dev/shm``  memory, ``/dev/shm``  read-only descriptors
file    a file in a directory   the directory's       read-only descriptors
======  ======================  ====================  ===================================

Without a seal, a process of the same user that means to can still write: it changes the file's
mode and opens the descriptor anew through ``/proc``. A bug will not, malice may. Read-only
descriptors are opened through ``/proc``, so without it a memfd is the only kind.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import Protocol

from nbshare.memory import budget, names
from nbshare.memory.descriptors import Descriptor, opened

__all__ = ["Kind", "MappedFile", "Memfd", "keeps_size"]

# From linux/fcntl.h: the module fcntl lacks the last one, and is not on every system.
F_ADD_SEALS, F_GET_SEALS = 1033, 1034
F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE = 0x0002, 0x0010

# Bytes allocated at once: a signal undoes the allocation under way, and a timer's signals would
# keep a large one from ever being done.
PIECE = 64 << 20


class Kind(Protocol):
    """How memory of a kind is made."""

    @property
    def setting(self) -> str:
        """What a user calls it."""

    @property
    def folder(self) -> str:
        """The directory whose room it takes; '' if none."""

    @property
    def can_be_huge(self) -> bool:
        """Whether its fresh pages may become huge ones."""

    def open(self) -> Descriptor:
        """Make an empty file."""

    def reserve(self, fd: int, nbytes: int) -> None:
        """Give it a size that nobody can take from it, so that no access to it can fail."""

    def protect(self, fd: int) -> None:
        """Let no other process write to it from now on."""


class _Equal:
    """Equal to what the same setting means: no dataclass, which takes 1 ms to define."""

    setting: str

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Equal) and other.setting == self.setting

    def __hash__(self) -> int:
        return hash(self.setting)


class Memfd(_Equal):
    """Anonymous memory: never has a name, and can be sealed."""

    setting = "memfd"
    folder = ""
    can_be_huge = True

    def open(self) -> Descriptor:  # noqa: D102
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return opened(os.memfd_create, names.new_name(), flags)

    def reserve(self, fd: int, nbytes: int) -> None:  # noqa: D102
        import fcntl  # late: not on every system

        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)

    def protect(self, fd: int) -> None:  # noqa: D102
        import fcntl

        with suppress(OSError):  # Linux before 5.1 has no such seal
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)


class MappedFile(_Equal):
    """A file without a name; its room is its own, and whoever may write may change its size."""

    can_be_huge = False  # the pages are there when the size has been reserved

    def __init__(self, folder: str, setting: str = "") -> None:
        self.folder = folder
        self.setting = setting or f"file:{folder}"

    def open(self) -> Descriptor:  # noqa: D102
        if not names.has_proc():
            raise OSError(errno.ENOTSUP, "needs /proc, which is not mounted here")
        names.sweep(self.folder)
        return names.opened_without_name(os.path.join(self.folder, names.new_name()))

    def reserve(self, fd: int, nbytes: int) -> None:  # noqa: D102
        if nbytes > budget.free_in(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            # Without it a full directory would kill whoever touches a page (SIGBUS).
            for start in range(0, nbytes, PIECE):
                os.posix_fallocate(fd, start, min(PIECE, nbytes - start))

    def protect(self, fd: int) -> None:  # noqa: D102
        with suppress(OSError):  # not every file system has modes
            os.fchmod(fd, 0o400)


def keeps_size(fd: int) -> bool:
    """Whether a descriptor means a segment, which nobody shrinks under those who read it."""
    try:
        import fcntl

        seals = fcntl.fcntl(fd, F_GET_SEALS)
    except (ImportError, OSError):
        seals = 0
    if seals & F_SEAL_SHRINK:
        return True
    # Other kinds cannot be sealed, but are known by their names.
    link = os.readlink(f"/proc/self/fd/{fd}")
    return not link.startswith("/memfd:") and names.is_ours(names.name_of(fd))
