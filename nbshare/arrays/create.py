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

Order = Literal["C", "F"]
Shape = SupportsIndex | Sequence[SupportsIndex]


@shown_from_the_call
def empty(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> SharedArray:
    """Return a new array in shared memory.

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype that holds no Python objects; default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with zeros. Memory is only allocated when it is first touched.

    Raises
    ------
    TypeError
        The dtype holds Python objects.
    nbshare.errors.OutOfMemoryError
        This machine or its container has less memory left. A `MemoryError`.
    nbshare.errors.TooManyFilesError
        This process has as many files open as it may. An `OSError`.

    See Also
    --------
    zeros, ones, full : the same, filled.
    share : copy an existing array to shared memory.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.empty((2, 3), "float16").nbytes
    12

    Each task writes its own part of one array:

    >>> import operator
    >>> squares = nbshare.empty(4, "int32")
    >>> with nbshare.Executor() as executor:
    ...     for i in range(4):
    ...         future = executor.submit(operator.setitem, squares, i, i * i)
    >>> squares
    SharedArray([0, 1, 4, 9], dtype=int32)

    Notes
    -----
    Safe to call from any thread. The memory is freed when the last view in any process is gone.

    An array of more than 32 KiB takes one file descriptor. Smaller arrays share blocks of 256 KiB,
    which are freed as a whole. When the descriptors of a process run out, nbshare raises its soft
    limit (``ulimit -n``) to the hard one; processes that it starts later inherit that. Only
    `select.select` cannot take descriptors above 1023: use `select.poll`.
    """
    lengths, dtype = checked_form(shape, dtype)
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
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype that holds no Python objects; default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with zeros. Memory is only allocated when it is first touched.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.zeros(3)
    SharedArray([0., 0., 0.])
    """
    return empty(shape, dtype, order)


@shown_from_the_call
def ones(shape: Shape, dtype: npt.DTypeLike = float, order: Order = "C") -> SharedArray:
    """Return a new array of ones in shared memory; see `empty`.

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype that holds no Python objects; default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with ones.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.ones(3, "int8")
    SharedArray([1, 1, 1], dtype=int8)
    """
    return full(shape, 1, dtype, order)


@shown_from_the_call
def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, order: Order = "C"
) -> SharedArray:
    """Return a new array in shared memory filled with `fill_value`; see `empty`.

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    fill_value : scalar or array_like
        Value of the elements, broadcast to the shape.
    dtype : data-type, optional
        Default: the dtype of ``numpy.array(fill_value)``.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with `fill_value`.

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
        Supplies shape, dtype and order unless overridden.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype; 'F' if it is column-major, else 'C'.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Filled with zeros.

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
        Supplies shape, dtype and order unless overridden.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Filled with zeros. Memory is only allocated when it is first touched.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.zeros_like([1, 2, 3])
    SharedArray([0, 0, 0])
    """
    return empty_like(prototype, dtype, order, shape)


@shown_from_the_call
def ones_like(
    prototype: Any,
    dtype: npt.DTypeLike | None = None,
    order: Literal["C", "F", "A", "K"] = "K",
    shape: Shape | None = None,
) -> SharedArray:
    """Return a new array of ones with the shape and dtype of another; see `empty_like`.

    Parameters
    ----------
    prototype : array_like
        Supplies shape, dtype and order unless overridden.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Filled with ones.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.ones_like([1.5, 2.5])
    SharedArray([1., 1.])
    """
    return full_like(prototype, 1, dtype, order, shape)


@shown_from_the_call
def full_like(
    prototype: Any,
    fill_value: Any,
    dtype: npt.DTypeLike | None = None,
    order: Literal["C", "F", "A", "K"] = "K",
    shape: Shape | None = None,
) -> SharedArray:
    """Return a new array filled with `fill_value`, with the shape and dtype of another.

    Parameters
    ----------
    prototype : array_like
        Supplies shape, dtype and order unless overridden.
    fill_value : scalar or array_like
        Value of the elements, broadcast to the shape and cast to the dtype.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Filled with `fill_value`.

    Examples
    --------
    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.full_like(np.zeros(3, "float32"), np.nan)
    SharedArray([nan, nan, nan], dtype=float32)
    """
    array = empty_like(prototype, dtype, order, shape)
    array[...] = fill_value
    return array


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype if shared memory can hold it, else raise TypeError with the remedy."""
    checked = np.dtype(dtype)
    if checked.hasobject or checked.char == "T":  # T: StringDType, whose strings lie elsewhere
        raise TypeError(
            f"dtype {checked} holds Python objects, which cannot live in shared memory. Convert "
            "the array (numbers: astype(float); strings: astype('U') or astype('S'); records: a "
            "structured dtype), or pass it in parallel_map(shared=...), where it is pickled once."
        )
    return checked


def checked_form(shape: Shape, dtype: npt.DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return shape and dtype of an array as NumPy makes it."""
    try:
        lengths: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        lengths = tuple(map(operator.index, shape))  # type: ignore[arg-type]
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} holds a negative length")
    example = np.empty(
        0, checked_dtype(dtype)
    )  # sub-arrays become axes, strings of no length get one character
    return lengths + example.shape[1:], example.dtype
