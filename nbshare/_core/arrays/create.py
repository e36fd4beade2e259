"""New arrays in shared memory."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any, Literal, SupportsIndex

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray, shared_view
from nbshare._core.memory import View, array_slab
from nbshare._core.tracebacks import shown_from_the_call

MemoryOrder = Literal["C", "F"]
Shape = SupportsIndex | Sequence[SupportsIndex]


@shown_from_the_call
def empty(shape: Shape, dtype: npt.DTypeLike = float, order: MemoryOrder = "C") -> SharedArray:
    """Return a new array in shared memory.

    Examples
    --------
    As in NumPy, but filled with zeros:

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

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype without Python objects. Default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with zeros. Memory is only allocated when it is first touched.

    Raises
    ------
    TypeError
        If the dtype holds Python objects.
    nbshare.errors.OutOfMemoryError
        If the array needs more memory than this machine or container has left. A `MemoryError`.
    OSError
        If this process has reached its limit of open files. Each large array takes one.

    See Also
    --------
    zeros, ones, full : arrays filled with a value.
    share : copy an existing array to shared memory.

    Notes
    -----
    Thread-safe. The memory is freed with the last view in any process.

    An array of more than 32 KiB takes one file descriptor, two before Python 3.13. Smaller arrays
    share blocks of 256 KiB, which are freed as a whole. When the descriptors of a process run out,
    nbshare raises its soft limit (``ulimit -n``) to the hard limit, which processes started later
    inherit. Only `select.select` does not accept descriptors above 1023. Use `select.poll` instead.
    """
    lengths, dtype = checked_form(shape, dtype)
    if order not in ("C", "F"):
        raise ValueError(
            f"order={order!r} is not allowed: pass 'C' (row-major) or 'F' (column-major)"
        )
    segment, offset = array_slab.take(math.prod(lengths) * dtype.itemsize)
    if order == "F":
        return shared_view(View(segment).array(dtype, lengths[::-1], offset).T)
    return shared_view(View(segment).array(dtype, lengths, offset))


@shown_from_the_call
def zeros(shape: Shape, dtype: npt.DTypeLike = float, order: MemoryOrder = "C") -> SharedArray:
    """Return a new array of zeros in shared memory, like `empty`.

    Examples
    --------
    As in NumPy:

    >>> import nbshare
    >>> nbshare.zeros(3)
    SharedArray([0., 0., 0.])

    Workers add to the elements of one histogram, one at a time:

    >>> counts, lock = nbshare.zeros(4, int), nbshare.SharedLock()
    >>> def count(energies_kev, counts, lock):
    ...     found = np.bincount(energies_kev, minlength=4)
    ...     with lock:
    ...         counts += found
    >>> import functools
    >>> import numpy as np
    >>> function = functools.partial(count, counts=counts, lock=lock)
    >>> _ = nbshare.parallel_map(function, [[0, 1, 1], [1, 3]])
    >>> counts
    SharedArray([1, 3, 0, 1])

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype without Python objects. Default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with zeros. Memory is only allocated when it is first touched.
    """
    return empty(shape, dtype, order)


@shown_from_the_call
def ones(shape: Shape, dtype: npt.DTypeLike = float, order: MemoryOrder = "C") -> SharedArray:
    """Return a new array of ones in shared memory, like `empty`.

    Examples
    --------
    As in NumPy:

    >>> import nbshare
    >>> nbshare.ones(3, "int8")
    SharedArray([1, 1, 1], dtype=int8)

    Weights that each worker reads:

    >>> import numpy as np
    >>> weights = nbshare.ones(4)
    >>> weights[0] = 5
    >>> def weighted_mean(temperatures_k, weights):
    ...     return np.average(temperatures_k, weights=weights)
    >>> days = np.array([[280.0, 288.0, 288.0, 288.0], [279.0, 279.0, 279.0, 279.0]])
    >>> nbshare.parallel_map(weighted_mean, days, shared={"weights": weights})
    SharedArray([283., 279.])

    Parameters
    ----------
    shape : int or sequence of ints
        Shape of the array.
    dtype : data-type, optional
        Any NumPy dtype without Python objects. Default float64.
    order : {'C', 'F'}, optional
        Row-major (default) or column-major memory layout.

    Returns
    -------
    SharedArray
        Filled with ones.
    """
    return full(shape, 1, dtype, order)


@shown_from_the_call
def full(
    shape: Shape, fill_value: Any, dtype: npt.DTypeLike | None = None, order: MemoryOrder = "C"
) -> SharedArray:
    """Return a new array in shared memory filled with `fill_value`, like `empty`.

    Examples
    --------
    As in NumPy, the dtype is that of the value:

    >>> import nbshare
    >>> nbshare.full((2, 2), 7)
    SharedArray([[7, 7],
                 [7, 7]])

    Fill in results in place. NaN marks the places that no task has written:

    >>> import operator
    >>> heights_m = nbshare.full(4, float("nan"))
    >>> with nbshare.Executor() as executor:
    ...     for i in (0, 2):
    ...         future = executor.submit(operator.setitem, heights_m, i, 100.0 * i)
    >>> heights_m
    SharedArray([  0.,  nan, 200.,  nan])

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
    """Return a new array in shared memory with the shape and dtype of another, like `empty`.

    Examples
    --------
    The shape and dtype of another array:

    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.empty_like(np.ones((2, 3), "float16")).shape
    (2, 3)

    An output for a function that fills the rows of an image:

    >>> image = nbshare.share(np.array([[1.0, 4.0], [9.0, 16.0]]))
    >>> roots = nbshare.empty_like(image)
    >>> def fill(row, out):
    ...     np.sqrt(row, out=out)
    >>> done = nbshare.parallel_map(fill, image, roots)
    >>> roots
    SharedArray([[1., 2.],
                 [3., 4.]])

    Parameters
    ----------
    prototype : array_like
        Supplies shape, dtype and order unless overridden.
    dtype : data-type, optional
        Default: the prototype's.
    order : {'C', 'F', 'A', 'K'}, optional
        Default: as the prototype, 'F' if it is column-major, else 'C'.
    shape : int or sequence of ints, optional
        Default: the prototype's.

    Returns
    -------
    SharedArray
        Filled with zeros.
    """
    if order not in ("C", "F", "A", "K"):
        raise ValueError(f"order={order!r} is not allowed: pass 'C', 'F', 'A' or 'K'")
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
    """Return a new array of zeros with the shape and dtype of another, like `empty_like`.

    Examples
    --------
    The shape and dtype of a list:

    >>> import nbshare
    >>> nbshare.zeros_like([1, 2, 3])
    SharedArray([0, 0, 0])

    A mask of the shape of an image:

    >>> import numpy as np
    >>> image = nbshare.share(np.array([[0.1, 9.0], [0.2, 0.3]]))
    >>> mask = nbshare.zeros_like(image, dtype=bool)
    >>> np.greater(image, 1, out=mask)
    SharedArray([[False,  True],
                 [False, False]])

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
    """
    return empty_like(prototype, dtype, order, shape)


@shown_from_the_call
def ones_like(
    prototype: Any,
    dtype: npt.DTypeLike | None = None,
    order: Literal["C", "F", "A", "K"] = "K",
    shape: Shape | None = None,
) -> SharedArray:
    """Return a new array of ones with the shape and dtype of another, like `empty_like`.

    Examples
    --------
    The shape and dtype of a list:

    >>> import nbshare
    >>> nbshare.ones_like([1.5, 2.5])
    SharedArray([1., 1.])

    A flat field for a detector, in single precision:

    >>> import numpy as np
    >>> counts = np.array([[120, 80], [100, 100]], "uint16")
    >>> flat = nbshare.ones_like(counts, dtype="float32")
    >>> flat[0] = counts[0] / counts[0].mean()
    >>> flat
    SharedArray([[1.2, 0.8],
                 [1. , 1. ]], dtype=float32)

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

    Examples
    --------
    An array of NaN with the shape and dtype of another:

    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.full_like(np.zeros(3, "float32"), np.nan)
    SharedArray([nan, nan, nan], dtype=float32)

    An output of a run, with the fill value where items failed:

    >>> voltages = np.array([4.0, -1.0, 9.0])
    >>> out = nbshare.full_like(voltages, -999.0)
    >>> import math
    >>> done = nbshare.parallel_map(math.sqrt, voltages, out=out, on_error="return")
    >>> done.mask.tolist(), np.asarray(out).tolist()
    ([False, True, False], [2.0, -999.0, 3.0])

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
    """
    array = empty_like(prototype, dtype, order, shape)
    array[...] = fill_value
    return array


def checked_dtype(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the dtype if shared memory can hold it, else raise TypeError with the remedy."""
    checked = np.dtype(dtype)
    if checked.char == "T":
        raise TypeError(
            f"{checked} keeps its strings outside the array, so it cannot be in shared memory. "
            "Convert the array to fixed-length strings, for example with astype('U20')."
        )
    if checked.hasobject:
        raise TypeError(
            f"dtype {checked} holds Python objects, which cannot be in shared memory. Convert "
            "the array (numbers: astype(float); strings: astype('U') or astype('S'); records: a "
            "structured dtype), or pass it in parallel_map(shared=...), where it is pickled once."
        )
    return checked


def checked_int(name: str, value: Any, least: int, hint: str = "") -> int:
    """Return an argument as an int. Raise TypeError for other types, ValueError below `least`."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name}={value!r:.100} is not allowed: pass an int, {least} or more{hint}"
        ) from None
    if number < least:
        raise ValueError(f"{name}={number} is not allowed: pass {least} or more{hint}")
    return number


def checked_form(shape: Shape, dtype: npt.DTypeLike) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and dtype that NumPy gives an array with these arguments."""
    try:
        lengths: tuple[int, ...] = (operator.index(shape),)  # type: ignore[arg-type]
    except TypeError:
        try:
            lengths = tuple(map(operator.index, shape))  # type: ignore[arg-type]
        except TypeError as error:
            raise TypeError(
                f"shape={shape!r:.100} is not allowed: pass an int or a sequence of ints ({error})"
            ) from None
    if any(length < 0 for length in lengths):
        raise ValueError(f"shape {lengths} holds a negative length")
    # Sub-arrays become axes. Strings without a length become one character long.
    example = np.empty(0, checked_dtype(dtype))
    return lengths + example.shape[1:], example.dtype
