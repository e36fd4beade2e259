"""The agent of a host: runs blocks on the local engine, for one client.

The agent unpickles only objects of nbshare. Its workers load users' objects. It has a thread for
each carrier, which runs one block. The agent ends when all processes that have sent blocks have
ended, or after some idle time.
"""

from __future__ import annotations

import _thread
import math
import os
import pickle
import socket
import time
from contextlib import closing, suppress
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.arena import Arena
from nbshare._core.engine.call import Call
from nbshare._core.engine.local import dispatcher, shutdown
from nbshare._core.engine.placing import Placed, place
from nbshare._core.engine.preparing import new_call
from nbshare._core.engine.prints import Prints
from nbshare._core.engine.request import Request
from nbshare._core.hosts.messages import kind_of, parts_of, receive, send, user_of
from nbshare._core.hosts.protocol import (
    Block,
    Common,
    Inputs,
    Order,
    Reply,
    ReportedError,
    as_buffers,
    from_buffers,
)
from nbshare._core.memory import open_handle, pool, segment_of
from nbshare._core.store.cursor import Cursor
from nbshare._core.store.logs import LogKey
from nbshare._core.store.pages import FAILED, IN_LOG, IN_OUTPUT, NOT_DONE
from nbshare._core.system import processes
from nbshare._core.wire.board import PID
from nbshare._core.wire.context import Context, current_context
from nbshare._core.wire.failures import Death, Failure
from nbshare._core.wire.threads import threads_per_worker

IDLE_S = 30.0  # idle time before the agent ends
LOOK_S = 1.0  # interval of checks whether senders are alive


def main(fd: int) -> None:
    """Run the agent. Carriers connect to the socket `fd`."""
    dispatcher().warm_up(1)  # while inputs arrive
    Agent().serve(socket.socket(fileno=fd))


class Held:
    """The inputs of a call on this host, or the memory for them.

    Parameters
    ----------
    inputs : Inputs
        The client's description of the inputs.
    placed : Placed, optional
        The inputs, if they need not be brought.
    """

    def __init__(self, inputs: Inputs, placed: Placed | None) -> None:
        self._inputs, self.lock = inputs, _thread.allocate_lock()  # for carriers that bring them
        self.n_here = inputs.nbytes if placed else 0
        if placed is None:
            memory = pool.filled(inputs.nbytes, [])  # workers can only read it
            found = segment_of(memory)
            assert found is not None
            placed = Placed(None, [(found[0], "c")], memory)
        self.placed = placed
        self._data = memoryview(placed.small or placed.segments[0][0])[: inputs.nbytes]

    @property
    def is_whole(self) -> bool:
        """Whether all bytes have arrived."""
        return self.n_here == self._inputs.nbytes

    def take(self, piece: Any) -> None:
        """Store the next bytes."""
        self._data[self.n_here : self.n_here + len(piece)] = piece
        self.n_here += len(piece)

    def part(self, place: tuple[int, int]) -> bytes:
        """Return a part of the bytes, given its start and size."""
        return bytes(self._data[place[0] : place[0] + place[1]])


def _received(inputs: Inputs) -> Placed | None:
    """Return inputs that came with the order, or are in the client's memory on this machine."""
    if inputs.small is not None:
        return Placed(bytes(inputs.small), [])
    if inputs.handle is not None and "NBSHARE_HOST" not in os.environ:
        with suppress(OSError, LookupError):  # the client is on another machine
            return Placed(None, [(open_handle(inputs.handle), "c")])
    return None


class Agent:
    """Runs the blocks of one client on this host."""

    def __init__(self) -> None:
        part = os.environ.get("NBSHARE_HOST")
        self._host = os.uname().nodename + (f"/{part}" if part else "")  # for messages
        self._lock = _thread.allocate_lock()  # for the inputs
        self._held: dict[str, Held] = {}  # by name, or by call if the client has the memory
        self._over: set[str] = set()  # calls
        self._begun: set[int] = set()  # numbers of tries of blocks
        self._running: dict[RemoteCall, str] = {}  # names of calls, by running block
        self._carriers: set[socket.socket] = set()
        self._senders: set[int] = set()  # processes that have sent carriers

    def serve(self, listener: socket.socket) -> None:
        """Serve carriers until no more will connect."""
        busy_at = time.monotonic()
        while time.monotonic() < busy_at + IDLE_S and self._has_senders():
            listener.settimeout(LOOK_S)
            with suppress(TimeoutError):
                sock, _ = listener.accept()
                pid, is_ours = user_of(sock)
                if is_ours:
                    self._senders.add(pid)
                    self._carriers.add(sock)
                    _thread.start_new_thread(self._attend, (sock,))
            if self._carriers:
                busy_at = time.monotonic()
        end_process()

    def _has_senders(self) -> bool:
        """Return whether a process that has sent carriers is alive, or none has connected yet."""
        alive = [pid for pid in self._senders if not processes.has_ended((pid, 0))]
        return bool(self._carriers or alive or not self._senders)

    def _attend(self, sock: socket.socket) -> None:
        try:
            with closing(sock), suppress(OSError, EOFError):
                message = receive(sock)
                _, *content = parts_of(message)
                if kind_of(message) == b"end":
                    self._end(bytes(content[0]).decode())
                    return
                try:
                    self._run(sock, int(content[0]), from_buffers(content[1:]))
                except EOFError:  # the cluster has ended the task, or the client has ended the call
                    return
                except Exception as error:  # noqa: BLE001 - for the client
                    send(sock, b"error", pickle.dumps(error))
        finally:
            self._carriers.discard(sock)

    def _end(self, name: str) -> None:
        """Stop the blocks of a call, or end this process for ""."""
        if not name:
            end_process()
        self._over.add(name)
        self._held.pop(name, None)
        for call, of in self._running.copy().items():
            if of == name:
                call.stop()

    def _run(self, sock: socket.socket, number: int, order: Order) -> None:
        """Receive a call's inputs and run a block, unless the cluster has repeated its task."""
        if (held := self._held_for(order)) is None:
            send(sock, b"lacks", b"name", self._host.encode(), b"")
            return
        with held.lock:  # one carrier at a time brings the inputs
            while not held.is_whole:
                self._check(order.call)
                send(sock, b"fetch", str(held.n_here).encode(), self._host.encode())
                held.take(parts_of(receive(sock))[1])
        self._check(order.call)
        send(sock, b"ready", self._host.encode())
        receive(sock)  # the carrier's permission to begin
        if number in self._begun:  # the cluster repeats a task
            return
        self._begun.add(number)
        if order.block is None:
            send(sock, b"last")
            return
        common: Common = pickle.loads(held.part(order.inputs.common))
        call = call_of(order.block, common, held.placed, held.part(common.sources))
        self._work(sock, call, order.call, common.news_s)

    def _held_for(self, order: Order) -> Held | None:
        """Return the inputs of a call, or None if they may be those of a call before.

        Drop inputs that no call needs.
        """
        call, inputs = order.call, order.inputs
        with self._lock:
            held = self._held.get(call) or self._held.get(inputs.name)
            placed = _received(inputs) if held is None else None
            if not (held or placed or inputs.name):
                return None
            for name in self._held.keys() - set(order.needed):
                self._held.pop(name, None)
            if held is None:
                held = Held(inputs, placed)
                self._held[call if placed else inputs.name] = held
            return held

    def _check(self, name: str) -> None:
        """Raise EOFError if a call is over."""
        if name in self._over:
            self._held.pop(name, None)
            raise EOFError

    def _work(self, sock: socket.socket, call: RemoteCall, name: str, news_s: float) -> None:
        """Run a block. Send a reply at its end, and also at intervals if it takes long."""
        self._running[call] = name
        try:
            call.start()
            if name in self._over:  # since the check
                call.stop()
            is_over = False
            while not is_over:
                is_over = call.await_end(news_s)
                reply = call.next_reply(is_last=is_over)
                # It fails if the carrier has disconnected, because the cluster has ended its task.
                send(sock, b"last" if is_over else b"reply", *as_buffers(reply))
        finally:
            del self._running[call]
            call.stop()


def end_process() -> None:
    """End this process and its workers."""
    with suppress(BaseException):
        shutdown()
    os._exit(0)


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
    context, items = _context(common, sources), Arena()
    items.add(bytes(block.contents))
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
        [fixed, place(items)],
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
