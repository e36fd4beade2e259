"""Names of options that a function does not have, and what to write instead."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nbshare._core.functions.reference import closest

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
