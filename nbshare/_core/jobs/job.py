"""Job, the handle of a run for its caller."""

from __future__ import annotations

import _thread
import contextlib
import math
import os
import time
import weakref
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, cast

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.engine.local import is_ending, refuse_to_wait_for_itself
from nbshare._core.engine.run import Run
from nbshare._core.engine.stats import StageStats, WorkerStats
from nbshare._core.functions.reference import check_called
from nbshare._core.interrupts import cancelled_by_interrupt
from nbshare._core.jobs import outcome
from nbshare._core.jobs.html_tables import StatsTable
from nbshare._core.messages import warn
from nbshare._core.tracebacks import (
    Failed,
    no_attribute,
    shown_as,
    shown_from_its_calls,
    shown_from_the_call,
    shown_shortly,
)
from nbshare._core.wire import running_items
from nbshare._core.wire.failures import this_process
from nbshare._core.wire.orders import generator
from nbshare.errors import MapInterrupted, PartialResultWarning, TaskError

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # type checkers know it, also where it is not installed

    T = TypeVar("T", default=Any)  # the function's result, Any if func is a string
else:
    from typing import TypeVar

    T = TypeVar("T")

JobState = Literal["starting", "running", "done", "stopped", "interrupted", "failed"]

SHOW_S = 0.01  # between polls for prints and objects while they arrive, else longer with time
NAP_S = 0.2  # the longest sleep, because an interrupt just before one is noticed after it
RESULTS_CHECK_S = 0.02  # between polls of a loop over results, or of a coroutine

COUNTING = "count results with .count(), not len()"  # for an array with gaps

# Not a WeakSet, whose callbacks an interrupt may break.
_started: list[weakref.ref[Job]] = []
_starting = _thread.allocate_lock()  # for changes of that list
_last_job: Job | None = None  # the newest job that runs or did not succeed


@shown_from_its_calls
class Job(Generic[T]):
    """A run of `map_async` or `parallel_map`: read its progress and results, or stop it.

    Examples
    --------
    Wait for the results:

    >>> import math
    >>> import nbshare
    >>> job = nbshare.map_async(math.sqrt, [1.0, 4.0, 9.0])
    >>> job.result()
    SharedArray([1., 2., 3.])
    >>> job
    <Job sqrt: done, 3 of 3 items done>

    Take results as they arrive, and stop the run early:

    >>> job = nbshare.map_async(math.sqrt, range(1000))
    >>> for i, root in job:
    ...     if root > 5:
    ...         break
    >>> job.cancel() or job.done()
    True

    Find failures, and run one item again in this process, for the debugger:

    >>> job = nbshare.map_async(float, ["1.5", "off"], on_error="return")
    >>> job.result()
    masked_array(data=[1.5, --],
                 mask=[False,  True],
           fill_value=1e+20)
    >>> job.errors
    {1: ValueError("could not convert string to float: 'off'")}
    >>> job.debug(0)
    1.5

    Attributes
    ----------
    label : str
        Name in the progress display: the ``progress=`` label, or the function's name.
    n_workers : int
        Maximum number of worker processes.

    See Also
    --------
    map_async : start a run in the background.
    last_job : the newest run that was stopped or interrupted, or had failures.

    Notes
    -----
    `map_async`, `attach`, `last_job` and `jobs` return jobs. The methods are those of a
    `concurrent.futures.Future`, but `result` of a stopped run returns the partial results.

    In a notebook, a cell that ends with a job, or ``display(job)``, shows its progress display and
    its plot, which update until the run is over.

    Any thread may read all attributes during the run, at no cost for the workers. A plain ndarray
    passed as ``out=`` is filled whenever a thread waits. A forked process cannot use a job of its
    parent, unless the run was over before the fork.

    In a coroutine, ``await job`` waits and ``async for i, result in job`` iterates, while other
    tasks run. If the task is cancelled, also by `asyncio.wait_for`, the run stops, unless the task
    awaits ``asyncio.shield(job)``. To `asyncio.wait` pass ``asyncio.ensure_future(job)``.
    """

    __module__ = "nbshare"

    def __init__(self, run: Run, label: str, shown: Any) -> None:
        self._owners_run, self._process, self._pid = run, this_process[0], os.getpid()
        self._begun_at = self._ended_at = math.nan  # seconds of the monotonic clock
        self._was_interrupted = False
        self.label = label
        self.n_workers = run.request.max_workers
        self._shown = shown  # a `notebook.Showing`, which draws it
        self._is_shown = False  # in a progress display that says how it ends
        self._new_results: Iterator[tuple[int, T]] = iter(())  # shared by all loops
        self._giving = _thread.allocate_lock()
        self._early: dict[int, T] = {}  # results that `in_order` has not yielded yet
        self._n_in_order = 0  # results that it has yielded
        self._ordering = _thread.allocate_lock()  # for both
        self._until = outcome.Until(run)
        # Notifies the run when this job is freed.
        self._forsaken: weakref.finalize[[], Job[T]] | None = None

    # ------------------------------------------------------------ attributes to read

    @property
    def _run(self) -> Run:
        """The run of this job. A forked child may use it only if it was over before the fork."""
        # The child has a copy of its memory, but none of the threads that would finish it.
        if this_process[0] is not self._process and not self._owners_run.is_over:
            raise RuntimeError(
                f"process {os.getpid()} was forked from process {self._pid} before this Job had "
                f"finished, so it cannot use the Job. Use it in process {self._pid}, or start "
                "another run in this process."
            )
        return self._owners_run

    @property
    def n_items(self) -> int | None:
        """Number of items (int), or None until a generator has ended."""
        return self._run.n_items

    @property
    def state(self) -> str:  # completion by jedi gives up at a Literal
        """State: "starting", "running", "done", "stopped", "interrupted" or "failed"."""
        state = self._run.state
        if self._was_interrupted and state != "done":
            return "interrupted"
        if state == "starting" and self.n_done:  # the dispatcher may not have noted it yet
            return "running"
        return state

    @property
    def n_done(self) -> int:
        """Number of finished items (int), including failed ones."""
        return self._run.n_done

    @property
    def elapsed_s(self) -> float:
        """Seconds (float) from the start of the run until now, or until its end."""
        ended_at = time.monotonic() if math.isnan(self._ended_at) else self._ended_at
        return ended_at - self._begun_at

    @property
    def present(self) -> npt.NDArray[np.bool_]:
        """Mask of the results so far, a bool array of shape ``(n_items,)``. Failures are False.

        Examples
        --------
        Which items are done?

        >>> import math
        >>> import nbshare
        >>> job = nbshare.map_async(math.sqrt, [1.0, -4.0, 9.0], on_error="return")
        >>> job.wait()
        True
        >>> job.present
        array([ True, False,  True])

        Run the missing items with another function:

        >>> import cmath
        >>> missing = (~job.present).nonzero()[0]
        >>> nbshare.parallel_map(cmath.sqrt, [[1.0, -4.0, 9.0][i] for i in missing])
        SharedArray([0.+2.j])
        """
        return self._run.present()

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Exceptions of failed items, a dict of index to exception.

        If a loop takes the results of a generator, only the first 10,000 exceptions are kept.

        Examples
        --------
        Which items failed, and why?

        >>> import math
        >>> import nbshare
        >>> job = nbshare.map_async(math.log, [1.0, 0.0, -1.0], on_error="return")
        >>> job.wait()
        True
        >>> sorted(job.errors)
        [1, 2]
        """
        return dict(self._run.errors)

    def partial(self) -> Any:
        """Return the results so far, without waiting.

        Examples
        --------
        The mean of the results so far when a run is stopped:

        >>> import math
        >>> import nbshare
        >>> job = nbshare.map_async(math.sqrt, range(10_000))
        >>> for i, root in job:
        ...     if i == 3:
        ...         break
        >>> _ = job.cancel()
        >>> bool(0 < job.partial().mean() < 100)
        True

        Returns
        -------
        numpy.ma.MaskedArray, list or None
            If the results form an array, a masked array of shape ``(n_items, *shape)``, which masks
            missing rows. It is a view of the shared output, not a copy. For tiles, the whole array,
            with missing tiles masked. Both are read-only until the run is over. Otherwise a list
            with `nbshare.MISSING` in its gaps. With ``reduce=``, the value so far. None before the
            first result.
        """
        return outcome.partial(self._run)

    def _partial(self) -> Any:
        """Return the results so far, one per item in the order of the items, also for a grid."""
        return outcome.in_order(self._run, self._run.partial())

    def _folded(self) -> tuple[int, Any]:
        """Return the number of items in the value of ``reduce=`` so far, and the value."""
        return self._run.folded()

    @property
    def _present(self) -> npt.NDArray[np.bool_]:
        """Mask of the results so far, in the order of `_partial`."""
        return cast("npt.NDArray[np.bool_]", outcome.in_order(self._run, self._run.present()))

    @property
    def stats(self) -> StatsTable[WorkerStats]:
        """Time and memory of each worker, a list of WorkerStats that a notebook shows as a table.

        Examples
        --------
        Which item took longest?

        >>> import math
        >>> import nbshare
        >>> job = nbshare.map_async(math.sqrt, range(100))
        >>> job.wait()
        True
        >>> items = [item for worker in job.stats for item in worker.slowest]
        >>> slowest = max(items, key=lambda item: item.elapsed_s)
        >>> slowest.item == str(slowest.index)
        True
        """
        return StatsTable(self._run.stats())

    @property
    def _is_enough(self) -> bool:
        """Whether ``until=`` has ended the run before all items were done."""
        return outcome.is_enough(self._run)

    @property
    def _has_gaps(self) -> bool:
        """Whether the results are an array with missing rows."""
        partial = self._run.partial()
        return isinstance(partial, np.ma.MaskedArray) and self.n_done != self.n_items

    @property
    def _is_reduced(self) -> bool:
        """Whether ``reduce=`` combines all results into one value."""
        return self._run.is_reduced

    @property
    def stages(self) -> StatsTable[StageStats]:
        """Work and waiting times of a pipeline's stages, a list of StageStats. Else empty."""
        return StatsTable(self._run.stages())

    @property
    def last_prints(self) -> list[str]:
        """Last 200 lines that the workers of a background job printed, a list of str."""
        return list(self._run.request.prints.kept)

    @property
    def _inputs(self) -> Any:
        """The only iterable of the run, or None if it has several or a generator."""
        return self._run.request.items

    def debug(self, i: int) -> T:
        """Run item `i` in this process, with the same inputs and seed, for the debugger.

        Examples
        --------
        Run a failed item again, in this process:

        >>> import nbshare
        >>> job = nbshare.map_async(float, ["1.5", "off"], on_error="return")
        >>> job.debug(1)
        Traceback (most recent call last):
        ValueError: could not convert string to float: 'off'

        Parameters
        ----------
        i : int
            Index of the item. Negative indices count from the end.

        Returns
        -------
        object
            The function's result.

        Raises
        ------
        IndexError
            If the run has no such item.
        LookupError
            If the item came from a generator, or is a block of a pipeline, and was not kept.
        Exception
            If the function raised it.
        """
        request = self._run.request
        try:
            index = i if self.n_items is None else range(self.n_items)[i]
        except IndexError:
            raise IndexError(f"there is no item {i}: the run has {self.n_items}") from None
        keywords = dict(request.shared)
        if request.policy.seed is not None:
            keywords["rng"] = generator(request.policy.seed, index)
        with running_items():
            args = self._run.item(index)
            result: T = request.users(*args, **keywords)
        return result

    @property
    def _error(self) -> BaseException | None:
        """Exception that the run failed with, or None. One that arrives later is ignored."""
        return self._run.error if self._run.state == "failed" else None

    def __repr__(self) -> str:
        with contextlib.suppress(RuntimeError):
            return f"<Job {self.label}: {self.state}, {self._count()}>"
        return f"<Job {self.label}: of process {self._pid}>"

    def __reduce__(self) -> Never:
        text = "a Job cannot be sent to another process or stored. Use its results, job.result()."
        raise shown_shortly(TypeError(text))

    if not TYPE_CHECKING:  # type checkers refuse both anyway

        def __getitem__(self, index: Any) -> Any:
            raise TypeError(
                f"a Job is the run, not its results: use job.result()[{index!r}], or job.partial() "
                "for the finished ones"
            )

        def __getattr__(self, name: str) -> Any:
            if name == "_condition":  # an attribute of concurrent.futures.Future
                raise AttributeError(
                    "concurrent.futures.wait and as_completed do not accept a Job: use job.wait()"
                )
            known = [each for each in dir(self) if each[0] != "_" and each != "result"]
            more = "; result() waits for the results, partial() returns the finished ones"
            raise no_attribute("a Job", name, known, more)

        def __array__(self, *_: Any, **__: Any) -> Any:
            raise TypeError(
                "a Job is the run, not its results: pass job.result(), which waits for them, or "
                "job.partial() for the finished ones"
            )

    # ------------------------------------------------------------ a Future's methods

    def done(self) -> bool:
        """Return whether the run is over, however it ended."""
        return self._run.is_over

    def running(self) -> bool:
        """Return whether the run is starting or running."""
        return not self._run.is_over

    def cancelled(self) -> bool:
        """Return whether `cancel`, the Stop button or `shutdown` has stopped the run."""
        return self.done() and self.state == "stopped"

    def cancel(self) -> bool:
        """Stop the run, as the Stop button does, and keep finished results.

        Workers stop within a second, also in the middle of an item.

        Examples
        --------
        Stop a run:

        >>> import time
        >>> import nbshare
        >>> job = nbshare.map_async(time.sleep, [0.0, 60.0])
        >>> job.cancel()
        True
        >>> job.wait(), job.state, job.n_done < 2
        (True, 'stopped', True)

        Returns
        -------
        bool
            False if the run was already over.

        Raises
        ------
        RuntimeError
            If the job comes from `attach`, and its run is not detached, so only the process that
            started it can stop it.

        See Also
        --------
        partial, result : return the finished results.
        """
        if self.done():
            return False
        self._run.stop()
        return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the run is over.

        Examples
        --------
        Check a long run now and then:

        >>> import time
        >>> import nbshare
        >>> job = nbshare.map_async(time.sleep, [60.0])
        >>> while not job.wait(timeout=0.01):
        ...     if job.elapsed_s > 0.02:
        ...         stopped = job.cancel()
        >>> job.cancelled()
        True

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: no limit.

        Returns
        -------
        bool
            Whether the run is over.
        """
        until_s = math.inf if timeout is None else time.monotonic() + timeout
        with self._showing_an_interrupt_shortly():
            while not self._tick(max(0.0, min(NAP_S, until_s - time.monotonic()))):
                if time.monotonic() >= until_s:
                    return False
        return True

    # Like `parallel_map`: an array, or a list if results fit none or out="list".
    def result(self, timeout: float | None = None) -> SharedArray | Any:
        """Wait for the results and return them, as `parallel_map` does.

        Examples
        --------
        Wait for a short time only. The run continues:

        >>> import time
        >>> import nbshare
        >>> job = nbshare.map_async(time.sleep, [60.0])
        >>> try:
        ...     job.result(timeout=0.01)
        ... except TimeoutError:
        ...     print("still running")
        still running
        >>> job.cancel() and job.wait()
        True

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: no limit.

        Returns
        -------
        SharedArray, ndarray, MaskedArray, tuple or list
            The results. After `cancel` or Stop the partial results, with a `PartialResultWarning`
            unless a progress display says so.

        Raises
        ------
        TimeoutError
            If the run is not over in time. The run continues.
        Exception
            If the run failed with this exception.
        """
        self._await_end(timeout)
        return self._outcome()

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end of the run and return the exception that it failed with, or None.

        Examples
        --------
        The failure of a run, and its item:

        >>> import nbshare
        >>> error = nbshare.map_async(float, ["1.5", "off"]).exception()
        >>> error, "item 1 ('off')" in error.__notes__[-1]
        (ValueError("could not convert string to float: 'off'"), True)

        Parameters
        ----------
        timeout : float, optional
            Seconds to wait at most. Default: no limit.

        Returns
        -------
        BaseException or None
            The failure. None if the run succeeded or was stopped.

        Raises
        ------
        TimeoutError
            If the run is not over in time.
        """
        self._await_end(timeout)
        return self._error

    def _await_end(self, timeout: float | None) -> None:
        if not self.wait(timeout):
            raise TimeoutError(f"{self!r} is not over after {timeout} s")

    def add_done_callback(self, function: Callable[[Job[T]], object]) -> None:
        """Call a function when the run is over, immediately if it already is.

        Examples
        --------
        Print how the run ended:

        >>> import threading, time
        >>> import nbshare
        >>> told = threading.Event()
        >>> def tell(job):
        ...     print(f"{job.label} is {job.state}")
        ...     told.set()
        >>> job = nbshare.map_async(time.sleep, [0.2, 0.2])
        >>> job.add_done_callback(tell)
        >>> told.wait(10)
        sleep is done
        True

        Parameters
        ----------
        function : callable
            Called as ``function(job)`` in a thread of nbshare. An exception that it raises is
            printed, and otherwise ignored.

        Raises
        ------
        TypeError
            If the function is asynchronous, or belongs to asyncio and must run in the event loop,
            as for ``asyncio.wait([job])``. Use ``asyncio.wait([asyncio.ensure_future(job)])``.
        """
        if str(getattr(function, "__module__", "")).partition(".")[0] == "asyncio":
            raise TypeError(
                "a Job calls functions in a thread, but functions of asyncio must run in the event "
                "loop. Pass a task: asyncio.wait([asyncio.ensure_future(job)]). Or use "
                "asyncio.gather(job), asyncio.as_completed([job]), or await job."
            )
        check_called("function", function, "job")
        self._run.call_when_over(partial(function, self))

    def __await__(self) -> Generator[Any, None, SharedArray | Any]:
        """Wait in a coroutine or a cell, as in ``results = await job``.

        If the awaiting task is cancelled, the run stops, and other tasks that await the job are
        cancelled too, as with a Future.
        """
        return self._awaited().__await__()

    async def _awaited(self) -> Any:
        import asyncio

        look_s = 0.0
        with self._ending_with_its_task():
            while not self.done():  # polls, because an interrupt does not wake a sleeping loop
                await asyncio.sleep(look_s)
                look_s = _longer(look_s)
        self._cancel_if_interrupted()
        return self.result()

    @contextlib.contextmanager
    def _ending_with_its_task(self) -> Iterator[None]:
        """Stop the run if the asyncio task that waits for it is cancelled, or at Ctrl-C."""
        import asyncio

        task = asyncio.current_task()
        cancel = task.cancel if task is not None else self._interrupt
        try:
            with cancelled_by_interrupt(cancel) as came:
                yield
            if came:  # the interrupt came while nothing was awaited
                raise asyncio.CancelledError
        except BaseException as error:
            self._interrupt()
            count = self._count(kept_in="the job's partial()")
            if came:
                raise MapInterrupted(count) from None
            shown_as(error, f"{type(error).__name__}: {count}")
            raise

    def _cancel_if_interrupted(self) -> None:
        """Cancel this task if the run was interrupted elsewhere.

        Raising KeyboardInterrupt instead would end the event loop.
        """
        import asyncio

        if self.state == "interrupted":
            raise asyncio.CancelledError(f"{self.label} was interrupted: {self._count()}")

    def __iter__(self) -> Iterator[tuple[int, T]]:
        """Iterate over (index, result) in order of completion, during the run.

        A failure is raised after the results that were done before it. With ``on_error="return"``
        the exception is yielded in place of the result. Each result is yielded once, even if
        several loops or threads iterate.

        Results of a generator's items are dropped after that, so the generator may be endless. The
        run is about a second ahead of the loop. The run stops with `cancel`, or when the last
        reference to the job is dropped. A progress display and `last_job` also hold a reference.

        Yields
        ------
        tuple of int and object
            Index of the item and its result, or its exception with ``on_error="return"``.

        Raises
        ------
        Exception
            If the run failed with this exception.
        """
        return self._loop(self._next_result)

    async def __aiter__(self) -> AsyncIterator[tuple[int, T]]:
        """Iterate in a coroutine, as in ``async for i, result in job``.

        Other tasks run meanwhile. If the task is cancelled, the run stops. After ``break`` the run
        continues.

        Yields
        ------
        tuple of int and object
            As in a plain loop.
        """
        import asyncio

        self._refuse_if_reduced()
        look_s, is_over = 0.0, False
        while not is_over:
            with self._ending_with_its_task():
                await asyncio.sleep(look_s)
                is_over = self._tick(0.0)
            while (new := self._next_result()) is not None:
                yield new
            look_s = _longer(look_s)
        self._cancel_if_interrupted()
        self._end_loop()

    def _loop(self, take: Callable[[], tuple[int, T] | None]) -> Iterator[tuple[int, T]]:
        """Yield all results that `take` returns, until the run is over."""
        self._refuse_if_reduced()
        look_s = 0.0  # no delay at first, because the source waits for its loop from then on
        while True:
            with self._showing_an_interrupt_shortly():
                is_over = self._tick(look_s)  # before `take`, because all results are done then
            while (new := take()) is not None:
                yield new
            if is_over:
                break
            look_s = _longer(look_s)
        self._end_loop()

    def _end_loop(self) -> None:
        """After the last result, raise the error of the run, or warn if it was stopped."""
        if self.state != "done":
            self.result()
        outcome.warn_of_chance(self._run)

    def in_order(self) -> Iterator[T]:
        """Iterate over the results in the order of the items, during the run.

        Examples
        --------
        Take the first result that is large enough, and stop the run:

        >>> import math
        >>> import nbshare
        >>> job = nbshare.map_async(math.sqrt, range(100_000))
        >>> next(root for root in job.in_order() if root > 5)
        5.0990195135927845
        >>> _ = job.cancel()

        Yields
        ------
        object
            Result of the next item, or its exception with ``on_error="return"``.

        Raises
        ------
        Exception
            If the run failed with this exception. Raised after the results before that item.

        Notes
        -----
        Results that arrive early are kept until it is their turn. A second loop continues where the
        first loop stopped. Do not iterate over the job itself as well: each result is yielded once.
        """
        for _, result in self._loop(self._next_in_order):
            yield result
        if self._early and self.state == "done" and not self._is_enough:
            raise RuntimeError(
                f"result {self._n_in_order} is missing: another loop has taken it. Use one loop "
                "over the results of a job."
            )

    def _refuse_if_reduced(self) -> None:
        if self._is_reduced:
            raise TypeError("a run with reduce= has one result: use result(), or partial()")

    def _next_result(self) -> tuple[int, T] | None:
        """Return a result that no loop has taken, or None if there is none yet."""
        with self._giving:
            new = next(self._new_results, None)
            if new is None:  # all results of the last poll are taken
                if self._forsaken is None:
                    self._forsaken = weakref.finalize(self, self._run.release)
                    self._forsaken.atexit = False
                self._new_results = self._run.new_results()
                new = next(self._new_results, None)
            return new

    def _next_in_order(self) -> tuple[int, T] | None:
        """Return the result of the next item, or None if it is not done yet. Thread-safe."""
        with self._ordering:
            while self._n_in_order not in self._early:
                if (new := self._next_result()) is None:
                    return None
                self._early[new[0]] = new[1]
            self._n_in_order += 1
            return self._n_in_order - 1, self._early.pop(self._n_in_order - 1)

    def explore(self, *, kind: Any = None, axes: Any = None, plot: Any = None) -> None:
        """Show a panel with a slider over the results in a notebook, also during the run.

        The panel shows the progress, and the chosen result as soon as it arrives.

        Examples
        --------
        Explore the results of a running job, in a notebook:

        >>> import numpy as np
        >>> import nbshare
        >>> def field(phase):
        ...     return np.sin(np.linspace(0, 6, 100) + phase)
        >>> job = nbshare.map_async(field, np.linspace(0, 3, 31))
        >>> job.explore()  # doctest: +SKIP
        >>> job.wait()
        True

        Parameters
        ----------
        kind : {"image", "line", "hist"}, optional
            How to draw one result. Default: by its shape.
        axes : mapping of str to array_like, optional
            Names and values of a grid's axes. Each axis gets a slider.
        plot : LivePlot, optional
            Labels, units and coordinates. Default: labels and unit of the job's own plot.

        Raises
        ------
        TypeError, ValueError
            If an argument is invalid, as for `nbshare.explore`, which has the details.
        """
        self._refuse_if_reduced()
        self._shown.explore(self, kind=kind, axes=axes, plot=plot)

    # -------------------------------------------------------------- for the code that runs it

    def _start(self) -> None:
        """Start the run."""
        self._begun_at = time.monotonic() - self._run.age_s
        with _starting:
            _started[:] = [*map(weakref.ref, jobs()), weakref.ref(self)]
        self._run.start()

    def _tick(self, timeout_s: float) -> bool:
        """Fill ``out=``, show prints, call ``until=``, and wait. Return whether the run is over."""
        refuse_to_wait_for_itself()
        run = self._run
        run.fill_out()
        has_news = run.request.prints.show() | run.load_ahead()
        self._until.ask()
        pause_s = SHOW_S if has_news else max(SHOW_S, time.monotonic() - self._begun_at)
        is_over = run.wait(min(timeout_s, pause_s))
        if is_over:
            self._note_end()
        return is_over

    def _keep_asking(self) -> None:
        """Call ``until=`` until the run is over, in its own thread, because no caller may wait."""
        while not self._run.await_end(SHOW_S):
            self._run.load_ahead()
            self._until.ask()

    def _leave_alone(self) -> None:
        """Prepare for a run that no thread waits for: show its prints, and note its end."""
        prints, shown, reference = self._run.request.prints, self._shown, weakref.ref(self)
        prints.is_attended = False

        def end() -> None:
            job = reference()
            if job is not None:
                job._let_go()
                job._note_end()
            else:  # the caller has dropped it
                prints.end()
                shown.close()

        self._run.call_when_over(end)

    def _note_end(self) -> None:
        """Show the last prints and the final state of a run that is over."""
        if math.isnan(self._ended_at):
            self._ended_at = time.monotonic()
        self._run.request.prints.end()
        self._shown.close()

    def _let_go(self) -> None:
        """Forget this job as the last job if it succeeded."""
        if last_job() is self and self.state == "done" and not self.errors:
            remember(None)

    def _interrupt(self) -> None:
        """Stop the run after the user's interrupt."""
        self._was_interrupted = True
        self.cancel()

    def _outcome(self, *, is_interrupted: bool = False) -> Any:
        """Return the result of a run that is over, or `Failed` with the error to raise.

        The state decides, unless the user interrupted the call that waited for the run.
        """
        if self._forsaken is not None:  # holds the run, whose error's traceback holds this job
            self._forsaken.detach()
        self._run.fill_out()
        if self.state == "done" and not is_interrupted:
            try:
                result = outcome.final(self._run, self.label)
                outcome.warn_of_chance(self._run)
                if self.errors:
                    remember(self)
                self._let_go()
            except Exception as error:  # noqa: BLE001 - from pandas, say (the results are kept)
                remember(self)
                is_ours = isinstance(error, TaskError)  # a result that cannot be unpickled here
                return Failed(error.with_traceback(None) if is_ours else error)
            except KeyboardInterrupt:
                is_interrupted = True
            else:
                self._run.release()  # only now, because after an interrupt results are needed
                return result
        remember(self)
        if is_interrupted or self.state == "interrupted":
            return Failed(MapInterrupted(self._count(kept_in="nbshare.last_job().partial()")))
        if self._error is not None:
            return Failed(self._error)
        # A thread that prints while the interpreter closes its streams may abort the process.
        if not (self._is_shown or is_ending()):
            more = "; the same call continues" if self._run.stored_in else ""
            more += f"; {COUNTING}" if self._has_gaps else ""
            warn(f"{self.label} was stopped: {self._count()}{more}", PartialResultWarning)
        return outcome.partial_or_gaps(self._run)

    def _count(self, *, kept_in: str = "") -> str:
        n_items = "" if self.n_items is None else f" of {self.n_items}"
        if self._run.stored_in:
            kept_in = kept_in and "the checkpoint: the same call continues"
        kept = f", kept in {kept_in}" if kept_in and self.present.any() else ""
        return f"{self.n_done}{n_items} items done{kept}"

    def _ipython_display_(self) -> None:
        """Show the progress display in a notebook, where it updates until the run is over."""
        if not self._shown.show(self):
            raise NotImplementedError  # IPython then shows the repr

    @contextlib.contextmanager
    def _showing_an_interrupt_shortly(self) -> Iterator[None]:
        """Show an interrupt of a wait in one line. The run continues."""
        try:
            yield
        except KeyboardInterrupt as error:
            where = f"{self.label} is still running in the background, {self._count()}"
            shown_as(error, f"{type(error).__name__}: {where}; call its cancel() to stop it")
            raise


def _longer(look_s: float) -> float:
    return min(RESULTS_CHECK_S, 2 * look_s + 1e-3)


class JobList(list[Job]):
    """A list of jobs. In a notebook it shows their progress displays, with Stop buttons."""

    def _ipython_display_(self) -> None:
        if not self:
            raise NotImplementedError  # IPython then shows the repr
        for job in self:
            job._ipython_display_()


@shown_from_the_call
def jobs() -> JobList:
    """Return the running jobs of this process, the oldest first.

    Examples
    --------
    Nothing runs:

    >>> import nbshare
    >>> nbshare.jobs()
    []

    Stop all runs of this notebook:

    >>> import time
    >>> jobs = [nbshare.map_async(time.sleep, [60.0], progress=name) for name in ("fit", "scan")]
    >>> [job.label for job in nbshare.jobs()]
    ['fit', 'scan']
    >>> for job in nbshare.jobs():
    ...     _ = job.cancel(), job.wait()
    >>> nbshare.jobs()
    []

    Returns
    -------
    list of Job
        The jobs. At the end of a notebook's cell they show their progress displays, with Stop
        buttons.

    See Also
    --------
    last_job : the newest job that runs, was stopped or interrupted, or had failures.
    """
    found = (reference() for reference in list(_started))
    mine = (job for job in found if job is not None and job._process is this_process[0])
    return JobList(job for job in mine if job.running())


@shown_from_the_call
def last_job() -> Job | None:
    """Return the newest job if it runs, was stopped or interrupted, or had failures, else None.

    Its results are kept until the next call.

    Examples
    --------
    Which items failed in the last run?

    >>> import nbshare
    >>> values = nbshare.parallel_map(float, ["1.5", "off", "2"], on_error="return")
    >>> nbshare.last_job().errors
    {1: ValueError("could not convert string to float: 'off'")}

    Get the results that were finished before a run failed:

    >>> try:
    ...     nbshare.parallel_map(float, ["1.5", "2", "off"], max_workers=1)
    ... except ValueError:
    ...     print(nbshare.last_job().partial())
    [1.5 2.0 --]

    Returns
    -------
    Job or None
        The job. ``partial()`` has its results, ``errors`` its failures. None if the newest run
        succeeded, or if there was none.

    See Also
    --------
    jobs : all running jobs.
    """
    return _last_job


def remember(job: Job | None) -> None:
    """Set the job that `last_job` returns."""
    global _last_job
    _last_job = job
