"""The ndarray that says where its bytes lie."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.memory import segment_of

__all__ = ["SharedArray", "shared_view"]


class SharedArray(np.ndarray[Any, np.dtype[Any]]):
    """An ndarray whose bytes lie in shared memory.

    Made by `share`, `empty`, `zeros` and `full`, and the result of `parallel_map`. Slices,
    transposes, reshapes and other views are SharedArrays too; what NumPy makes elsewhere
    (arithmetic, ``copy``, ``astype``, fancy indexing, reductions) is a plain ndarray or scalar.
    ``a += 1`` and ``out=a`` stay in place.

    In nbshare's calls an array and every view of it travel by reference: a few hundred bytes,
    whatever its size, and a worker that writes into it writes into the caller's memory. Plain
    `pickle`, `copy.copy`, `numpy.save` store values.

    Examples
    --------
    >>> import nbshare
    >>> a = nbshare.zeros((3, 4), "float16")
    >>> type(a[:, ::2]).__name__, type(a + 1).__name__
    ('SharedArray', 'ndarray')

    Notes
    -----
    As safe in threads as any ndarray: NumPy does not lock. The memory is freed when the last
    view of it in any process is gone.
    """

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: Any, out: tuple[Any, ...] = (), **kwargs: Any
    ) -> Any:
        if out:
            kwargs["out"] = tuple(map(_as_plain, out))
        result = getattr(ufunc, method)(*map(_as_plain, inputs), **kwargs)
        # In-place results keep the class they came with.
        return out[0] if len(out) == 1 and result is kwargs["out"][0] else (out or result)

    def __array_function__(self, func: Any, types: Any, args: Any, kwargs: Any) -> Any:
        return _settled(super().__array_function__(func, types, args, kwargs))

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Values, as a plain ndarray: nothing on disk may point into memory.
        return _as_plain(self).__reduce_ex__(protocol)


def shared_view(array: npt.NDArray[Any]) -> SharedArray:
    """Present an array that lies in a segment as a SharedArray, without a copy."""
    return array.view(SharedArray)


def _as_plain(array: Any) -> Any:
    return array.view(np.ndarray) if type(array) is SharedArray else array


def _settled(result: Any) -> Any:
    """Turn a SharedArray that does not lie in a segment into the plain ndarray it is."""
    if type(result) is SharedArray and segment_of(result) is None:
        return result.view(np.ndarray)
    if type(result) in (tuple, list):
        return type(result)(map(_settled, result))
    return result


def _settling(method: Callable[..., Any]) -> Callable[..., Any]:
    # Without NumPy's docstring: its examples would be run as ours.
    @wraps(method, assigned=("__name__", "__qualname__"))
    def settling(*args: Any, **kwargs: Any) -> Any:
        return _settled(method(*args, **kwargs))

    return settling


# NumPy gives the results of these methods the class of the array, wherever their bytes lie. (Its
# functions go through __array_function__, its operators through __array_ufunc__.)
_MAKERS = """
    __copy__ __deepcopy__ __getitem__ argmax argmin argpartition argsort astype byteswap choose clip
    compress conj conjugate copy cumprod cumsum dot flatten max mean min nonzero prod ravel repeat
    reshape round searchsorted std sum swapaxes take trace var
"""
for _name in _MAKERS.split():
    setattr(SharedArray, _name, _settling(getattr(np.ndarray, _name)))
