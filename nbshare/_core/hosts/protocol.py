"""The messages of client, carrier and agent, and the interface of a kind of cluster."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare._core.memory import Handle
from nbshare._core.store.logs import LogKey
from nbshare._core.store.specs import OutputSpec
from nbshare._core.wire.failures import Death, Failure
from nbshare._core.wire.orders import Fixed, Policy, Sources

# --------------------------------------------------------------------------- to an agent


class Common(NamedTuple):
    """The parts that are the same for all blocks of a call."""

    nbytes: int  # of its inputs
    small: bytes | None  # the inputs themselves, if they are few
    handle: Handle | None  # where the client has them, for an agent on its machine
    sources: tuple[int, int]  # the place of the source files in them, and their size
    fixed: Fixed  # the place of all else
    settings: dict[str, Any]  # of the client, see `wire.context`
    policy: Policy
    out: str | npt.NDArray[Any] | None  # an array without its rows
    news_s: float  # between replies about a block that takes long


class Block(NamedTuple):
    """Some items of a call, to be run by one worker."""

    first: int
    n: int
    sources: Sources
    contents: bytes  # of the arena of the items
    attempts: npt.NDArray[np.int32] | None  # that items have had before, if any


# --------------------------------------------------------------------------- to the client


class Reply(NamedTuple):
    """The outcome of a block since the last reply."""

    is_last: bool
    states: bytes  # as in `wire.board.Page.done`, 0 for items that an earlier reply has
    spec: OutputSpec | None
    rows: Any  # an array of those of items in the output, if there are any
    entries: Any  # an array of those of items in logs, likewise
    logs: dict[LogKey, Any]  # the parts that `entries` mean, which are not copied
    errors: dict[int, BaseException]
    error: BaseException | None  # of the call
    attempts: npt.NDArray[np.int32] | None
    prints: list[tuple[str, str]]
    slots: npt.NDArray[np.int64]  # rows of the board, of its workers
    now_ns: int  # on the clock of these rows
    draws: tuple[range, int]  # see `wire.board.Board.draws`


class ReportedError(Exception):
    """Carries the description of a failure to the client. Agents do not load users' errors.

    Parameters
    ----------
    what : Failure or Death
        The description, with the item's place in its block.
    worker : int
        The number of the worker on the host.
    """

    def __init__(self, what: Failure | Death, worker: int) -> None:
        super().__init__(what, worker)
        self.what, self.worker = what, worker


# ------------------------------------------------------------------------------- clusters


class ClusterTask(Protocol):
    """The part of a cluster task's future that is used, as in `concurrent.futures.Future`."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None:
        """Call back when the task has ended."""

    def cancel(self) -> object:
        """Have the cluster forget it, if it has not begun, and wait for nothing."""

    def result(self) -> bytes:
        """Return the result of a task that has ended."""


class Hosts(NamedTuple):
    """A cluster that exists."""

    n_workers: Callable[[], int]  # tasks that it can run at the same time, as far as known
    address: str  # of this machine, that its hosts can reach
    submit: Callable[..., ClusterTask]  # runs a `Carry` with its arguments anywhere
    check: Callable[[], None] = lambda: None  # raises ConnectionError when the cluster is gone
