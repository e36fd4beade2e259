"""Stores what hosts send in the results and on the board of the client, as a worker does."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from nbshare._core.engine.call import Call
from nbshare._core.hosts.protocol import Reply, ReportedError
from nbshare._core.memory import Segment
from nbshare._core.wire.board import (
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
from nbshare._core.wire.results import ALONE, Entry, LogKey, entry_parts
from nbshare._core.worker.store import LogWriter


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
        self._new_logs: list[tuple[LogKey, Segment]] = []  # not announced yet
        self._log = LogWriter(lambda key, log: self._new_logs.append((key, log)))

    def take(self, items: range, slot: int, host: str, reply: Reply) -> None:
        """Store a reply about a block."""
        call, first = self._call, items.start
        for name, text in reply.prints:
            call.request.prints.is_any = True
            call.request.prints.add(name, text)
        for place, failure in reply.errors.items():
            i, error = first + place, self._error_of(failure, first, host)
            call.note_error(error, range(i, i + 1))
            if failure is reply.error:
                call.note_failure(error)
        self._store(first, reply)
        if reply.attempts is not None:
            call.board.attempts_to_count(first, items.stop)[:] = reply.attempts
        if reply.error is not None:
            call.note_failure(self._error_of(reply.error, first, host))
        drew, which = reply.draws
        if which:
            call.board.note_draws(range(first + drew.start, first + drew.stop), which)
        _show(call.board.slots[slot], first, reply)

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
        """Store the results of a block, which is in one page, and say then what is done."""
        results, page = self._call.results, self._call.board.page(first)
        states = np.frombuffer(reply.states, np.uint8).copy()
        of_block = slice(first - page.first, first - page.first + len(states))
        if reply.spec is not None:
            results.output.decide(reply.spec)
        if reply.entries is not None:
            page.index[:, of_block][:, states == IN_LOG] = self._stored(reply.entries, reply.logs)
        if reply.rows is not None:
            are_rows = states == IN_OUTPUT
            assert reply.spec is not None
            assert results.output.spec is not None
            if results.output.spec[:2] == reply.spec[:2]:
                results.output.some(page.first, page.n)[of_block][are_rows] = reply.rows
            else:  # of a block that began before the first result
                values = reply.rows.tolist() if reply.spec.number else reply.rows
                entries = map(self._entry_of, values)
                page.index[:, of_block][:, are_rows] = np.transpose([*entries])
                states[are_rows] = IN_LOG
        is_new = states != NOT_DONE
        page.done[of_block][is_new] = states[is_new]
        # Last, because a log may be dropped from when the next one is announced, unless results in
        # it are known to be there.
        while self._new_logs:
            results.logs.add(*self._new_logs.pop(0))

    def _entry_of(self, value: Any) -> Entry:
        """Store a result. Return its entry."""
        data = pickle.dumps(value, 5)
        return *self._log.append(*entry_parts(data, [])), len(data), ALONE

    def _stored(self, entries: Any, logs: Mapping[LogKey, Any]) -> Any:
        """Store parts of logs. Return where their entries are then."""
        index = entries.copy()
        for key, data in logs.items():
            of_log = entries[0] == key
            index[0, of_log], start = self._log.append(*entry_parts(data, []))
            index[1, of_log] += start
        return index


def _show(row: Any, first: int, reply: Reply) -> None:
    """Show the item that a worker is in, and what it reports, and in the end what it has done."""
    now_ns = time.monotonic_ns()
    if not row[PID]:
        row[[PID, BEGUN, LOADED]] = os.getpid(), now_ns, now_ns
    for there in reply.slots[reply.slots[:, ITEM] != NO_ITEM]:
        # Each machine has a clock of its own.
        row[[SINCE, REPORTED]] = there[[SINCE, REPORTED]] + now_ns - reply.now_ns
        row[FRACTION:] = there[FRACTION:]
        row[ITEM_STOP] = there[ITEM_STOP] and first + there[ITEM_STOP]
        row[ITEM] = first + there[ITEM]
    if reply.is_last:
        row[ENDED] = now_ns
        row[[WORKED, N_ITEMS]] += reply.slots[:, [WORKED, N_ITEMS]].sum(axis=0)
        row[PEAK] = max(row[PEAK], reply.slots[:, PEAK].max(initial=0))
        there = reply.slots[:, SLOWEST:REPORTED].reshape(-1, 2) + np.array([0, first])
        pairs = np.concatenate([row[SLOWEST:REPORTED].reshape(-1, 2), there])  # of ns and item
        row[SLOWEST:REPORTED] = pairs[pairs[:, 0].argsort()[-N_SLOWEST:]].ravel()
