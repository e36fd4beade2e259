"""parallel_map and map_async: checked once, then run, drawn meanwhile, interrupted."""

from __future__ import annotations

import contextlib
import inspect
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Never, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from nbshare.engine.local import dispatcher
from nbshare.engine.preparing import prepare
from nbshare.engine.run import Engine, Request
from nbshare.engine.supply import SourceSupply
from nbshare.errors import MapInterrupted
from nbshare.functions.reference import label_of
from nbshare.job import NAP_S, Job, remember
from nbshare.notebook import Display, Plot, Showing, check_display, open_display
from nbshare.options import Backend, MapOptions, checked_request, refuse_others
from nbshare.tracebacks import shown_from_the_call, unwrapped
from nbshare.wire import is_worker

if TYPE_CHECKING:
    from nbshare.engine.call import Call
    from nbshare.engine.pipe import Pipe

__all__ = ["map_async", "parallel_map", "run_and_draw"]

INTERRUPT_S = 1.0  # an interrupted call gives the prompt back after this at the latest
KNOWN = (*MapOptions._fields, "progress", "plot")
MAX_PRESSES = 100  # during the last frame; a plot function may raise KeyboardInterrupt by itself

P = ParamSpec("P")
R = TypeVar("R")


@shown_from_the_call
def parallel_map(
    func: Callable[..., Any] | str,
    /,
    *iterables: Iterable[Any],
    shared: Mapping[str, Any] | None = None,
    out: npt.NDArray[Any] | Literal["list", "stack"] | None = None,
    max_workers: int | None = None,
    chunksize: int | None = None,
    progress: bool | str | type | None = None,
    plot: Plot = None,
    on_error: Literal["raise", "return"] = "raise",
    retries: int = 0,
    timeout: float | None = None,
    seed: int | np.random.SeedSequence | None = None,
    initializer: Callable[..., Any] | None = None,
    initargs: Sequence[Any] = (),
    checkpoint: str | os.PathLike[str] | None = None,
    backend: Any = None,
    **others: Never,
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
        SharedArray. Of a generator, or anything else without a length, some items are taken at a
        time, and no more than workers will soon need: see the Notes.
    shared : mapping of str to object, optional
        Keyword arguments, the same for every call, placed in shared memory once. Arrays are
        read-only in the workers: a write raises `ValueError` there. A `numpy.memmap` of 1 MiB or
        more is not copied, here or among the items: workers map its file, which may be larger than
        the memory, and see what is written to it meanwhile. In mode ``'c'`` it is copied.
    out : None, "list", "stack" or ndarray, optional
        None (default): results that are numbers or arrays of one shape come as one SharedArray of
        shape ``(n, *shape)``, others as a list. ``"list"``: always a list. ``"stack"``: results
        that are tuples, such as ``(mean, std)``, come as a tuple of arrays. An ndarray of shape
        ``(n, *shape)`` is filled and returned.
    max_workers : int, optional
        Number of worker processes; default: the CPUs that this process may use.
    chunksize : int, optional
        Items that a worker takes at a time; default: chosen by measured time.
    progress : None, bool, str or tqdm class, optional
        None (default): a row in a notebook, with workers and failures folded under it, or a bar in
        a terminal; nothing in a log. True: lines there too. False, a label, or a tqdm class to use
        instead.
    plot : "line", "image", "hist", LivePlot, callable or list of these, optional
        A picture in the notebook that is drawn again as results come, at most a few times a
        second: a line of results against items, an image, a histogram, or what a `LivePlot` says.
        ``callable(ax, partial)`` gets matplotlib Axes and the masked array of the results so far
        (a list with `nbshare.MISSING` if they fit no array). Several stand side by side. A run of a
        second or two that keeps all CPUs busy has a last frame only.
    on_error : {"raise", "return"}, optional
        ``"raise"`` (default): the first failure stops the map and is raised as itself, with the
        worker's traceback and a note naming the item. ``"return"``: the map goes on; the result
        is a masked array, or a list with the exceptions in their places, and
        ``last_job().errors`` has them by index.
    retries : int, optional
        How often an item is tried again that raised, took too long or whose worker died.
        Default 0. Items of some microseconds run together: if their worker dies, those that were
        under way with the guilty one are run again, one by one, and are not counted.
    timeout : float, optional
        Seconds that one item may take. Past it its worker is ended and replaced, and the item
        fails with `TaskTimeoutError`; if the worker has just gone on to another item, that one is
        run again. Default: no limit.
    seed : int or numpy.random.SeedSequence, optional
        Each call gets ``rng=``, a `numpy.random.Generator` (PCG64) from the sequence's child of the
        item's index, ``SeedSequence(seed).spawn(n)[i]``: the same numbers whatever the number of
        workers. The sequence is not advanced.
    initializer : callable, optional
        Called in each worker before its first item, to load a model or open a connection. Workers
        that have run it are kept for calls with the same one, and with them what it has set there:
        environment variables, working directory, import path, signal handlers and the like.
    initargs : sequence, optional
        Its positional arguments.
    checkpoint
        Not built yet.
    backend : {None, "serial", "threads"}, optional
        None (default): worker processes. ``"serial"``: here, one item after the other, for the
        debugger. ``"threads"``: `max_workers` threads of this process, for functions that release
        the interpreter lock. In both a map stops between items, and `timeout` is refused.

    Returns
    -------
    SharedArray, ndarray, MaskedArray, list or tuple
        Results in the order of the items; with ``on_error="return"`` arrays are masked where items
        failed; with ``out="stack"`` a tuple of arrays. With 0 items ``np.empty(0)``, or ``[]`` for
        ``"list"`` and ``"stack"``.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        Wrong use; before any worker starts.
    nbshare.errors.UnsendableError
        Something cannot be pickled; before any worker starts, unless it is an item of a long list:
        those are pickled while the ones before them run. A `TypeError`.
    nbshare.errors.OutOfMemoryError
        Inputs or results do not fit into memory. A `MemoryError`.
    nbshare.errors.WorkerDiedError
        A worker was killed or crashed in the middle of an item, which the message names.
    nbshare.errors.TaskTimeoutError
        An item took longer than `timeout`. A `TimeoutError`.
    nbshare.MapInterrupted
        The kernel's interrupt or Ctrl-C; ``nbshare.last_job().partial()`` has what was done.
    Exception
        What `func` raised, or the iterable that gives the items.

    See Also
    --------
    share : put an array into shared memory for several calls.
    map_async : the same in the background.
    last_job : what a failed or interrupted call had done.
    report : tell from inside a long item how far it is.
    LivePlot : labels, units and coordinates of a picture, or one of your own.

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

    Programs that `func` starts end with their worker. Those that it starts in a session of their
    own (``start_new_session=True``) go on after a cancelled call and after `shutdown`. What `func`
    changes in its process is undone after the call. Some changes cannot be undone: a worker that
    called `os.setuid` stays that user until it ends.

    Workers run a function, method or class of a module file as the file is when the call begins,
    also one that was imported before an edit. If the file has no definition that must be its new
    version, `UnsendableError` is raised. Lambdas and functions that other functions have made are
    sent as they are here, with the global values that they use; so are the originals of decorated
    functions, while the file has their code. One edit is not noticed: the file is overwritten in
    place by one of the same size, within the same tick of the file system's clock (some
    milliseconds) as the version before.

    May be called from any thread, and from several at once: each call then has workers of its
    own. An interrupt is served in the main thread. Plain arrays are copied at the start: what the
    caller changes later is not seen; what it changes later in a SharedArray is.

    A generator is read ahead of the workers, or of a slower loop over a job's results, by what they
    take in about a second, and never by more than 100,000 items, or about 128 MB of arrays and
    texts; but always by a few items for each worker.

    What workers write to their standard output and error output (prints, warnings, log records
    without a handler of their own, C code, other programs) appears in `sys.stdout` and `sys.stderr`
    as they are at the call; in a notebook below its cell. Each worker's lines are whole and in
    order, between those of the others, and unmarked, as from a loop. With
    ``os.environ["NBSHARE_MARK_PRINTS"] = "1"`` before the call each line that Python prints begins
    with the index of its item: ``[item 7] …``. A notebook shows 300 000 characters, and 30 000 more
    a second, then only the end and how much was left out. Elsewhere all arrives that is read: a
    worker waits for that half a second, then it goes on, and what it prints is dropped and counted
    in the text. An initializer may set streams of its own, such as a log file; what items do to
    them is undone after the call.
    """
    refuse_others("parallel_map", others, KNOWN)
    options = MapOptions(
        shared=shared,
        out=out,
        max_workers=max_workers,
        chunksize=chunksize,
        on_error=on_error,
        retries=retries,
        timeout=timeout,
        seed=seed,
        initializer=initializer,
        initargs=initargs,
        checkpoint=checkpoint,
        backend=backend,
    )
    check_display(progress, plot)
    if not iterables:
        raise TypeError("parallel_map(func, items) needs at least one iterable of items")
    request, where = checked_request(func, iterables, options)
    label = progress if isinstance(progress, str) else label_of(request.func)
    if is_worker():  # no bar within a bar
        progress, plot = False, None
    prepare_it = partial(_prepared, request, where)
    return unwrapped(*run_and_draw(prepare_it, label, progress, plot))


def _typed_as(_model: Callable[P, Any]) -> Callable[[Callable[..., R]], Callable[P, R]]:
    """Give a function the argument types of another, for type checkers and editors."""
    return lambda function: function


@shown_from_the_call
@_typed_as(parallel_map)
def map_async(func: Callable[..., Any] | str, /, *iterables: Iterable[Any], **options: Any) -> Job:
    """Start a map and return at once; see `parallel_map` for the arguments.

    Parameters
    ----------
    func : callable or str
        As for `parallel_map`.
    *iterables : iterable
        As for `parallel_map`; the items of a generator are taken by a thread of its own.
    **options
        The keyword arguments of `parallel_map`; ``backend="serial"`` makes no sense here. In a
        notebook the row and the picture go on below the cell of the call while others run. By
        default there is no bar in a terminal, nor lines in a log: ``progress=True`` or a label
        asks for them.

    Returns
    -------
    Job
        ``job.result()`` waits for the results, ``for i, value in job`` gives them as they come,
        ``job.partial()`` what is there now, ``job.cancel()`` ends it early.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        Wrong use; before any worker starts. What goes wrong later is raised by ``job.result()``.

    Examples
    --------
    >>> import math
    >>> import nbshare
    >>> nbshare.map_async(math.sqrt, [1.0, 4.0, 9.0]).result()
    SharedArray([1., 2., 3.])

    Notes
    -----
    Several may run at once, each with workers of its own. A job goes on if nobody keeps it, and
    ends with the process. What its workers print appears as it comes, in a notebook below the cell
    that made it.

    A thread draws. The function that a plot calls runs there, and should not use pyplot; pictures
    are in the style that matplotlib is set to, which is one for all threads.
    """
    progress, plot = options.pop("progress", None), options.pop("plot", None)
    refuse_others("map_async", [name for name in options if name not in KNOWN], KNOWN)
    check_display(progress, plot)
    if options.get("backend") == "serial":
        raise ValueError("backend='serial' runs nothing in the background; use parallel_map")
    if not iterables:
        raise TypeError("map_async(func, items) needs at least one iterable of items")
    request, where = checked_request(func, iterables, MapOptions(**options))
    remember(None)
    shown = Showing(plot)
    job = Job(
        _prepared(request, where, in_background=True),
        progress if isinstance(progress, str) else label_of(request.func),
        shown,
    )
    remember(job)
    job.leave_alone()
    if not is_worker():  # no bar within a bar
        shown.begin(job, progress)
    job.start()
    shown.follow(job)
    return job


# What editors and help() show: the arguments that there are.
_arguments = inspect.signature(parallel_map).parameters.values()
_signature = inspect.Signature([p for p in _arguments if p.kind is not p.VAR_KEYWORD])
parallel_map.__signature__ = _signature.replace(return_annotation="Any")  # type: ignore[attr-defined]
map_async.__signature__ = _signature.replace(return_annotation="Job")  # type: ignore[attr-defined]


def _engine_for(where: Backend) -> Engine:
    """Return the engine that a map runs on."""
    if where == "local":
        return dispatcher()
    from nbshare.engine.inline import SerialEngine, ThreadEngine  # late: they have workers' code

    return SerialEngine() if where == "serial" else ThreadEngine()


def _prepared(request: Request, where: Backend, *, in_background: bool = False) -> Call:
    """Place what is asked for in shared memory, for the engine that it runs on."""
    engine = _engine_for(where)
    may_feed = engine.can_be_fed and not in_background
    call = prepare(request, engine, may_feed=may_feed)
    if request.source is not None:
        call.supply = SourceSupply(call, request.source, in_background=in_background)
    return call


def run_and_draw(
    make: Callable[[], Call | Pipe], label: str, progress: Any, plot: Any
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
        display = open_display(job, progress=progress, plot=plot)
        job.is_shown = display.has_row
        display.update()  # before anything that items print
        job.start()
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
