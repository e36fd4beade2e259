"""Files of the user that `numpy.memmap` maps. Workers map them, too, so nothing is copied.

A file may be larger than the memory. Workers see later changes, too, even those through a mapping
and before a flush, because all mappings share the page cache. A file that the user has mapped for
writing is shared on purpose, so workers may write to it wherever they may write to a SharedArray.
"""

from __future__ import annotations

import mmap
import os
import weakref
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from nbshare._core.memory.segment import Mode, View, base_of
from nbshare._core.system import sections
from nbshare.errors import StaleReferenceError

# Bytes of an array that is only read. Copying a smaller one is faster than finding its mapping.
LEAST = 1 << 20


class UserFile(NamedTuple):
    """The part of a file that the sender has mapped."""

    path: str
    identity: tuple[int, int]  # inode and device
    nbytes: int

    def mapped(self, *, is_shared: bool) -> np.memmap[Any, Any]:
        """Map the file, once for all arrays that write to it and once for all others.

        Raises
        ------
        StaleReferenceError
            If the file was removed, truncated or replaced.
        """
        key = self, is_shared
        if (memory := _mapped.get(key)) is not None:
            return memory
        try:
            with open(self.path, "r+b" if is_shared else "rb") as file:
                status = os.fstat(file.fileno())
                if status[1:3] != self.identity:
                    raise ValueError("another file has its name now")
                # Reading past the end of a file kills a process (SIGBUS).
                if status.st_size < self.nbytes:
                    raise ValueError("the file has become smaller")
                memory = _memmap(file.fileno(), self.nbytes, "r+" if is_shared else "c")
                memory.filename, memory.offset = self.path, 0  # `numpy.memmap` sets them so
                start = memory.__array_interface__["data"][0]
                _found[memory.base] = self, start  # the system knows no file for a private mapping
                return _mapped.setdefault(key, memory)
        except (OSError, ValueError) as error:
            raise StaleReferenceError(
                f"the memory-mapped file {self.path!r} cannot be mapped again: {error}. Keep it "
                "unchanged until the results have arrived, or send a copy: numpy.array(x)."
            ) from None


class FileView(View):
    """Gives access to a file of the user as arrays.

    Parameters
    ----------
    file : UserFile
        The file.
    is_shared : bool
        Whether writes go to the file. If not, writes stay in this process.
    """

    def __init__(self, file: UserFile, *, is_shared: bool) -> None:
        super().__init__(file.mapped(is_shared=is_shared))
        self._file = file
        self.is_private = not is_shared and self.root.flags.writeable

    def again(self) -> View:
        """Return a view of another mapping of the file, without this process's writes."""
        _mapped.pop((self._file, False), None)
        return FileView(self._file, is_shared=False)


def _memmap(fd: int, nbytes: int, mode: Mode) -> np.memmap[Any, Any]:
    args, options = sections.mapping(fd, nbytes, mode)
    try:
        memory = mmap.mmap(*args, **options)
    except OSError:  # the system counts the whole mapping as promised memory
        if mode != "c":
            raise
        return _memmap(fd, nbytes, "r")
    array = np.ndarray.__new__(np.memmap, (nbytes,), np.uint8, memory)
    array.mode = mode
    return array


# Each mapping is kept while an array uses it, so that thousands of views of one file share it.
_mapped = weakref.WeakValueDictionary[tuple[UserFile, bool], np.memmap[Any, Any]]()

# The file of each mapping, and the address where the file's first byte would be, because finding
# them takes some tenths of a millisecond. While a mapping exists, its file's inode is not reused.
_found: weakref.WeakKeyDictionary[Any, tuple[UserFile, int]] = weakref.WeakKeyDictionary()


def file_of(array: np.ndarray[Any, Any]) -> tuple[UserFile, int] | None:
    """Return the file that holds an array, and the offset of its first element in bytes.

    This is only for a `numpy.memmap` and its views, if they are large or writable. Return None for
    other arrays, and if other processes would find other values at the file's path, because the
    file was deleted or replaced, or because the mapping is copy-on-write.
    """
    view: Any = array
    while view is not None and not isinstance(base := base_of(view), mmap.mmap):
        view = base
    if not isinstance(view, np.memmap):
        return None
    if array.nbytes >= LEAST or (array.flags.writeable and array.nbytes):
        with suppress(OSError):
            file, start = _found.get(base) or _found.setdefault(base, _find(view, base))
            is_private = view.mode == "c"  # and writable arrays may have been changed here
            is_there = sections.file_at(file.path) == file.identity
            if is_there and not (is_private and array.flags.writeable):
                return file, array.__array_interface__["data"][0] - start
    return None


def _find(memmap: np.memmap[Any, Any], mapping: Any) -> tuple[UserFile, int]:
    # Ask the system, because the memmap's path may by now lead to another file.
    address = np.frombuffer(mapping, np.uint8).__array_interface__["data"][0]
    path, identity, start = sections.mapped_file(address, memmap)
    return UserFile(path, identity, address + len(mapping) - start), start
