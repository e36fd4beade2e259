"""Estimates the costs of a run, from its arguments and one or two of its items."""

import html
import pickle
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np

from nbshare._core.arguments.options import Backend, MapOptions, Options, Out, check_functions
from nbshare._core.arrays.arena import Arena
from nbshare._core.engine.hints import hints_of
from nbshare._core.engine.preparing import pack_fixed, sources_nbytes
from nbshare._core.engine.request import Request
from nbshare._core.entries.mapping import KNOWN, Function, check_call, prepared
from nbshare._core.jobs.html_tables import html_table
from nbshare._core.memory.budget import SHARE, in_words
from nbshare._core.names import refuse_others
from nbshare._core.runs.running import run_and_draw
from nbshare._core.system import processes
from nbshare._core.tracebacks import Failed, shown_from_the_call


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The costs of a run, estimated by `nbshare.plan`.

    Attributes
    ----------
    n_items : int or None
        Number of items, or None if it is unknown, as for a generator, whose items are not tried.
    input_bytes : int
        Bytes that the function, `shared` and the items take in shared memory. For many items,
        estimated from a sample.
    result_bytes : int
        Bytes of all results, estimated from the items that were tried. With `reduce`, bytes of one
        result per worker.
    item_s : float
        Mean time, in seconds, of the items that were tried.
    elapsed_s : float
        Estimated seconds of the run, without the start of workers.
    workers : int
        Number of workers that fit into free memory, at most `max_workers`.
    worker_bytes : int
        Peak private memory of a worker, in bytes, 0 if it is unknown, as for other machines.
    peak_bytes : int
        Peak memory of the run, in bytes, with inputs, results and workers.
    refused : list of str
        Problems: the error of a refused call, an error of an item, a lack of memory.
    hints : list of str
        Advice on inputs of 100 MB and more that could take less memory or time.

    Examples
    --------
    How much memory do the results need?

    >>> import numpy as np
    >>> import nbshare
    >>> plan = nbshare.plan(np.ones, [10_000] * 500)
    >>> plan.n_items, plan.result_bytes, plan.refused
    (500, 40000000, [])

    Which items would fail?

    >>> nbshare.plan(float, ["1.5", "off"]).refused
    ["item 1 ('off') fails: ValueError: could not convert string to float: 'off'"]
    """

    __module__ = "nbshare.types"

    n_items: int | None
    input_bytes: int = 0
    result_bytes: int = 0
    item_s: float = 0.0
    elapsed_s: float = 0.0
    workers: int = 0
    worker_bytes: int = 0
    peak_bytes: int = 0
    refused: list[str]
    hints: list[str] = field(default_factory=list)

    def _lines(self) -> list[tuple[str, str]]:
        items = "an unknown number" if self.n_items is None else f"{self.n_items:,}"
        each = f", {in_words(self.worker_bytes)} each" if self.worker_bytes else ""
        lines = [("items", items), ("inputs", in_words(self.input_bytes))]
        if self.item_s:
            left = in_words(processes.available_bytes())
            lines += [
                ("results", in_words(self.result_bytes)),
                ("time", f"{_seconds(self.elapsed_s)}, {_seconds(self.item_s)} per item"),
                ("workers", f"{self.workers}{each}"),
                ("peak", f"{in_words(self.peak_bytes)} of {left} available"),
            ]
        lines += [("refused", problem) for problem in self.refused]
        return lines + [("hint", hint) for hint in self.hints]

    def __repr__(self) -> str:
        lines = "".join(f"\n  {name:9}{text}" for name, text in self._lines())
        return f"<Plan{lines}>"

    def _repr_html_(self) -> str:
        rows = ((name, html.escape(text)) for name, text in self._lines())
        return html_table(rows, styles=["text-align:left"] * 2)


@shown_from_the_call
def plan(
    func: Function[Any], /, *iterables: Iterable[Any], out: Out = None, **options: Unpack[Options]
) -> Plan:
    """Estimate the time and memory of a run by running one or two of its items.

    Examples
    --------
    Before a long run:

    >>> import numpy as np
    >>> import nbshare
    >>> def spectrum(k, signal):
    ...     return np.abs(np.fft.rfft(signal * k))
    >>> plan = nbshare.plan(spectrum, range(1000), shared={"signal": np.ones(2000)})
    >>> plan.n_items, plan.result_bytes
    (1000, 8008000)

    A function that cannot be sent:

    >>> import threading
    >>> plan = nbshare.plan(print, [threading.Lock()])
    >>> plan.refused[0][:40]
    'item 0 cannot be sent to another process'

    Parameters
    ----------
    func : callable or str
        The function, as for `parallel_map`.
    *iterables : iterable
        The items, as for `parallel_map`. The first and the middle item run, in one worker. A
        generator is not read, so none of its items runs.
    **options
        Options of `parallel_map`. Nothing is stored in a `checkpoint`, and `reduce` and `until` are
        not called. The estimates are for all items.

    Returns
    -------
    Plan
        Number of items, bytes of inputs and results, time, workers, memory and problems. A notebook
        shows it as a table.

    Raises
    ------
    TypeError
        If an argument is one that `parallel_map` does not accept.

    See Also
    --------
    parallel_map : the run itself.

    Notes
    -----
    The items that run have their usual side effects, such as writing files. The memory of a
    worker includes that of its earlier calls.
    """
    others = [name for name in options if name not in KNOWN]
    refuse_others("plan", others, KNOWN, func, iterables)
    try:
        check_functions(MapOptions(out=out, **options))
        all_at_once = {**options, "reduce": None, "until": None}
        _, request, where = check_call("plan", func, iterables, out, all_at_once)
        arena = Arena()
        pack_fixed(arena, request)
        input_bytes = sources_nbytes(arena, request.iterables) + arena.nbytes
    except Exception as error:  # noqa: BLE001 - its message is the answer
        return Plan(n_items=None, refused=[str(error)])
    if not request.n_items:
        return Plan(n_items=request.n_items, input_bytes=input_bytes, refused=[])
    n_kept = request.n_items if options.get("reduce") is None else request.max_workers
    hints = hints_of(request, arena)
    return replace(_tried(request, where, request.n_items, n_kept, input_bytes), hints=hints)


def _tried(request: Request, where: Backend, n: int, n_kept: int, input_bytes: int) -> Plan:
    """Run one or two of `n` items. Return the plan for all, with `n_kept` results in memory."""
    tried = sorted({0, n // 2})
    few = request._replace(
        iterables=[[column[i] for i in tried] for column in request.iterables],
        n_items=len(tried),
        max_workers=1,
        chunksize=1,
        out="list",
        policy=request.policy._replace(on_error="return"),
    )
    call = prepared(few, where, None, None)
    values = run_and_draw(lambda: call, request.label, False, None)
    if isinstance(values, Failed):
        return Plan(n_items=n, input_bytes=input_bytes, refused=[str(values.error)])
    refused = [
        f"{call.name_of(i, call.text_of(k))} fails: {type(value).__name__}: {value}"
        for k, (i, value) in enumerate(zip(tried, values, strict=True))
        if isinstance(value, BaseException)
    ]
    good = [value for value in values if not isinstance(value, BaseException)]
    result_bytes = sum(map(_nbytes, good)) * n_kept // max(len(good), 1)
    item_s = sum(worker.working_s for worker in call.stats()) / len(tried)
    each = call.private_peak() if where == "local" else 0
    left = processes.available_bytes() * SHARE - input_bytes - result_bytes
    if left < each:
        lack = f"{in_words(input_bytes)} for inputs, {in_words(result_bytes)} for results"
        refused.append(f"it needs {lack} and {in_words(each)} per worker, more than is available")
    workers = max(1, min(request.max_workers, int(left // each) if each else request.max_workers))
    return Plan(
        n_items=n,
        input_bytes=input_bytes,
        result_bytes=result_bytes,
        item_s=item_s,
        elapsed_s=item_s * n / workers,
        workers=workers,
        worker_bytes=each,
        peak_bytes=input_bytes + result_bytes + workers * each,
        refused=refused,
    )


def _nbytes(value: Any) -> int:
    """Return the size of a result in bytes, as an array or pickled."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float | complex):
        return np.asarray(value).nbytes
    return len(pickle.dumps(value, 5))


def _seconds(value: float) -> str:
    """Format seconds with two significant digits, or as an integer from 10 s on."""
    return f"{value:,.0f} s" if value >= 10 else f"{value:.2g} s"
