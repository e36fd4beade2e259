"""Stores results, in an array in shared memory that all workers fill, or in the workers' logs.

The first result decides where. Numbers and arrays fill one output array, ``(n, *shape)``, which is
a part of the board for short numbers. A result that does not fit this array, and any other object,
is pickled and appended to a log, and its place is stored on the page of its item. So no work is
lost when results differ. With a checkpoint, rows are also written to its files, and logs are files.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.functions.pickling import dumps, dumps_apart, note_on_result
from nbshare._core.memory import Segment
from nbshare._core.store.apart import pickler_maker
from nbshare._core.store.logs import ALONE, OUT_OF_BAND, LogKey, LogWriter, Parts, entry_parts, fill
from nbshare._core.store.pages import IN_LOG, IN_OUTPUT, Page
from nbshare._core.store.rows import Decided, Rows, RowWriter, index_of
from nbshare._core.store.specs import ASK, KIND_OF, KINDS, OBJECTS, OutputSpec, spec_for
from nbshare.errors import CheckpointError


class ResultStore:
    """The worker's side: stores results in the output array or in the worker's log.

    Parameters
    ----------
    page : Page
        The newest page of the board.
    agree : callable
        ``agree(kind)`` returns the kind of results on which all workers agree.
    ask : callable
        ``ask(spec)`` returns three values: the spec of the call; a function that returns rows of
        the output, from the first row and their number, or None without an output; and the writer
        of the checkpoint's files, or None without a checkpoint. It is called with the spec of the
        first result, and again after `forget_code`.
    announce : callable
        The argument of `LogWriter`.
    began_ns : callable, optional
        Returns the start time of the current items. None if the items run in another process.

    Attributes
    ----------
    number : type or None
        The class of results that `put_numbers` accepts. None if there is none, or before the first
        result.
    takes_objects : bool
        Whether `put_objects` stores results, because one was not a number of this class.
    make_pickler : callable
        Returns the picklers of results (`store.apart`).
    """

    def __init__(
        self,
        page: Page,
        agree: Callable[[int], int],
        ask: Callable[[OutputSpec], Decided],
        announce: Callable[[LogKey, Segment], None],
        began_ns: Callable[[], int] | None = None,
    ) -> None:
        self._agree, self._ask, self._began_ns = agree, ask, began_ns
        self._log = LogWriter(announce)
        self.make_pickler = pickler_maker()
        self._spec: OutputSpec | None = None
        self._page, self._n = page, 0  # the number of rows to fill
        self._rows: Rows | None = None
        self._writer: RowWriter | None = None  # a checkpoint's writer
        self._out: Any = None  # the rows of the page's items
        self.number: type | None = None
        self.takes_objects = False

    def turn_to(self, page: Page, stop: int) -> None:
        """Prepare to store results of a page, up to item `stop`."""
        is_other = page is not self._page
        self._page, self._n = page, stop - page.first
        if self._rows is not None and (is_other or len(self._out) < self._n):
            self._out = self._rows(page.first, self._n)

    @property
    def is_slow(self) -> bool:
        """Whether storing a result has costs that several results can share."""
        return self.takes_objects or self._writer is not None

    def forget_code(self) -> None:
        """Ask for the spec again with the next result, because the code version has changed."""
        if self._writer is not None:
            self._spec = None

    def put_numbers(self, items: range, values: list[Any]) -> bool:
        """Store results of class `number`. Return False if the dtype cannot hold them."""
        if self._spec is None:
            self.settle(spec_for(values[0]))
        places = self._places(items)
        out = self._out[places]
        try:
            # An assignment would look up the dtype of each value, which takes two or three times as
            # long.
            struct.pack_into(f"{len(values)}{out.dtype.char}", out, 0, *values)
        except struct.error:  # an int is too large for the dtype of earlier ones
            return False
        self._write(places, out)
        self._page.mark(places, IN_OUTPUT)
        return True

    def put_rows(self, items: range, rows: Any, given: OutputSpec) -> None:
        """Store several results that are the rows of an array with this spec."""
        fits, places = self.settle(given).holds_rows(given), self._places(items)
        if fits and self._out is not None:
            self._out[places] = rows
        if fits and self._write(places, rows):
            self._page.mark(places, IN_OUTPUT)
            return
        for i, value in zip(items, rows.tolist() if given.number else rows, strict=True):
            self.put(i, value)

    def put(self, i: int, value: Any) -> None:
        """Store the result of item `i`, then mark it as done."""
        spec = self._spec or self.settle(spec_for(value))
        place = i - self._page.first
        at = slice(place, place + 1)
        if spec.is_given:
            fill_row(self._out, place, value)
        elif type(value) is not self.number and not spec.holds(value):
            return self._append(i, value)
        elif self._out is not None:
            try:
                self._out[place] = value
            except OverflowError:  # an int is too large for the dtype of earlier ones
                return self._append(i, value)
        elif self._writer is None:  # the files of the output could not be opened
            return self._append(i, value)
        if self._writer is not None:
            row = np.asarray(value, spec.dtype)[None]
            if not self._write(at, row):
                return self._append(i, value)
        self._page.mark(place, IN_OUTPUT)
        return None

    def _write(self, places: slice, values: npt.NDArray[Any]) -> bool:
        """Write results to the files, if any. Return whether they are stored."""
        if (writer := self._writer) is None:
            return self._out is not None
        try:
            writer.put(self._page.rows[places], values, self._told(writer, places))
        except (OSError, CheckpointError):  # the owner tries again, and reports failures
            return self._out is not None
        return True

    def _told(self, writer: RowWriter, places: slice) -> npt.NDArray[Any]:
        """Return the index words of some results."""
        n, took_s = places.stop - places.start, 0.0
        if self._began_ns is not None:
            took_s = (time.monotonic_ns() - self._began_ns()) / n / 1e9
        return index_of(self._page.attempts[places], writer.code, took_s)

    def settle(self, wanted: OutputSpec) -> OutputSpec:
        """Return the spec of the results, which the first result requests."""
        if self._spec is not None:
            return self._spec
        kind = self._agree(KIND_OF.get(wanted, ASK))
        if kind == ASK:
            self._spec, self._rows, self._writer = self._ask(wanted)
        else:
            self._spec = KINDS[kind]
            if self._spec.dtype is not None:
                page, dtype = self._page, self._spec.dtype
                self._rows = lambda *_: page.numbers(dtype)
        if self._rows is not None:
            self._out = self._rows(self._page.first, self._n)
        spec = self._spec
        if spec.dtype is not None and not spec.is_given and spec in KIND_OF:
            self.number = spec.number or spec.dtype.type
        return spec

    def _append(self, i: int, value: Any) -> None:
        try:
            data, buffers = dumps_apart(value, OUT_OF_BAND, self.make_pickler)
        except Exception as error:
            note_on_result(error, value)
            raise
        is_array = self._spec is not None and self._spec.dtype is not None
        self.takes_objects = self.number is not None or not is_array
        self.put_record(range(i, i + 1), *entry_parts(data, buffers), ALONE)

    def put_objects(self, items: range, values: list[Any]) -> bool:
        """Store frozen results of several items in one pickle. Return False if that fails."""
        try:
            self._put_batch(items, values)
        except Exception:  # noqa: BLE001 - no memory, or one cannot be pickled, which raises later
            return False
        return True

    def put_object(self, i: int, value: Any) -> None:
        """Store the frozen result of item `i`."""
        self._put_batch(range(i, i + 1), [value])

    def _put_batch(self, items: range, values: list[Any]) -> None:
        self.settle(OBJECTS)
        try:
            data = dumps(values)
        except Exception as error:
            note_on_result(error, values[0])
            raise
        self.put_record(items, *entry_parts(data, []), np.arange(len(items)))

    def put_record(self, items: range, parts: Parts, size: int, which: Any) -> None:
        """Store a record of one or more results, and mark their items as done.

        `size` is that of an `Entry`, and `which` has the places of the results in the batch.
        """
        places = self._places(items)
        index = self._page.index[:, places]
        index[2], index[3] = size, which
        found = self._in_file(places, parts, abs(size))
        index[0], index[1] = found or self._log.append(parts, abs(size))
        self._page.mark(places, IN_LOG)

    def _places(self, items: range) -> slice:
        """Return the slice of items on the page."""
        return slice(items.start - self._page.first, items.stop - self._page.first)

    def _in_file(self, places: slice, parts: Parts, nbytes: int) -> tuple[LogKey, int] | None:
        """Write a record to the files, if any. Return its place, or None if that fails."""
        if (writer := self._writer) is None:
            return None
        record = parts[0][1] if len(parts) == 1 else fill(bytearray(nbytes), parts)
        rows, entries = self._page.rows[places], self._page.index[2:, places].T
        try:
            start = writer.put_record(rows, record, entries, self._told(writer, places))
        except (OSError, CheckpointError):  # it is stored in memory, and the owner tries again
            return None
        return writer.log, start


def fill_row(out: npt.NDArray[Any], i: int, value: Any) -> None:
    """Fill a row of the caller's array, or raise an error that says why the result does not fit."""
    row = out[i, ...]
    # NumPy's rule: a Python number adopts the array's dtype if its kind allows.
    weak = value if type(value) in (bool, int, float, complex) else np.asarray(value)
    if np.shape(weak) != row.shape:
        raise ValueError(
            f"the result has shape {np.shape(weak)}, but a row of out= has shape {row.shape}"
        )
    try:
        np.copyto(row, weak, casting="same_kind")
    except TypeError:
        raise TypeError(
            f"the result has dtype {np.asarray(weak).dtype}, which out= of dtype {row.dtype} "
            "cannot hold. Pass out= with a dtype that can, or convert the result in the function."
        ) from None
