"""The owner's side of worker processes: starting, signalling and burying them."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from os.path import dirname, samestat
from typing import TYPE_CHECKING, Any

import numpy as np

from nbshare import errors
from nbshare.memory import Segment, scratch_file
from nbshare.memory.descriptors import owned, pidfd_of, with_room
from nbshare.memory.processes import has_ended, is_out_of_time, state_of
from nbshare.wire.blas import ONE_THREAD
from nbshare.wire.messages import Channel, channel_pair
from nbshare.wire.orders import STREAMS

if TYPE_CHECKING:
    from nbshare.engine.call import Call, Code

__all__ = ["FORK_S", "LOOK_S", "Nursery", "WorkerProcess"]

BOOT_S = 30.0  # for a new interpreter to import NumPy, from a slow disk
FORK_S = 2.0  # for a server that has done it before; it takes 5 ms unless somebody has stopped it
LOOK_S = 0.1  # between looks whether a server has been stopped that does not do what it was asked
CLOSE_S = 0.5  # from the end of a worker's channel to its own it takes microseconds
REAP_S = 1.0  # a killed worker ends, and the server answers, in less than a millisecond

# What has to be importable in a new interpreter, whose own path comes first: a random.py beside
# the notebook must not be taken for the standard library's.
_PACKAGE = dirname(dirname(__file__))
_PATHS = [dirname(_PACKAGE), dirname(dirname(np.__file__))]
# This nbshare, even if another is installed there.
_BOOT = f"""
import gc, sys
gc.disable()
from importlib.util import module_from_spec, spec_from_file_location
sys.path += {_PATHS!r}
spec = spec_from_file_location("nbshare", {os.path.join(_PACKAGE, "__init__.py")!r})
sys.modules["nbshare"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["nbshare"])
from nbshare.worker.server import serve, spawned
"""


class WorkerProcess:
    """A worker as its owner sees it.

    Attributes
    ----------
    channel : Channel
        To the worker.
    generation : int
        Workers of an older generation than the engine's have stale code or environment.
    output_fds : sequence of int
        Reading ends of pipes for its standard output and error output.
    pid, pidfd : int
        Known once it has said that it is ready; 0 and -1 before. The system may have no pidfds.
    call : Call or None
        What it works on.
    call_since : float
        When it could turn to it, on the monotonic clock.
    ready_by : float
        On the monotonic clock; if it is not ready then, its start has failed.
    why : str
        Of one that is dead: "closed" if it lived on after it had closed its channel, "time" if it
        had no CPU time left, else "".
    """

    def __init__(
        self,
        channel: Channel,
        output_fds: Sequence[int],
        nursery: Nursery,
        popen: Any,
        generation: int,
    ) -> None:
        self.channel = channel
        self.output_fds = output_fds
        self.generation = generation
        self.call: Call | None = None
        self.call_since = 0.0
        self.pid = 0
        self.pidfd = -1
        self.why = ""
        self.ready_by = time.monotonic() + (FORK_S if nursery.is_proven else BOOT_S)
        self._nursery = nursery
        self._popen = popen  # None: a child of the server
        self._borrowed: dict[int, list[Segment]] = {}  # by call

    @property
    def is_ready(self) -> bool:
        """Whether it has started."""
        return self.pid != 0

    @property
    def has_nothing_to_do(self) -> bool:
        """Whether it has finished all calls that it was given."""
        return self.call is None and not self._borrowed

    @property
    def is_behind(self) -> bool:
        """Whether it has yet to say that it has finished an earlier call than its last.

        It may be at an import or an initializer that others have done sooner, or not had a CPU.
        """
        return len(self._borrowed) > 1

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it, by SIGSTOP or with a debugger."""
        with suppress(OSError):
            return state_of(self.pid) in "tT"
        return False

    def lend(self, call_id: int, *segments: Segment) -> None:
        """Note that it has been given a call, and sent these segments for it."""
        for segment in segments:
            segment.n_borrowed += 1
        self._borrowed.setdefault(call_id, []).extend(segments)

    def has_borrowed_for(self, call_id: int) -> bool:
        """Whether it has been sent segments for a call, and has not given its word on them."""
        return bool(self._borrowed.get(call_id))

    def give_back(self, call_id: int, *, are_gone: bool) -> None:
        """Note that it has finished a call, and whether no view is left there."""
        for segment in self._borrowed.pop(call_id, ()):
            segment.n_borrowed -= 1
            segment.was_kept_elsewhere |= not are_gone

    def greet(self, pid: int) -> None:
        """Note that it has started."""
        self.pid = pid
        self.call_since = time.monotonic()
        self.pidfd = pidfd_of(pid)
        self._nursery.is_proven = self._popen is None

    def kill(self) -> None:
        """End it and the processes it has started."""
        if self.pid:
            # Not reaped before `bury`, so the number still means this group.
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        elif self._popen is not None:
            self._popen.kill()

    def note_closed(self) -> None:
        """Note that it has closed its channel, by its own end or not."""
        if not self._await_death(CLOSE_S):
            self.why = "closed"

    def end(self) -> None:
        """End it, and wait until it is gone: what it has sent until then can be received."""
        self.kill()
        self._await_death()

    def bury(self) -> int | None:
        """Close what belonged to a dead worker; returns its exit status, negative for a signal."""
        self.kill()  # what it started may have outlived it
        is_dead = self._await_death()
        if not self.why and is_out_of_time(self.pid):
            self.why = "time"
        status = None
        if self._popen is not None:
            status = self._popen.wait()
        elif self.pid:
            status = self._nursery.reap(self.pid)
        for call_id in list(self._borrowed):
            self.give_back(call_id, are_gone=is_dead)
        self.channel.close()
        if self.pidfd >= 0:
            os.close(self.pidfd)
        return status

    def _await_death(self, timeout_s: float = REAP_S) -> bool:
        """Wait until it is gone: before, it could still write to what it was lent."""
        if not self.pid:
            return True  # it has begun nothing, and will find its channel closed
        if self.pidfd >= 0:
            poll = select.poll()
            poll.register(self.pidfd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1e3))
        until_s = time.monotonic() + timeout_s
        while not (is_dead := has_ended((self.pid, 0))) and time.monotonic() < until_s:
            time.sleep(1e-3)
        return is_dead


class Nursery:
    """Starts workers: by the fork server, or where that fails in interpreters of their own.

    Parameters
    ----------
    use_server : bool
        False: only interpreters of their own.

    Notes
    -----
    For the dispatcher's thread only.
    """

    def __init__(self, use_server: bool = True) -> None:
        self.use_server = use_server
        self.is_proven = False  # the server has forked a worker that was ready
        self._n_distrusted = 0
        self._lock = scratch_file()
        self.lock_fd = self._lock.fileno()
        self._lock_stat = os.fstat(self.lock_fd)
        self._life_read, self._life_write = map(owned, with_room(lambda: os.pipe2(os.O_CLOEXEC)))
        self._channel: Channel | None = None
        self._server: subprocess.Popen[bytes] | None = None

    def start(self, environ: Mapping[str, str], code: Code) -> WorkerProcess:
        """Start a worker; it says by itself when it is ready.

        Raises
        ------
        WorkerDiedError
            If the system gives no more processes or descriptors.
        """
        pipes: list[tuple[int, int]] = []
        assert code.snapshot is not None
        try:
            for _ in STREAMS:
                pipes.append(with_room(lambda: os.pipe2(os.O_CLOEXEC)))
                os.set_blocking(pipes[-1][0], False)  # our end only
            ours, theirs = channel_pair()
            with closing(theirs):
                fds = theirs.fileno(), self.lock_fd, code.snapshot.fileno(), *(w for _, w in pipes)
                popen = None if self.use_server else self._spawn(fds)
                if popen is None:
                    self._fork(fds)
            with suppress(ConnectionError):  # it is dead already, and its owner will hear of that
                ours.send(dict(environ), wait=False)
        except OSError as error:
            for fd, _ in pipes:
                os.close(fd)
            raise errors.WorkerDiedError(
                f"no worker process could be started ({error}). The system may allow no more "
                "processes or open files (ulimit -u, ulimit -n)."
            ) from error
        finally:
            for _, fd in pipes:
                os.close(fd)
        return WorkerProcess(ours, [fd for fd, _ in pipes], self, popen, code.generation)

    def reap(self, pid: int) -> int | None:
        """Return the exit status of a dead child of the server; None if nobody knows it."""
        if self._channel is None:
            return None
        try:
            self._channel.send(("reap", pid), wait=False)
            until = time.monotonic() + REAP_S
            while True:
                try:
                    (_, reaped, status), _ = self._channel.receive(timeout_s=LOOK_S)
                except TimeoutError:
                    if self._is_stopped() or time.monotonic() > until:
                        raise
                else:
                    if reaped == pid:
                        return status  # type: ignore[no-any-return]
        except (OSError, EOFError):
            self._end_server()
            return None

    def end_if_stopped(self) -> None:
        """End a server that somebody has stopped; whoever it has yet to start is lost with it."""
        if self._is_stopped():
            self._end_server()

    def _is_stopped(self) -> bool:
        if self._server is None:
            return False
        with suppress(OSError):  # ended, and somebody else has asked for its status
            look = os.WSTOPPED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._server.pid, look) is not None
        return False

    def distrust(self) -> None:
        """End a server whose worker did not come; after the second time do without."""
        self._end_server()
        self._n_distrusted += 1
        if self._n_distrusted > 1:
            self.use_server = False

    def check_files(self) -> None:
        """Raise RuntimeError if the program has closed its files: others may have the numbers."""
        with suppress(OSError):
            if samestat(os.fstat(self.lock_fd), self._lock_stat):
                return
        if self.lock_fd >= 0:
            raise RuntimeError(
                "this program has closed the files that nbshare had open, as os.closerange does "
                "in daemon libraries. Restart Python; call nbshare.shutdown() before closing them"
            )

    def close(self) -> None:
        """End the server and whoever is left: closing the life pipe kills them all."""
        self._life_write.close()
        self._end_server()
        self._life_read.close()
        self.lock_fd = -1  # first: other threads may look at it
        self._lock.close()

    def forget(self) -> None:
        """Let go of what a forked child of the owner has inherited."""
        self._life_write.close()

    def warm_up(self) -> None:
        """Start the server if it is not running; errors are for `start` to report."""
        if self.use_server:
            with suppress(OSError):
                self._running_server()

    @property
    def is_up(self) -> bool:
        """Whether the server has been started, or none is used."""
        return self._channel is not None or not self.use_server

    def _fork(self, fds: Sequence[int]) -> None:
        message = "fork", fds
        try:
            self._running_server().send(*message, wait=False)
        except (ConnectionError, BlockingIOError):  # it has died or was stopped since its last use
            self._end_server()
            self._running_server().send(*message, wait=False)

    def _running_server(self) -> Channel:
        if self._server is not None and self._server.poll() is not None:
            self._end_server()
        if self._channel is None:
            self._channel, server_end = channel_pair()
            with closing(server_end):
                call = f"serve({server_end.fileno()}, {self._life_read.fileno()}, {os.getpid()})"
                fds = server_end.fileno(), self._life_read.fileno()
                self._server = with_room(lambda: self._interpreter(call, fds))
        return self._channel

    def _spawn(self, fds: Sequence[int]) -> subprocess.Popen[bytes]:
        fds = [self._life_read.fileno(), *fds]
        call = f"spawned({os.getpid()}, {', '.join(map(str, fds))})"
        return with_room(lambda: self._interpreter(call, fds))

    @staticmethod
    def _interpreter(call: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
        flags = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        return subprocess.Popen(
            [sys.executable, *flags, "-P", "-c", _BOOT + call],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **ONE_THREAD, "MPLBACKEND": "Agg"},
            # Of its own group it does not see the terminal's or the kernel's interrupt.
            process_group=0,
        )

    def _end_server(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None
        self.is_proven = False
