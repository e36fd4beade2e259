"""Starts a run in the background, or runs it while its caller waits and draws."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from nbshare._core.interrupts import ignore_more_presses, start_thread
from nbshare._core.jobs.job import NAP_S, Job, remember
from nbshare._core.notebook import Display, Showing, open_display
from nbshare._core.notebook.environment import surroundings
from nbshare._core.tracebacks import Failed
from nbshare.errors import MapInterrupted

if TYPE_CHECKING:
    from nbshare._core.engine.run import Run

INTERRUPT_S = 1.0  # longest wait of an interrupted call before it returns
MAX_PRESSES = 100  # during the last frame, as a plot function may raise KeyboardInterrupt by itself


def in_background(run: Run, label: str, progress: Any, plot: Any) -> Job:
    """Start a run in the background, and show its progress."""
    remember(None)
    shown = Showing(plot)
    job = Job(run, label, shown)
    remember(job)
    job._leave_alone()
    shown.begin(job, progress)
    job._start()
    if run.request.until is not None or run.request.reduce is not None:
        start_thread(job._keep_asking)
    if job.done():  # before the cell ends
        job._note_end()
    return job


def run_and_draw(make: Callable[[], Run], label: str, progress: Any, plot: Any) -> Any:
    """Run a call and draw while waiting. Return the result, or `Failed` with the error to raise."""
    remember(None)
    job: Job | None = None
    display: Display | None = None
    try:
        job = Job(make(), label, Showing(plot))
        display = open_display(job, progress=progress, plot=plot)
        _draw_until_over(job, display)
    except KeyboardInterrupt:
        if surroundings() == "kernel":
            ignore_more_presses()
        if job is not None:
            _settle(job)
    except BaseException:
        if job is not None:
            job.cancel()
        raise
    finally:
        _show_end(job, display)
    if job is None:
        return Failed(MapInterrupted(f"{label}: interrupted before it had started"))
    return job._outcome(is_interrupted=job._was_interrupted)


def _draw_until_over(job: Job, display: Display) -> None:
    """Start a job, and update its display until the job is over."""
    # Separate from the try statement of the caller, because since Python 3.12 an interrupt at the
    # end of a loop's body can escape a try around the loop.
    pause_s = display.update()  # before anything that items print
    job._start()
    while not job._tick(min(pause_s, NAP_S)):
        pause_s = display.update()


def _settle(job: Job) -> None:
    """Stop an interrupted job and wait until it is over, even if interrupted again."""
    deadline = time.monotonic() + INTERRUPT_S
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(KeyboardInterrupt):
            job._interrupt()
            if job._tick(left_s):
                return


def _show_end(job: Job | None, display: Display | None) -> None:
    """Draw the last frame of a run, even if interrupted again."""
    for _ in range(MAX_PRESSES):
        try:
            if job is not None:
                job._run.fill_out()  # the plain array of out=
            if display is not None:
                display.close()
        except KeyboardInterrupt:
            if job is not None:
                job._was_interrupted = True
        else:
            return
