"""A segment: anonymous memory of the kernel's (a memfd) that several processes map.

It has no name, so nothing can be left behind: the kernel frees it when the last process that
holds its descriptor or a mapping ends, however it ends. Nor does the size of ``/dev/shm`` limit it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import sys
import weakref
from collections.abc import Iterable
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from nbshare.memory import copying
from nbshare.memory.budget import check_room

__all__ = ["ALIGNMENT", "Mode", "Segment", "known_segment", "segment_of"]

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load

# From linux/fcntl.h; the module fcntl has the first four only.
F_SEAL_FUTURE_WRITE = 0x0010

# Without it, a mapping holds a duplicate of its descriptor.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}


Mode = Literal["r+", "r", "c"]


class Segment(mmap.mmap):
    """Mapped shared memory that knows its descriptor.

    Every array in it holds a buffer of this object, so the mapping lives as long as any view, and
    any view leads back to its segment (`segment_of`). It is never unmapped by hand: closing a map
    under a live array is a segmentation fault.

    Attributes
    ----------
    fd : int
        Descriptor; closed with the object.
    nbytes : int
        Size in bytes, at least 1 page.
    address : int
        Where this process has it mapped.
    mode : {"r+", "r", "c"}
        As in `numpy.memmap`: writable, read-only, or copy-on-write (writes stay in this process).
    is_sealed : bool
        Whether only this mapping can write, and no other process ever.
    n_borrowed : int
        Workers that have been sent the segment and have not confirmed that it is unmapped.
    was_kept_elsewhere : bool
        Whether some process kept a view of it longer than the call: it may not be used again.

    Notes
    -----
    Creating and attaching are safe from any thread. `__del__` makes one system call and takes no
    lock, since it may run inside any allocation of any thread.
    """

    fd: int
    nbytes: int
    address: int
    mode: Mode
    is_sealed: bool
    n_borrowed: int
    was_kept_elsewhere: bool
    _name: str | None

    # Bound here because the module `os` may be gone when the last segment is, at exit.
    _close: ClassVar[Any] = staticmethod(os.close)

    def __new__(cls, fd: int, nbytes: int, mode: Mode) -> Self:  # noqa: D102
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if mode != "r" else 0)
        flags = mmap.MAP_PRIVATE if mode == "c" else mmap.MAP_SHARED
        self = super().__new__(cls, fd, nbytes, flags, protection, **_MAP_OPTIONS)
        self.fd = fd
        self.nbytes = nbytes
        self.mode = mode
        self.is_sealed = False
        self.n_borrowed = 0
        self.was_kept_elsewhere = False
        self._name = None
        self.address = np.frombuffer(self, np.uint8).__array_interface__["data"][0]
        return self

    @classmethod
    def create(cls, nbytes: int) -> Self:
        """Fresh, zeroed, writable memory; pages come into being when first touched.

        Raises
        ------
        OutOfMemoryError
            If the machine or its container has not that much left.
        """
        fd, size = _new_memfd(nbytes)
        return cls._adopt(fd, size, "r+")

    @classmethod
    def filled(cls, nbytes: int, parts: Iterable[tuple[int, Any]], *, sealed: bool = True) -> Self:
        """Memory holding `parts` (offset, buffer or array).

        If `sealed`, nobody else can ever write to it: the caller's own mapping stays writable,
        every later mapping and descriptor is read-only by the kernel's hand
        (``F_SEAL_FUTURE_WRITE``).
        """
        fd, size = _new_memfd(nbytes)
        parts = list(parts)
        try:
            # write(2) into fresh pages costs half of what page faults through a mapping do.
            plain = [part for part in parts if not _is_strided(part[1])]
            copying.run([job for part in plain for job in copying.write_jobs(fd, *part)])
        except BaseException:
            os.close(fd)
            raise
        self = cls._adopt(fd, size, "r+")
        self.refill(part for part in parts if _is_strided(part[1]))
        if sealed:
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
            self.is_sealed = True
        return self

    def refill(self, parts: Iterable[tuple[int, Any]]) -> None:
        """Write `parts` through this mapping: the only way once the segment is sealed."""
        jobs: list[copying.Job] = []
        for offset, part in parts:
            source = part if _is_strided(part) else copying.as_bytes(part)
            jobs += copying.copy_jobs(self.array(source.dtype, source.shape, offset), source)
        copying.run(jobs)

    @classmethod
    def attach(cls, fd: int, mode: Mode) -> Self:
        """Map a segment whose descriptor was received; takes the descriptor over.

        Raises
        ------
        ValueError
            If its owner could shrink it: reading past the end would kill this process (SIGBUS).
        """
        try:
            if not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
                raise ValueError(f"descriptor {fd} is not sealed against shrinking")
            size = os.fstat(fd).st_size
        except BaseException:
            os.close(fd)
            raise
        return cls._adopt(fd, size, mode)

    @classmethod
    def _adopt(cls, fd: int, nbytes: int, mode: Mode) -> Self:
        try:
            return cls(fd, nbytes, mode)
        except BaseException:
            os.close(fd)
            raise

    def array(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """View part of the segment as a plain ndarray; `offset` and `strides` in bytes."""
        # frombuffer takes a buffer of the mapping, which ndarray(buffer=mmap) does not.
        flat = np.frombuffer(self, np.uint8)
        return np.ndarray(shape, dtype, buffer=flat, offset=offset, strides=strides)

    @property
    def name(self) -> str:
        """A random name, the same in every process."""
        if self._name is None:
            link = os.readlink(f"/proc/self/fd/{self.fd}")
            self._name = link.removeprefix("/memfd:").removesuffix(" (deleted)")
            _known[self._name] = self
        return self._name

    def read_only_fd(self) -> int:
        """Open a descriptor through which the segment can only be read; the caller closes it."""
        return os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        fd, self.fd = getattr(self, "fd", -1), -1
        if fd >= 0:
            self._close(fd)


# The segments of this process that have been asked for their name, by it.
_known: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()


def known_segment(name: str) -> Segment | None:
    """Return the mapping that this process has of a segment that travels by handle."""
    return _known.get(name)


def segment_of(array: npt.NDArray[Any]) -> tuple[Segment, int] | None:
    """Find the segment that an array lies in, and the offset of its first element in bytes.

    Follows the chain of bases, so any view of any class is recognised. None for other arrays.
    """
    base: Any = array
    while not isinstance(base, Segment):
        if base is None:
            return None
        # Not ndarrays alone: stride tricks put an object of their own in between.
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base, array.__array_interface__["data"][0] - base.address


def _new_memfd(nbytes: int) -> tuple[int, int]:
    """Return descriptor and size (whole pages, at least one) of a memfd that keeps its size."""
    size = max(-(-nbytes // mmap.PAGESIZE), 1) * mmap.PAGESIZE
    check_room(size)
    # The name is seen in /proc only; random, it proves that a descriptor means this segment.
    fd = os.memfd_create(f"nbshare-{os.urandom(8).hex()}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    except BaseException:
        os.close(fd)
        raise
    return fd, size


def _is_strided(part: Any) -> bool:
    return isinstance(part, np.ndarray) and not part.flags.c_contiguous
