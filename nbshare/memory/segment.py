"""A segment: memory that several processes map.

It is a file of one of the kinds in `nbshare.memory.kinds`, had by its descriptor. It has no name,
so nothing can be left behind: the kernel frees it when the last process that holds its descriptor
or a mapping ends, however it ends.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from nbshare.errors import OutOfMemoryError
from nbshare.memory import budget, copying
from nbshare.memory.descriptors import Descriptor, opened, owned, with_room
from nbshare.memory.huge import make_huge, on_boundaries
from nbshare.memory.kinds import Kind, has_proc, name_of, new_file, reserve

__all__ = ["Mode", "Segment", "View", "known_segments", "segment_of"]

# Without it, a mapping holds a duplicate of its descriptor.
_MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}
# CPython 3.11 and 3.12 tell its number nowhere else than at this byte of the object, on 64 bits.
_IS_KNOWN = sys.implementation.name == "cpython" and mmap.mmap.__basicsize__ == 80
_NUMBER_AT = 56 if _IS_KNOWN and not _MAP_OPTIONS else 0


Mode = Literal["r+", "r", "c"]


class View:
    """Arrays of a piece of memory, all of which hold its `root`.

    Parameters
    ----------
    memory : buffer
        A segment, or bytes.

    Attributes
    ----------
    root : ndarray
        All of it, as bytes. A weak reference to it tells when nobody sees the memory any more
        through this view.
    """

    def __init__(self, memory: Any) -> None:
        # frombuffer takes a buffer of a mapping, which ndarray(buffer=mmap) does not.
        self.root = np.frombuffer(memory, np.uint8)

    def array(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return a part as a plain ndarray; `offset` and `strides` in bytes."""
        if 0 in shape:
            offset = 0  # of a view without elements NumPy may set it beyond the memory
        return np.ndarray(shape, dtype, buffer=self.root, offset=offset, strides=strides)


class Segment(mmap.mmap):
    """Mapped shared memory that knows its descriptor.

    Every array in it holds a buffer of this object, so the mapping lives as long as any view, and
    any view leads back to its segment (`segment_of`). It is never unmapped by hand: closing a map
    under a live array is a segmentation fault.

    Attributes
    ----------
    fd : int
        The descriptor that it is mapped from; closed when the object is gone.
    nbytes : int
        Size in bytes, at least 1 page.
    address : int
        Where this process has it mapped.
    mode : {"r+", "r", "c"}
        As in `numpy.memmap`: writable, read-only, or copy-on-write (writes stay in this process).
    kind : Kind or None
        What it is made of; None if another process made it.
    is_sealed : bool
        Whether only this mapping can write, and no other process ever.
    n_borrowed : int
        Workers that have been sent the segment and have not confirmed that it is unmapped.
    was_kept_elsewhere : bool
        Whether some process kept a view of it longer than the call: it may not be used again.

    Notes
    -----
    Creating and attaching are safe from any thread. The end may come inside any allocation of any
    thread: it takes no lock, and runs no Python, which would swallow an interrupt.
    """

    fd: int
    nbytes: int
    address: int
    mode: Mode
    kind: Kind | None = None
    is_sealed = False
    n_borrowed = 0
    was_kept_elsewhere = False
    _file: Descriptor | None
    _name: str | None = None

    def __new__(cls, file: Descriptor, nbytes: int, mode: Mode) -> Self:  # noqa: D102
        protection = mmap.PROT_READ | (mmap.PROT_WRITE if mode != "r" else 0)
        flags = mmap.MAP_PRIVATE if mode == "c" else mmap.MAP_SHARED
        args = cls, file.fileno(), nbytes, flags, protection
        try:
            map_it = partial(super().__new__, *args, **_MAP_OPTIONS)
            self: Self = with_room(partial(on_boundaries, nbytes, map_it))
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise OutOfMemoryError(
                f"{budget.in_words(nbytes)} more cannot be mapped into this process; a limit of "
                "its address space (ulimit -v) may be in the way"
            ) from None
        self._file, self.fd = file, file.fileno()
        if _NUMBER_AT:  # of two descriptors the mapping's own is enough
            number = ctypes.c_int.from_address(id(self) + _NUMBER_AT).value
            if os.path.sameopenfile(number, self.fd):
                self._file, self.fd = None, number
        self.nbytes = nbytes
        self.mode = mode
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
        kind, file, size = new_file(nbytes)
        self = cls(file, size, "r+")
        self.kind = kind
        return self

    @classmethod
    def filled(
        cls,
        nbytes: int,
        parts: Iterable[tuple[int, Any]],
        *,
        sealed: bool = True,
    ) -> Self:
        """Memory holding `parts` (offset, buffer or array).

        If `sealed`, nobody else can ever write to it: the caller's own mapping stays writable,
        every later mapping and descriptor is read-only by the kernel's hand, as far as the kind of
        memory allows (`nbshare.memory.kinds`).
        """
        self = cls.create(nbytes)
        assert self.kind is not None
        # A file's pages were made with it.
        is_huge = not self.kind.folder and make_huge(View(self).root)
        self.refill(parts, are_fresh=not is_huge)
        if sealed:
            self.kind.protect(self.fd)
            self.is_sealed = True
        return self

    def refill(self, parts: Iterable[tuple[int, Any]], *, are_fresh: bool = False) -> None:
        """Write `parts` through this mapping: the only way once the segment is sealed.

        If the pages `are_fresh`, by write(2) where that is possible: it costs half of what page
        faults through a mapping do.
        """
        jobs: list[copying.Job] = []
        for offset, part in parts:
            is_strided = isinstance(part, np.ndarray) and not part.flags.c_contiguous
            if are_fresh and not is_strided:
                jobs += copying.write_jobs(self.fd, offset, part)
            else:
                source = part if is_strided else copying.as_bytes(part)
                jobs += copying.copy_jobs(self.array(source.dtype, source.shape, offset), source)
        copying.run(jobs)

    @classmethod
    def attach(cls, file: Descriptor | int, mode: Mode) -> Self:
        """Map a segment whose descriptor was opened or received; takes the descriptor over.

        Only of what nbshare has made, which nobody shrinks: reading past its end would kill this
        process (SIGBUS).

        Parameters
        ----------
        file : Descriptor or int
            Descriptor that allows what `mode` says.
        mode : {"r+", "r", "c"}
            As `Segment.mode`.
        """
        file = owned(file) if isinstance(file, int) else file
        return cls(file, os.fstat(file.fileno()).st_size, mode)

    def grown(self, needed: int, nbytes: int) -> Segment:
        """Make the file larger; returns a mapping of all of it, beside this one.

        Parameters
        ----------
        needed : int
            Bytes that will be used, by which it is decided whether there is room.
        nbytes : int
            The new size, `needed` or more.

        Raises
        ------
        OutOfMemoryError
            If there is no room.
        """
        assert self.kind is not None
        budget.check_room(needed - self.nbytes)
        size = budget.aligned(nbytes, mmap.PAGESIZE)
        reserve(self.kind, self.fd, size)
        larger = type(self)(opened(os.dup, self.fd), size, self.mode)
        larger.kind = self.kind
        return larger

    def array(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """View part of the segment as a plain ndarray; `offset` and `strides` in bytes."""
        return View(self).array(dtype, shape, offset, strides)

    def fileno(self) -> int:
        """Return `fd`, as files do."""
        return self.fd

    @property
    def name(self) -> str:
        """A random name, the same in every process."""
        if self._name is None:
            self._name = name_of(self.fd)
        known_segments[self._name] = self
        return self._name

    def read_only(self) -> Descriptor:
        """Open a descriptor through which the segment can only be read."""
        if has_proc():
            return opened(os.open, f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC)
        return opened(os.dup, self.fd)  # of a memfd: read-only by its seal, or by good will


# The segments of this process that have been asked for their name, by it.
known_segments: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()


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
