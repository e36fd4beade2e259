"""The error of a worker that died; `nbshare.errors.WorkerDiedError` is its name for users."""

from __future__ import annotations

from nbshare.errors import NbshareError

try:
    from concurrent.futures.process import BrokenProcessPool
except RuntimeError:  # while the interpreter ends, when nobody can catch what was never imported
    from concurrent.futures import BrokenExecutor as BrokenProcessPool  # type: ignore[assignment]

__all__ = ["WorkerDiedError"]


class WorkerDiedError(NbshareError, BrokenProcessPool):
    """A worker process ended in the middle of an item, or none could be started.

    Attributes
    ----------
    index : int
        Index of the item it was working on; -1 if it had none.
    """

    def __init__(self, message: str, index: int = -1) -> None:
        super().__init__(message)
        self.index = index


WorkerDiedError.__module__ = NbshareError.__module__
