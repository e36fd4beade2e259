"""Runs a block as a call of the agent's engine, and reports its progress in replies."""

from __future__ import annotations

import math
import os
import pickle
import time
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.engine.call import Call
from nbshare._core.engine.local import dispatcher
from nbshare._core.engine.placing import Placed, place_bytes
from nbshare._core.engine.preparing import new_call
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request
from nbshare._core.hosts.protocol import Block, Common, Reply, ReportedError
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.logs import LogKey
from nbshare._core.store.pages import FAILED, IN_LOG, IN_OUTPUT, NOT_DONE
from nbshare._core.wire.board import PID
from nbshare._core.wire.context import Context, current_context
from nbshare._core.wire.failures import Death, Failure
from nbshare._core.wire.threads import threads_per_worker


class RemoteCall(Call):
    """A call that runs a block, and reports its progress in replies."""

    news_nbytes: float  # see `protocol.Common`

    def error_of(self, what: Failure | Death, worker: object) -> BaseException:
        """Return an error that carries the description of a failure."""
        assert isinstance(worker, int)
        return ReportedError(what, worker)

    @cached_property
    def _sent(self) -> Cursor:
        """The items that are in earlier replies."""
        return Cursor(self.board.n_items)

    def next_reply(self, *, is_last: bool) -> Reply:
        """Return the progress since the last reply."""
        page, results = self.board.page(0), self.results
        states, prints = self._new_states(), self.request.prints
        if not is_last and self.news_nbytes < math.inf:
            sizes = self._sizes(states)
            states[(sizes > 0) & (np.cumsum(sizes) > self.news_nbytes)] = NOT_DONE
        assert isinstance(prints, _Printed)
        errors = {i: error for i, error in results.errors.copy().items() if not self._sent.taken[i]}
        self._sent.take(states != NOT_DONE)
        is_row, is_logged = states == IN_OUTPUT, states == IN_LOG
        index = page.index[:, is_logged] if is_logged.any() else None
        keys = () if index is None else np.unique(index[0]).tolist()
        slots = np.array(self.rows())
        rows = results.output.some(0, len(states)) if is_row.any() else None
        return Reply(
            is_last=is_last,
            states=states.tobytes(),
            spec=results.output.spec,
            rows=rows if rows is None or is_row.all() else rows[is_row],
            entries=index,
            logs={key: self._cut_log(key, index) for key in keys},
            errors=errors,
            error=self.error if is_last else None,
            attempts=page.attempts if is_last and self.board.has_failures else None,
            prints=prints.take(),
            slots=slots[slots[:, PID] > 0],
            now_ns=time.monotonic_ns(),
            draws=self.board.draws,
        )

    def _new_states(self) -> npt.NDArray[np.uint8]:
        """Return the states of items that are done but not in an earlier reply."""
        page, results = self.board.page(0), self.results
        states = page.states()
        states[~self._sent.new(states != NOT_DONE)] = NOT_DONE
        # Items whose logs or errors have not arrived yet are left for the next reply.
        logged = np.flatnonzero(states == IN_LOG)
        states[logged[~results.logs.has(page.index[0, logged])]] = NOT_DONE
        for i in np.flatnonzero(states == FAILED).tolist():
            if i not in results.errors:
                states[i] = NOT_DONE
        return states

    def _sizes(self, states: npt.NDArray[np.uint8]) -> npt.NDArray[np.int64]:
        """Return the sizes of new results, in bytes."""
        logged, spec = np.flatnonzero(states == IN_LOG), self.results.output.spec
        sizes = np.zeros(len(states), np.int64)
        sizes[logged] = np.abs(self.board.page(0).index[2, logged])
        if spec is not None and spec.dtype is not None:
            sizes[states == IN_OUTPUT] = math.prod(spec.shape) * spec.dtype.itemsize
        return sizes

    def _cut_log(self, key: LogKey, index: Any) -> pickle.PickleBuffer:
        """Return the part of a log that contains entries, and make their offsets relative to it."""
        of_log = index[0] == key
        offsets = index[1, of_log]
        start = int(offsets.min())
        stop = int((offsets + np.abs(index[2, of_log])).max())
        index[1, of_log] -= start
        return pickle.PickleBuffer(self.results.logs.bytes_of(key, start, stop - start))


def call_of(block: Block, common: Common, fixed: Placed, sources: bytes) -> RemoteCall:
    """Return a call that runs a block with one worker."""
    out: Any = common.out
    if isinstance(out, np.ndarray):
        out = np.empty((block.n, *out.shape[1:]), out.dtype)
    context = _context(common, sources)
    request = Request(
        func=None,
        shared={},
        iterables=[],
        source=None,
        n_items=block.n,
        max_workers=1,
        chunksize=None,
        out=out,
        context=context,
        policy=block.policy,
        initializer=None,
        prints=_Printed(),
    )
    call = new_call(
        request,
        dispatcher(),
        common.fixed,
        [fixed, place_bytes(bytes(block.contents))],
        block.sources,
        n_threads=threads_per_worker(1, 1, context.environ),  # one, because the cluster counts CPUs
        first=block.first,
        make=RemoteCall,
    )
    assert isinstance(call, RemoteCall)
    call.news_nbytes = common.news_nbytes
    if block.attempts is not None:
        call.board.attempts_to_count(0, block.n)[:] = block.attempts
    return call


def _context(common: Common, sources: bytes) -> Context:
    """Return the context of this host, with the client's settings where they apply."""
    context = current_context()
    path = [*common.settings["path"]]
    path += [folder for folder in context.path if folder not in path]
    settings = {**pickle.loads(context.settings), **common.settings, "path": path}
    return context._replace(
        path=path, argv=settings["argv"], settings=pickle.dumps(settings), sources=sources
    )


class _Printed(Prints):
    """Keeps the prints of workers for the next reply."""

    def take(self) -> list[tuple[str, str]]:
        texts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._n_taken += sum(len(text) for _, text in texts)
        self.when_shown()
        return texts


def host_name() -> str:
    """Return the name of this host for messages."""
    part = os.environ.get("NBSHARE_HOST")
    return os.uname().nodename + (f"/{part}" if part else "")
