"""The messages of client and agent, which all processes between them handle as bytes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nbshare._core.hosts.carrier import Carry
from nbshare._core.hosts.starting import Boot
from nbshare._core.memory import Handle
from nbshare._core.store.logs import LogKey
from nbshare._core.store.specs import OutputSpec
from nbshare._core.wire.failures import Death, Failure
from nbshare._core.wire.orders import Fixed, Policy, Sources


def as_buffers(message: Any) -> list[Any]:
    """Return an object as buffers, without copying large ones."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, 5, buffer_callback=buffers.append)
    return [head, *(buffer.raw() for buffer in buffers)]


def from_buffers(buffers: Sequence[Any]) -> Any:
    """Return the object that `as_buffers` has turned into buffers."""
    return pickle.loads(buffers[0], buffers=buffers[1:])


# --------------------------------------------------------------------------- to an agent


class Common(NamedTuple):
    """The parts that all blocks of a call share. They are part of the call's inputs."""

    sources: tuple[int, int]  # offset and size of the source files in the inputs
    fixed: Fixed  # places of function and shared objects in the inputs
    settings: dict[str, Any]  # the client's settings, see `wire.context`
    out: str | npt.NDArray[Any] | None  # an array has no rows
    news_s: float  # interval of replies about a long block
    news_nbytes: float  # limit for the results in such a reply. The others are in a later one


class Inputs(NamedTuple):
    """The inputs of a call, or where they are."""

    name: str  # a digest of them, if a host without access to the client's memory asked for it
    nbytes: int
    common: tuple[int, int]  # offset and size of `Common` in the inputs
    small: Any  # the inputs themselves, as a buffer, if they are small
    handle: Handle | None  # the client's memory, for an agent on its machine


class Block(NamedTuple):
    """Some items of a call, for one worker."""

    first: int
    n: int
    sources: Sources
    policy: Policy  # not a part of the inputs, because seeds differ from call to call
    contents: Any  # the arena with the items, as a buffer
    attempts: npt.NDArray[np.int32] | None  # earlier attempts, if any


class Order(NamedTuple):
    """A block and its call. Without a block, the order only brings the inputs."""

    call: str  # the name
    inputs: Inputs
    needed: list[str]  # names of running calls and of their inputs. A host drops other inputs
    block: Block | None


# --------------------------------------------------------------------------- to the client


class Reply(NamedTuple):
    """The progress of a block since the last reply."""

    is_last: bool
    states: bytes  # the flags of `Page.done`, 0 for items of earlier replies
    spec: OutputSpec | None
    rows: Any  # rows of the items in the output, or None
    entries: Any  # entries of the items in logs, or None
    logs: dict[LogKey, Any]  # the parts of logs with these entries, not copied
    errors: dict[int, BaseException]
    error: BaseException | None  # the call's error
    attempts: npt.NDArray[np.int32] | None
    prints: list[tuple[str, str]]
    slots: npt.NDArray[np.int64]  # rows of the workers on the board
    now_ns: int  # the time on the clock of these rows
    draws: tuple[range, int]  # see `wire.board.Board.draws`


class ReportedError(Exception):
    """Carries the description of a failure to the client, because agents load no user errors.

    Parameters
    ----------
    report : Failure or Death
        The description, with the item's place in its block.
    worker : int
        The number of the worker on the host.
    """

    def __init__(self, report: Failure | Death, worker: int) -> None:
        super().__init__(report, worker)
        self.report, self.worker = report, worker


# ------------------------------------------------------------------------------- clusters

# A task, the number of the first of these messages, the buffers of each message, and the task's
# error.
News = tuple[int, int, Sequence[Sequence[memoryview]], BaseException | None]


class Hosts(Protocol):
    """An existing cluster, for one call.

    One thread uses it, and any thread may wake that thread.
    """

    kind: str  # one of `carrier._PLACES`
    boot: Boot
    n_places: float  # number of simultaneous tasks, infinity if unknown
    news_nbytes: float  # limit for the news of a task that runs

    def n_workers(self) -> int:
        """Return how many tasks the cluster can run at the same time, or a guess."""

    def check(self) -> None:
        """Raise ConnectionError if the cluster is lost."""

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Submit a task."""

    def wait(self, timeout_s: float) -> Sequence[News]:
        """Wait for news of tasks, or for `wake`. Return the news."""

    def wake(self) -> None:
        """End a wait of another thread."""

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Store the inputs in the cluster. Return how tasks find them, or None.

        Called again if the inputs were lost.
        """

    def end(self, call: str) -> None:
        """Stop a call on all hosts that can be reached."""

    def close(self, call: str) -> None:
        """Drop all tasks of the call."""
