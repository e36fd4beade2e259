"""The agent of a host: runs blocks on the local engine, for one client.

It unpickles only what nbshare itself has packed. Its workers load the users' objects. A thread for
each carrier waits for its block; one more listens to the client, and ends the process when the
client is gone.
"""

from __future__ import annotations

import _thread
import os
import pickle
import queue
import socket
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from nbshare.engine.local import dispatcher, shutdown
from nbshare.engine.preparing import Placed
from nbshare.errors import NbshareError
from nbshare.hosts.carrier import Boot, dial, is_of_this_user
from nbshare.hosts.executor import outward_address
from nbshare.hosts.inputs import Held, Inputs
from nbshare.hosts.line import Line
from nbshare.hosts.protocol import Block, Common
from nbshare.hosts.remote import RemoteCall, Replies, call_of, host_name
from nbshare.memory import open_handle
from nbshare.wire.board import LOADED

IDLE_S = 30.0  # without a carrier, before it ends
TOLD_S = 1.0  # for carriers that wait to be told why it cannot work
NEWS_S = 0.5  # between replies about a block that takes long; more, if blocks are long


def main(fd: int) -> None:
    """Be the agent; `fd`: the socket on which carriers come."""
    boot = Boot(*pickle.load(sys.stdin.buffer))
    agent = Agent(boot)
    _thread.start_new_thread(agent.listen, ())
    agent.serve(socket.socket(fileno=fd))


class Agent:
    """Runs the blocks of one client on this host.

    Parameters
    ----------
    boot : Boot
        How to reach the client.
    """

    def __init__(self, boot: Boot) -> None:
        self.host = host_name()
        self._boot, self._line = boot, None
        self._problem: Exception | None = None
        try:
            dispatcher().warm_up()  # while inputs come
            self._line = Line(dial(boot))
            self._line.connection.send(("host", self.host))
            self._inputs = Inputs((outward_address(boot.address[0]), 0), boot.key)
        except Exception as error:  # noqa: BLE001 - carriers tell
            self._problem = error
        self._sources: tuple[str, bytes] = "", b""  # those of the last block
        self._stopped: set[str] = set()  # calls, also those that are over
        self._fetching = _thread.allocate_lock()
        self._answers: dict[int, queue.SimpleQueue[bool]] = {}
        self._calls: dict[int, tuple[str, RemoteCall]] = {}  # by block
        self._n_carriers = 0

    # ------------------------------------------------------------------ the client's line

    def listen(self) -> None:
        """Do what the client says, until it is gone."""
        with suppress(OSError, EOFError):
            while self._line is not None:
                match self._line.receive():
                    case ("answer", block, may_begin):
                        self._answers[block].put(may_begin)
                    case ("stop", name):
                        self._stopped.add(name)
                        for call_name, call in list(self._calls.values()):
                            if call_name == name:
                                call.stop()
                    case ("end", name):
                        self._stopped.add(name)
                        self._inputs.drop(name)
                    case ("leave",):
                        break
        if self._line is not None:
            leave()

    def _may_begin(self, block: int) -> bool:
        assert self._line is not None
        answer: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._answers[block] = answer
        self._line.send("begin", block)
        try:
            return answer.get()
        finally:
            del self._answers[block]

    # ------------------------------------------------------------------------- carriers

    def serve(self, listener: socket.socket) -> None:
        """Serve carriers until there have been none for a while."""
        listener.settimeout(IDLE_S if self._problem is None else TOLD_S)
        while True:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if not self._n_carriers:
                    leave()
                continue
            sock.settimeout(None)
            self._n_carriers += 1
            _thread.start_new_thread(self._attend, (sock,))

    def _attend(self, sock: socket.socket) -> None:
        try:
            if is_of_this_user(sock):
                with closing(Connection(sock.detach())) as connection, suppress(OSError, EOFError):
                    problem = self._run(connection)
                    connection.send_bytes(pickle.dumps(problem) if problem else b"")
        finally:
            self._n_carriers -= 1

    def _run(self, connection: Any) -> Exception | None:
        """Run a carrier's block; return why that cannot be."""
        message = connection.recv_bytes()
        try:
            if self._problem is not None:
                return self._problem
            block: Block = pickle.loads(message)
            self._get_inputs(block.common)
            if not self._may_begin(block.id):
                return RuntimeError("these items were begun before")
            self._work(block, lambda: bool(connection.poll()))
        except (NbshareError, OSError, RuntimeError) as error:
            return error
        return None

    def _get_inputs(self, common: Common) -> None:
        """Have a call's inputs here: from the message, this machine's memory, or others, once."""
        with self._fetching:
            if common.call in self._inputs.held:
                return
            placed = None if common.small is None else Placed(common.small, [])
            if common.handle is not None and "NBSHARE_HOST" not in os.environ:
                with suppress(OSError, LookupError):  # the client is on another machine
                    placed = Placed(None, [(open_handle(common.handle), "r")])
            self._inputs.held[common.call] = Held(common.nbytes, placed)
            try:
                self._inputs.complete(common.call, self._boot)
                if common.call in self._stopped:  # meanwhile; they would stay
                    raise ConnectionError("the call is over")
            except BaseException:
                self._inputs.drop(common.call)
                raise

    # ---------------------------------------------------------------------------- blocks

    def _work(self, block: Block, is_abandoned: Callable[[], bool]) -> None:
        """Run a block; tell the client what is done, on the way too if it takes long."""
        assert self._line is not None
        engine, held = dispatcher(), self._inputs.held[block.common.call]
        call = call_of(block, held.placed, self._sources_of(block.common, held), engine)
        replies = Replies(call, self.host)
        self._calls[block.id] = block.common.call, call
        try:
            call.start()
            if block.common.call in self._stopped:  # since it may begin
                call.stop()
            news_s = max(NEWS_S, block.budget_s / 2)
            next_s = time.monotonic() + news_s
            left_s = block.budget_s
            while not call.await_end(min(NEWS_S, left_s if left_s > 0 else NEWS_S)):
                if is_abandoned():
                    call.stop()
                # A worker that has to be started first does not use it up.
                loaded_s = float(call.board.slots[:, LOADED].max()) / 1e9 or time.monotonic()
                left_s = loaded_s + block.budget_s - time.monotonic()
                if left_s <= 0:
                    engine.cut_short(call)
                if time.monotonic() >= next_s and (reply := replies.take(is_last=False)):
                    next_s = time.monotonic() + news_s
                    self._line.send("news", block.id, reply)
        finally:
            del self._calls[block.id]
        if not is_abandoned():  # else the cluster says so, and the items count as lost
            self._line.send("news", block.id, replies.take(is_last=True))

    def _sources_of(self, common: Common, held: Held) -> bytes:
        """Return packed source files, the same object each time."""
        if self._sources[0] != common.call:
            start, nbytes = common.sources
            self._sources = common.call, bytes(held.data[start : start + nbytes])
        return self._sources[1]


def leave() -> None:
    """End this process and its workers."""
    with suppress(BaseException):
        shutdown()
    os._exit(0)
