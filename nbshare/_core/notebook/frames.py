"""Draws frames of a plot at the right times, and shows them in an output."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from nbshare._core.interrupts import import_whole
from nbshare._core.jobs.job import Job
from nbshare._core.notebook.environment import Bundle, is_static, kernel_output
from nbshare._core.notebook.live_plot import NothingYetError, Plot, as_plots
from nbshare._core.system import processes

if TYPE_CHECKING:
    from nbshare._core.notebook.figure import LiveFigure

_SHARE = 0.15  # largest share of time for drawing
_SHARE_WHEN_FULL = 0.05  # the same if workers use all CPUs
_MAX_PAUSE_S = 2.0  # longest pause, unless the user sets a longer interval
_MOST_OWED_S = 10.0
_LOOK_S = 0.05  # interval of checks for new results
_FIRST_FRAMES, _FIRST_PAUSE_S = 3, 0.5  # come sooner, because a short run would show only one


class LiveFrames:
    """Frames of a plot, each of which replaces the one before. The last one is saved.

    Parameters
    ----------
    job
        The job of the run.
    plot
        The argument of `nbshare.parallel_map`, not None.
    in_background
        Whether the user may be drawing at the same time.
    """

    def __init__(self, job: Job, plot: Plot, *, in_background: bool) -> None:
        self._job, self._plot, self._in_background = job, plot, in_background
        self.output = kernel_output("picture")
        self._interval_s = max(each.interval_s for each in as_plots(plot))
        self._figure: LiveFigure | None = None
        self._n_done = 0  # at the last frame, or -1 if it did not show all results
        self._n_frames, self._pause_s = 0, _FIRST_PAUSE_S
        # Values of ``reduce=`` are noted between frames, so that a short run has a course, too.
        self.is_polled = job._is_reduced
        self._due_at = math.inf if is_static() else 0.0
        # Pauses that are still owed, because the first frames follow each other sooner.
        self._owed_s, self._ended_at = 0.0, time.monotonic()
        self.problem: Exception | None = None  # an error of a frame, or of the user's ``value=``

    def draw(self, *, final: bool) -> float:
        """Draw a frame if there are new results, or if it is the last.

        A frame that cannot be drawn is skipped, and later ones are tried again, the last one in any
        case.
        """
        n_done = self._job.n_done
        if not n_done or (n_done == self._n_done and not final):
            return _LOOK_S
        if self._figure is None:
            import_whole("nbshare._core.notebook.figure")  # and Matplotlib
            from nbshare._core.notebook.figure import LiveFigure

            # Threads share Matplotlib's style, so background threads keep the user's.
            self._figure = LiveFigure(self._job, self._plot, in_users_style=self._in_background)
        figure, began = self._figure, time.monotonic()
        if began < self._due_at and not final:
            with suppress(Exception):  # raised by the user's function. The next frame tells
                figure.note()
            return _LOOK_S
        self.output.show(lambda: self._frame(figure, final=final), final=final)
        if not self._n_done:
            return _LOOK_S
        is_full = self._job.n_workers >= processes.usable_cpus()
        share = _SHARE_WHEN_FULL if is_full else _SHARE
        owed_s = max(0.0, self._owed_s - (began - self._ended_at))
        self._n_frames, self._ended_at = self._n_frames + 1, time.monotonic()
        self._owed_s = min(owed_s + (self._ended_at - began) / share, _MOST_OWED_S)
        most = _FIRST_PAUSE_S if self._n_frames <= _FIRST_FRAMES else _MAX_PAUSE_S
        self._pause_s = max(min(self._owed_s, most), self._interval_s)
        if not self.is_polled:
            return self._pause_s
        self._due_at = max(self._due_at, self._ended_at + self._pause_s)
        return _LOOK_S

    def _frame(self, figure: LiveFigure, *, final: bool) -> Bundle | None:
        n_done = self._job.n_done
        try:
            frame = figure.frame(final=final, n_soon=self._n_soon(n_done))
            self.problem = self.problem or figure.problem
        except Exception as error:  # noqa: BLE001  a user's function may raise anything
            if final or not isinstance(error, NothingYetError):
                self.problem = self.problem or error
            self._n_done = n_done
            return self._last_good_frame(figure) if final else None
        if frame is None:
            return None
        self._n_done = n_done if frame.is_complete else -1
        return frame.bundle

    def _n_soon(self, n_done: int) -> float:
        """Return the expected number of results before the next frame."""
        n = n_done * (1 + self._pause_s / max(self._job.elapsed_s, self._pause_s))
        return min(n, self._job.n_items or math.inf)

    def _last_good_frame(self, figure: LiveFigure) -> Bundle | None:
        """Return the last frame that could be drawn. Its title says how many results it shows."""
        try:
            frame = figure.last_good_frame()
        except Exception:  # noqa: BLE001  the same function
            return None
        return None if frame is None else frame.bundle
