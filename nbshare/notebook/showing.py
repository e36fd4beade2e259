"""A job as it is shown: while it runs in the background, and wherever the user asks for it.

::

    map_async ─► Showing.begin ─► places in the cell ─► a thread: Display.update …  ─► last state
    job, in any cell ─► Showing.show ─► the same outputs once more, which change with the first

A front end changes all outputs of one display id together. So a job that is shown in ten cells is
drawn once, and a page that was loaded anew, and so has lost its outputs, gets them back.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from nbshare import threads
from nbshare.notebook.environment import cell_number, surroundings

if TYPE_CHECKING:
    from nbshare.job import Job
    from nbshare.notebook import Display

__all__ = ["Showing"]


class Showing:
    """What is drawn of a job that nobody may wait for.

    Parameters
    ----------
    plot
        As for `nbshare.parallel_map`.

    Notes
    -----
    For any thread. It knows its job only while that runs.
    """

    def __init__(self, plot: Any) -> None:
        self._plot = plot
        self._cell: int | None = None  # that of the call, if it went on in the background
        self._was_begun = False  # and showed something
        self._live: list[Display] = []  # the last one is shown again
        self._lock = threading.RLock()  # a plot function may wait for its job

    def begin(self, job: Job, progress: Any) -> None:
        """Show a job that has just begun, as far as ``progress=`` and ``plot=`` want it."""
        place = surroundings()
        if progress is None:
            progress = place == "kernel"
        if place == "kernel":
            self._cell = cell_number()
        self._was_begun = self._show(job, progress)

    def show(self, job: Job) -> bool:
        """Show the job in the present cell; returns False if there is none, or no need."""
        if surroundings() != "kernel":
            return False
        with self._lock:
            if self._cell == cell_number():  # its own: it is there, or not wanted
                return self._was_begun
            if not (self._live and self._live[-1].show_again()):
                self._show(job, progress=True)
        return True

    def close(self) -> None:
        """Draw the last state, of a job that is over."""
        with self._lock:
            while self._live:
                self._live.pop().close()

    def _show(self, job: Job, progress: Any) -> bool:
        """Draw it in the present cell, and until it is over; returns False if nothing is wanted."""
        from nbshare.notebook import open_display

        display = open_display(job, progress=progress, plot=self._plot, in_background=True)
        if not display:
            return False
        with self._lock:
            display.begin()
            self._live.append(display)
            if job.done():
                self.close()
                return True
        over = threading.Event()
        job.add_done_callback(lambda _: over.set())
        try:
            threads.start(threading.Thread(target=self._follow, args=(display, over), daemon=True))
        except RuntimeError:  # no more threads are allowed: only the last state is drawn
            job.add_done_callback(lambda _: self.close())
        return True

    def _follow(self, display: Display, over: threading.Event) -> None:
        pause_s = 0.0
        while not over.wait(pause_s):
            with self._lock:
                pause_s = display.update()
        self.close()
