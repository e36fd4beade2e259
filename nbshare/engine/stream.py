"""A stream: a map over items that come by and by, such as those of a generator.

::

    source ──► take a window of items ──► a call on them ──► …          (at most 3 at a time)
                 ▲                            │ all share the stream's workers
                 └── when workers will soon have nothing left

A window is an ordinary call, so failures, retries, time-outs and replaced workers are the calls'
business. Function and shared objects are placed once. Arrays are stored in one output that grows in
place; who iterates over the results instead gets them window by window, and none is kept.
"""

from __future__ import annotations

import _thread
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import Arena
from nbshare.engine.base import Engine
from nbshare.engine.call import State, Team
from nbshare.engine.ending import Ending
from nbshare.engine.gathered import Gathered
from nbshare.engine.intake import InlineIntake, Intake, ThreadedIntake
from nbshare.engine.placing import Fixed, Placed, pack_fixed, place
from nbshare.engine.preparing import prepare
from nbshare.engine.request import Items, Request
from nbshare.engine.single import SingleRun
from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats, merged
from nbshare.wire.failures import raised_by_source

__all__ = ["Stream"]

# A window is meant to be this much work, of all workers or, if that takes longer, of whoever
# iterates: a new one costs a millisecond. The source is at most six windows ahead: two that wait,
# and four that have been handed over.
WINDOW_S = 0.1
MOST_ITEMS = 1 << 14  # of a window
MOST_AHEAD = 3  # windows that somebody who iterates has not taken yet
GROWTH = 8  # from one window to the next at most
LOOK_S = 0.1  # between looks at what nobody tells: whether results have been taken


class Stream(Ending):
    """A map over a source of items; see `nbshare.engine.run.Run`.

    Parameters
    ----------
    request : Request
        Without its iterables.
    source : Items
        What the iterables give.
    engine : Engine
        Where its calls run.
    in_background : bool
        Whether a thread of its own takes the items; else whoever waits does.

    Notes
    -----
    One thread takes items and opens windows; others may read, stop and, one of them, take results.
    """

    def __init__(
        self,
        request: Request,
        source: Items,
        engine: Engine,
        *,
        in_background: bool,
    ) -> None:
        super().__init__()
        self.request = request
        self.state: State = "starting"
        self.error: BaseException | None = None
        self._source = source
        self._engine = engine
        self._bell = _thread.allocate_lock()
        self._intake: Intake
        if in_background or engine.works_by_itself:
            self._intake = ThreadedIntake(source.others, self._ring)
        else:
            self._intake = InlineIntake(source.others)
        self._in_background = in_background
        arena = Arena()
        fixed = pack_fixed(arena, request)
        self._fixed: tuple[Fixed, Placed] | None = (fixed, place(arena))
        self._team = Team(request.max_workers)
        self._gathered = Gathered(request)
        self._running: list[SingleRun] = []  # windows that are not over, or were not just now
        self._has_spec = False  # whether it is known where results go
        self._n_taken = 0  # items
        self._size = 2 * request.max_workers * (request.chunksize or 1)  # of the next window
        self._is_stopping = False
        self._past_stats: list[WorkerStats] = []
        self._last_pace = 0, 0.0  # of the window that was over last
        self._finishing = _thread.allocate_lock()

    # ------------------------------------------------------------------ what a job reads

    @property
    def n_tasks(self) -> int | None:  # noqa: D102
        return self._n_taken if self._intake.is_exhausted else None

    @property
    def n_done(self) -> int:  # noqa: D102
        return self._gathered.n_done

    @property
    def n_ready(self) -> int:  # noqa: D102
        return sum(window.n_ready for window in self._open())

    @property
    def errors(self) -> Mapping[int, BaseException]:  # noqa: D102
        return self._gathered.errors

    def present(self) -> npt.NDArray[np.bool_]:  # noqa: D102
        return self._gathered.present(self._n_taken)

    def partial(self) -> Any:  # noqa: D102
        return self._gathered.partial()

    def final(self) -> Any:  # noqa: D102
        return self._gathered.final(self._n_taken)

    def stats(self) -> list[WorkerStats]:  # noqa: D102
        return merged([*self._past_stats, *(s for w in self._open() for s in w.stats())])

    def activity(self) -> list[WorkerActivity]:  # noqa: D102
        return [worker for window in self._open() for worker in window.activity()]

    def stages(self) -> list[StageStats]:  # noqa: D102
        return []

    def item(self, i: int) -> tuple[Any, ...]:  # noqa: D102
        return self._gathered.item(i)

    def new_results(self) -> Iterator[tuple[int, Any]]:  # noqa: D102
        return self._gathered.new_results()

    def fill_out(self) -> None:  # noqa: D102
        self._gathered.fill_out()

    def let_go(self) -> None:  # noqa: D102
        # In a forked child the engine is closed, and the stream the parent's.
        if self._gathered.is_iterated and not self.is_over and not self._engine.is_closed:
            self.stop()  # nobody will take what it waits for to be taken

    # --------------------------------------------------------------------------- its life

    def start(self) -> None:  # noqa: D102
        self._intake.want(2 * self._size)
        if self._in_background:
            _thread.start_new_thread(self._live, ())

    def wait(self, timeout_s: float) -> bool:  # noqa: D102
        if self._in_background:
            return super().wait(timeout_s)
        self._step(timeout_s)
        return self.is_over

    def stop(self) -> None:  # noqa: D102
        self._is_stopping = True
        for window in self._open():
            window.stop()
        self._ring()

    def _live(self) -> None:
        while not self.is_over:
            self._step(LOOK_S)

    def _step(self, timeout_s: float) -> None:
        """See to it that workers have work, and wait for it."""
        if self.is_over:
            return
        self._is_stopping |= self._engine.is_closed
        try:
            while self._wants_more() and (items := self._intake.take(self._next_size())):
                self._hand_over(items)
        except Exception as error:  # noqa: BLE001 - an item cannot be sent, or memory is short
            self._fail(error)
        self._settle()
        windows = self._open()
        if not windows and (self._intake.is_exhausted or self._is_stopping):
            self._finish()
        elif windows and not self._engine.works_by_itself:
            windows[0].wait(timeout_s)
        else:
            self._bell.acquire(timeout=min(timeout_s, LOOK_S))

    def _ring(self) -> None:
        """Have a look at what there is to do, whoever waits; called by any thread."""
        if self._bell.locked():
            with contextlib.suppress(RuntimeError):  # another was quicker
                self._bell.release()

    def _open(self) -> list[SingleRun]:
        return [window for window in list(self._running) if not window.is_over]

    def _wants_more(self) -> bool:
        """Whether workers will soon have nothing left, and more may be taken."""
        if self._intake.is_exhausted or self._is_stopping:
            return False
        gathered = self._gathered
        if gathered.is_iterated and self._n_taken - gathered.n_given > MOST_AHEAD * self._size:
            return False
        windows = self._open()
        if not windows:
            return True
        if len(windows) >= self._engine.calls_at_once:
            return False
        # Where results go is known when there is one.
        self._has_spec |= any(window.call.results.spec is not None for window in windows)
        if not self._has_spec:
            return False
        return sum(window.call.board.n_unclaimed for window in windows) < self._size

    def _next_size(self) -> int:
        """Return how many items make a window, by the time that they have taken so far."""
        smallest = self.request.max_workers * (self.request.chunksize or 1)
        now = [window.pace() for window in self._open()]
        n_items, worked_s = map(sum, zip(self._last_pace, *now, strict=True))
        if not n_items:
            return self._size
        gathered = self._gathered
        item_s = max(worked_s / n_items / self.request.max_workers, gathered.reader_s(), 1e-9)
        most = min(MOST_ITEMS, GROWTH * self._size)
        if gathered.is_iterated:  # nobody knows yet how quickly
            most = min(most, GROWTH * gathered.n_given)
        self._size = max(smallest, min(most, int(WINDOW_S / item_s)))
        self._intake.want(2 * self._size)
        return self._size

    def _hand_over(self, items: list[tuple[Any, ...]]) -> None:
        """Open a window of items."""
        n, first, out = len(items), self._n_taken, self.request.out
        if isinstance(out, np.ndarray):
            if first + n > len(out):
                raise ValueError(f"out= has {len(out)} rows, but the iterable gives more items")
            out = out[first : first + n]
        request = self.request._replace(
            iterables=self._source.window(first, items),
            n_tasks=n,
            first=first,
            out=out,
            max_workers=min(self.request.max_workers, n),
        )
        rows = self._gathered.rows(first, n)
        call = prepare(request, self._engine.warm_up, self._fixed, rows, self._team)
        call.tell = self._ring
        window = SingleRun(call, self._engine)
        self._n_taken += n
        # Before it begins: an interrupt may come in between.
        self._gathered.windows.append(window)
        self._running.append(window)
        if self._is_stopping:  # since we have looked: who stopped may not have seen this window
            window.stop()
        else:
            window.start()

    def _settle(self) -> None:
        """Take note of the windows that are over."""
        if self.state == "starting" and any(w.state != "starting" for w in self._running):
            self.state = "running"
        for window in list(self._running):
            if window.is_over:
                self._running.remove(window)
                self._has_spec |= window.call.results.spec is not None
                if window.error is not None:
                    self._fail(window.error)
                elif window.state == "stopped":
                    self._is_stopping = True
                self._past_stats = merged([*self._past_stats, *window.stats()])
                self._last_pace = window.pace()
                window.call.tell = None
                window.forget_items()

    def _fail(self, error: BaseException) -> None:
        if self.error is None:
            self.error = error
        self.stop()

    def _finish(self) -> None:
        with self._finishing:
            if not self.is_over:
                self._note_end()
                self._end()

    def _note_end(self) -> None:
        out = self.request.out
        self._intake.close()
        if not self._is_stopping and isinstance(out, np.ndarray) and self._n_taken != len(out):
            self.error = ValueError(
                f"out= has {len(out)} rows, but the iterable gave {self._n_taken} items"
            )
        if self.error is None and not self._is_stopping and self._intake.error is not None:
            self.error = raised_by_source(self._intake.error, self._n_taken)
        if self.error is not None:
            self.state = "failed"
        else:
            self.state = "stopped" if self._is_stopping else "done"
        self._fixed = self._team.code = None
