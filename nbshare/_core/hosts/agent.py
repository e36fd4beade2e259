"""The agent of a host, which runs blocks on the local engine, for one client.

It unpickles only what nbshare itself has packed. Its workers load the users' objects. A thread for
each carrier runs blocks, one after the other. One more listens to the client, and ends the process
when the client is gone.
"""

from __future__ import annotations

import _thread
import os
import pickle
import socket
import sys
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from typing import Any

from nbshare._core.engine.local import dispatcher, shutdown
from nbshare._core.engine.placing import Placed
from nbshare._core.hosts.carrier import Boot, dial, is_of_this_user
from nbshare._core.hosts.choice import outward_address
from nbshare._core.hosts.inputs import Held, InputServer
from nbshare._core.hosts.line import receive, send
from nbshare._core.hosts.protocol import Common
from nbshare._core.hosts.remote import RemoteCall, call_of, host_name
from nbshare._core.memory import open_handle

IDLE_S = 30.0  # without a carrier, before it ends


def main(fd: int) -> None:
    """Be the agent, to which carriers come on the socket `fd`."""
    boot = Boot(*pickle.load(sys.stdin.buffer))
    Agent(boot).serve(socket.socket(fileno=fd))


class Agent:
    """Runs the blocks of one client on this host.

    Parameters
    ----------
    boot : Boot
        How to reach the client.
    """

    def __init__(self, boot: Boot) -> None:
        self._host, self._boot = host_name(), boot
        self._inputs: InputServer | None = None  # until it has a line
        self._over: set[str] = set()  # calls
        self._lock = _thread.allocate_lock()  # for whichever carrier is first
        self._running: dict[RemoteCall, str] = {}  # and the calls that they are parts of
        self._carriers: set[socket.socket] = set()

    # ------------------------------------------------------------------ the client's line

    def _join(self) -> InputServer:
        """Have a line to the client. Return what gives inputs to others."""
        with self._lock:
            if self._inputs is None:
                dispatcher().warm_up(1)  # while inputs come
                line = dial(self._boot)
                line.send(("line",))
                self._inputs = InputServer(
                    (outward_address(self._boot.address[0]), 0), self._boot.key
                )
                _thread.start_new_thread(self._listen, (line, self._inputs))
            return self._inputs

    def _listen(self, line: Any, inputs: InputServer) -> None:
        """End what the client says is over, and this process with the client."""
        try:
            while (name := _received(line)) is not None:
                self._over.add(name)
                inputs.drop(name)
                for call, call_name in self._running.copy().items():
                    if call_name == name:
                        call.stop()
        except BaseException:  # noqa: BLE001 - the process would end without a word
            sys.excepthook(*sys.exc_info())
        finally:
            end_process()

    # ------------------------------------------------------------------------- carriers

    def serve(self, listener: socket.socket) -> None:
        """Serve carriers until there have been none for a while."""
        listener.settimeout(IDLE_S)
        while True:
            try:
                sock, _ = listener.accept()
            except TimeoutError:
                if not self._carriers:
                    end_process()
                continue
            self._carriers.add(sock)
            _thread.start_new_thread(self._attend, (sock,))

    def _attend(self, sock: socket.socket) -> None:
        try:
            if is_of_this_user(sock):
                with closing(Connection(sock.detach())) as connection, suppress(OSError, EOFError):
                    problem = self._run(connection)
                    connection.send_bytes(pickle.dumps(problem) if problem else b"")
        finally:
            self._carriers.discard(sock)

    def _run(self, carrier: Any) -> Exception | None:
        """Run blocks until the client has no more for a carrier. Return why that cannot be."""
        name, number = carrier.recv()
        try:
            inputs = self._join()
            with closing(dial(self._boot)) as client, suppress(EOFError):  # or the call is over
                client.send(("carrier", name, number, self._host))
                common: Common = receive(client)
                with self._lock:
                    held = self._get_inputs(inputs, name, common)
                start, nbytes = common.sources
                sources = bytes(held.data[start : start + nbytes])
                client.send("begin")
                try:
                    while (block := receive(client)) is not None:
                        call = call_of(block, common, held.placed, sources)
                        self._work(call, name, common.news_s, client, carrier)
                except Exception as error:  # noqa: BLE001 - the client says why items are lost
                    send(client, error)
        except Exception as error:  # noqa: BLE001 - for the client
            return error
        return None

    def _get_inputs(self, inputs: InputServer, name: str, common: Common) -> Held:
        """Have a call's inputs here, from the message, this machine's memory, or others, once."""
        if (held := inputs.held.get(name)) is None:
            placed = None if common.small is None else Placed(common.small, [])
            if common.handle is not None and "NBSHARE_HOST" not in os.environ:
                with suppress(OSError, LookupError):  # the client is on another machine
                    placed = Placed(None, [(open_handle(common.handle), "c")])
            inputs.held[name] = held = Held(common.nbytes, placed)
        try:
            inputs.complete(name, held, self._boot.address)
            return held
        finally:
            if name in self._over:  # meanwhile, so they would stay
                inputs.drop(name)

    def _work(self, call: RemoteCall, name: str, news_s: float, client: Any, carrier: Any) -> None:
        """Run a block. Tell the client what is done, on the way too if it takes long."""
        is_over = False
        self._running[call] = name
        try:
            call.start()
            if name in self._over:  # meanwhile
                call.stop()
            while not is_over:
                is_over = call.await_end(news_s)
                if carrier.poll():  # it is gone, because the cluster has ended it
                    raise EOFError("the cluster has ended the task")  # its items are lost
                send(client, call.next_reply(is_last=is_over))
        except BaseException:
            call.stop()
            raise
        finally:
            del self._running[call]


def _received(line: Any) -> str | None:
    """Return which call is over, or None for everything, or if the client is gone."""
    with suppress(EOFError, OSError):
        name: str | None = line.recv()
        return name
    return None


def end_process() -> None:
    """End this process and its workers."""
    with suppress(BaseException):
        shutdown()
    os._exit(0)
