"""The fork server: a small process that imports NumPy and the worker's code, and forks workers.

A new interpreter with NumPy takes 110 ms to start, a fork of the server 5 ms. The server has one
thread and never runs user code, so forking it is safe. It is the parent of the workers, and reaps a
worker only when the owner asks for it, so no process id is reused while the owner may still signal
it.

::

    owner ── "fork" + descriptors ──►  fork ──►  worker
    owner ── ("reap", pid) ─────────►  exit status
"""

from __future__ import annotations

import gc
import os
import sys
import traceback
from contextlib import suppress
from math import inf
from typing import Any

from nbshare._core.functions.modules import own_files
from nbshare._core.system import processes, waiting
from nbshare._core.wire import settings
from nbshare._core.wire.messages import Channel
from nbshare._core.worker import process as worker


def serve(channel_fd: int, life_fd: int, owner: int) -> None:
    """Run the server until its owner ends, and a worker in each forked process."""
    if inherited := _fork_workers(channel_fd, life_fd, owner):
        _live(inherited)


def _fork_workers(channel_fd: int, life_fd: int, owner: int) -> worker.InheritedFds | None:
    """Fork workers until the owner ends. In each worker, return its inherited descriptors.

    Outside of this function, workers can run without the server's state.
    """
    for fd in (channel_fd, life_fd):
        os.set_inheritable(fd, False)
    processes.die_with(life_fd)
    processes.keep_freed_memory()  # workers are forked with these settings
    owner_fd = processes.opened_owner(owner)
    channel = Channel.from_fd(channel_fd, owner_fd)
    # Called once here, because it would take 2 ms in each worker.
    own_files()
    settings.carried()
    # The garbage collector of forked workers must not touch, and so copy, pages of the server. It
    # was off during imports, because it takes a tenth of their time.
    gc.freeze()
    gc.enable()
    waiter = waiting.Waiter()
    waiter.watch(channel.fileno(), "message")
    if owner_fd >= 0:
        waiter.watch(owner_fd, "end")  # another process may hold the channel open
    while True:
        if not (found := waiter.wait(inf)):  # no wait is endless
            continue
        if "end" in found:
            return None
        try:
            message, fds = channel.receive()
        except (EOFError, OSError):
            return None
        match message:
            case "fork":
                try:
                    pid = os.fork()
                except OSError:  # no more processes are allowed: a new server may try again
                    return None
                if pid == 0:
                    channel.close()
                    return worker.InheritedFds(owner_fd, life_fd, *fds)
                for fd in fds:
                    os.close(fd)
            case ("reap", pid):
                try:
                    status: Any = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
                except ChildProcessError:
                    status = None
                channel.send(status)


def _live(inherited: worker.InheritedFds) -> None:
    """Run a worker. After an error, exit without joining threads, because the owner waits."""
    try:
        worker.run(inherited)
    except BaseException:  # noqa: BLE001 - the last frame of this process
        traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        os._exit(1)
