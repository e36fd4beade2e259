"""The options of a run, checked before anything starts. Errors say what to do."""

from __future__ import annotations

import os
import reprlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from itertools import islice
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.arrays.create import checked_int
from nbshare._core.checkpoint.options import Checkpoint
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request, has_rows
from nbshare._core.functions.annotations import signature_of, text_of
from nbshare._core.functions.reference import (
    bind_arguments,
    closest,
    label_of,
    refuse_async,
    resolve,
)
from nbshare._core.interrupts import refuse_patched_modules
from nbshare._core.memory import can_share, need_shared
from nbshare._core.notebook.live_plot import Plot
from nbshare._core.notebook.prints import Printer
from nbshare._core.shapes.grid import Grid
from nbshare._core.shapes.shaped import ShapedItems
from nbshare._core.shapes.tables import gives_pairs, groups_of, is_grouped
from nbshare._core.shapes.tiles import Tiles
from nbshare._core.source.changes import record_imports, warn_of_changes
from nbshare._core.system import room
from nbshare._core.wire import is_worker, runs_items
from nbshare._core.wire.context import current_context
from nbshare._core.wire.failures import raised_by_source
from nbshare._core.wire.folding import Blocks, Fold, blocks_of
from nbshare._core.wire.kept import kept_items
from nbshare._core.wire.orders import Policy
from nbshare.errors import LengthsWarning, cut, is_interrupt, warn

record_imports()

if TYPE_CHECKING:
    from nbshare._core.hosts.protocol import Hosts

Backend: TypeAlias = 'Literal["local", "serial", "threads"] | Hosts'

# Names in other libraries, and what to write here.
ELSEWHERE = {
    ("n_jobs", "processes", "num_workers", "n_workers", "workers", "nprocs", "num_cpus"): (
        "use max_workers= (default: all CPUs that this process may use)"
    ),
    ("chunk_size", "batch_size"): "use chunksize= (default: adapted to the measured time)",
    ("desc", "verbose", "progress_bar", "show_progress", "tqdm_class", "disable"): (
        "use progress= (a label, False, or a tqdm class)"
    ),
    ("total",): "leave it out. The number of items is known or counted",
    ("args", "kwargs", "kwds", "shared_objects"): "use shared={name: value}",
    ("random_state", "rng"): "use seed= (each call then gets its own rng=)",
    ("max_retries",): "use retries=",
    ("detach",): "use map_async(..., detach=True)",
    ("if_changed", "version", "durability", "on_full"): (
        "pass it with the path: checkpoint=nbshare.Checkpoint(path, ...)"
    ),
    ("ordered", "return_as"): (
        "results are in the order of the items. For each as it arrives, iterate over "
        "map_async(...), or over map_async(...).in_order()"
    ),
    ("callback", "error_callback"): "use map_async(...).add_done_callback",
    ("maxtasksperchild", "worker_lifespan"): "use max_tasks_per_child=",
    ("mmap_mode", "max_nbytes", "temp_folder", "start_method", "mp_context"): (
        "leave it out. Arrays are in shared memory, and workers start automatically"
    ),
}
INSTEAD = {name: advice for names, advice in ELSEWHERE.items() for name in names}


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
    """The same for type checkers, without those on which the kind of result depends."""

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
    """All but `out`."""

    on_error: Literal["raise", "return"]


def checked_request(
    func: Callable[..., Any] | str, iterables: Sequence[Iterable[Any]], options: MapOptions
) -> tuple[Request, Backend]:
    """Check all arguments. Return the request, and the engine to run it."""
    refuse_patched_modules()
    # A worker runs nested calls inline, with no more processes than requested. So does a thread
    # that runs items where there can be no worker processes.
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
        items = items.filling(options.out) if isinstance(items, Tiles) else items
        function, iterables = items.taken_by(function, keywords, extra), [items]
    workers = checked_count("max_workers", options.max_workers)
    if workers is None:
        workers = room.usable_cpus() if isinstance(where, str) else where.n_workers()
    size = checked_count("chunksize", options.chunksize)
    columns, source, n_items = items_of(iterables)
    out, users = checked_out(options.out, n_items, items), function
    check_functions(options)
    if (reduce := options.reduce) is not None:
        function, out = Fold(users, reduce, policy), "list"  # of what becomes of the blocks
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
        is_labelled=isinstance(options.out, str) and options.out == "xarray",
        reduce=reduce,
        until=options.until,
    )
    if where not in ("serial", "threads"):
        initializer = request.initializer and request.initializer[0]
        warn_of_changes(users, initializer, reduce, *keywords.values())
    return request, where


def refuse_others(function: str, others: Iterable[str], known: Sequence[str]) -> None:
    """Raise TypeError for a keyword argument that a function does not have, with what to use."""
    for name in others:
        if close := closest(name, known):
            advice = f"did you mean {close}=?"
        elif "shared" in known:
            advice = f"to pass it to your function, use shared={{{name!r}: ...}}"
        else:
            advice = f"it takes {', '.join(known)}"
        raise TypeError(f"{function}() has no argument {name}=: {INSTEAD.get(name, advice)}")


def checked_checkpoint(options: MapOptions) -> Checkpoint | None:
    """Return where results are kept, and how. Raise TypeError if it is no path."""
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
        found = f"a {found} whose names are not all strings: {cut(repr(list(shared)))}"
    raise TypeError(
        "shared= takes a mapping of argument names to objects, such as "
        f'shared={{"elevation": dem}}, not {found}'
    )


_DEFAULTS = {
    "max_workers": "all CPUs that this process may use",
    "max_tasks_per_child": "as many as there are",
}


def checked_count(name: str, value: int | None) -> int | None:
    """Return a count of 1 or more, or None. Raise TypeError or ValueError for others."""
    if value is None:
        return None
    default = _DEFAULTS.get(name, "the default")
    return checked_int(name, value, 1, f", or None for {default}")


def checked_policy(options: MapOptions) -> Policy:
    """Return the policy for failures and seeds. Raise ValueError if wrong."""
    on_error, retries = options.on_error, options.retries
    if not isinstance(on_error, str) or on_error not in ("raise", "return"):
        raise ValueError(f"on_error={on_error!r}: allowed are 'raise' and 'return'")
    if not isinstance(retries, int | np.integer) or retries < 0:
        raise ValueError(f"retries={retries!r}: must be an integer of 0 or more")
    return Policy(
        on_error=on_error,
        retries=int(retries),
        timeout_s=checked_timeout(options.timeout),
        seed=_checked_seed(options.seed),
        max_tasks=checked_count("max_tasks_per_child", options.max_tasks_per_child),
    )


def checked_timeout(timeout: Any) -> float | None:
    """Return seconds above 0, or None for no limit. Raise ValueError for others."""
    if timeout is None:
        return None
    if not (isinstance(timeout, Real) and float(timeout) > 0):
        raise ValueError(f"timeout={timeout!r}: must be a number of seconds above 0, or None")
    return float(timeout)


def _checked_seed(seed: Any) -> tuple[Any, tuple[int, ...], int] | None:
    if seed is None:
        return None
    try:
        sequence = seed if hasattr(seed, "spawn_key") else np.random.SeedSequence(seed)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"seed={seed!r}: must be an integer of 0 or more, or a numpy.random.SeedSequence"
        ) from None
    return sequence.entropy, tuple(sequence.spawn_key), sequence.pool_size


def checked_initializer(
    initializer: Any, initargs: Iterable[Any]
) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
    """Return function and arguments of the initializer, None without one."""
    if not isinstance(initargs, Iterable):
        raise TypeError(f"initargs={initargs!r}: must be a sequence of arguments, such as (1, 2)")
    arguments = tuple(initargs)
    if initializer is None:
        if arguments:
            raise TypeError("initargs= is given, but no initializer=")
        return None
    if not callable(initializer) and not isinstance(initializer, str):
        raise TypeError(f"initializer={initializer!r}: must be a function, or 'file.py:name'")
    function = resolve(initializer)
    try:
        bind_arguments(function, arguments, {})
    except TypeError:
        raise TypeError(
            f"the initializer {label_of(function)}{text_of(signature_of(function))} cannot be "
            f"called with initargs={cut(repr(arguments))}: they are its positional arguments"
        ) from None
    return function, arguments


def checked_backend(options: MapOptions, *, is_nested: bool) -> Backend:
    """Return the name of the backend. Raise if it does not support an option."""
    backend = options.backend
    if backend is None and not is_nested:
        return "local"
    if not isinstance(backend, str | None) or backend not in (None, "serial", "threads"):
        from nbshare._core.hosts.choice import hosts_for  # late, as few calls need it

        if (hosts := hosts_for(backend)) is None:
            raise ValueError(
                f"backend={backend!r}: allowed are None (worker processes on this machine), "
                "'serial', 'threads', a distributed.Client, 'ray', the address of a Ray cluster "
                "('ray://...'), and any concurrent.futures.Executor"
            )
        return "serial" if is_nested else hosts
    for name in ("timeout", "max_tasks_per_child"):
        if (value := getattr(options, name)) is not None:
            raise ValueError(
                f"{name}={value!r} needs worker processes, which can be ended. Leave it out with "
                "backend='serial' or 'threads', and in calls inside a worker"
            )
    return "threads" if backend == "threads" and not is_nested else "serial"


def shaped_among(iterables: Sequence[Any]) -> ShapedItems | None:
    """Return the items that have a shape, such as a grid's. Raise TypeError if there are others."""
    shaped = [x for x in iterables if isinstance(x, ShapedItems) or is_grouped(x)]
    if not shaped:
        return None
    if len(iterables) > 1:
        raise TypeError(
            f"a {type(shaped[0]).__name__} gives all arguments that differ between the calls: pass "
            "it alone, and what all calls need in shared="
        )
    return shaped[0] if isinstance(shaped[0], ShapedItems) else groups_of(shaped[0])


def check_functions(options: MapOptions) -> None:
    """Raise if ``reduce=`` or ``until=`` is no function, or does not go with another option."""
    for name in ("reduce", "until"):
        given = getattr(options, name)
        if given is not None and not callable(given):
            raise TypeError(f"{name}={cut(repr(given))}: must be a function")
        refuse_async(given)
    if options.reduce is None:
        return
    if options.out is not None:
        raise ValueError("with reduce= there is one result: leave out= out")
    if options.timeout is not None:
        raise ValueError(
            "timeout= ends the worker of one item, which has the results of others in its block: "
            "leave it out with reduce="
        )


def in_blocks(
    columns: list[Any], source: Iterator[tuple[Any, ...]] | None, n_items: int | None
) -> tuple[list[Any], Iterator[tuple[Any, ...]] | None, int | None]:
    """Return the items in blocks, in the form of `items_of`."""
    if n_items is not None:
        blocks = Blocks(columns, n_items)
        return [blocks], None, len(blocks)
    assert source is not None
    at_hand = [column for column in columns if column is not None]

    def all_columns(arrived: Iterator[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
        for given, *others in zip(arrived, *at_hand, strict=False):
            parts, rest = iter(given), iter(others)
            yield tuple(next(parts if column is None else rest) for column in columns)

    return [None], blocks_of(all_columns(source)), None


def checked_out(out: Any, n_items: int | None, items: ShapedItems | None = None) -> Any:
    """Return ``out=`` if it can hold `n_items` results. Raise with the remedy if not."""
    if out is None or isinstance(items, Tiles):  # which have it
        return None
    if isinstance(out, str):
        if out in ("list", "stack"):
            return out
        if out == "xarray" and isinstance(items, Grid):
            _need_xarray()
            return None
    elif isinstance(out, np.ndarray):
        if out.dtype.hasobject or is_masked(out):
            raise TypeError('out= must be a plain array of numbers. For objects pass out="list"')
        if not out.flags.writeable:
            raise ValueError("out= is read-only")
        if out.ndim == 0:
            raise ValueError("out= is a 0-d array: it needs a first axis, with a row for each item")
        if isinstance(items, Grid):
            return items.flat(out)
        if n_items not in (None, len(out)):
            raise ValueError(
                f"out= has shape {out.shape}, but there are {n_items} items: its first axis must "
                f"have length {n_items}, the others are the shape of one result"
            )
        return out
    raise ValueError(
        f'out={cut(repr(out))}: allowed are None, "list", "stack", an ndarray with a row for each '
        'item, and "xarray" for the items of a grid'
    )


def _need_xarray() -> None:
    try:
        import xarray  # noqa: F401 - late: few calls need it
    except ImportError as error:
        raise ImportError('out="xarray" needs the package xarray: pip install xarray') from error


def check_iterable(iterable: Any) -> None:
    """Raise with the remedy if an argument is not iterable, or has too many items."""
    if hasattr(type(iterable), "__aiter__") and not isinstance(iterable, Iterable):
        raise TypeError(
            f"{type(iterable).__name__} gives its items asynchronously. Take them first: pass "
            "[x async for x in items]"
        )
    is_iterable = isinstance(iterable, Iterable) or hasattr(type(iterable), "__getitem__")
    if not is_iterable or getattr(iterable, "ndim", 1) == 0:
        kind = "a 0-d array" if is_iterable else type(iterable).__name__
        raise TypeError(
            f"{kind} gives no items ({cut(repr(iterable))}). The second argument is a list, an "
            "array, range(n) or another iterable. Pass what all items need in shared="
        )
    if isinstance(iterable, Mapping | str) or is_table(iterable):
        kind, shown = type(iterable).__name__, f" ({reprlib.repr(iterable)})"
        parts, remedy = "keys", "list(d), list(d.values()) or list(d.items()) for an item per entry"
        if isinstance(iterable, str):
            parts, remedy = "characters", "list(text) for an item per character"
        elif not isinstance(iterable, Mapping):
            is_polars = hasattr(iterable, "to_dicts")
            parts, shown = "columns", ""
            rows = "df.to_dicts()" if is_polars else "nbshare.rows(df)"
            remedy = f"{rows} for an item per row, or list(df.columns) per column"
        raise TypeError(
            f"a {kind} among the iterables gives its {parts} as items{shown}. Pass "
            f"shared={{name: ...}} for what every call needs, or {remedy}"
        )
    if gives_pairs(iterable):
        raise TypeError(
            f"a {type(iterable).__name__} gives pairs of a key and a frame as items. Pass "
            "[frame for _, frame in windows] for frames, or list(windows) for the pairs"
        )
    if isinstance(iterable, range) and iterable[sys.maxsize :]:
        raise ValueError(
            f"{iterable} has more than {sys.maxsize} items, the most of a range. Memory allows far "
            f"fewer, about 25 million per GB. Pass iter({iterable}): of an iterator, items are "
            "taken during the run"
        )


def is_table(iterable: Any) -> bool:
    """Whether an object iterates over its columns, as the data frames of pandas and polars do."""
    kind = type(iterable)
    return hasattr(kind, "columns") and (hasattr(kind, "iterrows") or hasattr(kind, "iter_rows"))


def warn_of_lengths(iterables: Sequence[Any]) -> None:
    """Warn of iterables of different lengths, by mistake or because all combinations are meant."""
    lengths = [n for n in map(known_length, iterables) if n is not None]
    if len(set(lengths)) > 1:
        counts = f"{', '.join(map(str, lengths[:-1]))} and {lengths[-1]}"
        warn(
            f"the iterables have {counts} items. The run stops after {min(lengths)}, because each "
            "call takes one item of each. For all combinations, pass nbshare.grid(x=a, y=b), with "
            "the names of the function's parameters. For pairs, cut the iterables to one length. "
            "What every call needs belongs in shared=",
            LengthsWarning,
        )


def known_length(iterable: Any) -> int | None:
    """Return the number of items, or None if it is not known in advance."""
    try:
        return len(iterable) if isinstance(iterable, Sized) else None
    except TypeError:  # as of a tqdm bar without a total
        return None


def items_of(
    iterables: Sequence[Any],
) -> tuple[list[Any], Iterator[tuple[Any, ...]] | None, int | None]:
    """Return columns that can be indexed by item, the source of others, and the number of items.

    Iterables that have a length, such as a set, are read now, if all have one. For others the
    column is None, and so is the number of items.
    """
    columns: list[Any] = [x if has_rows(x) else None for x in iterables]
    shortest = min((len(x) for x in columns if x is not None), default=None)
    are_all_sized = all(isinstance(x, Sized) for x in iterables)
    if not are_all_sized:  # lists are pickled with the others, which may give the same objects
        columns = [None if isinstance(x, list | tuple) else x for x in columns]
    without_rows = [kept_items(x) for x, c in zip(iterables, columns, strict=True) if c is None]
    others = islice(zip(*without_rows, strict=False), shortest)
    if not are_all_sized:
        return columns, others, None
    if any(x is None for x in columns):
        gone_through: list[tuple[Any, ...]] = []
        try:
            gone_through.extend(others)
        except BaseException as error:
            if is_interrupt(error):
                raise
            raise raised_by_source(error, len(gone_through))  # noqa: B904 - mostly itself
        shortest = len(gone_through)
        taken = map(list, zip(*gone_through, strict=True))
        columns = [next(taken, []) if x is None else x for x in columns]
    whole = [x if isinstance(x, ShapedItems) else x[:shortest] for x in columns]
    return whole, None, shortest or 0
