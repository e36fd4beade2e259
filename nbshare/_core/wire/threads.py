"""Divides the CPUs among workers, for libraries that start threads.

BLAS, OpenMP and similar libraries would start a thread per CPU in every worker. That many threads
slow each other down. The CPUs are therefore divided among the workers, unless the caller's
environment sets a number of threads.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from nbshare._core.functions.modules import variables_of

# Variables that libraries read when they are loaded.
VARIABLES = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
    "NUMEXPR_NUM_THREADS",
    "NUMBA_NUM_THREADS",
    "OPENCV_FOR_THREADS_NUM",
    "POLARS_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "NPROC",  # XLA, used by JAX
    "TF_NUM_INTRAOP_THREADS",
    "TF_NUM_INTEROP_THREADS",
)

# Modules that can change their number of threads later: its variable, and functions to read and set
# it.
MODULES = {
    "torch": ("OMP_NUM_THREADS", "get_num_threads", "set_num_threads"),
    "mkl": ("MKL_NUM_THREADS", "get_max_threads", "set_num_threads"),
    "numexpr": ("NUMEXPR_NUM_THREADS", "get_num_threads", "set_num_threads"),
    "cv2": ("OPENCV_FOR_THREADS_NUM", "getNumThreads", "setNumThreads"),
    "pyarrow": ("OMP_NUM_THREADS", "cpu_count", "set_cpu_count"),
    "faiss": ("OMP_NUM_THREADS", "omp_get_max_threads", "omp_set_num_threads"),
}
# The variables of the libraries that threadpoolctl supports.
BY_API = {
    "openblas": "OPENBLAS_NUM_THREADS",
    "mkl": "MKL_NUM_THREADS",
    "blis": "BLIS_NUM_THREADS",
    "openmp": "OMP_NUM_THREADS",
}


def threads_per_worker(n_cpus: int, n_workers: int, environ: Mapping[str, str]) -> int:
    """Return the number of threads per worker: from the environment, or an even share."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            return int(environ[name])
    return max(1, n_cpus // n_workers)


def thread_variables(n: int) -> dict[str, str]:
    """Return the environment variables that limit libraries to `n` threads."""
    return dict.fromkeys(VARIABLES, str(n))


def fixed_variables() -> dict[str, str]:
    """Return variables that must not change any more, because a loaded library would fail."""
    numba = _running_numba()
    return {} if numba is None else {"NUMBA_NUM_THREADS": str(numba.config.NUMBA_NUM_THREADS)}


def numbers_in(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the number of threads that an environment sets in each variable."""
    texts = {name: environ.get(name, "") for name in VARIABLES}
    return {name: int(text) for name, text in texts.items() if text.isdecimal() and int(text) > 0}


class Library(NamedTuple):
    """A loaded library whose number of threads can be read and set."""

    name: str
    variable: str
    get: Callable[[], int]
    set: Callable[[int], object]


class LibraryThreads:
    """The numbers of threads of the libraries that this worker has loaded.

    The numbers are read at each call, because an item or another library may have changed them.
    Numbers set by an initializer stay. Those set by modules during their import stay until a call
    has another share of the CPUs.
    """

    def __init__(self) -> None:
        self._numbers: Mapping[str, int] = {}
        self._initialized: dict[str, int] = {}
        self._imported: dict[str, int] = {}
        self._n_modules = 0
        self._loaded: list[Library] = []

    def limit(self, numbers: Mapping[str, int]) -> None:
        """Set the number of threads of each loaded library to its value in `numbers`."""
        if numbers != self._numbers:
            self._numbers, self._imported, self._n_modules = numbers, {}, 0
        self._look()
        for library in self._loaded:
            wanted = self._number(library)
            with suppress(Exception):  # the library refuses this number
                if wanted and library.get() != wanted:
                    library.set(wanted)

    def keep(self, *, is_initialized: bool) -> None:
        """Keep numbers that the initializer, or a module imported since, has set."""
        if not is_initialized and self._n_modules == len(sys.modules):
            return
        kept = self._initialized if is_initialized else self._imported
        self._look()
        for library in self._loaded:
            if (number := library.get()) != self._number(library):
                kept[library.name] = number

    def _look(self) -> None:
        """Search for libraries again if one may have been loaded, or Numba may have started."""
        if self._n_modules != len(sys.modules) or "numba" in sys.modules:
            self._loaded = [*loaded(self._numbers)]
            self._n_modules = len(sys.modules)

    def _number(self, library: Library) -> int | None:
        default = self._numbers.get(library.variable)
        return (self._imported | self._initialized).get(library.name, default)


def loaded(numbers: Mapping[str, int]) -> Iterator[Library]:
    """Yield the libraries whose number of threads may have changed."""
    if (numba := _running_numba()) is not None:
        most = numba.config.NUMBA_NUM_THREADS
        set_numba = lambda n: numba.set_num_threads(min(n, most))  # noqa: E731
        yield Library("numba", "NUMBA_NUM_THREADS", numba.get_num_threads, set_numba)
    for name, (variable, *functions) in MODULES.items():
        variables = variables_of(sys.modules.get(name))
        # A module that is being imported, or only has the same name, lacks the functions.
        if variables.keys() >= {*functions}:
            yield Library(name, variable, *[variables[f] for f in functions])
    # A worker starts with one thread. Only threadpoolctl could have changed that, and its import
    # takes 8 ms.
    if "threadpoolctl" in sys.modules or any(numbers.get(name) != 1 for name in BY_API.values()):
        for lib in _controllers():
            if (api := lib.internal_api) in BY_API:
                yield Library(lib.filepath, BY_API[api], lib.get_num_threads, lib.set_num_threads)


def _running_numba() -> Any:
    """Return numba if its threads are running. Reading their number would start them."""
    numba = sys.modules.get("numba")
    with suppress(Exception):  # the functions are missing, or numba is being imported
        if variables_of(numba)["threading_layer"]():
            return numba
    return None


_found: tuple[int, list[Any]] = (0, [])  # number of modules, and the libraries


def _controllers() -> list[Any]:
    """Return the libraries that threadpoolctl has found, which imports may add to."""
    global _found
    if _found[0] != len(sys.modules):
        from threadpoolctl import ThreadpoolController

        controllers = ThreadpoolController().lib_controllers
        _found = len(sys.modules), controllers
    return _found[1]
