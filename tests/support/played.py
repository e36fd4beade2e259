"""A played job, with all that the drawing code sees of a run, over a NumPy array."""

from __future__ import annotations

import time

import numpy as np

from nbshare import MISSING
from nbshare._core.notebook import check_display, open_display


class PlayedRun:
    """The run behind a `PlayedJob`, of which nothing is known."""

    n_restored, stored_in, is_detached, has_processes, hints = 0, "", False, False, ()
    activity = durations = retried = staticmethod(tuple)
    loading_s = staticmethod(float)
    gave_none = staticmethod(bool)

    def fit(self):
        """Return None, as all of its workers fit into memory."""


class PlayedJob:
    """A job without workers. The test says what is done."""

    n_workers, errors, stats, stages, last_prints = 2, {}, (), (), ()
    _inputs, _is_reduced, _is_enough, _has_gaps = None, False, False, False

    def __init__(self, results, label="horizon"):
        self.results, self.label = results, label
        self.n_items, self.state = len(results), "starting"
        self.flags = np.zeros(len(results), bool)
        self.began_s = time.monotonic()
        self._run = PlayedRun()

    @property
    def elapsed_s(self):
        """Seconds since it was made."""
        return time.monotonic() - self.began_s

    @property
    def n_done(self):
        """How many flags are set."""
        return int(np.count_nonzero(self.flags))

    @property
    def _present(self):
        """The flags."""
        return self.flags.copy()

    def _partial(self):
        """Mask the results whose flag is not set."""
        if not self.flags.any():
            return None
        if isinstance(self.results, list):
            return [
                r if there else MISSING for r, there in zip(self.results, self.flags, strict=True)
            ]
        missing = ~self.flags.reshape(-1, *[1] * (self.results.ndim - 1))
        missing = np.broadcast_to(missing, self.results.shape)
        return np.ma.MaskedArray(self.results, missing, copy=False)


def pixels_in(figure):
    """Return what the only image of a figure shows, with NaN where there is no value."""
    shown, above = (np.ma.filled(each.get_array(), np.nan) for each in figure.figure.axes[0].images)
    if shown.ndim == 3:
        return shown[..., :3]
    return np.where(above[..., 3] > 0, np.nan, shown)


def play(job, progress=None, plot=None, *, until=None, end="done", seconds=1.0):
    """Do what a run does while it waits."""
    check_display(progress, plot)
    job.label = progress if isinstance(progress, str) else job.label  # as parallel_map does
    display = open_display(job, progress=progress, plot=plot)
    display.update()
    job.state = "running"
    until = job.n_items if until is None else until
    for i in range(until):
        job.flags[i] = True
        display.update()
        time.sleep(seconds / until)
    job.state = end
    display.close()


def images(n=40):
    y, x = np.mgrid[:60, :80] / 20
    return np.stack([np.sin(x + i / 5) + np.cos(y * i / 20) for i in range(n)])


def played(results, share, label="horizon"):
    job = PlayedJob(results, label)
    job.flags[: round(share * len(results))] = True
    return job
