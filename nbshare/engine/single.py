"""One call, as its job sees it."""

from __future__ import annotations

import _thread
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from nbshare.engine.base import Engine
from nbshare.engine.call import Call, State
from nbshare.engine.request import Request
from nbshare.wire.board import IN_OUTPUT, N_ITEMS, WORKED

if TYPE_CHECKING:
    from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats

__all__ = ["SingleRun"]


class SingleRun:
    """A call and the engine that runs it; see `nbshare.engine.run.Run`."""

    def __init__(self, call: Call, engine: Engine) -> None:
        self._engine = engine
        self._given = np.zeros(call.request.n_tasks, np.bool_)
        self._copied: npt.NDArray[np.bool_] | None = None
        self._packing = _thread.allocate_lock()
        self.call = call
        self._board = call.board

    @property
    def request(self) -> Request:  # noqa: D102
        return self.call.request

    @property
    def state(self) -> State:  # noqa: D102
        return self.call.state

    @property
    def error(self) -> BaseException | None:  # noqa: D102
        return self.call.error

    @property
    def is_over(self) -> bool:  # noqa: D102
        return self.call.is_over

    @property
    def n_tasks(self) -> int:  # noqa: D102
        return self._board.n_tasks

    @property
    def n_done(self) -> int:  # noqa: D102
        return self._board.n_done()

    @property
    def n_ready(self) -> int:  # noqa: D102
        return self.call.n_ready

    @property
    def errors(self) -> Mapping[int, BaseException]:  # noqa: D102
        return self.call.results.errors

    def present(self) -> npt.NDArray[np.bool_]:  # noqa: D102
        return self._board.present()

    def partial(self) -> Any:  # noqa: D102
        return self.call.results.partial()

    def final(self) -> Any:  # noqa: D102
        return self.call.results.final(with_errors=self.request.policy.returns_errors)

    def stats(self) -> list[WorkerStats]:  # noqa: D102
        from nbshare.engine.stats import stats_of  # late: most calls do without

        call = self.call
        rows = [*call.past_slots, *call.board.slots.tolist()]
        return stats_of(rows, call.begun_ns, call.request.first, call.request.text_of)

    def activity(self) -> list[WorkerActivity]:  # noqa: D102
        from nbshare.engine.stats import activity_of  # late: most calls do without

        return activity_of(self.call.board, self.call.request.first, self.call.request.text_of)

    def stages(self) -> list[StageStats]:  # noqa: D102
        return []

    def item(self, i: int) -> tuple[Any, ...]:  # noqa: D102
        return tuple(column[i] for column in self.request.iterables)

    def new_results(self) -> Iterator[tuple[int, Any]]:  # noqa: D102
        for i in self.take_new():
            yield i, self.call.results.get(i)  # not kept here: the next may come much later

    def take_new(self) -> Iterator[int]:
        """Yield the items whose results have come, and count them as given."""
        for i in np.flatnonzero((self._board.done != 0) & ~self._given).tolist():
            if self.call.results.is_here(i):
                self._given[i] = True
                yield i

    @property
    def is_all_given(self) -> bool:
        """Whether it is over, and `new_results` has given everything."""
        return self.is_over and bool(self._given[self._board.done != 0].all())

    def pace(self) -> tuple[int, float]:
        """Return the items that its workers have done, and in how many seconds."""
        rows = self.call.board.slots.tolist()
        return sum(row[N_ITEMS] for row in rows), sum(row[WORKED] for row in rows) / 1e9

    def forget_items(self) -> None:
        """Let go of the items of a call that is over."""
        self.call.request = self.request._replace(iterables=())
        self.call.past_slots.clear()

    def fill_out(self) -> None:  # noqa: D102
        out = self.request.out
        if not isinstance(out, np.ndarray):  # first: it is asked at each turn
            return
        shared = self.call.results.array
        if shared is None or shared is out:
            return
        done = self._board.done == IN_OUTPUT
        if self._copied is None:
            self._copied = np.zeros_like(done)
        new = np.flatnonzero(done & ~self._copied)
        if new.size:
            out[new] = shared[new]
            self._copied[new] = True

    def start(self) -> None:  # noqa: D102
        self._engine.submit(self.call)

    def wait(self, timeout_s: float) -> bool:  # noqa: D102
        until_s = time.monotonic() + timeout_s
        self._pack(until_s)
        return self._engine.wait(self.call, max(0.0, until_s - time.monotonic()))

    def _pack(self, until_s: float) -> None:
        """Pack items that are not there yet, if there are any, for some time."""
        call, feed = self.call, self.call.feed
        if feed is None or not self._packing.acquire(blocking=False):
            return  # another thread does
        try:
            while not (feed.is_complete or call.board.stopped or call.is_over):
                feed.add()
                if time.monotonic() > until_s:
                    return
        except Exception as error:  # noqa: BLE001 - an item cannot be sent, or memory is short
            call.error = call.error or error.with_traceback(None)
            self._engine.stop(call)
        finally:
            self._packing.release()
        call.feed = None

    def stop(self) -> None:  # noqa: D102
        self._engine.stop(self.call)

    def let_go(self) -> None:  # noqa: D102
        pass  # it ends with its job

    def call_when_over(self, callback: Callable[[], object]) -> None:  # noqa: D102
        self.call.call_when_over(callback)
