"""parallel_map: a request is checked once, then handed down."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare.arguments import (
    checked_count,
    checked_out,
    checked_shared,
    refuse_unbuilt,
    sources,
)
from nbshare.arrays import SharedArray
from nbshare.engine.call import Request, prepare
from nbshare.engine.context import current_context
from nbshare.engine.cpus import usable_cpus
from nbshare.engine.local import dispatcher
from nbshare.engine.output import collect, fill_row
from nbshare.engine.worker import is_worker
from nbshare.errors import MapInterrupted, NotBuiltYetError, PartialResultWarning, TaskError, warn
from nbshare.functions import bind_arguments, label_of, resolve
from nbshare.job import Job, remember
from nbshare.notebook import Display, check_display, open_display

__all__ = ["map_async", "parallel_map"]

NAP_S = 0.2  # an interrupt that comes just before a sleep is noticed after it
INTERRUPT_S = 1.0  # an interrupted call gives the prompt back after this at the latest


def parallel_map(
    func: Callable[..., Any] | str,
    /,
    *iterables: Iterable[Any],
    shared: Mapping[str, Any] | None = None,
    out: npt.NDArray[Any] | Literal["list", "stack"] | None = None,
    max_workers: int | None = None,
    chunksize: int | None = None,
    progress: bool | str | type | None = None,
    plot: str | Callable[..., Any] | None = None,
    on_error: Literal["raise", "return"] = "raise",
    retries: int = 0,
    timeout: float | None = None,
    seed: int | np.random.SeedSequence | None = None,
    initializer: Callable[..., Any] | None = None,
    initargs: Sequence[Any] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    backend: Any = None,
) -> Any:
    """Call a function for every item, on all cores, with large arrays in shared memory.

    Like the built-in `map`, but parallel and not lazy: returns when all results are there.

    Parameters
    ----------
    func : callable or str
        A function from a module file (``from workers import horizon``), or
        ``"workers.py:horizon"``; `functools.partial`, bound methods and callable objects of such
        modules. A function, lambda or closure of the notebook itself is sent by value.
    *iterables : iterable
        As in `map`: one positional argument each; the shortest ends. An ndarray gives its rows
        along the first axis without a copy per item: read-only for a plain array, writable for a
        SharedArray. Other iterables are gone through once, before the start.
    shared : mapping of str to object, optional
        Keyword arguments, the same for every call, placed in shared memory once. Arrays are
        read-only in the workers: a write raises `ValueError` there.
    out : None, "list" or ndarray, optional
        None (default): results that are numbers or arrays of one shape come as one SharedArray of
        shape ``(n, *shape)``, others as a list. ``"list"``: always a list. An ndarray of shape
        ``(n, *shape)`` is filled and returned. ``"stack"`` is not built yet.
    max_workers : int, optional
        Number of worker processes; default: the CPUs that this process may use.
    chunksize : int, optional
        Items that a worker takes at a time; default: chosen by measured time.
    progress : None, bool, str or tqdm class, optional
        None (default): a bar when a person is looking, in a notebook or a terminal. True, False,
        a label, or a tqdm class to use instead.
    plot : None, "image" or callable, optional
        A picture that is drawn again as results come, at most a few times a second.
        ``callable(ax, partial)`` gets matplotlib Axes and the masked array of the results so far.
    on_error : {"raise"}, optional
        The first failure stops the map and is raised as itself, with the worker's traceback and a
        note naming the item. ``"return"`` is not built yet.
    retries, timeout, seed, initializer, initargs, checkpoint, backend
        Not built yet: anything but the default raises `NotBuiltYetError`.

    Returns
    -------
    SharedArray, ndarray or list
        Results in the order of the items. With 0 items ``np.empty(0)``, or ``[]`` for ``"list"``.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        Wrong use; before any worker starts.
    nbshare.errors.UnsendableError
        Something cannot be pickled; before any worker starts. A `TypeError`.
    nbshare.errors.OutOfMemoryError
        Inputs or results do not fit into memory. A `MemoryError`.
    nbshare.errors.WorkerDiedError
        A worker was killed or crashed in the middle of an item, which the message names.
    nbshare.MapInterrupted
        The kernel's interrupt or Ctrl-C; ``nbshare.last_job().partial()`` has what was done.
    Exception
        What `func` raised.

    See Also
    --------
    share : put an array into shared memory for several calls.
    last_job : what a failed or interrupted call had done.

    Examples
    --------
    >>> import math
    >>> from nbshare import parallel_map
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], progress=False)
    SharedArray([1., 2., 3.])

    Notes
    -----
    Workers are kept for the next call, and started anew when a file that they imported,
    ``os.environ`` or ``sys.path`` has changed. They see the caller's working directory, warning
    filters, umask and CPU affinity of the call's start. They end with this process, however it
    ends.

    May be called from any thread, and from several at once: each call then has workers of its
    own. An interrupt is served in the main thread. Plain arrays are copied at the start: what the
    caller changes later is not seen; what it changes later in a SharedArray is.
    """
    refuse_unbuilt(
        on_error=(on_error, "raise"),
        retries=(retries, 0),
        timeout=(timeout, None),
        seed=(seed, None),
        initializer=(initializer, None),
        initargs=(tuple(initargs), ()),
        checkpoint=(checkpoint, None),
        backend=(backend, None),
    )
    check_display(progress, plot)
    function = resolve(func)
    if not iterables:
        raise TypeError("parallel_map(func, items) needs at least one iterable of items")
    keywords = checked_shared(shared)
    bind_arguments(function, len(iterables), keywords)
    workers = checked_count("max_workers", max_workers) or usable_cpus()
    size = checked_count("chunksize", chunksize)
    columns, n_tasks = sources(iterables)
    output = checked_out(out, n_tasks)
    if n_tasks == 0:
        return output if isinstance(output, np.ndarray) else [] if output else np.empty(0)
    request = Request(
        func=function,
        shared=keywords,
        iterables=columns,
        n_tasks=n_tasks,
        max_workers=min(workers, n_tasks),
        chunksize=size,
        out=output,
        context=current_context(),
    )
    if is_worker():
        return _run_inline(request)
    label = progress if isinstance(progress, str) else label_of(function)
    result, error = _run(request, label, progress, plot)
    if error is None:
        return result
    try:
        raise error
    finally:
        del error  # a cycle with its traceback would keep all of this alive


def map_async(
    func: Callable[..., Any] | str,  # noqa: ARG001 - the contract's signature
    /,
    *iterables: Iterable[Any],  # noqa: ARG001
    **options: Any,  # noqa: ARG001
) -> Job:
    """Start a map in the background; not built yet.

    Raises
    ------
    nbshare.errors.NotBuiltYetError
        Always. Use `parallel_map`, which waits for the results.
    """
    raise NotBuiltYetError("map_async is not built yet; use parallel_map, which waits")


# ------------------------------------------------------------------------- running


def _run(
    request: Request, label: str, progress: Any, plot: Any
) -> tuple[Any, BaseException | None]:
    """Run a request on this process's workers and draw while waiting.

    Returns the result and the error to raise. It is not raised here: notebooks keep the last
    traceback, and with this frame the job with its memory.
    """
    remember(None)
    job: Job | None = None
    display: Display | None = None
    try:
        engine = dispatcher()
        job = Job(prepare(request, engine.warm_up), engine, label)
        job.start()
        display = open_display(job, progress=progress, plot=plot)
        pause_s = 0.0
        while not job.wait(min(pause_s, NAP_S)):
            pause_s = display.update()
    except KeyboardInterrupt:
        if job is not None:
            _settle(job)
    except BaseException:
        if job is not None:
            job.stop()
        raise
    finally:
        try:
            if job is not None:
                job.fill_out()
            if display is not None:
                display.close()
        except KeyboardInterrupt:  # during the last frame
            if job is not None:
                job.was_interrupted = True
    if job is None:
        return None, MapInterrupted(f"{label}: interrupted before it had started")
    return _outcome(job)


def _settle(job: Job) -> None:
    """Stop an interrupted job and wait until nobody works on it, whatever else is pressed."""
    deadline = time.monotonic() + INTERRUPT_S
    while (left_s := deadline - time.monotonic()) > 0:
        with contextlib.suppress(KeyboardInterrupt):
            job.interrupt()
            if job.wait(left_s):
                return


def _outcome(job: Job) -> tuple[Any, BaseException | None]:
    """Return the result of a job that has ended, or the error that it ended with."""
    done = f"{job.n_done} of {job.n_tasks} items done"
    try:
        if job.state == "done" and not job.was_interrupted:
            return job.result(), None
    except TaskError as error:  # a result that cannot be unpickled here
        remember(job)
        return None, error.with_traceback(None)
    except KeyboardInterrupt:
        job.was_interrupted = True
    remember(job)
    if job.was_interrupted:
        return None, MapInterrupted(f"{done}, kept in nbshare.last_job().partial()")
    if job.error is not None:
        return None, job.error
    warn(f"{job.label} was stopped: {done}", PartialResultWarning)
    return job.partial(), None


def _run_inline(request: Request) -> Any:
    """Run a map that a worker asks for in that worker: no more processes than were asked for."""
    shared = {name: _read_only(value) for name, value in request.shared.items()}
    columns = [x if isinstance(x, SharedArray) else _read_only(x) for x in request.iterables]
    values = []
    for row, args in enumerate(zip(*columns, strict=True)):
        value = request.func(*args, **shared)
        if isinstance(request.out, np.ndarray):
            fill_row(request.out, row, value)
        else:
            values.append(value)
    if isinstance(request.out, np.ndarray):
        return request.out
    return values if request.out == "list" else collect(values)


def _read_only(value: Any) -> Any:
    """Return arrays as the read-only views that they would be in a worker."""
    if not isinstance(value, np.ndarray):
        return value
    view = value.view()
    view.flags.writeable = False
    return view
