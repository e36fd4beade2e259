"""A map from its request to its result: run, drawn meanwhile, interrupted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

from nbshare.engine.base import Engine
from nbshare.engine.local import dispatcher
from nbshare.engine.preparing import prepare
from nbshare.engine.request import Items, Request
from nbshare.engine.run import Run
from nbshare.engine.single import SingleRun
from nbshare.errors import MapInterrupted
from nbshare.job import NAP_S, Job, remember
from nbshare.notebook import Display, Showing, open_display
from nbshare.options import Backend

__all__ = ["prepared", "run_and_draw"]

INTERRUPT_S = 1.0  # an interrupted call gives the prompt back after this at the latest
MAX_PRESSES = 100  # during the last frame; a plot function may raise KeyboardInterrupt by itself


def _engine_for(where: Backend) -> Engine:
    """Return the engine that a map runs on."""
    if where == "local":
        return dispatcher()
    from nbshare.engine.inline import SerialEngine, ThreadEngine  # late: they have workers' code

    return SerialEngine() if where == "serial" else ThreadEngine()


def prepared(
    request: Request, source: Items | None, where: Backend, *, in_background: bool = False
) -> Run:
    """Place what is asked for in shared memory, for the engine that it runs on."""
    engine = _engine_for(where)
    if source is None:
        may_feed = engine.can_be_fed and not in_background
        return SingleRun(prepare(request, engine.warm_up, may_feed=may_feed), engine)
    from nbshare.engine.stream import Stream  # late: most maps know their items

    return Stream(request, source, engine, in_background=in_background)


def run_and_draw(
    make: Callable[[], Run], label: str, progress: Any, plot: Any
) -> tuple[Any, BaseException | None]:
    """Run a map and draw while waiting.

    Returns the result and the error to raise. It is not raised here: notebooks keep the last
    traceback, and with this frame the job with its memory.
    """
    remember(None)
    job: Job | None = None
    display: Display | None = None
    try:
        job = Job(make(), label, Showing(plot))
        job.start()
        display = open_display(job, progress=progress, plot=plot)
        pause_s = 0.0
        while not job.tick(min(pause_s, NAP_S)):
            pause_s = display.update()
    except KeyboardInterrupt:
        if job is not None:
            _settle(job)
    except BaseException:
        if job is not None:
            job.stop()
        raise
    finally:
        _show_end(job, display)
    if job is None:
        return None, MapInterrupted(f"{label}: interrupted before it had started")
    return job.outcome()


def _settle(job: Job) -> None:
    """Stop an interrupted job and wait until nobody works on it, whatever else is pressed."""
    deadline = time.monotonic() + INTERRUPT_S
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(KeyboardInterrupt):
            job.interrupt()
            if job.tick(left_s):
                return


def _show_end(job: Job | None, display: Display | None) -> None:
    """Draw the last frame of a map, whatever else is pressed."""
    for _ in range(MAX_PRESSES):
        try:
            if job is not None:
                job.fill_out()
            if display is not None:
                display.close()
        except KeyboardInterrupt:
            if job is not None:
                job.was_interrupted = True
        else:
            return
