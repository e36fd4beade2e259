"""Reducers for types of known packages, which send the memory of objects by reference.

No package is imported in advance. Its types are looked up at the first object of the package.

Checkpoint files name this module and the functions that rebuild objects, so names and arguments
must not change.
"""

from __future__ import annotations

import copyreg
import pickle
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import MemberDescriptorType
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.memory import View, segment_of

IN_BAND = 4096  # bytes. Smaller objects are pickled as usual, which is quicker
UNUSED = 2  # limit for the size of a buffer, in multiples of the part that an object uses
VIEW = 16  # bytes per string, which polars does not count

# A type, its reducer, and whether the reducer serves subclasses too.
Known = Iterator[tuple[type, Callable[[Any], Any], bool]]


# ----------------------------------------------------------------- arrays of other classes


def _numpy() -> Known:
    yield np.ndarray, _subclass_apart, True


def _masked_arrays() -> Known:
    yield np.ma.MaskedArray, _masked_apart, True


def _subclass_apart(array: npt.NDArray[Any]) -> Any:
    """Send the values by reference. Pickle would copy those of a subclass of ndarray."""
    values = np.ndarray.view(array, np.ndarray)  # a class may override `view`
    return _subclass, (type(array), values, attributes_of(array))


def attributes_of(array: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the attributes that a subclass has added to an array, also those in slots."""
    state: Any = object.__getstate__(array)
    parts = state if isinstance(state, tuple) else (state,)
    return {name: value for part in parts for name, value in (part or {}).items()}


def _subclass(cls: Any, values: npt.NDArray[Any], attributes: dict[str, Any]) -> Any:
    array = values.view(cls)
    for name, value in attributes.items():
        if type(getattr(cls, name, None)) is MemberDescriptorType:
            setattr(array, name, value)
        else:
            vars(array)[name] = value
    return array


def _masked_apart(array: np.ma.MaskedArray[Any, Any]) -> Any:
    mask = np.ma.getmask(array)
    parts = (array.data, None if mask is np.ma.nomask else mask)
    return _masked, (type(array), *parts, vars(array).get("_fill_value"), array.hardmask)


def _masked(cls: Any, data: Any, mask: Any, fill_value: Any, hard_mask: bool) -> Any:
    array = cls(data, copy=False)
    if mask is not None:
        array._mask = mask  # the constructor would copy a mask of records
    array._fill_value = fill_value
    if hard_mask:
        array.harden_mask()
    return array


# --------------------------------------------------------------------------- memoryview


def _builtins() -> Known:
    yield memoryview, _view_apart, False


def _view_apart(view: memoryview) -> Any:
    with suppress(ValueError):
        array = np.asarray(view)
        if array.data.format == view.format:
            return _view, (array, view.readonly)
    with suppress(ValueError, TypeError):  # NumPy lacks its format, such as that of characters
        flat = np.frombuffer(bytearray(view), np.uint8)
        form: Any = view.format, view.shape
        flat.data.cast(*form)
        return _view, (flat, view.readonly, *form)
    return NotImplemented


def _view(array: npt.NDArray[Any], is_read_only: bool, *form: Any) -> memoryview:
    view = array.data.cast(*form) if form else array.data
    return view.toreadonly() if is_read_only else view


# ------------------------------------------------------------------------------ astropy


def _astropy_units() -> Known:
    from astropy.units import Quantity

    yield Quantity, _subclass_apart, True  # its __setstate__ restores this


def _astropy_table() -> Known:
    from astropy.table import Column, QTable, Table

    yield Column, _column_apart, True
    yield Table, _table_apart, False
    yield QTable, _table_apart, False


def _column_apart(column: Any) -> Any:
    if is_masked(column) or column.indices or column.nbytes < IN_BAND:
        return NotImplemented
    return _like, (column.view(np.ndarray), column[:0])


def _like(values: npt.NDArray[Any], template: Any) -> Any:
    array = values.view(type(template))
    array.__array_finalize__(template)  # copies name, unit and so on, as for views
    return array


def _table_apart(table: Any) -> Any:
    if table.indices:
        return NotImplemented
    columns = {name: column[:] for name, column in table.columns.items()}  # not tied to the table
    return _table, (type(table), columns, table.meta)


def _table(cls: Any, columns: dict[str, Any], meta: Any) -> Any:
    return cls(columns, meta=meta, copy=False)  # its __setstate__ copies


# ------------------------------------------------------------------------ Arrow's memory


def _pandas() -> Known:
    from pandas.core.arrays.arrow import ArrowExtensionArray  # public as a base of dtypes only

    yield ArrowExtensionArray, _arrow_column_apart, True


def _arrow_column_apart(column: Any) -> Any:
    """Send the chunks by reference. Pickle would first copy them into one."""
    state = vars(column)
    chunks = state.get("_pa_array")
    if chunks is None or column.nbytes < IN_BAND or _is_mostly_unused(chunks, chunks.nbytes):
        return NotImplemented
    return (
        copyreg.__newobj__,  # type: ignore[attr-defined]
        (type(column),),
        {**state, "_pa_array": chunks.chunks, "_cache": {}},
    )


def _is_mostly_unused(arrow: Any, nbytes: int) -> bool:
    """Return whether an Arrow object uses a small part of its buffers, as a slice does."""
    return bool(arrow.get_total_buffer_size() > UNUSED * nbytes)


def _polars() -> Known:
    import polars as pl

    yield pl.DataFrame, _frame_apart, False
    yield pl.Series, _series_apart, False


def _frame_apart(frame: Any) -> Any:
    found = _as_arrow(frame)
    return NotImplemented if found is None else (_frame, found)


def _series_apart(series: Any) -> Any:
    found = _as_arrow(series.to_frame())
    return NotImplemented if found is None else (_series, found)


def _as_arrow(frame: Any) -> tuple[Any, dict[str, bool]] | None:
    """Return a frame as an Arrow table on the same memory, and its sorted columns.

    Return None if the frame is small, or uses a small part of its memory, or has types that Arrow
    lacks.
    """
    import polars as pl

    nbytes = frame.estimated_size()
    if nbytes < IN_BAND:
        return None
    n_texts = frame.height * sum(dtype in (pl.String, pl.Binary) for dtype in frame.dtypes)
    try:  # pyarrow may be missing, or too old for a type
        table = frame.to_arrow(compat_level=pl.CompatLevel.newest())
        has_all = pl.from_arrow(table.slice(0, 0)).schema == frame.schema
        is_part = _is_mostly_unused(table, nbytes + VIEW * n_texts)
    except Exception:  # noqa: BLE001 - or whatever else, and polars pickles the frame
        return None
    if is_part or not has_all:
        return None
    ordered = {  # lists have another flag
        name: flags["SORTED_DESC"]
        for name, flags in frame.flags.items()
        if flags["SORTED_ASC"] or flags["SORTED_DESC"]
    }
    return table, ordered


def _frame(table: Any, ordered: dict[str, bool]) -> Any:
    import polars as pl

    frame = pl.from_arrow(table)
    for name, is_descending in ordered.items():
        frame = frame.set_sorted(name, descending=is_descending)
    return frame


def _series(table: Any, ordered: dict[str, bool]) -> Any:
    return _frame(table, ordered).to_series()


# ------------------------------------------------------------------------------- torch


def _torch() -> Known:
    """Yield the storage types, through which tensors, parameters and modules are pickled."""
    from torch import Tensor
    from torch.storage import (
        TypedStorage,
        UntypedStorage,
    )

    yield Tensor, _tensor_apart, False
    yield UntypedStorage, _storage_apart, False
    yield TypedStorage, _typed_storage_apart, False


def _tensor_apart(tensor: Any) -> Any:
    """Reduce a tensor as it does itself.

    PyTorch cannot load its own pickles of unsigned integers and other newer types, because it
    expects a typed storage there.
    """
    import torch
    from torch.storage import TypedStorage, UntypedStorage

    rebuild, (first, *others) = tensor.__reduce_ex__(5)
    if type(first) is UntypedStorage:
        first = TypedStorage(wrap_storage=first, dtype=torch.uint8, _internal=True)
    return rebuild, (first, *others)


def _storage_apart(storage: Any) -> Any:
    import torch

    if storage.device.type != "cpu" or storage.nbytes() == 0:
        return NotImplemented
    tensor = torch.empty(0, dtype=torch.uint8).set_(storage)
    return _storage, (pickle.PickleBuffer(tensor.numpy().data),)


def _storage(data: Any) -> Any:
    import torch

    return torch.frombuffer(_writable(data), dtype=torch.uint8).untyped_storage()


def _typed_storage_apart(storage: Any) -> Any:
    found = _storage_apart(storage._untyped_storage)
    return found if found is NotImplemented else (_typed_storage, (*found[1], storage.dtype))


def _typed_storage(data: Any, dtype: Any) -> Any:
    from torch.storage import TypedStorage

    return TypedStorage(wrap_storage=_storage(data), dtype=dtype, _internal=True)


def _writable(data: Any) -> Any:
    """Return a writable buffer, because a tensor cannot mark its memory as read-only.

    In a read-only segment, pages are copied for this process when it writes to them.
    """
    array = np.frombuffer(data, np.uint8)
    if array.flags.writeable:
        return data
    if (found := segment_of(array)) is None:
        return bytearray(data)
    segment, offset = found
    return View(segment.again("c")).root.data[offset : offset + array.nbytes]


# Functions that yield the types of packages, by the names of the packages.
PACKAGES: dict[str, Callable[[], Known]] = {
    "builtins": _builtins,
    "numpy": _numpy,
    "numpy.ma": _masked_arrays,
    "astropy.units": _astropy_units,
    "astropy.table": _astropy_table,
    "pandas": _pandas,
    "polars": _polars,
    "torch": _torch,
}
