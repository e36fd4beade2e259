"""SharedBuffer, one block of shared memory, laid out as different arrays in turn."""

from __future__ import annotations

import math
import mmap
import operator
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import ByReference
from nbshare._core.arrays.create import Shape, checked_form, checked_int
from nbshare._core.arrays.lock import SharedLock
from nbshare._core.arrays.shared_array import SharedArray, shared_view
from nbshare._core.memory import ALIGNMENT, Segment, View, aligned
from nbshare._core.messages import counted
from nbshare._core.tracebacks import shown_from_its_calls

Layout = Mapping[str, tuple[Shape, npt.DTypeLike]]


@shown_from_its_calls
class SharedBuffer(ByReference):
    """One block of shared memory for different arrays at different times.

    Examples
    --------
    One array in the buffer:

    >>> import nbshare
    >>> buffer = nbshare.SharedBuffer(1000)
    >>> buffer.layout({"counts": ((2, 3), "uint16")})["counts"].shape
    (2, 3)

    Two steps of a computation use the same memory, one after the other:

    >>> first = {"A": ((3, 4), "f8"), "B": (10, "f4")}
    >>> second = {"D": ((5, 5), "i4"), "E": ((), "i4")}
    >>> nbytes = max(map(nbshare.SharedBuffer.nbytes_for, (first, second)))
    >>> buffer = nbshare.SharedBuffer(nbytes)
    >>> arrays = buffer.layout(first)
    >>> arrays["A"][...] = 1.5
    >>> arrays = buffer.layout(second)
    >>> with buffer.lock:
    ...     arrays["E"][...] = 7
    >>> arrays["E"]
    SharedArray(7, dtype=int32)

    Parameters
    ----------
    nbytes : int
        Size in bytes, 0 or more. `nbytes_for` returns the size of a layout.

    Attributes
    ----------
    nbytes : int
        Size in bytes.
    lock : SharedLock
        A lock for all processes that use the buffer. nbshare itself never acquires it.

    See Also
    --------
    empty : a single array.

    Notes
    -----
    A layout is a view of the memory and is not stored in it. Each process that uses the buffer
    creates its own layout. This changes no byte. A new layout therefore shows the bytes of earlier
    arrays (zeros in a new buffer), and arrays of an earlier layout stay valid.

    Buffer and arrays are sent by reference. They are writable as an item or in a
    `functools.partial`, read-only in ``shared=`` (the lock works there too). Plain `pickle` and
    `copy` refuse the buffer, but copy the values of its arrays.

    `layout` is safe from any thread. Writes are not synchronized, as with any ndarray. Use `lock`
    if several processes write.
    """

    __module__ = "nbshare"

    def __init__(self, nbytes: int) -> None:
        size = checked_int("nbytes", nbytes, 0)
        block = View(Segment.create(size)).array(np.uint8, (size,))  # on a boundary of pages
        self._attach(shared_view(block), SharedLock())

    def _attach(self, block: SharedArray, lock: SharedLock) -> None:
        self._block = block
        self.lock = lock

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self._block.nbytes

    @staticmethod
    def nbytes_for(layout: Layout, *, alignment: int = ALIGNMENT) -> int:
        """Return the size in bytes of the smallest buffer that can hold a layout.

        Examples
        --------
        The size of one layout:

        >>> import nbshare
        >>> nbshare.SharedBuffer.nbytes_for({"A": (3, "f8"), "B": ((2, 2), "i2")})
        72

        Room for the larger one of two layouts:

        >>> image, spectrum = {"image": ((4, 4), "f4")}, {"spectrum": ((4, 3), "c8")}
        >>> max(map(nbshare.SharedBuffer.nbytes_for, (image, spectrum)))
        96

        Parameters
        ----------
        layout : mapping of str to (shape, dtype)
            The layout, as for the method `layout`.
        alignment : int, optional
            The alignment, as for the method `layout`. Default 64 bytes.

        Returns
        -------
        int
            Size in bytes, gaps included.
        """
        return max((offset + size for *_, offset, size in _placed(layout, alignment)), default=0)

    def layout(self, layout: Layout, *, alignment: int = ALIGNMENT) -> dict[str, SharedArray]:
        """Return arrays in the buffer, one after the other, in the order of the mapping.

        Examples
        --------
        One array:

        >>> import nbshare
        >>> buffer = nbshare.SharedBuffer(1000)
        >>> buffer.layout({"A": ((2, 3), "float16")})["A"].shape
        (2, 3)

        The same bytes as real and as complex numbers:

        >>> buffer.layout({"pairs": ((2, 2), "f8")})["pairs"][...] = [[1, 2], [3, 4]]
        >>> buffer.layout({"waves": (2, "c16")})["waves"]
        SharedArray([1.+2.j, 3.+4.j])

        Parameters
        ----------
        layout : mapping of str to (shape, dtype)
            The shape (an int or a sequence of ints) and dtype of each array, by name. Dtypes with
            Python objects are refused.
        alignment : int, optional
            Each array begins at a multiple of this number of bytes, which is a power of two and at
            most a page. Default 64, a cache line.

        Returns
        -------
        dict of str to SharedArray
            C-contiguous arrays that do not overlap. They show the present bytes of the buffer.

        Raises
        ------
        ValueError
            If the layout is larger than the buffer, or `alignment` is not allowed.
        TypeError
            If a dtype holds Python objects.
        """
        places = list(_placed(layout, alignment))
        needed = max((offset + size for *_, offset, size in places), default=0)
        if needed > self.nbytes:
            raise ValueError(
                f"the layout needs {counted(needed, 'byte')}, but the buffer has {self.nbytes}. "
                "Create a larger one with SharedBuffer(SharedBuffer.nbytes_for(layout)), or reduce "
                "the layout."
            )
        return {
            name: shared_view(np.ndarray(shape, dtype, buffer=self._block[offset : offset + size]))
            for name, shape, dtype, offset, size in places
        }

    def __repr__(self) -> str:
        return f"<SharedBuffer of {counted(self.nbytes, 'byte')}>"

    def _parts(self) -> tuple[Any, ...]:
        return self._block, self.lock


Place = tuple[str, tuple[int, ...], np.dtype[Any], int, int]


def _placed(layout: Layout, alignment: int) -> Iterator[Place]:
    """Yield name, shape, dtype, offset and size in bytes of each array."""
    alignment = operator.index(alignment)  # NumPy's narrow numbers would overflow below
    if not 0 < alignment <= mmap.PAGESIZE or alignment & (alignment - 1):
        raise ValueError(
            f"alignment={alignment} is not allowed: pass a power of two, at most {mmap.PAGESIZE} "
            "(a page of memory, at which the buffer begins)"
        )
    if not isinstance(layout, Mapping):
        raise TypeError(
            "layout= needs a dict of names to pairs of shape and dtype, such as "
            f"{{'A': ((3, 4), 'float16')}}, not {type(layout).__name__}"
        )
    end = 0
    for name, wanted in layout.items():
        try:
            shape, dtype = wanted
        except (TypeError, ValueError):
            raise TypeError(
                f"layout[{name!r}] must be a pair of shape and dtype, such as ((3, 4), 'float16'), "
                f"not {wanted!r}"
            ) from None
        try:
            lengths, checked = checked_form(shape, dtype)
        except (TypeError, ValueError) as error:
            error.add_note(f"Read as a shape and a dtype: layout[{name!r}] = {wanted!r}")
            raise
        offset = aligned(end, alignment)
        end = offset + math.prod(lengths) * checked.itemsize
        yield name, lengths, checked, offset, end - offset
