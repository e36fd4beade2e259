"""The caller's side of the results: what is there so far, and what comes out in the end."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.create import empty
from nbshare.arrays.shared_array import shared_view
from nbshare.engine.collect import as_masked, collect, masked
from nbshare.engine.request import Request
from nbshare.errors import TaskError
from nbshare.memory import pool, segment_of
from nbshare.wire.board import FAILED, IN_LOG, IN_OUTPUT, KIND, Board
from nbshare.wire.results import (
    ASK,
    IS_OBJECT,
    KINDS,
    OBJECTS,
    Entry,
    LogReader,
    OutputSpec,
    numbers_of,
    thawed,
)

__all__ = ["MISSING", "Results"]


class _Missing:
    """The gap in a list of partial results."""

    def __repr__(self) -> str:
        return "nbshare.MISSING"

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> str:
        return "MISSING"


MISSING = _Missing()


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
    first : int
        Index of the first item, for messages.
    """

    def __init__(
        self,
        board: Board,
        spec: OutputSpec | None,
        array: npt.NDArray[Any] | None,
        first: int = 0,
    ) -> None:
        self._board = board
        self._first = first
        self._spec = spec
        self._is_list = spec is OBJECTS  # whatever the results are
        self._array = array
        if spec is not None:
            board.header[KIND] = IS_OBJECT if array is None else ASK  # it is decided already
        self.logs = LogReader(board.small)
        self.errors: dict[int, BaseException] = {}  # by item, of those that failed and may
        self._is_fresh = True
        self.is_over = False  # nobody writes any more

    @classmethod
    def wanted_by(
        cls, request: Request, board: Board, rows: npt.NDArray[Any] | None = None
    ) -> Results:
        """Return the results that a request is for; `rows` is where they go if they fit."""
        out = request.out
        spec: OutputSpec | None = None
        if rows is not None:
            spec = OutputSpec(rows.dtype, rows.shape[1:], None)
        elif isinstance(out, str):
            spec = OBJECTS
        elif out is not None:
            # A plain array is filled through shared memory: the caller copies rows as they come.
            rows = out if segment_of(out) else empty(out.shape, out.dtype)
            spec = OutputSpec(rows.dtype, rows.shape[1:], None, is_given=True)
        return cls(board, spec, rows, request.first)

    @property
    def spec(self) -> OutputSpec | None:
        """What results look like; None before the first."""
        kind = self._board.header[KIND]
        if self._spec is None and kind > ASK:
            spec = KINDS[kind]
            numbers = numbers_of(self._board, spec)
            self._array = None if numbers is None else shared_view(numbers)
            self._spec = spec  # last: another thread may look between the two
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

        In used memory all of them hold somebody's old results; in fresh memory only the `torn`
        ones, in whose middle a worker was ended, if they have not been tried again.
        """
        if self.array is not None:
            done = self._board.done
            rows: Any = np.flatnonzero(done != IN_OUTPUT)
            if self._is_fresh:
                rows = [i for i in torn if done[i] != IN_OUTPUT]
            self.array[rows] = np.zeros((), self.array.dtype)

    def final(self, *, with_errors: bool = False) -> Any:
        """Return all results: one array if they fit, else a list.

        If it may be `with_errors`, the array is masked where items failed, and the list has the
        errors in their places.
        """
        if not self.has_objects:
            return self.partial() if with_errors else self.array
        values = self.values(with_errors=with_errors)
        results = values if self._is_list else collect(values, self.errors)
        return as_masked(results) if with_errors else results

    def partial(self) -> Any:
        """Return what is there now: a masked array, a list with gaps, or None before any."""
        if self.spec is None:
            return None
        if self.array is None or self.has_objects:
            return self.values(gaps=True)
        return masked(self.array, self._board.done != IN_OUTPUT, is_kept=self.is_over)

    @property
    def is_array(self) -> bool:
        """Whether results are numbers or arrays of one shape; not all need be."""
        return self.array is not None

    @property
    def has_objects(self) -> bool:
        """Whether there are results that do not lie in the output."""
        return not self.is_array or IN_LOG in self._board.done.tobytes()

    def values(self, *, gaps: bool = False, with_errors: bool = False) -> list[Any]:
        """Return results and errors as a list; where one cannot be loaded raise, or leave a gap."""
        values: list[Any] = []
        states = self._board.done.tobytes()
        while (i := len(values)) < len(states):
            try:
                batch = self._rest_of_batch(i, states)
                if batch and bytearray not in set(map(type, batch)):
                    values += batch
                    continue
                for value in batch:
                    values.append(thawed(self._first + len(values), value))
                if not batch:
                    values.append(self._get(i, states[i]))
            except TaskError as error:
                i = len(values)
                self._board.done[i] = FAILED  # what cannot be loaded is not there
                self.errors[i] = error.with_traceback(None)
                if not gaps and not with_errors:
                    raise
                values.append(error if with_errors else MISSING)
        return values

    def _rest_of_batch(self, i: int, states: bytes) -> list[Any]:
        """Return the results, frozen, of items that were stored with item `i`, from it on."""
        if states[i] != IN_LOG or not self.logs.has(entry := self._entry(i)):
            return []
        batch = self.logs.rest_of_batch(self._first + i, entry)
        there = states[i : i + len(batch)]  # the states may have been read while it was stored
        return batch[: len(there) - len(there.lstrip(bytes([IN_LOG])))]

    def get(self, i: int) -> Any:
        """Return the result of item `i`, or its error, or `MISSING` if neither is here yet."""
        return self._get(i, int(self._board.done[i]))

    def is_here(self, i: int) -> bool:
        """Whether `get` has the result of item `i`, or its error."""
        state = int(self._board.done[i])
        if state == FAILED:
            return i in self.errors
        if state == IN_LOG:  # the log comes with a message, after the ``done`` byte
            return self.logs.has(self._entry(i))
        return state == IN_OUTPUT

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
        entry = self._entry(i)
        return self.logs.load(self._first + i, entry) if self.logs.has(entry) else MISSING

    def _entry(self, i: int) -> Entry:
        log, offset, nbytes, place = self._board.index[:, i].tolist()
        return log, offset, nbytes, place
