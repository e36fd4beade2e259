"""A running pipeline, as its job sees it: a call for each stage, and what comes out at the end."""

from __future__ import annotations

import _thread
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.ring import RingBuffer
from nbshare.arrays.shared_array import SharedArray
from nbshare.engine.block_results import BlockResults
from nbshare.engine.call import State
from nbshare.engine.ending import Ending
from nbshare.engine.single import SingleRun
from nbshare.engine.stats import StageStats, WorkerActivity, WorkerStats
from nbshare.errors import NbshareError, RingClosedError, RingTimeoutError, TaskTimeoutError
from nbshare.wire.results import unpack
from nbshare.wire.stages import (
    BLOCK,
    BLOCK_SINCE,
    HEADER_NBYTES,
    NO_BLOCK,
    STAGE_BEGUN,
    STAGE_ENDED,
    Place,
)

__all__ = ["Pipe", "Stage"]

LOOK_S = 0.1  # between looks for a block that takes too long


class Stage(NamedTuple):
    """A stage that is to run."""

    name: str
    run: SingleRun
    stations: SharedArray  # what its workers are doing: see `Station`


class Pipe(Ending):
    """A pipeline; see `nbshare.engine.run.Run`, of which the blocks are the items.

    Parameters
    ----------
    stages : sequence of Stage
        The loader first.
    rings : sequence of RingBuffer
        Behind each stage; the last takes the results' frames.
    timeout_s : float, optional
        How long a stage may work on a block.

    Notes
    -----
    A thread of its own takes the results; what the calls tell comes in other threads.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        rings: Sequence[RingBuffer],
        timeout_s: float | None = None,
    ) -> None:
        super().__init__()
        n_workers = sum(len(stage.stations) for stage in stages)
        # For the job: what has no meaning here is empty.
        self.request = stages[-1].run.request._replace(
            iterables=(), n_tasks=0, out=None, max_workers=n_workers
        )
        self.error: BaseException | None = None
        self._stages, self._rings = stages, list(rings)
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._next_look = 0.0 if timeout_s else math.inf  # for a block that takes too long
        self._results = BlockResults()
        self._failed_block: int | None = None
        self._is_stopping = False
        self._lock = _thread.allocate_lock()
        self._n_open = len(stages)
        self._n_given = 0
        self._last_look: list[StageStats] = []

    # ------------------------------------------------------------------ what a job reads

    @property
    def state(self) -> State:  # noqa: D102
        if self.is_over:
            return "failed" if self.error else "stopped" if self._is_stopping else "done"
        return "running" if any(s.run.state != "starting" for s in self._stages) else "starting"

    @property
    def n_tasks(self) -> int | None:  # noqa: D102
        if self._stages[0].run.state != "done":
            return None
        return self.stages()[0].n_blocks

    @property
    def n_done(self) -> int:  # noqa: D102
        return len(self._results)

    @property
    def n_ready(self) -> int:  # noqa: D102
        return sum(stage.run.n_ready for stage in self._stages)

    @property
    def errors(self) -> Mapping[int, BaseException]:  # noqa: D102
        block = self._failed_block
        return {} if self.error is None or block is None else {block: self.error}

    def stages(self) -> list[StageStats]:  # noqa: D102
        rings = list(self._rings)  # they go while others look
        return self._look(rings) if rings else self._last_look

    def _look(self, rings: Sequence[RingBuffer]) -> list[StageStats]:
        figures = [ring.statistics() for ring in rings]
        looks = []
        for k, stage in enumerate(self._stages):
            before, behind = figures[k - 1] if k else None, figures[k]
            is_last = k == len(self._stages) - 1
            looks.append(
                StageStats(
                    name=stage.name,
                    workers=len(stage.stations),
                    n_blocks=self.n_done if is_last else behind.n_put,
                    queued=before.queued if before else 0,
                    slots=rings[k - 1].slots if k else 0,
                    waited_for_input_s=before.consumers_waited_s if before else 0.0,
                    waited_for_output_s=behind.producers_waited_s,
                    elapsed_s=_elapsed_s(stage.stations),
                )
            )
        return looks

    def present(self) -> npt.NDArray[np.bool_]:  # noqa: D102
        return self._results.present(self.n_tasks)

    def partial(self) -> Any:  # noqa: D102
        return self._results.partial(self.n_tasks)

    def final(self) -> Any:  # noqa: D102
        return self._results.final()

    def stats(self) -> list[WorkerStats]:  # noqa: D102
        return [worker for stage in self._stages for worker in stage.run.stats()]

    def activity(self) -> list[WorkerActivity]:  # noqa: D102
        return [worker for stage in self._stages for worker in stage.run.activity()]

    def item(self, i: int) -> tuple[Any, ...]:  # noqa: D102
        raise LookupError(
            f"block {i} is not kept: it has gone through the slots of the pipeline. Run the loader "
            "in a loop to get it again."
        )

    def new_results(self) -> Iterator[tuple[int, Any]]:  # noqa: D102
        for block in self._results.newest(self._n_given):
            self._n_given += 1
            yield block, self._results.get(block)

    def fill_out(self) -> None:  # noqa: D102
        pass

    def let_go(self) -> None:  # noqa: D102
        pass  # it ends with its job

    # --------------------------------------------------------------------------- its life

    def start(self) -> None:  # noqa: D102
        _thread.start_new_thread(self._collect, ())
        for k, stage in enumerate(self._stages):
            stage.run.call_when_over(partial(self._note_end, k))
        for stage in self._stages:
            stage.run.start()

    def stop(self) -> None:  # noqa: D102
        self._is_stopping = True
        self._halt("the pipeline was stopped")

    def _halt(self, reason: str) -> None:
        """End all stages; what the last one has finished still comes."""
        for ring in self._rings[:-1]:
            ring.abort(reason)
        for stage in self._stages:
            if not stage.run.is_over:
                stage.run.stop()

    def _note_end(self, k: int) -> None:
        """Tell the next stage that no more will come, or all that one has failed."""
        name, run, _ = self._stages[k]
        if run.state == "failed" and run.error is not None:
            self._note_error(k, run.error)
            self._halt(f"stage {name!r} has failed")
        elif run.state == "stopped":
            self._halt("the pipeline was stopped")
        elif k < len(self._stages) - 1:
            self._rings[k].close()
        with self._lock:
            self._n_open -= 1
            is_last = not self._n_open
        if is_last:
            self._rings[-1].close()

    def _note_error(self, k: int, error: BaseException) -> None:
        """Keep the first error; what it brings about in the other stages is none."""
        stage = self._stages[k]
        places = [i for i, found in stage.run.errors.items() if found is error]
        block = int(stage.stations[places[0], BLOCK]) if places else NO_BLOCK
        if self._keep_error(error, block) and places:
            _name_block(error, Place(stage.name, places[0]), block)

    def _keep_error(self, error: BaseException, block: int) -> bool:
        """Keep an error, if it is the first; returns whether it is."""
        with self._lock:
            if self._is_stopping or self.error is not None:
                return False
            self.error, self._failed_block = error, None if block == NO_BLOCK else block
        return True

    def _collect(self) -> None:
        """Take the results until all stages are over."""
        frames = self._rings[-1]
        try:
            self._take_from(frames)
        except Exception as error:  # noqa: BLE001 - no memory, or one cannot be unpickled here
            with self._lock:
                self.error = self.error or error
            self._halt("a result could not be kept")
            for _ in frames:
                pass
        self._last_look = self._look(self._rings)  # for the last time: their memory goes
        self._rings.clear()
        self._end()

    def _take_from(self, frames: RingBuffer) -> None:
        parts: dict[int, npt.NDArray[np.uint8]] = {}
        while True:
            self._end_if_late()
            try:
                with frames.get(LOOK_S if self._timeout_s < math.inf else None) as slot:
                    self._take(np.asarray(slot), parts)
            except RingTimeoutError:
                continue
            except RingClosedError:
                return

    def _take(self, frame: npt.NDArray[np.uint8], parts: dict[int, npt.NDArray[np.uint8]]) -> None:
        """Take a frame of a result; `parts` are those of which some have come."""
        block, nbytes, start = frame[:HEADER_NBYTES].view(np.int64).tolist()
        part = frame[HEADER_NBYTES:]
        if block not in parts:
            parts[block] = np.empty(nbytes, np.uint8)
        parts[block][start : start + len(part)] = part
        if start + len(part) == nbytes:
            self._results.put(block, unpack(block, parts.pop(block)))

    def _end_if_late(self) -> None:
        """End all stages if one takes too long for a block."""
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_S
        for stage in self._stages:
            rows = np.asarray(stage.stations)
            times = rows[:, BLOCK_SINCE].copy()  # once: it may be 0 at the next look
            since_s = np.where(times > 0, times / 1e9, math.inf)
            place = int(since_s.argmin())
            if since_s[place] + self._timeout_s < time.monotonic():
                block = int(rows[place, BLOCK])
                if rows[place, BLOCK_SINCE] != times[place]:  # it has gone on with another one
                    continue
                text = (
                    f"block {block} in stage {stage.name!r} took longer than "
                    f"timeout={self._timeout_s:g} s; its worker was ended, and the other stages"
                )
                self._keep_error(TaskTimeoutError(text, block), block)
                self._halt(f"stage {stage.name!r} took too long")
                self._next_look = math.inf
                return


def _elapsed_s(stations: SharedArray) -> float:
    """Return how long the workers of a stage have been there, together."""
    rows = np.asarray(stations)
    ended = np.where(rows[:, STAGE_ENDED] > 0, rows[:, STAGE_ENDED], time.monotonic_ns())
    return float(np.where(rows[:, STAGE_BEGUN] > 0, ended - rows[:, STAGE_BEGUN], 0).sum() / 1e9)


def _name_block(error: BaseException, place: Place, block: int) -> None:
    """Let an error name stage and block instead of the worker that stands for them."""
    before, now = f"item {place.worker} ({place!r})", f"block {block} in stage {place.stage!r}"
    if block == NO_BLOCK:
        before, now = f"worked on {before}", f"waited for a block in stage {place.stage!r}"
    if isinstance(error, NbshareError) and error.args:
        error.args = (str(error.args[0]).replace(before, now), *error.args[1:])
        if hasattr(error, "index"):
            error.index = block
    notes = getattr(error, "__notes__", [])
    notes[:] = [str(note).replace(before, now) for note in notes]
