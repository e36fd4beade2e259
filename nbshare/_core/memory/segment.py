"""Segments: memory that several processes map.

A segment is a file of one of the kinds in `memory.kinds`, held by its descriptor. The file has no
name, so none can be left behind. The kernel frees it when the last process that holds a descriptor
or a mapping of it ends, even if that process is killed. Private memory has no file, and only this
process maps it.
"""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Iterable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import budget, copying
from nbshare._core.memory.kinds import (
    MemoryKind,
    Private,
    grow,
    new_memory,
)
from nbshare._core.system import Descriptor, processes, sections, shell, with_room
from nbshare.errors import OutOfMemoryError

HUGE = 4 << 20  # bytes (NumPy requests huge pages from the same size on)

Mode = Literal["r+", "r", "c"]


class View:
    """Gives access to a piece of memory as arrays. All of these arrays hold its `root`.

    Parameters
    ----------
    memory : buffer
        A segment, a part of one, or bytes.
    is_read_only : bool, default False
        Whether the arrays are read-only, as in a segment of mode "r".

    Attributes
    ----------
    root : ndarray
        The whole memory, as bytes. A weak reference to `root` expires when the last array that uses
        the memory is gone.
    """

    def __init__(self, memory: Any, *, is_read_only: bool = False) -> None:
        if isinstance(memory, Segment):
            is_read_only |= memory.mode == "r"  # the kernel does not protect private memory
            lent = memory.loan() if memory.loan is not None else None
            memory = memory if lent is None else lent
        if is_read_only:
            memory = memoryview(memory).toreadonly()
        # frombuffer accepts a mapping's buffer, unlike ndarray(buffer=mmap).
        self.root = np.frombuffer(memory, np.uint8)
        self._unwritten: tuple[int, int, int] | None = None

    @cached_property
    def is_private(self) -> bool:
        """Whether writes stay in this process, so that arrays may be writable."""
        found = segment_of(self.root)
        return found is not None and found[0].mode == "c"

    def array(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
        *,
        is_read_only: bool = False,
    ) -> npt.NDArray[Any]:
        """Return a plain ndarray in the memory, with `offset` and `strides` in bytes.

        A read-only array cannot be made writable, although compiled code may write to its memory.
        """
        if 0 in shape:
            offset = 0  # for an empty view, NumPy may set it beyond the memory
        root = self._read_only_root if is_read_only else self.root
        return np.ndarray(shape, dtype, buffer=root, offset=offset, strides=strides)

    @cached_property
    def _read_only_root(self) -> npt.NDArray[np.uint8]:
        return np.frombuffer(self.root.data.toreadonly(), np.uint8)

    def part(self, offset: int, nbytes: int) -> View:
        """Return a view of a part of the memory, whose offsets count from its beginning."""
        part = View.__new__(View)
        part.root = self.root[offset : offset + nbytes]
        part.is_private, part._unwritten = self.is_private, None
        return part

    def is_written(self, offset: int, nbytes: int) -> bool:
        """Return whether this process may have written to a part of a private view."""
        if not self.is_private:
            return False
        # Each written page has caused a page fault, so without faults nothing was written.
        part = offset, nbytes, processes.n_faults()
        if part == self._unwritten:
            return False
        address: int = self.root.__array_interface__["data"][0]
        is_written = sections.is_written(address + offset, nbytes)
        self._unwritten = None if is_written else part
        return is_written

    def again(self) -> View:
        """Return another private view of the same memory, without this process's writes."""
        found = segment_of(self.root)
        assert found is not None
        segment, start = found
        other = segment.again("c")
        other.was_sent = segment.was_sent
        return View(other).part(start, self.root.nbytes)


class OwnBytes(View):
    """Gives access to received bytes as arrays, to which this process may write."""

    def __init__(self, data: bytes) -> None:
        super().__init__(bytearray(data))
        self._data = data
        self.is_private = True

    def is_written(self, offset: int, nbytes: int) -> bool:
        """Return whether this process has written to a part."""
        part = slice(offset, offset + nbytes)
        return bool(self.root.data[part] != memoryview(self._data)[part])

    def again(self) -> View:
        """Return another view of the bytes as they were received."""
        return OwnBytes(self._data)


class Segment(mmap.mmap):
    """Mapped shared memory that knows its descriptor.

    Every array in a segment holds a buffer of this object. The mapping therefore lives as long as
    any view, and any view leads back to its segment (`segment_of`). A segment is never unmapped
    explicitly, because closing a mapping under a live array causes a segmentation fault.

    Attributes
    ----------
    fd : int
        The descriptor from which the segment is mapped, closed with this object. -1 for private
        memory.
    nbytes : int
        Size in bytes, at least 1 page.
    address : int
        The address at which this process has mapped the segment.
    mode : {"r+", "r", "c"}
        The mode of `numpy.memmap`: writable, read-only, or copy-on-write (writes stay in this
        process).
    kind : MemoryKind or None
        The kind of memory, or None if another process created it.
    is_sealed : bool
        Whether only this mapping can write, and other processes never can.
    n_borrowed : int
        Number of workers that received the segment and have not reported it unmapped.
    was_kept_elsewhere : bool
        Whether a process kept a view longer than the call, in which case the segment is not reused.
    was_sent : bool
        Whether the segment is copy-on-write only because the code of received objects may write to
        its arrays, not by the user's choice.
    loan : weak reference or None
        The array whose deletion returns the segment to the warm pool. Views created here keep that
        array alive.

    Notes
    -----
    Creating and attaching are safe from any thread. A segment may be freed inside any allocation of
    any thread. Freeing takes no lock and runs no Python code, which could swallow an interrupt.
    """

    fd: int
    nbytes: int
    address: int
    mode: Mode
    kind: MemoryKind | None = None
    is_sealed = False
    n_borrowed = 0
    was_kept_elsewhere = False
    was_sent = False
    loan: weakref.ref[npt.NDArray[np.uint8]] | None = None
    _file: Descriptor | None
    _name: str | None = None
    _larger: Segment | None = None  # larger private memory that replaces this

    def __new__(cls, file: Descriptor | None, nbytes: int, mode: Mode) -> Self:
        if file is None:
            map_it = partial(super().__new__, cls, -1, nbytes, **sections.PRIVATE)
        else:
            args, options = sections.mapping(file.fileno(), nbytes, mode)
            map_it = partial(super().__new__, cls, *args, **options)
        try:
            self: Self = with_room(map_it)
        except OSError as error:
            if error.errno != errno.ENOMEM:
                raise
            raise OutOfMemoryError(
                f"{budget.in_words(nbytes)} more cannot be mapped into this process. Check "
                f"{shell.with_limits('the limit of its address space', 'v')}"
            ) from None
        if file is None and nbytes >= HUGE and hasattr(mmap, "MADV_HUGEPAGE"):
            with suppress(OSError):  # a kernel without huge pages
                self.madvise(mmap.MADV_HUGEPAGE)
        self._file, self.fd = file, -1 if file is None else file.fileno()
        self.nbytes = nbytes
        self.mode = mode
        self.address = np.frombuffer(self, np.uint8).__array_interface__["data"][0]
        return self

    @property
    def is_private(self) -> bool:
        """Whether other processes cannot map the segment."""
        return self.fd < 0

    @classmethod
    def create(cls, nbytes: int, *, is_private: bool = False, grows: bool = False) -> Self:
        """Create zeroed, writable memory. Pages are allocated when they are first touched.

        With `grows`, the memory can be enlarged later (see `grown`).

        Raises
        ------
        OutOfMemoryError
            If the machine or its container has too little left.
        """
        kind, file, size = new_memory(nbytes, is_private=is_private, grows=grows)
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
        is_private: bool = False,
    ) -> Self:
        """Create memory that contains `parts`, pairs of an offset and a buffer or array.

        If `sealed`, only this mapping stays writable. Later mappings and descriptors are read-only,
        as far as the kind of memory can enforce that (`memory.kinds`).
        """
        self = cls.create(nbytes, is_private=is_private)
        self.refill(parts, are_fresh=True)
        assert self.kind is not None
        if sealed and not isinstance(self.kind, Private):
            self.kind.protect(self.fd)
        self.is_sealed = sealed
        return self

    def refill(self, parts: Iterable[tuple[int, Any]], *, are_fresh: bool = False) -> None:
        """Write `parts` through this mapping, the only writable one of a sealed segment.

        If the pages `are_fresh`, the parts are written to the file if possible, which is faster.
        """
        pieces: list[copying.Piece] = []
        target = View(self)
        for offset, part in parts:
            is_strided = isinstance(part, np.ndarray) and not part.flags.c_contiguous
            if are_fresh and sections.CAN_WRITE and not (is_strided or self.is_private):
                pieces += copying.pieces_to_write(self.fd, offset, part)
            else:
                source = part if is_strided else copying.as_bytes(part)
                pieces += copying.pieces_to_copy(
                    target.array(source.dtype, source.shape, offset), source
                )
        copying.copy_all(pieces)

    @classmethod
    def open(cls, file: Descriptor | int, mode: Mode) -> Self:
        """Map a segment from a descriptor that was opened or received. The segment owns it.

        This is only for files of nbshare, which never shrink: reading past the end would kill this
        process (SIGBUS).

        Parameters
        ----------
        file : Descriptor or int
            A descriptor that allows the access of `mode`.
        mode : {"r+", "r", "c"}
            The mode, as `Segment.mode`.
        """
        file = sections.owned(file) if isinstance(file, int) else file
        return cls(file, sections.size_of(file.fileno()), mode)

    @classmethod
    def sent(cls, file: Descriptor | int, least: int = 0) -> Self:
        """Map a received segment so that writes here do not reach other processes.

        The mapping is copy-on-write. It is read-only if the system refuses that, because copies
        would count as promised memory, or because this kind of memory does not support them. At
        least `least` bytes are mapped, because a descriptor may not report its size.
        """
        file = sections.owned(file) if isinstance(file, int) else file
        try:
            self = cls(file, max(least, sections.size_of(file.fileno())), "c")
        except (OSError, OutOfMemoryError):
            return cls.open(file, "r")
        self.was_sent = True
        return self

    def grown(self, needed: int, nbytes: int) -> Segment:
        """Enlarge the memory, and return a mapping of all of it, next to this one.

        Parameters
        ----------
        needed : int
            The number of bytes that will be used, for which there must be room.
        nbytes : int
            The new size, `needed` or more.

        Raises
        ------
        OutOfMemoryError
            If there is no room.
        """
        if isinstance(self.kind, Private):  # a copy, which `whole` of this segment finds
            self._larger = Segment.filled(nbytes, [(0, self)], is_private=True)
            return self._larger
        assert self.kind is not None
        budget.check_room(needed - self.nbytes)
        size = budget.aligned(nbytes, mmap.PAGESIZE)
        grow(self.kind, self.fd, size)
        larger = type(self)(sections.duplicate(self.fd), size, self.mode)
        larger.kind = self.kind
        return larger

    def whole(self, mode: Mode) -> Segment:
        """Map the segment again at its current size."""
        if self.is_private:
            return self if self._larger is None else self._larger.whole(mode)
        return Segment.open(sections.duplicate(self.fd), mode)

    def again(self, mode: Mode) -> Segment:
        """Map the segment again, read-only or copy-on-write. Private memory is copied."""
        if not self.is_private:
            return Segment.open(self.read_only(), mode)
        copy = Segment.filled(self.nbytes, [(0, self)], is_private=True)
        copy.mode = mode
        return copy

    def is_changed(self, offset: int, nbytes: int) -> bool:
        """Return whether this process has changed a part that it was not meant to change."""
        if not (self.was_sent and sections.is_written(self.address + offset, nbytes)):
            return False
        part, others = slice(offset, offset + nbytes), View(self.again("r"))
        return bool(View(self).root.data[part] != others.root.data[part])

    def fileno(self) -> int:
        """Return `fd`, so that a segment can be used like a file."""
        return self.fd

    @property
    def name(self) -> str:
        """The random name of the segment, which is the same in every process."""
        name = self._name or (os.urandom(8).hex() if self.is_private else sections.name_of(self.fd))
        self._name = name  # two threads may each create a name, and both names are registered
        (sent_segments if self.was_sent else known_segments)[name] = self
        return name

    def read_only(self) -> Descriptor:
        """Open a read-only descriptor of the segment."""
        return sections.read_only(self.fd)


# The segments of this process whose names are known. Those with `was_sent` are separate, because a
# process may also map the same memory as shared.
known_segments: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()
sent_segments: weakref.WeakValueDictionary[str, Segment] = weakref.WeakValueDictionary()


def segment_of(array: npt.NDArray[Any]) -> tuple[Segment, int] | None:
    """Find the segment that holds an array, and the offset of the first element in bytes.

    The chain of bases is followed, so views of any class are recognized. Return None for other
    arrays.
    """
    if (segment := owner_of(array)) is None:
        return None
    return segment, array.__array_interface__["data"][0] - segment.address


def owner_of(array: npt.NDArray[Any]) -> Segment | None:
    """Return the segment that holds an array, or None. Quicker than `segment_of`."""
    base: Any = array
    while not isinstance(base, Segment):
        if base is None:
            return None
        base = base.base if isinstance(base, np.ndarray) else base_of(base)
    return base


def base_of(array: Any) -> Any:
    """Return the object that owns an array's memory, or None."""
    if isinstance(array, np.ndarray):
        return array.base
    if isinstance(array, memoryview):
        return array.obj
    # Stride tricks put another object between arrays. An array of Cython may be its own base.
    base = getattr(array, "base", None)
    return base if isinstance(base, np.ndarray) else None
