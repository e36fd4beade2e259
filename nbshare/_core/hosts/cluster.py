"""The engine of the client, which runs a call in blocks on the hosts of a cluster.

The call's thread submits tasks to the cluster, as long as there are items. Each task that begins on
a host has a thread here::

    claim a range of items ──► pack it by value ──► host ──► store what comes, as a worker does
              ▲                                                     │
              └─────────────────────────────────────────────────────┘

A block is about half a second of work, so a tiny item costs little and Stop and the plot wait for
nothing. With more than 75 workers blocks are longer, for one process packs and stores all of them.
At first, while nobody knows how long items take, and at the end, so that all hosts finish together,
blocks are smaller.
"""

from __future__ import annotations

import _thread
import itertools
import math
import os
import pickle
import queue
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from nbshare._core.arrays.arena import Arena
from nbshare._core.engine.call import Call, Engine
from nbshare._core.engine.placing import place
from nbshare._core.engine.preparing import new_call, pack_fixed, pack_sources
from nbshare._core.engine.request import Request
from nbshare._core.engine.supply import Pace
from nbshare._core.functions.freshness import own_modules, packed_sources
from nbshare._core.functions.installed import is_installed
from nbshare._core.hosts.inbox import Inbox
from nbshare._core.hosts.inputs import Held
from nbshare._core.hosts.line import lines_at, receive, send
from nbshare._core.hosts.protocol import Block, ClusterTask, Common, Hosts, Reply
from nbshare._core.hosts.travel import traveller
from nbshare._core.memory import handle_of
from nbshare._core.store.pages import ATTEMPTS
from nbshare._core.store.rows import runs_of
from nbshare._core.wire.board import ITEM, ITEM_STOP, NO_ITEM, SINCE, Claims, give_back
from nbshare._core.wire.orders import Sources
from nbshare._core.wire.settings import portable
from nbshare.errors import WorkerDiedError, noted, without_frames

BLOCK_S = 0.5  # of work
BLOCKS_PER_S = 150  # of all workers together (client and scheduler manage about 250)
LEAST_S = 0.05  # though fewer items are left, as a task of a cluster takes some 10 ms
MOST_BYTES = 16 << 20  # of the items, and of the results, of a block
STOP_S = 0.7  # for the replies of a stopped call, as an interrupt waits for a second
LOOK_S = 1.0  # between looks at what no message tells
MOST_FAILED = 3  # as of workers of this machine

_numbers = itertools.count(1)


class Cluster(Engine):
    """Runs one call on hosts.

    Parameters
    ----------
    hosts : Hosts
        The cluster.

    Notes
    -----
    Threads of its own do everything, under a lock where they share objects.
    """

    in_process = True  # this one writes all results
    portion_s = 2.0

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._lines = lines_at(hosts.address)
        self._news: queue.SimpleQueue[int | None] = queue.SimpleQueue()  # tasks that have ended
        self._tasks: dict[int, ClusterTask] = {}  # of the cluster, until they end
        self._waiting: set[int] = set()  # those that have not begun
        self._n_failed = 0  # tasks, one after the other, that could not begin
        self._lock = _thread.allocate_lock()  # for what follows
        self._blocks: dict[int, range] = {}  # under way, by the rows of the board that show them
        self._item_nbytes = 0.0  # lately
        self._end_at = math.inf

    # ------------------------------------------------------------------------ before

    def prepare(self, request: Request) -> Call:
        """Pack what all blocks share, and return the call.

        Raises
        ------
        UnsendableError
            Something cannot be pickled, or works on one machine only.
        """
        self._block_s = max(BLOCK_S, request.max_workers / BLOCKS_PER_S)
        arena = Arena(by_value=True)
        fixed = pack_fixed(arena, request)
        # All objects that can be known, as it will be seen later which ones items name.
        fixed, self._known = fixed._replace(are_named=True), arena.known
        if request.n_items != 0:
            some = [None if column is None else column[:1] for column in request.iterables]
            pack_sources(Arena(by_value=True, known=self._known), some)
        modules = own_modules()
        sources = arena.add(packed_sources(modules.values()))
        nbytes = arena.nbytes  # placing empties it
        small, segments, _ = placed = place(arena)
        self._name = f"call {next(_numbers)}"
        self._lines.held[self._name] = Held(nbytes, placed)
        self._lines.calls[self._name] = self._give_blocks
        out: Any = request.out
        if isinstance(out, np.ndarray):
            out = np.empty((0, *out.shape[1:]), out.dtype)
        self._common = Common(
            nbytes=nbytes,
            small=small,
            handle=None if small else handle_of(segments[0][0], is_held=False),
            sources=sources,
            fixed=fixed,
            settings=_settings(request, modules),
            policy=request.workers_policy,
            out=out,
            news_s=self._block_s,
        )
        return new_call(request, self, fixed, [], Sources([]))

    # -------------------------------------------------------------------- from any thread

    def submit(self, call: Call) -> None:
        """Begin a call, in a thread of its own."""
        if call.results.is_over:
            return
        call.state = "running"
        try:
            _thread.start_new_thread(self._run, (call,))
        except RuntimeError as error:  # no more threads are allowed
            self._leave()
            call.note_failure(error)
            call.finish(is_whole=False)

    def notify(self, call: Call) -> None:  # noqa: ARG002 - there is one
        """See that items have come, or that no more will."""
        self._news.put(None)

    def stop(self, call: Call, error: BaseException | None = None) -> None:
        """End a call early, with an error if there is one."""
        super().stop(call, error)
        self._news.put(None)
        if call.results.is_over:
            self._leave()

    # ------------------------------------------------------------------ the call's thread

    def _run(self, call: Call) -> None:
        self._call, self._inbox = call, Inbox(call)
        board, n_workers = call.board, call.request.max_workers
        self._free_rows, self._pace = list(range(n_workers))[::-1], Pace(0.0, n_workers)
        # All claims are made here, under the lock, in the name of a row that shows no worker.
        own = board.n_slots - 1, nullcontext(), n_workers, call.request.chunksize
        self._claims = Claims(board, *own, block_of=None, wait=lambda: False)
        self._claims.chunk_s, self._claims.least_s = self._block_s, LEAST_S
        ended = None
        while not self._is_over():
            try:
                if not board.stopped:
                    self._turn(ended)
            except BaseException as error:  # noqa: BLE001 - each cluster has its own
                self._fail(self._cause_of(error))
            ended = self._await_news()
        self._leave()
        call.finish(is_whole=call.is_complete)

    def _turn(self, ended: int | None) -> None:
        """Act on what has happened, and on the `ended` task of the cluster."""
        self._hosts.check()  # first, as a cluster that is gone may never answer
        if ended is not None:
            self._end_task(ended)
        self._send_tasks()

    def _cause_of(self, error: BaseException) -> BaseException:
        """Return why the cluster is gone, or the error itself if it is not."""
        try:
            self._hosts.check()
        except BaseException as cause:  # noqa: BLE001 - each cluster has its own
            return cause
        return error

    def _await_news(self) -> int | None:
        """Wait until something may have happened. Return the task of the cluster that has ended."""
        left_s = max(0.0, self._end_at - time.monotonic())
        with suppress(queue.Empty):
            return self._news.get(timeout=min(left_s, LOOK_S))
        return None

    def _is_over(self) -> bool:
        """Whether nothing is left to wait for. A stopped call is stopped everywhere."""
        call = self._call
        if self._lines.error is not None and not (call.error or call.board.stopped):
            self._fail(self._lines.error)
        if call.error is not None or self._lines.is_closed:
            call.board.stop()
        if not call.board.stopped:
            return call.is_complete and not self._blocks
        if self._end_at == math.inf:
            self._end_at = time.monotonic() + STOP_S
            self._end_tasks()
        return not self._blocks or time.monotonic() >= self._end_at

    def _leave(self) -> None:
        self._end_tasks()
        with self._lock:
            self._blocks.clear()  # what comes now is too late

    def _end_tasks(self) -> None:
        self._lines.end(self._name)
        for number, future in self._tasks.items():
            if number in self._waiting:
                with suppress(Exception):  # the cluster may be gone
                    future.cancel()

    def _send_tasks(self) -> None:
        """Have the cluster run as many tasks as there may be, or as can have items."""
        while len(self._tasks) < self._call.request.max_workers and self._has_items():
            self._send_task(next(_numbers))

    def _send_task(self, number: int) -> None:
        self._waiting.add(number)
        task = traveller(), tuple(self._lines.boot), self._name, number
        self._tasks[number] = future = self._hosts.submit(*task)
        future.add_done_callback(lambda _: self._news.put(number))

    def _has_items(self) -> bool:
        """Whether there are more items than tasks that have not begun."""
        board = self._call.board
        has_more = board.n_unclaimed > len(self._waiting) and board.has_waiting()
        return has_more and not (self._call.error or board.stopped)

    def _end_task(self, number: int) -> None:
        """Act on the end of a task of the cluster. That of its blocks is known already."""
        future = self._tasks.pop(number)
        if number not in self._waiting:
            return
        self._waiting.discard(number)
        try:
            if problem := future.result():
                raise pickle.loads(problem)
            raise ConnectionError("a host has lost its connection to the process of the call")
        except BaseException as error:  # noqa: BLE001 - each cluster has its own
            self._n_failed += 1
            if self._n_failed > MOST_FAILED:
                noted(error, "raised by the cluster that runs the call, before any item had begun")
                self._fail(error)

    def _fail(self, error: BaseException) -> None:
        self._call.note_failure(without_frames(error))
        self._news.put(None)

    # ------------------------------------------------------------------ threads of hosts

    def _give_blocks(self, connection: Any, number: int, host: str) -> None:
        """Give blocks to a task that has begun on a host, as long as it may stay there."""
        row, cause = None, None
        try:
            send(connection, self._common)
            connection.recv()  # the host has all inputs
            with self._lock:
                self._waiting.discard(number)
                self._n_failed = 0
                row = self._free_rows.pop() if self._free_rows else None
            if row is not None:  # otherwise the cluster repeats a task
                self._give_to(row, connection, host)
        except (OSError, EOFError) as error:  # the host is gone, or it has no memory
            cause = error
        except BaseException as error:  # noqa: BLE001 - an item cannot be sent, or a result stored
            self._fail(error)
        finally:
            if row is not None:
                with self._lock:
                    self._lose(row, host, cause)
                    self._free_rows.append(row)
            self._news.put(None)

    def _give_to(self, row: int, connection: Any, host: str) -> None:
        until_s = time.monotonic() + self._block_s
        while time.monotonic() < until_s and (block := self._next_block(row)) is not None:
            send(connection, block)
            while not self._take(row, host, receive(connection)):
                pass
        send(connection, None)

    def _next_block(self, row: int) -> Block | None:
        """Return the next items as a block, or None if there are none now."""
        call = self._call
        with self._lock:
            if call.error or not (items := self._claims.claim(self._seconds_of_item())):
                return None
            try:
                block = self._packed(items)
            except OSError as error:  # of this machine, so the host is not lost
                self._fail(error)
                raise
            self._item_nbytes = len(block.contents) / block.n
            self._blocks[row] = items
            shown = call.board.row(row)
            shown[SINCE], shown[ITEM_STOP] = time.monotonic_ns(), items.stop
            shown[ITEM] = items.start
            return block

    def _packed(self, items: range) -> Block:
        """Return claimed items as a block."""
        board, arena = self._call.board, Arena(by_value=True, known=self._known)
        attempts = None
        if board.has_failures:
            attempts = board.attempts_to_count(items.start, items.stop).copy()
        return Block(
            first=items.start,
            n=len(items),
            sources=pack_sources(arena, self._columns(items), items.start),
            contents=arena.all_contents(),
            attempts=attempts,
        )

    def _take(self, row: int, host: str, reply: Reply | Exception) -> bool:
        """Store what has become of a block. Return whether that was all."""
        if isinstance(reply, Exception):
            noted(reply, f"raised by nbshare on host {host}")
            raise reply
        with self._lock:
            if (items := self._blocks.get(row)) is None:
                return True
            try:
                self._inbox.take(items, row, host, reply)
            except OSError as error:  # of this machine, so the host is not lost
                self._fail(error)
                raise
            if reply.is_last:
                del self._blocks[row]
                self._call.board.row(row)[ITEM] = NO_ITEM
            return reply.is_last

    def _lose(self, row: int, host: str, cause: BaseException | None) -> None:
        """Count what was not done of a block whose host was lost, if there is one, as failed."""
        call = self._call
        call.board.row(row)[ITEM] = NO_ITEM
        undone = [i for i in self._blocks.pop(row, ()) if not call.board.state(i)]
        again: list[int] = []
        if not undone or call.error or call.board.stopped or self._lines.is_closed:
            return
        first, last = undone[0], undone[-1]
        name = call.name_of(first) if first == last else f"items {first} to {last}"
        for i in undone:
            attempts = call.board.attempts_to_count(i, i + 1)
            attempts += 1
            if attempts[0] & ATTEMPTS <= call.request.policy.retries:
                again.append(i)
                continue
            error = WorkerDiedError(f"host {host} was lost while it worked on {name}", i)
            error.__cause__ = None if cause is None else without_frames(cause)
            call.note_error(error, range(i, i + 1))
            if not call.request.policy.returns_errors:
                self._fail(error)
                return
            call.board.fail(i)
        for run in runs_of(np.array(again)):
            give_back(call.board, range(again[run.start], again[run.stop - 1] + 1), nullcontext())

    def _seconds_of_item(self) -> float:
        """Return how long an item takes, or more if it is large, 0 if nothing is known yet."""
        self._pace.look(self._call)
        spec, nbytes, item_s = self._call.results.output.spec, self._item_nbytes, self._pace.item_s
        if spec is not None and spec.dtype is not None:
            nbytes = max(nbytes, math.prod(spec.shape) * spec.dtype.itemsize)
        return item_s and max(item_s, self._block_s * nbytes / MOST_BYTES)

    def _columns(self, items: range) -> tuple[Sequence[Any], ...]:
        """Return what each iterable gives to some items."""
        columns, feed = self._call.request.iterables, self._call.feed
        fed = iter(feed.columns(items.start, items.stop) if feed is not None else ())
        return tuple(
            next(fed) if column is None else column[items.start : items.stop] for column in columns
        )


def _settings(request: Request, modules: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of this process that other hosts take over, with files of `modules`."""
    given = pickle.loads(request.context.settings)
    own = [folder for folder in given["path"] if not is_installed(os.path.join(folder, "_.py"))]
    files = {**modules, **given["files"]}  # they may be missing there, or older
    return {**portable(given), "files": files, "path": own}
