"""What workers take over from the caller: where it stands, what it has set, a share of its CPUs.

BLAS, OpenMP and their like take all CPUs by themselves, and so would each of the workers: many
times more threads than CPUs, which makes all of them slow. So a worker's share is the CPUs over the
workers, unless the caller's environment says how many it wants.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Mapping
from itertools import islice
from typing import Any, NamedTuple

from nbshare.functions.files import imported_files
from nbshare.functions.imports import overridden_names

__all__ = [
    "ONE_THREAD",
    "Context",
    "current_context",
    "encoded_environ",
    "limit_threads",
    "settings",
    "thread_variables",
    "threads_per_worker",
]


class Context(NamedTuple):
    """What a worker takes over from its caller."""

    # For a worker's life, since modules are imported under them: a change needs new workers.
    environ: dict[str, str]
    path: list[str]
    # For a call: pickled import path, working directory, warning filters, umask, affinity.
    settings: bytes


_last: tuple[Any, Context] = None, Context({}, [], b"")  # what was found, and what it means


def current_context() -> Context:
    """Return the caller's context of this moment."""
    global _last
    managers: Any = sys.modules.get("multiprocessing.managers")  # whose proxies need the key
    found = {
        "environ": encoded_environ(),
        **settings(),
        "files": imported_files(),
        "overridden": overridden_names(),
        "authkey": managers and bytes(managers.process.current_process().authkey),
    }
    before, context = _last
    if found != before:
        context = _context(found)
        _last = found, context
    return context


def _context(found: dict[str, Any]) -> Context:
    # '' means the working directory of the moment; workers are told which one that is.
    path = [os.path.abspath(p) if p == "" else p for p in found["path"]]
    # A category defined in the notebook does not exist in a worker.
    filters = [f for f in found["warnings"] if getattr(f[2], "__module__", "") != "__main__"]
    settings = {**found, "path": path, "warnings": filters}
    del settings["environ"]
    return Context(dict(os.environ), path, pickle.dumps(settings))


def settings() -> dict[str, Any]:
    """Return what is taken over, as it is in this process."""
    return {
        "path": list(sys.path),
        "umask": _umask(),
        "warnings": list(warnings.filters),
        "cwd": _cwd(),
        "affinity": _affinity(),
    }


def encoded_environ() -> dict[Any, Any]:
    """Return a copy of the environment as the system has it: decoding it would take 30 µs."""
    return dict(getattr(os.environ, "_data", os.environ))


def _cwd() -> str | None:
    try:
        return os.getcwd()
    except OSError:
        return None


def _affinity() -> set[int] | None:
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None


_umasks = [0o077]  # the one of the last look; before the first, one that opens nothing


def _umask() -> int:
    # It can only be read by setting it, so it is set to what it was at the last look: nobody sees
    # that, if it has not changed. If it has, what was found is set again, all in one call of C,
    # which neither another thread of Python nor an interrupt comes into.
    guess = _umasks[-1:]
    guess.extend(map(os.umask, islice(guess, 2)))
    _umasks[0] = guess[1]
    return guess[1]


# Libraries read them when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
)

# What workers and their server begin with: a process with several threads must not fork.
ONE_THREAD = dict.fromkeys(VARIABLES, "1")

_n_now = 1  # threads of the libraries that are loaded


def threads_per_worker(n_cpus: int, n_workers: int, environ: Mapping[str, str]) -> int:
    """Return the threads that each of the workers may have."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            return int(environ[name])
    return max(1, n_cpus // n_workers)


def thread_variables(n: int) -> dict[str, str]:
    """Return the variables of a process whose libraries are to have `n` threads when loaded."""
    return dict.fromkeys(VARIABLES, str(n))


def limit_threads(n: int) -> None:
    """Have at most `n` threads in the libraries that are loaded; in a worker."""
    global _n_now
    if n != _n_now:
        from threadpoolctl import threadpool_limits  # late: mostly there is nothing to change

        threadpool_limits(n)
        _n_now = n
