"""A block as a call of the agent's engine, and what has become of it as replies."""

from __future__ import annotations

import os
import pickle
import time
from typing import Any

import numpy as np

from nbshare.engine.call import Call
from nbshare.engine.local import dispatcher
from nbshare.engine.preparing import Items, Placed, new_call, place_bytes
from nbshare.engine.prints import Prints
from nbshare.engine.run import Request
from nbshare.hosts.protocol import Block, Common, Reply, ReportedError
from nbshare.wire.board import (
    FAILED,
    HURT,
    IN_LOG,
    IN_OUTPUT,
    NOT_DONE,
    PID,
    SLOT_WORDS,
)
from nbshare.wire.context import Context, current_context, threads_per_worker
from nbshare.wire.failures import Death, Failure, Lateness


class RemoteCall(Call):
    """A call whose failures are reported as they are described."""

    def error_of(self, what: Failure | Death | Lateness, worker: object) -> BaseException:
        """Return an error that carries the description."""
        assert isinstance(worker, int)
        return ReportedError(what, worker)


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
        n_tasks=block.n,
        max_workers=1,
        chunksize=None,
        out=out,
        context=context,
        policy=common.policy,
        initializer=None,
        prints=_Printed(),
    )
    call = new_call(
        request,
        dispatcher(),
        common.fixed,
        [fixed, place_bytes(block.contents)],
        Items(block.sources),
        n_threads=threads_per_worker(1, 1, context.environ),  # the cluster counts CPUs, one a task
        first=block.first,
        make=RemoteCall,
    )
    assert isinstance(call, RemoteCall)
    if block.attempts is not None:
        call.board.attempts_to_count(0, block.n)[:] = block.attempts
    return call


def _context(common: Common, sources: bytes) -> Context:
    """Return the settings of this host, with the client's where they mean the same here."""
    context = current_context()
    path = [*common.settings["path"]]
    path += [folder for folder in context.path if folder not in path]
    settings = {**pickle.loads(context.settings), **common.settings, "path": path}
    return Context(context.environ, path, pickle.dumps(settings), sources)


class _Printed(Prints):
    """Keeps what workers print until the next reply takes it."""

    def take(self) -> list[tuple[str, str]]:
        texts = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._n_taken += sum(len(text) for _, text in texts)
        self._tell()
        return texts


class Replies:
    """What is new of a block, from one reply to the next.

    Parameters
    ----------
    call : Call
        That runs it.
    """

    def __init__(self, call: Call) -> None:
        self._call = call
        self._given = np.zeros(call.board.n_tasks, np.bool_)
        self._errors: set[int] = set()
        self._slots = np.empty((0, SLOT_WORDS))

    def take(self, *, is_last: bool) -> Reply | None:
        """Return the next reply; None if nothing is new and more may follow."""
        call, board, results = self._call, self._call.board, self._call.results
        printed = call.request.prints
        assert isinstance(printed, _Printed)
        states = self._new_states()
        errors = {i: error for i, error in results.errors.items() if i not in self._errors}
        slots = np.array([*call.past_slots, *board.slots])
        slots = slots[slots[:, PID] > 0]
        prints = printed.take()
        if not (is_last or states.any() or prints or not np.array_equal(slots, self._slots)):
            return None
        self._slots = slots
        self._errors |= errors.keys()
        rows = index = None
        logs = {}
        if (are_rows := states == IN_OUTPUT).any():
            rows = results.rows(0, len(states))
            if not are_rows.all():
                rows = rows[are_rows]
        if (states == IN_LOG).any():
            index = board.page(0).index[:, states == IN_LOG]
            for key in np.unique(index[0]).tolist():
                logs[key] = self._cut_log(key, index)
        return Reply(
            is_last=is_last,
            states=states.tobytes(),
            spec=results.spec,
            rows=rows,
            entries=index,
            logs=logs,
            errors=errors,
            error=call.error if is_last else None,
            attempts=board.page(0).attempts if is_last and board.header[HURT] else None,
            prints=prints,
            slots=slots,
            now_ns=time.monotonic_ns(),
        )

    def _new_states(self) -> Any:
        """Return the states of items that are done, and in no reply yet."""
        page, results = self._call.board.page(0), self._call.results
        states = page.done.copy()
        states[self._given] = NOT_DONE
        # Logs and errors come after the states.
        for key in np.unique(page.index[0, states == IN_LOG]).tolist():
            if not results.logs.has((key, 0, 0, 0)):
                states[(states == IN_LOG) & (page.index[0] == key)] = NOT_DONE
        for i in np.flatnonzero(states == FAILED).tolist():
            if i not in results.errors:
                states[i] = NOT_DONE
        self._given |= states != NOT_DONE
        return states

    def _cut_log(self, key: int, index: Any) -> pickle.PickleBuffer:
        """Return the part of a log that has some entries, which then count from its start."""
        of_log = index[0] == key
        offsets = index[1, of_log]
        start = int(offsets.min())
        stop = int((offsets + np.abs(index[2, of_log])).max())
        index[1, of_log] -= start
        return pickle.PickleBuffer(self._call.results.logs.bytes_of((key, start, stop - start, 0)))


def host_name() -> str:
    """Return the name of this host in messages."""
    part = os.environ.get("NBSHARE_HOST")
    return os.uname().nodename + (f"/{part}" if part else "")
