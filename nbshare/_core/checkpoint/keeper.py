"""Loads the stored results of a call, and stores new ones.

Workers write results to the files of the checkpoint before the owner sees them, so a killed owner
loses none. Objects are stored only in these files. So are large arrays if items are in the order of
the rows: the owner then maps their file. Other results are also in memory, as in any call. A thread
of the owner checks the board at intervals, and writes failures, results from other hosts, and
results that the disk refused before. With ``durability="power"``, the thread also flushes to the
disk. Checksums detect results that were not on the disk when the power failed.
"""

from __future__ import annotations

import _thread
import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from nbshare._core.checkpoint import writer
from nbshare._core.checkpoint.directory import Directory, storable
from nbshare._core.checkpoint.key import Key, key_of
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.checkpoint.sources import Sources
from nbshare._core.engine.call import Call
from nbshare._core.engine.outputs import Keeper, Output
from nbshare._core.engine.request import Request, tiles_of
from nbshare._core.functions.freshness import is_as_read, own_modules, stamp_of
from nbshare._core.messages import counted, noted, users_line, warn_at_most
from nbshare._core.source.changes import changes
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.pages import FAILED, IN_LOG, IN_OUTPUT, NOT_DONE, Page
from nbshare._core.store.reading import STORED, copy_rows
from nbshare._core.store.rows import FilePlace, RowNumbers, RowWriter, TransferSource, index_of
from nbshare._core.store.specs import ASK, KIND_OF, OutputSpec
from nbshare._core.wire.board import KIND
from nbshare._core.wire.failures import describe
from nbshare.errors import CheckpointError, CheckpointWarning

SAVE_S = 0.5  # interval of checks for new results
PAUSE_S = 5.0  # pause before the next attempt on a disk that is full or fails
INSTEAD = "With backend='serial' or 'threads', items run the code that this process imported."

T = TypeVar("T")


class CheckpointKeeper(Keeper):
    """Keeps the results of one call in a checkpoint.

    Parameters
    ----------
    request : Request
        The request of the call.
    options : Checkpoint
        The folder, and the options.
    part : tuple of Key and float, optional
        The dependencies and the start (in seconds since 1970) of a run that other processes share.
        The folder then stores a part of its results.
    runs_here : bool
        Whether items run in this process.

    Raises
    ------
    CheckpointError, CheckpointInUseError, OSError
        If `Directory` raises it.
    """

    def __init__(
        self,
        request: Request,
        options: Checkpoint,
        part: tuple[Key, float] | None = None,
        *,
        runs_here: bool = False,
    ) -> None:
        key, began_at = part or (key_of(request, options.version), time.time())
        if runs_here:
            check_loaded(key.sources)
        # If code looks up names at run time, it depends on all files that this process has
        # imported.
        here = own_modules().values() if runs_here and key.sources.looks_up else ()
        self._imported = {path: stamp_of(path) for path in here}
        self._items = key.items
        self._on_full = options.on_full
        self._directory = Directory(options, key, request, began_at, "part" if part else "run")
        self._is_in_place = False  # whether results are only in the file
        self._writer: RowWriter | None = None
        self._order: list[RowNumbers] = []
        self._saved = WeakKeyDictionary[Page, Cursor]()  # results in the files, by page
        self._saving = _thread.allocate_lock()
        self._is_over = _thread.allocate_lock()  # released when the call is over
        self._is_over.acquire()
        self._has_begun = self._has_thread = self._is_lost = False
        self._try_at = 0.0  # earliest time of the next attempt after a failure
        self._has_warned = False
        self._error: BaseException | None = None  # the error that ends the run
        self._line = users_line()
        self._noted = set[int]()  # items whose failures are stored

    # ------------------------------------------------------------------------ before

    def begin(self, prepare: Callable[[], Call]) -> Call:
        """Return a call that stores its results, with stored results already in place."""
        try:
            self._begin(call := prepare())
            if self._error is not None:
                raise self._error
        except BaseException as error:
            self._directory.close(is_whole=True, error=error)
            raise
        return call

    def _begin(self, call: Call) -> None:
        self._call = call
        call.results.output.keeper = self
        call.imported |= self._imported
        call.results.logs = self._directory.reader.logs
        call.known_files = self._directory.versions.known_files()
        has_all = call.request.source is None and bool(call.request.n_items)
        if has_all:
            n_before = self._directory.n_rows
            rows = self._find(call.request.iterables, 0)
            self._directory.note_order(rows)
            if n_before and rows.min() >= n_before and self._items.odd:
                self._warn_of_new(len(rows), n_before)
        call.board.header[KIND] = ASK  # so that each worker asks for the files
        if (spec := self._directory.reader.spec) is not None:
            call.results.output.decide(spec)
        if has_all:
            self._restore(0, rows)
            call.board.next_item = call.board.next_claim()

    def _warn_of_new(self, n: int, n_before: int) -> None:
        """Warn that no item is stored, perhaps because an object differs in each process."""
        warn_at_most(
            f"{self._directory.path}: none of the {counted(n, 'item')} is among the {n_before} "
            "stored items, so all run. If the items should be the same, an object of "
            f"{' or '.join(sorted(self._items.odd)[:3])} differs each time it is created. Pass "
            "items from which the function can create it, such as numbers, arrays or file names.",
            CheckpointWarning,
            self._line,
        )

    # ------------------------------------------------------------ where results are

    def adapt(self, spec: OutputSpec) -> OutputSpec:
        """Return a spec that can be stored."""
        return storable(spec)

    def allocate(self, request: Request, spec: OutputSpec, n: int) -> Output:
        """Return the output of the call: the file of results, if possible, or memory."""
        output, is_large = None, spec not in KIND_OF
        is_in_order = bool(self._order) and np.array_equal(self._order[0], np.arange(n))
        has_tiles = tiles_of(request) is not None  # rows of tiles are not the caller's results
        if is_large and is_in_order and not has_tiles:
            output = self._attempt(partial(self._directory.output, spec))
        self._is_in_place = output is not None
        return output or super().allocate(request, spec, n)

    def files(self) -> FilePlace | None:
        """Return the files for a worker, or None if it cannot write to them."""
        return self._attempt(self._place)

    def _place(self) -> FilePlace:
        if not self._directory.writer.renew():
            raise FileNotFoundError  # checked first, because a file will be created
        assert self._call.results.output.spec is not None
        self._directory.decide(self._call.results.output.spec)
        self._directory.versions.note_imports(dict(self._call.imported))
        place = self._directory.place()
        if self._call.results.output.spec.dtype is None:
            self._directory.reader.logs.create(place.log)
        return place

    def expect(self, columns: Sequence[Any]) -> None:
        """Restore stored results of the next items before workers see these items."""
        with self._saving:
            first, n = sum(map(len, self._order)), len(columns[0])
            self._call.board.extend(n)
            columns = self._call.request.at(slice(first, first + n), columns)
            self._restore(first, self._find(columns, first))

    def _find(self, columns: Sequence[Any], first: int) -> RowNumbers:
        """Return the rows of the next items, which begin at `first`."""
        board, rows = self._call.board, np.full(len(columns[0]), -1)
        pairs = self._items.next(columns, first)
        try:
            rows = self._directory.rows_for(pairs)
        except OSError as error:
            if not board.is_open:  # no result has been computed yet
                raise
            self._note_failure(error)
        self._order.append(rows)
        return rows

    def _restore(self, first: int, rows: RowNumbers) -> None:
        """Put stored results of items, from `first` on, where workers would put new ones."""
        board, results, reader = self._call.board, self._call.results, self._directory.reader
        if self._call.request.reduce is not None:
            self._directory.forget_incomplete(rows)
        states = self._directory.states(rows)
        if (spec := results.output.spec) is not None and spec.is_given:
            states[states == IN_LOG] = 0  # they run again, and fit the caller's array or fail
        for page, low, high in board.parts(first, first + len(rows)):
            page.rows[low:high] = rows[page.first + low - first :][: high - low]
            here = states[page.first + low - first :][: high - low]
            there = low + np.flatnonzero(here == IN_OUTPUT)
            if len(there) and not self._is_in_place:
                out = results.output.some(page.first, page.n)
                copy_rows(out, there, reader.load(), page.rows[there])
            logged = low + np.flatnonzero(here == IN_LOG)
            if len(logged):
                words = reader.words()[page.rows[logged]]
                page.index[:, logged] = reader.entries(words)
            page.mark(there, IN_OUTPUT)
            page.mark(logged, IN_LOG)
        self._call.note_restored(first + np.flatnonzero(np.isin(states, STORED)))

    def leave_out(self, start: int, stop: int) -> None:
        """Mark items as done without results, because other processes run them."""
        board = self._call.board
        self._call.note_restored(np.arange(start, stop))
        for page, low, high in board.parts(start, stop):
            page.rows[low:high] = -1  # first, because items without a row are not stored
            page.mark(slice(low, high), FAILED)

    # ------------------------------------------------------------------------ meanwhile

    def start(self) -> None:
        """Start the thread that stores results."""
        self._has_begun = True
        with suppress(RuntimeError):  # no more threads are allowed, so all is stored in the end
            _thread.start_new_thread(self._live, ())
            self._has_thread = True

    def _live(self) -> None:
        try:
            while not self._is_over.acquire(timeout=SAVE_S):
                self.save()
        except BaseException as error:  # noqa: BLE001 - no thread may wait forever
            self._fail(error)
            self._is_over.acquire()
        self._finish()

    def save(self) -> None:
        """Store new results, unless the disk has just failed."""
        if not self._is_lost and time.monotonic() >= self._try_at:
            self._attempt(self._save)

    def _attempt(self, action: Callable[[], T]) -> T | None:
        """Run an action. Return its value, or None if the disk fails."""
        with self._saving:
            try:
                return action()
            except Exception as error:  # noqa: BLE001 - or the run would never end
                self._note_failure(error)
        return None

    def _save(self) -> None:
        if not self._directory.writer.renew():
            raise FileNotFoundError
        self._save_errors()  # first, so that each failed item has its error
        for page in self._call.board.pages:
            self._save_page(page)
        self._directory.flush()

    def _note_failure(self, error: Exception) -> None:
        """Warn, once, that results cannot be stored, or stop the run. Schedule the next attempt."""
        self._try_at = time.monotonic() + PAUSE_S
        where = self._directory.path
        if not self._directory.writer.renew():  # if it was removed, any error is possible
            self._is_lost = True
            gone = "the folder was removed, or another process writes to it"
            error = FileNotFoundError(2, gone, str(where))
        if self._on_full == "stop" or (self._is_lost and writer.is_driver):  # its memory is lost
            self._is_lost = True
            noted(error, f"results cannot be stored in {where}; stored results are kept")
            self._fail(error)
        elif not self._has_warned:
            self._has_warned = True
            warn_at_most(
                f"{where}: results cannot be stored ({error}). The run continues in memory, and "
                "tries again to store them. Stored results are kept.",
                CheckpointWarning,
                self._line,
            )

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error.with_traceback(None)
        if self._has_begun:
            self._call.stop(self._error)

    def _save_page(self, page: Page) -> None:
        """Write the results of a page that workers have not written."""
        results = self._call.results
        done, saved = page.states(), self._saved.setdefault(page, Cursor(page.n))
        new = np.flatnonzero(saved.new(done != NOT_DONE))
        if not len(new) or (spec := results.output.spec) is None:
            return
        rows = page.rows[new]
        is_saved = (rows < 0) | (self._directory.states(rows) == done[new])
        saved.take(new[is_saved])
        new = new[~is_saved]
        # The message about a log arrives after the ``done`` byte.
        new = new[(done[new] != IN_LOG) | results.logs.has(page.index[0, new])]
        if not len(new):
            return
        self._directory.decide(spec)
        self._directory.versions.note_imports(dict(self._call.imported))
        source = TransferSource(
            results.output.array, lambda items: page.index[:, items - page.first], results.logs
        )
        self._writer = self._writer or RowWriter(self._directory.place())
        index = index_of(page.attempts[new], self._directory.versions.number)
        index["state"] = done[new]
        self._writer.transfer(source, page.first + new, page.rows[new], index)

    def _save_errors(self) -> None:
        for i, error in self._call.results.errors.copy().items():
            if i not in self._noted:
                told = describe(error, i, "")
                record = {"type": told.type_name, "text": told.text, "traceback": told.traceback}
                for page, place, _ in self._call.board.parts(i, i + 1):
                    if (row := int(page.rows[place])) >= 0:
                        self._directory.note_error({"row": row, "time": time.time()} | record)
                self._noted.add(i)

    # ------------------------------------------------------------------------ in the end

    def end(self, then: Callable[[BaseException | None], None]) -> None:
        """Store the last results, close, and call `then` with the error, if any."""
        self._then = then
        if self._has_thread:
            self._is_over.release()
        else:
            self._finish()

    def _finish(self) -> None:
        try:
            if writer.is_driver:
                self._call.request.prints.end()  # first, so that others see all prints at the end
                self._on_full = "stop"  # results that cannot be stored now are lost
            self._try_at = 0.0
            self.save()
            if self._call.board.is_open and self._order and not self._is_lost:
                self._attempt(lambda: self._directory.note_order(np.concatenate(self._order)))
            call, close = self._call, self._directory.close
            told = {"is_enough": call.is_enough, "n_items": call.n_items}
            error, is_whole = call.error or self._error, not self._is_lost
            self._attempt(partial(close, is_whole=is_whole, error=error, **told))
        except BaseException as error:  # noqa: BLE001 - as above
            self._fail(error)
        finally:
            self._try_at = math.inf  # store no more: another run may write to the folder
            self._then(self._error)


def check_loaded(sources: Sources) -> None:
    """Raise CheckpointError if a file, or a definition in it, differs from the imported code.

    Workers import the current files. In this process, items run the code that it has imported,
    perhaps before the last edit, but their results would count as those of the new code.
    """
    if sources.older:
        raise CheckpointError(
            f"{min(sources.older)} is an older version, because its module was imported again. "
            "With backend='serial' or 'threads', the older version would run. Get it from the "
            "module again, create its objects again, or remove backend=."
        )
    reached = {own: names for own, names in sources.reached().items() if own.name in sys.modules}
    for own in reached:
        if own.stamp is None or not is_as_read(own.path, own.stamp):
            raise CheckpointError(
                f"{own.path} was edited, perhaps after this process imported it. {INSTEAD} Call "
                f"importlib.reload({own.name}), restart the kernel, or remove backend=."
            )
    found = changes(sys.modules[own.name] for own in reached)
    for own, names in reached.items():
        for change in found.get(own.name, ()):
            if change.name.partition(".")[0] in names:
                raise CheckpointError(
                    f"{change.text}. {INSTEAD} Call importlib.reload({own.name}), or remove "
                    "backend=."
                )
