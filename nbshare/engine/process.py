"""The owner's side of worker processes: starting, signalling and reaping them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from os.path import dirname
from typing import TYPE_CHECKING

import numpy as np

from nbshare import errors
from nbshare.memory import Segment, scratch_file
from nbshare.system import channels, owned, processes, with_room
from nbshare.wire.context import thread_variables
from nbshare.wire.messages import Channel, channel_pair
from nbshare.wire.orders import STREAMS

if TYPE_CHECKING:
    from nbshare.engine.call import Call, CodeVersion
    from nbshare.functions.freshness import Stamp

CLOSE_S = 0.5  # a worker ends within microseconds after its channel closes
LATE_S = 0.02  # starting a new worker takes as long, without its imports
REAP_S = 1.0  # a killed worker ends in less than a millisecond
ANSWER_S = 3.0  # the server answers as quickly, unless the machine is overloaded

# Where a new interpreter finds NumPy and nbshare. They come after its own path: a random.py next to
# the notebook must not replace the standard library's.
_PACKAGE = dirname(dirname(__file__))
_PATHS = [dirname(_PACKAGE), dirname(dirname(np.__file__))]
# This nbshare, even if another is installed there.
_BOOT = f"""
import gc, sys
gc.disable()
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
sys.path += {_PATHS!r}
spec = PathFinder.find_spec("nbshare", {_PATHS[:1]!r})
sys.modules["nbshare"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["nbshare"])
from nbshare.worker.server import serve
"""


class WorkerProcess:
    """The owner's side of one worker.

    Attributes
    ----------
    channel : Channel
        To the worker.
    index : int
        Number from 0 that no other worker has at the same time.
    generation : int
        Workers of an older generation than the engine's have stale code or environment.
    output_fds : sequence of int
        Reading ends of pipes for its standard output and error output.
    child : Child
        The process; it has no number before it is ready.
    call : Call or None
        What it works on; None also while it has not noticed yet that its call is over.
    late_at : float
        Until when to wait for it to notice that its call is over, on the monotonic clock.
    borrowed : list of Segment
        What it was sent and has not confirmed.
    imported : dict
        The files that it has imported, and that users may edit.
    has_closed : bool
        Whether it closed its channel while it lived.
    """

    def __init__(
        self,
        channel: Channel,
        output_fds: Sequence[int],
        starter: WorkerStarter,
        generation: int,
        index: int,
    ) -> None:
        self.channel = channel
        self.output_fds = output_fds
        self.generation = generation
        self.index = index
        self.call: Call | None = None
        self.imported: dict[str, Stamp | None] = {}
        self.late_at = 0.0
        self.child = processes.Child()
        self.has_closed = False
        self._starter = starter
        self.borrowed: list[Segment] = []

    @property
    def is_ready(self) -> bool:
        """Return whether it has started."""
        return self.child.pid != 0

    @property
    def is_dead(self) -> bool:
        """Whether it has ended."""
        return self.is_ready and self.child.await_end(0.0)

    def detach(self) -> None:
        """Note that its call is over: it will find no items and become idle."""
        self.call = None  # which holds the items
        self.late_at = time.monotonic() + LATE_S

    def lend(self, *segments: Segment) -> None:
        """Note that it was sent these segments for its call."""
        for segment in segments:
            segment.n_borrowed += 1
        self.borrowed.extend(segments)

    def give_back(self, *, are_gone: bool) -> None:
        """Note that it has finished its call, and whether all its views are gone."""
        self.call = None
        for segment in self.borrowed:
            segment.n_borrowed -= 1
            segment.was_kept_elsewhere |= not are_gone
        self.borrowed.clear()

    def note_closed(self) -> None:
        """Note that it has closed its channel, perhaps by ending."""
        self.has_closed = not self.child.await_end(CLOSE_S)

    def end(self) -> None:
        """Kill it and wait until it is gone; its last messages can still be received."""
        self.child.kill()
        self.child.await_end(REAP_S)

    def reap(self) -> int | None:
        """Close what belonged to a dead worker; returns its exit status, negative for a signal."""
        self.child.kill()  # what it started may have outlived it
        is_dead = self.child.await_end(REAP_S)  # or it could write to borrowed segments
        status = self._starter.reap(self.child.pid) if self.is_ready else None
        self.give_back(are_gone=is_dead)
        self.channel.close()
        self.child.close()
        return status


class WorkerStarter:
    """Starts workers through the fork server.

    Notes
    -----
    For the dispatcher's thread only.
    """

    def __init__(self) -> None:
        self._lock = scratch_file()
        self.lock_fd = self._lock.fileno()
        self._life_read, self._life_write = map(owned, channels.pipe())
        self._channel: Channel | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, code: CodeVersion, index: int) -> WorkerProcess:
        """Start a worker; it sends a message when it is ready.

        Raises
        ------
        WorkerDiedError
            If it cannot be started, for whatever reason.
        """
        pipes: list[tuple[int, int]] = []
        assert code.snapshot is not None
        try:
            for _ in STREAMS:
                pipes.append(channels.pipe())
                os.set_blocking(pipes[-1][0], False)  # our end only
            ours, theirs = channel_pair()
            with closing(theirs):
                fds = theirs.fileno(), self.lock_fd, code.snapshot.fileno(), *(w for _, w in pipes)
                try:
                    self._fork(fds)
                except BaseException:
                    ours.close()
                    raise
            with suppress(ConnectionError):  # it is dead already; that is handled later
                ours.send((index, dict(code.environ)), wait=False)
        except Exception as error:
            for fd, _ in pipes:
                os.close(fd)
            reason = "The system may allow no more processes or open files (ulimit -u, ulimit -n)."
            if not isinstance(error, OSError):
                reason = "An audit hook, a patched function or sys.executable may be the cause."
            raise errors.WorkerDiedError(
                f"no worker process could be started ({type(error).__name__}: {error}). {reason}"
            ) from error
        finally:
            for _, fd in pipes:
                os.close(fd)
        return WorkerProcess(ours, [fd for fd, _ in pipes], self, code.generation, index)

    def reap(self, pid: int) -> int | None:
        """Return the exit status of a dead child of the server; None if it is unknown."""
        if self._channel is None:
            return None
        with suppress(OSError, EOFError):  # it is gone
            self._channel.send(("reap", pid), wait=False)
            return self._channel.receive(timeout_s=ANSWER_S)[0]  # type: ignore[no-any-return]
        self._end_server()
        return None

    def close(self) -> None:
        """End the server and all workers: closing the life pipe kills them."""
        self._life_write.close()
        self._end_server()
        self._life_read.close()
        self._lock.close()
        self.lock_fd = -1

    def forget(self) -> None:
        """Close what a forked child of the owner has inherited."""
        self._life_write.close()

    def warm_up(self) -> None:
        """Start the server if it is not running; errors are for `start` to report."""
        with suppress(Exception):
            if self.lock_fd >= 0:  # else it was closed
                self._running_server()

    @property
    def is_up(self) -> bool:
        """Whether the server has been started."""
        return self._channel is not None

    def _fork(self, fds: Sequence[int]) -> None:
        message = "fork", fds
        try:
            self._running_server().send(*message, wait=False)
        except ConnectionError:  # it has died
            self._end_server()
            self._running_server().send(*message, wait=False)

    def _running_server(self) -> Channel:
        if self._server is not None and self._server.poll() is not None:
            self._end_server()
        if self._channel is None:
            self._channel, server_end = channel_pair()
            with closing(server_end):
                fds = server_end.fileno(), self._life_read.fileno()
                try:
                    self._server = with_room(lambda: _start_server(*fds))
                except BaseException:
                    self._end_server()
                    raise
        return self._channel

    def _end_server(self) -> None:
        """End the server; the next worker starts a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


def _start_server(channel_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    call = f"serve({channel_fd}, {life_fd}, {os.getpid()})"
    return subprocess.Popen(
        [sys.executable, *flags, "-P", "-c", _BOOT + call],
        pass_fds=(channel_fd, life_fd),
        stdin=subprocess.DEVNULL,
        # With several threads it must not fork.
        env={**os.environ, **thread_variables(1), "MPLBACKEND": "Agg"},
        # In a group of its own it does not receive the terminal's or the kernel's interrupt.
        process_group=0,
    )
