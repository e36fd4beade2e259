"""Results that are elsewhere, in the memory of a call or in a part of a run, become rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.checkpoint.reader import Rows
from nbshare.wire.board import FAILED, IN_LOG, IN_OUTPUT
from nbshare.wire.results import ALONE, Entry, LogReader
from nbshare.wire.rows import RowWriter, runs_of


class Source(NamedTuple):
    """Where results are."""

    values: Callable[[int, int], npt.NDArray[Any]]  # from a place to another, if they form an array
    entries: Callable[[Rows], list[Entry]]  # the places of others in the logs
    logs: LogReader
    as_object: Callable[[Any], Any] | None = None  # of a value, if the rows have no such array


def transfer(
    source: Source, places: Rows, writer: RowWriter, rows: Rows, index: npt.NDArray[Any]
) -> None:
    """Write results.

    Parameters
    ----------
    source : Source
        Where they are.
    places : ndarray of int
        The place of each result there.
    writer : RowWriter
        Writes them.
    rows, index : ndarray
        The row that each result gets, and what the index tells of it.
    """

    def runs(some: Rows) -> Iterator[tuple[Rows, int, npt.NDArray[Any]]]:
        for run in runs_of(places[some], rows[some]):
            part = some[run]
            yield part, int(rows[part[0]]), index[part]

    for part, first, told in runs(np.flatnonzero(index["state"] == IN_OUTPUT)):
        values = source.values(int(places[part[0]]), int(places[part[-1]]) + 1)
        if (as_object := source.as_object) is None:
            writer.put(first, values, told)
        else:
            for k, value in enumerate(values):
                record = memoryview(pickle.dumps(as_object(value), 5))
                writer.put_record(first + k, record, [(record.nbytes, ALONE)], told[k : k + 1])
    logged = np.flatnonzero(index["state"] == IN_LOG)
    together = dict[Any, list[tuple[int, Entry]]]()
    for k, entry in zip(logged.tolist(), source.entries(places[logged]), strict=True):
        if source.logs.has(entry):  # its message comes after the ``done`` byte
            together.setdefault(entry[:2], []).append((k, entry))
    for entries in map(dict, together.values()):
        record = source.logs.bytes_of(next(iter(entries.values())))
        for part, first, told in runs(np.array([*entries])):
            writer.put_record(first, record, [entries[k][2:] for k in part.tolist()], told)
    for _, first, told in runs(np.flatnonzero(index["state"] == FAILED)):
        writer.commit(first, told)
