"""The error of a worker that died, `nbshare.errors.WorkerDiedError` to users."""

from __future__ import annotations

from nbshare._core.base_error import NbshareError

try:
    from concurrent.futures.process import BrokenProcessPool
except RuntimeError:  # while the interpreter ends, an import fails, and nothing catches that
    from concurrent.futures import BrokenExecutor as BrokenProcessPool  # type: ignore[assignment]

__all__ = ["WorkerDiedError"]


class WorkerDiedError(NbshareError, BrokenProcessPool):
    """A worker process ended while it ran an item, or no worker could be started.

    The message names the item and how the worker ended, which is a signal (SIGKILL mostly means
    that memory ran out, so use fewer workers or smaller items), an exit status, a crash in compiled
    code. Other results are kept. ``retries=`` runs the item again, ``on_error="return"`` continues
    without it.

    Attributes
    ----------
    index : int
        Index of the item it was working on, -1 if it had none.

    Examples
    --------
    Which item was it?

    >>> import os
    >>> import nbshare
    >>> try:
    ...     nbshare.parallel_map(os._exit, [0])
    ... except nbshare.errors.WorkerDiedError as error:
    ...     print(error.index)
    0

    Keep the other results of a function that crashes for some items:

    >>> def crashes(x):
    ...     if x < 0:
    ...         os.abort()
    ...     return x**0.5
    >>> roots = nbshare.parallel_map(crashes, [4.0, -1.0, 9.0], on_error="return")
    >>> roots.tolist(), "SIGABRT" in str(nbshare.last_job().errors[1])
    ([2.0, None, 3.0], True)
    """

    __module__ = "nbshare.errors"

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index
