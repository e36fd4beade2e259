"""Memory that processes share, its mapping, and unnamed files."""

from __future__ import annotations

import mmap
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from nbshare._core.interrupts import uninterrupted
from nbshare._core.system.descriptors import Descriptor, opened
from nbshare._core.system.posix.processes import Identity

# Without it, as before Python 3.13, a mapping holds a duplicate of its descriptor.
MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

# Private memory, which is not shared with forked processes, so it may have huge pages.
PRIVATE: dict[str, Any] = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS}

_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"  # names (the process number is for `sweep`)


def mapping(fd: int, nbytes: int, mode: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `mmap.mmap` that map memory, with the `mode` of `numpy.memmap`."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if mode != "r" else 0)
    flags = mmap.MAP_PRIVATE if mode == "c" else mmap.MAP_SHARED
    return (fd, nbytes, flags, protection), MAP_OPTIONS


def file_at(path: str) -> tuple[int, int]:
    """Return the inode and the device of the file that a path leads to."""
    return os.stat(path)[1:3]


def new_name() -> str:
    """Return a random name."""
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


def unnamed_file(folder: str, has_ended: Callable[[Identity], bool | None]) -> Descriptor:
    """Make an empty file in a directory, which loses its name at once."""
    sweep(folder, has_ended)
    path = os.path.join(folder, new_name())
    with uninterrupted():
        file = opened(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(FileNotFoundError):  # swept by another process
            os.unlink(path)
    return file


@cache
def sweep(folder: str, has_ended: Callable[[Identity], bool | None]) -> None:
    """Remove files of processes that were killed before they could do it.

    Once per process and folder. Another process number space (a container's, another machine's) may
    share the folder. At worst, a name is removed that was about to be.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = re.fullmatch(_OURS, entry.name)
            if found and has_ended((int(found[1], 16), 0)):
                with suppress(OSError):  # another process sweeps too, or the file is another user's
                    os.unlink(entry.path)
