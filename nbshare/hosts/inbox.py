"""Stores what hosts send in the results and on the board of the client, as a worker does."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from nbshare.engine.call import Call
from nbshare.hosts.protocol import Reply, ReportedError
from nbshare.memory import Segment
from nbshare.wire.board import (
    BEGUN,
    ENDED,
    FRACTION,
    IN_LOG,
    IN_OUTPUT,
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    N_SLOWEST,
    NO_ITEM,
    NOT_DONE,
    PEAK,
    PID,
    REPORTED,
    SINCE,
    SLOWEST,
    WORKED,
)
from nbshare.wire.results import ALONE, Entry, LogKey
from nbshare.worker.store import LogWriter


class Inbox:
    """Takes replies about the blocks of a call.

    Parameters
    ----------
    call : Call
        The call.

    Notes
    -----
    For one thread at a time.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._log = LogWriter(self._add_log)

    def take(self, items: range, slot: int, host: str, reply: Reply) -> tuple[float, int]:
        """Store a reply about a block; return seconds and items that its workers did."""
        call, first = self._call, items.start
        for name, text in reply.prints:
            call.request.prints.is_any = True
            call.request.prints.add(name, text)
        for place, failure in reply.errors.items():
            i, error = first + place, self._error_of(failure, first, host)
            call.note_error(error, range(i, i + 1))
            if failure is reply.error:
                call.error = call.error or error
        self._store(first, reply)
        if reply.attempts is not None:
            call.board.attempts_to_count(first, items.stop)[:] = reply.attempts
        if reply.error is not None:
            call.error = call.error or self._error_of(reply.error, first, host)
        row = call.board.slots[slot]
        if not row[PID]:
            row[[BEGUN, LOADED]] = time.monotonic_ns()
            row[PID] = os.getpid()
        if not reply.is_last:
            _show(row, first, reply)
            return 0.0, 0
        return _note(row, first, reply.slots)

    def _error_of(self, error: BaseException, first: int, host: str) -> BaseException:
        """Return the error that a report describes."""
        if not isinstance(error, ReportedError):
            return error
        what = error.what
        if what.item >= 0:
            what = what._replace(item=first + what.item)
        return self._call.error_of(what, f"{error.worker} of host {host}")

    # -------------------------------------------------------------------------- results

    def _store(self, first: int, reply: Reply) -> None:
        """Store the results of a block, which is in one page; say then what is done."""
        results, page = self._call.results, self._call.board.page(first)
        states = np.frombuffer(reply.states, np.uint8).copy()
        of_block = slice(first - page.first, first - page.first + len(states))
        if reply.spec is not None and results.spec is None:
            results.begin_with(reply.spec)
        if reply.entries is not None:
            page.index[:, of_block][:, states == IN_LOG] = self._stored(reply.entries, reply.logs)
        if reply.rows is not None:
            are_rows = states == IN_OUTPUT
            assert reply.spec is not None
            assert results.spec is not None
            if results.spec[:2] == reply.spec[:2]:
                results.rows(page.first, page.n)[of_block][are_rows] = reply.rows
            else:  # of a block that began before the first result
                values = reply.rows.tolist() if reply.spec.number else reply.rows
                page.index[:, of_block][:, are_rows] = np.transpose([*map(self._entry, values)])
                states[are_rows] = IN_LOG
        is_new = states != NOT_DONE
        page.done[of_block][is_new] = states[is_new]

    def _entry(self, value: Any) -> Entry:
        """Store a result that does not look like others; return its place."""
        data = pickle.dumps(value, 5)
        return *self._log.append(data), len(data), ALONE

    def _stored(self, entries: Any, logs: Mapping[LogKey, Any]) -> Any:
        """Store parts of logs; return where their entries are then."""
        index = entries.copy()
        for key, data in logs.items():
            of_log = entries[0] == key
            index[0, of_log], start = self._log.append(data)
            index[1, of_log] += start
        return index

    def _add_log(self, key: LogKey, log: Segment) -> None:
        self._call.results.logs.add(key, log)


# -------------------------------------------------------------------------------- stats


def _show(row: Any, first: int, reply: Reply) -> None:
    """Show the item that a worker is in, and what it reports."""
    ahead_ns = time.monotonic_ns() - reply.now_ns  # each machine has a clock of its own
    for there in reply.slots[reply.slots[:, ITEM] != NO_ITEM]:
        row[[SINCE, REPORTED]] = there[[SINCE, REPORTED]] + ahead_ns
        row[FRACTION:] = there[FRACTION:]
        row[ITEM_STOP] = there[ITEM_STOP] and first + there[ITEM_STOP]
        row[ITEM] = first + there[ITEM]


def _note(row: Any, first: int, slots: Any) -> tuple[float, int]:
    """Add what the workers of a block did to the row that shows it; return it."""
    row[ENDED] = time.monotonic_ns()
    worked, n_items = done = slots[:, [WORKED, N_ITEMS]].sum(axis=0)
    row[[WORKED, N_ITEMS]] += done
    row[PEAK] = max(row[PEAK], slots[:, PEAK].max(initial=0))
    there = slots[:, SLOWEST:REPORTED].reshape(-1, 2) + np.array([0, first])  # of ns and item
    pairs = np.concatenate([row[SLOWEST:REPORTED].reshape(-1, 2), there])
    row[SLOWEST:REPORTED] = pairs[pairs[:, 0].argsort()[-N_SLOWEST:]].ravel()
    return float(worked) / 1e9, int(n_items)
