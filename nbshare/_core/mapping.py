"""parallel_map and map_async. Their arguments are checked once, and their calls prepared."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Never, Protocol, TypeAlias, TypeVar, Unpack, overload

import numpy as np

from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.engine.call import Call
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.preparing import prepare
from nbshare._core.engine.run import Request
from nbshare._core.engine.supply import SourceSupply
from nbshare._core.job import Job, T
from nbshare._core.memory import need_shared
from nbshare._core.notebook import check_display
from nbshare._core.notebook.live_plot import Plot
from nbshare._core.options import (
    Backend,
    MapOptions,
    Options,
    OtherOptions,
    Out,
    checked_checkpoint,
    checked_request,
    refuse_others,
)
from nbshare._core.running import in_background, run_and_draw
from nbshare._core.tracebacks import shown_from_the_call, unwrapped

KNOWN = MapOptions._fields

Function: TypeAlias = Callable[..., T] | str
R_co = TypeVar("R_co", covariant=True)


class NoSuchOption(Protocol[R_co]):
    """A type that no value has, if `R_co` is Never.

    The last overload takes an option of any name as this, so that type checkers tell of a misspelt
    option in one message that names it, and not in a list of all overloads.
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
) -> SharedArray | Any: ...  # a list if results fit no array (Any lets both be used unchecked)
@overload
def parallel_map(
    func: Function[T],
    /,
    *iterables: Iterable[Any],
    shared: Mapping[str, Any] | None = ...,
    out: Out = ...,
    max_workers: int | None = ...,
    chunksize: int | None = ...,
    progress: bool | str | type | None = ...,
    plot: Plot = ...,
    on_error: Literal["raise", "return"] = ...,
    retries: int = ...,
    timeout: float | None = ...,
    seed: int | np.random.SeedSequence | None = ...,
    initializer: Callable[..., Any] | None = ...,
    initargs: Sequence[Any] = ...,
    max_tasks_per_child: int | None = ...,
    checkpoint: str | os.PathLike[str] | Checkpoint | None = ...,
    backend: Any = ...,
    reduce: Callable[[Any, Any], Any] | None = ...,
    until: Callable[..., Any] | None = ...,
    **misspelt: NoSuchOption[Never],
) -> Any: ...
@shown_from_the_call
def parallel_map(
    func: Function[T], /, *iterables: Iterable[Any], out: Out = None, **options: Any
) -> Any:
    """Call a function for every item, on all CPUs, with large arrays in shared memory.

    Like the built-in `map`, but parallel, and not lazy. It returns when all results are finished::

        roots = parallel_map(math.sqrt, [1.0, 4.0, 9.0])
        means = parallel_map(resampled_mean, range(1000), shared={"data": data}, plot="hist")
        tests = parallel_map(simulate, grid(a=[1, 2], b=[3, 4]), checkpoint="tests.ckpt")

    Parameters
    ----------
    func : callable or str
        The function to call, from a module file (``from workers import horizon``), or
        ``"workers.py:horizon"``, or a `functools.partial`, a bound method or a callable object of
        such modules. Functions, lambdas and closures of the notebook itself are sent by value.
    *iterables : iterable
        The items. As in `map`, each iterable gives one positional argument, and the run stops at
        the shortest. Known lengths that differ are a `LengthsWarning`. A mapping, a str or a data
        frame is refused. Pass ``list(d)``, or ``shared=``. An ndarray gives its rows along the
        first axis without a copy per item, read-only for a plain array, writable for a SharedArray.
        A generator is read a little ahead of the workers (see the Notes). Alone, and see **Grids
        and tables** and **Tiles** there: a `grid`, whose items give keyword arguments; a
        ``groupby`` of pandas or ``group_by`` of polars, for a function of each frame, or of its key
        and the frame; `rows`, those of a DataFrame; and `tiles` of an image, volume or series.
    shared : mapping of str to object, optional
        Keyword arguments that are the same for every item. Each is copied to shared memory once.
        Arrays are read-only in the workers, where a write raises `ValueError`. A SharedArray is not
        copied, and neither is a `numpy.memmap` (see **Arrays** in the Notes). Any other object is
        loaded once in each worker. If `func` changes it, later items of that worker see the change
        and those of other workers do not, so results depend on which worker ran what. Change a copy
        instead (``config = dict(config)``).
    out : None, "list", "stack", "xarray" or ndarray, optional
        Form of the results. By default, numbers, or arrays of one shape, become one SharedArray of
        shape ``(n, *shape)``, and other results a list. With ``"list"`` they are always a list.
        With ``"stack"``, tuples such as ``(mean, std)`` become a tuple of arrays. An ndarray of
        shape ``(n, *shape)`` is filled and returned. For tiles it has the whole shape, and workers
        can write to it (a SharedArray or `numpy.memmap`). With ``"xarray"``, the results of a
        `grid` come in an `xarray.DataArray` with its coordinates, dicts and tuples in a
        `xarray.Dataset`.
    max_workers : int, optional
        Number of worker processes, at most. Default: the CPUs that this process may use. Half a
        second after the start, and from then on, no more of them work than fit into the memory that
        is free, by the most that one has taken so far. If the system ends one for lack of memory
        while others run, its item runs again, with one worker less.
    chunksize : int, optional
        Items that a worker takes at a time. Default: adapted to the measured time.
    progress : None, bool, str or tqdm class, optional
        By default, a progress display in a notebook, a bar in a terminal, nothing in a log. True
        shows lines in a log too, False nothing. A str is the label. A tqdm class is used instead.
    plot : "line", "image", "hist", LivePlot, callable or list of these, optional
        A plot in the notebook that shows the results while they arrive, redrawn at most a few times
        a second, as results against items, an image, a histogram, or what a `LivePlot` says.
        ``callable(ax, partial)`` gets Matplotlib Axes and the masked array of the results so far
        (a list with `nbshare.MISSING` in its gaps if they fit no array). Several plots are shown
        side by side.
    on_error : {"raise", "return"}, optional
        With ``"raise"`` (default), the first failure stops the run and is raised with its own type,
        the worker's traceback and a note that names the item. With ``"return"`` the run continues,
        and the result is a masked array, or a list that holds the exceptions in their places.
        ``last_job().errors`` has them by index.
    retries : int, optional
        Extra attempts for an item that raised, timed out, or lost its worker. Default 0. Very short
        items run in batches. If a worker dies, the other items of its batch run again one at a
        time, which does not count.
    timeout : float, optional
        Seconds that one item may take. Default: no limit. Past it, its worker is ended and
        replaced, and the item fails with `TaskTimeoutError`. If that worker had just gone on to
        another item, the other item runs again.
    seed : int or numpy.random.SeedSequence, optional
        `func` must accept ``rng``. Each call receives a `numpy.random.Generator` (PCG64) made from
        ``SeedSequence(seed).spawn(n)[i]`` for item ``i``, so results do not depend on the number of
        workers. The sequence is not advanced.
    initializer : callable, optional
        Called in each worker before its first item, to load a model, open a connection or choose a
        GPU by `worker_index`. A global variable that it sets is seen by the function, and by
        everything else that the call sends. Workers that have run it are kept for later calls with
        the same initializer, or without one, with what it has set (environment variables, working
        directory, import path, signal handlers and the like). Another initializer gets new workers.
        If it returns a context manager or a generator, as a function with
        `contextlib.contextmanager` does, that is entered, and left when the worker ends, after
        `max_tasks_per_child` items, after five idle minutes, by a change of files or `shutdown`,
        and at the end of this process. It may take a second. A worker that is killed leaves
        nothing. With ``backend="serial"`` and ``"threads"``, and in a call inside an item, it is
        left at the end of the call.
    initargs : sequence, optional
        Positional arguments of the initializer.
    max_tasks_per_child : int, optional
        Items that a worker process runs, in this call and those before, until a new one takes its
        place, for C libraries that never free their memory. Default: no limit. A new worker takes
        some 10 ms, and what the imports of `func` and the initializer take. With `reduce` a worker
        first ends its block of items.
    checkpoint : str, path-like or Checkpoint, optional
        A folder in which results are stored while the run continues. After a crash, an interrupt or
        a kernel restart the same call continues. Finished items do not run again, also if the items
        were extended, reordered or thinned. Results stay readable without nbshare. A README in the
        folder says how. If the function, a helper, `shared`, `seed` or the initializer has changed,
        the call is refused with what differs (see the Notes). Pass a `Checkpoint` to run changed
        items again, to name a version, or to survive a power failure.
    backend : {None, "serial", "threads", "ray"}, distributed.Client or Executor, optional
        By default, worker processes. With ``"serial"``, in this process, one item after the other,
        for the debugger. With ``"threads"``, in `max_workers` threads of this process, for
        functions that release the interpreter lock, and for all functions if Python runs without it
        (3.14t). With both, the function itself runs, and may change what it shares with its caller,
        but items and objects in `shared` are copies as ever. Stop acts between items and where an
        item calls `report`, `timeout` is refused, and a crash takes this process with it. Systems
        other than Linux, Windows and macOS have these two only. A `distributed.Client` (Dask),
        ``"ray"`` or the address of a Ray cluster, or any `concurrent.futures.Executor` means worker
        processes on the machines of that cluster (see the Notes).
    reduce : callable, optional
        ``reduce(a, b)``, such as `numpy.add` or `max`, returns one result for two. It must make no
        difference which are combined first. Then the run returns one value instead of all results,
        which are never in memory together (see **One value** in the Notes).
    until : callable, optional
        ``until(partial)`` ends the run when it returns true. It gets what `Job.partial` returns.
        With `reduce`, ``until(value, n)`` gets the value so far and the number of items in it. The
        run is done then, and returns what is there, as after Stop. It is called in this process, at
        most a tenth of the time. An error in it ends the run.

    Returns
    -------
    SharedArray, ndarray, MaskedArray, list or tuple
        The results, in the order of the items:

        ==========================================  ===========================================
        results, and what is asked for              what is returned
        ==========================================  ===========================================
        numbers, or arrays of one shape             a SharedArray of shape ``(n, *shape)``
        other results, or ``out="list"``            a list
        tuples, with ``out="stack"``                a tuple of arrays
        some failed, with ``on_error="return"``     a masked array, or a list with exceptions
        some are missing, after Stop                a masked array, or a list with `MISSING`
        ``reduce=``                                 one value, or None if there is no result
        ==========================================  ===========================================

        0 items give ``np.empty(0)``, or ``[]`` for ``"list"`` and ``"stack"``. If all items failed,
        the masked array has the shape ``(n,)``. With `checkpoint`, arrays (not numbers) as results
        come as an ndarray that is mapped from the file. It may be larger than memory, and changes
        to it stay in this process.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        Invalid arguments, before any worker starts.
    nbshare.errors.UnsendableError
        Something cannot be pickled. Raised before any worker starts, except for an item of a
        generator. A `TypeError`.
    nbshare.errors.OutOfMemoryError
        Inputs or results do not fit into memory. A `MemoryError`.
    nbshare.errors.WorkerDiedError
        A worker was killed or crashed while it ran an item. The message names the item.
    nbshare.errors.TaskTimeoutError
        An item took longer than `timeout`. A `TimeoutError`.
    nbshare.errors.CheckpointError
        The results in `checkpoint` depended on something that has changed, or something that
        results depend on cannot be compared. Or `backend` is ``"serial"`` or ``"threads"``, and a
        file was edited after this process imported it. A `ValueError`.
    nbshare.errors.CheckpointInUseError
        Another run writes to `checkpoint`. A `BlockingIOError`.
    nbshare.MapInterrupted
        The kernel's interrupt or Ctrl-C. ``nbshare.last_job().partial()`` has the finished results.
    Exception
        An error of `func`, or of the iterable that gives the items.

    Warns
    -----
    nbshare.errors.PartialResultWarning
        The run was stopped, and no progress display says so.
    nbshare.errors.MixedResultsWarning
        Results of different kinds fit no array and became a list.
    nbshare.errors.UnseededWarning
        `func` drew from the global random numbers of NumPy or `random`, without `seed`. It is told
        once for a function that runs in worker processes.
    UserWarning
        A module that `func` reaches was changed in this process, such as by ``consts.SCALE = 10``,
        and workers run its file (see **Code** in the Notes).

    See Also
    --------
    map_async : the same in the background.
    share : copy an array to shared memory once, for several calls.
    last_job : what a stopped, failed or interrupted call had done.
    open_checkpoint : how far a run with `checkpoint` is, and its results, from any process.
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

    The sum of all results, and enough of them:

    >>> import itertools, operator
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], reduce=operator.add)
    6.0
    >>> def toss(i, rng):
    ...     return rng.integers(2)
    >>> def is_enough(heads, n):
    ...     return n >= 1000
    >>> heads = parallel_map(
    ...     toss, itertools.count(), seed=1, reduce=operator.add, until=is_enough
    ... )
    >>> bool(heads > 400)
    True

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

    Results in a folder, where the same call, with more items, runs the new ones only:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> parallel_map(math.sqrt, [1.0, 4.0], checkpoint=folder)
    SharedArray([1., 2.])
    >>> parallel_map(math.sqrt, [1.0, 4.0, 9.0], checkpoint=folder)
    SharedArray([1., 2., 3.])

    Notes
    -----
    **Workers** are kept for the next call. Each imports what `func` needs anew. If that takes 5 s
    here, the first call takes 5 s longer, and later ones do not. They start anew when a file that
    they imported, ``os.environ``, ``sys.path`` or ``sys.argv`` has changed. They end with this
    process, however it ends. A nested call runs in its worker, one item after the other. Of the
    caller's state, as it is when the call starts, they have:

    ======================================  ===========  ===========================================
    state of the caller                     in workers   notes, and what to do
    ======================================  ===========  ===========================================
    environment, ``sys.argv``, import path  the same     relative folders of the path mean what they
                                                         meant when modules were found in them
    working directory, umask, CPU affinity  the same
    warning filters                         the same
    recursion limit, `decimal` context      the same
    ``np.errstate``                         the same     errors for a function of ``np.seterrcall``
                                                         are warnings, as it stays here
    imported modules                        their files  values that were changed in this process do
                                                         not count. Pass them as arguments or in
                                                         `shared`, or set them in `initializer`
    functions and variables of a notebook   copies       `func`, `initializer`, `shared` and items
                                                         of a call share their variables
    random numbers                          their own    pass `seed`
    CPUs for BLAS and OpenMP                a share      set ``OMP_NUM_THREADS`` before the call
    logging, locale, options of libraries   defaults     set them in `func` or `initializer`
    context variables, thread locals        none         pass their values as arguments
    open files, connections, locks, GPU     none         open them in `func` or `initializer`
    standard input                          empty        read it first, and pass what was read
    ======================================  ===========  ===========================================

    What `func` changes of the first five rows is undone after the call, and so are its signal
    handlers, timers and standard streams. Changes in modules stay in their worker, and a worker
    that called `os.setuid` stays that user until it ends. Programs that `func` starts end with
    their worker, except those in a session of their own (``start_new_session=True``), which outlive
    a cancelled call and `shutdown`.

    **A checkpoint** keeps results with what they depended on: the definitions that `func` reaches,
    in its own file and others that are not installed packages; values of closures, defaults and
    globals of a notebook function, which itself counts by its compiled code; `shared`, `seed`, the
    initializer; and each item, by what it holds. Comments, docstrings, formatting, unrelated
    definitions, paths and all other arguments do not matter. A module counts as a whole where names
    do not tell what is used of it, as with ``getattr`` or ``import *``. So does a file that workers
    execute in another way, from then on. If `func` reaches code that looks up or loads anything,
    such as ``import_module`` or ``pickle``, all its files do. Versions of installed packages,
    programs that `func` starts, and data that it reads from files are not seen, so change the
    `version` of the `Checkpoint` then. Failed items run again. With `seed` an item
    counts with its index. An item that occurs several times runs as often.

    **Code** is fresh: workers run a function, method or class of a module file as the file is when
    the call begins, also one that was imported before an edit. If the file no longer has a matching
    definition, `UnsendableError` is raised. Lambdas and functions that other functions made are
    sent as they are here, with the global values that they use. So are the originals of decorated
    functions, while the file still has their code. One edit goes unnoticed, that of a file that is
    overwritten in place by one of the same size within the same tick of the file system's clock
    (some milliseconds).

    Workers do not see what was changed in a module here, such as by ``consts.SCALE = 10``, or by a
    function in the place of another. One warning names what was changed. Pass the value as an
    argument or in `shared`, or edit the file. Compared are functions, classes and simple values
    (numbers, texts, None, and tuples, lists, dicts and sets of them), in the modules of `func` and
    in those that they import, except installed ones. There is no warning for what the code of the
    modules changes itself, such as counters and caches, for what is put in a list, dict or set that
    the file leaves empty, nor where a file was edited since its import, or is larger than 256 KiB.
    (If it was imported before nbshare, it must be older than this process.)

    **Arrays**, plain ones, are read-only in the workers wherever they come from (items, `shared`, a
    `functools.partial`, a closure) and whatever their size, since writes to a copy would be lost.
    Workers can write to a SharedArray, except in `shared`. A `numpy.memmap` of 1 MiB or more is not
    copied. Workers map its file, which may be larger than the memory, and see later writes to it.
    One that is open for writing (mode ``'r+'`` or ``'w+'``) is not copied at any size, and workers
    can write to the file, except through `shared`. Mode ``'c'`` is copied.

    **Threads**: call it from any thread, and from several at the same time. Each call then has
    workers of its own. An interrupt is served in the main thread. Plain arrays are copied at the
    start of the call, so later changes by the caller are not seen. Later changes in a SharedArray
    are.

    **Grids and tables**: the results of a `grid` have its shape, before that of one result, and its
    coordinates as ``results.coords``. Objects are in an array of objects. A live image or line of
    numbers has the parameters at its axes. Of a ``groupby`` workers share one copy of the table, of
    which each group is a view, so copy a frame before you write to its values. Its results, and
    those of `rows`, become a Series with the keys or the index of the table, dicts or Series a
    DataFrame, and anything else a list. For polars they become a column ``"result"``, or columns of
    the dicts, next to the keys. With ``out="list"`` results are a list in all cases. A checkpoint
    knows these items by their values, so a grid can be extended in any direction. A loop over a job
    and `Job.present` count them from 0.

    **Tiles**: results are put together in one array of the shape of the tiled array, in which each
    worker writes its tiles. A live image shows them in their places. A function whose results
    depend on no more than the overlap gives what it would give for the whole array. A loop over a
    job gives tiles without overlap, and `Job.present` counts tiles.

    **One value**: with `reduce`, each worker combines the results of a block of items one after the
    other, and this process combines neighbouring blocks. Only the indices of items decide which
    block they are in, so floats are the same, bit for bit, for any number of workers. A loop would
    add them in another order. Blocks grow from 1 item to 100 after 300,000. Memory is needed for
    the blocks under way. `reduce` may change its first argument. Progress counts the items of
    blocks that are done. `chunksize` and `Job.stats` count blocks. A plot shows the value so far.
    An item is tried again by itself, as `retries` says, and with ``on_error="return"`` those that
    failed are left out. If a worker dies, or an item cannot be loaded, its block counts as one
    item. A checkpoint stores the values of blocks, and not which items failed.

    **Generators** are read ahead of the workers, or of a slower loop over a job's results, by what
    is used in about a second, at least a few items for each worker, at most 100,000 items or about
    128 MB of arrays and texts.

    **Clusters**: `max_workers` is the number of tasks that the cluster runs at the same time.
    Default: its CPUs, for an executor the CPUs of this machine. Objects in `shared` go to each
    machine once. Files of modules that are imported here go too, so all machines run the same code,
    and so does nbshare itself, to a machine that does not have this one. Installed packages must be
    there, NumPy in the same major version, cloudpickle, and Python in the same minor version. A
    machine has its own environment variables. If it is lost, the items it worked on have failed,
    and `retries` runs them again. The machines must be able to connect to this process. Set
    ``NBSHARE_ADDRESS`` to an address that they can reach, if the one that is found is not. A
    writable SharedArray among the items, a `SharedLock` and a `RingBuffer` work on one machine
    only, and are refused.

    **Prints**: everything that workers write to standard output and standard error (prints,
    warnings, log records, C code, other programs) appears in `sys.stdout` and `sys.stderr` of the
    call, in a notebook below its cell. The lines of each worker are whole and in order. With
    ``os.environ["NBSHARE_MARK_PRINTS"] = "1"`` before the call, each line that Python prints begins
    with the index of its item, as in ``[item 7] …``. A notebook shows 300,000 characters, and
    30,000 more each second, then only the end and how much was left out. Elsewhere nothing is lost,
    because a worker that prints faster than its text is read waits. An initializer may set streams
    of its own, such as a log file. Changes by items are undone after the call. It may also
    configure `logging`, which begins with its defaults in a worker. Records below WARNING appear
    with ``initializer=partial(logging.basicConfig, level="INFO")``.
    """
    checked, request, where = check_call("parallel_map", func, iterables, out, options)
    prepare_it = partial(prepared, request, where, checked_checkpoint(checked), checked.plot)
    return unwrapped(*run_and_draw(prepare_it, request.label, checked.progress, checked.plot))


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

    Results in the order in which they arrive, until one is large enough:

    >>> for i, root in nbshare.map_async(math.sqrt, range(100_000)):
    ...     if root > 5:
    ...         break

    Parameters
    ----------
    func : callable or str
        The function, as for `parallel_map`.
    *iterables : iterable
        The items, as for `parallel_map`. A thread of its own reads generators.
    **options
        The keyword arguments of `parallel_map`, except ``backend="serial"``. In a notebook the
        progress display and the plot stay below the cell of the call while other cells run. In a
        terminal or a log nothing is shown unless ``progress=True`` or a label is passed.
    detach : bool, optional
        Whether the run goes on in a process of its own when this one ends, as by a kernel restart.
        `attach` returns its job in any other process. It needs ``checkpoint=``, takes items that
        have a length, and stores function and arguments in the checkpoint.

    Returns
    -------
    Job
        ``job.result()`` waits for the results, ``for i, value in job`` gives them as they arrive,
        ``job.partial()`` returns the finished results, ``job.cancel()`` stops the run.

    Raises
    ------
    TypeError, ValueError, FileNotFoundError
        Invalid arguments, before any worker starts. Later errors are raised by ``job.result()``.

    See Also
    --------
    parallel_map : the same, and wait.
    attach : the job of a detached run, in another process.
    jobs : all jobs that run.

    Notes
    -----
    Several jobs may run at the same time, each with workers of its own. A job continues without a
    reference to it, and ends with the process, unless it is detached. Prints of its workers appear
    as they come, in a notebook below the cell that started it.

    A thread draws the plot, so a function given as ``plot=`` runs there and should not use pyplot.
    Plots have the style that Matplotlib is set to, which is one for all threads.
    """
    checked, request, where = check_call("map_async", func, iterables, out, options)
    if checked.backend == "serial":
        raise ValueError("backend='serial' runs nothing in the background. Use parallel_map")
    if detach:
        need_shared("detach=True", "keep this process: without detach= the run ends with it")
        from nbshare._core.runs.attached import begin  # late, as few calls need it

        return begin(request, checked, checked.progress, checked.plot)
    kept = checked_checkpoint(checked)
    call = prepared(request, where, kept, checked.plot, in_background=True)
    return in_background(call, request.label, checked.progress, checked.plot)


def check_call(
    name: str, func: Function[Any], iterables: tuple[Iterable[Any], ...], out: Any, options: Any
) -> tuple[MapOptions, Request, Backend]:
    """Check the arguments of `parallel_map` or `map_async`."""
    known = (*KNOWN, "detach") if name == "map_async" else KNOWN
    refuse_others(name, [option for option in options if option not in KNOWN], known)
    checked = MapOptions(out=out, **options)
    check_display(checked.progress, checked.plot)
    if not iterables:
        raise TypeError(f"{name}(func, items) needs at least one iterable of items")
    request, where = checked_request(func, iterables, checked)
    return checked, request, where


def _signature_with(returns: Any, **more: Any) -> inspect.Signature:
    """Return what editors and help() show, the options that there are, and their defaults."""
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
    """Place what is asked for in shared memory, for the engine that it runs on."""
    if where == "local":
        make = partial(prepare, request, dispatcher())
    elif isinstance(where, str):
        from nbshare._core.engine.inline import (  # late, as it has workers' code
            SerialEngine,
            ThreadEngine,
        )

        engine = SerialEngine() if where == "serial" else ThreadEngine()
        make = partial(prepare, request, engine)
    else:
        from nbshare._core.hosts.cluster import Cluster  # late, too

        make = partial(Cluster(where).prepare, request)
    if kept is None:
        call = make()
    else:
        from nbshare._core.checkpoint.keeper import CheckpointKeeper  # late, as few need it
        from nbshare._core.runs.attached import keep_plot

        call = CheckpointKeeper(request, kept, runs_here=where in ("serial", "threads")).begin(make)
        call.stored_in = str(kept.path)
        keep_plot(kept.path, request, plot)
    if request.source is not None:
        call.supply = SourceSupply(call, request.source, in_background=in_background)
    return call
