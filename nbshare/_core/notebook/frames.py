"""When to draw the plot of a run, and how it gets into the notebook."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from nbshare._core.interrupts import import_whole
from nbshare._core.job import Job
from nbshare._core.notebook.environment import Bundle, kernel_output
from nbshare._core.notebook.live_plot import Plot, as_plots
from nbshare._core.system import room

if TYPE_CHECKING:
    from nbshare._core.notebook.figure import LiveFigure

_SHARE = 0.15  # of the time goes into drawing
_SHARE_WHEN_FULL = 0.05  # where drawing takes a CPU away from a worker
_MAX_PAUSE_S = 2.0  # unless the user sets a longer interval
_LOOK_S = 0.05  # between looks for new results


class LiveFrames:
    """Frames of fixed size, each replacing the one before. The last one stays as a PNG.

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
        self._n_done = 0  # at the last frame, -1 if it did not show all of them

    def draw(self, *, final: bool) -> float:
        """Draw a frame if there are new results, or if it is the last."""
        n_done = self._job.n_done
        if not n_done or (n_done == self._n_done and not final):
            return _LOOK_S
        if self._figure is None:
            import_whole("nbshare._core.notebook.figure")  # and Matplotlib
            from nbshare._core.notebook.figure import LiveFigure

            # matplotlib has one style for all threads. In the background, keep the user's.
            self._figure = LiveFigure(self._job, self._plot, in_users_style=self._in_background)
        figure, began = self._figure, time.monotonic()
        self.output.show(lambda: self._frame(figure, final=final), final=final)
        if not self._n_done:
            return _LOOK_S
        is_full = self._job.n_workers >= room.usable_cpus()
        share = _SHARE_WHEN_FULL if is_full else _SHARE
        return max(min((time.monotonic() - began) / share, _MAX_PAUSE_S), self._interval_s)

    def _frame(self, figure: LiveFigure, *, final: bool) -> Bundle | None:
        n_done = self._job.n_done
        frame = figure.frame(final=final)
        if frame is None:
            return None
        self._n_done = n_done if frame.is_complete else -1
        return frame.bundle
