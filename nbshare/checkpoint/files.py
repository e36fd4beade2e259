"""Files as a checkpoint uses them: all calls that change a disk go through `disk.system`."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from nbshare.memory import aligned, disk
from nbshare.memory.descriptors import owned
from nbshare.memory.disk import write_all

HEADER_BYTES = 256  # of a .npy file, or more: fixed, so that it is rewritten in place when it grows
HERE = secrets.token_hex(4)  # on another machine a process may have the same number
STALE_S = 0.0, 0.1, 0.4, 1.0  # pauses before a replaced file is read again
UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV}

T = TypeVar("T")


def replace(path: Path, data: Any, *, is_needed: bool = True) -> None:
    """Put a file in place, whole or not at all; one that `is_needed` also if the power fails."""
    new = path.with_name(f".{path.name}.{HERE}.{os.getpid()}")
    file = owned(disk.system.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC))
    write_all(file.fileno(), data, 0)
    if is_needed:
        disk.system.sync(file.fileno())
    file.close()
    disk.system.rename(new, path)
    if is_needed:
        sync(path.parent)


def replace_json(path: Path, content: Any, *, is_needed: bool = True) -> None:
    """Put a file of JSON in place, as `replace` does."""
    replace(path, json.dumps(content, indent=1).encode(), is_needed=is_needed)


@contextmanager
def tolerated(*numbers: int) -> Iterator[None]:
    """Ignore the errors of the system with these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def sync(path: Path) -> None:
    """Wait until the disk has a file, if it is there; or the names in a folder."""
    with tolerated(errno.ENOENT, *UNSUPPORTED):  # some file systems sync no folders
        file = owned(os.open(path, os.O_RDONLY))
        disk.system.sync(file.fileno())


def read_current(read: Callable[[Path], T], path: Path) -> T:
    """Return what `read` finds in a file, which others replace.

    A client of a network file system that knows only the file before gets ESTALE, for a second.
    """
    for pause_s in STALE_S:
        try:
            return read(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        time.sleep(pause_s)
    return read(path)


def read_json(path: Path) -> Any:
    """Return what a file holds; None if it is not there or not whole."""
    try:
        return json.loads(read_current(Path.read_text, path))
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None


def size_of(path: Path) -> int:
    """Return the size of a file in bytes; 0 if it is not there."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line of JSON."""
    file = owned(disk.system.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
    # First the end of the line before, which a crash may have cut.
    write_all(file.fileno(), b"\n" + json.dumps(record).encode(), size_of(path))
    file.close()


class Column:
    """A ``.npy`` file with a value for each row, that can be read while it is written.

    Parameters
    ----------
    path : Path
        The file; made if it is not there.
    dtype : dtype
        Shape of a value.
    shape : tuple of int
        Of the value of one row.
    n : int or None
        Number of rows to have, of which new ones are zero; None: those that are there.
    is_sparse : bool
        Whether rows get space on the disk only when they are written.

    Attributes
    ----------
    start : int
        Offset of the first row, in bytes.
    n : int
        Number of rows.
    """

    def __init__(
        self, path: Path, dtype: Any, shape: tuple[int, ...], n: int | None, *, is_sparse: bool
    ) -> None:
        self.path, self.dtype, self.shape = path, np.dtype(dtype), shape
        self._is_sparse = is_sparse
        self._row_nbytes: int = math.prod(shape) * self.dtype.itemsize
        self.start = max(HEADER_BYTES, aligned(len(self._text(10**18)) + 11))
        if n is None:
            found = header_of(path)
            n = min(found[0], (size_of(path) - self.start) // self._row_nbytes) if found else 0
        self.resize(n)  # so that others can read the rows that are there

    def _end(self, n: int) -> int:
        return self.start + n * self._row_nbytes

    def _text(self, n: int) -> bytes:
        shape = (n, *self.shape)
        descr = npy.dtype_to_descr(self.dtype)
        return repr({"descr": descr, "fortran_order": False, "shape": shape}).encode("latin1")

    def resize(self, n: int) -> None:
        """Have `n` rows; new ones are zero."""
        file = owned(disk.system.open(self.path, os.O_RDWR | os.O_CREAT))
        start, stop = size_of(self.path), self._end(n)
        disk.system.truncate(file.fileno(), stop)
        if stop > start and not self._is_sparse:
            # Find now if the disk is too small; where it cannot allocate, writing finds it. Only a
            # new part: the C library may write to each block of it.
            with tolerated(*UNSUPPORTED):
                disk.system.allocate(file.fileno(), start, stop)
        size = self.start - 10
        text = self._text(n).ljust(size - 1) + b"\n"
        # One block of a disk, in one piece.
        write_all(file.fileno(), npy.magic(1, 0) + size.to_bytes(2, "little") + text, 0)
        self.n = n

    def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Write rows from `start` on."""
        data = np.ascontiguousarray(values, self.dtype).reshape(-1)
        file = owned(disk.system.open(self.path, os.O_RDWR))
        write_all(file.fileno(), data.view(np.uint8), self._end(start))


def header_of(path: Path) -> tuple[int, np.dtype[Any], tuple[int, ...]] | None:
    """Return how many rows a file says that it has, their dtype and shape; None if it is none."""
    try:
        with open(path, "rb") as file:
            npy.read_magic(file)
            shape, _, dtype = npy.read_array_header_1_0(file)
    except (FileNotFoundError, ValueError):
        return None
    return shape[0], dtype, shape[1:]
