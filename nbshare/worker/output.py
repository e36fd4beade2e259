"""Where results go: an array in shared memory that all workers fill, or the workers' logs.

The first result decides. Numbers and arrays get one output array, ``(n, *shape)``. A result that
does not fit it, and any other object, is pickled into a segment of the worker's own, its log, or,
if it is small and items are few, onto the board; the board says where each one lies. So no work is
lost when results turn out to differ.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray
from nbshare.errors import noted
from nbshare.functions import dumps_apart
from nbshare.memory import Segment
from nbshare.worker.log import OUT_OF_BAND, LogKey, LogWriter
from nbshare.worker.schedule import IN_LOG, IN_OUTPUT, NUMBER_BYTES, Board

__all__ = [
    "ASK",
    "IS_OBJECT",
    "KINDS",
    "OBJECTS",
    "OutputSpec",
    "ResultStore",
    "fill_row",
    "numbers_of",
    "spec_for",
]


class OutputSpec(NamedTuple):
    """What one result looks like."""

    dtype: np.dtype[Any] | None  # None: objects, which go to the logs
    shape: tuple[int, ...]
    number: type | None  # Python's own number class that fits, for scalars
    is_given: bool = False  # the caller gave the array: results must fit, casting "same_kind"

    def holds(self, value: Any) -> bool:
        """Whether an output of this kind holds a result as it is."""
        if self.dtype is None:
            return False
        if type(value) is self.number is not int:  # ints are of two dtypes
            return True
        if type(value) is np.ndarray and value.dtype == self.dtype:  # soon found out
            return bool(value.shape == self.shape)
        found = spec_for(value)
        # NumPy takes None for float64 where dtypes are compared.
        return found.dtype is not None and found[:2] == self[:2]


OBJECTS = OutputSpec(None, (), None)

# Kinds of results that workers agree on by themselves: objects, and numbers, which have room on the
# board. With arrays one of them has to ask the caller, which takes the time of some hundred tiny
# items.
ASK, IS_OBJECT = 1, 2
KINDS = {IS_OBJECT: OBJECTS} | {
    IS_OBJECT + 1 + code: OutputSpec(np.dtype(t), (), t if t in (bool, int, float) else None)
    for code, t in enumerate([bool, int, float, *"?bBhHiIqQlLefdF"])
    if np.dtype(t).itemsize <= NUMBER_BYTES
}
IN_MEMORYVIEW = "?bBhHiIlLqQfd"  # characters of dtypes that a memoryview knows
_KIND_OF = {spec: kind for kind, spec in reversed(KINDS.items())}


def spec_for(value: Any) -> OutputSpec:
    """Return the output that a first result asks for."""
    if type(value) in (bool, int, float, complex):
        dtype = np.asarray(value).dtype
        return OBJECTS if dtype.hasobject else OutputSpec(dtype, (), type(value))
    if isinstance(value, np.generic) or type(value) in (np.ndarray, SharedArray):
        # Of strings and records only arrays are stacked: single ones are objects to their users.
        is_stacked = value.ndim > 0 or not issubclass(value.dtype.type, np.flexible)
        if is_stacked and not value.dtype.hasobject and value.dtype.char != "T":
            # As NumPy stacks them: of native byte order.
            return OutputSpec(np.promote_types(value.dtype, value.dtype), value.shape, None)
    return OBJECTS


class ResultStore:
    """A worker's side: puts results into the output array or into its log.

    Parameters
    ----------
    board : Board
        Of the call.
    ask : callable
        ``ask(spec)`` returns the call's spec and output array (None for objects); used once, with
        the first result.
    announce : callable
        ``announce(key, segment)`` tells the caller of a new log.
    lock : context manager
        Held to agree with the other workers.

    Attributes
    ----------
    number : type or None
        The class of results that `put_numbers` takes; None for none, or before the first.
    """

    def __init__(
        self,
        board: Board,
        ask: Callable[[OutputSpec], tuple[OutputSpec, npt.NDArray[Any] | None]],
        announce: Callable[[LogKey, Segment], None],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._board, self._lock = board, lock
        self._ask = ask
        self._log = LogWriter(announce)
        self._spec: OutputSpec | None = None
        self._out: Any = None
        self.number: type | None = None

    @property
    def number_places(self) -> tuple[type | None, Any, Any]:
        """The class of results that fit the output as they are, and where: there, and ``done``.

        For who cannot afford the time of `put`; None where results have to be looked at.
        """
        number, spec = self.number, self._spec
        if number is None or not (spec and spec.dtype and spec.dtype.char in IN_MEMORYVIEW):
            return None, None, None
        return number, self._out.data, self._board.done.data

    def put_numbers(self, items: range, values: list[Any]) -> bool:
        """Store the results of several items, if all are such numbers."""
        if not values:
            return True
        if type(values[-1]) is not self.number:  # the others are
            return False
        out = self._out[items.start : items.stop]
        try:
            # An assignment would look for the dtype of each value: three and two times as long.
            if out.dtype.char in IN_MEMORYVIEW:
                struct.pack_into(f"{len(values)}{out.dtype.char}", out, 0, *values)
            else:
                out[:] = np.fromiter(values, out.dtype, len(values))
        except (OverflowError, struct.error):  # an int too large for the dtype of those before it
            return False
        self._board.done[items.start : items.stop] = IN_OUTPUT
        return True

    def put(self, i: int, value: Any) -> None:
        """Store the result of item `i`, then mark it as done."""
        spec = self._spec or self._settle(spec_for(value))
        if spec.is_given:
            fill_row(self._out, i, value)
        elif spec.holds(value):
            self._out[i] = value
        else:
            return self._append(i, value)
        self._board.done[i] = IN_OUTPUT
        return None

    def _settle(self, wanted: OutputSpec) -> OutputSpec:
        """Learn, with the first result, where results go."""
        kind = self._board.agree(_KIND_OF.get(wanted, ASK), self._lock)
        if kind == ASK:
            self._spec, self._out = self._ask(wanted)
        else:
            self._spec = KINDS[kind]
            self._out = numbers_of(self._board, self._spec)
        spec = self._spec
        if spec.dtype is not None and not spec.is_given and spec in _KIND_OF:
            self.number = spec.number or spec.dtype.type
        return spec

    def _append(self, i: int, value: Any) -> None:
        board = self._board
        try:
            data, buffers = dumps_apart(value, OUT_OF_BAND)
        except Exception as error:
            noted(error, f"its result, a {type(value).__name__}, cannot be sent: {_remedy(value)}")
            raise
        if len(data) <= board.small.shape[1] and not buffers:
            board.small[i, : len(data)] = np.frombuffer(data, np.uint8)
            board.index[i] = 0, 0, len(data)
        else:
            board.index[i] = self._log.append(data, buffers)
        board.done[i] = IN_LOG


def _remedy(value: Any) -> str:
    """Say what to return instead of a result that cannot be pickled."""
    if hasattr(value, "send"):
        if hasattr(value, "__await__"):
            return "run it, and return what asyncio.run(...) gives"
        return "return what it gives, list(...) of it"
    return "return numbers, arrays, or other objects that can be pickled"


def numbers_of(board: Board, spec: OutputSpec) -> npt.NDArray[Any] | None:
    """Return the place on the board of results that are numbers; None for objects."""
    if spec.dtype is None:
        return None
    return board.numbers(spec.dtype)


def fill_row(out: npt.NDArray[Any], i: int, value: Any) -> None:
    """Fill a row of the array that the caller gave, or say why the result does not fit."""
    row = out[i, ...]
    # NumPy's rule for a Python number: it takes the array's dtype if the kind allows.
    weak = value if type(value) in (bool, int, float, complex) else np.asarray(value)
    if np.shape(weak) != row.shape:
        raise ValueError(
            f"the result has shape {np.shape(weak)}, a row of out= has shape {row.shape}"
        )
    np.copyto(row, weak, casting="same_kind")
