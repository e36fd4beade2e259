"""What a job is about: one call, or a stream of calls whose items come by and by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from nbshare.engine.call import State
from nbshare.engine.request import Request

if TYPE_CHECKING:
    from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats

__all__ = ["Run"]


class Run(Protocol):
    """A map that runs, as its job sees it; may be read from any thread."""

    @property
    def request(self) -> Request:
        """What was asked for."""

    @property
    def state(self) -> State:
        """Where it stands."""

    @property
    def error(self) -> BaseException | None:
        """What it has failed with."""

    @property
    def is_over(self) -> bool:
        """Whether the end has come."""

    @property
    def n_tasks(self) -> int | None:
        """Number of items; None as long as nobody knows."""

    @property
    def n_done(self) -> int:
        """Number of items that are through."""

    @property
    def n_ready(self) -> int:
        """Number of workers at work that have started."""

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Failures by item."""

    def present(self) -> npt.NDArray[np.bool_]:
        """Return which results are there."""

    def partial(self) -> Any:
        """Return the results that are there."""

    def final(self) -> Any:
        """Return all results."""

    def stats(self) -> list[WorkerStats]:
        """Return what the workers did."""

    def activity(self) -> list[WorkerActivity]:
        """Return what the workers do at this moment."""

    def stages(self) -> list[StageStats]:
        """Return what the stages of a pipeline did; of a map nothing."""

    def item(self, i: int) -> tuple[Any, ...]:
        """Return the positional arguments of an item."""

    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield what has come since the last time; for one reader."""

    def fill_out(self) -> None:
        """Copy new results to the plain array that the caller gave."""

    def start(self) -> None:
        """Begin."""

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it has come."""

    def stop(self) -> None:
        """End it early."""

    def let_go(self) -> None:
        """Take note that nobody will ask for anything more."""

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back in a thread of its own when it is over, or now if it is."""
