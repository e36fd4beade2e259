"""Connects to the agent of a host, or starts it.

The first carrier that binds the agent's name starts the agent. The name is that of an abstract
socket of Linux, so it is free as soon as the agent ends, for any reason.

The agent runs the client's nbshare. If the files of the host differ, the client sends its own once,
as a zip file in memory, from which the agent and its workers import. The file is freed when the
agent ends.
"""

from __future__ import annotations

import _thread
import io
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from importlib.util import find_spec
from typing import NamedTuple

from .messages import send, user_of

# The agent works for the whole host, so it is not a child of the process that starts it, because
# Ray ends children with its workers. It imports this nbshare even if the host has another one.
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
    """The information with which a carrier finds or starts the agent of its host."""

    name: str  # name of the client's agents, one on each host
    versions: dict[str, str]
    library: bytes  # digest of nbshare's files


class LackingError(Exception):
    """The host does not have the client's nbshare."""


def end(name: str, call: str) -> None:
    """End a call in the client's agents on this machine, or the agents if `call` is ""."""
    with suppress(OSError, AttributeError):  # other systems have no agents
        prefix = f"@nbshare-{os.getuid()}-{name}-"
        with open("/proc/net/unix") as file:
            found = {line.split()[-1] for line in file if prefix in line}
        for address in found:
            with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.connect(f"\0{address[1:]}")
                if user_of(sock)[1]:
                    send(sock, b"end", call.encode())


def zipped(folder: str) -> bytes:
    """Return the modules of nbshare's folder as a zip file.

    The same modules yield the same file.
    """
    from zipfile import ZipFile, ZipInfo  # late, because few processes need it

    found = (os.path.join(at, file) for at, _, files in os.walk(folder) for file in files)
    with ZipFile(archive := io.BytesIO(), "w") as library:
        for path in sorted(found):
            if path.endswith(".py"):
                with open(path, "rb") as file:
                    name = f"nbshare{path[len(folder) :]}".replace(os.sep, "/")
                    library.writestr(ZipInfo(name), file.read())
    return archive.getvalue()


def digest_of(folder: str) -> bytes:
    """Return a digest of the modules in nbshare's folder."""
    import hashlib  # late, because it loads OpenSSL

    return hashlib.sha256(zipped(folder)).digest()


def versions() -> Iterator[tuple[str, str]]:
    """Yield the versions that must be equal, because pickles and arrays depend on them.

    Raises
    ------
    RuntimeError
        If NumPy is missing.
    """
    yield "Python", ".".join(map(str, sys.version_info[:2]))
    try:
        import numpy as np
    except ImportError:
        raise RuntimeError(f"host {socket.gethostname()} needs NumPy: install it there") from None
    yield "NumPy", np.__version__.partition(".")[0]


def connect(boot: Boot, library: bytes | None) -> socket.socket:
    """Connect to the agent of this host. Start it if it is not running."""
    if sys.platform != "linux":
        raise RuntimeError(
            f"host {socket.gethostname()} runs {sys.platform}, but hosts of nbshare need Linux. "
            "Use workers on Linux, for example in WSL 2."
        )
    # NBSHARE_HOST divides a machine into several hosts, like containers.
    name = f"\0nbshare-{os.getuid()}-{boot.name}-{os.environ.get('NBSHARE_HOST', '')}"
    while True:
        sock = socket.socket(socket.AF_UNIX)
        sock.settimeout(None)
        try:
            sock.connect(name)
        except ConnectionRefusedError:
            sock.close()
            _start(boot, name, library)
            continue
        if not user_of(sock)[1]:
            sock.close()
            raise RuntimeError("another user's process has the name of nbshare's agent")
        return sock


def _start(boot: Boot, name: str, library: bytes | None) -> None:
    """Start the agent, unless another process has just started it."""
    host = f"host {socket.gethostname()}"
    for package, here in versions():
        if here != (wanted := boot.versions[package]):
            raise RuntimeError(
                f"{host} has {package} {here}, but the calling process has {package} {wanted}. "
                f"Install {package} {wanted} on the host."
            )
    if find_spec("cloudpickle") is None:
        raise RuntimeError(f"{host} needs cloudpickle. Install it on the host.")
    own = find_spec("nbshare")
    folders = (own and own.submodule_search_locations) or ()
    path = next((os.path.dirname(f) for f in folders if digest_of(f) == boot.library), None)
    if path is None and library is None:
        raise LackingError
    with closing(socket.socket(socket.AF_UNIX)) as listener:
        try:
            listener.bind(name)
        except OSError:
            return
        listener.listen(socket.SOMAXCONN)
        if path is not None:
            _launch(listener, repr(path))
            return
        with os.fdopen(os.memfd_create("nbshare"), "wb") as file:
            file.write(library or b"")
            file.flush()
            # The agent's workers are other processes, which open the file through the agent.
            _launch(listener, f'f"/proc/{{os.getpid()}}/fd/{file.fileno()}"', file.fileno())


def _launch(listener: socket.socket, path: str, *fds: int) -> None:
    """Start the agent in a new Python process, which imports nbshare from a path."""
    numpy = os.path.dirname(os.path.dirname(sys.modules["numpy"].__file__ or ""))
    agent = subprocess.Popen(
        [sys.executable, "-P", "-c", _AGENT.format(path=path, numpy=numpy, fd=listener.fileno())],
        pass_fds=[listener.fileno(), *fds],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # because it serves all carriers of the host
    )
    _thread.start_new_thread(agent.wait, ())  # this process ends as soon as it has forked
