"""Stores replies of hosts in the client's results and board, as a worker would."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.engine.call import Call
from nbshare._core.hosts.protocol import Reply, ReportedError
from nbshare._core.store.logs import batches_of
from nbshare._core.store.pages import FAILED, IN_LOG, IN_OUTPUT
from nbshare._core.store.rows import runs_of
from nbshare._core.store.writing import ResultStore
from nbshare._core.wire.board import (
    BEGUN,
    DURATIONS,
    ENDED,
    FRACTION,
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    N_SLOWEST,
    NO_ITEM,
    PEAK,
    PID,
    REPORTED,
    RETRIED,
    SINCE,
    SLOWEST,
    WORKED,
)


class Inbox:
    """Receives replies about the blocks of a call.

    Parameters
    ----------
    call : Call
        The call.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        board, results = call.board, call.results
        agree = partial(board.agree, lock=nullcontext())
        decide, add_log = results.output.decided_here, results.logs.add
        self._store = ResultStore(board.newest_page(), agree, decide, add_log)

    def take(self, items: range, slot: int, host: str, reply: Reply) -> None:
        """Store a reply about the block of `items`."""
        call, first = self._call, items.start
        for name, text in reply.prints:
            call.request.prints.is_any = True
            call.request.prints.add(name, text)
        for place, failure in reply.errors.items():
            i, error = first + place, self._error_of(failure, first, host)
            call.note_error(error, range(i, i + 1))
            if failure is reply.error:
                call.note_failure(error)
        if reply.attempts is not None:  # first, because files of a checkpoint include attempts
            call.board.attempts_to_count(first, items.stop)[:] = reply.attempts
        self._put(first, reply)
        if reply.error is not None:
            call.note_failure(self._error_of(reply.error, first, host))
        drew, which = reply.draws
        if which:
            call.board.note_draws(range(first + drew.start, first + drew.stop), which)
        _show(call.board.slots[slot], first, reply)

    def _error_of(self, error: BaseException, first: int, host: str) -> BaseException:
        """Return the user's error that a `ReportedError` describes, and other errors unchanged."""
        if not isinstance(error, ReportedError):
            return error
        report = error.report
        if report.item >= 0:
            report = report._replace(item=first + report.item)
        return self._call.error_of(report, f"{error.worker} of host {host}")

    def _put(self, first: int, reply: Reply) -> None:
        """Store the results of a block, which is on one page, and mark its items as done."""
        page, states = self._call.board.page(first), np.frombuffer(reply.states, np.uint8)
        self._store.turn_to(page, first + len(states))
        if reply.spec is not None:
            self._store.settle(reply.spec)
            for some, items in _runs(states == IN_OUTPUT, first):
                self._store.put_rows(items, reply.rows[some], reply.spec)
        for some, items in _runs(states == IN_LOG, first):
            entries = reply.entries[:, some]
            for batch in batches_of(entries):
                key, start, size = entries[:3, batch.start].tolist()
                record = memoryview(reply.logs[key])[start : start + abs(size)]
                self._store.put_record(items[batch], [(0, record)], size, entries[3, batch])
        page.mark(first - page.first + np.flatnonzero(states == FAILED), FAILED)


def _runs(chosen: npt.NDArray[np.bool_], first: int) -> Iterator[tuple[slice, range]]:
    """Yield runs of chosen items of a block, as slices of the chosen ones, and as items."""
    items = first + np.flatnonzero(chosen)
    for run in runs_of(items):
        yield run, range(int(items[run.start]), int(items[run.stop - 1]) + 1)


def _show(row: Any, first: int, reply: Reply) -> None:
    """Show a worker's item and report on the board. At the end of a block, add its stats."""
    now_ns = time.monotonic_ns()
    if not row[PID]:
        row[[PID, BEGUN, LOADED]] = os.getpid(), now_ns, now_ns
    for there in reply.slots[reply.slots[:, ITEM] != NO_ITEM]:
        # Each machine has its own clock.
        row[[SINCE, REPORTED]] = there[[SINCE, REPORTED]] + now_ns - reply.now_ns
        row[FRACTION:] = there[FRACTION:]
        row[ITEM_STOP] = there[ITEM_STOP] and first + there[ITEM_STOP]
        row[ITEM] = first + there[ITEM]
    if reply.is_last:
        row[ENDED] = now_ns
        sums = [WORKED, N_ITEMS, RETRIED, *range(DURATIONS, REPORTED)]
        row[sums] += reply.slots[:, sums].sum(axis=0)
        row[PEAK] = max(row[PEAK], reply.slots[:, PEAK].max(initial=0))
        there = reply.slots[:, SLOWEST:DURATIONS].reshape(-1, 2) + np.array([0, first])
        pairs = np.concatenate([row[SLOWEST:DURATIONS].reshape(-1, 2), there])  # ns and item
        row[SLOWEST:DURATIONS] = pairs[pairs[:, 0].argsort()[-N_SLOWEST:]].ravel()
