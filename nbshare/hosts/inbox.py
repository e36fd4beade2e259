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
    For one thread.
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
            i = first + place
            call.note_error(self._error_of(failure, first, host), range(i, i + 1))
        self._store(first, reply)
        if reply.attempts is not None:
            call.board.attempts_to_count(first, items.stop)[:] = reply.attempts
        if reply.error is not None and call.error is None:
            i = first + getattr(getattr(reply.error, "what", None), "item", -1)
            call.error = call.results.errors.get(i) or self._error_of(reply.error, first, host)
        if reply.present:
            self._show(first, slot, reply.present)
        return self._note(first, slot, reply)

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

    # ---------------------------------------------------------------------------- stats

    def _show(self, first: int, slot: int, present: list[int]) -> None:
        """Show the item that a worker is in, and what it reports."""
        row, now = self._call.board.row(slot), time.monotonic_ns()
        row[SINCE], row[REPORTED] = now + present[SINCE], now + present[REPORTED]
        for word, value in enumerate(present[FRACTION:], FRACTION):
            row[word] = value
        row[ITEM_STOP] = present[ITEM_STOP] and first + present[ITEM_STOP]
        row[ITEM] = first + present[ITEM]

    def _note(self, first: int, slot: int, reply: Reply) -> tuple[float, int]:
        """Add what the workers of a block did to the row that shows it; return it."""
        row, now = self._call.board.row(slot), time.monotonic_ns()
        if not row[PID]:
            row[BEGUN] = row[LOADED] = now
            row[PID] = os.getpid()
        worked = sum(done[WORKED] for done in reply.slots)
        n_items = sum(done[N_ITEMS] for done in reply.slots)
        slowest = list(_pairs(row, 0))
        for done in reply.slots:
            slowest += _pairs(done, first)
            row[PEAK] = max(row[PEAK], done[PEAK])
        top = sorted(slowest)[-N_SLOWEST:]
        for k, (took_ns, i) in enumerate(top):
            row[SLOWEST + 2 * k], row[SLOWEST + 2 * k + 1] = took_ns, i
        row[WORKED] += worked
        row[N_ITEMS] += n_items
        row[ENDED] = now
        return worked / 1e9, n_items


def _pairs(row: Any, first: int) -> Any:
    words = list(row[SLOWEST:REPORTED])
    return [(ns, first + i) for ns, i in zip(words[::2], words[1::2], strict=True)]
