"""What can be read of a running map, or one that is over."""

from __future__ import annotations

import contextlib
import math
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare.engine.collect import as_masked, masked, nothing, stack

if TYPE_CHECKING:
    from nbshare.engine.call import Call
    from nbshare.engine.pipe import Pipe
    from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats

__all__ = ["JobState", "State"]

State = Literal["starting", "running", "done", "stopped", "interrupted", "failed"]


class JobState:
    """Base of `nbshare.job.Job`: how far it is, and what is there.

    Parameters
    ----------
    run : Call or Pipe
        What it is about.
    label : str
        What the row shows.

    Notes
    -----
    For any thread.
    """

    def __init__(self, run: Call | Pipe, label: str) -> None:
        self._owners_run, self._pid = run, os.getpid()
        self._begun_at = self._ended_at = math.nan  # on the monotonic clock
        self.was_interrupted = False
        self.label = label
        self.n_workers = run.request.max_workers

    @property
    def _run(self) -> Call | Pipe:
        """What this is about; in a forked child only if it was over before."""
        # The child has its memory, but none of the threads that bring it to an end.
        if os.getpid() != self._pid and not self._owners_run.is_over:
            raise RuntimeError(
                f"this Job belongs to process {self._pid}, from which process {os.getpid()} was "
                "forked before the run was over. Use it there, or start another run here"
            )
        return self._owners_run

    @property
    def n_tasks(self) -> int | None:
        """Number of items; None as long as a generator has not ended."""
        return self._run.n_tasks

    @property
    def state(self) -> str:  # completion by jedi gives up at a Literal
        """One of starting, running, done, stopped, interrupted, failed."""
        state = self._run.state
        if self.was_interrupted and state != "done":
            return "interrupted"
        if state == "starting" and self.n_done:  # whoever notes that workers are ready may wait
            return "running"
        return state

    @property
    def n_done(self) -> int:
        """Number of results that are there."""
        return self._run.n_done

    @property
    def elapsed_s(self) -> float:
        """Seconds from its beginning until now, or its end."""
        ended_at = time.monotonic() if math.isnan(self._ended_at) else self._ended_at
        return ended_at - self._begun_at

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which results are there: a bool array of shape (n_tasks,), True where done."""
        return self._run.present()

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """The failures so far, by the index of their items.

        Of a generator whose results have been given by iterating, the first 10 000 or some more.
        """
        return dict(self._run.errors)

    def partial(self) -> Any:
        """Return what is there now.

        Returns
        -------
        numpy.ma.MaskedArray, list or None
            Results that are one array: the shared output itself, not a copy, with the rows masked
            that are not there. Other results: a list with `nbshare.MISSING` in the gaps. None
            before the first result.
        """
        return self._run.partial()

    @property
    def stats(self) -> list[WorkerStats]:
        """What each worker has done so far: start-up, working, waiting, slowest items."""
        return self._run.stats()

    @property
    def activity(self) -> list[WorkerActivity]:
        """What each worker is doing at this moment."""
        return self._run.activity()

    @property
    def stages(self) -> list[StageStats]:
        """What each stage of a pipeline has done so far; empty for a map."""
        return self._run.stages()

    @property
    def last_prints(self) -> list[str]:
        """The last 200 lines that workers have printed, of a map in the background."""
        return list(self._run.request.prints.kept)

    @property
    def inputs(self) -> Any:
        """The items, if there is one sequence or array of them; else None."""
        iterables = self._run.request.iterables
        return iterables[0] if len(iterables) == 1 else None

    def debug(self, i: int) -> Any:
        """Run item `i` here, in this process and thread, with the same inputs and seed.

        For the debugger: set a breakpoint in the function, or call ``%debug`` after an error.

        Parameters
        ----------
        i : int
            Index of the item.

        Returns
        -------
        object
            What the function returns; what it raises is raised.

        Raises
        ------
        IndexError
            If there is no such item.
        LookupError
            If the item is not kept: of a generator, or a block of a pipeline.
        """
        request = self._run.request
        index = i if self.n_tasks is None else range(self.n_tasks)[i]
        keywords = dict(request.shared)
        if request.policy.seed is not None:
            from nbshare.worker.items import generator  # late: the caller itself runs no items

            keywords["rng"] = generator(request.policy.seed, index)
        return request.func(*self._run.item(index), **keywords)

    def fill_out(self) -> None:
        """Copy new rows into the plain array that the caller gave as ``out=``."""
        self._run.fill_out()

    @property
    def error(self) -> BaseException | None:
        """What the map has failed with."""
        return self._run.error

    def _results(self) -> Any:
        request = self._run.request
        out, with_errors = request.out, request.policy.returns_errors
        if isinstance(out, np.ndarray):
            return masked(out, ~self.present) if with_errors else out
        if self.n_tasks == 0:
            return nothing(out, with_errors=with_errors)
        results = self._run.final()
        if out != "stack":
            return results
        stacked = stack(results)
        is_tuple = with_errors and isinstance(stacked, tuple)
        return tuple(map(as_masked, stacked)) if is_tuple else stacked

    def _count(self, *, kept_in: str = "") -> str:
        n_tasks = "" if self.n_tasks is None else f" of {self.n_tasks}"
        kept = f", kept in {kept_in}" if kept_in and self.present.any() else ""
        return f"{self.n_done}{n_tasks} items done{kept}"

    def __repr__(self) -> str:
        with contextlib.suppress(RuntimeError):
            return f"<Job {self.label}: {self.state}, {self._count()}>"
        return f"<Job {self.label}: of process {self._pid}>"
