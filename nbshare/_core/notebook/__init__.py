"""The progress display of a run, and its plots.

A display sees a run only through its job (`Job`). All drawing happens inside :meth:`Display.update`
and :meth:`Display.close`, in the thread that waits for the run, or for a background job in a
separate thread. A display that fails issues one warning, and the run continues.

``environment``  kernel, marimo, terminal or log, and the outputs of a cell
``row``          the progress display of a notebook
``page``         requests of browser pages for it, and their Stop button
``bar``          a terminal's bar, a log's lines, and the words of all three
``live_plot``    the plots that the user asks for
``frames``       the times of its frames, and their output
``figure``       the plot itself, a Figure with an Agg canvas, never pyplot
``painters``     who draws a plot in it: one of those below, or the user's function
``charts``       lines and histograms
``image``        images
``panels``       several of them, for further axes of a grid, parts with names and slices of volumes
``values``       the common part of these: results, each read once, ranges, remarks
``axes``         labels, ticks, colours and limits
``coordinates``  the places of cells and items along an axis, or their names
``layout``       the places of the pixels of an image
``raster``       images of limited size that leave out no value
``pointer``      the values that a picture carries, for the pointer on a page
``png``          files of pictures, of moderate size
``reading``      results and items as numbers, with their names, units and zones
``explore``      one result at a time, in a panel with sliders
``prints``       the output of workers

`Showing` shows a job that runs in the background, also once more in any other cell::

    map_async ─► begin ─► places in the cell, and a thread: Display.update …  ─► last state
    job, in any cell ─► show ─► the same outputs once more, which change with the first

A front end changes all outputs with the same display id together. So a job that is shown in ten
cells is drawn only once, and a page gets its outputs back after a reload.
"""

from __future__ import annotations

import contextvars
import math
import threading
import time
import traceback
from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol

from nbshare._core.interrupts import start_thread
from nbshare._core.jobs.job import Job
from nbshare._core.messages import users_line, warn_at_most
from nbshare._core.notebook.environment import KernelOutput, cell_number, is_static, surroundings
from nbshare._core.notebook.live_plot import CannotDrawError, LivePlot, as_plots
from nbshare._core.tracebacks import users_frames
from nbshare._core.wire import is_worker
from nbshare.errors import DisplayWarning

NEVER_S = 3600.0  # "no need to call again soon", as a number that a wait accepts

# A last frame that was interrupted after more than this time is not tried again, because a user's
# function may draw forever.
_PATIENCE_S = 0.5


class Drawer(Protocol):
    """A part of the display, which shows a job."""

    def draw(self, *, final: bool) -> float:
        """Show the current state. Return the seconds until the next call is due."""


class Display:
    """The progress display and the plots of one run.

    Parameters
    ----------
    drawers
        The objects that draw, empty if nothing is shown.
    live
        If False, only the last frame is drawn. Drawers that are polled are called nevertheless.
    """

    def __init__(self, drawers: Sequence[Drawer], *, live: bool = True) -> None:
        self._warned: set[Drawer] = set()
        self._due = {  # on the monotonic clock
            each: 0.0 if live or getattr(each, "is_polled", False) else math.inf for each in drawers
        }
        # Outputs of the drawers that draw into a cell.
        self._outputs: list[KernelOutput] = [d.output for d in drawers if hasattr(d, "output")]
        # With this context, warnings of any thread appear below the current cell.
        if drawers:
            self._context, self._line = contextvars.copy_context(), users_line()

    def __bool__(self) -> bool:
        return bool(self._due)

    def begin(self) -> None:
        """Reserve the place of each output in the running cell."""
        self.update()
        for output in self._outputs:
            output.reserve()

    def show_again(self) -> bool:
        """Show all outputs in the running cell, too. Return False if there are none."""
        for output in self._outputs:
            output.show_again()
        return bool(self._outputs)

    def update(self) -> float:
        """Redraw the drawers that are due.

        Returns
        -------
        float
            Seconds until the next call is due, an hour if nothing is shown.
        """
        for drawer, due in self._due.copy().items():
            if due <= time.monotonic():
                self._draw(drawer, final=False)
        now = time.monotonic()
        return min([NEVER_S, *(max(0.0, due - now) for due in self._due.values())])

    def close(self) -> None:
        """Draw the last frame. Call it again to finish after an interrupt."""
        while self._due:
            drawer, began = next(iter(self._due)), time.monotonic()
            try:
                self._draw(drawer, final=True)
            except KeyboardInterrupt:
                if time.monotonic() - began > _PATIENCE_S:
                    self._due.pop(drawer, None)
                raise
            self._due.pop(drawer, None)
        for output in self._outputs:
            output.is_last = True

    def _warn(self, message: str) -> None:
        self._context.run(warn_at_most, message, DisplayWarning, self._line)

    def _draw(self, drawer: Drawer, *, final: bool) -> None:
        try:
            pause_s = drawer.draw(final=final)
        except Exception as error:  # noqa: BLE001  a front end may raise anything
            self._due.pop(drawer, None)
            self._warn_of(drawer, error, "Drawing failed and is off for the rest of this run.")
            return
        if (problem := getattr(drawer, "problem", None)) is not None:
            self._warn_of(drawer, problem, "A part of the plot could not be drawn and is left out.")
        if not final:
            self._due[drawer] = time.monotonic() + pause_s

    def _warn_of(self, drawer: Drawer, error: Exception, what: str) -> None:
        """Warn of the first error of a drawer."""
        if drawer in self._warned:
            return
        self._warned.add(drawer)
        if isinstance(error, CannotDrawError):
            self._warn(str(error))
            return
        frames = users_frames(error.__traceback__) or error.__traceback__
        text = "".join(traceback.format_exception(type(error), error, frames))
        self._warn(f"{what} The results are not affected.\n\n{text}")


def check_display(progress: Any, plot: Any) -> None:
    """Raise if ``progress=`` or ``plot=`` is invalid, before anything starts.

    Parameters
    ----------
    progress
        None, False, True, a label, or a tqdm class.
    plot
        None, ``"line"``, ``"image"``, ``"hist"``, a `LivePlot`, ``callable(ax, partial)``, or a
        list of these.

    Raises
    ------
    TypeError
        If an argument has the wrong type.
    ValueError
        If ``plot`` is a string that names no plot.
    """
    is_bar_class = isinstance(progress, type) and all(
        callable(getattr(progress, name, None)) for name in ("update", "close")
    )
    if not (progress is None or isinstance(progress, bool | str) or is_bar_class):
        raise TypeError(
            f"progress={progress!r} is not allowed: pass None (shown in a notebook or a terminal), "
            "True, False, a label, or a tqdm class (the class itself, not an object)"
        )
    as_plots(plot)


def open_display(
    job: Job, *, progress: Any = None, plot: Any = None, in_background: bool = False
) -> Display:
    """Choose where and how to show a job. Return the display.

    Parameters
    ----------
    job
        The job of the run.
    progress, plot
        The arguments, checked by :func:`check_display`.
    in_background
        Whether a separate thread draws the job.

    Returns
    -------
    Display
        The display, which draws nothing until it is updated. Close it at the end.
    """
    if is_worker() or (progress is False and plot is None):  # a worker shows no bar inside a bar
        return Display(())
    place = surroundings()
    if place == "marimo" and in_background:  # where only the thread of a cell can show anything
        return Display(())
    is_notebook = place in ("kernel", "marimo")
    drawers: list[Drawer] = []
    # Imported only to draw, so that `import nbshare` and runs without a display are quick.
    if place != "log" if progress is None else progress is not False:
        from nbshare._core.notebook import bar, row

        if isinstance(progress, type):
            drawers.append(bar.Bar(job, progress))
        elif is_notebook:
            has_plot = plot is not None and place == "kernel"
            drawers.append(row.NotebookRow(job, in_background=in_background, has_plot=has_plot))
            job._is_shown = True
        elif place == "terminal":
            drawers.append(bar.TerminalBar(job))
        else:
            drawers.append(bar.LogLines(job))
    if plot is not None and not is_notebook:
        _tell_of_no_plot()
    elif plot is not None:
        from nbshare._core.notebook import page
        from nbshare._core.notebook.frames import LiveFrames

        frames = LiveFrames(job, plot, in_background=in_background)
        for row_output in [drawer.output for drawer in drawers if hasattr(drawer, "output")]:
            page.follow_plot(row_output.id, frames.output)
        drawers.append(frames)
    return Display(drawers, live=not (is_notebook and is_static()))


@cache
def _tell_of_no_plot() -> None:
    """Warn once per process, because a script may make many calls."""
    warn_at_most(
        "plot= is shown only in a notebook, so this run continues without a plot. Draw the results "
        "that the run returns, or remove plot=.",
        DisplayWarning,
    )


class Showing:
    """The display of a job that may run in the background.

    Parameters
    ----------
    plot
        The argument of `nbshare.parallel_map`.

    Notes
    -----
    Thread-safe. It holds a reference to its job only while the job runs.
    """

    def __init__(self, plot: Any) -> None:
        self._plot = plot
        self._cell: int | None = None  # the cell of a call that runs in the background
        self._was_begun = False  # whether `begin` showed something
        self._live: list[Display] = []  # the last of these is shown again
        self._lock = threading.RLock()  # a plot function may wait for its job

    def begin(self, job: Job, progress: Any) -> None:
        """Show a job that is about to begin, according to ``progress=`` and ``plot=``."""
        if surroundings() == "kernel":
            self._cell = cell_number()
        elif progress is None:
            progress = False
        self._was_begun = self._draw(job, progress)

    def show(self, job: Job) -> bool:
        """Show the job in the running cell.

        Return False without a kernel, or if it is not shown.
        """
        if surroundings() != "kernel":
            return False
        with self._lock:
            if self._cell == cell_number():  # already shown in this cell, or not wanted
                return self._was_begun
            if self._live and self._live[-1].show_again():
                return True
            if self._draw(job, progress=True) and job.done():
                self.close()
        return True

    def explore(self, job: Job, **options: Any) -> None:
        """Explore the results of a job, with the labels of the job's own plot."""
        from nbshare._core.notebook.explore import explore

        own = as_plots(self._plot)
        if options.get("plot") is None and len(own) == 1:
            options["plot"] = LivePlot(label=own[0].label, unit=own[0].unit, value=own[0].value)
        explore(job, **options)

    def close(self) -> None:
        """Draw the last state of a finished job."""
        with self._lock:
            while self._live:
                self._live.pop().close()

    def _draw(self, job: Job, progress: Any) -> bool:
        """Draw the job in the running cell, and follow it. Return False if nothing is shown."""
        display = open_display(job, progress=progress, plot=self._plot, in_background=True)
        if not display:
            return False
        with self._lock:
            display.begin()
            self._live.append(display)
        try:
            start_thread(self._follow, display, job._run)
        except RuntimeError:  # no more threads are allowed, so only the last state is drawn
            job.add_done_callback(lambda _: self.close())
        return True

    def _follow(self, display: Display, run: Any) -> None:
        pause_s = 0.0
        while not run.await_end(pause_s):
            with self._lock:
                pause_s = display.update()
        # The job closes this when all output has arrived.
