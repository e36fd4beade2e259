"""When to draw the picture of a running map, and how it gets into the notebook."""

from __future__ import annotations

import base64
import os
import time
from typing import TYPE_CHECKING, Any

from nbshare.notebook.environment import KernelOutput
from nbshare.notebook.live_plot import as_plots

if TYPE_CHECKING:
    from nbshare.notebook.base import JobView
    from nbshare.notebook.figure import LiveFigure

_SHARE = 0.15  # of the time goes into drawing
_SHARE_WHEN_FULL = 0.05  # where drawing takes a CPU away from a worker
_LOOK_S, _MAX_PAUSE_S = 0.25, 2.0  # if the user wants no other interval
_FIRST_LOOK_S = 0.05  # between looks for the first result


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

    def __init__(self, job: JobView, plot: Any, label: str, *, in_background: bool) -> None:
        self._job, self._plot, self._label = job, plot, label
        # matplotlib has one style for all threads: the user's stays as it is.
        self._in_users_style = in_background
        self.output = KernelOutput("picture")
        self._interval_s = max(each.interval for each in as_plots(plot))
        self._figure: LiveFigure | None = None
        self._n_done = 0  # at the last frame
        self._is_complete = True

    def draw(self, *, final: bool) -> float:
        """Draw a frame if there are new results, or if it is the last."""
        if not final and self._job.n_done == self._n_done and self._is_complete:
            return min(_LOOK_S, self._interval_s) if self._n_done else _FIRST_LOOK_S
        began, first = time.monotonic(), not self._n_done
        self.output.show(lambda: self._frame(final=final), final=final)
        if not self._n_done:
            return _FIRST_LOOK_S
        # The first frame's cost is mostly that of starting up: it tells nothing of the next one.
        cost_s = 0.0 if first else time.monotonic() - began
        return max(min(cost_s / self._share(), _MAX_PAUSE_S), self._interval_s)

    def _frame(self, *, final: bool) -> tuple[dict[str, str], dict[str, Any]] | None:
        n_done = self._job.n_done
        if self._figure is None:
            from nbshare.notebook.figure import LiveFigure  # loads matplotlib

            self._figure = LiveFigure(
                self._job, self._plot, self._label, in_users_style=self._in_users_style
            )
        frame = self._figure.frame(final=final)
        if frame is None:
            return None
        self._n_done, self._is_complete = n_done, frame.is_complete
        png, (width, height) = base64.b64encode(frame.png).decode("ascii"), frame.size
        return (
            {"image/png": png, "text/plain": frame.title},
            {"image/png": {"width": width, "height": height}},  # the page never jumps
        )

    def _share(self) -> float:
        affinity = getattr(os, "sched_getaffinity", None)  # Linux has it
        n_cpus = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
        full = self._job.n_workers >= n_cpus
        return _SHARE_WHEN_FULL if full else _SHARE
