"""Where results go: an array in shared memory that all workers fill, or the workers' logs.

The first result decides. Numbers and arrays get one output array, ``(n, *shape)``. A result that
does not fit it, and any other object, is pickled and appended to a log; the board says where each
one lies. So no work is lost when results turn out to differ.
"""

from __future__ import annotations

import itertools
import os
import pickle
import struct
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.errors import noted
from nbshare.functions import dumps_apart
from nbshare.memory import Segment, aligned
from nbshare.wire.board import IN_LOG, IN_OUTPUT, Board
from nbshare.wire.results import (
    ALONE,
    ASK,
    IN_MEMORYVIEW,
    KIND_OF,
    KINDS,
    ON_BOARD,
    OUT_OF_BAND,
    Entry,
    LogKey,
    OutputSpec,
    numbers_of,
    parts_of,
    spec_for,
)

__all__ = ["LogWriter", "ResultStore", "fill_row"]

LOG_BYTES = 1 << 20  # of a worker's first log; pages cost nothing before they are used
# A large entry has a log to itself, and so is freed with its array; but every log costs the caller
# a descriptor, so that later ones share logs that become larger and larger.
LARGE = 1 << 20
MAX_ALONE = 32

_numbers = itertools.count()


class LogWriter:
    """A worker's side: what it appends lies on the board while there is room, then in its own logs.

    Parameters
    ----------
    board : Board
        Of the call.
    announce : callable
        ``announce(key, segment)`` tells the caller of a new log.
    lock : context manager
        Held to agree with the other workers.
    """

    def __init__(
        self,
        board: Board,
        announce: Callable[[LogKey, Segment], None],
        lock: AbstractContextManager[Any],
    ) -> None:
        self._board, self._announce, self._lock = board, announce, lock
        self._log: Segment | None = None
        self._key = ON_BOARD
        self._position = 0  # bytes
        self._n_alone = 0
        self._n_bytes = 0  # written so far

    def append(self, data: bytes) -> tuple[LogKey, int]:
        """Write one or several pickles; returns in which log they are, and where."""
        nbytes = len(data)
        if self._log is None and (start := self._board.take_small(nbytes, self._lock)) is not None:
            self._board.small[start : start + nbytes] = data
            return ON_BOARD, start
        log, start = self._room_for(nbytes)
        log[start : start + nbytes] = data
        return self._key, start

    def append_parts(self, data: bytes, buffers: list[memoryview]) -> Entry:
        """Write the pickle of a result and its buffers; returns what finds it again."""
        parts, nbytes = parts_of(data, buffers)
        if nbytes >= LARGE and self._n_alone < MAX_ALONE:
            self._n_alone += 1
            key = _new_key()
            self._announce(key, Segment.filled(nbytes, parts, sealed=False))
            return key, 0, -nbytes, ALONE
        log, start = self._room_for(nbytes)
        for offset, part in parts:
            log[start + offset : start + offset + part.nbytes] = part
        return self._key, start, -nbytes, ALONE

    def _room_for(self, nbytes: int) -> tuple[Segment, int]:
        """Return a log with so much room, and where that begins."""
        start, self._n_bytes = aligned(self._position), self._n_bytes + nbytes
        log = self._log
        if log is None or start + nbytes > log.nbytes:
            log, start = Segment.create(max(LOG_BYTES, self._n_bytes)), 0
            self._log, self._key = log, _new_key()
            self._announce(self._key, log)
        self._position = start + nbytes
        return log, start


def _new_key() -> LogKey:
    return (os.getpid() << 32) + next(_numbers)


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
    takes_objects : bool
        Whether results have come that are no such numbers: more will, and go with `put_objects`.
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
        self._log = LogWriter(board, announce, lock)
        self._spec: OutputSpec | None = None
        self._out: Any = None
        self.number: type | None = None
        self.takes_objects = False

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
        """Store the results of several items, which are such numbers, if the dtype holds all."""
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
        kind = self._board.agree(KIND_OF.get(wanted, ASK), self._lock)
        if kind == ASK:
            self._spec, self._out = self._ask(wanted)
        else:
            self._spec = KINDS[kind]
            self._out = numbers_of(self._board, self._spec)
        spec = self._spec
        if spec.dtype is not None and not spec.is_given and spec in KIND_OF:
            self.number = spec.number or spec.dtype.type
        return spec

    def _append(self, i: int, value: Any) -> None:
        try:
            data, buffers = dumps_apart(value, OUT_OF_BAND)
        except Exception as error:
            noted(error, f"its result, a {type(value).__name__}, cannot be sent: {_remedy(value)}")
            raise
        self.takes_objects = self.number is not None or self._out is None
        if buffers:
            entry = self._log.append_parts(data, buffers)
        else:
            entry = (*self._log.append(data), len(data), ALONE)
        self._board.index[:, i] = entry
        self._board.done[i] = IN_LOG

    def put_objects(self, items: range, values: list[Any]) -> bool:
        """Store the results of several items, frozen, if there is memory for all."""
        try:
            self._put_batch(items, values)
        except (MemoryError, OSError):
            return False
        return True

    def put_object(self, i: int, value: Any) -> None:
        """Store the result of item `i`, frozen."""
        self._put_batch(range(i, i + 1), [value])

    def _put_batch(self, items: range, values: list[Any]) -> None:
        data = pickle.dumps(values, 5)
        key, start = self._log.append(data)
        index = self._board.index[:, items.start : items.stop]
        index[0], index[1], index[2], index[3] = key, start, len(data), range(len(items))
        self._board.done[items.start : items.stop] = IN_LOG


def _remedy(value: Any) -> str:
    """Say what to return instead of a result that cannot be pickled."""
    if hasattr(value, "send"):
        if hasattr(value, "__await__"):
            return "run it, and return what asyncio.run(...) gives"
        return "return what it gives, list(...) of it"
    return "return numbers, arrays, or other objects that can be pickled"


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
