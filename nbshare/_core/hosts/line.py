"""Connections between the client and the agents.

Each agent has a line to the client as long as it lives. There it hears which calls are over, and
each end learns when the other one is gone. Each of its carriers has one more, while it works on a
call. Blocks come there, and their outcome goes back. Agents connect to the client. Both ends prove
that they have the key, which came with the cluster's own task.
"""

from __future__ import annotations

import _thread
import os
import pickle
import secrets
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from nbshare._core import PACKAGE
from nbshare._core.engine.local import at_shutdown
from nbshare._core.hosts.carrier import Boot, packed, versions
from nbshare._core.hosts.inputs import InputServer
from nbshare._core.hosts.travel import library_digest
from nbshare._core.system import processes


def send(connection: Any, message: Any) -> None:
    """Send an object, whose buffers are not copied."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(message, 5, buffer_callback=buffers.append)
    connection.send((head, len(buffers)))
    for buffer in buffers:
        connection.send_bytes(buffer.raw())


def receive(connection: Any) -> Any:
    """Return the next object.

    Raises
    ------
    EOFError, OSError
        The other end is gone.
    """
    head, n = connection.recv()
    return pickle.loads(head, buffers=[connection.recv_bytes() for _ in range(n)])


class Lines(InputServer):
    """The client's ends of all connections.

    Parameters
    ----------
    address : str
        The address of this machine where agents connect, with a port or without.

    Attributes
    ----------
    boot : Boot
        The data that tell agents how to connect.
    calls : dict
        The function, for each call by name, that gives blocks to a carrier. It takes a connection,
        the number of the cluster's task, and the host.
    """

    def __init__(self, address: str) -> None:
        host, _, port = address.partition(":")
        self.calls: dict[str, Callable[[Any, int, str], None]] = {}
        self._lines: list[Any] = []
        self._sending = _thread.allocate_lock()
        key = secrets.token_bytes(32)
        super().__init__((host, int(port or 0)), key)
        self.boot = Boot(
            name=secrets.token_hex(8),
            address=(host, self.address[1]),
            key=key,
            versions=dict(versions()),
            library=library_digest(),
        )

    def end(self, call: str) -> None:
        """Have all agents end what they do for a call."""
        self.calls.pop(call, None)
        self.drop(call)
        self._tell(call)

    def close(self) -> None:
        """Have all agents end."""
        super().close()
        self._tell(None)

    def _tell(self, call: str | None) -> None:
        """Tell all agents that a call is over, or everything."""
        for line in list(self._lines):
            with self._sending, suppress(OSError):
                line.send(call)

    def serve(self, connection: Any, what: str, *content: Any) -> None:
        """Do what a host wants. A line lasts as long as its agent."""
        match what, *content:
            case ("library",):
                connection.send_bytes(packed(PACKAGE))
            case ("line",):
                self._lines.append(connection)
                try:
                    connection.recv()  # nothing comes but its end
                finally:
                    self._lines.remove(connection)
            case "carrier", call, number, host if give := self.calls.get(call):
                give(connection, number, host)
            case _:
                super().serve(connection, what, *content)


_lines: dict[str, Lines] = {}  # by address


def lines_at(address: str) -> Lines:
    """Return the lines of this process at an address, or at the one that the user gives."""
    address = os.environ.get("NBSHARE_ADDRESS") or address
    if address not in _lines or _lines[address].is_closed:
        _lines[address] = Lines(address)
    return _lines[address]


def _close() -> None:
    while _lines:
        _lines.popitem()[1].close()


def _forget() -> None:
    """Close what is the parent's, in a forked child."""
    while _lines:
        lines = _lines.popitem()[1]
        for each in (lines._socket, *lines._lines):
            each.close()


at_shutdown.append(_close)
processes.at_fork(after_in_child=_forget)
