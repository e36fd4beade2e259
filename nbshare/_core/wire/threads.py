"""The workers' shares of the CPUs, for libraries with threads of their own.

BLAS, OpenMP and similar libraries use all CPUs, in every worker. Many times more threads than CPUs
slow all of them down. So the CPUs are divided among the workers, unless the caller's environment
sets a number.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

from nbshare._core.functions.modules import variables_of

# Libraries read them when they are loaded.
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

# Modules that can change their number later: their variable, and two functions, to read and set it.
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
    """Return the number of threads per worker."""
    for name in ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"):
        if environ.get(name, "").isdecimal() and int(environ[name]) > 0:
            return int(environ[name])
    return max(1, n_cpus // n_workers)


def thread_variables(n: int) -> dict[str, str]:
    """Return the environment variables for libraries with `n` threads."""
    return dict.fromkeys(VARIABLES, str(n))


def fixed_variables() -> dict[str, str]:
    """Return the variables that must no longer change, because a loaded library would fail."""
    numba = _running_numba()
    return {} if numba is None else {"NUMBA_NUM_THREADS": str(numba.config.NUMBA_NUM_THREADS)}


def numbers_in(environ: Mapping[str, str]) -> dict[str, int]:
    """Return the numbers of threads that an environment sets, by variable."""
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

    The numbers are read at each call, because an item, or another library, may have changed them.
    Numbers set by the initializer, or by modules during their import, stay until a call has another
    share of the CPUs.
    """

    def __init__(self) -> None:
        self._numbers: Mapping[str, int] = {}
        self._initialized: dict[str, int] = {}
        self._imported: dict[str, int] = {}
        self._n_modules = 0
        self._loaded: list[Library] = []

    def limit(self, numbers: Mapping[str, int]) -> None:
        """Set the number of threads of each loaded library as in `numbers`, before a call."""
        if numbers != self._numbers:
            self._numbers, self._imported, self._n_modules = numbers, {}, 0
        self._look()
        for library in self._loaded:
            wanted = self._number(library)
            with suppress(Exception):  # it refuses that number
                if wanted and library.get() != wanted:
                    library.set(wanted)

    def keep(self, *, is_initialized: bool) -> None:
        """Keep the numbers set by the initializer, or by a module imported since."""
        if not is_initialized and self._n_modules == len(sys.modules):
            return
        kept = self._initialized if is_initialized else self._imported
        self._look()
        for library in self._loaded:
            if (number := library.get()) != self._number(library):
                kept[library.name] = number

    def _look(self) -> None:
        """Search for libraries again, if some may have been loaded, or Numba may have started."""
        if self._n_modules != len(sys.modules) or "numba" in sys.modules:
            self._loaded = [*loaded(self._numbers)]
            self._n_modules = len(sys.modules)

    def _number(self, library: Library) -> int | None:
        default = self._numbers.get(library.variable)
        return (self._imported | self._initialized).get(library.name, default)


def loaded(numbers: Mapping[str, int]) -> Iterator[Library]:
    """Iterate over the libraries whose number of threads may have changed."""
    if (numba := _running_numba()) is not None:
        most = numba.config.NUMBA_NUM_THREADS
        set_numba = lambda n: numba.set_num_threads(min(n, most))  # noqa: E731
        yield Library("numba", "NUMBA_NUM_THREADS", numba.get_num_threads, set_numba)
    for name, (variable, *functions) in MODULES.items():
        variables = variables_of(sys.modules.get(name))
        # A module that is being imported, or merely has the name, lacks the functions.
        if variables.keys() >= {*functions}:
            yield Library(name, variable, *[variables[f] for f in functions])
    # A worker starts with one thread. Only threadpoolctl could have changed that, and its import
    # takes 8 ms.
    if "threadpoolctl" in sys.modules or any(numbers.get(name) != 1 for name in BY_API.values()):
        for lib in _controllers():
            if (api := lib.internal_api) in BY_API:
                yield Library(lib.filepath, BY_API[api], lib.get_num_threads, lib.set_num_threads)


def _running_numba() -> Any:
    """Return numba if its threads run, because reading their number would start them."""
    numba = sys.modules.get("numba")
    with suppress(Exception):  # the functions are missing, or it is being imported
        if variables_of(numba)["threading_layer"]():
            return numba
    return None


_found: tuple[int, list[Any]] = (0, [])  # number of modules, and the libraries


def _controllers() -> list[Any]:
    """Return threadpoolctl's libraries. Imports of modules load more."""
    global _found
    if _found[0] != len(sys.modules):
        from threadpoolctl import ThreadpoolController

        controllers = ThreadpoolController().lib_controllers
        _found = len(sys.modules), controllers
    return _found[1]
