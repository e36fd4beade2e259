"""When to draw the picture of a running map, and how it gets into the notebook."""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING

from nbshare.notebook.environment import Bundle, KernelOutput, is_static
from nbshare.notebook.live_plot import Plot, as_plots

if TYPE_CHECKING:
    from nbshare.job import Job
    from nbshare.notebook.figure import Frame, LiveFigure

_SHARE = 0.15  # of the time goes into drawing
_SHARE_WHEN_FULL = 0.05  # where drawing takes a CPU away from a worker
_LOOK_S, _MAX_PAUSE_S = 0.25, 2.0  # if the user wants no other interval
_FIRST_LOOK_S = 0.05  # between looks for the first result
_SOON_S, _SOON_WHEN_FULL_S = 0.5, 2.5  # a map that ends so soon has its last frame only


class LiveFrames:
    """Pictures of fixed size, each in the place of the one before; the last one stays as a PNG.

    Parameters
    ----------
    job
        The running map.
    plot
        As for `nbshare.parallel_map`; not None.
    label
        What the title calls the job.
    in_background
        Whether the user may be drawing meanwhile.
    """

    def __init__(self, job: Job, plot: Plot, label: str, *, in_background: bool) -> None:
        self._job, self._plot, self._label = job, plot, label
        self._in_background = in_background
        self.output = KernelOutput("picture")
        self._interval_s = max(each.interval for each in as_plots(plot))
        self._figure: LiveFigure | None = None
        self._n_done = 0  # at the last frame
        self._is_complete = True
        self._since: tuple[float, int] | None = None  # when the first results came, and how many

    def draw(self, *, final: bool) -> float:
        """Draw a frame if there are new results, or if it is the last."""
        if not self._job.n_done:
            return _FIRST_LOOK_S
        if not final and self._job.n_done == self._n_done and self._is_complete:
            return min(_LOOK_S, self._interval_s)
        if not (final or self._n_done) and self._ends_soon():
            return _LOOK_S
        figure = self._made_figure()  # its first time tells nothing of what the next frame takes
        began = time.monotonic()
        if final and self.output.is_due and not (self._in_background or is_static()):
            self._draw_last(figure)
        else:
            self.output.show(lambda: self._frame(figure, final=final), final=final)
        if not self._n_done:
            return _FIRST_LOOK_S
        cost_s = time.monotonic() - began
        return max(min(cost_s / self._share(), _MAX_PAUSE_S), self._interval_s)

    def _draw_last(self, figure: LiveFigure) -> None:
        """Draw the last frame, if possible while the cell goes on with the results."""
        if not figure.can_wait:
            self.output.show(lambda: self._frame(figure, final=True), final=True)
        elif (painted := figure.paint(final=True)) is not None:  # what is drawn has been copied
            self.output.show_soon(lambda: _bundle(figure.render(painted)))

    def _frame(self, figure: LiveFigure, *, final: bool) -> Bundle | None:
        n_done = self._job.n_done
        frame = figure.frame(final=final)
        if frame is None:
            return None
        self._n_done, self._is_complete = n_done, frame.is_complete
        return _bundle(frame)

    def _made_figure(self) -> LiveFigure:
        if self._figure is None:
            from nbshare.notebook.figure import LiveFigure  # loads matplotlib

            # matplotlib has one style for all threads: in the background the user's stays.
            self._figure = LiveFigure(
                self._job, self._plot, self._label, in_users_style=self._in_background
            )
        return self._figure

    def _ends_soon(self) -> bool:
        """Whether a first frame would take up more than its share of what is left of the map.

        That shows when results have come for a while; the start of workers tells nothing.
        """
        n_done, n_tasks, now = self._job.n_done, self._job.n_tasks, time.monotonic()
        if n_tasks is None:
            return False
        since, n_before = self._since = self._since or (now, n_done)
        left_s = (now - since) * (n_tasks - n_done) / max(n_done - n_before, 1)
        return left_s < (_SOON_WHEN_FULL_S if self._is_full() else _SOON_S)

    def _share(self) -> float:
        return _SHARE_WHEN_FULL if self._is_full() else _SHARE

    def _is_full(self) -> bool:
        """Whether workers need all CPUs."""
        affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
        n_cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
        return self._job.n_workers >= n_cpus


def _bundle(frame: Frame) -> Bundle:
    png, (width, height) = base64.b64encode(frame.png).decode("ascii"), frame.size
    return (
        {"image/png": png, "text/plain": frame.title},
        {"image/png": {"width": width, "height": height}},  # the page never jumps
    )
