"""A run on disk, seen from any process: its progress, its results, what a call would run again."""

from __future__ import annotations

import html
import json
import os
import pickle
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.directory import Rows
from nbshare.checkpoint.files import loaded, read_json, record_at
from nbshare.checkpoint.items import Lookup
from nbshare.checkpoint.key import key_of
from nbshare.checkpoint.versions import Versions
from nbshare.checkpoint.writer import LEASE, parts_of, running_writer_of, writer_of
from nbshare.engine.collect import masked
from nbshare.engine.results import MISSING
from nbshare.errors import CheckpointError
from nbshare.options import MapOptions, checked_request
from nbshare.wire.board import IN_LOG, IN_OUTPUT
from nbshare.wire.results import thawed, unpack
from nbshare.wire.rows import TIMES_FILE, UNSYNCED

__all__ = ["Outdated", "StoredRun", "open_checkpoint"]

RATE_S = 60.0  # of what was stored lately


class Outdated(NamedTuple):
    """What a call with a checkpoint would run, and why; see `StoredRun.outdated`.

    Attributes
    ----------
    n_items : int
        Number of items of the call.
    n_stored : int
        Number of items whose results would be taken from the checkpoint.
    n_new : int
        Number of items without a result.
    n_changed : int
        Number of items whose results depended on something that has changed.
    changes : list of str
        What changed, one sentence each.
    """

    n_items: int
    n_stored: int
    n_new: int
    n_changed: int
    changes: list[str]


def open_checkpoint(path: str | os.PathLike[str]) -> StoredRun:
    """Open a stored run, from any process, while it runs or afterwards.

    Parameters
    ----------
    path : str or path-like
        The ``checkpoint=`` of the run.

    Returns
    -------
    StoredRun
        At the end of a notebook's cell it shows how far the run is.

    Raises
    ------
    nbshare.errors.CheckpointError
        There is no checkpoint, or its format is unknown to this version.

    Examples
    --------
    The results of a run:

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder, progress=False)
    >>> nbshare.open_checkpoint(folder).results()
    array([1., 2.])

    In another process, how far is it?

    >>> stored = nbshare.open_checkpoint(folder)
    >>> f"{stored.n_done} of {stored.n_tasks} items, {stored.state}"
    '2 of 2 items, over'
    """
    return StoredRun(Path(os.fspath(path)).expanduser().absolute())


class StoredRun:
    """A run that is stored, as it is at the moment of each question.

    Attributes
    ----------
    path : Path
        Its folder.
    label : str
        The name of its function.

    Examples
    --------
    How far is a run, and what failed?

    >>> import math, tempfile
    >>> import nbshare
    >>> folder = tempfile.mkdtemp()
    >>> items = [1.0, -4.0, 9.0]
    >>> roots = nbshare.parallel_map(math.sqrt, items, checkpoint=folder, on_error="return")
    >>> stored = nbshare.open_checkpoint(folder)
    >>> stored.n_done, stored.n_tasks, stored.errors
    (2, 3, {1: 'ValueError: math domain error'})

    Which items are missing, and how long did the others take?

    >>> [items[i] for i in (~stored.present).nonzero()[0]]
    [-4.0]
    >>> stored.stats["seconds"].shape, bool(stored.stats["seconds"].max() < 60)
    ((3,), True)
    """

    __module__ = "nbshare"

    def __init__(self, path: Path) -> None:
        self.path = path
        meta = read_json(path / "meta.json")
        if meta is None:
            raise CheckpointError(f"{path} is not a checkpoint: it has no meta.json")
        self.label = str(meta["label"])

    def _load(self, name: str) -> npt.NDArray[Any]:
        return loaded(self.path / name)

    def _index(self) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Return the row of each item of the last call, and its state."""
        index, order = self._load("index.npy"), self._load("order.npy")
        if not len(order):  # a generator's are known in the end
            order = np.flatnonzero(self._load("items.npy").any(axis=-1))
        return order, index["state"][order] % UNSYNCED if len(index) else np.zeros(0, np.uint8)

    def _sources(self) -> list[tuple[StoredRun, Rows, npt.NDArray[np.uint8]]]:
        """Return this, and the parts of processes that share the run.

        With the row that each has for each item of the last call, and its state.
        """
        order, states = self._index()
        sources = [(self, order, states)] if len(states) == len(order) else []
        for path in parts_of(self.path):
            with suppress(CheckpointError):  # it has just been merged
                part = StoredRun(path)
                states = part._load("index.npy")
                if len(states) == len(order):
                    sources.append((part, np.arange(len(order)), states["state"] % UNSYNCED))
        return sources

    @property
    def state(self) -> str:
        """State (str): "running", "over", or "ended" if it was killed or its machine is gone."""
        parts = sorted(parts_of(self.path), key=lambda part: (part / LEASE).stat().st_mtime)
        writers = [self.path, *parts][::-1]  # the last one first
        if any(running_writer_of(each) is not None for each in writers):
            return "running"
        who = writer_of(writers[0])
        return "over" if who is None or who["ended"] else "ended"

    @property
    def n_tasks(self) -> int:
        """Number of items of the last call (int); of a generator those that were read."""
        return len(self._index()[0])

    @property
    def n_done(self) -> int:
        """Number of its results that are stored (int)."""
        return int(self.present.sum())

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which of its results are stored: a bool array of shape (n_tasks,)."""
        present = np.zeros(self.n_tasks if (sources := self._sources()) else 0, np.bool_)
        for _, _, states in sources:
            present |= np.isin(states, (IN_OUTPUT, IN_LOG))
        return present

    @property
    def rate(self) -> float:
        """Results per second (float) that were stored in the last minute before the newest."""
        folders = self.path, *parts_of(self.path)
        times = np.concatenate([_times(folder)[:, 0] for folder in folders])
        times = np.sort(times[times > 0])
        recent = times[times >= times[-1] - RATE_S] if len(times) else times
        took_s = float(recent[-1] - recent[0]) if len(recent) else 0.0
        return (len(recent) - 1) / took_s if took_s else 0.0

    @property
    def stats(self) -> dict[str, npt.NDArray[Any]]:
        """What each item of the last call took: a dict of arrays of shape ``(n_tasks,)``.

        ``seconds``, ``attempts``, and ``stored_at`` in seconds since 1970; 0 where that is unknown.
        Tiny items that run together have the mean of their seconds. With pandas installed,
        ``pandas.DataFrame(run.stats)`` makes a table.
        """
        n = len(self._index()[0])
        attempts, times = np.zeros(n, np.uint8), np.zeros((n, 2))
        for run, rows, states in self._sources():
            is_there = states > 0
            attempts[is_there] = run._load("index.npy")["attempts"][rows[is_there]]
            if len(found := _times(run.path)):  # an older version stored none
                times[is_there] = found[rows[is_there]]
        return {"seconds": times[:, 1], "attempts": attempts, "stored_at": times[:, 0]}

    @property
    def errors(self) -> dict[int, str]:
        """Last failure of each item without a result: a dict of index to type and text (str)."""
        return {i: f"{each['type']}: {each['text']}" for i, each in self._failures().items()}

    def _failures(self, since: float = 0.0) -> dict[int, dict[str, Any]]:
        """Return the records of these failures; `since`: seconds since 1970."""
        lines = []
        for folder in (self.path, *parts_of(self.path)):
            with suppress(FileNotFoundError):
                lines += (folder / "errors.jsonl").read_text().splitlines()
        told = [json.loads(line) for line in lines if line.endswith("}")]
        present = self.present
        return {
            each["item"]: each
            for each in told
            if each["time"] >= since and not present[each["item"] :][:1].any()
        }

    def results(self) -> Any:
        """Return the results that are stored, in the order of the items of the last call.

        Returns
        -------
        ndarray, MaskedArray or list
            An array that is read from the disk as it is used, masked where results are missing; or
            a list, with `nbshare.MISSING` in its gaps.

        Examples
        --------
        An array of all results:

        >>> import math, tempfile
        >>> import nbshare
        >>> folder = tempfile.mkdtemp()
        >>> roots = nbshare.parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
        >>> nbshare.open_checkpoint(folder).results()
        array([1., 2.])

        Where results are missing, it is masked:

        >>> more = [1.0, 4.0, -9.0]
        >>> roots = nbshare.parallel_map(math.sqrt, more, checkpoint=folder, on_error="return")
        >>> nbshare.open_checkpoint(folder).results().tolist()
        [1.0, 2.0, None]
        """
        sources, (order, states) = self._sources(), self._index()
        results = self._load("results.npy")
        is_array = not (states == IN_LOG).any() and (len(results) or not len(order))
        if not is_array or len(sources) > 1:
            return _together(sources, len(order))
        if not np.array_equal(order, np.arange(len(results))):
            results = results[order]
        is_missing = states != IN_OUTPUT
        return masked(results, is_missing) if is_missing.any() else results

    def _value(self, row: int, state: int, results: npt.NDArray[Any]) -> Any:
        if state == IN_OUTPUT:
            return results[row]
        if state != IN_LOG:
            return MISSING
        start, nbytes, place = self._load("objects.npy")[row].tolist()
        record = record_at(self.path, start, nbytes)
        if nbytes < 0:
            return unpack(int(row), np.frombuffer(record, np.uint8))
        value = pickle.loads(record)
        return value if place < 0 else thawed(int(row), value[place])

    def outdated(
        self, func: Callable[..., Any] | str, /, *iterables: Iterable[Any], **options: Any
    ) -> Outdated:
        """Say what a call would run, and why, without running it.

        Parameters
        ----------
        func, *iterables, **options
            As for `parallel_map`, but no generators.

        Returns
        -------
        Outdated
            A named tuple: ``n_items`` of the call, of which ``n_stored`` have a result, ``n_new``
            have none, and ``n_changed`` have one that depended on something else; ``changes``, a
            list of str that says what has changed.

        Raises
        ------
        TypeError
            The items are a generator.

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
        checked = MapOptions(**options)
        request, _ = checked_request(func, iterables, checked)
        if request.source is not None:
            raise TypeError("outdated() takes items that have a length: make a list of them")
        key = key_of(request, checked.version)
        n_wanted, rows = request.n_tasks or 0, np.zeros(0, np.int64)
        if n_wanted:
            stored = np.ascontiguousarray(self._load("items.npy")).view(np.uint64)
            rows = Lookup(stored).find(key.items.next(request.iterables))
            rows = rows[rows >= 0]
        words = self._load("index.npy")[rows]
        words = (
            words[np.isin(words["state"] % UNSYNCED, (IN_OUTPUT, IN_LOG))] if len(words) else words
        )
        versions = Versions(self.path, read_json(self.path / "code.json") or [], key)
        is_old = ~np.isin(words["code"], versions.accepted) if len(words) else np.zeros(0, np.bool_)
        n_old, changes = int(is_old.sum()), []
        if n_old:
            most = int(np.bincount(words["code"][is_old]).argmax())
            changes = versions.changes(most)
        n_new = n_wanted - len(words)
        return Outdated(n_wanted, len(words) - n_old, n_new, n_old, changes)

    def __repr__(self) -> str:
        failed = f", {len(self.errors)} failed" if self.errors else ""
        rate = f", {self.rate:.3g} a second" if self.state == "running" and self.rate else ""
        return (
            f"<StoredRun {self.label}: {self.state}, {self.n_done} of {self.n_tasks} results"
            f"{failed}{rate}, {self.path}>"
        )

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a bar, and the line of text."""
        line = html.escape(repr(self)[1:-1].removeprefix("StoredRun "))
        n_tasks = max(self.n_tasks, 1)
        return f'<progress value="{self.n_done}" max="{n_tasks}"></progress> {line}'


def _times(folder: Path) -> npt.NDArray[np.float64]:
    """Return when each row was stored, and the seconds that it took."""
    return loaded(folder / TIMES_FILE).reshape(-1, 2).astype(np.float64)


def _together(sources: list[tuple[StoredRun, Rows, npt.NDArray[np.uint8]]], n: int) -> Any:
    """Return the results of several sources: a masked array in memory, or a list."""
    outputs = [run._load("results.npy") for run, *_ in sources]
    both = zip(outputs, (states for *_, states in sources), strict=True)
    forms = {(x.dtype, x.shape[1:]) for x, states in both if (states == IN_OUTPUT).any()}
    is_list = len(forms) != 1 or any((states == IN_LOG).any() for _, _, states in sources)
    results: Any = [MISSING] * n if is_list else np.zeros((n, *(form := forms.pop())[1]), form[0])
    is_missing = np.ones(n, np.bool_)
    for (run, rows, states), output in zip(sources, outputs, strict=True):
        new = np.flatnonzero(np.isin(states, (IN_OUTPUT, IN_LOG)) & is_missing)
        is_missing[new] = False
        if not is_list and len(new):
            results[new] = output[rows[new]]
        for i in new.tolist() if is_list else ():
            results[i] = run._value(int(rows[i]), int(states[i]), output)
    return results if is_list or not is_missing.any() else masked(results, is_missing)
