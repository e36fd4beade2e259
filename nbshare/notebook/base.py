"""What a thing that draws must offer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from nbshare.job import State

LIVE: tuple[State, ...] = ("starting", "running")
NEVER_S = 3600.0  # "no need to call again soon": long, and still a number a wait can take


class Drawer(Protocol):
    """Something that shows a job."""

    def draw(self, *, final: bool) -> float:
        """Show the present state; return the seconds until the next call is wanted."""


class CannotDrawError(Exception):
    """These results do not suit the plot; the message tells the user what would."""
