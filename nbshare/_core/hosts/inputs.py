"""Inputs of calls on their way, from the client to a host, and from host to host.

Hosts are a binary tree in the order in which they ask. Each reads from its parent, and gives to its
children what has come so far. So inputs leave the client once, however many hosts there are, and a
host sends them to two others at most. A host that loses its parent, or cannot reach it, reads the
rest from the client, and so it does from then on.
"""

from __future__ import annotations

import _thread
import socket
import threading
from contextlib import closing, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any

from nbshare._core.engine.placing import Placed
from nbshare._core.hosts.carrier import Address, connect, kept_alive
from nbshare._core.memory import pool, segment_of
from nbshare._core.system import with_room
from nbshare.errors import without_frames

PEER_S = 3.0  # for another host to answer
PIECE = 1 << 20  # bytes, received before they are given on


class Held:
    """Inputs of a call that this process has, or receives and gives to others at the same time.

    Parameters
    ----------
    nbytes : int
        Their size.
    placed : Placed, optional
        Their place. Default: new memory, for inputs that are still to come.
    """

    def __init__(self, nbytes: int, placed: Placed | None = None) -> None:
        self.nbytes, self.n_here = nbytes, nbytes if placed else 0
        if placed is None:
            memory = pool.filled(nbytes, [])  # workers can only read it
            found = segment_of(memory)
            assert found is not None
            placed = Placed(None, [(found[0], "c")], memory)
        self.placed = placed
        self._is_over = False
        self._change = threading.Condition()
        self._hosts: list[Address] = []  # that have asked for them

    @property
    def is_whole(self) -> bool:
        """Whether all of them are here."""
        return self.n_here == self.nbytes

    @property
    def data(self) -> memoryview:
        """The inputs themselves, as far as they are here."""
        return memoryview(self.placed.small or self.placed.segments[0][0])[: self.nbytes]

    def parent_of(self, host: Address | None) -> Address | None:
        """Return the host from which another one reads, or None if it reads from the client."""
        with self._change:
            if host is None or host in self._hosts:
                return None
            self._hosts.append(host)
            n_before = len(self._hosts) - 1
            return self._hosts[(n_before - 1) // 2] if n_before else None

    def give(self, connection: Any, start: int) -> None:
        """Send them from some byte on, as they come.

        Raises
        ------
        EOFError
            The call is over.
        """
        data = self.data
        while start < self.nbytes:
            with self._change:
                while self.n_here <= start and not self._is_over:
                    self._change.wait()
            if self._is_over:
                raise EOFError
            piece = data[start : min(self.n_here, start + PIECE)]
            connection.send_bytes(piece)
            start += piece.nbytes

    def take(self, connection: Any) -> None:
        """Receive the rest of them.

        Raises
        ------
        EOFError
            If the other end has no more, mostly because the call is over.
        """
        data = self.data
        while not self.is_whole:
            n = connection.recv_bytes_into(data, self.n_here)
            with self._change:
                self.n_here += n
                self._change.notify_all()

    def end(self) -> None:
        """Neither give nor take any more."""
        with self._change:
            self._is_over = True
            self._change.notify_all()


class InputServer:
    """Gives inputs to processes that prove to have a key, each in a thread.

    Parameters
    ----------
    address : (str, int)
        The address where they connect.
    key : bytes
        The secret that both ends prove to have.

    Attributes
    ----------
    address : (str, int)
        The same, with the port that the system has chosen for 0.
    held : dict
        The inputs, by the names of calls.
    is_closed : bool
        Whether nobody can connect any more.
    error : BaseException or None
        Why, unless `close` was called.
    """

    is_closed = False
    error: BaseException | None = None

    def __init__(self, address: Address, key: bytes) -> None:
        self._socket = socket.create_server(address)
        self._socket.settimeout(None)  # despite socket.setdefaulttimeout
        self.address: Address = self._socket.getsockname()[:2]
        self._key = key
        self._own: Address | None = self.address
        self.held: dict[str, Held] = {}
        _thread.start_new_thread(self._accept, ())

    def close(self) -> None:
        """Let nobody connect any more."""
        self.is_closed = True
        with suppress(OSError):  # wakes the thread that waits there
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def drop(self, call: str) -> None:
        """Free the inputs of a call, and stop sending them."""
        if (held := self.held.pop(call, None)) is not None:
            held.end()

    def complete(self, call: str, held: Held, client: Address) -> None:
        """Receive what is missing of a call's inputs, from the client or where it says.

        Raises
        ------
        EOFError, OSError
            The client is gone, or the call is over.
        """
        giver = client
        while not held.is_whole:
            own = self._own if giver == client else None
            try:
                with closing(connect(giver, self._key, PEER_S)) as connection:
                    connection.send(("need", call, own, held.n_here))
                    if (other := connection.recv()) is None:
                        held.take(connection)
                    giver = other or giver
            except (OSError, EOFError, AuthenticationError):
                if giver == client:
                    raise
                # There may be a firewall, so use the client alone from now on.
                self._own, giver = None, client

    def serve(self, connection: Any, what: str, *content: Any) -> None:
        """Do what a process wants. Give inputs from some byte on, or say who does."""
        match what, *content:
            case "need", call, host, start if (held := self.held.get(call)) is not None:
                connection.send(parent := held.parent_of(host))
                if parent is None:
                    held.give(connection, start)
            case _:
                raise EOFError  # the call is over

    def _accept(self) -> None:
        try:
            while True:
                with suppress(ConnectionAbortedError):
                    sock, _ = with_room(self._socket.accept)
                    _thread.start_new_thread(self._meet, (sock,))
        except BaseException as error:  # noqa: BLE001 - too many open files or threads, or closed
            if not self.is_closed:
                self.error = without_frames(error)
                self.close()  # or others would wait for an answer

    def _meet(self, sock: socket.socket) -> None:
        with (
            suppress(OSError, EOFError, AuthenticationError),
            closing(kept_alive(sock)) as connection,
        ):
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            self.serve(connection, *connection.recv())
