"""Stores what hosts send in the results and on the board of the client, as a worker does."""

from __future__ import annotations

import os
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

from nbshare.engine.call import Call
from nbshare.hosts.protocol import Reply, ReportedError
from nbshare.memory import Segment
from nbshare.wire.board import (
    BEGUN,
    ENDED,
    FAILED,
    FRACTION,
    IN_LOG,
    IN_OUTPUT,
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    N_SLOWEST,
    PEAK,
    PID,
    REPORTED,
    SINCE,
    SLOWEST,
    WORKED,
)
from nbshare.wire.results import LogKey, OutputSpec
from nbshare.worker.store import Decided, LogWriter, ResultStore


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
        self._lock = nullcontext()  # one thread stores all
        self._store: ResultStore | None = None

    def take(self, items: range, slot: int, host: str, reply: Reply) -> tuple[float, int]:
        """Store a reply about some items; return seconds and items that its workers did."""
        results, board = self._call.results, self._call.board
        prints = self._call.request.prints
        prints.is_any |= bool(reply.prints)
        for name, text in reply.prints:
            prints.add(name, text)
        states = np.frombuffer(reply.states, np.uint8)
        for place, failure in reply.errors.items():
            i = items.start + place
            error = self._error_of(failure, items.start, host)
            self._call.note_error(error, range(i, i + 1))
        if reply.rows is not None:
            self._store_rows(items.start, np.flatnonzero(states == IN_OUTPUT), reply)
        if reply.entries is not None:
            self._store_logged(items.start, np.flatnonzero(states == IN_LOG), reply)
        for i in np.flatnonzero(states == FAILED).tolist():
            board.fail(items.start + i)
        if reply.attempts is not None:
            stop = items.start + len(reply.attempts)
            board.attempts_to_count(items.start, stop)[:] = reply.attempts
        if reply.error is not None and self._call.error is None:
            i = items.start + getattr(getattr(reply.error, "what", None), "item", -1)
            error = results.errors.get(i) or self._error_of(reply.error, items.start, host)
            self._call.error = error
        if reply.present:
            self._show(items.start, slot, reply.present)
        return self._note(items.start, slot, reply)

    def _error_of(self, error: BaseException, first: int, host: str) -> BaseException:
        """Return the error that a report describes."""
        if not isinstance(error, ReportedError):
            return error
        what = error.what
        if what.item >= 0:
            what = what._replace(item=first + what.item)
        return self._call.error_of(what, f"{error.worker} of host {host}")

    # -------------------------------------------------------------------------- results

    def _store_rows(self, first: int, places: Any, reply: Reply) -> None:
        """Store results that were in the output of their host."""
        results, board = self._call.results, self._call.board
        assert reply.spec is not None
        assert reply.rows is not None
        if results.spec is None:
            results.begin_with(reply.spec)
        assert results.spec is not None
        if results.spec[:2] != reply.spec[:2]:  # of blocks that began before the first result
            for place, row in zip(places.tolist(), reply.rows, strict=True):
                self._put(first + place, row.item() if reply.spec.number else row)
            return
        for page, low, high in board.parts(first + int(places[0]), first + int(places[-1]) + 1):
            start = page.first - first
            some = slice(*np.searchsorted(places, [start + low, start + high]))
            rows = results.rows(page.first, page.n)
            wanted = places[some] - start
            rows[wanted] = reply.rows[some]
            page.done[wanted] = IN_OUTPUT

    def _put(self, i: int, value: Any) -> None:
        """Store a result that does not look like others."""
        page = self._call.board.page(i)
        if self._store is None:
            board = self._call.board
            of_results = board, self._decide, self._add_log, self._lock, board.row(0)
            self._store = ResultStore(*of_results)
        self._store.turn_to(page, i + 1)
        self._store.put(i, value)

    def _store_logged(self, first: int, places: Any, reply: Reply) -> None:
        """Store results that were in logs of their host."""
        assert reply.entries is not None
        index = reply.entries.copy()
        if self._call.results.spec is None:
            assert reply.spec is not None
            self._call.results.begin_with(reply.spec)
        for key, data in reply.logs.items():
            of_log = reply.entries[0] == key
            index[0, of_log], start = self._log.append(data)
            index[1, of_log] += start
        for place, entry in zip((places + first).tolist(), index.T, strict=True):
            page = self._call.board.page(place)
            page.index[:, place - page.first] = entry
            page.done[place - page.first] = IN_LOG

    def _add_log(self, key: LogKey, log: Segment) -> None:
        self._call.results.logs.add(key, log)

    def _decide(self, spec: OutputSpec) -> Decided:
        results = self._call.results
        results.decide(spec)
        assert results.spec is not None
        return results.spec, results.rows if results.output() is not None else None, None

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
            row[PID] = row[BEGUN] = row[LOADED] = now
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
