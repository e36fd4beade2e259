"""One call as the engine sees it, from the request to the last worker's word."""

from __future__ import annotations

import _thread
import itertools
import math
import os
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy.typing as npt

from nbshare.arrays.arena import Arena
from nbshare.arrays.create import empty
from nbshare.arrays.feed import Feed
from nbshare.arrays.inbox import Inbox
from nbshare.arrays.tray import Tray
from nbshare.engine.bell import Gong
from nbshare.engine.placing import Fixed, Placed, pack_fixed, pack_items, place
from nbshare.engine.request import Request
from nbshare.engine.results import Results
from nbshare.functions import Source
from nbshare.memory import Mode, Segment, segment_of
from nbshare.worker.blas import threads_per_worker
from nbshare.worker.cpus import usable_cpus
from nbshare.worker.output import OBJECTS, OutputSpec
from nbshare.worker.remote import Brief, Terms, pack_terms
from nbshare.worker.schedule import COMING, Board
from nbshare.worker.standby import LINGER_S
from nbshare.worker.work import Order, Task

if TYPE_CHECKING:
    from nbshare.engine.process import WorkerProcess

__all__ = [
    "STAY_S",
    "Call",
    "Callbacks",
    "Code",
    "Entrance",
    "State",
    "Team",
    "prepare",
    "prepare_open",
    "prepare_standing",
]

MAX_REPLACED = 3  # workers of one call that die before their first item, then it is an error
MAX_ID = 1 << 30  # ids are also lock bytes
# A call stays so long for maps like it. Then one takes some tenths of a millisecond more; meanwhile
# its workers are there for nobody else of the process, but for other maps, which end it.
STAY_S = 0.05

_numbers = itertools.count()

State = Literal["starting", "running", "done", "stopped", "failed"]


class Code(NamedTuple):
    """What the workers of a call run."""

    generation: int  # theirs: they were started for these files, environment and initializer
    sources: Mapping[str, Source]  # that those who start late are to have


NO_CODE = Code(0, {})


@dataclass(eq=False)
class Team:
    """Calls that share their workers: a stream's. Equal is only the same."""

    n_workers: int
    map_id: int = 0  # id of the first of them, when it has begun
    code: Code = NO_CODE  # that all of them run


@dataclass(eq=False)
class Entrance:
    """Where items come into a call that runs.

    They come beside those that are there, or all anew in their place.
    """

    items: Inbox | Tray
    gong: Gong = field(default_factory=Gong)  # wakes workers that wait for them
    # On the monotonic clock: when they were woken last, and when a call that stays is to end.
    called_at: float = 0.0
    unused_at: float = 0.0
    announced_at: float = -math.inf  # when they were woken for items that had not come yet
    is_open: bool = True  # more may come

    def __post_init__(self) -> None:
        self._note_time()

    def _note_time(self) -> None:
        self.called_at = time.monotonic()
        self.unused_at = self.called_at + STAY_S

    @property
    def stays(self) -> bool:
        """Whether its call stays for maps like it, whose items take the place of these."""
        return self.is_open and isinstance(self.items, Tray)

    def announce(self) -> None:
        """Wake a worker for items that come at once."""
        self.announced_at = time.monotonic()  # first: it waits `LINGER_S` from a later moment on
        self.gong.ring()

    def hand_over(self) -> None:
        """Have a worker take the items that have come: the one that was woken, if it is awake."""
        self._note_time()
        if self.called_at > self.announced_at + LINGER_S / 2:
            self.gong.ring()

    def call(self, n: int = 1) -> None:
        """Wake a worker, who will wake another if there is more to do; or `n` if they are to go."""
        self._note_time()
        self.gong.ring(n)


@dataclass(eq=False)
class Call:
    """A running call: its shared memory, its workers, how it ended.

    The dispatcher's thread writes, others read; `wait` is for any thread.
    """

    request: Request
    board: Board
    inputs: list[Placed]  # what is the same for all items, and the items; or both in one
    order: Order
    n_threads: int  # of BLAS and the like, in each worker
    initializer_key: bytes | None  # equal for equal ones
    results: Results
    free_slots: list[int]
    id: int = field(default_factory=lambda: next(_numbers) % MAX_ID + 1)
    code: Code = NO_CODE  # that its workers run; given when it begins
    begun_ns: int = field(default_factory=time.monotonic_ns)
    state: State = "starting"
    error: BaseException | None = None
    workers: dict[WorkerProcess, int] = field(default_factory=dict)  # at work, with their slots
    n_replaced: int = 0  # workers that died before they had begun an item
    n_unborn: int = 0  # workers that died before they had started
    kill_at: float | None = None  # when workers that are still busy with a stopped call are ended
    torn_rows: list[int] = field(default_factory=list)  # items in whose middle workers died
    is_over: bool = False
    team: Team | None = None  # calls that it shares its workers with
    feed: Feed | None = None  # what packs items that are not there yet
    tell: Callable[[], None] | None = None  # is called at the end, in any thread; quick
    entrance: Entrance | None = None  # of items that come while it runs
    bell_fd: int | None = None  # that workers ring when they have news; see `Bell`
    past_slots: list[list[int]] = field(default_factory=list)  # of workers that died
    # A raw lock: a KeyboardInterrupt inside threading's Python code would break its locks.
    _over: Any = field(default_factory=_thread.allocate_lock)
    _callbacks: Callbacks = field(default_factory=lambda: Callbacks())

    def __post_init__(self) -> None:
        self._over.acquire()

    @cached_property
    def told(self) -> tuple[bytes, bytes]:
        """What all its workers are told: terms and brief."""
        board, (task, *others) = self.board, self.order
        inputs = tuple((p.small, tuple(m for _, m in p.segments)) for p in self.inputs)
        brief = Brief((board.offset, board.n_tasks, board.n_slots), inputs, tuple(others))
        return pack_terms(Terms(self.request.context.settings, task)), brief.packed()

    @property
    def map_id(self) -> int:
        """The same number for all calls of a stream."""
        return self.id if self.team is None else self.team.map_id

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

    @property
    def is_unused(self) -> bool:
        """Whether it stays for maps like it, and there is none."""
        entrance = self.entrance
        if entrance is None or not entrance.stays:
            return False
        return self.board.head(entrance.items.n_items).is_at_rest

    def announce(self) -> None:
        """Tell that other items come at once, and have a worker get ready."""
        if (entrance := self.entrance) is not None:
            self.board.header[COMING] = 1
            entrance.announce()

    def renew(self, request: Request) -> None:
        """Be about another request of the same form, of which nothing is done."""
        self.board.clear()  # first: those of before are not its results, whatever happens now
        self.request = request
        self.results = _results(self.board.head(request.n_tasks), request, None)
        self.begun_ns = time.monotonic_ns()
        self.n_replaced = self.n_unborn = 0
        self.past_slots.clear()

    def halt(self) -> None:
        """Ask workers to claim and begin nothing more."""
        self.board.stop()
        if (entrance := self.entrance) is not None:
            entrance.call(self.request.max_workers)

    def note_error(self, error: BaseException, items: range) -> None:
        """Keep the error of items that failed."""
        self.results.errors.update(dict.fromkeys(items, error))

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; returns whether it has come."""
        if not self.is_over and self._over.acquire(timeout=timeout_s):
            self._over.release()
        return self.is_over

    def call_when_over(self, callback: Callable[[], object]) -> None:
        """Call back in a thread of its own when the call is over, or now if it is."""
        self._callbacks.add(callback)
        if self.is_over:  # or it has become so meanwhile: whoever takes it out first calls it
            self._callbacks.run()

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
        self.is_over = True
        self._over.release()
        tell, self.tell = self.tell, None  # which may lead back here
        if tell is not None:
            tell()
        self._callbacks.run()


class Callbacks:
    """What is to be called, once, when something is over."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], object]] = deque()

    def add(self, callback: Callable[[], object]) -> None:
        """Add one."""
        self._waiting.append(callback)

    def run(self) -> None:
        """Call those that have not been called, each in a thread of its own."""
        while self._waiting:
            with suppress(IndexError):
                _thread.start_new_thread(_call_safely, (self._waiting.popleft(),))


def _call_safely(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:  # noqa: BLE001 - a user's
        traceback.print_exc()


def prepare(
    request: Request,
    warm_up: Callable[[], None],
    fixed: tuple[Fixed, Placed] | None = None,
    rows: npt.NDArray[Any] | None = None,
    team: Team | None = None,
    *,
    may_feed: bool = False,
) -> Call:
    """Place the inputs in shared memory.

    Parameters
    ----------
    request : Request
        What is asked for.
    warm_up : callable
        Called when nothing can be refused any more and only copying is left, so that workers can
        start meanwhile.
    fixed : tuple of Fixed and Placed, optional
        What is the same for all items, if it has been placed before.
    rows : ndarray, optional
        Where results go if they fit.
    team : Team, optional
        Whose call it is, if it shares its workers with others.
    may_feed : bool, default False
        Whether somebody will see to it that `Call.feed` is completed: then a long list need not be
        packed before the call begins.

    Raises
    ------
    UnsendableError
        If the function, something shared or an item cannot be pickled.
    OutOfMemoryError
        If the inputs do not fit.
    """
    arena = Arena()
    parts = fixed[0] if fixed is not None else pack_fixed(arena, request)
    sources, feed = pack_items(arena, request, may_feed=may_feed)
    warm_up()
    placed = [place(arena)]
    if fixed is not None:
        placed.insert(0, fixed[1])
    call = _call(request, parts, placed, sources, rows, team)
    call.feed = feed
    return call


def prepare_open(request: Request, fixed: tuple[Fixed, Placed], inbox: Inbox, team: Team) -> Call:
    """Return a call whose items come to an inbox; the first are there when it begins."""
    placed = [fixed[1], Placed(None, inbox.segments, inbox.lease)]
    call = _call(request, fixed[0], placed, inbox.sources(), None, team)
    call.entrance = Entrance(inbox)
    return call


def prepare_standing(request: Request, tray: Tray) -> Call:
    """Return a call that stays for maps like it, whose items come to a tray."""
    arena = Arena()
    parts = pack_fixed(arena, request)
    placed = [place(arena), Placed(None, [(tray.segment, "r")])]
    call = _call(request, parts, placed, tray.sources(), None, None, n_more=1)
    call.order = call.order._replace(tells_all=True)
    call.entrance = Entrance(tray)
    return call


def _call(
    request: Request,
    parts: Fixed,
    placed: list[Placed],
    sources: list[tuple[Any, ...]],
    rows: npt.NDArray[Any] | None,
    team: Team | None,
    n_more: int = 0,
) -> Call:
    # Some more than workers: a late starter of a slot may still be there when it is replaced.
    n_slots = request.max_workers + MAX_REPLACED
    board = Board.create(request.n_tasks + n_more, n_slots)
    n_workers = request.max_workers if team is None else team.n_workers
    return Call(
        request=request,
        board=board,
        inputs=placed,
        order=Order(
            Task(parts.func, parts.shared, parts.initializer, request.policy),
            sources,
            request.max_workers,
            request.chunksize,
            request.first,
        ),
        n_threads=threads_per_worker(usable_cpus(), n_workers, os.environ),
        initializer_key=parts.initializer_key,
        results=_results(board.head(request.n_tasks), request, rows),
        free_slots=list(range(n_slots))[::-1],
        team=team,
    )


def _results(board: Board, request: Request, rows: npt.NDArray[Any] | None) -> Results:
    out = request.out
    if rows is not None:
        spec: OutputSpec | None = OutputSpec(rows.dtype, rows.shape[1:], None)
        return Results(board, spec, rows, request.first)
    if out is None:
        return Results(board, None, None, request.first)
    if isinstance(out, str):
        return Results(board, OBJECTS, None, request.first)
    # A plain array is filled through shared memory: the caller copies the rows as they come.
    array = out if segment_of(out) else empty(out.shape, out.dtype)
    spec = OutputSpec(array.dtype, array.shape[1:], None, is_given=True)
    return Results(board, spec, array, request.first)
