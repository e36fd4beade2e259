"""The engine of the client, which runs a call in blocks on the hosts of a cluster.

One thread does all the work. It claims items, packs them by value, and submits them to the cluster
as a task, as long as items are left and each place has fewer than two tasks. It stores results as a
worker does::

    claim a range of items ──► pack it by value ──► task ──► store results, as a worker does
              ▲                                                     │
              └─────────────────────────────────────────────────────┘

A block is about half a second of work, so that tiny items cost little, and Stop and the plot are
prompt. With more than 75 workers, blocks are longer, because one process packs and stores all of
them. Blocks are smaller at the start, while the time per item is unknown, and at the end, so that
all hosts finish at about the same time.
"""

from __future__ import annotations

import _thread
import itertools
import math
import os
import pickle
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import numpy as np

from nbshare._core.arrays.arena import Arena
from nbshare._core.arrays.contents import nbytes_of
from nbshare._core.engine.call import Call, Engine
from nbshare._core.engine.preparing import new_call, pack_fixed, pack_sources
from nbshare._core.engine.request import Request
from nbshare._core.engine.supply import Pace
from nbshare._core.functions.freshness import own_modules, packed_sources
from nbshare._core.functions.installed import is_installed
from nbshare._core.hosts.carrier import PIECE
from nbshare._core.hosts.inbox import Inbox
from nbshare._core.hosts.protocol import (
    Block,
    Common,
    Hosts,
    Inputs,
    Order,
    as_buffers,
    from_buffers,
)
from nbshare._core.hosts.travel import library, running, traveller
from nbshare._core.memory import handle_of, pool, segment_of
from nbshare._core.messages import noted, without_frames
from nbshare._core.store.rows import runs_of
from nbshare._core.system import SYSTEM
from nbshare._core.wire.board import ITEM, ITEM_STOP, NO_ITEM, SINCE, Claims
from nbshare._core.wire.orders import Sources
from nbshare._core.wire.settings import portable
from nbshare.errors import WorkerDiedError

BLOCK_S = 0.5  # seconds of work in a block
BLOCKS_PER_S = 150  # for all workers together. Client and scheduler manage about 250
LEAST_S = 0.05  # least work in a block, because a task of a cluster costs about 10 ms
MOST_BYTES = 16 << 20  # limit for the items, and for the results, of a block
SMALL_BYTES = 64 << 10  # limit of inputs that are sent with each block
N_AHEAD = 2  # blocks per worker, so that no worker waits for this process
TOGETHER_S = 0.05  # time for all blocks on a host to report that it lacks inputs
STOP_S = 0.7  # time limit for replies of a stopped call, because an interrupt waits a second
LOOK_S = 1.0  # interval of checks of state that no message reports
MOST_FAILED = 3  # the same number as for workers of this machine

_numbers = itertools.count(1)


class _Sent:
    """A block that was submitted to the cluster.

    Parameters
    ----------
    items : range
        The items of the block.
    block : Block
        The packed items.
    """

    host: str | None = None  # where it has begun
    n_taken = 0  # messages
    n_lost = 0  # number of times that the cluster had lost inputs

    def __init__(self, items: range, block: Block) -> None:
        self.items, self.block = items, block


class Cluster(Engine):
    """Runs one call on hosts.

    Parameters
    ----------
    hosts : Hosts
        The cluster.

    Notes
    -----
    A separate thread does everything.
    """

    in_process = True  # because it writes all results
    portion_s = 2.0

    def __init__(self, hosts: Hosts) -> None:
        self._hosts = hosts
        self._sent: dict[int, _Sent] = {}  # by task
        # Blocks that wait for inputs or the library, by hosts that lack them. For each host, one
        # task brings them, or is due at some time.
        self._waiting: dict[str, dict[str, list[_Sent]]] = {"inputs": {}, "library": {}}
        self._due: list[tuple[float, str]] = []
        self._bringing: dict[int, str] = {}
        self._again: list[range] = []  # items to run again
        self._data: Any = None  # the inputs, if they are large
        self._source: Any = None  # where the cluster stores them
        self._n_failed = 0  # number of times in a row that blocks could not begin
        self._last_failed = 0  # the last task that had been submitted then
        self._item_nbytes = 0.0  # mean of recent items
        self._end_at = math.inf

    # ------------------------------------------------------------------------ before

    def prepare(self, request: Request) -> Call:
        """Pack the inputs of all blocks, and return the call.

        Raises
        ------
        UnsendableError
            If an object cannot be pickled, or works only on one machine.
        """
        self._block_s = max(BLOCK_S, request.max_workers / BLOCKS_PER_S)
        arena = Arena(by_value=True)
        fixed = pack_fixed(arena, request)
        # All known objects are named, because items that name them are packed later.
        fixed, self._known = fixed._replace(are_named=True), arena.known
        if request.n_items != 0:
            some = [None if column is None else column[:1] for column in request.iterables]
            pack_sources(Arena(by_value=True, known=self._known), some)
        modules = _with_slashes(own_modules())
        out: Any = request.out
        if isinstance(out, np.ndarray):
            out = np.empty((0, *out.shape[1:]), out.dtype)
        arena.settle()  # before `fixed` is pickled
        common = Common(
            sources=arena.add(packed_sources(modules.values())),
            fixed=fixed,
            settings=_settings(request, modules),
            out=out,
            news_s=self._block_s,
            news_nbytes=self._hosts.news_nbytes,
        )
        at = arena.add(pickle.dumps(common, 5))
        self._name, self._inputs = f"call {next(_numbers)}", self._placed(arena, at)
        return new_call(request, self, fixed, [], Sources([]))

    def _placed(self, arena: Arena, common: tuple[int, int]) -> Inputs:
        """Copy the contents of an arena to memory if they are large. Describe them."""
        nbytes = arena.nbytes
        if nbytes <= SMALL_BYTES:
            return Inputs("", nbytes, common, pickle.PickleBuffer(arena.all_contents()), None)
        _, parts = arena.contents()
        self._data = pool.filled(nbytes, parts)[:nbytes]
        self._spans = [(offset, offset + nbytes_of(part)) for offset, part in parts]
        found = segment_of(self._data)
        assert found is not None
        handle = handle_of(found[0], is_held=False) if SYSTEM == "linux" else None
        return Inputs("", nbytes, common, None, handle)

    # -------------------------------------------------------------------- from any thread

    def submit(self, call: Call) -> None:
        """Start a call, in a separate thread."""
        if call.results.is_final:
            return
        call.has_begun = True
        try:
            _thread.start_new_thread(self._run, (call,))
        except RuntimeError as error:  # no more threads are allowed
            call.note_failure(error)
            call.finish(is_whole=False)

    def notify(self, call: Call) -> None:  # noqa: ARG002 - there is one
        """Wake the thread of the call after items were added, or after the last item."""
        self._hosts.wake()

    def stop(self, call: Call, error: BaseException | None = None) -> None:
        """End a call early, with an error if one is given."""
        super().stop(call, error)
        self._hosts.wake()

    # ------------------------------------------------------------------ the call's thread

    def _run(self, call: Call) -> None:
        self._call, self._inbox = call, Inbox(call)
        board, n_workers = call.board, call.request.max_workers
        self._rows: dict[int, int] = {}  # rows of the board, by the task that they show
        self._free_rows, self._pace = list(range(n_workers))[::-1], Pace(0.0, n_workers)
        # This thread makes all claims, by a row of the board that shows no worker.
        own = board.n_slots - 1, nullcontext(), n_workers, call.request.chunksize
        self._claims = Claims(board, *own, block_of=None, wait=lambda: False)
        self._claims.chunk_s, self._claims.least_s = self._block_s, LEAST_S
        running[self._name] = self._inputs.name
        while not self._is_over():
            try:
                if not board.stopped:
                    self._hosts.check()  # first, because a lost cluster may never reply
                    self._bring()
                    self._send_blocks()
                for news in self._hosts.wait(self._left_s()):
                    self._hear(*news)
            except BaseException as error:  # noqa: BLE001 - each cluster has its own
                self._fail(self._cause_of(error))
        self._leave()
        call.finish(is_whole=call.is_complete)

    def _cause_of(self, error: BaseException) -> BaseException:
        """Return the error of the cluster if it is lost, else the error itself."""
        try:
            self._hosts.check()
        except BaseException as cause:  # noqa: BLE001 - each cluster has its own
            return cause
        return error

    def _left_s(self) -> float:
        at = min([self._end_at, *(at for at, _ in self._due)])
        return min(max(0.0, at - time.monotonic()), LOOK_S)

    def _is_over(self) -> bool:
        """Return whether the call is over. Stop a stopped call on all hosts."""
        call = self._call
        if call.error is not None or self._name not in running:
            call.board.stop()
        if not call.board.stopped:
            return call.is_complete and not self._sent
        if self._end_at == math.inf:
            self._end_at = time.monotonic() + STOP_S
            self._due.clear()
            self._end()
        return not self._sent or time.monotonic() >= self._end_at

    def _end(self) -> None:
        """Stop the call on all hosts, and cancel tasks that have not begun."""
        with suppress(Exception):  # the cluster may be lost
            self._hosts.end(self._name)

    def _leave(self) -> None:
        """Drop all tasks. Nothing uses the cluster afterwards."""
        running.pop(self._name, None)
        if self._data is not None or self._sent:
            self._end()
        if self._sent and self._hosts.kind == "executor":  # an executor cannot stop them
            blocks = "1 block" if len(self._sent) == 1 else f"{len(self._sent)} blocks"
            self._call.hints.append(f"{blocks} of the stopped run may continue on other machines")
        with suppress(Exception):
            self._hosts.close(self._name)
        self._sent.clear()
        self._source = self._data = None

    def _fail(self, error: BaseException) -> None:
        self._call.note_failure(without_frames(error))

    # ------------------------------------------------------------------------ to the cluster

    def _send_blocks(self) -> None:
        """Submit blocks as long as there are items, and room in the cluster."""
        while self._has_room() and (items := self._next_items()):
            block = self._packed(items)
            self._item_nbytes = len(block.contents.raw()) / block.n
            self._send(_Sent(items, block))

    def _next_items(self) -> range:
        """Return the next items to run, or an empty range if there are none now."""
        return self._again.pop() if self._again else self._claims.claim(self._seconds_of_item())

    def _has_room(self) -> bool:
        n, call, board = len(self._sent), self._call, self._call.board
        n += sum(len(blocks) for hosts in self._waiting.values() for blocks in hosts.values())
        has_more = self._again or (board.n_unclaimed > 0 and board.has_waiting())
        is_going = not (call.error or board.stopped)
        # If the cluster has more places than max_workers, waiting tasks would also run.
        most = call.request.max_workers
        most *= N_AHEAD if self._hosts.n_places <= most else 1
        return is_going and bool(has_more) and n < most

    def _send(self, sent: _Sent) -> None:
        """Submit a block to the cluster."""
        sent.host, sent.n_taken = None, 0
        number = self._submit(sent.block, self._source)
        self._sent[number] = sent
        self._show(number)

    def _submit(self, block: Block | None, source: Any, library: bytes | None = None) -> int:
        order = Order(self._name, self._inputs, [*running, *running.values()], block)
        number, buffers = next(_numbers), [*map(bytes, as_buffers(order))]
        place = self._hosts.kind, tuple(self._hosts.boot), self._name, number
        self._hosts.submit(number, traveller(), *place, source, library, buffers)
        return number

    def _packed(self, items: range) -> Block:
        """Return items as a block."""
        board, feed, some = self._call.board, self._call.feed, slice(items.start, items.stop)
        arena = Arena(by_value=True, known=self._known)
        fed = feed.columns(items.start, items.stop) if feed is not None else ()
        attempts = None
        if board.has_failures:
            attempts = board.attempts_to_count(items.start, items.stop).copy()
        return Block(
            first=items.start,
            n=len(items),
            sources=pack_sources(arena, self._call.request.at(some, fed), items.start),
            policy=self._call.request.workers_policy,
            contents=pickle.PickleBuffer(arena.all_contents()),
            attempts=attempts,
        )

    def _show(self, number: int) -> None:
        """Show a block on the board if a row is free."""
        if not self._free_rows:
            return
        self._rows[number] = row = self._free_rows.pop()
        shown, items = self._call.board.row(row), self._sent[number].items
        shown[SINCE], shown[ITEM_STOP] = time.monotonic_ns(), items.stop
        shown[ITEM] = items.start

    def _row_of(self, number: int) -> int:
        """Return the row of a block. If it has none, take that of the last block, which waits."""
        if (row := self._rows.get(number)) is None:
            self._rows[number] = row = self._rows.pop(max(self._rows))
        return row

    # ---------------------------------------------------------------------- from the cluster

    def _hear(
        self,
        number: int,
        first: int,
        messages: Sequence[Sequence[memoryview]],
        error: BaseException | None,
    ) -> None:
        """Handle messages of a task (some during its run, or all at its end), or its error.

        `first` is the number of the first message among all messages of the task.
        """
        if (lacks := self._bringing.pop(number, None)) is not None:
            if error is not None:  # such as one of an executor that cannot send as much
                self._count_failure(number, error)
            # An executor may have run it on another host than the one that it was meant for.
            hosts, ran = self._waiting[lacks], ""
            if messages and bytes(messages[0][0]) == b"host":
                ran = bytes(messages[0][1]).decode()
            for waits in hosts.pop(ran if ran in hosts else next(iter(hosts))):
                self._send(waits)
        if (sent := self._sent.get(number)) is None:
            return
        for k, message in enumerate(messages, first):
            kind = bytes(message[0])
            # The cluster may have repeated the task, which then says only how its last run ended.
            is_next = k == sent.n_taken or (k < sent.n_taken and kind in (b"lost", b"retired"))
            if is_next and number in self._sent:
                sent.n_taken += 1
                self._take(number, sent, kind, message[1:])
        if number in self._sent and error is not None:
            self._hosts.check()  # first, because a lost cluster loses all tasks
            self._lose(number, sent, error)  # it may have begun, although no message says so

    def _take(self, number: int, sent: _Sent, kind: bytes, content: Sequence[memoryview]) -> None:
        """Handle a message about a block."""
        if kind == b"host":
            sent.host, self._n_failed = bytes(content[0]).decode(), 0
        elif kind in (b"reply", b"last"):
            reply, row = from_buffers(content), self._row_of(number)
            self._inbox.take(sent.items, row, sent.host or "", reply)
            if reply.is_last:
                self._forget(number)
        elif kind == b"lost":
            self._lose(number, sent, None)
        elif kind == b"retired":
            self._forget(number)
            self._run_again(self._undone(sent))
        elif kind == b"lacks":
            self._forget(number)
            self._send_with(sent, *(bytes(part).decode() for part in content))
        elif sent.host is None:
            self._fail_to_begin(number, sent, pickle.loads(content[0]))
        else:
            error = pickle.loads(content[0])
            noted(error, f"raised by nbshare on host {sent.host}")
            raise error

    def _forget(self, number: int) -> None:
        """Drop a block, and show another that may have begun now."""
        del self._sent[number]
        if (row := self._rows.pop(number, None)) is not None:
            self._call.board.row(row)[ITEM] = NO_ITEM
            self._free_rows.append(row)
            if (waits := next((n for n in self._sent if n not in self._rows), None)) is not None:
                self._show(waits)

    def _send_with(self, sent: _Sent, lacks: str, host: str, why: str) -> None:
        """Send a host the inputs, their name or the library that it lacks, then the block again."""
        if lacks == "name" and not self._inputs.name:
            self._name_inputs()
        sent.n_lost += bool(why)
        if sent.n_lost > MOST_FAILED:
            self._fail(ConnectionError(f"host {host} cannot receive the inputs of the call: {why}"))
        if self._call.board.stopped or self._call.error:
            return
        if lacks == "name":
            self._send(sent)
            return
        if lacks == "inputs":
            self._source = self._hosts.offer(self._data, lambda: self._call.board.stopped)
            if self._source is not None:
                self._send(sent)
                return
        if host not in (hosts := self._waiting[lacks]):
            hosts[host] = []
            self._due.append((time.monotonic() + TOGETHER_S, lacks))
        hosts[host].append(sent)

    def _bring(self) -> None:
        """Submit tasks that bring inputs or the library to hosts that lack them.

        They may run on any host of an executor. It prefers one that lacks them, which is idle now.
        """
        while self._due and self._due[0][0] <= time.monotonic():
            _, lacks = self._due.pop(0)
            brought = (None, library()) if lacks == "library" else (self._data, None)
            self._bringing[self._submit(None, *brought)] = lacks

    def _name_inputs(self) -> None:
        """Name the inputs by a digest, because hosts may have those of an equal call before.

        It takes 0.2 s for 200 MB, which calls on this machine need not wait for.
        """
        import hashlib  # late, because it loads OpenSSL

        digest = hashlib.blake2b()
        for start, stop in self._spans:  # not what is between them, which is not cleared
            for k in range(start, stop, PIECE):
                if self._call.board.stopped:
                    return
                digest.update(self._data[k : min(k + PIECE, stop)])
        self._inputs = self._inputs._replace(name=digest.hexdigest())
        running[self._name] = self._inputs.name

    def _fail_to_begin(self, number: int, sent: _Sent, error: BaseException) -> None:
        """Queue the items of a block that could not begin, but only a few times in a row."""
        self._forget(number)
        if not self._call.board.stopped:  # hosts refuse blocks of a stopped call
            self._again.append(sent.items)
            self._count_failure(number, error)

    def _count_failure(self, number: int, error: BaseException) -> None:
        """Count a task that failed before any item began. End the call after a few in a row."""
        if number > self._last_failed:  # those under way fail together, as with a lost agent
            newest = max([number, *self._sent])
            self._n_failed, self._last_failed = self._n_failed + 1, newest
        if self._n_failed > MOST_FAILED:
            noted(error, "raised by the cluster passed as backend=, before any item had begun")
            self._fail(error)

    def _lose(self, number: int, sent: _Sent, cause: BaseException | None) -> None:
        """Count a failed attempt for the unfinished items of a lost block.

        Then queue these items again, or let them fail.
        """
        self._forget(number)
        call, undone = self._call, self._undone(sent)
        again: list[int] = []
        if not undone or call.error or call.board.stopped:
            return
        first, last = undone[0], undone[-1]
        name = call.name_of(first) if first == last else f"items {first} to {last}"
        for i in undone:
            if call.may_retry(i):
                again.append(i)
                continue
            host, why = f"host {sent.host}", ""
            if not sent.host:
                host, why = "a host", f": {type(cause).__name__}: {cause}"
            error = WorkerDiedError(f"{host} was lost while it was running {name}{why}", i)
            error.__cause__ = None if cause is None else without_frames(cause)
            call.note_error(error, range(i, i + 1))
            if not call.request.policy.returns_errors:
                self._fail(error)
                return
            call.board.fail(i)
        self._run_again(again)

    def _undone(self, sent: _Sent) -> list[int]:
        return [i for i in sent.items if not self._call.board.state(i)]

    def _run_again(self, items: Sequence[int]) -> None:
        for run in runs_of(np.array(items)):
            self._again.append(range(items[run.start], items[run.stop - 1] + 1))

    def _seconds_of_item(self) -> float:
        """Return the time per item, longer for large items, or 0 if unknown."""
        self._pace.look(self._call)
        spec, nbytes, item_s = self._call.results.output.spec, self._item_nbytes, self._pace.item_s
        if spec is not None and spec.dtype is not None:
            nbytes = max(nbytes, math.prod(spec.shape) * spec.dtype.itemsize)
        return item_s and max(item_s, self._block_s * nbytes / MOST_BYTES)


def _settings(request: Request, modules: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of this process that hosts use, including the files of `modules`."""
    given = pickle.loads(request.context.settings)
    own = [folder for folder in given["path"] if not is_installed(os.path.join(folder, "_.py"))]
    # Hosts may have none of these files, or older ones.
    files = {**modules, **_with_slashes(given["files"])}
    return {**portable(given), "files": files, "path": own}


def _with_slashes(files: Mapping[str, str]) -> dict[str, str]:
    """Return modules' files by paths that hosts can split, also if this is Windows."""
    return {name: path.replace(os.sep, "/") for name, path in files.items()}
