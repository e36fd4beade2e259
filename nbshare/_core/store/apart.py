"""Pickles results, and stores their arrays and buffers next to the pickle in the log.

NumPy pickles strided arrays and arrays of dates into the pickle, from which the caller would have
to copy them. Here all arrays are stored next to the pickle, as for inputs, and so are the parts of
registered types (`arrays.reducers`).
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.reducers import DispatchTable, DispatchTables, Reduce, by_itself
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.pickling import Keep, dumps_apart, value_pickler
from nbshare._core.store.logs import OUT_OF_BAND

# Returns a pickler for the arguments of `functions.pickling.dumps_apart`.
MakePickler = Callable[[bool, io.BytesIO, Keep], Any]


def _array_apart(array: npt.NDArray[Any]) -> Any:
    if array.nbytes < OUT_OF_BAND or array.dtype.hasobject or array.dtype.char == "T":
        return by_itself(array)
    is_fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    values = np.ascontiguousarray(array.T if is_fortran else array)
    data = pickle.PickleBuffer(values.reshape(-1).view(np.uint8).data)
    return array_of, (data, array.dtype, array.shape, "F" if is_fortran else "C")


def _memmap_apart(array: npt.NDArray[Any]) -> Any:
    """Send the values alone, because the file cannot be pickled."""
    return np.ndarray.view, (np.asarray(array), type(array))


def array_of(data: Any, dtype: Any, shape: tuple[int, ...], order: Any) -> npt.NDArray[Any]:
    """Return an array on bytes of a log. Pickles in checkpoints also name this function."""
    return np.ndarray(shape, dtype, data, order=order)


_ARRAYS: dict[type, Reduce] = {
    np.ndarray: _array_apart,
    SharedArray: _array_apart,  # loaded as a plain array
    np.memmap: _memmap_apart,
}


def pickler_maker() -> MakePickler:
    """Return a function that creates the picklers for a worker's results in a call."""
    tables = DispatchTables(_ARRAYS)

    def make(by_value: bool, file: io.BytesIO, keep: Keep) -> Any:
        return _pickler_class(by_value)(tables[by_value], file, keep)

    return make


def copy_of(result: Any) -> Any:
    """Return a result as the caller would load it, on memory of its own."""
    data, buffers = dumps_apart(result, OUT_OF_BAND, pickler_maker())
    return pickle.loads(data, buffers=[bytearray(buffer) for buffer in buffers])


@cache
def _pickler_class(by_value: bool) -> Any:
    base: Any = value_pickler() if by_value else pickle.Pickler

    class ResultPickler(base):  # type: ignore[misc]
        def __init__(self, table: DispatchTable, file: io.BytesIO, keep: Keep) -> None:
            self.dispatch_table = table  # before pickle reads it
            super().__init__(file, protocol=5, buffer_callback=keep)

    return ResultPickler
