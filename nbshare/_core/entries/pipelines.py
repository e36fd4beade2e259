"""`pipeline` runs stages in separate processes, connected by ring buffers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Never

import numpy as np
import numpy.typing as npt

from nbshare._core.arguments.options import (
    MapOptions,
    checked_count,
    checked_request,
    checked_shared,
)
from nbshare._core.arrays.create import Shape
from nbshare._core.arrays.ring import RingBuffer
from nbshare._core.arrays.share import share
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.pipe import Pipe
from nbshare._core.engine.preparing import prepare
from nbshare._core.engine.request import Request
from nbshare._core.engine.stats import StageStats
from nbshare._core.functions.annotations import signature_of
from nbshare._core.functions.reference import label_of, needed_by, resolve
from nbshare._core.jobs.html_tables import StatsTable
from nbshare._core.memory import file_of, segment_of
from nbshare._core.messages import counted
from nbshare._core.names import refuse_others
from nbshare._core.notebook import check_display
from nbshare._core.notebook.live_plot import Plot
from nbshare._core.runs.running import run_and_draw
from nbshare._core.tracebacks import Failed, shown_from_the_call
from nbshare._core.wire import is_worker
from nbshare._core.wire.orders import Stage

WORKERS = ("max_workers", "n_jobs", "processes", "num_workers", "n_workers", "num_cpus")
INSTEAD = {
    **dict.fromkeys(WORKERS, "use workers=, one number for all stages or one for each"),
    "chunksize": "the loader decides how large a block is, and shape= sets the maximum",
    "out": "write to an array or file in the last stage",
    "on_error": "catch the error in the stage, and return a value that marks such a block",
    "retries": "retry in the stage itself",
    "seed": "yield a seed with each block, and create the generator in the stage",
    "initializer": "load models and the like in the stage, in a function with functools.cache",
    "initargs": "pass constants in shared=",
    "checkpoint": "write to a file in the last stage, and start the loader at the end of that file",
    "backend": "for the debugger, call the stages in a loop over load()",
}
KNOWN = ["shape", "dtype", "slots", "workers", "ordered", "shared", "timeout", "progress", "plot"]


@dataclass(frozen=True)
class PipelineResult:
    """Results of a pipeline, and the work of each stage.

    Attributes
    ----------
    results : SharedArray or list
        Results of the last stage in the order of the blocks, in the form of `parallel_map`.
    stages : list of StageStats
        The stats of each stage, the loader first: blocks, seconds of work, seconds of waiting.

    Examples
    --------
    One array of results:

    >>> import nbshare
    >>> def load():
    ...     yield from ([1.0, 2.0], [3.0, 4.0])
    >>> done = nbshare.pipeline(load, sum, shape=2)
    >>> done.results
    SharedArray([3., 7.])

    The work of each stage, and the bottleneck:

    >>> [(stage.name, stage.n_blocks) for stage in done.stages]
    [('load', 2), ('sum', 2)]
    >>> bottleneck = max(done.stages, key=lambda stage: stage.busy)
    >>> bottleneck in done.stages
    True
    """

    __module__ = "nbshare.types"

    results: Any
    stages: StatsTable[StageStats]

    def __repr__(self) -> str:
        kind = type(self.results).__name__
        if isinstance(self.results, np.ndarray):
            kind += f" of {self.results.shape} {self.results.dtype}"
        parts = [f"{s.name} {counted(s.n_blocks, 'block')}, {s.busy:.0%} busy" for s in self.stages]
        return f"<PipelineResult: {kind}; {' -> '.join(parts)}>"


@shown_from_the_call
def pipeline(
    load: Callable[..., Iterable[Any]] | str,
    /,
    *stages: Callable[..., Any] | str,
    shape: Shape | Sequence[Shape],
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike] = float,
    slots: int = 4,
    workers: int | Sequence[int] = 1,
    ordered: bool = True,
    shared: Mapping[str, Any] | None = None,
    timeout: float | None = None,
    progress: bool | str | type | None = None,
    plot: Plot = None,
    **others: Never,
) -> PipelineResult:
    """Load blocks of data, process them and store the results, all at the same time.

    Each stage runs in one or more separate processes. Blocks move from stage to stage through slots
    in shared memory, so data may be larger than memory.

    Examples
    --------
    A loader and one stage:

    >>> import numpy as np
    >>> import nbshare
    >>> def load():
    ...     for i in range(5):
    ...         yield np.full(1000, i)
    >>> nbshare.pipeline(load, np.max, shape=1000).results
    SharedArray([0., 1., 2., 3., 4.])

    Spectra of a recording, where the stage in the middle fills the next block in place:

    >>> def spectrum(block, out):
    ...     out[...] = abs(np.fft.rfft(block))
    >>> done = nbshare.pipeline(load, spectrum, np.max, shape=[1000, 501])
    >>> done.results
    SharedArray([   0., 1000., 2000., 3000., 4000.])
    >>> [stage.n_blocks for stage in done.stages]
    [5, 5, 5]

    Parameters
    ----------
    load : callable or str
        A generator function without arguments that yields arrays, which are copied to slots. Or a
        generator function of `slots` that fills each slot in place and yields the number of filled
        rows (None: all)::

            def load(slots):
                with open("recording.raw", "rb", buffering=0) as file:
                    for slot in slots:
                        nbytes = file.readinto(slot)
                        if not nbytes:
                            return
                        yield nbytes // slot.strides[0]

        It runs once, in one process. To read in parallel, yield offsets or file numbers, and read
        in the first stage.
    *stages : callable or str
        One or more functions, each called for every block. ``stage(block)`` returns the next
        stage's block, which is copied. ``stage(block, out)`` fills the next block in place, and may
        return the number of filled rows. The last stage has no `out`. Its return value is the
        result, or it writes to a file and returns None. A stage may write to its block.
    shape : int, sequence of ints, or list of these
        Shape of the blocks that stages receive. A number or tuple applies to all stages. A list has
        one entry for each stage, without the loader, as in ``[(1000, 2), (501, 2)]``. Blocks may
        have fewer rows, as the last one often has.
    dtype : data-type, or list of these, optional
        Dtype of the blocks. Default float64. Values are cast to it if they are of the same kind.
    slots : int, optional
        Number of blocks that fit between two stages. Default 4. One or two for each worker of both
        stages work best.
    workers : int or sequence of int, optional
        Processes for each stage, not counting the loader. Default 1. The progress display shows
        which stage is the bottleneck.
    ordered : bool, optional
        If True (default), each stage receives the blocks in order, so that a last stage with one
        worker can write a file. If False, finished blocks may overtake others. The results are in
        the order of the blocks in any case.
    shared : mapping of str to object, optional
        Keyword arguments that are the same for all blocks, copied to shared memory once. Loader and
        stages receive those that match their parameters. Arrays are read-only.
    timeout : float, optional
        Limit in seconds for a stage to process a block, without waiting, or for the loader to yield
        one. When it is exceeded, all stages stop. Default: no limit.
    progress : None, bool, str or tqdm class, optional
        The progress display, as in `parallel_map`, with a line for each stage.
    plot : optional
        A plot of the results so far, as in `parallel_map`.
    **others
        Arguments of `parallel_map` that a pipeline lacks are refused with a replacement.

    Returns
    -------
    PipelineResult
        ``results`` is one array ``(n, *shape)`` if the results of the last stage fit one, else a
        list. ``stages`` has the waiting times of each stage. After Stop, the finished results.

    Raises
    ------
    TypeError, ValueError
        If arguments are invalid, before any worker starts.
    nbshare.errors.WorkerDiedError
        If a worker was killed or crashed. The message names stage and block.
    nbshare.errors.TaskTimeoutError
        If a block took longer than `timeout`. The message names stage and block. A `TimeoutError`.
    nbshare.MapInterrupted
        If the kernel's interrupt or Ctrl-C stopped the run. ``nbshare.last_job().partial()`` has
        the finished results.
    Exception
        If a stage raised it, with a note that names stage and block.

    See Also
    --------
    RingBuffer : the queue between two stages, for other arrangements.
    parallel_map : for data in memory.

    Notes
    -----
    If a stage fails or dies, all stages stop immediately, as they do at Stop or an interrupt.
    ``nbshare.last_job().partial()`` has the results of the last stage so far. Unfinished blocks are
    lost.

    At any time, at most as many blocks as slots are in memory. Results are collected in memory,
    so return little, or None, from a stage that writes to a file. Several threads may run one
    pipeline each at the same time, but a worker cannot run one.
    """
    for name in others:
        if name in INSTEAD:
            raise TypeError(f"pipeline() has no {name}=: {INSTEAD[name]}")
    refuse_others("pipeline", others, KNOWN)
    check_display(progress, plot)
    if is_worker():
        raise RuntimeError("a worker cannot run a pipeline. Call its stages one after the other.")
    functions = _functions(load, stages)
    given = checked_shared(shared)
    counts = _one_each("workers", workers, len(stages), isinstance(workers, list | tuple))
    n_workers = [1, *(checked_count("workers", n) or 1 for n in counts)]
    shapes = _one_each("shape", shape, len(stages), isinstance(shape, list))
    dtypes = _one_each("dtype", dtype, len(stages), _is_list_of_dtypes(dtype))
    requests = _requests(functions, given, n_workers, timeout)
    made: list[Pipe] = []

    def make() -> Pipe:
        # The engine reports deaths, because a ring might report them first, with fewer details.
        rings = [
            RingBuffer(slots, *form, on_death="leave", in_order=ordered)
            for form in zip(shapes, dtypes, strict=True)
        ]
        engine = dispatcher()
        once = {k: share(v, mode="r") if _is_plain(v) else v for k, v in given.items()}
        calls = [
            prepare(
                request._replace(shared={name: once[name] for name in request.shared}),
                engine,
                stage=Stage(*joint),
            )
            for request, *joint in zip(requests, [None, *rings], [*rings, None], strict=True)
        ]
        made.append(Pipe(calls, rings))
        return made[0]

    label = progress if isinstance(progress, str) else " → ".join(map(label_of, functions))
    outcome = run_and_draw(make, label, progress, plot)
    figures = StatsTable(made.pop().stages() if made else ())
    if isinstance(outcome, Failed):
        return outcome  # type: ignore[return-value]
    return PipelineResult(outcome, figures)


def _functions(load: Any, stages: Sequence[Any]) -> list[Callable[..., Any]]:
    """Return loader and stages as functions. Raise TypeError for any other argument."""
    if not callable(load) and isinstance(load, Iterable) and not isinstance(load, str):
        raise TypeError(
            f"the first argument is a {type(load).__name__}: it must be a function that yields the "
            "blocks. Pass the function itself: pipeline(load, ...), not pipeline(load(), ...)."
        )
    for func in (load, *stages):
        if not callable(func) and not isinstance(func, str):
            raise TypeError(
                f"pipeline() takes functions or 'file.py:name', not {type(func).__name__}. Pass "
                "all other arguments by keyword, for example shape=..."
            )
    return [resolve(func) for func in (load, *stages)]


def _requests(
    functions: Sequence[Callable[..., Any]],
    shared: Mapping[str, Any],
    n_workers: Sequence[int],
    timeout: float | None,
) -> list[Request]:
    """Return the requests for loader and stages. Raise TypeError if one cannot be called.

    Each receives the shared objects that match its parameters.
    """
    if len(functions) < 2:
        raise TypeError("pipeline(load, stage, ..., shape=) needs at least one stage")
    taken = [{name: shared[name] for name in shared if _takes(f, name)} for f in functions]
    left_over = shared.keys() - {name for each in taken for name in each}
    if left_over:
        raise TypeError(
            f"shared={sorted(left_over)}: neither {' nor '.join(map(label_of, functions))} has a "
            "parameter of that name"
        )
    requests: list[Request] = []
    for k, (func, keywords, n) in enumerate(zip(functions, taken, n_workers, strict=True)):
        blocks = [iter(())] * _n_blocks(func, k, keywords, is_last=k == len(functions) - 1)
        options = MapOptions(shared=keywords, max_workers=n, timeout=timeout)
        request, _ = checked_request(func, blocks, options)
        requests.append(
            request._replace(
                stage=label_of(func),
                iterables=(),
                source=None,
                n_items=None,
                # The waiting thread shows the output of all stages.
                prints=requests[0].prints if requests else request.prints,
            )
        )
    return requests


def _takes(func: Callable[..., Any], name: str) -> bool:
    try:
        signature_of(func).bind_partial(**{name: None})
    except (TypeError, ValueError):  # it does not fit, or is a function in C without a signature
        return False
    return True


def _n_blocks(
    func: Callable[..., Any], k: int, keywords: Mapping[str, Any], *, is_last: bool
) -> int:
    """Return the number of positional arguments of a stage, or of the loader (stage 0).

    A stage takes a block, and possibly the slot for its output. A loader may take the slots. Raise
    TypeError for another number.
    """
    n = len(needed_by(partial(func, **keywords)))
    if k == 0 and n > 1:
        raise TypeError(f"{label_of(func)} must take no argument, or only the slots to fill")
    if k > 0 and n not in ((1,) if is_last else (1, 2)):
        how = "stage(block)" if is_last else "stage(block) or stage(block, out)"
        raise TypeError(
            f"{label_of(func)} (stage {k}) requires {n} positional arguments, but is called as "
            f"{how}. Pass other arguments in shared={{name: value}}."
        )
    return n


def _one_each(name: str, value: Any, n: int, is_list: bool) -> list[Any]:
    """Return a value for each stage: `value` itself, or the entries of a list."""
    if not is_list:
        return [value] * n
    if len(value) != n:
        stages = counted(n, "stage")
        raise ValueError(f"{name}={value!r} has {len(value)} entries for {stages} (without load)")
    return list(value)


def _is_list_of_dtypes(dtype: Any) -> bool:
    """Return whether `dtype` is a list of dtypes, and not of the fields of a single one."""
    return isinstance(dtype, list) and not all(isinstance(each, tuple) for each in dtype)


def _is_plain(value: Any) -> bool:
    """Return whether a value is an array that would be copied for each stage."""
    is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
    return is_array and segment_of(value) is None and file_of(value) is None
