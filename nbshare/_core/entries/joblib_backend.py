"""The joblib backend that runs the tasks of Parallel on nbshare's workers."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import numpy.typing as npt
from joblib import register_parallel_backend
from joblib._parallel_backends import AutoBatchingMixin, FallbackToBackend, SequentialBackend
from joblib.parallel import ParallelBackendBase

from nbshare._core.arrays.share import share
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.entries.executor import Executor
from nbshare._core.source.changes import warn_of_changes
from nbshare._core.system import processes
from nbshare._core.wire import is_worker
from nbshare._core.wire.threads import LibraryThreads, fixed_variables, numbers_in, thread_variables

__all__ = ["NbshareBackend", "register"]

LARGE = 1 << 20  # bytes of an array that is copied once for all tasks (joblib's own `max_nbytes`)


def register() -> None:
    """Register the backend with joblib, in this process."""
    register_parallel_backend("nbshare", NbshareBackend)


def run_batch(batch: Callable[[], Any], n_threads: int | None) -> Any:
    """Run a batch of calls in a worker."""
    register()  # a call of Parallel within a task may name the backend
    if n_threads is not None:
        variables = thread_variables(n_threads)
        os.environ.update(variables | fixed_variables())
        LibraryThreads().limit(numbers_in(variables))
    return batch()


class NbshareBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """A joblib backend. `joblib.parallel.ParallelBackendBase` describes its methods."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None or is_worker():
            return 1
        return n_jobs if n_jobs > 0 else max(processes.usable_cpus() + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **given: Any) -> int:
        self._n_workers = self.effective_n_jobs(n_jobs)
        if self._n_workers == 1:
            raise FallbackToBackend(SequentialBackend(nesting_level=self.nesting_level))
        self.parallel = parallel
        given = {**self.backend_kwargs, **given}
        self._initializer = given.get("initializer"), given.get("initargs", ())
        self._open()
        return self._n_workers

    def _open(self) -> None:
        self._executor = Executor(self._n_workers, None, *self._initializer)
        self._placed: dict[int, tuple[npt.NDArray[Any], SharedArray]] = {}

    def submit(
        self, func: Any, callback: Callable[[Future[Any]], object] | None = None
    ) -> Future[Any]:
        warn_of_changes(*(f for f, _, _ in func.items))
        func.items = [
            (f, tuple(map(self._place, args)), {k: self._place(v) for k, v in kwargs.items()})
            for f, args, kwargs in func.items
        ]
        future = self._executor.submit(run_batch, func, self.inner_max_num_threads)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def _place(self, value: Any) -> Any:
        """Return the shared copy of a large array, one for all tasks."""
        if type(value) is not np.ndarray or value.dtype.hasobject or value.nbytes < LARGE:
            return value
        # The array is kept, so that its id is not reused.
        if id(value) not in self._placed:
            self._placed[id(value)] = value, share(value, mode="r")
        return self._placed[id(value)][1]

    def retrieve_result_callback(self, future: Future[Any]) -> Any:
        return future.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        self._executor.terminate_workers()
        if ensure_ready:
            self._open()

    def terminate(self) -> None:
        self._executor.shutdown(wait=False)
        self._placed = {}
        self.reset_batch_stats()

    def get_nested_backend(self) -> tuple[Any, int | None]:
        return SequentialBackend(nesting_level=(self.nesting_level or 0) + 1), None
