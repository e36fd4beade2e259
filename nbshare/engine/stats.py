"""What workers did with their time, and what they are doing now: read from the board."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nbshare.wire.board import (
    BEGUN,
    ENDED,
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    NO_ITEM,
    PEAK,
    PID,
    REPORTED,
    SINCE,
    SLOWEST,
    WORKED,
    Board,
    reported,
)

__all__ = [
    "SlowItem",
    "StageStats",
    "WorkerActivity",
    "WorkerStats",
    "activity_of",
    "stats_of",
]


@dataclass(frozen=True)
class SlowItem:
    """One of the items that took longest.

    Attributes
    ----------
    index : int
        Of the item.
    seconds : float
        What it took; of tiny items that ran together, their mean.
    item : str
        Its `repr`, cut at 200 characters.
    """

    index: int
    seconds: float
    item: str


@dataclass(frozen=True)
class WorkerStats:
    """What one worker did with its time.

    Attributes
    ----------
    pid : int
        Process id.
    n_items : int
        Items that it has run.
    starting_s : float
        From the call's start until it began: 0.005 s and more for a new worker.
    working_s : float
        Inside the function, and storing results.
    waiting_s : float
        The rest, until it found nothing left to do.
    peak_bytes : int
        The most memory that the process has had resident so far, inputs and results in shared
        memory included; 0 as long as it works.
    slowest : tuple of SlowItem
        The three items that took longest, the slowest first.
    """

    pid: int
    n_items: int
    starting_s: float
    working_s: float
    waiting_s: float
    peak_bytes: int
    slowest: tuple[SlowItem, ...]


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


@dataclass(frozen=True)
class StageStats:
    """What one stage of a pipeline has done, and what it has waited for.

    The bottleneck is the stage that is busy, with a queue before it that is full and a queue
    behind it that is empty: give that one more ``workers=``.

    Attributes
    ----------
    name : str
        Of its function.
    workers : int
        Their number.
    n_blocks : int
        Blocks that it has handed on.
    queued : int
        Blocks that wait for it now.
    slots : int
        How many can; 0 for the loader, who has no queue.
    waited_for_input_s, waited_for_output_s : float
        Seconds that its workers together have waited for a block, and for a free slot.
    elapsed_s : float
        Seconds that its workers together have been there.
    """

    name: str
    workers: int
    n_blocks: int
    queued: int
    slots: int
    waited_for_input_s: float
    waited_for_output_s: float
    elapsed_s: float

    @property
    def busy(self) -> float:
        """The share of the time in which its workers have not waited: 0.0 to 1.0."""
        waited_s = self.waited_for_input_s + self.waited_for_output_s
        return max(0.0, 1 - waited_s / self.elapsed_s) if self.elapsed_s > 0 else 0.0


def stats_of(
    slots: Sequence[Sequence[int]], begun_ns: int, text_of: Callable[[int], str]
) -> list[WorkerStats]:
    """Read the workers' figures from slots of the board of a call that began at `begun_ns`."""
    stats = []
    for row in slots:
        if not row[PID]:  # it has not come
            continue
        words = row[SLOWEST:REPORTED]
        slowest = sorted(zip(words[::2], words[1::2], strict=True), reverse=True)
        stats.append(
            WorkerStats(
                pid=row[PID],
                n_items=row[N_ITEMS],
                starting_s=(row[BEGUN] - begun_ns) / 1e9,
                working_s=row[WORKED] / 1e9,
                waiting_s=max(row[ENDED] - row[BEGUN] - row[WORKED], 0) / 1e9,
                peak_bytes=row[PEAK],
                slowest=tuple(SlowItem(i, ns / 1e9, text_of(i)) for ns, i in slowest if ns),
            )
        )
    return stats


def activity_of(board: Board, text_of: Callable[[int], str]) -> list[WorkerActivity]:
    """Read what the workers of a running call do."""
    activity, now_ns = [], time.monotonic_ns()
    for number, row in enumerate(board.slots.tolist(), 1):
        pid, first = row[PID], row[ITEM]
        if pid:
            items = range(0)
            if first != NO_ITEM:
                items = range(first, max(row[ITEM_STOP], first + 1))
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
