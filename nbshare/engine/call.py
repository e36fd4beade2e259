"""One call as the engine sees it, from its beginning to the last worker's word."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from nbshare.arrays.feed import Feed
from nbshare.arrays.inbox import Inbox
from nbshare.engine.bell import Gong
from nbshare.engine.ending import Ending
from nbshare.engine.placing import Placed
from nbshare.engine.request import Request
from nbshare.engine.results import Results
from nbshare.functions import Snapshot
from nbshare.memory import Mode, Segment
from nbshare.wire.board import Board
from nbshare.wire.orders import Brief, Order, Terms, pack_terms

if TYPE_CHECKING:
    from nbshare.engine.process import WorkerProcess

__all__ = [
    "MAX_REPLACED",
    "NO_CODE",
    "Call",
    "Code",
    "Entrance",
    "State",
    "Team",
]

MAX_REPLACED = 3  # workers of one call that die before their first item, then it is an error
MAX_ID = 1 << 30  # ids are also lock bytes

_numbers = itertools.count()

State = Literal["starting", "running", "done", "stopped", "failed"]


class Code(NamedTuple):
    """What the workers of a call run."""

    generation: int  # theirs: they were started for these files, environment and initializer
    snapshot: Snapshot | None  # of what they import, however late


NO_CODE = Code(0, None)


# The classes below are no dataclasses, each of which takes 1 ms to define.


class Team:
    """Calls that share their workers: a stream's."""

    def __init__(self, n_workers: int) -> None:
        self.n_workers = n_workers
        self.code: Code | None = None  # that all of them run, when the first has begun


class Entrance:
    """Where items come into a call that runs."""

    def __init__(self, items: Inbox) -> None:
        self.items = items
        self.gong = Gong()  # wakes workers that wait for them
        self.called_at = time.monotonic()  # when they were woken last

    def call(self, n: int = 1) -> None:
        """Wake a worker, who will wake another if there is more to do; or `n` if they are to go."""
        self.called_at = time.monotonic()
        self.gong.ring(n)


class Call(Ending):
    """A running call: its shared memory, its workers, how it ended.

    The dispatcher's thread writes, others read; `wait` is for any thread.

    Parameters
    ----------
    request : Request
        What is asked for.
    board : Board
        What it shares with its workers.
    inputs : list of Placed
        What is the same for all items, and the items; or both in one.
    order : Order
        What workers are told.
    n_threads : int
        Of BLAS and the like, in each worker.
    initializer_key : bytes or None
        Equal for equal ones.
    n_slots : int
        Workers that the board has room for.
    team : Team, optional
        Calls that it shares its workers with.
    """

    def __init__(
        self,
        request: Request,
        board: Board,
        inputs: list[Placed],
        order: Order,
        *,
        n_threads: int,
        initializer_key: bytes | None,
        results: Results,
        n_slots: int,
        team: Team | None = None,
    ) -> None:
        super().__init__()
        self.request, self.board, self.inputs, self.order = request, board, inputs, order
        self.n_threads, self.initializer_key = n_threads, initializer_key
        self.results = results
        self.id = next(_numbers) % MAX_ID + 1
        self.begun_ns = time.monotonic_ns()
        self.state: State = "starting"
        self.error: BaseException | None = None
        self.team = team
        self.code = NO_CODE  # that its workers run, while there are any
        self.workers: dict[WorkerProcess, int] = {}  # at work, with their slots
        self.free_slots = list(range(n_slots))[::-1]
        self.past_slots: list[list[int]] = []  # of workers that died
        self.n_replaced = 0  # workers that died before they had begun an item
        self.n_unborn = 0  # workers that died before they had started
        self.torn_rows: list[int] = []  # items in whose middle workers died
        self.has_told = False  # of a worker that takes long to load
        self.kill_at: float | None = None  # when those still busy with a stopped call are ended
        self.feed: Feed | None = None  # what packs items that are not there yet
        self.entrance: Entrance | None = None  # of items that come while it runs
        self.bell_fd: int | None = None  # that workers ring when they have news; see `Bell`
        self.tell: Callable[[], None] | None = None  # is called at the end, in any thread; quick

    @cached_property
    def told(self) -> tuple[bytes, bytes]:
        """What all its workers are told: terms and brief."""
        board, (task, *others) = self.board, self.order
        inputs = tuple((p.small, tuple(m for _, m in p.segments)) for p in self.inputs)
        brief = Brief((board.offset, board.n_tasks, board.n_slots), inputs, tuple(others))
        return pack_terms(Terms(self.request.context.settings, task)), brief.packed()

    @property
    def n_ready(self) -> int:
        """Count the workers at work that have started."""
        return sum(worker.is_ready for worker in list(self.workers))

    @property
    def segments(self) -> list[tuple[Segment, Mode]]:
        """The segments that inputs lie in, and how workers map them."""
        return [wanted for placed in self.inputs for wanted in placed.segments]

    @property
    def is_complete(self) -> bool:
        """Whether every item has a result, or has failed and may."""
        return self.board.n_done() == self.board.n_tasks

    @property
    def wants_worker(self) -> bool:
        """Whether one more worker would find something to do."""
        is_full = len(self.workers) >= self.n_employed or not self.free_slots
        return not is_full and not self.board.stopped and self.board.n_unclaimed > 0

    @property
    def n_employed(self) -> int:
        """How many workers would find something to do, of those that may."""
        if (entrance := self.entrance) is None:
            return self.request.max_workers
        n_items = entrance.items.n_items
        return min(self.request.max_workers, n_items - self.board.n_done(n_items))

    def halt(self) -> None:
        """Ask workers to claim and begin nothing more."""
        self.board.stop()
        if (entrance := self.entrance) is not None:
            entrance.call(self.request.max_workers)

    def note_error(self, error: BaseException, items: range) -> None:
        """Keep the error of items that failed."""
        self.results.errors.update(dict.fromkeys(items, error))

    def finish(self, state: State, error: BaseException | None = None) -> None:
        """Note the end and wake whoever waits."""
        self.state, self.error = state, error
        self.results.is_over = True
        if state != "done" or self.results.errors:
            self.results.clear_missing(self.torn_rows)
        # Nothing may hang on garbage collection: a notebook keeps its last traceback for ever.
        self.inputs.clear()
        self.feed = None
        self.entrance = None
        self.code = NO_CODE
        self._end()
        tell, self.tell = self.tell, None  # which may lead back here
        if tell is not None:
            tell()
