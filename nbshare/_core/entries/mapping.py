"""parallel_map and map_async: check the arguments, prepare the call and run it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Never, Protocol, TypeAlias, TypeVar, Unpack, overload

import numpy as np

from nbshare._core.arguments.options import (
    Backend,
    MapOptions,
    Options,
    OtherOptions,
    Out,
    checked_checkpoint,
    checked_request,
)
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.engine.call import Call
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.preparing import prepare
from nbshare._core.engine.request import Request
from nbshare._core.functions.reference import resolve
from nbshare._core.jobs.job import Job, T
from nbshare._core.memory import need_shared
from nbshare._core.names import refuse_others
from nbshare._core.notebook import check_display
from nbshare._core.notebook.live_plot import Plot
from nbshare._core.runs.running import in_background, run_and_draw
from nbshare._core.tracebacks import shown_from_the_call

KNOWN = MapOptions._fields

Function: TypeAlias = Callable[..., T] | str
R_co = TypeVar("R_co", covariant=True)


class NoSuchOption(Protocol[R_co]):
    """A type that no value has, if `R_co` is Never.

    The last overload accepts options of any name with this type, so that type checkers report a
    misspelt option in one message with its name, instead of a list of all overloads.
    """

    def __ne__(self, other: object, /) -> R_co: ...  # type: ignore[override]


@overload
def parallel_map(
    func: Function[T],
    /,
    *iterables: Iterable[Any],
    out: Literal["list"],
    on_error: Literal["raise"] = ...,
    **options: Unpack[OtherOptions],
) -> list[T]: ...
@overload
def parallel_map(
    func: Function[T],
    /,
    *iterables: Iterable[Any],
    out: None = ...,
    on_error: Literal["raise"] = ...,
    **options: Unpack[OtherOptions],
) -> SharedArray | Any: ...  # a list if results fit no array (`Any` permits both without a check)
@overload
def parallel_map(
    func: Function[T],
    /,
    *iterables: Iterable[Any],
    shared: Mapping[str, Any] | None = ...,
    seed: int | np.random.SeedSequence | None = ...,
    out: Out = ...,
    reduce: Callable[[Any, Any], Any] | None = ...,
    until: Callable[..., Any] | None = ...,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = ...,
    progress: bool | str | type | None = ...,
    plot: Plot = ...,
    on_error: Literal["raise", "return"] = ...,
    retries: int = ...,
    timeout: float | None = ...,
    max_workers: int | None = ...,
    chunksize: int | None = ...,
    initializer: Callable[..., Any] | None = ...,
    initargs: Sequence[Any] = ...,
    max_tasks_per_child: int | None = ...,
    backend: Any = ...,
    **misspelt: NoSuchOption[Never],
) -> Any: ...
@shown_from_the_call
def parallel_map(
    func: Function[T], /, *iterables: Iterable[Any], out: Out = None, **options: Any
) -> Any:
    """Call a function for every item, on all CPUs, with large arrays in shared memory.

    Like the built-in `map`, but parallel and not lazy: it returns when all results are finished::

        roots = parallel_map(math.sqrt, [1.0, 4.0, 9.0])
        means = parallel_map(resampled_mean, range(1000), shared={"data": data}, plot="hist")
        tests = parallel_map(simulate, grid(a=[1, 2], b=[3, 4]), checkpoint="tests.ckpt")

    =============  ==================================================================
    subject        parameters
    =============  ==================================================================
    the work       `func`, `iterables`, `shared`, `seed`
    the results    `out`, `reduce`, `until`, `checkpoint`
    the display    `progress`, `plot`
    failures       `on_error`, `retries`, `timeout`
    the workers    `max_workers`, `chunksize`, `initializer`, `initargs`,
                   `max_tasks_per_child`, `backend`
    =============  ==================================================================

    Parameters
    ----------
    func : callable or str
        The function to call, from a module file (``from workers import horizon``), or
        ``"workers.py:horizon"``, or a `functools.partial`, a bound method or a callable object of
        such modules. Functions, lambdas and closures of the notebook itself are sent by value.
    *iterables : iterable
        The items. As in `map`, each iterable supplies one positional argument, and the run stops at
        the shortest. Known lengths that differ issue a `LengthsWarning`. A mapping, a str or a data
        frame is refused. Pass ``list(d)``, or ``shared=``. An ndarray supplies its rows along the
        first axis without a copy per item, read-only for a plain array, writable for a SharedArray.
        A generator is read slightly ahead of the workers. Pass these without other iterables: a
        `grid` (its items are keyword arguments), the `rows` of a DataFrame, the `tiles` of an
        image, volume or series, and a ``groupby`` of pandas or ``group_by`` of polars, for a
        function that takes each frame, or its key and the frame.
    shared : mapping of str to object, optional
        Keyword arguments that are the same for every item. Each is copied to shared memory once.
        Arrays are read-only in the workers, where a write raises `ValueError`. A SharedArray is not
        copied, and neither is a `numpy.memmap` of 1 MiB or more. Any other object is loaded once in
        each worker. If `func` changes it, only later items of that worker see the change, so
        results depend on which worker ran which item. Change a copy instead, such as
        ``dict(config)``. An item that is, or holds, an object of `func` or of ``shared`` is the
        same object in the worker (``item is other``), as in a loop.
    seed : int or numpy.random.SeedSequence, optional
        `func` must accept ``rng``. Each call receives a `numpy.random.Generator` (PCG64) seeded
        with ``SeedSequence(seed).spawn(n)[i]`` for item ``i``, so results do not depend on the
        number of workers. The sequence is not advanced.
    out : None, "list", "stack", "xarray" or ndarray, optional
        Form of the results. By default, numbers, or arrays of one shape, become one SharedArray of
        shape ``(n, *shape)``, and other results a list. With ``"list"`` the results are always a
        list. With ``"stack"``, tuples such as ``(mean, std)`` become a tuple of arrays. An ndarray
        of shape ``(n, *shape)`` is filled and returned. For tiles, the array has the whole shape,
        and workers can write to it (a SharedArray or `numpy.memmap`). With ``"xarray"``, the
        results of a `grid` become an `xarray.DataArray` with its coordinates, dicts and tuples an
        `xarray.Dataset`.
    reduce : callable, optional
        ``reduce(a, b)``, such as `numpy.add` or `max`, combines two results into one. It must be
        associative, because it also combines the results of blocks of items. The run returns one
        value instead of all results, which need not fit into memory together.
    until : callable, optional
        ``until(partial)`` ends the run when it returns true. The run is then done, and returns the
        results so far, as after Stop. The argument is the return value of `Job.partial`. With
        `reduce`, ``until(value, n)`` gets the value so far and the number of items in it, and
        ``plot="line"`` shows both. `until` is called in this process, for at most a tenth of the
        time. An error in it ends the run.
    checkpoint : str, path-like or Checkpoint, optional
        A folder in which results are stored while the run continues. After a crash, an interrupt or
        a kernel restart the same call runs only items without a result, also if items were added,
        reordered or removed. If the function, a helper, `shared`, `seed` or the initializer has
        changed, the call is refused, and the error names the difference. Pass a `Checkpoint` to run
        changed items again, to name a version, or to survive a power failure.
    progress : None, bool, str or tqdm class, optional
        By default, a progress display in a notebook, a bar in a terminal, nothing in a log. True
        shows lines in a log too, False shows nothing. A str is the label. A tqdm class replaces the
        display.
    plot : "line", "image", "hist", LivePlot, callable or list of these, optional
        A plot in the notebook that shows the results while they arrive, redrawn at most a few times
        a second: results against items, an image, a histogram, or as a `LivePlot` specifies.
        ``callable(ax, partial)`` gets Matplotlib Axes and the masked array of the results so far
        (a list with `nbshare.MISSING` in its gaps if they fit no array). Several plots are shown
        side by side.
    on_error : {"raise", "return"}, optional
        With ``"raise"`` (default), the first failure stops the run and is raised with its own type,
        the worker's traceback and a note that names the item. With ``"return"`` the run continues,
        and the result is a masked array, or a list that holds the exceptions in their places.
        ``last_job().errors`` has the exceptions by index.
    retries : int, optional
        Extra attempts for an item that raised, timed out, or lost its worker. Default 0. After an
        exception, further attempts get the same object, so the function must not change its item
        before it may fail.
    timeout : float, optional
        Seconds that one item may take. Default: no limit. After that, the item's worker is killed
        and replaced, and the item fails with `TaskTimeoutError`.
    max_workers : int, optional
        Maximum number of worker processes. Default: the CPUs that this process may use. While
        memory is short, fewer of them run items.
    chunksize : int, optional
        Items that a worker claims at a time. Default: adapted to the measured time.
    initializer : callable, optional
        Called in each worker before its first item, to load a model, open a connection or choose a
        GPU by `worker_index`. The function sees global variables that the initializer sets. Workers
        that have run the initializer are kept for later calls with the same initializer, or without
        one. A context manager or generator that it returns is entered, and exited when the worker
        ends.
    initargs : sequence, optional
        Positional arguments of the initializer.
    max_tasks_per_child : int, optional
        Items that a worker process runs, in this call and earlier ones, before a new process
        replaces it. Useful with C libraries that never free their memory. Default: no limit.
    backend : {None, "serial", "threads", "ray"}, distributed.Client or Executor, optional
        By default, items run in worker processes. With ``"serial"``, they run in this process, one
        after the other, for the debugger. With ``"threads"``, they run in `max_workers` threads of
        this process, for functions that release the interpreter lock, and for all functions if
        Python runs without it (3.14t). Both call the function itself, which may change variables
        of its caller, but items and objects in `shared` are still copied. Stop acts between items
        and where an item calls `report`, `timeout` is refused, and a crash ends this process.
        Systems other than Linux, Windows and macOS support only these two. With a
        `distributed.Client` (Dask), ``"ray"`` or the address of a Ray cluster, or any
        `concurrent.futures.Executor`, items run in worker processes on the machines of that
        cluster.

    Returns
    -------
    SharedArray, ndarray, MaskedArray, list or tuple
        The results, in the order of the items:

        ==========================================  ===========================================
        results, and options                        return value
        ==========================================  ===========================================
        numbers, or arrays of one shape             a SharedArray of shape ``(n, *shape)``
        other results, or ``out="list"``            a list
        tuples, with ``out="stack"``                a tuple of arrays
        some failed, with ``on_error="return"``     a masked array, or a list with exceptions
        some are missing, after Stop                a masked array, or a list with `MISSING`
        ``reduce=``                                 one value, or None if there is no result
        ==========================================  ===========================================

        0 items return ``np.empty(0)``, or ``[]`` for ``"list"`` and ``"stack"``. If all items
        failed, the masked array has the shape ``(n,)``. With `checkpoint`, results that are arrays
        (not numbers) are returned as an ndarray mapped from the file, which may be larger than
        memory.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        If an argument is invalid. Raised before any worker starts.
    nbshare.errors.UnsendableError
        If something cannot be pickled. Raised before any worker starts, except for an item of a
        generator. A `TypeError`.
    nbshare.errors.OutOfMemoryError
        If inputs or results do not fit into memory. A `MemoryError`.
    nbshare.errors.WorkerDiedError
        If a worker was killed or crashed while it ran an item. The message names the item.
    nbshare.errors.TaskTimeoutError
        If an item took longer than `timeout`. A `TimeoutError`.
    nbshare.errors.CheckpointError
        If the results in `checkpoint` depend on something that has changed or cannot be compared.
        Or if `backend` is ``"serial"`` or ``"threads"``, and a file was edited after this process
        imported it. A `ValueError`.
    nbshare.errors.CheckpointInUseError
        If another run writes to `checkpoint`. A `BlockingIOError`.
    nbshare.MapInterrupted
        If the kernel's interrupt or Ctrl-C stopped the run. ``nbshare.last_job().partial()`` has
        the finished results.
    Exception
        If `func`, or the iterable that yields the items, raised it.

    Warns
    -----
    nbshare.errors.PartialResultWarning
        The run was stopped, and no progress display says so.
    nbshare.errors.ReusedItemWarning
        An iterable yields the same object for several items, and changes it each time.
    nbshare.errors.MixedResultsWarning
        Results of different kinds fit no array and are returned as a list.
    nbshare.errors.UnseededWarning
        `func` drew from the global random numbers of NumPy or `random`, without `seed`. Issued once
        per function, for functions that run in worker processes.
    UserWarning
        A module that `func` uses was changed in this process, such as by ``consts.SCALE = 10``.
        Workers run the file, and do not see the change.

    See Also
    --------
    map_async : the same in the background.
    share : copy an array to shared memory once, for several calls.
    last_job : the results of a stopped, failed or interrupted call.
    open_checkpoint : progress and results of a run with `checkpoint`, from any process.
    report : report the progress of a long item.
    LivePlot : a plot with labels, units and coordinates.

    Examples
    --------
    The results form an array:

    >>> import math
    >>> import numpy as np
    >>> from nbshare import parallel_map
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0])
    SharedArray([1., 2., 3.])

    A large array that every call reads:

    >>> def largest(column, data):
    ...     return data[:, column].max()
    >>> data = np.arange(12.0).reshape(3, 4)
    >>> parallel_map(largest, range(4), shared={"data": data})
    SharedArray([ 8.,  9., 10., 11.])

    A list of pairs:

    >>> parallel_map(math.gcd, *zip(*[(4, 6), (9, 6)]))
    SharedArray([2, 3])

    All combinations of two parameters:

    >>> from nbshare import grid
    >>> def distance(x, y):
    ...     return math.hypot(x, y)
    >>> parallel_map(distance, grid(x=[3, 5], y=[0, 4, 12]))
    SharedArray([[ 3.        ,  5.        , 12.36931688],
                 [ 5.        ,  6.40312424, 13.        ]])

    Several results for each item:

    >>> whole, rest = parallel_map(divmod, [7, 8, 9], [2, 3, 4], out="stack")
    >>> whole, rest
    (SharedArray([3, 2, 2]), SharedArray([1, 2, 1]))

    The sum of all results:

    >>> import operator
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], reduce=operator.add)
    6.0

    Items that fail are masked:

    >>> parallel_map(math.sqrt, [1.0, -1.0, 4.0], on_error="return")
    masked_array(data=[1.0, --, 2.0],
                 mask=[False,  True, False],
           fill_value=1e+20)

    Random numbers that do not depend on the number of workers:

    >>> def roll(n, rng):
    ...     return rng.integers(1, 7, n).sum()
    >>> rolls = [parallel_map(roll, [10] * 4, seed=1, max_workers=n) for n in (1, 2)]
    >>> bool((rolls[0] == rolls[1]).all())
    True

    Results are stored in a folder. The same call with more items runs only the new ones:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
    SharedArray([1., 2.])
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], checkpoint=folder)
    SharedArray([1., 2., 3.])

    Notes
    -----
    **Workers** are kept for the next call. They have the environment, working directory, import
    path and warning filters that this process has when the call starts. They end with this process,
    however it ends. A nested call runs in its worker, one item after the other.

    **Code** is fresh: workers run module files as they are when the call starts. They do not see
    values that this process changed in a module.

    **Plain arrays** are read-only in the workers, because writes to a copy would be lost. Workers
    can write to a SharedArray, and to a `numpy.memmap` that is open for writing, except in
    `shared`.

    **Prints** of the workers appear below the cell of the call, in whole lines.

    **Threads**: several threads may call `parallel_map` at the same time. Each call then has its
    own workers. An interrupt is handled in the main thread. Plain arrays are copied when the call
    starts, so workers do not see later changes by the caller. They do see those in a SharedArray.

    ``notebooks/details.md`` has all rules, also those of initializers, generators, grids, tables,
    tiles, `reduce`, checkpoints and clusters.
    """
    checked, request, where = check_call("parallel_map", func, iterables, out, options)
    prepare_it = partial(prepared, request, where, checked_checkpoint(checked), checked.plot)
    return run_and_draw(prepare_it, request.label, checked.progress, checked.plot)


@shown_from_the_call
def map_async(
    func: Function[T],
    /,
    *iterables: Iterable[Any],
    out: Out = None,
    detach: bool = False,
    **options: Unpack[Options],
) -> Job[T]:
    """Start a run in the background, with the arguments of `parallel_map`.

    Examples
    --------
    Start a run, and wait for its results:

    >>> import math
    >>> import nbshare
    >>> job = nbshare.map_async(math.sqrt, [1.0, 4.0, 9.0])
    >>> job.result()
    SharedArray([1., 2., 3.])

    Take results in the order of completion, until one is large enough:

    >>> for i, root in nbshare.map_async(math.sqrt, range(100_000)):
    ...     if root > 5:
    ...         break

    Parameters
    ----------
    func : callable or str
        The function, as for `parallel_map`.
    *iterables : iterable
        The items, as for `parallel_map`. Another thread reads generators.
    **options
        The keyword arguments of `parallel_map`, except ``backend="serial"``. In a notebook the
        progress display and the plot stay below the cell of the call while other cells run. In a
        terminal or a log nothing is shown unless ``progress=True`` or a label is passed.
    detach : bool, optional
        Whether the run uses a separate process, and continues when this one ends, for example in a
        kernel restart. `attach` returns its job in any other process. Detached runs require
        ``checkpoint=`` and items that have a length, and store function and arguments in the
        checkpoint.

    Returns
    -------
    Job
        ``job.result()`` waits for the results, ``for i, value in job`` yields them as they arrive,
        ``job.partial()`` returns the finished results, ``job.cancel()`` stops the run.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        If an argument is invalid. Raised before any worker starts. ``job.result()`` raises later
        errors.

    See Also
    --------
    parallel_map : the same, but wait for the results.
    attach : the job of a detached run, in another process.
    jobs : all running jobs.

    Notes
    -----
    Several jobs may run at the same time, each with its own workers. A job continues without a
    reference to it, and ends with the process, unless it is detached. Prints of its workers appear
    immediately, in a notebook below the cell that started it.

    On Windows, some programs, such as test runners and ssh servers, kill all processes that they
    started. A detached run outlives such a program only if the program permits it.

    A thread draws the plot, so a function passed as ``plot=`` runs there and should not use pyplot.
    Plots use Matplotlib's current style, which all threads share.
    """
    checked, request, where = check_call("map_async", func, iterables, out, options)
    if checked.backend == "serial":
        raise ValueError("backend='serial' runs nothing in the background. Use parallel_map.")
    if detach:
        need_shared("detach=True", "keep this process: without detach= the run ends with it")
        from nbshare._core.runs.attached import begin  # late, because few calls need it

        return begin(request, checked, checked.progress, checked.plot)
    kept = checked_checkpoint(checked)
    call = prepared(request, where, kept, checked.plot, in_background=True)
    return in_background(call, request.label, checked.progress, checked.plot)


def check_call(
    name: str, func: Function[Any], iterables: tuple[Iterable[Any], ...], out: Any, options: Any
) -> tuple[MapOptions, Request, Backend]:
    """Check the arguments of `parallel_map` or `map_async`. Return options, request and backend."""
    known = (*KNOWN, "detach") if name == "map_async" else KNOWN
    others = [option for option in options if option not in KNOWN]
    refuse_others(name, others, known, func, iterables)
    checked = MapOptions(out=out, **options)
    check_display(checked.progress, checked.plot)
    if not iterables:
        resolve(func)
        raise TypeError(f"{name}(func, items) needs at least one iterable of items")
    request, where = checked_request(func, iterables, checked)
    return checked, request, where


def _signature_with(returns: Any, **more: Any) -> inspect.Signature:
    """Return the signature for editors and help(), with all options and their defaults."""
    options, keyword = MapOptions._field_defaults | more, inspect.Parameter.KEYWORD_ONLY
    parameters = [
        inspect.Parameter("func", inspect.Parameter.POSITIONAL_ONLY),
        inspect.Parameter("iterables", inspect.Parameter.VAR_POSITIONAL),
        *(inspect.Parameter(name, keyword, default=options[name]) for name in options),
    ]
    return inspect.Signature(parameters, return_annotation=returns)


parallel_map.__signature__ = _signature_with(Any)  # type: ignore[attr-defined]
map_async.__signature__ = _signature_with(Job, detach=False)  # type: ignore[attr-defined]


def prepared(
    request: Request,
    where: Backend,
    kept: Checkpoint | None,
    plot: Plot,
    *,
    in_background: bool = False,
) -> Call:
    """Return the call, prepared for its backend, with its checkpoint and source of items."""
    if where == "local":
        make = partial(prepare, request, dispatcher())
    elif isinstance(where, str):
        from nbshare._core.engine.inline import (  # late, because it imports the workers' code
            SerialEngine,
            ThreadEngine,
        )

        engine = SerialEngine() if where == "serial" else ThreadEngine()
        make = partial(prepare, request, engine)
    else:
        from nbshare._core.hosts.cluster import Cluster  # late, because few calls need it

        make = partial(Cluster(where).prepare, request)
    if kept is None:
        call = make()
    else:
        from nbshare._core.checkpoint.keeper import CheckpointKeeper  # late, because few need it
        from nbshare._core.runs.attached import keep_plot

        call = CheckpointKeeper(request, kept, runs_here=where in ("serial", "threads")).begin(make)
        call.stored_in = str(kept.path)
        keep_plot(kept.path, request, plot)
    if request.source is not None:
        from nbshare._core.engine.supply import SourceSupply  # late, only generators need it

        call.supply = SourceSupply(call, request.source, in_background=in_background)
    return call
