"""What client, carrier and agent tell each other, and what a kind of cluster has to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare.memory import Handle
from nbshare.wire.failures import Death, Failure, Lateness
from nbshare.wire.orders import Fixed, Policy
from nbshare.wire.results import LogKey, OutputSpec

__all__ = [
    "Block",
    "Boot",
    "Common",
    "Future",
    "Give",
    "Hosts",
    "Input",
    "Missing",
    "Refused",
    "Reply",
    "ReportedError",
    "versions",
]


class Boot(NamedTuple):
    """How a carrier finds or starts the agent of its host, and the agent its client."""

    name: str  # of the client's agents, one on each host
    address: tuple[str, int]  # of the client's line
    key: bytes  # that both ends of a line prove to have
    versions: tuple[str, str, str]


def versions() -> tuple[str, str, str]:
    """Return the versions that client and hosts must share: nbshare, Python, NumPy."""
    nbshare: Any = sys.modules["nbshare"]  # this module is a part of it
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return nbshare.__version__, python, np.__version__.split(".")[0]


# --------------------------------------------------------------------------- to an agent


class Input(NamedTuple):
    """Bytes that an agent keeps for the blocks of a call."""

    key: str
    small: bytes | None  # themselves, if they are few
    handle: Handle | None = None  # where the client has them, for an agent on its machine


class Common(NamedTuple):
    """The parts that are the same for all blocks of a call."""

    call: str
    is_anonymous: bool  # the cluster; see `Hosts`
    inputs: tuple[Input, Input]  # the parts of a call that `fixed` describes; source files
    fixed: Fixed
    settings: dict[str, Any]  # of the client, see `nbshare.wire.context`
    policy: Policy
    out: str | tuple[np.dtype[Any], tuple[int, ...]] | None  # an array by its rows


class Block(NamedTuple):
    """Some items of a call, to be run by one worker."""

    id: int
    common: Common
    first: int
    n: int
    sources: list[tuple[Any, ...]]  # what `nbshare.worker.items.Source` takes
    contents: bytes  # of the arena of the items
    spec: OutputSpec | None  # of the results, if it is known
    attempts: npt.NDArray[np.int32] | None  # that items have had before, if any
    budget_s: float  # after that no more items are begun


class Give(NamedTuple):
    """An input that an agent lacks; its bytes follow."""

    key: str


# --------------------------------------------------------------------------- to the client


class Missing(NamedTuple):
    """The answer of an agent that lacks inputs, or has just been given one."""

    host: str
    keys: tuple[str, ...]
    place: Any  # of the carrier, for its cluster


class Refused(NamedTuple):
    """The answer of an agent to a block that was begun before: its first host was lost."""

    host: str


class Reply(NamedTuple):
    """What has become of a block since the last reply."""

    host: str
    number: int  # of earlier replies about the block
    is_last: bool
    n: int  # items of the block that may have been begun
    states: bytes  # as in `nbshare.wire.board.Page.done`; 0 of items that an earlier reply has
    spec: OutputSpec | None
    rows: npt.NDArray[Any] | None  # of items in the output
    entries: npt.NDArray[np.int64] | None  # of items in logs
    logs: dict[LogKey, bytes]
    errors: dict[int, BaseException]
    error: BaseException | None  # of the call
    attempts: npt.NDArray[np.int32] | None
    prints: list[tuple[str, str]]
    slots: list[list[int]]  # rows of the board, of its workers


class ReportedError(Exception):
    """Carries the description of a failure to the client; agents do not load users' errors.

    Parameters
    ----------
    what : Failure, Death or Lateness
        The description, with the item's place in its block.
    worker : int
        Of the host.
    """

    def __init__(self, what: Failure | Death | Lateness, worker: int) -> None:
        super().__init__(what, worker)
        self.what, self.worker = what, worker


# ------------------------------------------------------------------------------- clusters


class Future(Protocol):
    """A task of a cluster, as `concurrent.futures.Future`."""

    def result(self) -> bytes:
        """Return what `carry` returned."""

    def cancel(self) -> Any:
        """Have it not begin."""

    def add_done_callback(self, callback: Callable[[Any], None], /) -> Any:
        """Call back from another thread."""


class Hosts(Protocol):
    """A cluster that exists.

    Attributes
    ----------
    is_anonymous : bool
        Whether nobody can say where it runs a task. Then agents fetch inputs from the client.
    """

    is_anonymous: bool

    @property
    def n_workers(self) -> int:
        """Number of tasks that it can run at the same time, as far as known."""

    @property
    def address(self) -> str:
        """The address of this machine that its hosts can reach."""

    def submit(self, boot: Boot, message: bytes) -> Future:
        """Run `carry` with a block, anywhere."""

    def put(self, data: bytes) -> Any:
        """Bring an input to the cluster, whose tasks get it from each other."""

    def give(self, boot: Boot, message: bytes, content: Any, place: Any) -> Future:
        """Run `carry` with what `put` returned, at the place of the carrier that lacks it."""
