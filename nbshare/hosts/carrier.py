"""What runs in a process of the cluster: brings a message to the agent of its host, and waits.

The first one on a host starts the agent: the one that can bind the agent's name. The name
is one of Linux's abstract sockets, so it is free when the agent ends, however it ends.
"""

from __future__ import annotations

import _thread
import os
import pickle
import socket
import struct
import subprocess
import sys
from contextlib import closing
from multiprocessing.connection import Connection
from os.path import dirname
from typing import Any

from nbshare.hosts.protocol import Boot, versions

__all__ = ["carry", "is_of_this_user"]

ATTEMPTS = 3  # an agent with nothing to do may end just then
CREDENTIALS = struct.Struct("3i")

# Not a child of the process that starts it: Ray ends the children of its workers with them, but
# the agent works for all of its host.
_BOOT = f"""
import os, sys
if os.fork():
    os._exit(0)
sys.path.append({dirname(dirname(dirname(__file__)))!r})
from nbshare.hosts.agent import main
"""


def carry(boot: Boot, message: bytes, data: bytes | None = None, place: Any = None) -> bytes:
    """Bring a message, and the data that follow it, to the agent of this host; return its answer.

    `place` is where the cluster runs this.

    Raises
    ------
    RuntimeError
        This host has other versions than the client, or its agent cannot work.
    """
    if (here := versions()) != boot.versions:
        pairs = zip(("nbshare", "Python", "NumPy"), here, boot.versions, strict=True)
        differ = ", ".join(f"{name} {own} instead of {x}" for name, own, x in pairs if own != x)
        raise RuntimeError(f"host {socket.gethostname()} has {differ}: install the same there")
    for _ in range(ATTEMPTS):
        with closing(_connect(boot)) as connection:
            try:
                for part in (pickle.dumps(place), message, data):
                    if part is not None:
                        connection.send_bytes(part)
                answer: bytes = connection.recv_bytes()
            except (EOFError, OSError):  # the client refuses it if it was begun
                continue
            return answer
    raise ConnectionError(f"the agent of nbshare on host {socket.gethostname()} has ended")


def is_of_this_user(sock: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user: a name may be anybody's."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size)
    return bool(CREDENTIALS.unpack(data)[1] == os.getuid())


def _connect(boot: Boot) -> Any:
    """Connect to the agent of this host; start it if there is none."""
    # NBSHARE_HOST divides a machine into several hosts, as a container would.
    name = f"\0nbshare-{os.getuid()}-{boot.name}-{os.environ.get('NBSHARE_HOST', '')}"
    while True:
        sock = socket.socket(socket.AF_UNIX)
        try:
            sock.connect(name)
        except ConnectionRefusedError:
            sock.close()
            _start(boot, name)
            continue
        if not is_of_this_user(sock):
            sock.close()
            raise PermissionError("another user has taken the name of nbshare's agent")
        return Connection(sock.detach())


def _start(boot: Boot, name: str) -> None:
    """Start the agent, unless another process has just done it."""
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        try:
            listener.bind(name)
        except OSError:
            return
        listener.listen(socket.SOMAXCONN)
        agent = subprocess.Popen(
            [sys.executable, "-P", "-c", f"{_BOOT}main({listener.fileno()})"],
            pass_fds=[listener.fileno()],
            stdin=subprocess.PIPE,
            start_new_session=True,  # its worker processes are for all carriers of the host
        )
        assert agent.stdin is not None
        agent.stdin.write(pickle.dumps(boot))
        agent.stdin.close()
        _thread.start_new_thread(agent.wait, ())  # it ends as soon as it has forked
