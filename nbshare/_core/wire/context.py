"""The settings that workers take over from the caller, and their share of the CPUs.

BLAS, OpenMP and similar libraries use all CPUs, in every worker. That is many times more threads
than CPUs, which slows all of them down. So the CPUs are divided among the workers, unless the
caller's environment sets a number.
"""

from __future__ import annotations

import decimal
import os
import pickle
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from nbshare._core.functions.files import imported_files, origins
from nbshare._core.functions.imports import overridden_names
from nbshare._core.system import processes, room

NamedFilter = tuple[Any, ...]  # of `warnings.filters`, with the names of its category


class Context(NamedTuple):
    """The settings that a worker takes over from its caller."""

    # Fixed for a worker, since modules are imported under them, so a change needs new workers.
    environ: dict[str, str]
    path: list[str]
    files: dict[str, str]  # see `functions.files.Origins`
    argv: list[str]
    # For a call, pickled: these settings, and those of `settings`.
    settings: bytes
    sources: bytes | None = None  # the files of another machine, see `functions.freshness`


_last: tuple[Any, Context] = (
    None,
    Context({}, [], {}, [], b""),
)  # the settings, raw and as a Context


def current_context() -> Context:
    """Return the caller's present context."""
    global _last
    managers: Any = sys.modules.get("multiprocessing.managers")  # their proxies need the key
    environ = encoded_environ()
    own = settings()
    path, files = origins(own["path"], own["cwd"])
    found = {
        **own,
        "path": path,
        "files": {**imported_files(), **files},
        "overridden": overridden_names(),
        "authkey": managers and bytes(managers.process.current_process().authkey),
    }
    before, context = _last
    if (environ, found) != before:
        context = Context(dict(os.environ), path, files, own["argv"], pickle.dumps(found))
        _last = (environ, found), context
    return context


def settings() -> dict[str, Any]:
    """Return these settings as they are in this process."""
    return {
        "path": list(sys.path),
        "umask": processes.umask(),
        "warnings": _named(*_present_filters()),
        "cwd": cwd(),
        "affinity": room.affinity(),
        "argv": [*map(str, getattr(sys, "argv", ()))],  # an embedded interpreter has none
        "recursion_limit": sys.getrecursionlimit(),
        "errstate": np.geterr(),
        "decimal": _decimal_context(),
    }


# If Python runs without the GIL, `catch_warnings` changes those of its thread only.
_present_filters: Callable[[], Sequence[Any]] = getattr(
    warnings, "_get_filters", lambda: warnings.filters
)


def _decimal_context() -> tuple[Any, ...]:
    """Return the arguments of a new context like the present one, without flags."""
    _, (*before, _, traps) = decimal.getcontext().__reduce__()
    return (*before, [], traps)


def set_arithmetic(values: Mapping[str, Any]) -> None:
    """Set the recursion limit, and how NumPy and decimal compute."""
    if values["recursion_limit"] != sys.getrecursionlimit():
        with suppress(RecursionError):  # it is lower than what runs here
            sys.setrecursionlimit(values["recursion_limit"])
    errstate = values["errstate"]
    if np.geterrcall() is None:  # the caller's stays there
        errstate = {
            kind: "warn" if how in ("call", "log") else how for kind, how in errstate.items()
        }
    if errstate != np.geterr():
        np.seterr(**errstate)
    decimal.setcontext(decimal.Context(*values["decimal"]))


def _name_of(category: Any) -> tuple[str, str]:
    """Return a class by name, so that a worker need not import a library for a filter."""
    return category.__module__, category.__qualname__


@lru_cache(2)
def _named(*filters: tuple[Any, ...]) -> tuple[NamedFilter, ...]:
    return tuple((*f[:2], _name_of(f[2]), *f[3:]) for f in filters)


def filter_warnings(named: tuple[NamedFilter, ...]) -> None:
    """Set warning filters, but those of categories whose modules have not been imported here."""
    filters = _filters(named)
    if warnings.filters != filters:
        warnings.filters[:] = filters  # type: ignore[index]
        warnings._filters_mutated()  # type: ignore[attr-defined]


def _filters(named: tuple[NamedFilter, ...]) -> list[Any]:
    filters = []
    for action, text, (module, name), *where in named:
        category: Any = sys.modules.get(module)
        for part in name.split("."):
            category = getattr(category, part, None)
        if category is not None:
            filters.append((action, text, category, *where))
    return filters


def encoded_environ() -> dict[Any, Any]:
    """Return a copy of the encoded environment, because decoding it would take 30 µs."""
    return dict(getattr(os.environ, "_data", os.environ))


def cwd() -> str | None:
    """Return the working directory, or None if it was removed."""
    try:
        return os.getcwd()
    except OSError:
        return None


# Libraries read them when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

_n_now = 1  # threads of the loaded libraries


def threads_per_worker(n_cpus: int, n_workers: int, environ: Mapping[str, str]) -> int:
    """Return the number of threads per worker."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            return int(environ[name])
    return max(1, n_cpus // n_workers)


def thread_variables(n: int) -> dict[str, str]:
    """Return the environment variables for libraries with `n` threads."""
    return dict.fromkeys(VARIABLES, str(n))


def limit_threads(n: int) -> None:
    """Limit the loaded libraries to `n` threads, in a worker."""
    global _n_now
    if n != _n_now:
        from threadpoolctl import threadpool_limits  # late, as usually there is nothing to change

        threadpool_limits(n)
        _n_now = n
