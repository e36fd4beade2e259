"""The kinds of results. The first result decides where a call stores all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from nbshare._core.arrays.shared_array import SharedArray


class OutputSpec(NamedTuple):
    """The dtype and shape of one result."""

    dtype: np.dtype[Any] | None  # None for objects, which are stored in logs
    shape: tuple[int, ...]
    number: type | None  # the class of Python's numbers that fits, for scalars
    is_given: bool = False  # whether results must fit ``out=``, by casting "same_kind"

    def holds(self, value: Any) -> bool:
        """Return whether an output of this spec can hold a result unchanged."""
        if self.dtype is None:
            return False
        if type(value) is np.ndarray and value.dtype == self.dtype:  # quick to check
            return bool(value.shape == self.shape)
        return self.holds_rows(spec_for(value))

    def holds_rows(self, given: OutputSpec) -> bool:
        """Return whether an output of this spec can hold rows of another spec unchanged."""
        # NumPy reads None as float64 when it compares dtypes.
        is_array = self.dtype is not None and given.dtype is not None
        return is_array and self[:2] == given[:2]


OBJECTS = OutputSpec(None, (), None)
NUMBERS = {t: OutputSpec(np.asarray(t()).dtype, (), t) for t in (bool, int, float, complex)}

# Kinds of results that workers agree on without the caller, if the number of items is known:
# objects, and numbers of at most 8 bytes, which fit the board and `struct`. For other kinds, each
# worker must ask the caller, which costs as much as some hundred tiny items.
ASK, IS_OBJECT = 1, 2
KINDS = {IS_OBJECT: OBJECTS} | {
    IS_OBJECT + 1 + code: OutputSpec(np.dtype(t), (), t if t in (bool, int, float) else None)
    for code, t in enumerate([bool, int, float, *"?bBhHiIlLqQefd"])
}
KIND_OF = {spec: kind for kind, spec in reversed(KINDS.items())}


def spec_for(value: Any) -> OutputSpec:
    """Return the spec of an output for a first result."""
    if type(value) in NUMBERS:
        if type(value) is not int or -(1 << 63) <= value < 1 << 63:
            return NUMBERS[type(value)]
        dtype = np.asarray(value).dtype
        return OBJECTS if dtype.hasobject else OutputSpec(dtype, (), int)
    if isinstance(value, np.generic) or type(value) in (np.ndarray, SharedArray):
        # Only arrays of strings and records are stacked, because single ones are objects to users.
        is_stacked = value.ndim > 0 or not issubclass(value.dtype.type, np.flexible)
        if is_stacked and not value.dtype.hasobject and value.dtype.char != "T":
            # In native byte order, as in NumPy's stacks.
            return OutputSpec(np.promote_types(value.dtype, value.dtype), value.shape, None)
    return OBJECTS
