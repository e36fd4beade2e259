"""The owner's side of worker processes: starts, signals and reaps them."""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Literal

from nbshare import errors
from nbshare._core.engine.launching import Launcher, new_launcher
from nbshare._core.memory import Segment, scratch_file
from nbshare._core.system import close, processes, shell, waiting
from nbshare._core.wire.messages import Channel, channel_pair
from nbshare._core.wire.orders import STREAMS

if TYPE_CHECKING:
    from nbshare._core.functions.freshness import CodeVersion, Stamp

CLOSE_S = 0.5  # time limit. A worker ends within microseconds after its channel closes
REAP_S = 1.0  # time limit. A killed worker ends in less than a millisecond

WorkerState = Literal["working", "released", "late", "idle", "ending"]
LIMITS_S: dict[WorkerState, float] = {  # longest time in a state before the owner acts
    "working": math.inf,
    "released": 1.0,  # a worker takes microseconds, unless it frees much memory or gets no CPU
    "late": math.inf,
    "idle": 300.0,  # an idle worker keeps the user's modules in memory
    "ending": 1.0,  # an ending worker runs atexit handlers and flushes open files
}


class WorkerProcess:
    """The owner's side of one worker.

    Attributes
    ----------
    channel : Channel
        The channel to the worker.
    index : int
        The worker's number, counted from 0 and unique among live workers, or -1 until known.
    generation : int
        The worker's generation. Workers of older generations have stale code or environment.
    output_fds : sequence of int
        Reading ends of the pipes of its standard output and standard error.
    child : Child
        The process. It may have no id before it is ready.
    is_ready : bool
        Whether the worker has started.
    state : str
        The worker's state, as far as the owner knows:

        ==========  ============================================
        "working"   it has a call, or is starting for one
        "released"  its call is over, and it will soon notice
        "late"      its call is over, and it should have noticed
        "idle"      it waits for a call
        "ending"    it was asked to end
        ==========  ============================================
    since : float
        Start of this state, on the monotonic clock.
    borrowed : list of Segment
        The segments that the worker received and has not returned.
    imported : dict
        The imported files that users may edit.
    has_closed : bool
        Whether the worker closed its channel before it ended.
    has_worked : bool
        Whether the worker has received a call, and so may write or remove files when it ends.
    """

    def __init__(
        self,
        channel: Channel,
        output_fds: Sequence[int],
        child: processes.Child,
        launcher: Launcher,
    ) -> None:
        self.channel = channel
        self.output_fds = output_fds
        self.generation = self.index = -1
        self.state: WorkerState = "working"
        self.since = time.monotonic()
        self.imported: dict[str, Stamp | None] = {}
        self.child = child
        self.has_closed = self.is_ready = self.has_worked = False
        self._launcher = launcher
        self.borrowed: list[Segment] = []

    @property
    def is_dead(self) -> bool:
        """Whether the worker has ended, as far as known."""
        return self.is_ready and self.child.await_end(0.0)

    @property
    def due_at(self) -> float:
        """When the worker's state will have lasted too long, on the monotonic clock."""
        return self.since + LIMITS_S[self.state]

    def enter(self, state: WorkerState) -> None:
        """Record a change of the worker's state."""
        self.state, self.since = state, time.monotonic()

    def lend(self, segments: Sequence[Segment]) -> None:
        """Record the segments that the worker received for its call."""
        for segment in segments:
            segment.n_borrowed += 1
        self.borrowed.extend(segments)

    def give_back(self, *, are_gone: bool) -> None:
        """Record that the worker no longer uses borrowed segments.

        `are_gone` is whether the worker has released all views of them.
        """
        for segment in self.borrowed:
            segment.n_borrowed -= 1
            segment.was_kept_elsewhere |= not are_gone
        self.borrowed.clear()

    def note_closed(self) -> None:
        """Record that the worker has closed its channel, unless it has ended."""
        self.has_closed = not self.child.await_end(CLOSE_S)

    def end(self) -> None:
        """Kill the worker and wait for its end. Messages that it sent can still be received."""
        self.child.kill()
        self.child.await_end(REAP_S)

    def reap(self) -> int | None:
        """Kill the worker and its children, and close its descriptors. Return its exit status.

        The status is negative if a signal ended it, None if unknown.
        """
        self.child.kill()  # its children may still be alive
        is_dead = self.child.await_end(REAP_S)  # it could write to borrowed segments
        status = self._launcher.reap(self.child)
        self.give_back(are_gone=is_dead)
        self.channel.close()
        self.child.close()
        return status


class WorkerStarter:
    """Starts worker processes.

    Notes
    -----
    For the dispatcher's thread only.
    """

    def __init__(self) -> None:
        self._lock = scratch_file()
        self.lock_fd = self._lock.fileno()
        self._launcher = new_launcher()
        self._ahead: list[WorkerProcess] = []  # started before a call needs them

    def start(self, code: CodeVersion, index: int) -> WorkerProcess:
        """Start a worker. It sends a message when it is ready.

        Raises
        ------
        WorkerDiedError
            If the worker cannot be started, for any reason.
        """
        worker = self._ahead.pop(0) if self._ahead else self._launched()
        worker.generation, worker.index = code.generation, index
        assert code.snapshot is not None
        try:
            message = index, _owner(), dict(code.environ)
            worker.channel.send(message, [code.snapshot.fileno()], wait=False)
        except ConnectionError:  # the worker is already dead, which is handled later
            pass
        except BaseException:
            _drop(worker)
            raise
        return worker

    def _launched(self) -> WorkerProcess:
        """Start a worker that waits for its code."""
        pipes: list[tuple[int, int]] = []
        try:
            pipes.extend(waiting.print_pipe() for _ in STREAMS)  # closed if one fails
            ours, theirs = channel_pair()
            with closing(theirs):
                fds = theirs.fileno(), self.lock_fd, *(w for _, w in pipes)
                try:
                    child = self._launcher.launch(fds, ours)
                except BaseException:
                    ours.close()
                    raise
        except Exception as error:
            for fd, _ in pipes:
                close(fd)
            if isinstance(error, errors.WorkerDiedError):  # it has its own reason
                raise
            reason = "The system may not allow more processes or open files"
            reason = f"{shell.with_limits(reason, 'u', 'n')}."
            if not isinstance(error, OSError):
                reason = "An audit hook or a patched function may be the cause."
            raise errors.WorkerDiedError(
                f"no worker process could be started ({type(error).__name__}: {error}). {reason}"
            ) from error
        finally:
            for _, fd in pipes:
                close(fd)
        output_fds = [fd for fd, _ in pipes]
        return WorkerProcess(ours, output_fds, child, self._launcher)

    def close(self) -> None:
        """End all workers."""
        while self._ahead:
            _drop(self._ahead.pop())
        self._launcher.close()
        self._lock.close()
        self.lock_fd = -1

    def forget(self) -> None:
        """Close the inherited descriptors in a forked child of the owner."""
        self._launcher.forget()

    def warm_up(self, n_workers: int) -> None:
        """Prepare to start `n_workers` more workers. `start` reports errors."""
        with suppress(Exception):
            if self.lock_fd >= 0 and not self._launcher.warm_up():  # else it was closed
                while len(self._ahead) < n_workers:
                    self._ahead.append(self._launched())

    @property
    def is_up(self) -> bool:
        """Whether a worker would start quickly."""
        return self._launcher.is_up


def _owner() -> tuple[int, str]:
    """Return the process id of this process, and its name in `multiprocessing`."""
    module = sys.modules.get("multiprocessing.process")
    return os.getpid(), "MainProcess" if module is None else module.current_process().name


def _drop(worker: WorkerProcess) -> None:
    """End a worker that is not yet in a pool."""
    worker.reap()
    for fd in worker.output_fds:
        close(fd)
