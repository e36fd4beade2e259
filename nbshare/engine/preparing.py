"""Calls that are about to begin: their inputs in shared memory, and what their workers are told."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy.typing as npt

from nbshare.arrays.arena import Arena
from nbshare.arrays.inbox import Inbox
from nbshare.engine.call import MAX_REPLACED, Call, Entrance, Team
from nbshare.engine.placing import Fixed, Placed, pack_fixed, pack_items, place
from nbshare.engine.request import Request
from nbshare.engine.results import Results
from nbshare.memory.cpus import usable_cpus
from nbshare.wire.blas import threads_per_worker
from nbshare.wire.board import Board
from nbshare.wire.orders import Order, Task

__all__ = ["prepare", "prepare_open"]


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


def _call(
    request: Request,
    parts: Fixed,
    placed: list[Placed],
    sources: list[tuple[Any, ...]],
    rows: npt.NDArray[Any] | None,
    team: Team | None,
) -> Call:
    # Some more than workers: a late starter of a slot may still be there when it is replaced.
    n_slots = request.max_workers + MAX_REPLACED
    board = Board.create(request.n_tasks, n_slots)
    n_workers = request.max_workers if team is None else team.n_workers
    task = Task(parts.func, parts.shared, parts.initializer, request.policy)
    return Call(
        request,
        board,
        placed,
        Order(task, sources, request.max_workers, request.chunksize, request.first),
        n_threads=threads_per_worker(usable_cpus(), n_workers, os.environ),
        initializer_key=parts.initializer_key,
        results=Results.wanted_by(request, board, rows),
        n_slots=n_slots,
        team=team,
    )
