"""Where results go: an array in shared memory that all workers fill, or the workers' logs.

The first result decides. Numbers and arrays get one output array, ``(n, *shape)``. A result that
does not fit it, and any other object, is pickled into a segment of the worker's own, its log;
the board says where each one lies. So no work is lost when results turn out to differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.create import empty
from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.engine.log import LogKey, LogReader, LogWriter
from nbshare.engine.schedule import FAILED, IN_LOG, IN_OUTPUT, KIND, NUMBER_BYTES, Board
from nbshare.errors import MixedResultsWarning, TaskError, warn
from nbshare.memory import Segment, pool

__all__ = [
    "MISSING",
    "LogKey",
    "OutputSpec",
    "ResultStore",
    "Results",
    "collect",
    "fill_row",
    "spec_for",
]


class _Missing:
    """The gap in a list of partial results."""

    def __repr__(self) -> str:
        return "nbshare.MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


class OutputSpec(NamedTuple):
    """What one result looks like."""

    dtype: np.dtype[Any] | None  # None: objects, which go to the logs
    shape: tuple[int, ...]
    number: type | None  # Python's own number class that fits, for scalars
    is_given: bool = False  # the caller gave the array: results must fit, casting "same_kind"


OBJECTS = OutputSpec(None, (), None)

# Kinds of results that workers agree on by themselves: numbers, which have room on the board. With
# others one of them has to ask the caller, which takes the time of some hundred tiny items.
ASK = 1
NUMBERS = {
    ASK + 1 + code: OutputSpec(np.dtype(t), (), t if t in (bool, int, float) else None)
    for code, t in enumerate([bool, int, float, *"?bBhHiIqQlLefdF"])
    if np.dtype(t).itemsize <= NUMBER_BYTES
}
_KINDS = {spec: kind for kind, spec in reversed(NUMBERS.items())}


def spec_for(value: Any) -> OutputSpec:
    """Return the output that a first result asks for."""
    if type(value) in (bool, int, float, complex):
        dtype = np.asarray(value).dtype
        return OBJECTS if dtype.hasobject else OutputSpec(dtype, (), type(value))
    if isinstance(value, np.generic) or type(value) in (np.ndarray, SharedArray):
        # Of strings and records only arrays are stacked: single ones are objects to their users.
        is_stacked = value.ndim > 0 or not issubclass(value.dtype.type, np.flexible)
        if is_stacked and not value.dtype.hasobject and value.dtype.char != "T":
            return OutputSpec(value.dtype, value.shape, None)
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

    @property
    def number(self) -> type | None:
        """The class of results that `put_numbers` takes; None for none, or before the first."""
        spec = self._spec
        if spec is None or spec.is_given or spec not in _KINDS:
            return None
        assert spec.dtype is not None
        return spec.number or spec.dtype.type

    def put_numbers(self, items: range, values: list[Any]) -> bool:
        """Store the results of several items, if all are such numbers."""
        if not values:
            return True
        if type(values[-1]) is not self.number:  # the others are
            return False
        try:
            self._out[items.start : items.stop] = values
        except OverflowError:  # a Python int too large for the dtype of those before it
            return False
        self._board.done[items.start : items.stop] = IN_OUTPUT
        return True

    def put(self, i: int, value: Any) -> None:
        """Store the result of item `i`, then mark it as done."""
        spec = self._spec or self._settle(spec_for(value))
        if spec.is_given:
            fill_row(self._out, i, value)
        elif not self._fits(value):
            return self._append(i, value)
        else:
            try:
                self._out[i] = value
            except OverflowError:  # a Python int too large for the dtype of those before it
                return self._append(i, value)
        self._board.done[i] = IN_OUTPUT
        return None

    def _settle(self, wanted: OutputSpec) -> OutputSpec:
        """Learn, with the first result, where results go."""
        kind = self._board.agree(_KINDS.get(wanted, ASK), self._lock)
        if kind == ASK:
            self._spec, self._out = self._ask(wanted)
        else:
            self._spec = NUMBERS[kind]
            self._out = numbers_of(self._board, self._spec)
        return self._spec

    def _fits(self, value: Any) -> bool:
        spec = self._spec
        assert spec is not None
        if spec.dtype is None:
            return False
        if type(value) is spec.number:
            return True
        return (
            isinstance(value, np.ndarray | np.generic)
            and value.dtype == spec.dtype
            and value.shape == spec.shape
            and not isinstance(value, np.ma.MaskedArray)
        )

    def _append(self, i: int, value: Any) -> None:
        self._board.index[i] = self._log.append(value)
        self._board.done[i] = IN_LOG


def numbers_of(board: Board, spec: OutputSpec) -> npt.NDArray[Any]:
    """Return the place on the board of results that are numbers."""
    assert spec.dtype is not None
    return board.numbers[: board.n_tasks * spec.dtype.itemsize].view(spec.dtype)


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


class Results:
    """The caller's side: what is there, as an array or a list.

    Parameters
    ----------
    board : Board
        Of the call.
    spec : OutputSpec or None
        None: the first result decides.
    array : ndarray or None
        The output, if the caller gave one.
    """

    def __init__(
        self, board: Board, spec: OutputSpec | None, array: npt.NDArray[Any] | None
    ) -> None:
        self._board = board
        self._spec = spec
        self._array = array
        if spec is not None:
            board.header[KIND] = ASK  # it is decided already
        self.logs = LogReader()
        self.errors: dict[int, BaseException] = {}  # by item, of those that failed and may
        self._is_fresh = True
        self.is_over = False  # nobody writes any more

    @property
    def spec(self) -> OutputSpec | None:
        """What results look like; None before the first."""
        kind = int(self._board.header[KIND])
        if self._spec is None and kind > ASK:
            self._spec = NUMBERS[kind]
            self._array = shared_view(numbers_of(self._board, self._spec))
        return self._spec

    @property
    def array(self) -> npt.NDArray[Any] | None:
        """The output; None if there is none, or none yet."""
        return self._array if self.spec is not None else None

    def decide(self, spec: OutputSpec) -> None:
        """Take the first result's spec and allocate the output, if that has not been done."""
        if self.spec is not None:
            return
        if spec.dtype is not None:
            shape = (self._board.n_tasks, *spec.shape)
            lease, self._is_fresh = pool.writable(math.prod(shape) * spec.dtype.itemsize)
            self._array = shared_view(np.ndarray(shape, spec.dtype, buffer=lease))
        self._spec = spec

    def clear_missing(self, torn: list[int]) -> None:
        """Zero the rows that are not there, before anybody sees them.

        In fresh memory these are the `torn` ones, in whose middle a worker was ended; in used
        memory all of them hold somebody's old results.
        """
        if self.array is not None:
            rows = torn if self._is_fresh else np.flatnonzero(self._board.done != IN_OUTPUT)
            self.array[rows] = np.zeros((), self.array.dtype)

    def final(self, *, with_errors: bool = False) -> Any:
        """Return all results: one array if they fit, else a list.

        If it may be `with_errors`, the array is masked where items failed, and the list has the
        errors in their places.
        """
        if self.array is None:
            return self._list(with_errors=with_errors)
        if (self._board.done == IN_LOG).any():
            values = self._list(with_errors=with_errors)
            results = values if self.errors else collect(values)
            return as_masked(results) if with_errors else results
        return self.partial() if with_errors else self.array

    def partial(self) -> Any:
        """Return what is there now: a masked array, a list with gaps, or None before any."""
        if self.spec is None:
            return None
        if self.array is None or (self._board.done == IN_LOG).any():
            return self._list(gaps=True)
        missing = self._board.done != IN_OUTPUT
        rows = missing.reshape(-1, *[1] * (self.array.ndim - 1))
        mask = np.broadcast_to(rows, self.array.shape)
        if self.is_over:
            mask = mask.copy()  # the caller may assign to it
        # Else of stride 0 within rows: a full one would cost a byte per value at every frame.
        return np.ma.MaskedArray(np.asarray(self.array), mask=mask, copy=False)

    def _list(self, *, gaps: bool = False, with_errors: bool = False) -> list[Any]:
        """Return results and errors as a list; where one cannot be loaded raise, or leave a gap."""
        values = []
        for i, state in enumerate(self._board.done.tolist()):
            try:
                values.append(self._get(i, state))
            except TaskError as error:
                self._board.done[i] = FAILED  # what cannot be loaded is not there
                self.errors[i] = error
                if not gaps and not with_errors:
                    raise
                values.append(error if with_errors else MISSING)
        return values

    def get(self, i: int) -> Any:
        """Return the result of item `i`, or its error, or `MISSING` if neither is here yet."""
        return self._get(i, int(self._board.done[i]))

    def _get(self, i: int, state: int) -> Any:
        if state == IN_OUTPUT:
            assert self.array is not None
            value = self.array[i]
            if isinstance(value, np.ndarray):
                return value.copy()
            return value.item() if self.spec and self.spec.number else value
        if state == FAILED:
            return self.errors.get(i, MISSING)
        if state != IN_LOG:
            return MISSING
        entry = tuple(self._board.index[i].tolist())
        return self.logs.load(i, entry) if self.logs.has(entry) else MISSING


def as_masked(results: Any) -> Any:
    """Return an array as one that has a mask, of nothing; anything else as it is."""
    if not isinstance(results, np.ndarray) or isinstance(results, np.ma.MaskedArray):
        return results
    mask = np.zeros(results.shape, np.bool_)
    return np.ma.MaskedArray(np.asarray(results), mask, copy=False)


def collect(values: list[Any]) -> Any:
    """Return results as one array in shared memory if they fit one, else as the list they are.

    Warns if they are numbers or arrays that differ.
    """
    specs = [spec_for(value) for value in values]
    if specs[0].dtype is None:
        return values
    stacked = _stack(values, specs)
    if stacked is not None:
        return stacked
    odd = next((i for i, spec in enumerate(specs) if spec[:2] != specs[0][:2]), 0)
    warn(
        f"results differ in kind, so they come as a list: item 0 gave a {_kind(values[0])}, "
        f"item {odd} a {_kind(values[odd])}. Return one dtype and shape to get one array, or say "
        'out="list".',
        MixedResultsWarning,
    )
    return values


def stack(values: list[Any]) -> Any:
    """Return tuples of results as a tuple of arrays, ``out="stack"``.

    Where items failed, the arrays are masked. What fits no such tuple comes as the list it is.
    """
    there = [value for value in values if not isinstance(value, BaseException)]
    if not there or not all(isinstance(v, tuple) and len(v) == len(there[0]) for v in there):
        warn(
            'out="stack" takes functions that return tuples of one length; the results come as '
            "a list",
            MixedResultsWarning,
        )
        return values
    failed = np.array([isinstance(value, BaseException) for value in values])
    return tuple(_column(values, failed, k) for k in range(len(there[0])))


def _column(values: list[Any], failed: npt.NDArray[np.bool_], k: int) -> Any:
    """Return the k-th parts of results."""
    there = collect([v[k] for v, is_missing in zip(values, failed, strict=True) if not is_missing])
    if not failed.any():
        return there
    if isinstance(there, list):
        parts = iter(there)
        return [v if is_bad else next(parts) for v, is_bad in zip(values, failed, strict=True)]
    full = empty((len(values), *there.shape[1:]), there.dtype)
    full[~failed] = there
    rows = failed.reshape(-1, *[1] * (full.ndim - 1))
    mask = np.broadcast_to(rows, full.shape).copy()
    return np.ma.MaskedArray(np.asarray(full), mask, copy=False)


def _stack(values: list[Any], specs: list[OutputSpec]) -> npt.NDArray[Any] | None:
    """Return one array in shared memory if every value survives the common dtype."""
    if any(s.dtype is None or s.shape != specs[0].shape for s in specs):
        return None
    try:
        dtype = np.result_type(*{s.dtype for s in specs if s.dtype is not None})
    except TypeError:
        return None
    array = empty((len(values), *specs[0].shape), dtype)
    for row, value in enumerate(values):
        array[row] = value
        if not _survives(np.asarray(array[row]), np.asarray(value)):
            return None
    return array


def _survives(stored: npt.NDArray[Any], value: npt.NDArray[Any]) -> bool:
    """Whether a value can be had back from what was stored of it."""
    if stored.dtype.kind == "c" and value.dtype.kind != "c":
        stored = stored.real  # casting the whole would warn
    back = stored.astype(value.dtype)
    return np.array_equal(back, value, equal_nan=not issubclass(value.dtype.type, np.flexible))


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} array of shape {value.shape}"
    return type(value).__name__
