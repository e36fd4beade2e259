"""One running map, as its caller sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from nbshare.engine.call import Call
from nbshare.engine.items import generator
from nbshare.engine.output import as_masked, stack
from nbshare.engine.schedule import IN_OUTPUT
from nbshare.engine.stats import WorkerStats, stats_of

__all__ = ["Engine", "Job", "last_job", "remember"]

State = Literal["starting", "running", "done", "stopped", "interrupted", "failed"]


class Engine(Protocol):
    """What runs calls."""

    def warm_up(self) -> None:
        """Start what takes time, while inputs are still being copied."""

    def submit(self, call: Call) -> None:
        """Begin a call."""

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Wait for the end of a call; returns whether it has come."""

    def stop(self, call: Call) -> None:
        """End a call early."""


class Job:
    """A map that is running, has ended, or was ended early.

    Given by `last_job`; not made by hand.

    Attributes
    ----------
    label : str
        What the row shows: the ``progress=`` label, or the function's name.
    n_tasks : int
        Number of items.
    n_workers : int
        Worker processes wanted.
    was_interrupted : bool
        Whether Ctrl-C or the kernel's interrupt ended it.

    Notes
    -----
    Everything may be read from any thread while the map runs: it comes from shared memory, and
    costs the workers nothing.
    """

    def __init__(self, call: Call, engine: Engine, label: str) -> None:
        self._call = call
        self._engine = engine
        self.was_interrupted = False
        self._copied: npt.NDArray[np.bool_] | None = None
        self.label = label
        self.n_tasks = call.request.n_tasks
        self.n_workers = call.request.max_workers

    @property
    def state(self) -> State:
        """One of starting, running, done, stopped, interrupted, failed."""
        if self.was_interrupted and self._call.state != "done":
            return "interrupted"
        return self._call.state

    @property
    def n_done(self) -> int:
        """Number of results that are there."""
        return self._call.board.n_done()

    @property
    def n_ready(self) -> int:
        """Number of workers that have started and are at work."""
        return self._call.n_ready

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Which results are there: a bool array of shape (n_tasks,), True where done."""
        return self._call.board.present()

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """The failures so far, by the index of their items."""
        return dict(self._call.results.errors)

    def partial(self) -> Any:
        """Return what is there now.

        Returns
        -------
        numpy.ma.MaskedArray, list or None
            Results that are one array: the shared output itself, not a copy, with the rows masked
            that are not there. Other results: a list with `nbshare.MISSING` in the gaps. None
            before the first result.
        """
        return self._call.results.partial()

    @property
    def stats(self) -> list[WorkerStats]:
        """What each worker does with its time, so far: start-up, working, waiting, slowest items.

        Of workers that were replaced, the figures are not kept.
        """
        call = self._call
        return stats_of(call.board, call.begun_ns, call.request.text_of)

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
        """
        request = self._call.request
        index = range(self.n_tasks)[i]
        keywords = dict(request.shared)
        if request.policy.seed is not None:
            keywords["rng"] = generator(request.policy.seed, index)
        return request.func(*(column[index] for column in request.iterables), **keywords)

    def start(self) -> None:
        """Hand the call to the workers."""
        self._engine.submit(self._call)

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, at most `timeout_s` seconds; returns whether it has come."""
        self.fill_out()
        return self._engine.wait(self._call, timeout_s)

    @property
    def error(self) -> BaseException | None:
        """What the map has failed with."""
        return self._call.error

    def result(self) -> Any:
        """Return all results, of a map that is done."""
        out, masked = self._call.request.out, self._call.request.policy.on_error == "return"
        if not isinstance(out, np.ndarray):
            results = self._call.results.final(with_errors=masked)
            if out != "stack":
                return results
            stacked = stack(results)
            return tuple(map(as_masked, stacked)) if masked else stacked
        if not masked:
            return out
        missing = ~self.present.reshape(-1, *[1] * (out.ndim - 1))
        return np.ma.MaskedArray(out, np.broadcast_to(missing, out.shape).copy(), copy=False)

    def stop(self) -> None:
        """End the map early; results that are there are kept."""
        self._engine.stop(self._call)

    def interrupt(self) -> None:
        """End the map early on behalf of the user's interrupt."""
        self.was_interrupted = True
        self.stop()

    def fill_out(self) -> None:
        """Copy new rows into the plain array that the caller gave as ``out=``."""
        out, shared = self._call.request.out, self._call.results.array
        if not isinstance(out, np.ndarray) or shared is None or shared is out:
            return
        done = self._call.board.done == IN_OUTPUT
        if self._copied is None:
            self._copied = np.zeros_like(done)
        new = np.flatnonzero(done & ~self._copied)
        if new.size:
            out[new] = shared[new]
            self._copied[new] = True

    def __repr__(self) -> str:
        return f"<Job {self.label}: {self.state}, {self.n_done} of {self.n_tasks} done>"


_last_job: Job | None = None


def last_job() -> Job | None:
    """Return the newest job that was stopped, interrupted or failed; None after a finished one.

    Its results are kept until the next call.

    Returns
    -------
    Job or None
        Its ``partial()`` has the results, its ``errors`` what went wrong.

    Examples
    --------
    >>> import nbshare
    >>> nbshare.last_job() is None
    True
    """
    return _last_job


def remember(job: Job | None) -> None:
    """Make a job the last one; None lets go of the one before."""
    global _last_job
    _last_job = job
