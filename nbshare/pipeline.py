"""pipeline: stages in processes of their own, joined by ring buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from nbshare.arguments import checked_count, checked_request
from nbshare.arrays import RingBuffer, full
from nbshare.engine.call import prepare
from nbshare.engine.local import dispatcher
from nbshare.engine.pipe import Pipe, Stage
from nbshare.engine.single import SingleRun
from nbshare.engine.stages import (
    FRAME_NBYTES,
    HEADER_NBYTES,
    NO_BLOCK,
    Place,
    feed,
    finish,
    n_arguments,
    process,
)
from nbshare.engine.stats import StageStatistics
from nbshare.engine.worker import is_worker
from nbshare.functions import label_of, resolve
from nbshare.job import unwrapped
from nbshare.mapping import run_and_draw
from nbshare.notebook import Plot, check_display
from nbshare.tracebacks import UsersFramesOnly

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
    stages : tuple of StageStatistics
        For each stage, the loader first, what it did and what it waited for.
    """

    results: Any
    stages: tuple[StageStatistics, ...]

    def __repr__(self) -> str:
        kind = type(self.results).__name__
        if isinstance(self.results, np.ndarray):
            kind += f" of {self.results.shape} {self.results.dtype}"
        parts = [f"{s.name} {s.n_blocks} blocks, {s.busy:.0%} busy" for s in self.stages]
        return f"<PipelineResult: {kind}; {' → '.join(parts)}>"


def pipeline(
    load: Callable[..., Iterable[Any]] | str,
    /,
    *stages: Callable[..., Any] | str,
    shape: Shape | Sequence[Shape],
    dtype: npt.DTypeLike | Sequence[npt.DTypeLike] = float,
    slots: int = 4,
    workers: int | Sequence[int] = 1,
    ordered: bool = True,
    progress: bool | str | type | None = None,
    plot: Plot = None,
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
    progress : None, bool, str or tqdm class, optional
        As in `parallel_map`; the row has a line for each stage.
    plot : optional
        As in `parallel_map`: a picture of the results so far.

    Returns
    -------
    PipelineResult
        Its ``results`` are as those of `parallel_map`: one array ``(n, *shape)`` if what the last
        stage returns fits one, else a list; its ``stages`` tell what each stage waited for.

    Raises
    ------
    TypeError, ValueError
        Wrong use; before any worker starts.
    nbshare.errors.WorkerDiedError
        A worker was killed or crashed; the message names stage and block.
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
    When one stage fails or dies all end at once. What the last stage has finished by then is in
    ``nbshare.last_job().partial()``; blocks under way are lost.

    At any time there are as many blocks in memory as there are slots. Results are collected in
    memory: of a stage that writes to a file, return little or None. One pipeline may run at a time
    in each of several threads; in a worker there can be none.
    """
    with UsersFramesOnly():
        check_display(progress, plot)
        if is_worker():
            raise RuntimeError(
                "a worker cannot run a pipeline; call the stages one after the other"
            )
        functions = [resolve(func) for func in (load, *stages)]
        _check_arguments(functions)
        n_stages = len(stages)
        counts = _one_each("workers", workers, n_stages, isinstance(workers, Sequence))
        n_workers = [1, *(checked_count("workers", n) or 1 for n in counts)]
        shapes = _one_each("shape", shape, n_stages, _is_list_of_shapes(shape))
        dtypes = _one_each("dtype", dtype, n_stages, _is_list_of_dtypes(dtype))
        names = [label_of(func) for func in functions]
        made: list[Pipe] = []

        def make() -> Pipe:
            rings = [
                RingBuffer(slots, *form, on_death="fail", in_order=ordered)
                for form in zip(shapes, dtypes, strict=True)
            ]
            rings.append(RingBuffer(RESULT_SLOTS, HEADER_NBYTES + FRAME_NBYTES, "u1"))
            made.append(_pipe(functions, names, n_workers, rings))
            return made[0]

        label = progress if isinstance(progress, str) else " → ".join(names)
        results = unwrapped(*run_and_draw(make, label, progress, plot))
        return PipelineResult(results, tuple(made[0].stages()))


def _pipe(
    functions: Sequence[Callable[..., Any]],
    names: Sequence[str],
    n_workers: Sequence[int],
    rings: Sequence[RingBuffer],
) -> Pipe:
    """Place what the stages need in shared memory."""
    engine = dispatcher()
    stages = []
    for k, (func, name, n) in enumerate(zip(functions, names, n_workers, strict=True)):
        desk = full((n, 3), 0, np.int64)
        desk[:, 0] = NO_BLOCK
        if k == 0:
            loop = partial(feed, func, rings[0], desk)
        else:
            what = finish if k == len(functions) - 1 else process
            loop = partial(what, func, rings[k - 1], rings[k], desk)
        items = [Place(name, worker) for worker in range(n)]
        request, _, _ = checked_request(loop, [items], out="list", max_workers=n, chunksize=1)
        stages.append(Stage(name, SingleRun(prepare(request, engine.warm_up), engine), desk))
    nothing = replace(request, iterables=(), n_tasks=0, out=None, max_workers=sum(n_workers))
    return Pipe(nothing, stages, rings)


# ---------------------------------------------------------------------------- arguments


def _check_arguments(functions: Sequence[Callable[..., Any]]) -> None:
    load, *stages = functions
    if not stages:
        raise TypeError("pipeline(load, stage, ..., shape=) needs one stage or more")
    if n_arguments(load) > 1:
        raise TypeError(f"{label_of(load)} must take no argument, or one: the slots to fill")
    for k, stage in enumerate(stages, 1):
        allowed = (1,) if k == len(stages) else (1, 2)
        if n_arguments(stage) not in allowed:
            how = "stage(block)" if k == len(stages) else "stage(block) or stage(block, out)"
            raise TypeError(
                f"{label_of(stage)}, stage {k}, takes {n_arguments(stage)} positional arguments; "
                f"it is called as {how}. Give others by functools.partial(stage, name=value)."
            )


def _one_each(name: str, value: Any, n: int, is_list: bool) -> list[Any]:
    """Return a value for each stage: the one there is, or those of a list."""
    if not is_list:
        return [value] * n
    if len(value) != n:
        raise ValueError(f"{name}={value!r} has {len(value)} entries for {n} stages (without load)")
    return list(value)


def _is_list_of_shapes(shape: Any) -> bool:
    """Whether it is a list with a shape per stage: [(1000, 2), (501, 2)], or [1000, 501]."""
    return isinstance(shape, list)


def _is_list_of_dtypes(dtype: Any) -> bool:
    """Whether it is a list of dtypes, and not that of a structured dtype's fields."""
    return isinstance(dtype, list) and not all(isinstance(each, tuple) for each in dtype)
