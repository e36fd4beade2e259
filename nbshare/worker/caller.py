"""Whom a worker works for: what it needs of its owner while it works on a call."""

from __future__ import annotations

from nbshare.memory import Segment
from nbshare.wire.results import LogKey, OutputSpec
from nbshare.worker.store import Rows

__all__ = ["Caller"]


class Caller:
    """Whom a worker works for; by itself one in the same process, where little has to be told."""

    def decide(self, spec: OutputSpec) -> tuple[OutputSpec, Rows | None]:
        """Return where results go, given what the first one asks for."""
        raise NotImplementedError

    def add_log(self, key: LogKey, log: Segment) -> None:
        """Take a new log."""
        raise NotImplementedError

    def make_room(self, n: int) -> int:
        """Have places for the first `n` blocks of a stage; returns how many there are."""
        raise NotImplementedError

    def await_items(self, pause_s: float) -> bool:
        """Wait so long for items, or until some come; returns whether to go on waiting."""
        raise NotImplementedError

    def tidy_up(self) -> None:
        """Undo what items have changed in this process."""

    def tell_news(self) -> None:
        """Tell that results have come, or that few items are left."""

    def call_another(self) -> None:
        """Wake another worker that waits for items, if there is one."""

    def tell_imports(self) -> bool:
        """Tell what has been imported so far; returns whether there is anything new."""
        return False

    def sends_prints(self) -> bool:
        """Send what items have printed so far; returns whether there is anything to read."""
        return False

    def failed(self, i: int, error: BaseException, item: str) -> None:
        """Take note of a failure of item `i`."""
        raise NotImplementedError
