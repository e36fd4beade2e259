"""The interface of a run that its job uses."""

from __future__ import annotations

import _thread
import traceback
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from nbshare._core.engine.request import Request
from nbshare._core.interrupts import start_thread
from nbshare._core.system import waiting

if TYPE_CHECKING:
    from nbshare._core.engine.results import Results
    from nbshare._core.engine.stats import Fit, StageStats, WorkerActivity, WorkerStats
    from nbshare._core.wire.board import Board


EndState = Literal["done", "stopped", "failed"]
RunState = Literal["starting", "running"] | EndState


class Run(ABC):
    """The run of a job, in this process (`OwnRun`) or in another process.

    Attributes
    ----------
    request : Request
        The checked arguments.
    error : BaseException or None
        The error that ended the run.
    stored_in : str
        Path of the run's checkpoint, empty without one.
    is_detached : bool
        Whether the run continues if this process ends.
    has_processes : bool
        Whether worker processes of this process run the items, so that threads could run them
        instead.
    is_enough : bool
        Whether ``until=`` has stopped the run because the results are enough. The run then counts
        as done.
    hints : list of str
        Advice on large inputs that could take less memory or time.

    Notes
    -----
    Any thread may read attributes, and call `await_end`, `call_when_over` and `stop`.
    """

    def __init__(self, request: Request) -> None:
        self.request = request
        self.is_enough = False
        self.error: BaseException | None = None
        self._ended_as: EndState | None = None  # None until its end
        self.stored_in = ""
        self.is_detached = self.has_processes = False
        self.hints: list[str] = []
        # A raw lock, because an interrupt inside the Python code of threading would break its
        # locks.
        self._over = _thread.allocate_lock()
        self._over.acquire()
        self._callbacks: deque[Callable[[], object]] = deque()

    # -------------------------------------------------------------------- in all runs

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether an item is running or has run."""

    @property
    @abstractmethod
    def n_items(self) -> int | None:
        """Number of items, or None while it is unknown."""

    @property
    @abstractmethod
    def n_done(self) -> int:
        """Number of items that are done or have failed."""

    @property
    @abstractmethod
    def errors(self) -> Mapping[int, BaseException]:
        """Failures by item."""

    @abstractmethod
    def present(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if its result is finished."""

    @abstractmethod
    def partial(self) -> Any:
        """Return the finished results."""

    @abstractmethod
    def final(self) -> Any:
        """Return all results."""

    @abstractmethod
    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results since the previous call. For one reader."""

    @abstractmethod
    def item(self, i: int) -> tuple[Any, ...]:
        """Return the arguments of an item. Raise LookupError if they are not kept."""

    @abstractmethod
    def start(self) -> None:
        """Start the run."""

    @abstractmethod
    def stop(self, error: BaseException | None = None) -> None:
        """Stop the run early, with an error if one is given."""

    # ------------------------------------------------------------------------ its end

    @property
    def state(self) -> RunState:
        """State of the run: "starting", "running", or how it ended."""
        return self._ended_as or ("running" if self.has_begun else "starting")

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self._ended_as is not None

    def await_end(self, timeout_s: float) -> bool:
        """Wait for the end of the run without helping. Return whether the run is over."""

        def over_within(seconds: float) -> bool:
            return self._over.acquire(timeout=seconds)

        if not self.is_over and waiting.interruptible(over_within, timeout_s):
            self._over.release()
        return self.is_over

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call a function when the run is over, in a separate thread if possible."""
        self._callbacks.append(callback)
        if self.is_over:  # whichever thread removes the callback calls it
            self._call_back()

    def _end(self, state: EndState) -> None:
        """Mark the end of the run and wake all waiting threads. Called once."""
        self._ended_as = state
        self._over.release()
        self._call_back()

    def _call_back(self) -> None:
        while self._callbacks:
            with suppress(IndexError):
                callback = self._callbacks.popleft()
                try:
                    start_thread(_call_safely, callback)
                except RuntimeError:  # no more threads are allowed, or the interpreter is ending
                    _call_safely(callback)

    # --------------------------------------------------------------- only in some runs

    @property
    def age_s(self) -> float:
        """Age of the run when its job was created, in seconds."""
        return 0.0

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end of the run and help to reach it. Return whether the run is over."""
        return self.await_end(timeout_s)

    def stats(self) -> list[WorkerStats]:
        """Return the stats of the workers."""
        return []

    def durations(self) -> list[int]:
        """Return the histogram of durations, empty if unknown."""
        return []

    def activity(self) -> list[WorkerActivity]:
        """Return the current activity of each worker."""
        return []

    def loading_s(self) -> float:
        """Return how many seconds a worker has been loading the function, 0.0 if none is."""
        return 0.0

    def fit(self) -> Fit | None:
        """Return how many workers fit into memory if fewer than allowed, else None."""
        return None

    def retried(self) -> npt.NDArray[np.int64]:
        """Return the indices of items that failed and were run again."""
        return np.zeros(0, np.int64)

    def stages(self) -> list[StageStats]:
        """Return the stats of a pipeline's stages."""
        return []

    @property
    def n_restored(self) -> int:
        """Number of items that were restored from a checkpoint."""
        return 0

    def gave_none(self) -> bool:
        """Return whether the first results are None."""
        return False

    def drew(self) -> tuple[str, int]:
        """Return which items drew global random numbers, in words, and from which generators."""
        return "", 0

    def halt(self) -> None:  # noqa: B027 - most do nothing
        """Start no further items, and let running items finish."""

    def fill_out(self) -> None:  # noqa: B027 - most do nothing
        """Copy new results to the plain array that the caller passed as ``out=``."""

    @property
    def is_reduced(self) -> bool:
        """Whether ``reduce=`` combines all results into one value."""
        return self.request.reduce is not None

    def folded(self) -> tuple[int, Any]:
        """Return the number of items in the partial value of ``reduce=``, and the value."""
        return self.n_done, self.partial()

    def load_ahead(self) -> bool:
        """Unpickle results that have arrived. Return whether there were any."""
        return False

    def release(self) -> None:  # noqa: B027 - most do nothing
        """Release the run, because its job was deleted, and with it the last reader."""


class OwnRun(Run):
    """The common part of `Call` and `Pipe`, the runs of this process.

    Attributes
    ----------
    board, results : Board, Results
        The board and results of the run, or of a pipeline's last stage.
    """

    def __init__(self, request: Request, board: Board, results: Results) -> None:
        super().__init__(request)
        self.board, self.results = board, results

    @property
    def n_done(self) -> int:
        """Number of items that are done or have failed."""
        return self.board.n_done()

    @property
    def n_restored(self) -> int:
        """Number of items that were restored from a checkpoint."""
        return self.board.n_skipped

    def note_restored(self, items: npt.NDArray[np.int64]) -> None:
        """Record the items that were restored from a checkpoint."""
        self.board.n_skipped += len(items)

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Failures by item."""
        return self.results.errors

    def present(self) -> npt.NDArray[np.bool_]:
        """Return a flag per item, True if its result is finished."""
        return self.board.present()

    def partial(self) -> Any:
        """Return the finished results."""
        return self.results.partial()

    def final(self) -> Any:
        """Return all results."""
        return self.results.final()

    def gave_none(self) -> bool:
        """Return whether the first results are None."""
        return self.results.are_none()

    def fill_out(self) -> None:
        """Copy new results to the plain array that the caller passed as ``out=``."""
        self.results.output.fill_out()

    def load_ahead(self) -> bool:
        """Unpickle results that have arrived. Return whether there were any."""
        return self.results.load_ahead()


def _call_safely(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's
        traceback.print_exc()
