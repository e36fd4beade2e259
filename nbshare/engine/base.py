"""What runs calls: worker processes, threads, or the thread that waits."""

from __future__ import annotations

from typing import Protocol

from nbshare.engine.call import Call

__all__ = ["Engine"]


class Engine(Protocol):
    """What runs calls.

    Attributes
    ----------
    calls_at_once : int
        How many calls of one stream it can have.
    works_by_itself : bool
        Whether calls go on though nobody waits for them.
    can_be_fed : bool
        Whether a call may begin before its items are packed.
    """

    calls_at_once: int
    works_by_itself: bool
    can_be_fed: bool

    @property
    def is_closed(self) -> bool:
        """Whether it runs nothing any more."""

    def warm_up(self) -> None:
        """Start what takes time, while inputs are still being copied."""

    def submit(self, call: Call) -> None:
        """Begin a call."""

    def wait(self, call: Call, timeout_s: float) -> bool:
        """Wait for the end of a call; returns whether it has come."""

    def stop(self, call: Call) -> None:
        """End a call early."""
