"""The code in a process of the cluster, which has the agent of its host work, and waits.

The first one on a host starts the agent, namely the one that can bind the agent's name. The name is
one of Linux's abstract sockets, so it is free when the agent ends, however it ends.

This module travels as its source (`hosts.travel`) to processes that may have no nbshare, or another
version, or another Python. So it imports the standard library alone. The agent runs the client's
nbshare. If the host has not the same files, the client sends them, once, as a zip file in memory,
from which the agent and its workers import. The file ends with the agent.
"""

from __future__ import annotations

import _thread
import io
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from importlib.util import find_spec
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from typing import Any, NamedTuple

Address = tuple[str, int]  # host and port

CONNECT_S = 10.0
# Not a child of the process that starts it, because Ray ends the children of its workers with them,
# but the agent works for all of its host. And this nbshare, even if another is installed there.
_AGENT = """
import os, sys
if os.fork():
    os._exit(0)
sys.path.append({numpy!r})
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
spec = PathFinder.find_spec("nbshare", [{path}])
sys.modules["nbshare"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["nbshare"])
from nbshare._core.hosts.agent import main
main({fd})
"""


class Boot(NamedTuple):
    """How a carrier finds or starts the agent of its host, and the agent its client."""

    name: str  # of the client's agents, one on each host
    address: Address  # of the client's line
    key: bytes  # that both ends of a line prove to have
    versions: dict[str, str]
    library: bytes  # the digest of nbshare's files


class Carry:
    """The task that runs in the cluster. Any Python can unpickle it, as the source of this module.

    The code that cloudpickle sends runs on the same Python only, and another one could not say so.

    Parameters
    ----------
    source : str
        The source of this module.
    """

    __name__ = "nbshare"

    def __init__(self, source: str) -> None:
        self._names = {"__name__": "nbshare_carrier", "source": source}

    def __call__(self, boot: Any, *task: Any) -> bytes:
        """Have the agent of this host work on a call. Return "" or the pickled error.

        `boot` is a plain tuple.

        Raises
        ------
        RuntimeError
            This host has other versions than the client.
        ConnectionError
            The agent has ended.
        """
        with closing(_connect(Boot(*boot))) as connection:
            try:
                connection.send(task)
                answer: bytes = connection.recv_bytes()
            except (EOFError, OSError):
                name = socket.gethostname()
                raise ConnectionError(f"the agent of nbshare on host {name} has ended") from None
            return answer

    def __reduce__(self) -> Any:
        return eval, ("exec(source) or Carry(source)", self._names)


def is_of_this_user(sock: socket.socket) -> bool:
    """Whether the process at the other end belongs to the same user. A name may be anybody's."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return bool(struct.unpack("3i", data)[1] == os.getuid())


def dial(boot: Boot) -> Any:
    """Return a new connection to the client.

    Raises
    ------
    ConnectionError
        The client cannot be reached.
    """
    try:
        return connect(boot.address, boot.key, CONNECT_S)
    except OSError as error:
        raise ConnectionError(
            f"host {socket.gethostname()} cannot connect to the process that makes the call, at "
            f"{boot.address[0]}:{boot.address[1]} ({error}). Set the environment variable "
            "NBSHARE_ADDRESS there to an address, and if need be a port, that the hosts can reach"
        ) from None


def connect(address: Address, key: bytes, timeout: float) -> Any:
    """Return a new connection to a process that has the same key."""
    sock = socket.create_connection(address, timeout)
    connection = kept_alive(sock)
    answer_challenge(connection, key)
    deliver_challenge(connection, key)
    return connection


def kept_alive(sock: socket.socket) -> Any:
    """Return a connection that ends if the machine at its other end vanishes, after 20 s."""
    sock.settimeout(None)  # despite socket.setdefaulttimeout
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, 5),
        (socket.TCP_KEEPINTVL, 5),
        (socket.TCP_KEEPCNT, 3),
        (socket.TCP_USER_TIMEOUT, 20_000),  # ms, also of what was sent to it
        (socket.TCP_NODELAY, 1),
    ):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    return Connection(sock.detach())


def packed(folder: str) -> bytes:
    """Return the modules of nbshare's folder as a zip file, which is the same for the same ones."""
    from zipfile import ZipFile, ZipInfo  # late, because few processes need it

    found = (os.path.join(at, file) for at, _, files in os.walk(folder) for file in files)
    with ZipFile(archive := io.BytesIO(), "w") as library:
        for path in sorted(found):
            if path.endswith(".py"):
                with open(path, "rb") as file:
                    library.writestr(ZipInfo(f"nbshare{path[len(folder) :]}"), file.read())
    return archive.getvalue()


def digest_of(folder: str) -> bytes:
    """Return what changes with any module of nbshare's folder."""
    import hashlib  # late, because it loads OpenSSL

    return hashlib.sha256(packed(folder)).digest()


def versions() -> Iterator[tuple[str, str]]:
    """Give the versions that pickles and arrays survive no difference of, one after the other.

    Raises
    ------
    RuntimeError
        There is no NumPy.
    """
    yield "Python", ".".join(map(str, sys.version_info[:2]))
    try:
        import numpy as np
    except ImportError:
        raise RuntimeError(f"host {socket.gethostname()} has no NumPy: install it there") from None
    yield "NumPy", np.__version__.partition(".")[0]


def _connect(boot: Boot) -> Any:
    """Connect to the agent of this host. Start it if there is none."""
    # NBSHARE_HOST divides a machine into several hosts, as a container would.
    name = f"\0nbshare-{os.getuid()}-{boot.name}-{os.environ.get('NBSHARE_HOST', '')}"
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(None)  # despite socket.setdefaulttimeout
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
    host = f"host {socket.gethostname()}"
    for what, here in versions():
        if here != (wanted := boot.versions[what]):
            raise RuntimeError(f"{host} has {what} {here} instead of {wanted}: install the same")
    if find_spec("cloudpickle") is None:
        raise RuntimeError(f"{host} has no cloudpickle: install it there")
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        try:
            listener.bind(name)
        except OSError:
            return
        listener.listen(socket.SOMAXCONN)
        own = find_spec("nbshare")
        for folder in (own and own.submodule_search_locations) or ():
            if digest_of(folder) == boot.library:
                _launch(boot, listener, repr(os.path.dirname(folder)))
                return
        with os.fdopen(os.memfd_create("nbshare"), "wb") as library:
            with closing(dial(boot)) as connection:
                connection.send(("library",))
                library.write(connection.recv_bytes())
            library.flush()
            # Its workers are other processes. They open it where the agent has it.
            path = f'f"/proc/{{os.getpid()}}/fd/{library.fileno()}"'
            _launch(boot, listener, path, library.fileno())


def _launch(boot: Boot, listener: socket.socket, path: str, *fds: int) -> None:
    """Start a Python of its own, which imports nbshare from a path."""
    numpy = os.path.dirname(os.path.dirname(sys.modules["numpy"].__file__ or ""))
    agent = subprocess.Popen(
        [sys.executable, "-P", "-c", _AGENT.format(path=path, numpy=numpy, fd=listener.fileno())],
        pass_fds=[listener.fileno(), *fds],
        stdin=subprocess.PIPE,
        start_new_session=True,  # its worker processes are for all carriers of the host
    )
    assert agent.stdin is not None
    agent.stdin.write(pickle.dumps(tuple(boot)))
    agent.stdin.close()
    _thread.start_new_thread(agent.wait, ())  # it ends as soon as it has forked
