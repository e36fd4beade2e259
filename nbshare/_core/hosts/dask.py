"""Dask clusters as hosts."""

from __future__ import annotations

import _thread
import asyncio
import math
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import wait
from contextlib import suppress
from typing import Any

from nbshare._core.hosts import starting
from nbshare._core.hosts.carrier import PIECE, TOLD_BYTES, Carry
from nbshare._core.hosts.executor import ExecutorHosts
from nbshare._core.hosts.messages import messages_in
from nbshare._core.hosts.travel import traveller

ASK_S = 0.5  # interval of requests for the number of workers
BUSY_S = 1.0  # time limit for a busy scheduler to reply
LOOK_S = 0.1  # interval of checks of state that no message reports
NO_WORKERS_S = 5.0  # time limit for a cluster without workers to start one
ENDS = "closing", "closed"  # states of a client or cluster that is ending


class DaskHosts(ExecutorHosts):
    """The workers of a Dask cluster. Each of their threads is a place.

    Parameters
    ----------
    client : distributed.Client
        The client.

    Raises
    ------
    ValueError
        If the client's event loop runs in this thread, which waits for the call.
    """

    kind, news_nbytes = "dask", TOLD_BYTES / 2  # half of it, for prints

    def __init__(self, client: Any) -> None:
        if client.asynchronous:
            raise ValueError(
                "backend= is an asynchronous Dask client, whose event loop runs in this thread and "
                "would stand still during the call. Use a Client without asynchronous=True, or "
                "make the call in another thread: await asyncio.to_thread(parallel_map, ...)"
            )
        super().__init__(client)
        self._client = client
        self._seen_at = math.inf  # time when there was a worker. A new cluster may have none yet
        self._asked_at = -math.inf
        self._inputs: list[Any] = []  # futures of the inputs
        self.check()
        client.subscribe_topic(f"nbshare-{self.boot.name}", _hear)

    def n_workers(self) -> int:
        """Return the number of threads of all workers."""
        return max(1, int(sum(self._client.nthreads().values())))

    def check(self) -> None:
        """Raise ConnectionError if the client is closed, or the cluster has lost all workers."""
        client = self._client
        states = client.status, getattr(client.cluster, "status", None)
        if any(str(state).endswith(ENDS) for state in states):
            raise ConnectionError(
                "the Dask client passed as backend=, or its cluster, is closed. Keep both open "
                "until the run has ended."
            )
        if client.status != "running":  # new tasks would wait forever
            raise ConnectionError(
                "the Dask client passed as backend= has lost its scheduler (status: "
                f"{client.status}). Wait until it has reconnected, or create a new client."
            )
        if (now := time.monotonic()) < self._asked_at + ASK_S:
            return
        self._asked_at = now
        with suppress(OSError):  # the scheduler is busy, or lost, which `status` will show
            found = client.sync(client.scheduler.ncores, workers=None, callback_timeout=BUSY_S)
            self.n_places = sum(found.values())
        if self.n_places:
            self._seen_at = now
        elif now > self._seen_at + NO_WORKERS_S:
            raise ConnectionError(
                f"the Dask cluster has had no workers for {NO_WORKERS_S:.0f} s. Start workers, and "
                "run the call again."
            )

    def submit(self, number: int, task: Carry, *args: Any) -> None:
        """Submit a task to any worker."""
        _inboxes[args[2]] = self._news
        super().submit(number, task, *args)

    def _start(self, *task: Any) -> Any:
        return self._begin(_result_of(self._client, self._client.submit(*task, pure=False)))

    def offer(self, data: Any, is_stopped: Callable[[], bool]) -> Any:
        """Scatter pieces of the inputs to workers. Return the keys of the pieces."""
        pieces = range(0, len(data), PIECE)
        self._inputs += [None] * (len(pieces) - len(self._inputs))
        for k, start in enumerate(pieces):
            shard = self._inputs[k]
            if shard is None or shard.status != "finished":
                self._inputs[k] = self._scatter(data[start : start + PIECE], is_stopped)
        return [shard and shard.key for shard in self._inputs]

    def _scatter(self, piece: Any, is_stopped: Callable[[], bool]) -> Any:
        """Return a future of a piece, or None if its worker is lost, to be offered again."""
        scattered = self._begin(_scattered(self._client, piece))
        while not is_stopped():
            if wait([scattered], LOOK_S).done:
                with suppress(OSError):
                    return scattered.result()
                return None
        scattered.cancel()
        return None

    def _begin(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Start a coroutine in the client's event loop. Return its future."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._client.loop.asyncio_loop)

    def end(self, call: str) -> None:
        """Stop a call on all hosts."""
        starting.end(self.boot.name, call)
        _thread.start_new_thread(_end_on_dask, (self._client, self.boot.name, call))

    def close(self, call: str) -> None:
        """Drop all tasks and the inputs."""
        _inboxes.pop(call, None)
        super().close(call)
        for piece in filter(None, self._inputs):
            piece.release()
        self._inputs.clear()


async def _result_of(client: Any, future: Any) -> Any:
    """Return the result of a task, which arrives while the call's thread stores other results."""
    try:
        return (await client.gather([future], asynchronous=True))[0]
    except OSError:  # if the scheduler is lost, the client's status says so a moment later
        await asyncio.sleep(LOOK_S)
        raise
    finally:
        future.release()


async def _scattered(client: Any, piece: Any) -> Any:
    return (await client.scatter([piece], hash=False, asynchronous=True))[0]


_inboxes: dict[str, Any] = {}  # by call


def _hear(event: Any) -> None:
    """Receive messages that a worker of Dask has logged as an event."""
    call, number, first, messages = event[1]
    if (inbox := _inboxes.get(call)) is not None:
        inbox.put((number, first, messages_in(messages), None))


def _end_on_dask(client: Any, name: str, call: str) -> None:
    with suppress(Exception):  # the cluster may be lost
        client.run(traveller().end, name, call, on_error="ignore")
