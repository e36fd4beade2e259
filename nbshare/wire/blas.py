"""Threads inside workers: those of BLAS, OpenMP and their like.

Such a library takes all CPUs by itself, and so would each of the workers: many times more threads
than CPUs, which makes all of them slow. So a worker's share is the CPUs over the workers, unless
the caller's environment says how many it wants.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["ONE_THREAD", "limit_threads", "thread_variables", "threads_per_worker"]

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
