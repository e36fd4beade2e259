"""New arrays in shared memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.memory import array_slab
from nbshare.tracebacks import shown_from_the_call

__all__ = ["checked_dtype", "checked_shape", "empty", "empty_like", "full", "zeros", "zeros_like"]

Order = Literal["C", "F"]
Shape = SupportsIndex | Sequence[SupportsIndex]


@shown_from_the_call
def empty(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> SharedArray:
    """Return a new array in shared memory.

    Parameters
    ----------
    shape : int or sequence of ints
        Lengths of the axes.
    dtype : data-type, optional
        Any NumPy dtype without Python objects inside; default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major layout.

    Returns
    -------
    SharedArray
        Zeroed: fresh memory of the kernel's is, and page by page it costs nothing before it is
        touched.

    Raises
    ------
    TypeError
        If the dtype holds Python objects.
    nbshare.errors.OutOfMemoryError
        If this machine or its container has not that much memory left; a `MemoryError`.
    nbshare.errors.TooManyFilesError
        If this process has as many files open as it may; an `OSError`.

    See Also
    --------
    share : put an existing array into shared memory.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.empty((2, 3), "float16").nbytes
    12

    Notes
    -----
    Safe to call from any thread. The memory is freed when the last view in any process is gone.

    An array of more than 32 KiB takes one descriptor; smaller ones share 256 KiB and a descriptor
    with those created next to them, and are freed together. When a process has too many files
    open, nbshare raises its soft limit (``ulimit -n``) to the hard one; processes that it starts
    later inherit that. Only `select.select` cannot take descriptors above 1023: use `select.poll`.
    """
    lengths, dtype = checked_shape(shape, checked_dtype(dtype))
    if order not in ("C", "F"):
        raise ValueError(f"order={order!r}: allowed are 'C' (row-major) and 'F' (column-major)")
    segment, offset = array_slab.take(math.prod(lengths) * dtype.itemsize)
    if order == "F":
        return shared_view(segment.array(dtype, lengths[::-1], offset).T)
    return shared_view(segment.array(dtype, lengths, offset))


@shown_from_the_call
def zeros(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> SharedArray:
    """Return a new array of zeros in shared memory; see `empty`.

    Parameters
    ----------
    shape : int or sequence of ints
        Lengths of the axes.
    dtype : data-type, optional
        Any NumPy dtype without Python objects inside; default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major layout.

    Returns
    -------
    SharedArray
        Pages come into being when they are first touched.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.zeros(3)
    SharedArray([0., 0., 0.])
    """
    return empty(shape, dtype, order)


@shown_from_the_call
def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, order: Order = "C"
) -> SharedArray:
    """Return a new array in shared memory filled with `fill_value`; see `empty`.

    Parameters
    ----------
    shape : int or sequence of ints
        Lengths of the axes.
    fill_value : scalar or array_like
        Broadcast to the shape.
    dtype : data-type, optional
        Default: that of ``numpy.array(fill_value)``.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major layout.

    Returns
    -------
    SharedArray
        Filled.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.full((2, 2), 7)
    SharedArray([[7, 7],
                 [7, 7]])
    """
    array = empty(shape, np.asarray(fill_value).dtype if dtype is None else dtype, order)
    array[...] = fill_value
    return array


@shown_from_the_call
def empty_like(
    prototype: Any,
    dtype: npt.DTypeLike | None = None,
    order: Literal["C", "F", "A", "K"] = "K",
    shape: Shape | None = None,
) -> SharedArray:
    """Return a new array in shared memory with the shape and dtype of another; see `empty`.

    Parameters
    ----------
    prototype : array_like
        Gives what is not said here.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype, 'F' if its columns lie together, else 'C'.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Zeroed.

    Examples
    --------
    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.empty_like(np.ones((2, 3), "float16")).shape
    (2, 3)
    """
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order={order!r}: allowed are 'C', 'F', 'A' and 'K'")
    like = np.asarray(prototype)
    fortran = order == "F" or (order in ("A", "K") and like.flags.fnc)
    return empty(
        like.shape if shape is None else shape,
        like.dtype if dtype is None else dtype,
        "F" if fortran else "C",
    )


@shown_from_the_call
def zeros_like(
    prototype: Any,
    dtype: npt.DTypeLike | None = None,
    order: Literal["C", "F", "A", "K"] = "K",
    shape: Shape | None = None,
) -> SharedArray:
    """Return a new array of zeros with the shape and dtype of another; see `empty_like`.

    Parameters
    ----------
    prototype : array_like
        Gives what is not said here.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Pages come into being when they are first touched.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.zeros_like([1, 2, 3])
    SharedArray([0, 0, 0])
    """
    return empty_like(prototype, dtype, order, shape)


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype if shared memory can hold it, else raise TypeError with the remedy."""
    checked = np.dtype(dtype)
    if checked.hasobject or checked.char == "T":  # T: StringDType, whose strings lie elsewhere
        raise TypeError(
            f"dtype {checked} holds Python objects, which cannot live in shared memory. Convert "
            "the array (numbers: astype(float); strings: astype('U') or astype('S'); records: a "
            "structured dtype), or give it to parallel_map(shared=...), where it is pickled once."
        )
    return checked


def checked_shape(shape: Shape, dtype: np.dtype[Any]) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array as NumPy makes it."""
    try:
        lengths: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        lengths = tuple(map(operator.index, shape))  # type: ignore[arg-type]
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} holds a negative length")
    example = np.empty(0, dtype)  # sub-arrays become axes, strings of no length get one character
    return lengths + example.shape[1:], example.dtype
