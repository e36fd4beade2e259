"""The messages of client and agent. They are bytes to all between them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare._core.hosts.carrier import Boot, Carry
from nbshare._core.memory import Handle
from nbshare._core.store.logs import LogKey
from nbshare._core.store.specs import OutputSpec
from nbshare._core.wire.failures import Death, Failure
from nbshare._core.wire.orders import Fixed, Policy, Sources


def as_buffers(message: Any) -> list[Any]:
    """Return the buffers of an object, without a copy of large ones."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, 5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def from_buffers(buffers: Sequence[Any]) -> Any:
    """Return the object."""
    return pickle.loads(buffers[0], buffers=buffers[1:])


# --------------------------------------------------------------------------- to an agent


class Common(NamedTuple):
    """The parts that are the same for all blocks of a call. They are in its inputs."""

    sources: tuple[int, int]  # the place of the source files in the inputs, and their size
    fixed: Fixed  # the place of all else
    settings: dict[str, Any]  # of the client, see `wire.context`
    policy: Policy
    out: str | npt.NDArray[Any] | None  # an array without its rows
    news_s: float  # between replies about a block that takes long


class Inputs(NamedTuple):
    """The inputs of a call, and where they are."""

    call: str  # the name
    nbytes: int
    common: tuple[int, int]  # the place of `Common` in them, and its size
    small: Any  # the inputs themselves as a buffer, if they are few
    handle: Handle | None  # where the client has them, for an agent on its machine


class Block(NamedTuple):
    """Some items of a call, to be run by one worker."""

    first: int
    n: int
    sources: Sources
    contents: Any  # of the arena of the items, as a buffer
    attempts: npt.NDArray[np.int32] | None  # that items have had before, if any


class Order(NamedTuple):
    """A block with all that a host needs to know. Without one it brings inputs only."""

    inputs: Inputs
    running: tuple[str, ...]  # calls of the client. A host forgets all others
    block: Block | None


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

# A task, the place of the first of some of its messages, the buffers of each, and the error that
# has ended it.
News = tuple[int, int, Sequence[Sequence[memoryview]], BaseException | None]


class Hosts(Protocol):
    """A cluster that exists, for one call. One thread uses it, and any thread wakes that."""

    kind: str  # as `carrier` knows it
    boot: Boot
    n_places: float  # tasks that it runs at the same time, infinity if unknown. Others wait there

    def n_workers(self) -> int:
        """Return how many tasks it can run at the same time, as far as known."""

    def check(self) -> None:
        """Raise ConnectionError when the cluster is gone."""

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Have it run a task anywhere."""

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for what tasks tell, or until it is woken, and return it."""

    def wake(self) -> None:
        """End a wait."""

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Have the inputs of the call in the cluster. Return how tasks find them, None if not so.

        It may be called again, after some were lost.
        """

    def end(self, call: str) -> None:
        """Have hosts end what runs of a call, as far as they can be reached."""

    def close(self, call: str) -> None:
        """Forget all tasks of the call."""
