"""What workers are doing at this moment, read from the board."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass

from nbshare.wire.board import (
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    NO_ITEM,
    PID,
    SINCE,
    Board,
    reported,
)

__all__ = ["WorkerActivity", "activity_of"]


@dataclass(frozen=True)
class WorkerActivity:
    """What one worker is doing.

    Attributes
    ----------
    pid : int
        Process id.
    items : range
        What it is in the middle of: one item, several tiny ones, or none.
    text : str
        The first one's `repr`, cut at 200 characters.
    since_s : float
        Seconds since it began them.
    fraction : float or None
        How far the item is, from 0 to 1, if it has told by `nbshare.report`.
    report : str
        What else it has told; before its first item, what it has been loading for long.
    n_items : int
        Items that it has run.
    memory_bytes : int
        What the process has resident, inputs and results in shared memory included; 0 if that
        cannot be told.
    number : int
        What messages call it: 1 is the first worker of the run.
    """

    pid: int
    items: range
    text: str
    since_s: float
    fraction: float | None
    report: str
    n_items: int
    memory_bytes: int
    number: int


def activity_of(board: Board, start: int, text_of: Callable[[int], str]) -> list[WorkerActivity]:
    """Read what the workers of a running call do, whose first item has the index `start`."""
    activity, now_ns = [], time.monotonic_ns()
    for number, row in enumerate(board.slots.tolist(), 1):
        pid, first = row[PID], row[ITEM]
        if pid:
            items = range(0)
            if first != NO_ITEM:
                items = range(start + first, start + max(row[ITEM_STOP], first + 1))
            since_s = max(now_ns - row[SINCE], 0) / 1e9 if items else 0.0
            text = text_of(first) if items else ""
            told = reported(row) if len(items) == 1 or not row[LOADED] else (None, "")
            figures = row[N_ITEMS], _resident_bytes(pid), number
            activity.append(WorkerActivity(pid, items, text, since_s, *told, *figures))
    return activity


def _resident_bytes(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):  # it has just ended, or this is no Linux
        return 0
