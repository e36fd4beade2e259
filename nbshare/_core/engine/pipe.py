"""Runs a pipeline, as its job sees it. Each stage is a call whose items are the blocks."""

from __future__ import annotations

import _thread
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from nbshare._core.arrays.ring import RingBuffer
from nbshare._core.engine.call import Call
from nbshare._core.engine.run import OwnRun
from nbshare._core.engine.stats import StageStats, WorkerActivity, WorkerStats
from nbshare._core.wire.board import ENDED, LOADED


class Pipe(OwnRun):
    """A running pipeline. Its results are those of its last stage.

    Parameters
    ----------
    calls : sequence of Call
        One call for each stage, that of the loader first.
    rings : sequence of RingBuffer
        The rings between consecutive calls.

    Notes
    -----
    Each call reports its end in a separate thread.
    """

    def __init__(self, calls: Sequence[Call], rings: Sequence[RingBuffer]) -> None:
        n_workers = sum(call.request.max_workers for call in calls)
        # Fields that a pipeline does not use are empty.
        last = calls[-1]
        request = last.request._replace(max_workers=n_workers)
        super().__init__(request, last.board, last.results)
        self.hints = [*dict.fromkeys(hint for call in calls for hint in call.hints)]
        self._calls, self._rings = calls, list(rings)
        self._failed: Call | None = None
        self._is_stopping = False
        self._lock = _thread.allocate_lock()
        self._n_open = len(calls)
        self._last_look: list[StageStats] = []
        for k, call in enumerate(calls):
            call.n_in_run = n_workers
            call.call_when_over(partial(self._note_end, k))

    # ----------------------------------------------------------------------- for the job

    @property
    def has_begun(self) -> bool:
        """Whether any worker is ready."""
        return any(call.has_begun for call in self._calls)

    @property
    def n_items(self) -> int | None:
        """Number of blocks, or None until the loader has ended."""
        return self._calls[0].n_items

    @property
    def errors(self) -> Mapping[int, BaseException]:
        """Failures by block, only those of the stage that failed."""
        return {} if self._failed is None else self._failed.errors

    def stages(self) -> list[StageStats]:
        """Return the stats of each stage."""
        rings = list(self._rings)  # another thread may clear it
        return self._look(rings) if rings else self._last_look

    def _look(self, rings: Sequence[RingBuffer]) -> list[StageStats]:
        figures = [ring.stats for ring in rings]
        joints = zip(self._calls, [None, *figures], [*figures, None], strict=True)
        return [
            StageStats(
                name=call.request.stage or "",
                workers=call.request.max_workers,
                n_blocks=behind.n_put if behind else call.n_done,
                queued=before.queued if before else 0,
                slots=rings[0].slots if before else 0,
                waited_for_input_s=before.consumers_waited_s if before else 0.0,
                waited_for_output_s=behind.producers_waited_s if behind else 0.0,
                elapsed_s=_elapsed_s(call),
            )
            for call, before, behind in joints
        ]

    def stats(self) -> list[WorkerStats]:
        """Return the stats of the workers."""
        return [worker for call in self._calls for worker in call.stats()]

    def activity(self) -> list[WorkerActivity]:
        """Return the current activity of each worker."""
        return [
            worker._replace(stage=call.request.stage or "")
            for call in self._calls
            for worker in call.activity()
        ]

    def loading_s(self) -> float:
        """Return how many seconds a worker has been loading its function, 0.0 if none is."""
        return max(call.loading_s() for call in self._calls)

    def item(self, i: int) -> tuple[Any, ...]:
        """Raise LookupError, because blocks are not kept."""
        return self._calls[-1].item(i)

    def new_results(self) -> Iterator[tuple[int, Any]]:
        """Yield the results since the previous call. For one reader."""
        return self._calls[-1].new_results()

    # --------------------------------------------------------------------------- its life

    def start(self) -> None:
        """Start the stages."""
        for call in self._calls:
            call.start()

    def stop(self, error: BaseException | None = None) -> None:
        """Stop the pipeline early, with an error if one is given."""
        self.error = self.error or error
        self._is_stopping = True
        self._halt("the pipeline was stopped")

    def _halt(self, reason: str) -> None:
        """Abort all rings and stop all stages."""
        try:
            for ring in list(self._rings):
                ring.abort(reason)
        finally:
            for call in self._calls:
                if not call.is_over:
                    call.stop()

    def _note_end(self, k: int) -> None:
        """Tell other stages that stage `k` has ended. After the last one, end the pipeline."""
        try:
            self._tell_others(k)
        except BaseException as error:  # noqa: BLE001 - no thread may wait forever
            self.error = self.error or error
            self._halt(f"{type(error).__name__}: {error}")
        finally:
            with self._lock:
                self._n_open -= 1
                is_last = not self._n_open
            if is_last:
                with suppress(Exception):
                    self._last_look = self._look(self._rings)  # before their memory is freed
                self._rings.clear()
                self._end("failed" if self.error else "stopped" if self._is_stopping else "done")

    def _tell_others(self, k: int) -> None:
        call = self._calls[k]
        if call.state == "failed":
            with self._lock:
                is_first = not self._is_stopping and self.error is None
                if is_first:  # this failure causes those of other stages
                    self.error, self._failed = call.error, call
            self._halt(f"stage {call.request.stage!r} has failed")
        elif call.state == "stopped":  # by `shutdown`, if not by `stop`
            self.stop()
        elif k < len(self._calls) - 1:
            self._calls[k + 1].close(call.n_items)  # first, because workers would leave too early
            self._rings[k].close()


def _elapsed_s(call: Call) -> float:
    """Return the sum of the lifetimes of a stage's workers, in seconds."""
    now_ns = time.monotonic_ns()
    rows = [row for row in call.board.slots.tolist() if row[LOADED]]
    since_ns = ((row[ENDED] if call.is_over else now_ns) - row[LOADED] for row in rows)
    return float(sum(since_ns) / 1e9)
