"""The folder of a checkpoint: its files, and the order in which they are written.

::

    README.txt    how to read this with NumPy alone
    meta.json     format, versions of programs, form of the results
    code.json     dependencies of results when they were stored, by number
    items.npy     per row: the digest of its item, and a check of it
    results.npy   per row: the result, if results are numbers or arrays of one shape
    objects.*.log other results, as pickles
    index.npy     per row: times, place in a log, state, attempts, number in code.json, checksum:
                  written last
    order.npy     per item of the last call: its row; then a checksum. Exists from the start
    errors.jsonl  errors of failed items, by row
    plot.pickle   the plot of the last call: see `runs`
    lease.json    the writer, and how it ended; the file lock: held by it in the kernel
    driver        for a run with a process of its own: see `runs`
    parts         for a run that several processes share: see `checkpoint.sweep`

Rows are written by `store.rows`.
"""

from __future__ import annotations

import io
import platform
import secrets
import shutil
import time
import zlib
from contextlib import suppress
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from numpy.lib import format as npy

from nbshare import __version__
from nbshare._core.checkpoint.items import ITEMS, Lookup, Pairs, as_rows
from nbshare._core.checkpoint.key import Key
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.checkpoint.reader import (
    CRC_BYTES,
    ERRORS_FILE,
    ITEMS_FILE,
    ORDER_FILE,
    RowReader,
    Whole,
    whole_of,
)
from nbshare._core.checkpoint.versions import Versions
from nbshare._core.checkpoint.writer import PARTS, Role, Writer, check_free
from nbshare._core.engine.outputs import Output, spec_given_by
from nbshare._core.engine.request import Request
from nbshare._core.functions.pickling import dumps
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.store import files
from nbshare._core.store.pages import FAILED, IN_LOG
from nbshare._core.store.reading import MOST_BYTES, STORED, told_of
from nbshare._core.store.rows import (
    HEAD,
    INDEX,
    INDEX_FILE,
    LOG_BIT,
    RESULTS_FILE,
    FilePlace,
    RowNumbers,
    RowWriter,
    TransferSource,
    log_file,
)
from nbshare._core.store.specs import OBJECTS, OutputSpec
from nbshare._core.system import files as system_files
from nbshare._core.wire.failures import describe
from nbshare.errors import CheckpointError, CheckpointInUseError

FORMAT = 5  # earlier formats were never released
FLUSH_S = 1.5  # interval of syncs, for the disk and for other machines
LOG_FILE = "driver/log.txt"  # prints of the driver
MOST_TEXT = 10_000  # limit for the text of a run's error
MOST_PICKLED = 64 << 10  # largest function in a lease, in bytes
BEFORE_META = {"lock", "driver"}  # may exist before meta.json, unlike all other files


README = """This is a checkpoint of nbshare, format {format}: the results of {label}.

    import numpy as np
    index = np.load("index.npy", mmap_mode="r")
    done = index["state"] == 1                            # 2: in objects.*.log, 3: failed
    results = np.load("results.npy", mmap_mode="r")       # one row per item; look at results[done]

Rows are in the order in which items first came. order.npy has the row of each item of the last
call, so results[order] is in the order of its items. index["crc"][i] is the checksum
zlib.crc32(index[i].tobytes()[:{head}], zlib.crc32(results[i])). Results that fit no array are
pickles in objects.*.log; index["at"] has the offset and the number of bytes of each.
Offset // 2**{bit} is the number of the log, and the rest the offset in it.
index["stored_at"] is the time when a row was stored, in seconds since 1970; index["elapsed_s"] is
what its item took, 0 if that is unknown; index["code"] is a place in code.json: what the result
depended on. You may read all files while a run writes to them. Do not edit them.
"""


def check_place(path: Path) -> None:
    """Raise CheckpointError if a folder is not a checkpoint, or has an unknown format."""
    files.check_folder(path, is_given=True)
    names = {file.name for file in path.glob("[!.]*")}
    data, told = files.read(path / "meta.json"), dict[str, Any]()  # another run may begin just now
    with suppress(ValueError):  # other formats may have other checksums
        told = files.parsed(data or b"")
    if told.get("format", FORMAT) != FORMAT:
        raise CheckpointError(
            f"{path} has format {told['format']}, of nbshare {told.get('nbshare')}, but this "
            f"nbshare supports format {FORMAT}. Use that nbshare, or another path."
        )
    if data is None and names - BEFORE_META:
        raise CheckpointError(
            f"{path} exists and is not a checkpoint: it has no meta.json. "
            "Pass checkpoint= the path of a new or empty folder."
        )


def storable(spec: OutputSpec) -> OutputSpec:
    """Return the spec for storing results: objects if a ``.npy`` file cannot hold the dtype."""
    dtype = spec.dtype
    is_told = dtype is None or npy.descr_to_dtype(npy.dtype_to_descr(dtype)) == dtype
    return spec if is_told else OBJECTS


class Directory:
    """The folder of a checkpoint, open for writing.

    Parameters
    ----------
    options : Checkpoint
        The options: path of the folder, which is created if it does not exist, action if
        dependencies have changed, and durability.
    key : Key
        The dependencies of results.
    request : Request
        The running call.
    began_at : float
        The start of the call, in seconds since 1970.
    role : Role
        The purpose of the folder. A part takes space on the disk only for rows that are written.

    Attributes
    ----------
    writer : Writer
        The right to write to the folder.

    Raises
    ------
    CheckpointError
        If the folder is not a checkpoint, or its results had other dependencies or do not fit
        ``out=``.
    CheckpointInUseError
        If another run writes to the folder.
    OSError
        If the folder cannot be written to.
    """

    def __init__(
        self, options: Checkpoint, key: Key, request: Request, began_at: float, role: Role
    ) -> None:
        self.path = path = options.path
        self._durability, self._is_part = options.durability, role == "part"
        self.reader = RowReader(path)
        check_place(path)
        path.mkdir(parents=not self._is_part, exist_ok=True)
        files.check_folder(path, is_given=True)  # another user may have created it first
        self.writer = Writer(path, role)
        self._flush_at = 0.0
        self._tables: dict[str, files.TableWriter] = {}  # by file name, except that of the items
        self._stored: Lookup | None = None  # created when needed
        try:
            self.versions = Versions(path, key)
            self._open(request.label)
            if (path / PARTS).exists():
                self._merge()
            # Also those of earlier runs, because NFS keeps a folder while a process has its files
            # open.
            for merged in path.glob(f".{PARTS}.*"):
                shutil.rmtree(merged, ignore_errors=True)
            system_files.remove_old(path)
            self._settle_version(options.if_changed)
            self._check_output(request.out)
            out = request.out if isinstance(request.out, str) else None
            told: dict[str, Any] = {"began_at": began_at, "out": out}
            told |= {"max_workers": request.max_workers}
            items = request.iterables[0] if request.iterables else None
            if isinstance(items, ShapedItems):
                told |= items.as_json()
            if request.reduce is not None:
                told["reduce"] = _as_text(request.reduce)
            self.writer.take(**told, on_error=request.policy.on_error)
        except BaseException:
            self.close(is_whole=False)
            raise

    def _open(self, label: str) -> None:
        path = self.path
        if (meta := files.read_json(path / "meta.json")) is None:
            meta = {"label": label, "created": time.time(), "results": None, "format": FORMAT}
            meta |= {"python": platform.python_version(), "numpy": np.__version__}
            meta |= {"nbshare": __version__, "durability": self._durability}
            files.replace_json(path / "meta.json", meta)
            readme = README.format(format=FORMAT, label=label, bit=LOG_BIT, head=HEAD)
            files.replace(path / "README.txt", readme.encode(), is_needed=False)
        elif meta["label"] != label:  # the last call had another label
            meta["label"] = label
            files.replace_json(path / "meta.json", meta)
        self._meta: dict[str, Any] = meta
        items = files.Table(path / ITEMS_FILE, *ITEMS, remedy="")
        self._items = files.TableWriter(items, None, is_sparse=self._is_part)
        if not self._items.n:  # the file must exist before the first item
            self.note_order(np.zeros(0, np.int64))
        self._add_table(INDEX_FILE, INDEX)
        if (spec := self.reader.spec) is not None and spec.dtype is not None:
            self._add_table(RESULTS_FILE, spec.dtype, spec.shape)
        numbers = [log.name.split(".")[1] for log in path.glob(log_file("*"))]
        logs = [int(number) for number in numbers if number.isdecimal()]
        self._sync_from = min(logs, default=1)  # the first log that may not be on the disk
        self._own_log = self._next_log = 1 + max(logs, default=0)
        self._drop_damaged()

    def _merge(self) -> None:
        """Merge the results of processes that shared a run, unless one of them is still running."""
        self.writer.take()  # first, so that a process that begins now waits for us, or we see it
        check_free(self.path)
        self._merge_parts()
        self._sync()
        # Atomically, so that a late process finds its part complete or not at all.
        system_files.move(self.path / PARTS, self.path / f".{PARTS}.{secrets.token_hex(4)}")

    def _merge_parts(self) -> None:
        whole = whole_of(self.path)
        for k, part in enumerate(whole.readers[1:], 1):
            self._merge_part(part, whole, np.flatnonzero(whole.which == k))

    def _merge_part(self, part: RowReader, whole: Whole, new: RowNumbers) -> None:
        """Copy the undamaged rows of a part."""
        spec, numbers = part.spec, self.versions.adopt(part.folder)
        words = whole.words[new]
        is_known = (words["state"] == FAILED) | (spec is not None)
        new = new[is_known & (words["code"] < len(numbers))]
        found = part.words()
        source = TransferSource(part.load(), lambda rows: part.entries(found[rows]), part.logs)
        if spec is not None:
            self.decide(spec)
            if (stored := self.reader.spec) is None or not stored.holds_rows(spec):
                source = source._replace(as_object=spec.number or copy)
        writer = RowWriter(self.place())
        nbytes = sum(map(files.size_of, part.folder.iterdir()))
        for rows in np.array_split(new, 1 + nbytes // MOST_BYTES):
            if not self.writer.renew():  # copying may take long
                raise CheckpointInUseError(f"{self.path}: another process has taken over")
            rows = rows[part.are_whole(whole.place[rows], whole.words[rows])]
            words = whole.words[rows]
            words["code"] = numbers[words["code"]]
            writer.transfer(source, whole.place[rows], rows, words)
        for record in part.errors():
            self.note_error(record | {"row": int(whole.order[record["row"]])})

    def _add_table(self, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        table = files.Table(self.path / name, np.dtype(dtype), shape)
        self._tables[name] = files.TableWriter(table, self._items.n, is_sparse=self._is_part)

    # ------------------------------------------------------------------------ its key

    def _settle_version(self, if_changed: str | None) -> None:
        """Find results with the same dependencies. Apply ``if_changed`` to the others."""
        versions, words = self.versions, self.reader.words()
        is_stored = np.isin(words["state"], STORED)
        old = is_stored & ~np.isin(words["code"], versions.accepted)
        if old.any() and if_changed is None:
            raise CheckpointError(
                f"{self.path}: {'; '.join(versions.changes_of(words['code'][old]))}. "
                f"{int(old.sum())} of {int(is_stored.sum())} results belong to the older version. "
                'Use another path, or checkpoint=nbshare.Checkpoint(path, if_changed="restart") to '
                'run them again, or if_changed="accept" to keep them as they are, for example if '
                "an equal object was created again."
            )
        versions.settle(accepts_all=bool(old.any()) and if_changed == "accept")
        if if_changed == "restart" and old.any():
            self._restart(np.flatnonzero(old), has_others=bool((is_stored & ~old).any()))

    def _restart(self, old: RowNumbers, *, has_others: bool) -> None:
        """Forget old results, but keep mapped files, so that arrays on them stay valid."""
        self._forget(old)
        results = self.path / RESULTS_FILE
        if not has_others:
            self._tables.pop(RESULTS_FILE, None)
            for file in (results, *self.path.glob(log_file("*"))):
                files.remove(file)
            self._note_form(None)
        elif RESULTS_FILE in self._tables and (before := files.opened(results)) is not None:
            files.replace(results, files.mapped(before))

    def _forget(self, rows: RowNumbers) -> None:
        """Mark rows as missing."""
        RowWriter(self.place()).commit(rows, np.zeros(len(rows), INDEX))

    def forget_incomplete(self, rows: RowNumbers) -> None:
        """Forget those of some rows that are blocks with failed items, so that they run again."""
        found = rows[self.states(rows) == IN_LOG]
        blocks = self.reader.objects(found, found, self.reader.words()[found])
        self._forget(np.array([row for row, block in blocks if block.failures], np.int64))

    def _drop_damaged(self) -> None:
        """Forget rows with damaged results."""
        words = self.reader.words()
        whole = self.reader.checked(words, words[:0])
        self._forget(np.flatnonzero(words["state"] != whole["state"]))

    # -------------------------------------------------------------------------- contents

    def _check_output(self, out: Any) -> None:
        """Raise CheckpointError if ``out=`` cannot be stored, or stored results do not fit it."""
        spec, wanted = self.reader.spec, spec_given_by(out)
        if wanted is not None and storable(wanted) is not wanted:
            raise CheckpointError(
                f"out= has dtype {wanted.dtype}, which a .npy file cannot store. Use another "
                "dtype, or do not pass out=."
            )
        if wanted is None or spec is None or spec is wanted:
            return
        if not wanted.holds_rows(spec):
            there = "other objects" if spec.dtype is None else f"{spec.dtype} of shape {spec.shape}"
            raise CheckpointError(
                f"{self.path} has results that are {there}, which do not fit out=. "
                "Use the same out= as before, or another path."
            )

    def decide(self, spec: OutputSpec) -> None:
        """Store the form of the results, unless it is already stored."""
        if self._meta["results"] is None:
            if spec.dtype is not None:
                self._add_table(RESULTS_FILE, spec.dtype, spec.shape)
            self._note_form(told_of(spec))

    def _note_form(self, told: dict[str, Any] | None) -> None:
        files.replace_json(self.path / "meta.json", self._meta | {"results": told})
        self._meta["results"] = told

    @property
    def n_rows(self) -> int:
        """Number of rows, one for each item that was ever seen."""
        return self._items.n

    def rows_for(self, pairs: Pairs) -> RowNumbers:
        """Return the rows of items. New items get new rows."""
        if self._stored is None:  # items of this call are not searched, because none occurs twice
            self._stored = Lookup(self.reader.digests())
        rows = self._stored.find(pairs)
        is_new = rows < 0
        if is_new.any():
            first, n = self._items.n, self._items.n + int(is_new.sum())
            rows[is_new] = np.arange(first, n)
            for table in self._tables.values():
                table.resize(n)
            self._items.write(first, as_rows(pairs[is_new]))
            self._items.resize(n)  # last, when the rows exist
        return rows

    # ------------------------------------------------------------------------- storing

    def output(self, spec: OutputSpec) -> Output:
        """Return the results file as the output of a call, mapped copy-on-write in this process."""
        self.decide(spec)
        return Output(self._tables[RESULTS_FILE].table.load("c"), [], None)

    def place(self) -> FilePlace:
        """Return the files for one more writer."""
        starts = {name: each.table.start for name, each in self._tables.items()}
        log, self._next_log = self._next_log, self._next_log + 1
        return FilePlace(str(self.path), starts, self.versions.number, log)

    def states(self, rows: RowNumbers) -> npt.NDArray[np.uint8]:
        """Return the states of rows, 0 for items without a row."""
        words, states = self.reader.words(), np.zeros(len(rows), np.uint8)
        has_row = (rows >= 0) & (rows < len(words))
        states[has_row] = words["state"][rows[has_row]]
        return states

    def note_order(self, rows: RowNumbers) -> None:
        """Store the row of each item of the call."""
        np.save(file := io.BytesIO(), rows)
        data = file.getvalue()
        data += zlib.crc32(data).to_bytes(CRC_BYTES)
        files.replace(self.path / ORDER_FILE, data, is_needed=False)

    def note_error(self, record: dict[str, Any]) -> None:
        """Append the record of a failed item to the file of errors."""
        files.append(self.path / ERRORS_FILE, record)

    def _sync(self) -> None:
        """Flush all files to the disk. The logs of earlier runs are flushed only the first time."""
        logs = map(log_file, range(self._sync_from, self._next_log))
        for name in (ITEMS_FILE, ORDER_FILE, *self._tables, *logs, ""):
            files.sync(self.path / name)
        self._sync_from = self._own_log

    def flush(self) -> None:
        """Flush files to the disk at intervals, with ``durability="power"``."""
        if self._durability == "power" and time.monotonic() > self._flush_at:
            self._flush_at = time.monotonic() + FLUSH_S
            self._sync()

    def close(self, *, is_whole: bool, error: BaseException | None = None, **told: Any) -> None:
        """Close the files and release the lease.

        `error` is the error of a failed run. `told` has further contents of the lease.
        """
        told["n_printed"] = files.size_of(self.path / LOG_FILE)
        if error is not None:
            failure = describe(error, -1, "", MOST_TEXT)
            notes = [str(note) for note in getattr(error, "__notes__", ())]
            told["error"] = {"type": failure.type_name, "text": failure.text, "notes": notes}
        has_all = False
        try:
            if is_whole and self._durability == "power":
                self._sync()
            has_all = is_whole
        finally:
            self.writer.close(is_whole=has_all, **told)


def _as_text(reduce: Any) -> str | None:
    """Return the pickle of ``reduce=`` as hexadecimal text, or None if it is too long or fails."""
    with suppress(Exception):  # a function that runs in this process may have no pickle
        if len(pickled := dumps(reduce)) <= MOST_PICKLED:
            return pickled.hex()
    return None
