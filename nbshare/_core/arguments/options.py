"""Checks the options of a run before anything starts. Each error says what to pass instead."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from nbshare._core.arguments.iterables import (
    check_iterable,
    is_series,
    items_of,
    shaped_among,
    warn_of_lengths,
)
from nbshare._core.arrays.create import checked_int
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request
from nbshare._core.functions.annotations import signature_of, text_of
from nbshare._core.functions.reference import (
    bind_arguments,
    check_called,
    label_of,
    resolve,
)
from nbshare._core.interrupts import refuse_patched_modules
from nbshare._core.memory import can_share, need_shared
from nbshare._core.messages import cut
from nbshare._core.notebook.live_plot import Plot
from nbshare._core.notebook.prints import Printer
from nbshare._core.shapes.shaped import checked_out
from nbshare._core.source.changes import record_imports, warn_of_changes
from nbshare._core.system import processes
from nbshare._core.wire import is_worker, runs_items
from nbshare._core.wire.context import current_context
from nbshare._core.wire.orders import Policy

record_imports()

if TYPE_CHECKING:
    from nbshare._core.hosts.protocol import Hosts

Backend: TypeAlias = 'Literal["local", "serial", "threads"] | Hosts'

Out = npt.NDArray[Any] | Literal["list", "stack", "xarray"] | None


class MapOptions(NamedTuple):
    """The options of `parallel_map` and their defaults."""

    shared: Mapping[str, Any] | None = None
    seed: int | np.random.SeedSequence | None = None
    out: Out = None
    reduce: Callable[[Any, Any], Any] | None = None
    until: Callable[..., Any] | None = None
    checkpoint: str | os.PathLike[str] | Checkpoint | None = None
    progress: bool | str | type | None = None
    plot: Plot = None
    on_error: Literal["raise", "return"] = "raise"
    retries: int = 0
    timeout: float | None = None
    max_workers: int | None = None
    chunksize: int | None = None
    initializer: Callable[..., Any] | None = None
    initargs: Sequence[Any] = ()
    max_tasks_per_child: int | None = None
    backend: Any = None


class OtherOptions(TypedDict, total=False):
    """Types of the options, without those that decide the type of the result."""

    shared: Mapping[str, Any] | None
    seed: int | np.random.SeedSequence | None
    reduce: Callable[[Any, Any], Any] | None
    until: Callable[..., Any] | None
    checkpoint: str | os.PathLike[str] | Checkpoint | None
    progress: bool | str | type | None
    plot: Plot
    retries: int
    timeout: float | None
    max_workers: int | None
    chunksize: int | None
    initializer: Callable[..., Any] | None
    initargs: Sequence[Any]
    max_tasks_per_child: int | None
    backend: Any


class Options(OtherOptions, total=False):
    """Types of all options except `out`."""

    on_error: Literal["raise", "return"]


def checked_request(
    func: Callable[..., Any] | str, iterables: Sequence[Iterable[Any]], options: MapOptions
) -> tuple[Request, Backend]:
    """Check all arguments. Return the request, and the backend to run it."""
    refuse_patched_modules()
    # A worker runs nested calls inline, so that max_workers= limits all processes. So does a thread
    # that runs items on a system without worker processes.
    is_nested = is_worker() or (not can_share() and runs_items())
    where = checked_backend(options, is_nested=is_nested)
    policy = checked_policy(options)
    function = resolve(func)
    keywords = checked_shared(options.shared)
    extra = () if policy.seed is None else ("rng",)
    if (items := shaped_among(iterables)) is None:
        for iterable in iterables:
            check_iterable(iterable)
        bind_arguments(function, iterables, keywords, extra)
        warn_of_lengths(iterables)
    else:
        items, out = items.with_out(options.out)
        function, iterables = items.taken_by(function, keywords, extra), [items]
    workers = checked_count("max_workers", options.max_workers)
    if workers is None:
        workers = processes.usable_cpus() if isinstance(where, str) else where.n_workers()
    size = checked_count("chunksize", options.chunksize)
    columns, source, n_items = items_of(iterables)
    if items is None:
        out = checked_out(options.out, n_items)
    check_functions(options)
    users = function
    if (reduce := options.reduce) is not None:
        from nbshare._core.wire.folding import Fold, in_blocks  # late, only reduce= needs it

        function, out = Fold(users, reduce, policy), "list"  # a list of the value of each block
        columns, source, n_items = in_blocks(columns, source, n_items)
    n_workers = workers if n_items is None else max(1, min(workers, n_items))
    request = Request(
        func=function,
        shared=keywords,
        iterables=columns,
        source=source,
        n_items=n_items,
        max_workers=1 if where == "serial" else n_workers,
        chunksize=size,
        prints=Prints(Printer()),
        out=out,
        context=current_context(),
        policy=policy,
        initializer=checked_initializer(options.initializer, options.initargs),
        label=options.progress if isinstance(options.progress, str) else label_of(users),
        reduce=reduce,
        until=options.until,
        series=iterables[0] if len(iterables) == 1 and is_series(iterables[0]) else None,
    )
    if where not in ("serial", "threads"):
        initializer = request.initializer and request.initializer[0]
        warn_of_changes(users, initializer, reduce, *keywords.values())
    return request, where


def checked_checkpoint(options: MapOptions) -> Checkpoint | None:
    """Return ``checkpoint=`` as a `Checkpoint`, or None. Raise TypeError if it is not a path."""
    checkpoint = options.checkpoint
    if checkpoint is None:
        return None
    need_shared("checkpoint=", "save the results with numpy.save")
    return checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)


def checked_shared(shared: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return ``shared=`` as a dict. Raise TypeError if it is not a mapping of names."""
    if shared is None:
        return {}
    found = type(shared).__name__
    if isinstance(shared, Mapping):
        if all(isinstance(name, str) for name in shared):
            return dict(shared)
        found = f"a {found} with keys that are not strings: {cut(repr(list(shared)))}"
    raise TypeError(
        "shared= takes a mapping of argument names to objects, such as "
        f'shared={{"elevation": dem}}, not {found}'
    )


_DEFAULTS = {
    "max_workers": "all CPUs that this process may use",
    "max_tasks_per_child": "as many as there are",
}


def checked_count(name: str, value: int | None) -> int | None:
    """Return a count of 1 or more, or None. Raise TypeError or ValueError for other values."""
    if value is None:
        return None
    default = _DEFAULTS.get(name, "the default")
    return checked_int(name, value, 1, f", or None for {default}")


def checked_policy(options: MapOptions) -> Policy:
    """Return the policy for failures and seeds. Raise ValueError for wrong values."""
    on_error, retries = options.on_error, options.retries
    if not isinstance(on_error, str) or on_error not in ("raise", "return"):
        raise ValueError(f"on_error={on_error!r} is not allowed: pass 'raise' or 'return'")
    if not isinstance(retries, int | np.integer) or retries < 0:
        raise ValueError(f"retries={retries!r} is not allowed: pass an integer of 0 or more")
    return Policy(
        on_error=on_error,
        retries=int(retries),
        timeout_s=checked_timeout(options.timeout),
        seed=_checked_seed(options.seed),
        max_tasks=checked_count("max_tasks_per_child", options.max_tasks_per_child),
    )


def checked_timeout(timeout: Any) -> float | None:
    """Return seconds above 0, or None for no limit. Raise ValueError for other values."""
    if timeout is None:
        return None
    if not (isinstance(timeout, Real) and float(timeout) > 0):
        raise ValueError(
            f"timeout={timeout!r} is not allowed: pass a number of seconds above 0, or None"
        )
    return float(timeout)


def _checked_seed(seed: Any) -> tuple[Any, tuple[int, ...], int] | None:
    if seed is None:
        return None
    try:
        sequence = seed if hasattr(seed, "spawn_key") else np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"seed={seed!r} is not allowed: pass an integer of 0 or more, or a "
            "numpy.random.SeedSequence"
        ) from None
    return sequence.entropy, tuple(sequence.spawn_key), sequence.pool_size


def checked_initializer(
    initializer: Any, initargs: Iterable[Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return the initializer and its arguments, or None without one."""
    if not isinstance(initargs, Iterable):
        raise TypeError(
            f"initargs={initargs!r} is not allowed: pass a sequence of arguments, such as (1, 2)"
        )
    arguments = tuple(initargs)
    if initializer is None:
        if arguments:
            raise TypeError("initargs= is given, but no initializer=")
        return None
    if not callable(initializer) and not isinstance(initializer, str):
        raise TypeError(
            f"initializer={initializer!r} is not allowed: pass a function, or 'file.py:name'"
        )
    function = resolve(initializer)
    try:
        bind_arguments(function, arguments, {})
    except TypeError:
        raise TypeError(
            f"the initializer {label_of(function)}{text_of(signature_of(function))} cannot be "
            f"called with initargs={cut(repr(arguments))}. Pass its positional arguments in "
            "initargs=."
        ) from None
    return function, arguments


def checked_backend(options: MapOptions, *, is_nested: bool) -> Backend:
    """Return the backend. Raise ValueError if it is unknown or does not support an option."""
    backend = options.backend
    if backend is None and not is_nested:
        return "local"
    if not isinstance(backend, str | None) or backend not in (None, "serial", "threads"):
        from nbshare._core.hosts.choice import hosts_for  # late, because few calls need it

        if (hosts := hosts_for(backend)) is None:
            raise ValueError(
                f"backend={backend!r} is not allowed: pass None (worker processes on this "
                "machine), 'serial', 'threads', a distributed.Client, 'ray', the address of a Ray "
                "cluster ('ray://...'), or any concurrent.futures.Executor"
            )
        return "serial" if is_nested else hosts
    for name in ("timeout", "max_tasks_per_child"):
        if (value := getattr(options, name)) is not None:
            raise ValueError(
                f"{name}={value!r} needs worker processes, which can be killed. Leave it out with "
                "backend='serial' or 'threads', and in calls inside a worker."
            )
    return "threads" if backend == "threads" and not is_nested else "serial"


def check_functions(options: MapOptions) -> None:
    """Raise if ``reduce=`` or ``until=`` is not a function, or conflicts with an option."""
    if options.until is not None:
        given = ("partial",) if options.reduce is None else ("value", "n")
        check_called("until", options.until, *given)
    if options.reduce is None:
        return
    check_called("reduce", options.reduce, "a", "b")
    if options.out is not None:
        raise ValueError("reduce= returns one value, so out= has no effect. Remove out=.")
    if options.timeout is not None:
        raise ValueError(
            "timeout= cannot be combined with reduce=: a timeout kills a worker, which also holds "
            "the results of other items. Leave out timeout=, or combine the results after the run."
        )
