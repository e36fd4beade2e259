"""The progress of a run in words: a bar in a terminal, or lines in a log.

The arithmetic (smoothed rate, time left, formatting) is that of tqdm. If the number of items is
unknown, neither a percentage nor a time left is shown.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tqdm.std import EMA, tqdm

from nbshare._core.jobs.job import COUNTING, Job, JobState
from nbshare._core.messages import counted, cut

LIVE: tuple[JobState, ...] = ("starting", "running")

_TERMINAL_INTERVAL_S = 0.1
_LONG_S = 600.0  # a longer run shows the time of its end
_EARLY_S = 2.0  # after the start, and after the first result, no time left is shown
SHORTEST_S = 0.1  # a rate over less time is noise
_LOG_INTERVAL_S = 10.0
_LOG_SILENCE_S = 300.0  # a long run writes a line at least this often


class Speed:
    """The speed of a job, smoothed as in tqdm."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._counted_at = time.monotonic()
        self._counted, self._first_at = job.n_done, math.inf
        self._results, self._seconds = EMA(), EMA()

    def count(self) -> int:
        """Count the results since the previous call. Return the total number of results."""
        n_done, now = self._job.n_done, time.monotonic()
        if n_done > self._counted:
            self._first_at = min(self._first_at, now)
            self._results(n_done - self._counted)
            self._seconds(now - self._counted_at)
            self._counted, self._counted_at = n_done, now
        elif self._job.state == "starting":
            self._counted_at = now  # the start of workers does not count
        return n_done

    @property
    def rate(self) -> float:
        """Recent results per second, 0.0 before the first."""
        seconds = self._seconds()
        return self._results() / seconds if seconds else 0.0

    @property
    def left_s(self) -> float | None:
        """Estimated seconds to the end, or None if unknown.

        The first results, and the first result of a new worker, are not representative.
        """
        job, now = self._job, time.monotonic()
        is_early = job.elapsed_s < _EARLY_S or (
            self._counted < job.n_workers and now - self._first_at < _EARLY_S
        )
        if job.n_items is None or is_early or not self.rate:
            return None
        return (job.n_items - self._counted) / self.rate


class Words(NamedTuple):
    """The state of a job, in words."""

    state: str
    items: str
    details: list[str]

    def __str__(self) -> str:
        return f"{self.state}  {' · '.join([self.items, *self.details])}".replace(" · in ", " in ")


def describe(job: Job, speed: Speed, *, timed: bool = True) -> Words:
    """Return the state of a job in words.

    Parameters
    ----------
    job, speed
        The job, and its measured speed.
    timed
        Whether to include figures that differ from run to run (seconds, rates).
    """
    n_done, state, n_failed = speed.count(), job.state, len(job.errors)
    n = job.n_items
    count = f"{n_done:,}" if n is None else f"{n_done:,}/{n:,}"
    if state == "done":
        words = f"done with {n_failed:,} failed" if n_failed else "done"
        if not n_done:
            return Words(words, "no items", [])
        timing = _lasted(job, "in")
        n_new = n_done - job._run.n_restored
        if n_new and job.elapsed_s >= SHORTEST_S:  # otherwise the time is too short
            timing += f" ({_rate(n_new / job.elapsed_s)})"
        stored = [f"{n:,} stored before"] if (n := job._run.n_restored) else []
        details = [timing, *stored] if timed else []
        return Words(words, count, [*details, *_retried(job), *_remarks(job)])
    details = [] if n is None else [f"{100 * n_done // max(n, 1)} %"]  # 100 only when all is done
    if timed and state in LIVE:
        details += _timing(job, speed)
    elif timed:
        details.append(_lasted(job, "after"))
    if n_failed and state != "failed":
        details.append(f"{n_failed:,} failed")
    details += _retried(job)
    if job._run.is_detached and state in LIVE:
        details.append("detached")
    if state == "stopped":
        details.append("the result is partial")
        details += [COUNTING] * job._has_gaps
        if job._run.stored_in:
            details.append("the same call continues")
    return Words(state, count, details)


def _remarks(job: Job) -> list[str]:
    """Return remarks on the results of a finished run."""
    none = ["the results are None"] if job._run.gave_none() else []
    enough = ["enough for until="] if job._is_enough else []
    return none + enough + [COUNTING] * (job._is_enough and job._has_gaps)


def _retried(job: Job) -> list[str]:
    """Return the number of retried items, in words, because it needs attention."""
    n = len(job._run.retried())
    return [f"{n:,} retried"] if n else []


def _lasted(job: Job, word: str) -> str:
    """Return how long a finished run took, in words."""
    is_short = job.elapsed_s < SHORTEST_S
    return f"in under {SHORTEST_S} s" if is_short else f"{word} {duration(job.elapsed_s)}"


def _timing(job: Job, speed: Speed) -> list[str]:
    timing = [_rate(speed.rate)] if speed.rate else []
    if job.elapsed_s >= 1:
        timing.append(f"{duration(int(job.elapsed_s))} elapsed")
    if (left_s := speed.left_s) is not None:
        timing.append(f"{duration(int(left_s))} left" if left_s >= 1 else "a moment left")
    return timing + _ready(job, speed) + _loading(job) + _fitting(job)


def _ready(job: Job, speed: Speed) -> list[str]:
    """Return the time when a long run will end, with the day if it is not today."""
    left_s = speed.left_s or 0.0
    if left_s < 60 or job.elapsed_s + left_s < _LONG_S:
        return []
    end = time.localtime(time.time() + left_s)
    is_today = end.tm_yday == time.localtime().tm_yday
    day = "" if is_today else f"{end.tm_mday} {time.strftime('%b, ', end)}"
    return [f"ready about {day}{time.strftime('%H:%M', end)}"]


def _fitting(job: Job) -> list[str]:
    """Return how many workers fit into memory, in words, if not all fit."""
    if (fit := job._run.fit()) is None:
        return []
    return [f"{fit.n} of {counted(job.n_workers, 'worker')}: {fit.each / 1e9:.1f} GB each"]


def _loading(job: Job) -> list[str]:
    """Return how long a worker has been loading the function, in words, if at least a second."""
    if job._run.loading_s() < 1:
        return []
    return [f"loading for {duration(int(job._run.loading_s()))}"]


def stage_lines(job: Job) -> list[str]:
    """Return a line for each stage of a pipeline."""
    return [
        f"  {s.name}: {counted(s.n_blocks, 'block')}, {queue}{s.busy:.0%} busy"
        for s, queue in (
            (s, f"queue {s.queued}/{s.slots}, " if s.slots else "") for s in job.stages
        )
    ]


class Bar:
    """A bar of a tqdm class, used by ``cls(total=n, desc=label)``, ``update`` and ``close``."""

    def __init__(self, job: Job, bar_class: Callable[..., Any]) -> None:
        self._job, self._bar_class = job, bar_class
        self._bar: Any = None
        self._told = 0

    def draw(self, *, final: bool) -> float:
        """Update the bar with new results. Close it at the end."""
        if self._bar is None:
            self._bar = self._bar_class(total=self._job.n_items, desc=self._job.label or None)
        new = self._job.n_done - self._told
        if new:
            self._told += new
            self._bar.update(new)
        if final:
            self._bar.close()
        return _TERMINAL_INTERVAL_S


class TerminalBar(Bar):
    """A plain tqdm bar. If the run ends early, it shows the reason."""

    def __init__(self, job: Job) -> None:
        # Every update is drawn, because the display limits their rate.
        options: dict[str, Any] = {"miniters": 1, "mininterval": 0, "dynamic_ncols": True}
        # Stored results do not count for the rate.
        options["initial"] = n_stored = job.n_done
        # Failures follow the count, because a narrow terminal cuts off the end.
        if job.n_items:
            line = "{l_bar}{bar}| {n:,}/{total:,}{failed} [{elapsed}<{remaining}, "
        else:
            line = "{desc}: " * bool(job.label) + "{n:,}it{failed} [{elapsed}, "
        options["bar_format"] = line + "{rate_fmt}{postfix}]"
        super().__init__(job, partial(_JobTqdm, file=sys.stderr, **options))
        self._told, self._speed = n_stored, Speed(job)

    def draw(self, *, final: bool) -> float:
        """Redraw the bar with details. At the end, list the stages below it."""
        job, pause_s = self._job, super().draw(final=False)
        if n_failed := len(job.errors):
            self._bar.failed = f", {n_failed:,} failed"
        if final:
            notes = _retried(job)
            notes += _remarks(job) if job.state == "done" else [job.state]
            self._bar.set_postfix_str(", ".join(notes), refresh=False)
            self._bar.close()
            sys.stderr.writelines(f"{line}\n" for line in stage_lines(job))
            return pause_s
        self._speed.count()
        queues = [f"{stage.queued}/{stage.slots}" for stage in job.stages if stage.slots]
        notes = [f"queues {' '.join(queues)}"] if queues else []
        notes += _retried(job) + _ready(job, self._speed) + _loading(job) + _fitting(job)
        self._bar.set_postfix_str(", ".join(notes))
        return pause_s


class _JobTqdm(tqdm):  # type: ignore[misc]  # tqdm is not typed
    """tqdm with a label of at most a third of the line, and without a monitor thread.

    `TerminalBar` refreshes it.
    """

    monitor_interval = 0
    failed = ""  # in words

    @property
    def format_dict(self) -> dict[str, Any]:
        """The values for the format of a line."""
        figures: dict[str, Any] = super().format_dict
        if (width := figures["ncols"]) and len(figures["prefix"]) > width // 3:
            figures["prefix"] = cut(figures["prefix"], max(0, width // 3 - 1))
        return {**figures, "failed": self.failed}


class LogLines:
    """Plain lines on stderr, at intervals, and one at the end."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._speed = Speed(job)
        self._told_at, self._told = time.monotonic(), job.n_done

    def draw(self, *, final: bool) -> float:
        """Write a line after 10 s if 10 % more items are done, else after 5 minutes."""
        n_done, since_s = self._speed.count(), time.monotonic() - self._told_at
        step = max(1, (self._job.n_items or 0) / 10)
        a_good_step = since_s >= _LOG_INTERVAL_S and n_done - self._told >= step
        if final or a_good_step or since_s >= _LOG_SILENCE_S:
            state, _, more = str(describe(self._job, self._speed)).partition("  ")
            line = f"{self._job.label} {state}: {more.replace(' · ', ', ')}".lstrip()
            lines = [line, *stage_lines(self._job)]
            sys.stderr.writelines(f"{line}\n" for line in lines)
            sys.stderr.flush()
            self._told_at, self._told = time.monotonic(), n_done
        return 1.0


def _rate(rate: float) -> str:
    if rate >= 1:
        return f"{tqdm.format_sizeof(rate)}/s"
    unit, each = ("min", 60 * rate) if 60 * rate >= 1 else ("h", 3600 * rate)
    return f"{each:.0f}/{unit}" if each >= 10 else f"{each:.2g}/{unit}"


def duration(seconds: float) -> str:
    """Format seconds: floats with one decimal, and from one minute on as 01:05."""
    if seconds >= 60:
        return str(tqdm.format_interval(seconds))
    return f"{seconds:.1f} s" if isinstance(seconds, float) else f"{seconds} s"
