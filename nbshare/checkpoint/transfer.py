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
    source: Source, places: Rows, writer: RowWriter, rows: Rows, words: npt.NDArray[Any]
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
    rows, words : ndarray
        The row that each result gets; its state, attempts and code.
    """

    def runs(some: Rows) -> Iterator[tuple[Rows, int, Rows]]:
        for run in runs_of(places[some], rows[some]):
            part = some[run]
            yield part, int(rows[part[0]]), words["attempts"][part].astype(np.int64)

    for code in np.unique(words["code"]).tolist():
        writer.code = code
        states = np.where(words["code"] == code, words["state"], 0)
        for part, first, attempts in runs(np.flatnonzero(states == IN_OUTPUT)):
            values = source.values(int(places[part[0]]), int(places[part[-1]]) + 1)
            if (as_object := source.as_object) is None:
                writer.put(first, values, attempts, 0.0)
            else:
                for k, value in enumerate(values):
                    record = memoryview(pickle.dumps(as_object(value), 5))
                    of_it = [(record.nbytes, ALONE)]
                    writer.put_record(first + k, record, of_it, attempts[k : k + 1], 0.0)
        logged, together = np.flatnonzero(states == IN_LOG), dict[Any, list[tuple[int, Entry]]]()
        for k, entry in zip(logged.tolist(), source.entries(places[logged]), strict=True):
            if source.logs.has(entry):  # its message comes after the ``done`` byte
                together.setdefault(entry[:2], []).append((k, entry))
        for entries in map(dict, together.values()):
            record = source.logs.bytes_of(next(iter(entries.values())))
            for part, first, attempts in runs(np.array([*entries])):
                sizes = [entries[k][2:] for k in part.tolist()]
                writer.put_record(first, record, sizes, attempts, 0.0)
        for part, first, attempts in runs(np.flatnonzero(states == FAILED)):
            writer.commit(first, FAILED, attempts, 0 * part, 0.0)
