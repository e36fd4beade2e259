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
from nbshare.engine.preparing import Placed, place_bytes
from nbshare.errors import NbshareError
from nbshare.hosts.carrier import is_of_this_user
from nbshare.hosts.line import bytes_of, dial
from nbshare.hosts.protocol import Block, Boot, Give, Input, Missing, Refused, Reply
from nbshare.hosts.remote import RemoteCall, Replies, call_of, host_name
from nbshare.memory import open_handle

__all__ = ["main"]

IDLE_S = 30.0  # without a carrier, before it ends
TOLD_S = 1.0  # for carriers that wait to be told why it cannot work
NEWS_S = 0.5  # between replies about a block that takes long; more, if blocks are long


def main(fd: int) -> None:
    """Be the agent; `fd`: the socket on which carriers come."""
    boot = pickle.load(sys.stdin.buffer)
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
        self._line = None
        self._problem: Exception | None = None
        try:
            self._line = dial(boot)
            self._line.connection.send(self.host)
        except Exception as error:  # noqa: BLE001 - carriers tell
            self._problem = error
        self._inputs: dict[str, Placed] = {}
        self._sources: tuple[str, bytes] = "", b""  # those of the last block
        self._stopped: set[str] = set()  # calls
        self._fetching = _thread.allocate_lock()
        self._arrived: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: dict[int, queue.SimpleQueue[bool]] = {}
        self._calls: dict[int, tuple[str, RemoteCall]] = {}  # by block
        self._n_carriers = 0

    # ------------------------------------------------------------------ the client's line

    def listen(self) -> None:
        """Do what the client says, until it is gone."""
        with suppress(OSError, EOFError):
            while self._line is not None:
                match self._line.connection.recv():
                    case ("answer", block, may_begin):
                        self._answers[block].put(may_begin)
                    case ("stop", name):
                        self._stopped.add(name)
                        for call_name, call in list(self._calls.values()):
                            if call_name == name:
                                call.stop()
                    case ("give", data):
                        self._arrived.put(data)
                    case ("end", name, keys):
                        self._stopped.discard(name)
                        for key in keys:
                            self._inputs.pop(key, None)
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
                    answer = self._answer(connection)
                    connection.send_bytes(pickle.dumps(answer, 5))
        finally:
            self._n_carriers -= 1

    def _answer(self, connection: Any) -> Any:
        """Return what becomes of a carrier's message; an error if it cannot be done."""
        place, message = pickle.loads(connection.recv_bytes()), connection.recv_bytes()
        try:
            if self._problem is not None:
                return self._problem
            match pickle.loads(message):
                case Give(key):
                    self._inputs[key] = place_bytes(connection.recv_bytes())
                    return Missing(self.host, (), place)
                case Block() as block:
                    missing = tuple(i.key for i in block.common.inputs if not self._has(i))
                    if block.common.is_anonymous:
                        for key in missing:
                            self._fetch(key)
                    elif missing:
                        return Missing(self.host, missing, place)
                    if not self._may_begin(block.id):
                        return Refused(self.host)
                    return self._work(block, lambda: bool(connection.poll()))
        except (NbshareError, OSError, RuntimeError) as error:
            return error

    def _has(self, wanted: Input) -> bool:
        """Whether an input is here, or can be had from the client's memory."""
        if wanted.key in self._inputs:
            return True
        if wanted.small is not None:
            self._inputs[wanted.key] = Placed(wanted.small, [])
            return True
        if wanted.handle is None or "NBSHARE_HOST" in os.environ:
            return False
        with suppress(OSError, LookupError):  # the client is on another machine
            self._inputs[wanted.key] = Placed(None, [(open_handle(wanted.handle), "r")])
            return True
        return False

    def _fetch(self, key: str) -> None:
        """Have the client send an input, once."""
        assert self._line is not None
        with self._fetching:
            if key not in self._inputs:
                self._line.send("need", key)
                if (data := self._arrived.get()) is None:
                    raise RuntimeError("the call is over")
                self._inputs[key] = place_bytes(data)

    # ---------------------------------------------------------------------------- blocks

    def _work(self, block: Block, is_abandoned: Callable[[], bool]) -> Reply:
        """Run a block; tell the client on the way what is done if it takes long."""
        assert self._line is not None
        fixed, sources = block.common.inputs
        engine = dispatcher()
        call = call_of(block, self._inputs[fixed.key], self._sources_of(sources.key), engine)
        replies = Replies(call, self.host)
        news_s = max(NEWS_S, block.budget_s / 2)
        next_s = time.monotonic() + news_s
        until_s = time.monotonic() + block.budget_s
        self._calls[block.id] = block.common.call, call
        try:
            call.start()
            if block.common.call in self._stopped:  # since it may begin
                call.stop()
            while not call.await_end(min(NEWS_S, max(0.0, until_s - time.monotonic()) or NEWS_S)):
                if is_abandoned():
                    call.stop()
                if time.monotonic() >= until_s:
                    engine.cut_short(call)
                if time.monotonic() >= next_s and (reply := replies.take(is_last=False)):
                    next_s = time.monotonic() + news_s
                    self._line.send("news", block.id, reply)
        finally:
            del self._calls[block.id]
        reply = replies.take(is_last=True)
        assert reply is not None
        return reply

    def _sources_of(self, key: str) -> bytes:
        """Return packed source files, the same object each time."""
        if self._sources[0] != key:
            self._sources = key, bytes_of(self._inputs[key])
        return self._sources[1]


def leave() -> None:
    """End this process and its workers."""
    with suppress(BaseException):
        shutdown()
    os._exit(0)
