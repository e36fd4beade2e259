"""What the drawing room sees of a map, and what a thing that draws must offer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from nbshare.engine.activity import WorkerActivity
    from nbshare.engine.stats import StageStatistics, WorkerStats


State: TypeAlias = Literal["starting", "running", "done", "stopped", "interrupted", "failed"]

LIVE: tuple[State, ...] = ("starting", "running")
NEVER_S = 3600.0  # "no need to call again soon": long, and still a number a wait can take


class JobView(Protocol):
    """A running map as seen by everything that draws: it is read, and ended by its button."""

    @property
    def n_tasks(self) -> int | None:
        """Tasks in all; None if nobody knows yet."""

    @property
    def n_done(self) -> int:
        """Results that are there; cheap to read, never goes down."""

    @property
    def n_workers(self) -> int:
        """Workers wanted."""

    @property
    def n_ready(self) -> int:
        """Workers started and running now."""

    @property
    def state(self) -> State:
        """Where the map stands."""

    @property
    def elapsed_s(self) -> float:
        """Seconds from its beginning until now, or its end."""

    @property
    def label(self) -> str:
        """What the map is called in front of the user; may be empty."""

    @property
    def inputs(self) -> Any:
        """The items, if there is one sequence or array of them; else None."""

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """The failures so far, by the index of their items."""

    @property
    def activity(self) -> Sequence[WorkerActivity]:
        """What each worker is doing at this moment."""

    @property
    def stats(self) -> Sequence[WorkerStats]:
        """What each worker has done with its time."""

    @property
    def stages(self) -> Sequence[StageStatistics]:
        """What each stage of a pipeline has done so far; empty for a map."""

    @property
    def present(self) -> NDArray[np.bool_]:
        """A fresh copy: which results are there."""

    def partial(self) -> np.ma.MaskedArray[Any, Any] | list[Any] | None:
        """Return the results so far: a masked array without a copy, a list, or None before any."""

    def done(self) -> bool:
        """Whether it is over."""

    def add_done_callback(self, function: Callable[[Any], object]) -> None:
        """Have a function called in another thread when it is over."""

    def stop(self) -> None:
        """End the map early; results that are there are kept."""

    def interrupt(self) -> None:
        """End the map early on behalf of the user's interrupt."""


class Drawer(Protocol):
    """Something that shows a job."""

    def draw(self, *, final: bool) -> float:
        """Show the present state; return the seconds until the next call is wanted."""


class CannotDrawError(Exception):
    """These results do not suit the plot; the message tells the user what would."""
