"""What runs in a process of the cluster, which brings a block to the agent of its host.

The first one on a host starts the agent, namely the one that can bind the agent's name. The name is
one of Linux's abstract sockets, so it is free when the agent ends, however it ends.

This module travels as its source (`travel`) to processes that may have no nbshare, or another
version, or another Python. So it imports the standard library alone. The agent runs the client's
nbshare. If the host has not the same files, the client sends them, once, as a zip file in memory,
from which the agent and its workers import. The file ends with the agent.
"""

from __future__ import annotations

import _thread
import io
import itertools
import math
import os
import pickle
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple

LOOK_S = 0.25  # between looks at whether the cluster has dropped the task
RAY_LOOK_S = 1.0  # between requests to the store of a Ray cluster, which all tasks send
PIECE = 8 << 20  # bytes of inputs at a time
PEER_S = 5.0  # for another worker to give such a piece
TOLD_BYTES = 256 << 10  # of a message on the way, at most, as Dask's scheduler keeps a thousand

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

# Makes a module of this source, once in each process: it takes 4 ms, as long as all else of a task.
_LOAD = """
import sys
from types import ModuleType
if name not in sys.modules:
    module = ModuleType(name)
    exec(source, vars(module))
    sys.modules[name] = module
"""

# A message is a kind and its content, as buffers in one: "host" (its name, as the block begins),
# "reply" and "last" (a `protocol.Reply`), "error" (pickled), "lost", and "lacks" (what, which host,
# and why if the cluster should have it).
Message = bytearray


class Boot(NamedTuple):
    """How a carrier finds or starts the agent of its host."""

    name: str  # of the client's agents, one on each host
    versions: dict[str, str]
    library: bytes  # the digest of nbshare's files


class LackingError(Exception):
    """The host has not the client's nbshare."""


class Carry:
    """The task that runs in the cluster. Any Python can unpickle it, as the source of this module.

    The code that cloudpickle sends runs on the same Python only, and another one could not say so.

    Parameters
    ----------
    name : str
        The name of this module there, another one for another source.
    source : str
        The source of this module.
    """

    __name__ = "nbshare"

    def __init__(self, name: str, source: str) -> None:
        self._names = {"load": _LOAD, "name": name, "source": source}

    def __call__(self, kind: str, *task: Any) -> Any:
        """Bring a block to the agent, and return what it tells: the last message, then others.

        So the last one, which may be large, is not copied.
        """
        *others, told = self.stream(kind, *task)
        told += b"".join(others)
        return memoryview(told) if kind == "dask" else told  # of a bytearray it makes copies

    def stream(
        self,
        kind: str,
        boot: Any,
        call: str,
        number: int,
        inputs: Any,
        library: bytes | None,
        order: Any,
    ) -> Iterator[Message]:
        """Bring a block to the agent, and yield what it tells as it comes.

        Parameters
        ----------
        kind : str
            The kind of cluster.
        boot : tuple
            The `Boot`, as a plain tuple.
        call : str
            The name of the call.
        number : int
            The number of this try of the block.
        inputs : object
            Where the cluster has the inputs of the call, or None.
        library : bytes or None
            The client's nbshare, if the host has said that it lacks it.
        order : list of buffers, or None
            The `protocol.Order`, as bytes here.
        """
        place = _PLACES[kind](boot[0], call, number)
        for k, message in enumerate(_carried(place, Boot(*boot), inputs, library, order)):
            place.tell(k, message)
            yield message

    def end(self, name: str, call: str) -> None:
        """Have agents on this machine end a call of their client, or all and themselves for ""."""
        end(name, call)

    def __reduce__(self) -> Any:
        return eval, ("exec(load) or sys.modules[name].Carry(name, source)", self._names)


def _carried(
    place: Place, boot: Boot, inputs: Any, library: bytes | None, order: Any
) -> Iterator[Message]:
    has_begun = False
    try:
        place.check()
        with closing(_connect(boot, library)) as sock:
            send(sock, b"block", str(place.number).encode(), *order)
            while True:
                message = _next(sock, place)
                kind = kind_of(message)
                if kind == b"fetch":
                    _, start, host = map(bytes, parts_of(message))
                    if (why := _give(sock, place, inputs, int(start))) is not None:
                        yield from _not_begun(place, b"lacks", b"inputs", host, why.encode())
                        return
                elif kind == b"ready":
                    name = bytes(parts_of(message)[1]).decode()
                    if (before := place.claim(name)) is not None:
                        lost = ConnectionError("the cluster has lost the result of a task")
                        yield from _ended_on(before, b"error", pickle.dumps(lost))
                        return
                    has_begun = True
                    yield packed(b"host", name.encode())
                    send(sock, b"go")
                elif not has_begun:  # why it cannot
                    yield from _not_begun(place, *parts_of(message))
                    return
                else:
                    yield message
                    if kind != b"reply":
                        return
    except LackingError:
        yield from _not_begun(place, b"lacks", b"library", socket.gethostname().encode(), b"")
    except (EOFError, OSError) as error:
        if has_begun:
            yield packed(b"lost")
            return
        host_name = socket.gethostname()
        gone = ConnectionError(f"the agent of nbshare on host {host_name} has ended ({error!r})")
        yield from _not_begun(place, b"error", pickle.dumps(gone))
    except (RuntimeError, LookupError) as error:
        yield from _not_begun(place, b"error", pickle.dumps(error))


def _not_begun(place: Place, *message: Any) -> Iterator[Message]:
    """Say why the block has not begun. Nor may it, if the cluster loses this and repeats the task.

    If it had begun before such a repetition, it is lost.
    """
    yield from _ended_on(place.claim("") or "", *message)


def _ended_on(host: str, *message: Any) -> Iterator[Message]:
    """Say that the block is lost if it had begun on a host, and else the message."""
    if not host:
        yield packed(*message)
        return
    yield packed(b"host", host.encode())
    yield packed(b"lost")


def _give(sock: socket.socket, place: Place, inputs: Any, start: int) -> str | None:
    """Bring the agent the next piece of the inputs. Return why not, if the cluster lacks it."""
    place.check()
    if inputs is None:
        return ""
    try:
        piece = place.piece(inputs, start)
    except Exception as error:  # noqa: BLE001 - each cluster has its own, for what was lost
        return repr(error)
    send(sock, b"piece", piece)
    return None


def _next(sock: socket.socket, place: Place) -> Message:
    """Return the agent's next message. Raise EOFError if there will be none."""
    while True:
        sock.settimeout(LOOK_S)
        try:
            sock.recv(1, socket.MSG_PEEK)
        except TimeoutError:
            place.check()
            continue
        return receive(sock)


# ------------------------------------------------------------------------- kinds of clusters


class Place:
    """What a process of a cluster can do for a task. Of an executor, nothing.

    Parameters
    ----------
    client : str
        The name of the client's agents.
    call : str
        The name of the call.
    number : int
        The number of this try of a block.
    """

    def __init__(self, client: str, call: str, number: int) -> None:
        self._client, self._call, self.number = client, call, number

    def claim(self, name: str) -> str | None:  # noqa: ARG002
        """Note the host where the block begins, "" if it will not. Return what a try before has."""
        return None

    def tell(self, place: int, message: Message) -> None:
        """Send the client a message, one of those that the task will return."""

    def is_over(self) -> bool:
        """Whether nobody waits for the task any more."""
        return False

    def check(self) -> None:
        """Raise EOFError if nobody waits for the task any more."""
        if self.is_over():
            raise EOFError("the call has ended")

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece of the inputs that begins at some byte."""
        return inputs[start : start + PIECE]


class OnRay(Place):
    """A process of Ray, which streams what a task yields."""

    _looked_at = -math.inf

    def is_over(self) -> bool:
        """Whether the client has said so in Ray's key-value store. Ask it once a second."""
        if (now := time.monotonic()) < self._looked_at + RAY_LOOK_S:
            return False
        self._looked_at = now
        store = import_module("ray.experimental.internal_kv")
        return store._internal_kv_exists(over(self._client, self._call))  # type: ignore[no-any-return]

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece that begins at some byte, which Ray brings to the node once."""
        return import_module("ray").get(inputs[start // PIECE])


class OnDask(Place):
    """A worker of Dask."""

    def __init__(self, client: str, call: str, number: int) -> None:
        super().__init__(client, call, number)
        self._worker: Any = import_module("distributed").get_worker()
        self._key = self._worker.get_current_task()
        # Of the scheduler's metadata. A key more is that of this try, the first or a repetition.
        self._noted, self._try = [f"nbshare-{client}", call, number], os.urandom(8).hex()
        self._untold: list[Message] = []

    def claim(self, name: str) -> str | None:
        """Note it at the scheduler, which repeats tasks of workers that it has lost."""
        return self._wait(self._claim(name))  # type: ignore[no-any-return]

    async def _claim(self, name: str) -> str | None:
        gather, scheduler = import_module("asyncio").gather, self._worker.scheduler
        found, _ = await gather(  # each note is there before a block begins
            scheduler.get_metadata(keys=self._noted, default={}),
            scheduler.set_metadata(keys=[*self._noted, self._try], value=name),
        )
        return max((of for one, of in found.items() if one != self._try), default=None)

    def tell(self, place: int, message: Message) -> None:
        """Log those that are not told yet as an event, unless they are large."""
        self._untold.append(message)
        if kind_of(message) == b"reply" and sum(map(len, self._untold)) <= TOLD_BYTES:
            told = self.number, place + 1 - len(self._untold), b"".join(self._untold)
            self._worker.log_event(f"nbshare-{self._client}", told)
            self._untold.clear()

    def is_over(self) -> bool:
        """Whether the scheduler has told this worker so, as when the client is gone."""
        task = self._worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled"

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece that begins at some byte. They lie on all workers, to share the load."""
        return self._wait(self._piece(inputs[start // PIECE]))

    async def _piece(self, key: str) -> Any:
        worker = self._worker
        if key in worker.data:
            return worker.data[key]
        asyncio = import_module("asyncio")
        get_data = import_module("distributed.worker").get_data_from_worker
        (places,) = (await worker.scheduler.who_has(keys=[key])).values()
        if places and not getattr(worker, "nbshare_is_alone", False):
            try:
                told = await asyncio.wait_for(get_data(worker.rpc, [key], places[0]), PEER_S)
                if key in told.get("data", ()):
                    return told["data"][key]
            except OSError:  # a TimeoutError, too
                worker.nbshare_is_alone = True  # there may be a firewall, for all calls
        told = await worker.scheduler.gather(keys=[key])
        return told["data"][key]

    def _wait(self, what: Any) -> Any:
        loop = self._worker.loop.asyncio_loop
        # Late, as only processes of Dask have it anyway.
        return import_module("asyncio").run_coroutine_threadsafe(what, loop).result()


def over(client: str, call: str) -> str:
    """Return the key in Ray's store that says that a call has ended."""
    return f"nbshare-{client}-{call}-is-over"


_PLACES = {"executor": Place, "ray": OnRay, "dask": OnDask}


# ------------------------------------------------------------------------------- messages


def packed(*parts: Any) -> Message:
    """Return buffers as a message: their number, their sizes, and what is in them."""
    return bytearray().join([_head_of(parts), *parts])


def _head_of(parts: Sequence[Any]) -> bytes:
    return struct.pack(f"{1 + len(parts)}q", len(parts), *(memoryview(p).nbytes for p in parts))


def kind_of(message: Message) -> bytes:
    """Return the first of its buffers, and keep no view of it."""
    n, nbytes = struct.unpack_from("2q", message)
    start = 8 * (1 + n)
    return bytes(message[start : start + nbytes])


def parts_of(message: Any) -> list[memoryview]:
    """Return the buffers of a message, as views of it."""
    return messages_in(message)[0]


def messages_in(data: Any) -> list[list[memoryview]]:
    """Return the buffers of each of the messages that are one after the other."""
    found, start = [], 0
    while start < len(data):
        (n,) = struct.unpack_from("q", data, start)
        sizes = struct.unpack_from(f"{n}q", data, start + 8)
        stops = [*itertools.accumulate(sizes, initial=start + 8 * (1 + n))]
        found.append([memoryview(data)[a:b] for a, b in itertools.pairwise(stops)])
        start = stops[-1]
    return found


def send(sock: socket.socket, *parts: Any) -> None:
    """Send buffers as one message."""
    views = [memoryview(part).cast("B") for part in parts]
    sock.settimeout(None)  # despite socket.setdefaulttimeout
    sock.sendall(_head_of(views))
    for view in views:
        sock.sendall(view)


def receive(sock: socket.socket) -> Message:
    """Return the next message.

    Raises
    ------
    EOFError, OSError
        The other end is gone.
    """
    sock.settimeout(None)
    _read(sock, memoryview(number := bytearray(8)))
    _read(sock, memoryview(sizes := bytearray(8 * struct.unpack("q", number)[0])))
    head = number + sizes
    message = bytearray(len(head) + sum(struct.unpack(f"{len(sizes) // 8}q", sizes)))
    message[: len(head)] = head
    with memoryview(message)[len(head) :] as content:
        _read(sock, content)
    return message


def _read(sock: socket.socket, view: memoryview) -> None:
    while view:
        if not (n := sock.recv_into(view)):
            raise EOFError("the other end is gone")
        view = view[n:]


# ------------------------------------------------------------------------------ the agent


def user_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and whether it is of this user, as a name may not be."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid == os.getuid()


def end(name: str, call: str) -> None:
    """Have agents on this machine end a call of their client, or all and themselves for ""."""
    with suppress(OSError, AttributeError):  # another system has none
        prefix = f"@nbshare-{os.getuid()}-{name}-"
        with open("/proc/net/unix") as file:
            found = {line.split()[-1] for line in file if prefix in line}
        for address in found:
            with suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as sock:
                sock.connect(f"\0{address[1:]}")
                if user_of(sock)[1]:
                    send(sock, b"end", call.encode())


def zipped(folder: str) -> bytes:
    """Return the modules of nbshare's folder as a zip file, which is the same for the same ones."""
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
    """Return what changes with any module of nbshare's folder."""
    import hashlib  # late, because it loads OpenSSL

    return hashlib.sha256(zipped(folder)).digest()


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


def _connect(boot: Boot, library: bytes | None) -> socket.socket:
    """Connect to the agent of this host. Start it if there is none."""
    if sys.platform != "linux":
        raise RuntimeError(
            f"host {socket.gethostname()} runs {sys.platform}, but hosts of nbshare need Linux: "
            "use workers on Linux, for example in WSL 2"
        )
    # NBSHARE_HOST divides a machine into several hosts, as a container would.
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
            raise RuntimeError("another user has taken the name of nbshare's agent")
        return sock


def _start(boot: Boot, name: str, library: bytes | None) -> None:
    """Start the agent, unless another process has just done it."""
    host = f"host {socket.gethostname()}"
    for what, here in versions():
        if here != (wanted := boot.versions[what]):
            raise RuntimeError(f"{host} has {what} {here} instead of {wanted}: install the same")
    if find_spec("cloudpickle") is None:
        raise RuntimeError(f"{host} has no cloudpickle: install it there")
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
            # Its workers are other processes. They open it where the agent has it.
            _launch(listener, f'f"/proc/{{os.getpid()}}/fd/{file.fileno()}"', file.fileno())


def _launch(listener: socket.socket, path: str, *fds: int) -> None:
    """Start a Python of its own, which imports nbshare from a path."""
    numpy = os.path.dirname(os.path.dirname(sys.modules["numpy"].__file__ or ""))
    agent = subprocess.Popen(
        [sys.executable, "-P", "-c", _AGENT.format(path=path, numpy=numpy, fd=listener.fileno())],
        pass_fds=[listener.fileno(), *fds],
        stdin=subprocess.DEVNULL,
        start_new_session=True,  # its worker processes are for all carriers of the host
    )
    _thread.start_new_thread(agent.wait, ())  # it ends as soon as it has forked
