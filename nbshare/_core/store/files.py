"""Reads and writes the files of checkpoints. `disk.system` makes all calls that change a disk.

`opened` opens files for reading, and raises if one is not a plain file of this user. All contents
have checksums: JSON files include one, and the index word of a row has one.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from nbshare._core.memory import aligned, disk
from nbshare._core.memory.disk import write_all
from nbshare._core.system import Descriptor, owned
from nbshare._core.system import files as system_files
from nbshare.errors import CheckpointError

HEADER_BYTES = 256  # minimum size of a .npy header. Fixed, so that it can be rewritten in place
HERE = secrets.token_hex(4)  # a process of another machine may have the same id
STALE_S = 0.0, 0.1, 0.4, 1.0  # pauses before a replaced file is read again
UNSUPPORTED = {errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV}
AGAIN = "Make the same call again, which repairs it."  # the same call repairs most damage

T = TypeVar("T")


def write(path: Path, data: Any) -> Descriptor:
    """Write a new file, and return it open. An existing file is overwritten."""
    file = disk.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    write_all(file.fileno(), data, 0)
    return file


def replace(path: Path, data: Any, *, is_needed: bool = True) -> None:
    """Write a file atomically. If `is_needed`, it also survives a power failure."""
    new = path.with_name(f".{path.name}.{HERE}.{os.getpid()}")
    file = write(new, data)
    if is_needed:
        disk.system.sync(file.fileno())
    file.close()
    try:
        disk.system.rename(new, path)
    except IsADirectoryError:
        disk.check_own(path, os.lstat(path))
        raise
    if is_needed:
        sync(path.parent)


def replace_json(path: Path, content: dict[str, Any], *, is_needed: bool = True) -> None:
    """Write a JSON file atomically, as `replace` does."""
    replace(path, json.dumps(sealed(content), indent=1).encode(), is_needed=is_needed)


@contextmanager
def tolerated(*numbers: int) -> Iterator[None]:
    """Ignore system errors with these numbers."""
    try:
        yield
    except OSError as error:
        if error.errno not in numbers:
            raise


def sync(path: Path) -> None:
    """Flush a file (if it exists), or the names in a folder, to the disk."""
    if not system_files.CAN_SYNC_FOLDERS and path.is_dir():
        return
    with tolerated(errno.ENOENT, *UNSUPPORTED):  # some file systems cannot sync folders
        file = owned(system_files.open_safely(path, system_files.TO_SYNC))
        disk.system.sync(file.fileno())


def remove(path: Path) -> None:
    """Remove a file, if it exists.

    Raises
    ------
    CheckpointError
        If the system does not allow the file to be removed, for example because it is open on
        Windows.
    """
    try:
        with suppress(FileNotFoundError):
            system_files.remove(path)
    except PermissionError as error:
        raise CheckpointError(
            f"{path} cannot be removed ({error.strerror}). Windows does not remove open files, "
            "such as those of numpy.load(..., mmap_mode=). Close the file, or use another path."
        ) from None


# ------------------------------------------------------------------------------------- reading


def opened(path: Path) -> Descriptor | None:
    """Open a file of a checkpoint for reading. Return None if it does not exist.

    Raises
    ------
    CheckpointError
        If `path` is not a plain file of this user.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        return read_current(lambda path: disk.open_own(path, os.O_RDONLY), path)
    return None


def read_current(read: Callable[[Path], T], path: Path) -> T:
    """Return ``read(path)`` for a file or folder that other processes replace.

    On ESTALE, retry a few times, because a network file system may refer to the previous file for
    up to a second.
    """
    for pause_s in STALE_S:
        try:
            return read(path)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        time.sleep(pause_s)
    return read(path)


def read(path: Path) -> bytes | None:
    """Return the contents of a file, or None if it does not exist."""
    if (file := opened(path)) is None:
        return None
    with open(file.fileno(), "rb", closefd=False) as reader:
        return reader.read()


def damaged(path: Path, why: str, remedy: str = AGAIN) -> CheckpointError:
    """Return the error for a damaged file.

    Without a remedy, it advises to restore the checkpoint.
    """
    remedy = remedy or (
        f"Restore the checkpoint from a copy, or remove {path.parent} to compute its contents "
        "again."
    )
    return CheckpointError(f"{path} is damaged: {why}. {remedy}")


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a JSON file or line, with its checksum."""
    return content | {"crc32": zlib.crc32(json.dumps(content).encode())}


def parsed(data: bytes) -> dict[str, Any]:
    """Return the JSON object in a text. Raise ValueError if there is none."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError(str(error)) from None
    if not isinstance(content, dict):
        raise ValueError("it is not a JSON object")  # noqa: TRY004 - as other damage
    return content


def unsealed(data: bytes) -> dict[str, Any]:
    """Return the content that `sealed` was given. Raise ValueError if its JSON text was changed."""
    content = parsed(data)
    found = content.pop("crc32", None)
    if sealed(content)["crc32"] != found:
        raise ValueError("its checksum differs")
    return content


def read_json(path: Path, instead: Any = CheckpointError) -> Any:
    """Return the contents of a JSON file, or None if it does not exist.

    Parameters
    ----------
    path : Path
        The file.
    instead : object, optional
        The object to return if the file is damaged. By default, damage is an error. Use it for
        files that a power failure may truncate.
    """
    data = read(path)
    try:
        return None if data is None else unsealed(data)
    except ValueError as error:
        if instead is CheckpointError:
            raise damaged(path, str(error), "") from None
        return instead


def check_folder(path: Path, *, is_given: bool = False) -> None:
    """Raise CheckpointError if a path is not a folder, or belongs to another user.

    If `is_given`, the path is the user's, and may be a link of the user.
    """
    with suppress(FileNotFoundError, NotADirectoryError):
        status = os.lstat(path)
        if is_given and stat.S_ISLNK(status.st_mode):
            disk.check_own(path, status, stat.S_IFLNK)
            status = os.stat(path)
        disk.check_own(path, status, stat.S_IFDIR)


def size_of(path: Path) -> int:
    """Return the size of a file in bytes, 0 if it does not exist."""
    with suppress(OSError):
        return path.stat().st_size
    return 0


def append(path: Path, record: dict[str, Any]) -> None:
    """Append a line of JSON to a file."""
    file = disk.open_own(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    # A newline comes first, because a crash may have cut off the previous line.
    write_all(file.fileno(), b"\n" + json.dumps(sealed(record)).encode(), size_of(path))
    file.close()


def mapped(
    file: Descriptor,
    dtype: npt.DTypeLike = np.uint8,
    mode: Any = "r",
    start: int = 0,
    shape: tuple[int, ...] | None = None,
) -> npt.NDArray[Any]:
    """Map a file, or a part of it, as an array, with parameters like those of `numpy.memmap`."""
    with open(file.fileno(), "rb", closefd=False) as reader:
        return np.asarray(np.memmap(reader, dtype, mode, start, shape))


class Table(NamedTuple):
    """A ``.npy`` file that can be read while its rows are written."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]  # shape of one row
    remedy: str = AGAIN  # advice if the file is damaged

    @property
    def row_nbytes(self) -> int:
        """Size of a row, in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def start(self) -> int:
        """Offset of the first row, in bytes."""
        return max(HEADER_BYTES, aligned(len(self._text(10**18)) + 11))

    def _text(self, n: int) -> bytes:
        shape = (n, *self.shape)
        descr = npy.dtype_to_descr(self.dtype)
        return repr({"descr": descr, "fortran_order": False, "shape": shape}).encode("latin1")

    def header(self, n: int) -> bytes:
        """Return the first bytes of a file with `n` rows."""
        size = self.start - 10
        text = self._text(n).ljust(size - 1) + b"\n"
        return npy.magic(1, 0) + size.to_bytes(2, "little") + text

    def load(self, mode: str = "r") -> npt.NDArray[Any]:
        """Map the rows that exist. The array is empty if nothing was written yet.

        Raises
        ------
        CheckpointError
            If the header of the file is not that of this table.
        """
        nothing, file = np.zeros((0, *self.shape), self.dtype), opened(self.path)
        if file is None or not any(header := system_files.read_at(file.fileno(), self.start, 0)):
            return nothing
        told = re.search(rb"'shape': \((\d{1,18}),", header)
        n = int(told[1]) if told else 0
        if header != self.header(n):
            form = f"rows of {self.dtype} and shape {self.shape}"
            raise damaged(self.path, f"its header is not that of {form}", self.remedy)
        if self.row_nbytes:  # a crash may have truncated the file
            n = min(n, (os.fstat(file.fileno()).st_size - self.start) // self.row_nbytes)
        if not n * self.row_nbytes:
            return np.zeros((n, *self.shape), self.dtype)
        return mapped(file, self.dtype, mode, self.start, (n, *self.shape))


class TableWriter:
    """A table, open for writing.

    Parameters
    ----------
    table : Table
        The file, which is created if it does not exist.
    n : int or None
        Number of rows, or None to keep the existing ones. New rows are zero.
    is_sparse : bool
        Whether rows take space on the disk only when they are written.

    Attributes
    ----------
    n : int
        Number of rows.
    """

    def __init__(self, table: Table, n: int | None, *, is_sparse: bool) -> None:
        self.table, self._is_sparse = table, is_sparse
        # Also if the size stays the same: it writes the header, so that others can read the rows.
        self.resize(len(table.load()) if n is None else n)

    def resize(self, n: int) -> None:
        """Resize to `n` rows. New rows are zero."""
        file = disk.open_own(self.table.path, os.O_RDWR | os.O_CREAT)
        start = os.fstat(file.fileno()).st_size
        stop = self.table.start + n * self.table.row_nbytes
        disk.system.truncate(file.fileno(), stop)
        if stop > start and not self._is_sparse:
            # Detect now whether the disk is too small. Otherwise, writing does. Only the new part
            # is allocated, because the C library may write to each of its blocks.
            with tolerated(*UNSUPPORTED):
                disk.system.allocate(file.fileno(), start, stop)
        write_all(file.fileno(), self.table.header(n), 0)  # one block of a disk, in one piece
        self.n = n

    def write(self, start: int, values: npt.NDArray[Any]) -> None:
        """Write rows from `start` on."""
        table = self.table
        data = np.ascontiguousarray(values, table.dtype).reshape(-1)
        file = disk.open_own(table.path, os.O_RDWR)
        write_all(file.fileno(), data.view(np.uint8), table.start + start * table.row_nbytes)
