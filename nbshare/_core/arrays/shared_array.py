"""SharedArray, an ndarray in shared memory."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import Segment, owner_of, segment_of


class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    """An ndarray in shared memory.

    Created by `share`, `empty`, `zeros`, `ones` and `full`, and returned by `parallel_map`. Slices,
    transposes, reshapes and other views are SharedArrays too. Results in new memory (arithmetic,
    ``copy``, ``astype``, fancy indexing, reductions) are plain ndarrays or scalars. ``a += 1`` and
    ``out=a`` stay in place.

    In nbshare's calls, and through the pools and queues of `multiprocessing` and joblib, an array
    and every view of it are sent by reference, in a few hundred bytes, whatever its size. A worker
    that writes to it writes to the caller's memory. Plain `pickle`, `copy.copy` and `numpy.save`
    copy the values.

    Examples
    --------
    Views are SharedArrays, results of arithmetic are not:

    >>> import nbshare
    >>> a = nbshare.zeros((3, 4), "float16")
    >>> type(a[:, ::2]).__name__, type(a + 1).__name__
    ('SharedArray', 'ndarray')

    Workers sort the rows of an array in place:

    >>> import numpy as np
    >>> rows = nbshare.share(np.array([[3, 1, 2], [9, 7, 8]]))
    >>> done = nbshare.parallel_map(np.ndarray.sort, rows)
    >>> rows
    SharedArray([[1, 2, 3],
                 [7, 8, 9]])

    Raises
    ------
    TypeError
        If ``SharedArray(shape)`` or ``x.view(SharedArray)`` is called for memory that is not
        shared.

    See Also
    --------
    share : copy an existing array to shared memory.
    zeros : a new array.

    Notes
    -----
    As safe in threads as any ndarray. NumPy does not lock. Use a `SharedLock` if several processes
    update the same values. The memory is freed with the last view in any process.
    """

    __module__ = "nbshare"

    def __array_finalize__(self, source: Any) -> None:
        if type(source) is SharedArray:  # first, because every slice comes here
            return
        is_elsewhere = type(source) is np.ndarray and owner_of(self) is None
        if is_elsewhere or source is None:
            raise TypeError(
                "a SharedArray is in shared memory: make one with nbshare.empty, zeros or full, or "
                "copy an array with nbshare.share"
            )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **kwargs: Any
    ) -> Any:
        plain = [x.view(np.ndarray) if type(x) is SharedArray else x for x in inputs]
        if not out:
            return getattr(ufunc, method)(*plain, **kwargs)
        kwargs["out"] = tuple(map(_as_plain, out))
        result = getattr(ufunc, method)(*plain, **kwargs)
        # In-place results keep their class.
        return out[0] if len(out) == 1 and result is kwargs["out"][0] else (out or result)

    def __getitem__(self, index: Any) -> Any:
        found = np.ndarray.__getitem__(self, index)
        if type(found) is not SharedArray or found.base is self or found.base is self.base:
            return found
        return _settled(found)  # by an array of indices, in new memory

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _settled(super().__array_function__(func, types, args, kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Values, as a plain ndarray, because nothing on disk may point into memory.
        return _as_plain(self).__reduce_ex__(protocol)


def shared_view(array: npt.NDArray[Any]) -> SharedArray:
    """Present an array in a segment as a SharedArray, without a copy."""
    return array.view(SharedArray)


def unchanged_segment_of(array: np.ndarray[Any, Any]) -> tuple[Segment, int] | None:
    """Return the result of `segment_of`, or None if other processes see other values.

    They do if this process has changed a private array, such as an array of a sparse matrix that
    sorted itself. Changes to a private SharedArray are the user's choice.
    """
    found = segment_of(array)
    if found is None or not array.flags.writeable or isinstance(array, SharedArray):
        return found
    segment, offset = found
    return None if segment.is_changed(*extent(offset, array)) else found


def extent(offset: int, array: np.ndarray[Any, Any]) -> tuple[int, int]:
    """Return the offset of an array's lowest byte, and the number of bytes up to its highest.

    `offset` is the offset of the array's first element.
    """
    if not array.size:
        return offset, 0
    steps = [(n - 1) * step for n, step in zip(array.shape, array.strides, strict=True)]
    below = sum(step for step in steps if step < 0)
    return offset + below, sum(map(abs, steps)) + array.itemsize


def _as_plain(array: Any) -> Any:
    return array.view(np.ndarray) if type(array) is SharedArray else array


def _settled(result: Any) -> Any:
    """Turn a SharedArray that is not in a segment into a plain ndarray."""
    if type(result) is SharedArray and owner_of(result) is None:
        return result.view(np.ndarray)
    if type(result) in (tuple, list):
        return type(result)(map(_settled, result))
    if isinstance(result, tuple):  # a named tuple, as from `numpy.linalg.svd`
        return type(result)(*map(_settled, result))
    return result


def _settling(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method, assigned=("__name__", "__qualname__"))
    def settling(*args: Any, **kwargs: Any) -> Any:
        return _settled(method(*args, **kwargs))

    settling.__annotations__ = {}  # the wrapped method's could not be evaluated
    # NumPy's docstring, without its examples, which nbshare's doctests would run.
    settling.__doc__ = re.split(r"\n\s*Examples\n", method.__doc__ or "")[0]
    return settling


# Results of these methods have the class of the array in NumPy, wherever their bytes are. (Its
# functions use __array_function__, its operators __array_ufunc__.)
_MAKERS = """
    __copy__ __deepcopy__ argmax argmin argpartition argsort astype byteswap choose clip
    compress conj conjugate copy cumprod cumsum dot flatten nonzero ravel repeat reshape round
    searchsorted swapaxes take trace
"""
for _name in _MAKERS.split():
    setattr(SharedArray, _name, _settling(getattr(np.ndarray, _name)))
