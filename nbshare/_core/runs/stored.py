"""A stored run, for any process: its progress, its results, and the items that would run again."""

from __future__ import annotations

import html
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arguments.options import MapOptions, checked_checkpoint, checked_request
from nbshare._core.arrays.create import zeros
from nbshare._core.checkpoint.directory import check_place
from nbshare._core.checkpoint.items import Lookup
from nbshare._core.checkpoint.key import Key, key_of
from nbshare._core.checkpoint.reader import ERRORS_FILE, RowReader, Whole, look, whole_of
from nbshare._core.checkpoint.versions import Versions
from nbshare._core.checkpoint.writer import (
    LEASE,
    is_of_this_boot,
    part_folders,
    running_writer_of,
    writer_of,
)
from nbshare._core.engine.collect import masked
from nbshare._core.engine.folding import Reduction
from nbshare._core.engine.request import Request
from nbshare._core.engine.results import MISSING
from nbshare._core.names import refuse_others
from nbshare._core.shapes.tiles import Tiles
from nbshare._core.store.files import read_json
from nbshare._core.store.pages import IN_LOG, IN_OUTPUT
from nbshare._core.store.reading import STORED, copy_rows
from nbshare._core.tracebacks import shown_from_its_calls, shown_from_the_call
from nbshare.errors import CheckpointError, TaskError

__all__ = ["Outdated", "StoredRun", "open_checkpoint"]

RATE_S = 60.0  # time over which the rate is measured


class Outdated(NamedTuple):
    """The items that a call with a checkpoint would run, and why. See `StoredRun.outdated`.

    Attributes
    ----------
    n_items : int
        Number of items of the call.
    n_stored : int
        Number of items whose results the checkpoint would supply.
    n_new : int
        Number of items without a result.
    n_changed : int
        Number of items whose results have changed dependencies.
    changes : list of str
        The changes, one sentence each.

    Examples
    --------
    How much of a longer call is stored?

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
    >>> nbshare.open_checkpoint(folder).outdated(math.sqrt, [1.0, 4.0, 9.0])
    Outdated(n_items=3, n_stored=2, n_new=1, n_changed=0, changes=[])

    Would a call be refused because of changes?

    >>> bool(nbshare.open_checkpoint(folder).outdated(math.log2, [1.0, 4.0]).changes)
    True
    """

    n_items: int
    n_stored: int
    n_new: int
    n_changed: int
    changes: list[str]


Outdated.__module__ = "nbshare.types"


@shown_from_the_call
def open_checkpoint(path: str | os.PathLike[str]) -> StoredRun:
    """Open a stored run, from any process, while it runs or afterwards.

    Examples
    --------
    The results of a run:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder, progress=False)
    >>> nbshare.open_checkpoint(folder).results()
    array([1., 2.])

    The progress, from another process:

    >>> stored = nbshare.open_checkpoint(folder)
    >>> f"{stored.n_done} of {stored.n_items} items, {stored.state}"
    '2 of 2 items, done'

    Parameters
    ----------
    path : str or path-like
        The ``checkpoint=`` of the run.

    Returns
    -------
    StoredRun
        The run. As the last expression of a notebook's cell, it shows the progress.

    Raises
    ------
    nbshare.errors.CheckpointError
        If there is no checkpoint, its format is unknown to this version, or it belongs to another
        user. The run's methods and attributes raise this error, too, if a file is damaged.
    """
    return StoredRun(Path(os.fspath(path)).expanduser().absolute())


@shown_from_its_calls
class StoredRun:
    """A stored run. Each attribute is read from the disk when it is accessed.

    Attributes
    ----------
    path : Path
        The folder of the checkpoint.
    label : str
        The name of the run's function.

    Notes
    -----
    With ``reduce=`` the items of the run are the blocks that workers have reduced.

    Examples
    --------
    How far is a run, and which items failed?

    >>> import tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> items = ["1.5", "off", "2"]
    >>> values = nbshare.parallel_map(float, items, checkpoint=folder, on_error="return")
    >>> stored = nbshare.open_checkpoint(folder)
    >>> stored.n_done, stored.n_items, stored.errors
    (3, 3, {1: TaskError("ValueError: could not convert string to float: 'off'")})

    Which items are missing, and how long did the others take?

    >>> [items[i] for i in (~stored.present).nonzero()[0]]
    ['off']
    >>> elapsed_s = stored.item_stats["elapsed_s"]
    >>> elapsed_s.shape, bool(elapsed_s.max() < 60)
    ((3,), True)
    """

    __module__ = "nbshare.types"

    def __init__(self, path: Path) -> None:
        self.path = path
        check_place(path)
        meta = read_json(path / "meta.json")
        if meta is None:
            raise CheckpointError(
                f"{path} is not a checkpoint: it has no meta.json. Pass the checkpoint= "
                "path of a run."
            )
        self.label = str(meta["label"])
        self._reader = RowReader(path)
        self._checked: dict[Path, npt.NDArray[Any]] = {}  # see `whole_of`

    @property
    def state(self) -> str:
        """State of the run's job: "running", "done", "stopped" or "failed", or else "ended".

        "ended" means that the process was killed, or that its machine is off. The same call
        continues the run. An interrupted run is "stopped", as is a run with a result that was
        damaged later.
        """
        is_running, writer = self._writer()
        if is_running:
            return "running"
        if not writer.get("ended"):
            return "ended"
        if "error" in writer:
            return "failed"
        is_done = self.n_done == self.n_items or writer.get("is_enough")
        return "done" if is_done else "stopped"

    def _writer(self) -> tuple[bool, dict[str, Any]]:
        """Return whether the run is in progress, and the lease of its process.

        If no process drives the run, the lease is that of the last one.
        """
        return look(self.path, self._last_writer)

    def _last_writer(self) -> tuple[bool, dict[str, Any]]:
        parts = sorted(part_folders(self.path), key=lambda part: (part / LEASE).stat().st_mtime)
        folders = [self.path, *parts][::-1]  # the latest first
        for folder in folders:
            if (writer := running_writer_of(folder)) is not None:
                return True, writer
        return False, writer_of(folders[0]) or {}

    def _whole(self, *, is_read: bool = False) -> Whole:
        """Return the stored results.

        Each result is checked once, so that all attributes agree. Results of a running call are
        checked when they are read, or if the disk may have lost them.
        """
        folders = [self.path, *part_folders(self.path)]
        writers = [writer_of(folder) for folder in folders if running_writer_of(folder) is None]
        is_sure = all(writer is not None and is_of_this_boot(writer) for writer in writers)
        goes_on = len(writers) < len(folders) and is_sure
        is_checked = is_read or self._checked or not goes_on
        return whole_of(self.path, self._checked if is_checked else None)

    @property
    def n_items(self) -> int:
        """Number of items of the last call (int). For a generator, the number of items read."""
        return len(self._reader.order())

    @property
    def n_done(self) -> int:
        """Number of finished items (int), including those that failed in the last run."""
        return int(self._finished().sum())

    def _finished(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if it has a result or failed in the last run."""
        finished, (_, writer) = self.present, self._writer()
        failed = [*self._failures(writer.get("began_at", 0.0))]
        finished[[i for i in failed if i < len(finished)]] = True
        return finished

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Flags of the stored results, a bool array of shape ``(n_items,)``."""
        return self._whole().present

    @property
    def rate(self) -> float:
        """Results per second (float) in the minute before the newest result was stored."""
        words = self._whole().words
        until = words["stored_at"].max(initial=0.0)
        recent = words[words["stored_at"] >= max(until - RATE_S, 1.0)]
        began = recent["stored_at"] - recent["elapsed_s"]
        since = max(until - RATE_S, began.min(initial=until))
        if since == until:
            return 0.0
        # Count only the part of a longer item's time that is in this period.
        shares = (recent["stored_at"] - since) / np.maximum(recent["elapsed_s"], 1e-9)
        return float(np.minimum(shares, 1.0).sum() / (until - since))

    @property
    def item_stats(self) -> dict[str, npt.NDArray[Any]]:
        """The work of each item of the last call, a dict of arrays of shape ``(n_items,)``.

        The keys are ``elapsed_s``, ``attempts``, and ``stored_at``, in seconds since 1970. Unknown
        values are 0. Tiny items that ran together have their mean time.
        ``pandas.DataFrame(run.item_stats)`` makes a table of it.
        """
        whole = self._whole()
        words = whole.words[whole.order]
        return {name: words[name] for name in ("elapsed_s", "attempts", "stored_at")}

    @property
    def errors(self) -> dict[int, TaskError]:
        """The last failure of each item without a result, a dict of index to exception.

        Each is a `TaskError` with the type and text of the exception.
        """
        return self._failures()

    def _failures(self, since: float = 0.0) -> dict[int, TaskError]:
        """Return the last failures of items, from the time `since` on, in seconds since 1970."""
        folders = self.path, *part_folders(self.path)
        if not any(os.path.lexists(folder / ERRORS_FILE) for folder in folders):
            return {}  # this is quick, because each update of a job reads the failures
        return look(self.path, lambda: self._failures_since(since))

    def _failures_since(self, since: float) -> dict[int, TaskError]:
        whole = self._whole()
        missing = np.flatnonzero(~whole.present)
        item_of = np.full(len(whole.words), -1)  # index of the item in each row of the checkpoint
        item_of[whole.order[missing]] = missing
        found = {}
        for k, reader in enumerate(whole.readers):
            for each in reader.errors():  # in a part, rows are in the order of the items
                row = each["row"] if k == 0 else whole.order[each["row"]]
                if each["time"] >= since and (item_of[row : row + 1] >= 0).any():
                    i, kind = int(item_of[row]), each["type"]
                    found[i] = TaskError(f"{kind}: {each['text']}", i, type_name=kind)
        return found

    def results(self) -> Any:
        """Return the stored results, in the order of the items of the last call.

        Returns
        -------
        ndarray, MaskedArray or list
            An array, masked where results are missing, or a list, with `nbshare.MISSING` in its
            gaps. The array is read from the disk on access. It is a copy in memory if the last call
            had its items in another order, or omitted some. All results are read once to verify
            their checksums. Damaged results are missing, with a `CheckpointWarning`. Results of
            `tiles` are combined into one array, in memory. With ``reduce=``, the value of the
            stored results is returned, or None if there are no results.

        Raises
        ------
        nbshare.errors.CheckpointError
            If a file is damaged, or the function of ``reduce=`` cannot be loaded in this process.

        Examples
        --------
        An array of all results:

        >>> import math, tempfile
        >>> import nbshare
        >>> folder = tempfile.mkdtemp()
        >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
        >>> nbshare.open_checkpoint(folder).results()
        array([1., 2.])

        The array is masked where results are missing:

        >>> more = [1.0, 4.0, -9.0]
        >>> roots = nbshare.parallel_map(math.sqrt, more, checkpoint=folder, on_error="return")
        >>> nbshare.open_checkpoint(folder).results().tolist()
        [1.0, 2.0, None]
        """
        _, writer = self._writer()
        if "reduce" in writer:
            return self._value()
        results = self._rows()
        return Tiles.from_json(writer).shaped(results) if "tiles" in writer else results

    def _value(self, reduce: Any = None) -> Any:
        """Return the value of the stored blocks. `reduce` is the function, if it is known."""
        reduce = reduce or self._loaded_reduce()
        return look(self.path, lambda: self._reduced(reduce))

    def _reduced(self, reduce: Any) -> Any:
        whole, reduction = self._whole(is_read=True), Reduction(reduce)
        for k, block in whole.objects(whole.present):
            reduction.add(k, block.values)
        return reduction.value()

    def _loaded_reduce(self) -> Any:
        """Return the function of ``reduce=``."""
        text = self._writer()[1]["reduce"]
        why = "it is larger than 64 KiB, or has no pickle"
        if text is not None:
            try:
                return pickle.loads(bytes.fromhex(text))
            except Exception as error:  # noqa: BLE001 - whatever their code raises
                why = f"{type(error).__name__}: {error}"
        raise CheckpointError(
            f"{self.path}: the reduce= of this run cannot be loaded here ({why}). Make the same "
            "call again, which returns the value, and runs only the missing items."
        )

    def _rows(self) -> Any:
        """Return the stored results, one for each item."""
        return look(self.path, self._results)

    def _results(self) -> Any:
        whole = self._whole(is_read=True)
        output = self._reader.load()[: len(whole.order)]
        is_in_order = np.array_equal(whole.order, np.arange(len(output)))
        if not is_in_order or len(whole.readers) > 1 or (whole.states == IN_LOG).any():
            return _together(whole)
        is_missing = whole.states != IN_OUTPUT
        return masked(output, is_missing) if is_missing.any() else output

    def outdated(
        self, func: Callable[..., Any] | str, /, *iterables: Iterable[Any], **options: Any
    ) -> Outdated:
        """Return the items that a call would run, and the reasons, without running it.

        Parameters
        ----------
        func, *iterables, **options
            The arguments of `parallel_map`. Of ``checkpoint=``, only the version of a `Checkpoint`
            is used. A generator is refused, because its items are unknown.

        Returns
        -------
        Outdated
            A named tuple. ``n_items`` is the number of items of the call: ``n_stored`` have a
            result, ``n_new`` have none, and ``n_changed`` have one with changed dependencies.
            ``changes`` lists the changes (list of str). If there are any, the call is refused, even
            if only results of other items depend on them, unless its `Checkpoint` sets
            ``if_changed=``.

        Raises
        ------
        TypeError
            If the items are a generator.

        Examples
        --------
        Two more items than last time:

        >>> import math, tempfile
        >>> import nbshare
        >>> folder = tempfile.mkdtemp()
        >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
        >>> stored = nbshare.open_checkpoint(folder)
        >>> stored.outdated(math.sqrt, [1.0, 4.0, 9.0, 16.0]).n_new
        2

        Another function:

        >>> outdated = stored.outdated(math.log2, [1.0, 4.0])
        >>> outdated.n_changed, outdated.changes
        (2, ['the function changed'])
        """
        known = MapOptions._fields
        others = [option for option in options if option not in known]
        refuse_others("outdated", others, known, func, iterables)
        checked = MapOptions(**options)
        request, _ = checked_request(func, iterables, checked)
        if request.source is not None:
            raise TypeError("outdated() requires items with a length: make a list of them")
        kept = checked_checkpoint(checked)
        key = key_of(request, None if kept is None else kept.version)
        return look(self.path, lambda: self._outdated(request, key))

    def _outdated(self, request: Request, key: Key) -> Outdated:
        n_wanted, whole = request.n_items or 0, self._whole(is_read=True)
        is_wanted = np.zeros(len(whole.words), np.bool_)
        if n_wanted:
            rows = Lookup(self._reader.digests()).find(key.items.next(request.iterables))
            is_wanted[rows[(rows >= 0) & (rows < len(is_wanted))]] = True
        is_stored = np.isin(whole.words["state"], STORED)
        if request.reduce is not None:  # blocks with failed items run again
            blocks = whole.objects(is_stored[whole.order])
            is_stored[whole.order[[k for k, block in blocks if block.failures]]] = False
        n_stored, n_old, changes = int((is_wanted & is_stored).sum()), 0, list[str]()
        for k, reader in enumerate(whole.readers):
            versions, codes = Versions(reader.folder, key), whole.words["code"]
            is_old = is_stored & (whole.which == k) & ~np.isin(codes, versions.accepted)
            n_old += int((is_old & is_wanted).sum())
            changes = changes or (versions.changes_of(codes[is_old]) if is_old.any() else [])
        return Outdated(n_wanted, n_stored - n_old, n_wanted - n_stored, n_old, changes)

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} failed" if self.errors else ""
        items = "blocks" if "reduce" in self._writer()[1] else "items"
        rate = f", {self.rate:.3g} a second" if self.state == "running" and self.rate else ""
        return (
            f"<StoredRun {self.label}: {self.state}, {self.n_done} of {self.n_items} {items} done"
            f"{failed}{rate}, {self.path}>"
        )

    def _repr_html_(self) -> str:
        """Return the HTML for a notebook: a bar and the line of text."""
        line = html.escape(repr(self)[1:-1].removeprefix("StoredRun "))
        n_items = max(self.n_items, 1)
        return f'<progress value="{self.n_done}" max="{n_items}"></progress> {line}'


def _together(whole: Whole) -> Any:
    """Combine the results of several readers in a list, or in an array that may be masked."""
    n, is_there = len(whole.order), whole.present
    parts = [(items, x, reader.load()) for reader, items, x in whole.places(is_there)]
    forms = {(output.dtype, output.shape[1:]) for *_, output in parts}
    if len(forms) != 1 or (whole.states == IN_LOG).any():
        results = [MISSING] * n
        for i, value in whole.objects(is_there):
            results[i] = value
        return results
    dtype, shape = forms.pop()
    array = zeros((n, *shape), dtype)
    for items, rows, output in parts:
        copy_rows(array, items, output, rows)
    return array if is_there.all() else masked(array, ~is_there)
