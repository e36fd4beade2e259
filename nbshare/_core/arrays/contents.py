"""The contents of an arena: pickles and copies of memory, and their places in one segment."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.copied import CopiedMemory, Span
from nbshare._core.arrays.inputs import PLACED, ArrayReference, lenders, reference_to
from nbshare._core.arrays.shared_array import SharedArray, unchanged_segment_of
from nbshare._core.memory import ALIGNMENT, Mode, Segment, aligned, as_bytes, file_of, handle_of
from nbshare.errors import UnsendableError

SMALL = 32 << 10  # bytes. Smaller parts are joined, because writing each one takes some µs

# Bytes of a copy that begins at a page. Elsewhere in a page, each of its page faults takes up to
# half as long again.
LARGE = 1 << 20


class Contents:
    """Collects pickles, memory to copy, and the segments that references name.

    Attributes
    ----------
    segments : list of (Segment, Mode)
        The other segments that the call refers to, and the modes in which workers map them.
    has_views : bool
        Whether workers see memory of arrays or buffers that was copied here.

    Notes
    -----
    Not thread-safe. Objects are kept alive until `contents`, so that no `id` is used twice.
    `nbytes` and `contents` decide the places of all parts.

    Parameters
    ----------
    copies_files, stays_here, by_handle, by_value : bool
        As in `Arena`.
    """

    def __init__(
        self, *, copies_files: bool, stays_here: bool, by_handle: bool, by_value: bool
    ) -> None:
        self.segments: list[tuple[Segment, Mode]] = []
        self._parts: list[tuple[int, Any]] = []
        self._end = 0  # bytes
        self._copied = CopiedMemory()
        self._copies_files, self._by_handle = copies_files or by_value, by_handle
        self.by_value = by_value
        self.stays_here = stays_here
        self.has_views = False
        self._seen: dict[tuple[int, bool, Mode], tuple[Any, ArrayReference]] = {}

    def add(self, data: bytes) -> tuple[int, int]:
        """Add a pickle. Return its offset and size."""
        offset = aligned(self._end)
        last = self._parts[-1][1] if self._parts else None
        is_small = len(data) <= SMALL
        if is_small and isinstance(last, bytearray):
            last += bytes(offset - self._end) + data
        else:
            self._parts.append((offset, bytearray(data) if is_small else data))
        self._end = offset + len(data)
        return offset, len(data)

    def copy(self, arrays: Sequence[npt.NDArray[Any]]) -> Span:
        """Record arrays to copy. Return the span of the table that will hold their places."""
        self.has_views = True
        places = np.empty(len(arrays), np.int64)
        for k, array in enumerate(arrays):
            self._copied.add(array, places, k)
        return 0, self._place([(0, places)], places.nbytes, 0), places.nbytes

    def place_buffer(self, raw: memoryview, spans: list[Any], k: int) -> None:
        """Enter the place of a buffer in `spans[k]`: in its segment, or else in the arena."""
        memory = np.frombuffer(raw, np.uint8)
        address = memory.__array_interface__["data"][0]
        refers = not (self._by_handle or self.by_value)
        for segment in [found for ref in lenders.valuerefs() if refers and (found := ref())]:
            offset = address - segment.address
            is_here = 0 <= offset <= segment.nbytes - raw.nbytes
            others_see_it = self.stays_here or not segment.is_private
            if is_here and others_see_it and not segment.is_changed(offset, raw.nbytes):
                spans[k] = self._segment_index(segment, "c"), offset, raw.nbytes
                return
        self.has_views = True
        self._copied.add(memory, spans, k)

    def refer(
        self,
        array: npt.NDArray[Any],
        copied: list[npt.NDArray[Any]],
        *,
        writable: bool,
        arrives: Mode = "r",
    ) -> ArrayReference:
        """Return a reference to an array.

        An array without a segment or file is added to `copied`. Workers may write to a SharedArray
        if `writable`. Other arrays arrive in the mode `arrives`, read-only or private.
        """
        key = (id(array), writable, arrives)
        if key in self._seen:
            return self._seen[key][1]
        if self.by_value and writable and array.flags.writeable and type(array) is SharedArray:
            raise UnsendableError(
                "a SharedArray among the items, or in a functools.partial, can be written to by "
                "all workers, but only on one machine. Pass it in shared=, or pass a copy: "
                "numpy.array(x)."
            )
        found = None if self.by_value else unchanged_segment_of(array)
        if found is not None and (self.stays_here or not found[0].is_private):
            segment, offset = found
            mode: Mode = "r" if isinstance(array, SharedArray) else arrives
            if array.flags.writeable and (writable or segment.mode == "c"):
                mode = segment.mode
            where = (
                handle_of(segment, mode, is_held=False)
                if self._by_handle
                else self._segment_index(segment, mode)
            )
            reference = reference_to(array, where, offset, mode)
        elif not self._copies_files and (file := file_of(array)) is not None:
            place = *file, array.shape, array.strides, array.dtype
            reference = ArrayReference(
                *place, False, "r+" if writable and array.flags.writeable else arrives
            )
        else:
            copied.append(array)
            strides = None if array.flags.c_contiguous else array.strides
            form = array.shape, strides, array.dtype
            return ArrayReference(PLACED, len(copied) - 1, *form, False, arrives)
        self._seen[key] = (array, reference)
        return reference

    def refers_to(self, array: npt.NDArray[Any]) -> bool:
        """Return whether workers find an array in a segment or a file, so that it is not copied."""
        if array.base is None:  # it owns its memory
            return False
        return unchanged_segment_of(array) is not None or (
            not self._copies_files and file_of(array) is not None
        )

    def begin_part(self) -> None:
        """Start a new part, which shares no arrays with the previous part."""
        self._seen.clear()
        self._copied.clear()
        self.has_views = False

    @property
    def nbytes(self) -> int:
        """The size of the contents, in bytes."""
        self.settle()
        return self._end

    def settle(self) -> None:
        """Decide the places of all parts until now."""
        self._copied.settle(self._place)

    def contents(self) -> tuple[int, list[tuple[int, Any]]]:
        """Return the size in bytes, and the parts (offset, bytes or array). This ends the arena."""
        nbytes = self.nbytes
        self._seen.clear()
        parts, self._parts = self._parts, []
        return nbytes, parts

    def all_contents(self) -> bytes:
        """Return the contents as bytes. Ends the arena."""
        nbytes, parts = self.contents()
        data = bytearray(nbytes)
        for offset, part in parts:
            data[offset : offset + nbytes_of(part)] = as_bytes(part).data
        return bytes(data)

    def _place(self, parts: Sequence[tuple[int, Any]], nbytes: int, shift: int) -> int:
        start = aligned(self._end, mmap.PAGESIZE if nbytes >= LARGE else ALIGNMENT) + shift
        for offset, part in parts:
            self._parts.append((start + offset, part))
        self._end = start + nbytes
        return start

    def _segment_index(self, segment: Segment, mode: Mode) -> int:
        """Return the index of a segment in the mode "r+", or else private or read-only."""
        if mode != "r+":
            mode = "r" if self.stays_here and segment.mode != "c" else "c"
        if (segment, mode) not in self.segments:
            self.segments.append((segment, mode))
        return self.segments.index((segment, mode)) + 1


def nbytes_of(part: Any) -> int:
    """Return the size of a part of the contents, in bytes."""
    return int(part.nbytes) if hasattr(part, "nbytes") else len(part)
