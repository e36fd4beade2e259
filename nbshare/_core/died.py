"""The error of a worker that died, public as `nbshare.errors.WorkerDiedError`."""

from __future__ import annotations

from nbshare._core.base_error import NbshareError

try:
    from concurrent.futures.process import BrokenProcessPool
except RuntimeError:  # while the interpreter ends, an import fails, and nothing catches that
    from concurrent.futures import BrokenExecutor as BrokenProcessPool  # type: ignore[assignment]

__all__ = ["WorkerDiedError"]


class WorkerDiedError(NbshareError, BrokenProcessPool):
    """A worker process ended while it ran an item, or no worker could be started.

    The message names the item and how the worker ended. SIGKILL usually means that memory ran out:
    use fewer workers or smaller items. Other results are kept. ``retries=`` runs the item again,
    ``on_error="return"`` continues without it.

    Attributes
    ----------
    index : int
        Index of the item, or -1 if the worker ran none.
    """

    __module__ = "nbshare.errors"

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index
