"""The line between the client and each agent: permission to begin, news, Stop, and the end of both.

The agent connects to the client when it starts. Both ends prove that they have the key, which came
with the cluster's own task. When one end is gone, the other knows: an agent ends, and the client
counts what ran there as lost.
"""

from __future__ import annotations

import _thread
import os
import pickle
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from nbshare.engine.local import at_shutdown
from nbshare.hosts.carrier import Boot, versions
from nbshare.hosts.inputs import Inputs, read_into, write
from nbshare.hosts.travel import library_digest, packed_library


class Line:
    """One end of a line, for several threads that send and one that receives."""

    def __init__(self, connection: Any, host: str = "") -> None:
        self.connection, self.host = connection, host
        self._sending = _thread.allocate_lock()

    def send(self, *message: Any) -> None:
        """Send a message; if the other end is gone, its receiver will find out."""
        buffers: list[pickle.PickleBuffer] = []  # they are not copied
        head = pickle.dumps(message, 5, buffer_callback=buffers.append)
        raw = [buffer.raw() for buffer in buffers]
        with self._sending, suppress(OSError):
            self.connection.send((head, [data.nbytes for data in raw]))
            for data in raw:
                write(self.connection, data)

    def receive(self) -> Any:
        """Return the next message.

        Raises
        ------
        EOFError, OSError
            The other end is gone.
        """
        head, sizes = self.connection.recv()
        buffers = [np.empty(nbytes, np.uint8).data for nbytes in sizes]
        for buffer in buffers:
            read_into(buffer, self.connection)
        return pickle.loads(head, buffers=buffers)


class Lines(Inputs):
    """The client's ends of all lines.

    Parameters
    ----------
    address : str
        Of this machine, where agents connect.

    Attributes
    ----------
    boot : Boot
        What tells agents how to connect.
    waiting, running : dict
        By the ids of blocks, those that may begin and all: a function that takes events.
    """

    def __init__(self, address: str) -> None:
        given, _, port = os.environ.get("NBSHARE_ADDRESS", "").partition(":")
        self.waiting: dict[int, Callable[[Any], None]] = {}
        self.running: dict[int, Callable[[Any], None]] = {}
        self._lines: list[Line] = []
        self.is_closed = False
        key = secrets.token_bytes(32)
        super().__init__((given or address, int(port or 0)), key)
        self.boot = Boot(
            name=secrets.token_hex(8),
            address=(given or address, self.address[1]),
            key=key,
            versions=dict(versions()),
            library=library_digest(),
        )

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

    def serve(self, connection: Any, what: str, *content: Any) -> None:
        """Do what a host wants; a line lasts as long as its agent."""
        match what, *content:
            case ("library",):
                connection.send_bytes(packed_library())
            case "host", name:
                line = Line(connection, name)
                self._lines.append(line)
                try:
                    self._listen(line)
                finally:
                    self._lines.remove(line)
                    for put in set(self.running.values()):
                        put(("lost", line))
            case _:
                super().serve(connection, what, *content)

    def _listen(self, line: Line) -> None:
        while True:
            what, block, *content = line.receive()
            if what == "begin":
                put = self.waiting.pop(block, None)
                if put is not None:
                    put(("begun", block, line))
                line.send("answer", block, put is not None)
            elif (put := self.running.get(block)) is not None:
                put(("news", block, *content))


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
