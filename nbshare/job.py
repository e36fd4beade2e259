"""One running map, as its caller sees it."""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import time
import weakref
from collections.abc import Callable, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare.engine.collect import as_masked, masked, nothing, stack
from nbshare.engine.local import is_ending, refuse_to_wait_for_itself
from nbshare.engine.results import MISSING
from nbshare.errors import MapInterrupted, PartialResultWarning, TaskError, warn
from nbshare.tracebacks import shown_as, unwrapped

if TYPE_CHECKING:
    from nbshare.engine.call import Call
    from nbshare.engine.pipe import Pipe
    from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats

__all__ = ["Job", "JobList", "State", "jobs", "last_job", "remember"]

State = Literal["starting", "running", "done", "stopped", "interrupted", "failed"]

SHOW_S = 0.01  # between looks for prints and objects, while there are; else as time has passed
NAP_S = 0.2  # an interrupt that comes just before a sleep is noticed after it
LOOK_S = 0.02  # between looks of whoever iterates, or awaits in a coroutine

MOST_STARTED = 1000  # jobs, before those that are over are left out

# Not a WeakSet, whose callbacks an interrupt may break.
_started: list[weakref.ref[Job]] = []
_last_job: Job | None = None  # the newest that did not simply succeed


class Job:
    """A map that is running, has ended, or was ended early.

    Given by `map_async` and `last_job`; not made by hand. It has a Future's methods with a
    Future's meaning, except that `result` of a cancelled map gives what is there.

    At the end of a notebook's cell, or in ``display(job)``, it shows its row, and its picture if it
    has one. Both go on changing, in every cell that shows them, until the map is over.

    Attributes
    ----------
    label : str
        What the row shows: the ``progress=`` label, or the function's name.
    n_workers : int
        Worker processes wanted.
    was_interrupted : bool
        Whether Ctrl-C or the kernel's interrupt ended it.

    Notes
    -----
    Everything may be read from any thread while the map runs: it comes from shared memory, and
    costs the workers nothing. A plain ndarray given as ``out=`` is filled whenever somebody waits.

    A cancelled asyncio task that awaits the job, also by `asyncio.wait_for`, ends the map, as it
    would cancel a Future. ``asyncio.shield(job)`` keeps the map going.

    A forked process cannot use a job of its parent, unless the map was over by then.

    Examples
    --------
    >>> import math
    >>> import nbshare
    >>> job = nbshare.map_async(math.sqrt, [1.0, 4.0, 9.0])
    >>> sorted(job)
    [(0, 1.0), (1, 2.0), (2, 3.0)]
    >>> job.result()
    SharedArray([1., 2., 3.])
    """

    def __init__(self, run: Call | Pipe, label: str, shown: Any) -> None:
        self._owners_run, self._pid = run, os.getpid()
        self._begun_at = self._ended_at = math.nan  # on the monotonic clock
        self.was_interrupted = False
        self.label = label
        self.n_workers = run.request.max_workers
        self._shown = shown  # a `nbshare.notebook.Showing`, which draws it
        self.is_shown = False  # in a row that says how it ends
        self._new_results: Iterator[tuple[int, Any]] = iter(())  # for all that iterate
        self._giving = _thread.allocate_lock()
        self._forsaken: weakref.finalize[[], Job] | None = None  # tells the run that this is gone

    # ------------------------------------------------------------ what can be read

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
        try:
            index = i if self.n_tasks is None else range(self.n_tasks)[i]
        except IndexError:
            raise IndexError(f"there is no item {i}: the run has {self.n_tasks} items") from None
        keywords = dict(request.shared)
        if request.policy.seed is not None:
            from nbshare.worker.items import generator  # late: the caller itself runs no items

            keywords["rng"] = generator(request.policy.seed, index)
        return request.func(*self._run.item(index), **keywords)

    @property
    def error(self) -> BaseException | None:
        """What the map has failed with."""
        return self._run.error

    def __repr__(self) -> str:
        with contextlib.suppress(RuntimeError):
            return f"<Job {self.label}: {self.state}, {self._count()}>"
        return f"<Job {self.label}: of process {self._pid}>"

    # ------------------------------------------------------------ a Future's methods

    def done(self) -> bool:
        """Whether the map is over, however it has ended."""
        return self._run.is_over

    def running(self) -> bool:
        """Whether the map is not over yet."""
        return not self._run.is_over

    def cancelled(self) -> bool:
        """Whether the map was ended early: by `cancel`, the Stop button or `nbshare.shutdown`."""
        return self.done() and self.state == "stopped"

    def cancel(self) -> bool:
        """End the map early, within a fraction of a second; results that are there are kept.

        Returns
        -------
        bool
            False if it was over already.
        """
        if self.done():
            return False
        self.stop()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the map.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; default: no limit.

        Returns
        -------
        bool
            Whether the end has come.
        """
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        with self._telling_that_it_goes_on():
            while not self.tick(max(0.0, min(NAP_S, until_s - time.monotonic()))):
                if time.monotonic() >= until_s:
                    return False
        return True

    def result(self, timeout: float | None = None) -> Any:
        """Return the results, as `parallel_map` does; waits for them.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; default: no limit.

        Returns
        -------
        SharedArray, ndarray, tuple or list
            Of a cancelled map the partial results, with a `PartialResultWarning`.

        Raises
        ------
        TimeoutError
            If they are not there in time. The map goes on.
        Exception
            What the map has failed with.
        """
        self._await_end(timeout)
        return unwrapped(*self.outcome())

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Return what the map has failed with, or None; waits for its end.

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most; default: no limit.

        Returns
        -------
        BaseException or None
            None also of a map that was stopped.

        Raises
        ------
        TimeoutError
            If it is not over in time.
        """
        self._await_end(timeout)
        return self._run.error

    def _await_end(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TimeoutError(f"{self!r} is not over after {timeout} s")

    def add_done_callback(self, function: Callable[[Job], object]) -> None:
        """Have a function called when the map is over, or now if it is.

        Parameters
        ----------
        function : callable
            Called as ``function(job)`` in a thread of nbshare's; what it raises is printed and
            goes no further.
        """
        self._run.call_when_over(partial(function, self))

    def __await__(self) -> Generator[Any, None, Any]:
        """Wait in a coroutine or a cell: ``results = await job``; cancelled, it ends the map.

        As with a Future, other tasks that await the job are then cancelled too.
        """
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        import asyncio

        look_s = 0.0
        try:
            while not self.done():  # the kernel's interrupt wakes no loop that sleeps
                await asyncio.sleep(look_s)
                look_s = _longer(look_s)
        except BaseException as error:
            self.interrupt()
            shown_as(error, f"{type(error).__name__}: {self._count(kept_in='its partial()')}")
            raise
        if self.state == "interrupted":  # elsewhere; a KeyboardInterrupt would end the event loop
            raise asyncio.CancelledError(f"{self.label} was interrupted: {self._count()}")
        return self.result()

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        """Iterate over (index, result) in order of completion, while the map runs.

        A failure is raised when all that was done before it has been given, or, with
        ``on_error="return"``, given in its place.

        Each result is given once, also to several loops, in one thread or in several. Those of a
        map over a generator are not kept when they have been given, so that it need not end: it is
        ahead of the loop by about a second, as the notes of `parallel_map` say, and ends when
        nobody has the job any more.

        Yields
        ------
        tuple of int and object
            An item's index and its result, or with ``on_error="return"`` its exception.

        Raises
        ------
        Exception
            What the map has failed with.
        """
        look_s = 0.0  # first: from then on the source waits for who iterates
        while True:
            with self._telling_that_it_goes_on():
                is_over = self.tick(look_s)  # before looking: what is done then is all
            while (new := self._next_result()) is not None:
                yield new
            if is_over:
                break
            look_s = _longer(look_s)
        if self.state != "done":
            unwrapped(*self.outcome())

    def _next_result(self) -> tuple[int, Any] | None:
        """Return a result that nobody has been given; None if there is none at this moment."""
        with self._giving:
            new = next(self._new_results, None)
            if new is None:  # of those that were there at the last look
                if self._forsaken is None:
                    self._forsaken = weakref.finalize(self, self._run.release)
                    self._forsaken.atexit = False
                self._new_results = self._run.new_results()
                new = next(self._new_results, None)
            return new

    def explore(self, *, kind: Any = None, axes: Any = None, plot: Any = None) -> None:
        """Show the results one at a time in a notebook, also while the map runs.

        A panel with a slider, a Play button, the newest result on request, and a Stop button.

        Parameters
        ----------
        kind : {"image", "line", "hist"}, optional
            How one result is drawn; default: by its shape.
        axes : mapping of str to array_like, optional
            The names and values of a grid's axes, each of which gets a slider.
        plot : LivePlot, optional
            Labels, units and coordinates; default: labels and unit of the job's own plot.

        Raises
        ------
        TypeError, ValueError
            As for `nbshare.explore`, which has the details.
        """
        self._shown.explore(self, kind=kind, axes=axes, plot=plot)

    # -------------------------------------------------------------- for who runs it

    def start(self) -> None:
        """Hand the call to the workers."""
        self._begun_at = time.monotonic()
        if len(_started) >= MOST_STARTED:
            _started[:] = map(weakref.ref, jobs())
        _started.append(weakref.ref(self))
        self._run.start()

    def tick(self, timeout_s: float) -> bool:
        """Do what is due here, and wait a little; returns whether the map is over."""
        refuse_to_wait_for_itself()
        self.fill_out()
        has_news = self._run.request.prints.show() | self._run.load_ahead()
        pause_s = SHOW_S if has_news else max(SHOW_S, time.monotonic() - self._begun_at)
        is_over = self._run.wait(min(timeout_s, pause_s))
        if is_over:
            self._note_end()
        return is_over

    def leave_alone(self) -> None:
        """Do what is due though nobody waits: show prints, and in the end let go."""
        prints, shown, reference = self._run.request.prints, self._shown, weakref.ref(self)
        prints.is_attended = False

        def end() -> None:
            job = reference()
            if job is not None:
                job._let_go()
                job._note_end()
            else:  # nobody has kept it
                prints.end()
                shown.close()

        self._run.call_when_over(end)

    def _note_end(self) -> None:
        """See to it that all that is to be seen of it is there, once it is over."""
        if math.isnan(self._ended_at):
            self._ended_at = time.monotonic()
        self._run.request.prints.end()
        self._shown.close()

    def _let_go(self) -> None:
        """Let go of this job if it is done, with all that it asked for."""
        if last_job() is self and self.state == "done" and not self.errors:
            remember(None)

    def stop(self) -> None:
        """End the map early; results that are there are kept."""
        self._run.stop()

    def interrupt(self) -> None:
        """End the map early on behalf of the user's interrupt."""
        self.was_interrupted = True
        self.stop()

    def fill_out(self) -> None:
        """Copy new rows into the plain array that the caller gave as ``out=``."""
        self._run.fill_out()

    def outcome(self) -> tuple[Any, BaseException | None]:
        """Return the result of a map that is over, or the error to raise."""
        if self._forsaken is not None:  # it holds the run, whose error's traceback holds this
            self._forsaken.detach()
        self.fill_out()
        is_done = False
        try:
            if self.state == "done" and not self.was_interrupted:
                result = self._results()
                if self.errors:
                    remember(self)
                self._let_go()
                is_done = True
        except TaskError as error:  # a result that cannot be unpickled here
            remember(self)
            return None, error.with_traceback(None)
        except KeyboardInterrupt:
            self.was_interrupted = True
        if is_done:
            self._run.release()  # not to be interrupted above: what it has may not be its own then
            return result, None
        remember(self)
        if self.was_interrupted:
            return None, MapInterrupted(self._count(kept_in="nbshare.last_job().partial()"))
        if self.error is not None:
            return None, self.error
        # While the interpreter ends a thread that prints to its closing streams may abort it.
        if not (self.is_shown or is_ending()):
            warn(f"{self.label} was stopped: {self._count()}", PartialResultWarning)
        partial = self.partial()
        return [MISSING] * len(self.present) if partial is None else partial, None

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

    def _ipython_display_(self) -> None:
        """Be shown by IPython: in a notebook as a row of the present state, which goes on."""
        if not self._shown.show(self):
            raise NotImplementedError  # so that the repr is shown

    @contextlib.contextmanager
    def _telling_that_it_goes_on(self) -> Iterator[None]:
        """Have IPython show an interrupt of who only waits in one line."""
        try:
            yield
        except KeyboardInterrupt as error:
            where = f"{self.label} goes on in the background, {self._count()}"
            shown_as(error, f"{type(error).__name__}: {where}; its cancel() ends it")
            raise


def _longer(look_s: float) -> float:
    return min(LOOK_S, 2 * look_s + 1e-3)


class JobList(list[Job]):
    """Some jobs; in a notebook each shows its row, with its Stop button."""

    def _ipython_display_(self) -> None:
        if not self:
            raise NotImplementedError  # so that the repr is shown
        for job in self:
            job._ipython_display_()


def jobs() -> JobList:
    """Return the jobs that run, the oldest first.

    Returns
    -------
    list of Job
        At the end of a notebook's cell it shows the row of each, with a Stop button.

    See Also
    --------
    last_job

    Examples
    --------
    >>> import nbshare
    >>> job = nbshare.map_async(abs, [-1, 2])
    >>> job.result()
    SharedArray([1, 2])
    >>> nbshare.jobs()
    []
    """
    found = (reference() for reference in list(_started))
    mine = (job for job in found if job is not None and job._pid == os.getpid())
    return JobList(job for job in mine if job.running())


def last_job() -> Job | None:
    """Return the newest job, if it runs, was stopped, interrupted or failed; else None.

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
    """Make a job the last one; None forgets the one before."""
    global _last_job
    _last_job = job
