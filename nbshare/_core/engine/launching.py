"""Starts worker processes, as forks of a server or each in a new interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing, suppress
from os.path import dirname
from typing import TYPE_CHECKING, Protocol

import numpy as np

from nbshare._core import PACKAGE
from nbshare._core.interpreter import command
from nbshare._core.system import SYSTEM, owned, processes, waiting, with_room
from nbshare._core.wire.messages import Channel, channel_pair
from nbshare._core.wire.threads import thread_variables

ANSWER_S = 3.0  # time limit for the server's reply, unless the machine is overloaded

# Folders in which a new interpreter finds NumPy and nbshare. They follow its own path, because a
# random.py next to the notebook must not replace that of the standard library.
_PATHS = [dirname(PACKAGE), dirname(dirname(np.__file__))]
# It imports this nbshare, even if the interpreter has another one.
_BOOT = f"""
import gc, sys
gc.disable()
from importlib.machinery import PathFinder
from importlib.util import module_from_spec
sys.path += {_PATHS!r}
spec = PathFinder.find_spec("nbshare", {_PATHS[:1]!r})
sys.modules["nbshare"] = module_from_spec(spec)
spec.loader.exec_module(sys.modules["nbshare"])
"""


class Launcher(Protocol):
    """Starts processes that run as workers."""

    @property
    def is_up(self) -> bool:
        """Whether a worker would start quickly."""

    def warm_up(self) -> bool:
        """Prepare for workers. Return whether they will start quickly."""

    def launch(self, fds: Sequence[int], channel: Channel) -> processes.Child:
        """Start a worker at the other end of a channel, with duplicates of descriptors.

        Return the process. It has no id yet if the worker will report its id.
        """

    def reap(self, child: processes.Child) -> int | None:
        """Return the exit status of a dead worker, or None if the status is unknown."""

    def close(self) -> None:
        """End all workers."""

    def forget(self) -> None:
        """Close the descriptor that keeps the workers alive, in a forked child of the owner."""


class ForkServer:
    """Starts workers as forks of a server process (`worker.server`)."""

    def __init__(self) -> None:
        self._life_read, self._life_write = map(owned, waiting.pipe())
        self._channel: Channel | None = None
        self._server: subprocess.Popen[bytes] | None = None

    @property
    def is_up(self) -> bool:
        """Whether the server has been started."""
        return self._channel is not None

    def warm_up(self) -> bool:
        """Start the server if it is not running."""
        self._running_server()
        return True

    def launch(self, fds: Sequence[int], channel: Channel) -> processes.Child:  # noqa: ARG002
        """Request a new worker from the server."""
        message = "fork", fds
        try:
            self._running_server().send(*message, wait=False)
        except ConnectionError:  # the server has died
            self._end_server()
            self._running_server().send(*message, wait=False)
        return processes.Child()

    def reap(self, child: processes.Child) -> int | None:
        """Return the exit status of a dead worker, or None if the status is unknown."""
        if self._channel is None or not child.pid:
            return None
        with suppress(OSError, EOFError):  # the server has ended
            self._channel.send(("reap", child.pid), wait=False)
            return self._channel.receive(timeout_s=ANSWER_S)[0]  # type: ignore[no-any-return]
        self._end_server()
        return None

    def close(self) -> None:
        """End the server and all workers, which are killed when the life pipe closes."""
        self._life_write.close()
        self._end_server()
        self._life_read.close()

    def forget(self) -> None:
        """Close the descriptor that keeps the workers alive, in a forked child of the owner."""
        self._life_write.close()

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
        """End the server. The next worker starts a new one."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
        if self._server is not None:
            self._server.kill()
            self._server.wait()
            self._server = None


def _start_server(channel_fd: int, life_fd: int) -> subprocess.Popen[bytes]:
    arguments = channel_fd, life_fd, os.getpid()
    return subprocess.Popen(
        command(_BOOT + f"from nbshare._core.worker.server import serve; serve{arguments}"),
        pass_fds=(channel_fd, life_fd),
        stdin=subprocess.DEVNULL,
        # One thread, because a process with several must not fork.
        env=_environ(),
        # A separate group does not receive the interrupts of the terminal and the kernel.
        process_group=0,
    )


def _environ() -> dict[str, str]:
    return {**os.environ, **thread_variables(1), "MPLBACKEND": "Agg"}


if sys.platform == "win32" or not TYPE_CHECKING:  # Linux lacks the modules that it needs

    class Spawner:
        """Starts each worker in a new interpreter, which takes 110 ms."""

        is_up = False

        def __init__(self) -> None:
            self._life = processes.Life()

        def warm_up(self) -> bool:
            """Return False, because no preparation is needed."""
            return False

        def launch(self, fds: Sequence[int], channel: Channel) -> processes.Child:
            """Start a worker in a new interpreter."""
            starting = command(_BOOT + "from nbshare._core.worker.spawned import live; live()")
            return processes.spawned(starting, _environ(), fds, channel.end, self._life)

        def reap(self, child: processes.Child) -> int | None:
            """Return the exit status of a dead worker."""
            return child.status()

        def close(self) -> None:
            """End all workers."""
            self._life.close()

        def forget(self) -> None:
            """Close the descriptor that keeps the workers alive, in a forked child of the owner."""
            self._life.close()


def new_launcher() -> Launcher:
    """Return the launcher for this system."""
    if sys.platform == "win32" or SYSTEM == "macos":
        launcher: Launcher = Spawner()  # type: ignore[name-defined]
        return launcher
    return ForkServer()
