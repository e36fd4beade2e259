"""Suggests the intended name for a wrong attribute or argument. Imported only then."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from nbshare._core.messages import counted

# Options of other libraries, and their replacements in nbshare.
_OPTIONS = {
    "use max_workers= (default: all CPUs that this process may use)": (
        "cores cpus n_cpus n_jobs n_threads n_workers ncores ncpus nproc nprocs num_cpus"
        " num_threads num_workers processes threads workers"
    ),
    "use chunksize= (default: adapted to the measured time)": "batch_size chunk_size",
    "use progress= (a label, False, or a tqdm class)": (
        "bar desc description disable label leave name progress_bar show_progress title"
        " tqdm_class unit verbose"
    ),
    "leave it out. The number of items is known or counted": "total",
    "use shared={name: value}": "args common constants kwargs kwds shared_objects",
    "use seed= (each call then gets its own rng=)": "random_state rng",
    "use retries=": "max_retries",
    'use on_error="return" to continue after a failure': (
        "errors ignore_errors raise_errors raise_on_error return_exceptions skip_errors"
    ),
    "use until=, a function of the results so far": "early_stopping stop stop_when",
    "use checkpoint=, a folder for results": "cache cache_dir path resume restart save",
    "use initializer=": "init setup",
    'use out= (an array, or "list")': "dtype output return_type",
    'use backend= (a distributed.Client, "ray" or an executor)': (
        "client cluster executor pool scheduler"
    ),
    'use plot= ("line", "image" or "hist")': "live live_plot visualize",
    "use map_async(..., detach=True)": "detach",
    "use map_async(...), which returns a job immediately": "asynchronous background block wait",
    "pass it with the path: checkpoint=nbshare.Checkpoint(path, ...)": (
        "durability if_changed on_full version"
    ),
    "pass it with the kind: plot=nbshare.LivePlot(kind, ...)": "cmap limits scale xlabel ylabel",
    "results are in the order of the items. For each as it arrives, iterate over map_async(...), "
    "or over map_async(...).in_order()": "lazy ordered return_as",
    "use map_async(...).add_done_callback": "callback error_callback",
    "use max_tasks_per_child=": "maxtasksperchild worker_lifespan",
    "leave it out. Arrays are in shared memory, and workers start automatically": (
        "max_nbytes mmap_mode mp_context start_method temp_folder"
    ),
}
# Options of Matplotlib and of libraries that use it, and those of a LivePlot.
_OF_PLOTS = {
    'use scale="log"': "log loglog logx logy norm xscale yscale",
    "use limits=(low, high)": "clim range vmax vmin xlim ylim",
    "use cmap=": "colormap palette",
    "use kind=, with a function that draws: LivePlot(lambda ax, partial: ax.plot(partial))": (
        "alpha c color fmt linestyle linewidth ls lw marker style"
    ),
}
_BY_NAME = [
    {name: advice for advice, names in table.items() for name in names.split()}
    for table in (_OPTIONS, _OF_PLOTS)
]
_ITEMS = ("items", "item", "iterable", "iterables", "inputs", "tasks", "iterable_of_args")
# Public names of nbshare, and the names of the same things in other libraries.
_ELSEWHERE = {
    "parallel_map": "Parallel Pool delayed map parmap pmap process_map run starmap thread_map",
    "map_async": "amap apply_async as_completed imap imap_unordered starmap_async",
    "Executor": "ProcessPoolExecutor ThreadPoolExecutor get_reusable_executor submit",
    "share": "Array Manager RawArray SharedMemory array asarray put shared_memory",
    "zeros": "Value",
    "SharedLock": "Lock RLock",
    "RingBuffer": "Queue SimpleQueue",
    "Checkpoint": "Memory cache",
    "LivePlot": "plot",
    "grid": "ParameterGrid meshgrid product",
    "rows": "iterrows itertuples",
    "report": "progress set_progress tqdm trange",
    "doctor": "cpu_count show_versions",
    # methods of an Executor, a RingBuffer or a SharedLock
    "submit": "apply apply_async",
    "map": "imap imap_unordered map_async starmap starmap_async",
    "put": "append push write",
    "stats": "empty full qsize",
    "get": "load pop read value",
    "acquire": "lock",
    "release": "unlock",
    "terminate_workers": "kill stop terminate",
    "shutdown": "close join stop terminate",
    # attributes of a Job
    "cancel": "abort close interrupt kill shutdown stop terminate",
    "wait": "join",
    "done": "finished is_done ready",
    "state": "status",
    "n_done": "completed progress",
    "elapsed_s": "duration elapsed time",
    "partial": "current data output values",
}


def closest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to a name, or None."""
    from difflib import get_close_matches

    names = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), names, 1, 0.7)
    return names[found[0]] if found else None


_KINDS = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.VAR_POSITIONAL,
    inspect.Parameter.KEYWORD_ONLY,
    inspect.Parameter.VAR_KEYWORD,
)


def missing(owner: str, name: str, known: Iterable[str], more: str = "") -> str:
    """Return the message about a missing attribute of a module or object, with a suggestion."""
    text = f"{owner} has no attribute {name!r}"
    if name[0] != "_":  # tools look for many private names
        elsewhere = (x for x, theirs in _ELSEWHERE.items() if x in known and name in theirs.split())
        meant = next(elsewhere, None) or closest(name, known)
        text += f"; did you mean {meant!r}?" if meant else more
    return text


def refuse_others(
    function: str,
    others: Iterable[str],
    known: Sequence[str],
    func: Any = None,
    iterables: Sequence[Any] = (),
) -> None:
    """Raise TypeError for an unknown option of a call, with a suggestion.

    Parameters
    ----------
    function
        Name of the public function.
    others, known
        Names of the unknown options, and of the function's own.
    func, iterables
        The user's function and the items, if the call has them.
    """
    for name in others:
        takes, (of_runs, of_plots) = _parameters(func), (each.get(name, "") for each in _BY_NAME)
        to_share = f"to pass it to your function, use shared={{{name!r}: ...}}"
        if iterables and name in takes and name != "rng":
            advice = to_share
        elif "shared" in known and of_runs:
            advice = of_runs
        elif found := next((x for x in (of_plots, of_runs) if _names_one(x, known)), ""):
            advice = found
        elif not iterables and func is not None and (name in takes or name in _ITEMS):
            given = ", ".join(takes) if name in takes else "items"
            advice = f"pass items by position: {function}({_name(func)}, {given})"
            if len(takes) > 1:
                advice += f", and what all calls need in shared={{{takes[-1]!r}: ...}}"
        elif close := closest(name, known):
            advice = f"did you mean {close}=?"
        elif "shared" in known and (not takes or takes[-1][:2] == "**"):
            advice = to_share
        elif "shared" in known:
            advice = f"its options are {', '.join(known)}. To pass it to {_name(func)}(), which "
            advice += f"does not take it, add a parameter, and use shared={{{name!r}: ...}}"
        else:
            advice = f"it takes {', '.join(known)}" if known else "it takes none"
        raise TypeError(f"{function}() has no argument {name}=: {advice}")


def _names_one(advice: str, known: Iterable[str]) -> bool:
    """Return whether some advice names one of the known options."""
    return any(f"use {name}=" in advice for name in known)


def misfit(func: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """Return the mistake in the arguments of a public call, or "" if they fit."""
    signature = inspect.signature(func)
    parameters = [*signature.parameters.values()]
    unnamed = [p.name for p in parameters if p.kind is p.POSITIONAL_ONLY and p.default is p.empty]
    try:
        bound = signature.bind(*args, **kwargs).arguments
    except TypeError:
        pass
    else:
        if bound.keys() >= {*unnamed}:  # Python 3.13.0 takes them by name if there is a **kwargs
            return ""
    name = func.__qualname__.removesuffix(".__init__")
    parameters = [p for p in parameters if p.name != "self"]
    n_given = len(args) - (len(signature.parameters) - len(parameters))
    return next(_misfits(name, parameters, n_given, kwargs), "")


def _misfits(
    name: str, parameters: Sequence[inspect.Parameter], n: int, kwargs: Mapping[str, Any]
) -> Iterator[str]:
    """Yield the mistakes in `n` positional arguments and the keyword arguments `kwargs`."""
    kinds = {kind: [p.name for p in parameters if p.kind is kind] for kind in _KINDS}
    first, both, star, last, stars = kinds.values()
    needed = [p.name for p in parameters if p.default is p.empty and p.name not in star + stars]
    missing = [each for each in needed if each not in (first + both)[:n]]
    if unnamed := [each for each in missing if each in first and each in kwargs]:
        yield f"{name}() takes {unnamed[0]} by position: {name}({', '.join(first)}, ...)"
    if not stars:
        try:
            refuse_others(name, [each for each in kwargs if each not in both + last], both + last)
        except TypeError as error:
            yield str(error)
    if n > len(first + both) and not star:
        if not first + both:
            named = [f"{each}=..." for each in last or (stars and ["a", "b"])]
            how = f"its arguments by name: {name}({', '.join(named)})" if named else "no arguments"
        else:
            how = f"{', '.join(first + both)}" + (
                f", and by name {', '.join(last)}" if last else ""
            )
        yield f"{name}() takes {how}, but {counted(n, 'argument')} came by position"
    if twice := [each for each in (first + both)[:n] if each in kwargs]:
        yield f"{name}() got {twice[0]} twice: by position, and as {twice[0]}="
    shown = [f"{each}=..." if each in last else each for each in needed]
    shown[len(first + both) :] = [*(f"*{each}" for each in star), *shown[len(first + both) :]]
    shown += ["..."] if len(parameters) > len(shown) else []
    missing = [each for each in missing if each not in kwargs]
    yield f"{name}() needs {' and '.join(missing)}: {name}({', '.join(shown)})"


def _parameters(func: Any) -> list[str]:
    """Return the names of the parameters of a function, or an empty list if unknown."""
    try:
        parameters = inspect.signature(func).parameters.values()
        return ["**" * (p.kind is p.VAR_KEYWORD) + p.name for p in parameters]
    except Exception:  # noqa: BLE001 - anything may have been passed, and annotations may fail
        return []


def _name(func: Any) -> str:
    return str(getattr(func, "__name__", "func"))
