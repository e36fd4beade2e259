"""The line between the client and each agent: permission to begin, news, Stop, and the end of both.

The agent connects to the client when it starts. Both ends prove that they have the key, which came
with the cluster's own task. When one end is gone, the other knows: an agent ends, and the client
counts what ran there as lost.
"""

from __future__ import annotations

import _thread
import os
import socket
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing import AuthenticationError
from multiprocessing.connection import answer_challenge, deliver_challenge
from typing import Any

from nbshare.engine.local import at_shutdown
from nbshare.engine.preparing import Placed
from nbshare.hosts.carrier import kept_alive
from nbshare.hosts.travel import boot_at, packed_library


class Line:
    """One end of a line, for several threads that send and one that receives."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self._sending = _thread.allocate_lock()
        self.host = ""

    def send(self, *message: Any) -> None:
        """Send a message; if the other end is gone, its receiver will find out."""
        with self._sending, suppress(OSError):
            self.connection.send(message)


def bytes_of(placed: Placed) -> bytes | memoryview:
    """Return what has been placed."""
    return placed.small or memoryview(placed.segments[0][0])


class Lines:
    """The client's ends of all lines.

    Parameters
    ----------
    address : str
        Of this machine, where agents connect.

    Attributes
    ----------
    boot : Boot
        What tells agents how to connect.
    waiting : dict
        By the id of a block that may begin: a function that takes the line on which it does.
    inputs : dict
        What agents may fetch, by key.
    running : dict
        By the id of a block: a function that takes news of it.
    """

    def __init__(self, address: str) -> None:
        given, _, port = os.environ.get("NBSHARE_ADDRESS", "").partition(":")
        self._socket = socket.create_server((given or address, int(port or 0)))
        place = given or address, self._socket.getsockname()[1]
        self.boot = boot_at(place)
        self.waiting: dict[int, Callable[[Line], None]] = {}
        self.running: dict[int, Callable[..., None]] = {}
        self.inputs: dict[str, Placed] = {}
        self._lines: list[Line] = []
        self.is_closed = False
        _thread.start_new_thread(self._accept, ())

    def send(self, *message: Any) -> None:
        """Send a message to all agents."""
        for line in list(self._lines):
            line.send(*message)

    def close(self) -> None:
        """Have all agents end."""
        self.is_closed = True
        with suppress(OSError):  # wakes the thread that waits there
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self.send("leave")

    def forget(self) -> None:
        """In a forked child: close what is the parent's."""
        self.is_closed = True
        self._socket.close()
        for line in self._lines:
            line.connection.close()

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError:  # closed
                return
            _thread.start_new_thread(self._serve, (Line(kept_alive(sock)),))

    def _give(self, line: Line, key: str) -> None:
        """Send what a host needs, which has a line of its own, so that Stop need not wait."""
        with closing(line.connection):
            if key == "library":
                line.connection.send_bytes(packed_library())
            elif (placed := self.inputs.get(key)) is not None:
                line.connection.send_bytes(bytes_of(placed))

    def _serve(self, line: Line) -> None:
        with suppress(OSError, EOFError, AuthenticationError):
            deliver_challenge(line.connection, self.boot.key)
            answer_challenge(line.connection, self.boot.key)
            what, name = line.connection.recv()
            if what == "need":
                self._give(line, name)
                return
            line.host = name
            self._lines.append(line)
            while True:
                what, block, *content = line.connection.recv()
                if what == "begin":
                    begin = self.waiting.pop(block, None)
                    if begin is not None:
                        begin(line)
                    line.send("answer", block, begin is not None)
                elif (take := self.running.get(block)) is not None:
                    take(*content)
        if line in self._lines:
            self._lines.remove(line)
        for take in list(self.running.values()):
            take(line)
        line.connection.close()


_lines: dict[str, Lines] = {}  # by address


def lines_at(address: str) -> Lines:
    """Return the lines of this process at an address."""
    if address not in _lines or _lines[address].is_closed:
        _lines[address] = Lines(address)
    return _lines[address]


def _close() -> None:
    for lines in list(_lines.values()):
        lines.close()
    _lines.clear()


def _forget() -> None:
    for lines in _lines.values():
        lines.forget()
    _lines.clear()


at_shutdown.append(_close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
