"""The engine of the client: runs a call in blocks on the hosts of a cluster.

One thread for each call::

    claim a range of items ──► pack it by value ──► Hosts.submit ──► …
                                                                     ▼
    finish ◄── all done ◄── store what came, as a worker does ◄── queue ◄── replies, news, losses

A block is about half a second of work, so a tiny item costs little and Stop and the plot wait for
nothing. With more than 75 workers blocks are longer, for one thread packs and stores all of them.
At the end blocks are smaller, so that all hosts finish together. How long items take is
unknown at first: a block that takes longer than planned returns the items that it has not begun.
"""

from __future__ import annotations

import _thread
import itertools
import math
import os
import pickle
import queue
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare.arrays.arena import Arena
from nbshare.engine.call import Call
from nbshare.engine.preparing import Items, new_call, pack_fixed, place, source
from nbshare.engine.run import Engine, Request
from nbshare.errors import WorkerDiedError, noted, without_frames
from nbshare.functions.freshness import is_installed, packed_sources
from nbshare.hosts.inbox import Inbox
from nbshare.hosts.inputs import Held
from nbshare.hosts.line import Line, lines_at
from nbshare.hosts.protocol import (
    Block,
    Common,
    Future,
    Hosts,
    Reply,
)
from nbshare.memory import handle_of
from nbshare.wire.board import ATTEMPTS, HURT, ITEM, ITEM_STOP, NEXT, NO_ITEM, RESTORED, SINCE
from nbshare.wire.orders import nbytes_of

BLOCK_S = 0.5  # of work
BLOCKS_PER_S = 150  # of all workers together; client and scheduler manage about 250
LEAST_S = 0.05  # though fewer items are left: a task of a cluster takes some 10 ms
PROBE_S, PROBE_ITEMS = 0.2, 1024  # until it is known how long items take
MOST_BYTES = 16 << 20  # of the items, and of the results, of a block
STOP_S = 0.7  # for the replies of a stopped call; an interrupt waits for a second
LOOK_S = 1.0  # between looks at what no message tells
MOST_FAILED = 3  # as of workers of this machine

_ids = itertools.count(1)


class Sent:
    """A block that is under way.

    Parameters
    ----------
    items : range
        Its items.
    slot : int
        The row of the board that shows it.
    future : Future
        The task of the cluster.
    """

    def __init__(self, items: range, slot: int, future: Future) -> None:
        self.items, self.slot, self.future = items, slot, future
        self.line: Line | None = None  # of the host, when it has begun
        # Only then is it free for the next block: the host, and the cluster's place there.
        self.is_told, self.has_ended = False, False


class Cluster(Engine):
    """Runs one call on hosts.

    Parameters
    ----------
    hosts : Hosts
        The cluster.

    Notes
    -----
    A thread of its own does everything, but for what others post to its queue.
    """

    in_process = True  # this one writes all results
    can_write_files = False
    portion_s = 2.0

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._lines = lines_at(hosts.address)
        self._events: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self._sent: dict[int, Sent] = {}
        self._returned: deque[range] = deque()  # items to be sent again
        self._n_failed = 0  # tasks of the cluster, one after the other, that began nothing
        self._item_s = 0.0
        self._end_at = math.inf

    # ------------------------------------------------------------------------ before

    def prepare(self, request: Request) -> Call:
        """Pack what all blocks share, and return the call.

        Raises
        ------
        UnsendableError
            Something cannot be pickled, or works on one machine only.
        """
        arena = Arena(by_value=True)
        fixed = pack_fixed(arena, request)
        for column in request.iterables:
            if column is not None and len(column):
                source(Arena(by_value=True), column[:1])
        sources = arena.add(packed_sources())
        nbytes = arena.nbytes  # placing empties it
        small, segments, _ = placed = place(arena)
        name = f"call {next(_ids)}"
        self._lines.held[name] = Held(nbytes, placed)
        out: Any = request.out
        if isinstance(out, np.ndarray):
            out = out.dtype, out.shape[1:]
        self._common = Common(
            call=name,
            nbytes=nbytes,
            small=small,
            handle=None if small else handle_of(segments[0][0], is_held=False),
            sources=sources,
            fixed=fixed,
            settings=_settings(request),
            policy=request.policy,
            out=None if out is None else out if isinstance(out, tuple) else "list",
        )
        fed = [None for column in request.iterables if column is None]
        return new_call(request, self, fixed, [], Items([], fed))

    # -------------------------------------------------------------------- from any thread

    def submit(self, call: Call) -> None:
        """Begin a call, in a thread of its own."""
        if call.is_over:
            return
        call.state = "running"
        _thread.start_new_thread(self._run, (call,))

    def notify(self, call: Call) -> None:  # noqa: ARG002 - there is one
        """See that items have come, or that no more will."""
        self._events.put(("look",))

    def stop(self, call: Call) -> None:
        """End a call early."""
        call.board.stop()
        self._events.put(("look",))
        if call.state == "starting":  # it was never submitted
            self._leave()
            call.finish("stopped")

    # ------------------------------------------------------------------ the call's thread

    def _run(self, call: Call) -> None:
        self._call, self._inbox = call, Inbox(call)
        self._block_s = max(BLOCK_S, call.request.max_workers / BLOCKS_PER_S)
        # One block for each worker: a cluster's own queue may be in another order than the items.
        self._free_slots = list(range(call.request.max_workers))[::-1]
        try:
            self._send_blocks()
            while not self._is_over():
                left_s = max(0.0, self._end_at - time.monotonic())
                with suppress(queue.Empty):
                    self._handle(*self._events.get(timeout=min(left_s, LOOK_S)))
                self._send_blocks()
        except BaseException as error:  # noqa: BLE001 - nobody may wait for ever
            call.error = call.error or without_frames(error)
        finally:
            self._leave()
            if call.error is not None:
                call.finish("failed", call.error)
            else:
                call.finish("done" if call.is_complete else "stopped")

    def _is_over(self) -> bool:
        """Whether nothing is left to wait for; a stopped call is stopped everywhere."""
        call = self._call
        if call.error is not None or self._lines.is_closed:
            call.board.stop()
        if not call.board.stopped:
            return call.is_complete and not self._sent
        if self._end_at == math.inf:
            self._end_at = time.monotonic() + STOP_S
            self._lines.drop(self._common.call)  # what has not begun needs no inputs
            self._lines.send("stop", self._common.call)
            for block, sent in list(self._sent.items()):
                if self._lines.waiting.pop(block, None) is not None:  # it has not begun
                    sent.future.cancel()
                    self._forget(block)
        return not self._sent or time.monotonic() >= self._end_at

    def _leave(self) -> None:
        for block in list(self._sent):
            self._lines.waiting.pop(block, None)
            self._sent[block].future.cancel()
            self._forget(block)
        self._lines.drop(self._common.call)
        self._lines.send("end", self._common.call)

    def _handle(self, what: str, *content: Any) -> None:
        """Act on an event."""
        match what, *content:
            case "begun", block, line if block in self._sent:
                self._begin(self._sent[block], line)
            case "lost", line:
                for block in [b for b, sent in self._sent.items() if sent.line is line]:
                    self._lose(block, line.host)
            case "news", block, reply if block in self._sent:
                self._take(block, reply)
            case "answer", block, future if block in self._sent:
                self._answer(block, future)

    # --------------------------------------------------------------------- what is sent

    def _send_blocks(self) -> None:
        call = self._call
        while self._free_slots and not (call.error or call.board.stopped):
            if not (items := self._claim()):
                return
            try:
                self._send(items)
            except Exception as error:  # noqa: BLE001 - an item cannot be sent, or the cluster ended
                call.error = call.error or without_frames(error)
                return

    def _claim(self) -> range:
        """Take the next items; none if there are none now."""
        board = self._call.board
        if self._returned:
            size = self._size(self._returned[0].start)
            items = self._returned.popleft()
            if more := items[size:]:
                self._returned.appendleft(more)
            return items[: len(items) - len(more)]
        start, n_there = board.next_claim(), board.n_there
        if start < n_there:
            page_end = start - start % board.page_items + board.page_items
            stop = min(start + self._size(start), n_there, page_end)
            if board.header[RESTORED]:
                stop = board.first(start, stop, is_done=True)
        else:
            stop = start
        board.header[NEXT] = stop
        return range(start, stop)

    def _size(self, first: int) -> int:
        """Return how many items to send at a time."""
        request, board, spec = self._call.request, self._call.board, self._call.results.spec
        if request.chunksize is not None:
            return request.chunksize
        n_left = sum(map(len, self._returned)) + board.n_tasks - board.header[NEXT]
        by_time, share = float(PROBE_ITEMS), n_left / (2 * request.max_workers)
        if self._item_s:
            by_time, share = self._block_s / self._item_s, max(share, LEAST_S / self._item_s)
        nbytes = nbytes_of(self._columns(range(first, first + 1)))
        if spec is not None and spec.dtype is not None:
            nbytes = max(nbytes, math.prod(spec.shape) * spec.dtype.itemsize)
        return max(1, int(min(by_time, share, MOST_BYTES / max(nbytes, 1))))

    def _columns(self, items: range) -> tuple[Sequence[Any], ...]:
        """Return what each iterable gives to some items."""
        columns, feed = self._call.request.iterables, self._call.feed
        fed = iter(feed.columns(items.start, items.stop) if feed is not None else ())
        return tuple(
            next(fed) if column is None else column[items.start : items.stop] for column in columns
        )

    def _send(self, items: range) -> None:
        call, block_id = self._call, next(_ids)
        arena = Arena(by_value=True)
        sources = [source(arena, column, items.start) for column in self._columns(items)]
        attempts = None
        if call.board.header[HURT]:
            attempts = call.board.attempts_to_count(items.start, items.stop).copy()
        block = Block(
            id=block_id,
            common=self._common,
            first=items.start,
            n=len(items),
            sources=sources,
            contents=arena.all_contents(),
            spec=call.results.spec,
            attempts=attempts,
            budget_s=2 * self._block_s if self._item_s else PROBE_S,
        )
        put = self._events.put
        self._lines.waiting[block_id] = self._lines.running[block_id] = put
        try:
            future = self._hosts.submit(self._lines.boot, pickle.dumps(block, 5))
        except BaseException:
            del self._lines.waiting[block_id], self._lines.running[block_id]
            raise
        self._sent[block_id] = Sent(items, self._free_slots.pop(), future)
        future.add_done_callback(lambda done: put(("answer", block_id, done)))

    def _begin(self, sent: Sent, line: Line) -> None:
        """Show that a host has begun a block."""
        sent.line = line
        row = self._call.board.row(sent.slot)
        row[SINCE], row[ITEM_STOP] = time.monotonic_ns(), sent.items.stop
        row[ITEM] = sent.items.start

    def _forget(self, block: int) -> Sent:
        """Close the books on a block."""
        self._lines.running.pop(block, None)
        sent = self._sent.pop(block)
        self._free_slots.append(sent.slot)
        self._call.board.row(sent.slot)[ITEM] = NO_ITEM
        return sent

    # ---------------------------------------------------------------------- what comes

    def _answer(self, block: int, future: Future) -> None:
        """Act on the end of a task of the cluster."""
        try:
            if problem := future.result():
                raise pickle.loads(problem)
        except BaseException as error:  # noqa: BLE001 - each cluster has its own
            if self._lines.waiting.pop(block, None) is None:
                line = self._sent[block].line
                host = "of the cluster" if line is None else line.host
                self._lose(block, f"{host} ({type(error).__name__}: {error})")
                return
            self._return(self._forget(block).items)
            self._n_failed += 1
            if self._n_failed > MOST_FAILED:
                noted(error, "raised by the cluster that runs the call, before any item had begun")
                self._call.error = self._call.error or without_frames(error)
            return
        self._n_failed = 0
        self._sent[block].has_ended = True
        self._finish(block)

    def _take(self, block: int, reply: Reply) -> None:
        """Store what has become of a block."""
        sent = self._sent[block]
        worked_s, n_worked = self._inbox.take(sent.items, sent.slot, reply)
        if n_worked:
            self._item_s = max(worked_s, 1e-9) / n_worked
        if reply.is_last:
            sent.is_told = True
            self._finish(block)

    def _finish(self, block: int) -> None:
        """Send what was left of a block again, when host and cluster are done with it."""
        if self._sent[block].is_told and self._sent[block].has_ended:
            self._return(self._forget(block).items)

    def _return(self, items: range) -> None:
        """Send the items that are not done again."""
        undone = [i for i in items if not self._call.board.state(i)]
        for _, run in itertools.groupby(enumerate(undone), lambda pair: pair[1] - pair[0]):
            some = [i for _, i in run]
            self._returned.append(range(some[0], some[-1] + 1))

    def _lose(self, block: int, host: str) -> None:
        """Count what was not done of a block whose host was lost as failed."""
        call, sent = self._call, self._forget(block)
        items = sent.items
        undone = [i for i in items if not call.board.state(i)]
        if sent.is_told:
            self._return(items)
            return
        if not undone or call.board.stopped or self._lines.is_closed:
            return
        many = f" to {undone[-1]}" if len(undone) > 1 else ""
        for i in undone:
            attempts = call.board.attempts_to_count(i, i + 1)
            attempts += 1
            if attempts[0] & ATTEMPTS <= call.request.policy.retries:
                continue
            name = f"items {i}{many}" if many else call.name_of(i)
            error = WorkerDiedError(f"host {host} was lost while it worked on {name}", i)
            call.note_error(error, range(i, i + 1))
            if not call.request.policy.returns_errors:
                call.error = call.error or error
                return
            call.board.fail(i)
        self._return(items)


def _settings(request: Request) -> dict[str, Any]:
    """Return the settings of this process that other hosts take over."""
    given = pickle.loads(request.context.settings)
    own = [folder for folder in given["path"] if not is_installed(os.path.join(folder, "_.py"))]
    same = {name: given[name] for name in ("cwd", "umask", "files", "overridden", "warnings")}
    others = {"affinity": None, "authkey": None, "is_elsewhere": True}
    return {**same, **others, "path": own}
