"""The task of a cluster, which brings a block to the agent of its host.

This module, `starting` and `messages` are sent as source code to processes that may not have
nbshare, or another version of it or of Python. They therefore import only the standard library, and
each other by relative imports, because they belong to another package there.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from importlib import import_module
from typing import Any

from .messages import Message, kind_of, packed, parts_of, receive, send
from .starting import Boot, LackingError, connect, end

LOOK_S = 0.25  # interval of checks whether the cluster has dropped the task
RAY_LOOK_S = 1.0  # interval of requests by each task to the store of a Ray cluster
PIECE = 8 << 20  # bytes of inputs at a time
PEER_S = 3.0  # time limit for another worker to answer
PIECE_S = 10.0  # time limit for it to send a piece, while it may send others to many workers
ENDS = "closing", "closed", "failed"  # states of a Dask worker whose tasks run elsewhere
TOLD_BYTES = 256 << 10  # limit for an event, because Dask's scheduler keeps a thousand events

# Creates the modules once in each process. That takes 4 ms, as long as the rest of a task.
_LOAD = """
import sys
from types import ModuleType
for name, source in sources:
    if f"{package}.{name}" not in sys.modules:
        module = ModuleType(f"{package}.{name}")
        module.__package__ = package
        exec(source, vars(module))
        sys.modules[module.__name__] = module
carrier = sys.modules[f"{package}.carrier"]
"""


class Carry:
    """The task that runs in the cluster. Any Python can unpickle it, because it sends sources.

    Code that cloudpickle sends runs only on the same version of Python, and other versions could
    not report the difference.

    Parameters
    ----------
    package : str
        The name of the modules' package in the cluster's process. Other sources have another name.
    sources : sequence of pairs
        Names and sources of the modules, each after the modules that it imports.
    """

    __name__ = "nbshare"

    def __init__(self, package: str, sources: Sequence[tuple[str, str]]) -> None:
        self._names = {"load": _LOAD, "package": package, "sources": sources}

    def __call__(self, kind: str, *task: Any) -> Any:
        """Bring a block to the agent. Return the agent's last message, and all others as bytes."""
        *others, last = self.stream(kind, *task)
        # The last message may be large. Dask does not copy a memoryview, which other clusters do
        # not accept.
        return memoryview(last) if kind == "dask" else bytes(last), b"".join(others)

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
        """Bring a block to the agent, and yield the agent's messages as they arrive.

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
            Where the cluster stores the inputs of the call, or None.
        library : bytes or None
            The client's nbshare, if the host has reported that it does not have it.
        order : list of buffers, or None
            The `protocol.Order`, as bytes.
        """
        place = _PLACES[kind](boot[0], call, number)
        for k, message in enumerate(_carried(place, Boot(*boot), inputs, library, order)):
            place.tell(k, message)
            yield message

    def end(self, name: str, call: str) -> None:
        """End a call in the client's agents on this machine, or the agents if `call` is ""."""
        end(name, call)

    def __reduce__(self) -> Any:
        return eval, ("exec(load) or carrier.Carry(package, sources)", self._names)


def _carried(
    place: Place, boot: Boot, inputs: Any, library: bytes | None, order: Any
) -> Iterator[Message]:
    has_begun = False
    try:
        place.check()
        with closing(connect(boot, library)) as sock:
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
                    if before := place.claim(name):
                        yield from before
                        return
                    place.check()  # another worker has the task if this one was retired meanwhile
                    has_begun = True
                    yield packed(b"host", name.encode())
                    send(sock, b"go")
                elif not has_begun:  # an error, so the block cannot begin
                    yield from _not_begun(place, *parts_of(message))
                    return
                else:
                    yield message
                    if kind != b"reply":
                        return
    except LackingError:
        yield from _not_begun(place, b"lacks", b"library", socket.gethostname().encode(), b"")
    except (EOFError, OSError) as error:
        if has_begun or place.is_over():
            yield packed(b"lost")
            return
        host_name = socket.gethostname()
        gone = ConnectionError(f"the agent of nbshare on host {host_name} has ended ({error!r})")
        yield from _not_begun(place, b"error", pickle.dumps(gone))
    except (RuntimeError, LookupError) as error:
        yield from _not_begun(place, b"error", pickle.dumps(error))


def _not_begun(place: Place, *message: Any) -> Iterator[Message]:
    """Report why the block cannot begin, or how it ended in an earlier run of the task."""
    yield from place.claim("") or [packed(*message)]


def _give(sock: socket.socket, place: Place, inputs: Any, start: int) -> str | None:
    """Send the agent the next piece of the inputs. Return why the cluster cannot, or None."""
    place.check()
    if inputs is None:
        return ""
    try:
        piece = place.piece(inputs, start)
    except Exception as error:  # noqa: BLE001 - each cluster has its own for lost data
        return repr(error)
    send(sock, b"piece", piece)
    return None


def _next(sock: socket.socket, place: Place) -> Message:
    """Return the next message of the agent. Raise EOFError if there will be none."""
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
    """The connection of a task to its cluster. This one is for executors, which have none.

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

    def claim(self, name: str) -> Sequence[Message]:  # noqa: ARG002
        """Record the host on which the block begins, if it is not "".

        If the block has begun in an earlier run of the task, return messages about that run.
        """
        return ()

    def tell(self, place: int, message: Message) -> None:
        """Send a message to the client early. The task also returns it."""

    def is_over(self) -> bool:
        """Return whether the client no longer waits for the task."""
        return False

    def check(self) -> None:
        """Raise EOFError if the client no longer waits for the task."""
        if self.is_over():
            raise EOFError("the call has ended")

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece of the inputs that begins at `start`."""
        return inputs[start : start + PIECE]


class OnRay(Place):
    """A process of Ray, which streams the messages that a task yields."""

    _looked_at = -math.inf

    def is_over(self) -> bool:
        """Return whether the call has left Ray's store. Ask it once a second."""
        if (now := time.monotonic()) < self._looked_at + RAY_LOOK_S:
            return False
        self._looked_at = now
        store = import_module("ray.experimental.internal_kv")
        return not store._internal_kv_exists(key_of(self._client, self._call))

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece that begins at `start`. Ray sends a piece to each node only once."""
        return import_module("ray").get(inputs[start // PIECE])


class OnDask(Place):
    """A worker of Dask."""

    def __init__(self, client: str, call: str, number: int) -> None:
        super().__init__(client, call, number)
        self._worker: Any = import_module("distributed").get_worker()
        self._key = self._worker.get_current_task()
        self._run = os.urandom(8).hex()
        self._untold: list[Message] = []

    def claim(self, name: str) -> Sequence[Message]:
        """Store the record at the scheduler, which repeats tasks of lost and retired workers."""
        return self._wait(self._claim(name))  # type: ignore[no-any-return]

    async def _claim(self, name: str) -> Sequence[Message]:
        gather, scheduler = import_module("asyncio").gather, self._worker.scheduler
        requests = [scheduler.get_metadata(keys=[self._key], default={})]
        if name:  # before the block begins. The scheduler drops a task's metadata with the task
            record = name, self._worker.address
            requests.append(scheduler.set_metadata(keys=[self._key, self._run], value=record))
        found, *_ = await gather(*requests)
        others = [record for run, record in found.items() if run != self._run]
        if not others:
            return ()
        events = await gather(*(scheduler.events(topic=worker) for _, worker in others))
        are_retired = all(any(_is_retirement(event) for _, event in of) for of in events)
        end = b"retired" if are_retired else b"lost"
        return packed(b"host", others[0][0].encode()), packed(end)

    def tell(self, place: int, message: Message) -> None:
        """Log messages that were not sent yet as an event, unless they are large."""
        self._untold.append(message)
        if kind_of(message) == b"reply" and sum(map(len, self._untold)) <= TOLD_BYTES:
            first = place + 1 - len(self._untold)
            told = self._call, self.number, first, b"".join(self._untold)
            self._worker.log_event(f"nbshare-{self._client}", told)
            self._untold.clear()

    def is_over(self) -> bool:
        """Return whether the scheduler has cancelled the task, or given it to another worker."""
        task = self._worker.state.tasks.get(self._key)
        return task is None or task.state == "cancelled" or self._worker.status.name in ENDS

    def piece(self, inputs: Any, start: int) -> Any:
        """Return the piece that begins at `start`, from any worker that has it."""
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
                await asyncio.wait_for(worker.rpc(places[0]).identity(), PEER_S)
                told = await asyncio.wait_for(get_data(worker.rpc, [key], places[0]), PIECE_S)
                if key in told.get("data", ()):
                    return told["data"][key]
            except OSError:  # a TimeoutError, too
                worker.nbshare_is_alone = True  # perhaps behind a firewall, so do not try again
        told = await worker.scheduler.gather(keys=[key])
        return told["data"][key]

    def _wait(self, coroutine: Any) -> Any:
        loop = self._worker.loop.asyncio_loop
        # Imported late, because only processes of Dask have loaded it.
        return import_module("asyncio").run_coroutine_threadsafe(coroutine, loop).result()


def _is_retirement(event: Any) -> bool:
    """Return whether an event says that a Dask worker is ended on purpose."""
    return bool(event.get("expected")) or event.get("action") == "closing-worker"


def key_of(client: str, call: str) -> str:
    """Return the key that is in Ray's store while a call runs."""
    return f"nbshare-{client}-{call}"


_PLACES = {"executor": Place, "ray": OnRay, "dask": OnDask}
