"""Files as a checkpoint uses them: all calls that change a disk go through `system`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from nbshare.memory import aligned

__all__ = ["Column", "System", "append", "replace", "system", "write_all"]

HEADER_BYTES = 256  # of a .npy file, or more: fixed, so that it is written anew when it grows
MOST = 1 << 30  # bytes at a time: the system writes 2 GiB at most
NO_ALLOCATION = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV}


class System:
    """The calls that change a disk; tests put another one in its place."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file, new or not."""
        return os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        """Write at an offset; may write less than all."""
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, nbytes: int) -> None:
        """Have room for a file of so many bytes: writing to it needs no more."""
        os.posix_fallocate(fd, 0, nbytes)

    def truncate(self, fd: int, nbytes: int) -> None:
        """Set the size of a file."""
        os.ftruncate(fd, nbytes)

    def sync(self, fd: int) -> None:
        """Wait until the disk has a file."""
        os.fdatasync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Put a file in the place of another."""
        os.replace(source, target)


system = System()


def write_all(fd: int, data: Any, offset: int) -> None:
    """Write all of some bytes.

    Raises
    ------
    OSError
        If there is no room, or the disk fails.
    """
    left = memoryview(data).cast("B")
    while left:
        n = system.pwrite(fd, left[:MOST], offset)
        if n <= 0:
            raise OSError(errno.EIO, "the system wrote nothing")
        left, offset = left[n:], offset + n


def allocate(fd: int, nbytes: int) -> None:
    """Have room for so many bytes of a file, which are zero where it had fewer."""
    try:
        system.allocate(fd, nbytes)
    except OSError as error:
        if error.errno not in NO_ALLOCATION:
            raise
        if os.fstat(fd).st_size < nbytes:  # a file system without it: writing may say it is full
            system.truncate(fd, nbytes)


def replace(path: Path, data: bytes) -> None:
    """Put a file in place, whole or not at all, also if the power fails."""
    new = path.with_name(f".{path.name}.{os.getpid()}")
    fd = system.open(new, os.O_WRONLY | os.O_TRUNC)
    try:
        write_all(fd, data, 0)
        system.sync(fd)
    finally:
        os.close(fd)
    system.rename(new, path)
    sync_folder(path.parent)


def sync_folder(path: Path) -> None:
    """Wait until the disk has the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        system.sync(fd)
    except OSError as error:
        if error.errno not in NO_ALLOCATION:  # some file systems sync no folders
            raise
    finally:
        os.close(fd)


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line of JSON."""
    fd = system.open(path, os.O_RDWR)
    try:
        end = os.fstat(fd).st_size
        # A line that a crash has cut is ended.
        cut = b"\n" if end and os.pread(fd, 1, end - 1) != b"\n" else b""
        write_all(fd, cut + json.dumps(record).encode() + b"\n", end)
    finally:
        os.close(fd)


class Column:
    """A ``.npy`` file with a value for each row, that can be read while it is written.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    dtype : dtype
        Of a value.
    shape : tuple of int
        Of the value of one row.

    Attributes
    ----------
    n : int
        Number of rows.
    was_whole : bool
        Whether the file was as its header says.
    """

    def __init__(self, path: Path, dtype: npt.DTypeLike, shape: tuple[int, ...] = ()) -> None:
        self.path, self.dtype, self.shape = path, np.dtype(dtype), shape
        self.row_nbytes = int(np.prod(shape, dtype=np.int64)) * self.dtype.itemsize
        self._start = max(HEADER_BYTES, aligned(len(self._text(10**18)) + 11))
        self.fd = system.open(path, os.O_RDWR)
        found = os.pread(self.fd, self._start, 0)
        self.n = self._n_in(found)
        size = os.fstat(self.fd).st_size
        self.was_whole = size == 0 or (self.n > 0 and size >= self._end(self.n))
        if not self.was_whole:
            n, self.n = self.n, 0
            self.grow(n)

    def _end(self, n: int) -> int:
        return self._start + n * self.row_nbytes

    def _text(self, n: int) -> bytes:
        shape = (n, *self.shape)
        descr = npy.dtype_to_descr(self.dtype)
        return repr({"descr": descr, "fortran_order": False, "shape": shape}).encode("latin1")

    def _header(self, n: int) -> bytes:
        size = self._start - 10
        return npy.magic(1, 0) + size.to_bytes(2, "little") + self._text(n).ljust(size - 1) + b"\n"

    def _n_in(self, header: bytes) -> int:
        """Return the number of rows in a header of this column; 0 if it is none."""
        before, _, rest = self._header(0).rstrip().rpartition(b"(0,")
        if not header.startswith(before + b"("):
            return 0
        n, _, after = header[len(before) + 1 :].partition(b",")
        is_ours = n.isdigit() and after.rstrip() == rest
        return int(n) if is_ours else 0

    def grow(self, n: int) -> None:
        """Have `n` rows at least; new ones are zero."""
        if n > self.n:
            allocate(self.fd, self._end(n))
            write_all(self.fd, self._header(n), 0)  # one block of a disk, in one piece
            self.n = n

    def shrink(self, n: int) -> None:
        """Have only the first `n` rows."""
        if n < self.n:
            write_all(self.fd, self._header(n), 0)
            self.n = n
            system.truncate(self.fd, self._end(n))

    def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Write rows from `start` on."""
        data = np.ascontiguousarray(values, self.dtype).reshape(-1)
        write_all(self.fd, data.view(np.uint8), self._end(start))

    def read(self) -> npt.NDArray[Any]:
        """Return all rows, mapped; read-only."""
        shape = (self.n, *self.shape)
        if not self.n or not self.row_nbytes:
            return np.zeros(shape, self.dtype)
        return np.memmap(self.path, self.dtype, "r", self._start, shape)

    def sync(self) -> None:
        """Wait until the disk has it."""
        system.sync(self.fd)

    def close(self) -> None:
        """Close the file."""
        os.close(self.fd)
