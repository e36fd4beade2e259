"""Stats, current activity and memory of workers, read from the board."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nbshare._core.memory.budget import SHARE
from nbshare._core.system import processes
from nbshare._core.wire.board import (
    BEGUN,
    DURATIONS,
    ENDED,
    ITEM,
    ITEM_STOP,
    LOADED,
    N_ITEMS,
    NO_ITEM,
    PEAK,
    PID,
    REPORTED,
    RETRIED,
    SINCE,
    SLOWEST,
    WORKED,
    Board,
    reported,
)


class SlowItem(NamedTuple):
    """One of the slowest items of a worker, in `WorkerStats.slowest`.

    Attributes
    ----------
    index : int
        Index of the item.
    elapsed_s : float
        Seconds that the item took. For very short items, the mean of a batch.
    item : str
        The item's `repr`, cut at 200 characters.

    Examples
    --------
    The slowest items of a worker:

    >>> import time
    >>> import nbshare
    >>> job = nbshare.map_async(time.sleep, [0.01, 0.5], max_workers=1)
    >>> job.wait()
    True
    >>> [(item.index, item.item) for item in job.stats[0].slowest]
    [(1, '0.5'), (0, '0.01')]

    The slowest item of all workers:

    >>> items = [item for worker in job.stats for item in worker.slowest]
    >>> slowest = max(items, key=lambda item: item.elapsed_s)
    >>> slowest.index, slowest.elapsed_s > 0.4
    (1, True)
    """

    index: int  # type: ignore[assignment]  # not the tuple's method
    elapsed_s: float
    item: str


class WorkerStats(NamedTuple):
    """Time and memory of one worker, in `Job.stats`.

    Attributes
    ----------
    pid : int
        Process id.
    n_items : int
        Number of items that it ran.
    n_retried : int
        Number of times that an item failed and, with ``retries=``, ran again.
    starting_s : float
        Seconds from the start of the run to the worker's first item. A new worker needs 0.005 s or
        more.
    working_s : float
        Seconds spent in the function and in storing results.
    waiting_s : float
        Seconds spent waiting, until no items were left.
    peak_bytes : int
        Peak resident memory of the process in bytes, including shared inputs and results. 0 while
        the worker is working.
    slowest : tuple of SlowItem
        The three items that took longest, the slowest first.

    Examples
    --------
    How many items did the workers run?

    >>> import math
    >>> import nbshare
    >>> job = nbshare.map_async(math.sqrt, range(100))
    >>> job.wait()
    True
    >>> sum(worker.n_items for worker in job.stats)
    100

    Would more workers help? Not if the present ones wait more than they work:

    >>> def busy(job):
    ...     working_s = sum(worker.working_s for worker in job.stats)
    ...     return working_s / sum(w.working_s + w.waiting_s for w in job.stats)
    >>> 0 < busy(job) <= 1
    True
    """

    pid: int
    n_items: int
    n_retried: int
    starting_s: float
    working_s: float
    waiting_s: float
    peak_bytes: int
    slowest: tuple[SlowItem, ...]


class WorkerActivity(NamedTuple):
    """The current activity of one worker.

    Attributes
    ----------
    pid : int
        Process id.
    items : range
        The items that it is running: one, several tiny ones, or none.
    text : str
        The `repr` of the first of these items, cut at 200 characters.
    since_s : float
        Seconds since the worker began these items, or began to load the function.
    fraction : float or None
        Progress of the item, from 0 to 1, if it uses `nbshare.report`.
    report : str
        Text of the report.
    n_items : int
        Number of items that it has run.
    memory_bytes : int
        Resident memory of the process in bytes, including shared inputs and results. 0 if unknown.
    number : int
        The worker's number in messages. 1 is the first worker of the run.
    is_loading : bool
        Whether it is loading the function, before its first item.
    stage : str
        The stage of a pipeline that the worker runs, empty in other runs.
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
    is_loading: bool
    stage: str = ""


class StageStats(NamedTuple):
    """Work and waiting times of one stage of a pipeline.

    The bottleneck is a busy stage with a full queue before it and an empty queue after it. Give it
    more ``workers=``.

    Attributes
    ----------
    name : str
        Name of its function.
    workers : int
        Number of its workers.
    n_blocks : int
        Number of blocks that it has finished.
    queued : int
        Number of blocks that are waiting for it now.
    slots : int
        Size of its queue, or 0 for the loader, which has none.
    waited_for_input_s, waited_for_output_s : float
        Total seconds that its workers waited for a block, and for a free slot.
    elapsed_s : float
        Total lifetime of its workers, in seconds.

    See Also
    --------
    pipeline : returns one for each stage.

    Examples
    --------
    What did each stage do?

    >>> import nbshare
    >>> def load():
    ...     yield from ([1.0, 2.0], [3.0, 4.0])
    >>> stages = nbshare.pipeline(load, sum, shape=2).stages
    >>> [(stage.name, stage.workers, stage.n_blocks) for stage in stages]
    [('load', 1, 2), ('sum', 1, 2)]

    Which stage is the bottleneck, and needs more workers?

    >>> busiest = max(stages, key=lambda stage: stage.busy)
    >>> 0 <= busiest.busy <= 1
    True
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
        """Share of the time in which the stage's workers did not wait (float, 0 to 1)."""
        waited_s = self.waited_for_input_s + self.waited_for_output_s
        return max(0.0, 1 - waited_s / self.elapsed_s) if self.elapsed_s > 0 else 0.0


for each in SlowItem, WorkerStats, StageStats:
    each.__module__ = "nbshare.types"  # where users find them


def stats_of(
    slots: Sequence[Sequence[int]], begun_ns: int, text_of: Callable[[int], str]
) -> list[WorkerStats]:
    """Read the stats of workers from the slots of a board, for a call that began at `begun_ns`."""
    stats = []
    for row in slots:
        if not row[PID]:  # no worker uses this slot
            continue
        words = row[SLOWEST:DURATIONS]
        slowest = sorted(zip(words[::2], words[1::2], strict=True), reverse=True)
        stats.append(
            WorkerStats(
                pid=row[PID],
                n_items=row[N_ITEMS],
                n_retried=row[RETRIED],
                starting_s=(row[BEGUN] - begun_ns) / 1e9,
                working_s=row[WORKED] / 1e9,
                waiting_s=max(row[ENDED] - row[BEGUN] - row[WORKED], 0) / 1e9,
                peak_bytes=row[PEAK],
                slowest=tuple(SlowItem(i, ns / 1e9, text_of(i)) for ns, i in slowest if ns),
            )
        )
    return stats


def durations_of(slots: Sequence[Sequence[int]]) -> list[int]:
    """Return a histogram of durations: the number of items below 1, 2, 4, 8, ... ns."""
    return [sum(each) for each in zip(*(row[DURATIONS:REPORTED] for row in slots), strict=True)]


def activity_of(board: Board, text_of: Callable[[int], str]) -> list[WorkerActivity]:
    """Read the current activity of the workers of a running call."""
    activity, now_ns = [], time.monotonic_ns()
    for number, row in enumerate(board.slots.tolist(), 1):
        pid, first = row[PID], row[ITEM]
        if pid:
            items = range(0)
            if first != NO_ITEM:
                items = range(first, max(row[ITEM_STOP], first + 1))
            is_loading = _is_loading(row)
            since_ns = row[SINCE] if items else row[BEGUN] if is_loading else now_ns
            since_s = max(now_ns - since_ns, 0) / 1e9
            text = text_of(first) if items else ""
            told = reported(row) if len(items) == 1 else (None, "")
            figures = row[N_ITEMS], processes.resident_bytes(pid), number
            found = WorkerActivity(pid, items, text, since_s, *told, *figures, is_loading)
            activity.append(found)
    return activity


def loading_s(board: Board) -> float:
    """Return how many seconds a worker has been loading the function, 0.0 if none is."""
    begun = [row[BEGUN] for row in board.slots.tolist() if _is_loading(row)]
    return max((time.monotonic_ns() - each for each in begun), default=0) / 1e9


def _is_loading(row: list[int]) -> bool:
    return bool(row[PID]) and not (row[LOADED] or row[N_ITEMS])


class Fit(NamedTuple):
    """The number of workers that fit into memory, and the peak memory of each, in bytes."""

    n: int
    each: int


def n_that_fit(held: Sequence[int], each: int, available: int) -> int:
    """Return how many workers like the running ones fit into memory, at least one.

    The running ones have `held` bytes that no other process shares, and may grow to `each`.
    """
    left = SHARE * available - sum(each - now for now in held)
    return max(1, len(held) + int(left // each))
