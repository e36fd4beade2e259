"""pipeline: stages in processes of their own, joined by ring buffers."""

from __future__ import annotations

from collections import ChainMap, Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Never, SupportsIndex

import numpy as np
import numpy.typing as npt

from nbshare.arrays.create import full
from nbshare.arrays.ring import RingBuffer
from nbshare.arrays.share import share
from nbshare.engine.local import dispatcher
from nbshare.engine.pipe import Pipe, Stage
from nbshare.engine.preparing import prepare
from nbshare.engine.single import SingleRun
from nbshare.engine.stats import StageStats
from nbshare.functions import label_of
from nbshare.job import unwrapped
from nbshare.memory import file_of, segment_of
from nbshare.notebook import Plot, check_display
from nbshare.options import (
    MapOptions,
    checked_count,
    checked_request,
    checked_shared,
    checked_timeout,
)
from nbshare.running import run_and_draw
from nbshare.stage_arguments import (
    check_functions,
    functions_of,
    is_list_of_dtypes,
    is_list_of_shapes,
    one_each,
    refuse,
    taken_by,
)
from nbshare.tracebacks import shown_from_the_call
from nbshare.wire import is_worker
from nbshare.wire.stages import FRAME_NBYTES, HEADER_NBYTES, NO_BLOCK, Place
from nbshare.worker.stages import feed, finish, process

__all__ = ["PipelineResult", "pipeline"]

RESULT_SLOTS = 4
Shape = SupportsIndex | Sequence[SupportsIndex]


@dataclass(frozen=True)
class PipelineResult:
    """What a pipeline gives.

    Attributes
    ----------
    results : SharedArray or list
        What the last stage returned, in the order of the blocks; as of `parallel_map`.
    stages : tuple of StageStats
        For each stage, the loader first, what it did and what it waited for.
    """

    results: Any
    stages: tuple[StageStats, ...]

    def __repr__(self) -> str:
        kind = type(self.results).__name__
        if isinstance(self.results, np.ndarray):
            kind += f" of {self.results.shape} {self.results.dtype}"
        parts = [f"{s.name} {s.n_blocks} blocks, {s.busy:.0%} busy" for s in self.stages]
        return f"<PipelineResult: {kind}; {' → '.join(parts)}>"


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
    """Load blocks of data, process and store them, all at the same time.

    Each stage runs in a process of its own, or several. Blocks go from stage to stage through
    slots in shared memory: what does not fit into memory as a whole streams through it.

    Parameters
    ----------
    load : callable or str
        A generator function without arguments that yields arrays; each is copied to a slot. Or one
        that takes `slots`, fills them in place and yields how many rows are filled (None: all)::

            def load(slots):
                with open("recording.raw", "rb", buffering=0) as file:
                    for slot in slots:
                        nbytes = file.readinto(slot)
                        if not nbytes:
                            return
                        yield nbytes // slot.strides[0]

        Runs once, in one process. To read in parallel, let it yield offsets or file numbers, and
        read in the first stage.
    *stages : callable or str
        One or more, each for all blocks in turn: ``stage(block)`` returns the next stage's block,
        which is copied; ``stage(block, out)`` fills it in place, and may return how many rows. The
        last has a block only: what it returns is the result, or it writes somewhere and returns
        None. A block is the stage's own until it returns, and may be written to.
    shape : int, sequence of ints, or list of these
        Of the blocks that stages get. A tuple or number is for all of them; a list has one for
        each stage, the loader not counted: ``[(1000, 2), (501, 2)]``. Blocks may have fewer rows,
        as the last one often has.
    dtype : data-type, or list of these, optional
        Of the blocks; default float64. Values are cast to it as long as they are of the same kind.
    slots : int, optional
        Blocks that there is room for between two stages; default 4. Best is one or two for each
        worker on either side.
    workers : int or sequence of int, optional
        Processes for each stage, not counting the loader; default 1. The table of the stages shows
        which one wants more.
    ordered : bool, optional
        True (default): each stage gets the blocks in their order, so that a last stage with one
        worker can write a file. False: a block that is done overtakes others. The results are in
        the order of the blocks in any case.
    shared : mapping of str to object, optional
        Keyword arguments that are the same for all blocks, placed in shared memory once. Loader
        and stages get those that they have parameters for. Arrays are read-only there.
    timeout : float, optional
        Seconds that a stage may take for one block, waiting not counted, or the loader to give
        one. Past it all stages end. Default: no limit.
    progress : None, bool, str or tqdm class, optional
        As in `parallel_map`; the row has a line for each stage.
    plot : optional
        As in `parallel_map`: a picture of the results so far.
    **others
        There are no others; those of `parallel_map` are refused with what to do instead.

    Returns
    -------
    PipelineResult
        Its ``results`` are as those of `parallel_map`: one array ``(n, *shape)`` if what the last
        stage returns fits one, else a list; its ``stages`` tell what each stage waited for. After
        Stop those of the blocks that are through, with a `PartialResultWarning`.

    Raises
    ------
    TypeError, ValueError
        Wrong use; before any worker starts.
    nbshare.errors.WorkerDiedError
        A worker was killed or crashed; the message names stage and block.
    nbshare.errors.TaskTimeoutError
        A block took longer than `timeout`; the message names it and the stage. A `TimeoutError`.
    nbshare.MapInterrupted
        The kernel's interrupt or Ctrl-C; ``nbshare.last_job().partial()`` has what was done.
    Exception
        What a stage raised, with a note that names stage and block.

    See Also
    --------
    RingBuffer : what joins the stages, for other arrangements.
    parallel_map : for data that are in memory.

    Examples
    --------
    >>> import numpy as np
    >>> import nbshare
    >>> def load():
    ...     for i in range(5):
    ...         yield np.full(1000, i)
    >>> def spectrum(block, out):
    ...     out[...] = abs(np.fft.rfft(block))
    >>> done = nbshare.pipeline(load, spectrum, np.max, shape=[1000, 501])
    >>> done.results
    SharedArray([   0., 1000., 2000., 3000., 4000.])
    >>> [stage.n_blocks for stage in done.stages]
    [5, 5, 5]

    Notes
    -----
    When one stage fails or dies all end at once, as they do at Stop or an interrupt. What the last
    stage has finished by then is in ``nbshare.last_job().partial()``; blocks under way are lost.

    At any time there are as many blocks in memory as there are slots. Results are collected in
    memory: of a stage that writes to a file, return little or None. One pipeline may run at a time
    in each of several threads; in a worker there can be none.
    """
    for name in others:
        refuse(name)
    check_display(progress, plot)
    if is_worker():
        raise RuntimeError("a worker cannot run a pipeline; call the stages one after the other")
    functions = functions_of(load, stages)
    keywords = taken_by(functions, checked_shared(shared))
    check_functions(functions, keywords)
    timeout_s = checked_timeout(timeout)
    n_stages = len(stages)
    counts = one_each("workers", workers, n_stages, isinstance(workers, list | tuple))
    n_workers = [1, *(checked_count("workers", n) or 1 for n in counts)]
    shapes = one_each("shape", shape, n_stages, is_list_of_shapes(shape))
    dtypes = one_each("dtype", dtype, n_stages, is_list_of_dtypes(dtype))
    names = [label_of(func) for func in functions]
    made: list[Pipe] = []

    def make() -> Pipe:
        # Deaths are the engine's: a ring might tell them first, and knows less of them.
        rings = [
            RingBuffer(slots, *form, on_death="leave", in_order=ordered)
            for form in zip(shapes, dtypes, strict=True)
        ]
        rings.append(RingBuffer(RESULT_SLOTS, HEADER_NBYTES + FRAME_NBYTES, "u1"))
        stages = _stages(functions, names, _one_place(keywords), n_workers, rings)
        made.append(Pipe(stages, rings, timeout_s))
        return made[0]

    label = progress if isinstance(progress, str) else " → ".join(names)
    outcome = run_and_draw(make, label, progress, plot)
    figures = tuple(made.pop().stages()) if made else ()
    try:
        return PipelineResult(unwrapped(*outcome), figures)
    finally:
        del outcome  # a notebook keeps the last traceback, and with it this frame


def _stages(
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    keywords: Sequence[Mapping[str, Any]],
    n_workers: Sequence[int],
    rings: Sequence[RingBuffer],
) -> list[Stage]:
    """Place what the stages need in shared memory."""
    engine = dispatcher()
    stages: list[Stage] = []
    of_all = zip(functions, names, keywords, n_workers, strict=True)
    for k, (func, name, shared, n) in enumerate(of_all):
        stations = full((n, 4), 0, np.int64)
        stations[:, 0] = NO_BLOCK
        if k == 0:
            loop = partial(feed, func, rings[0], stations)
        else:
            what = finish if k == len(functions) - 1 else process
            loop = partial(what, func, rings[k - 1], rings[k], stations)
        items = [Place(name, worker) for worker in range(n)]
        options = MapOptions(shared=shared, out="list", max_workers=n, chunksize=1)
        request, _, _ = checked_request(loop, [items], options)
        if stages:  # what all print is shown by the one who waits
            request = request._replace(prints=stages[0].run.request.prints)
        stages.append(Stage(name, SingleRun(prepare(request, engine.warm_up), engine), stations))
    return stages


def _one_place(taken: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Put arrays that several stages take into shared memory once, and not for each of them."""
    n_takers = Counter(name for each in taken for name in each)
    once = {
        name: share(value, mode="r")
        for name, value in ChainMap(*map(dict, taken)).items()
        if n_takers[name] > 1 and _is_plain(value)
    }
    return [{name: once.get(name, value) for name, value in each.items()} for each in taken]


def _is_plain(value: Any) -> bool:
    """Whether it is an array that would be copied for each stage."""
    is_array = isinstance(value, np.ndarray) and not value.dtype.hasobject
    return is_array and segment_of(value) is None and file_of(value) is None
