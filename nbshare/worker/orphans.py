"""A process that dies with its owner, however the owner dies.

The owner holds the writing end of a pipe, the *life pipe*, and nobody else does. When the owner
ends, the kernel closes that end and signals everyone who asked to be signalled: no Python need
run for it, so a worker deep in C code that holds the interpreter lock is killed as well.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
from contextlib import suppress

from nbshare.memory.descriptors import pidfd_of
from nbshare.worker.loading import look

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl

__all__ = ["arm", "open_owner", "watch_owner"]

F_SETSIG = 10  # linux/fcntl.h; not in the module fcntl


def arm(life_fd: int) -> None:
    """Have the kernel kill this process group when the life pipe's other end closes."""
    # The owner of a descriptor (F_SETOWN) belongs to the open file description, which forked
    # processes share: only the last to set it would be killed. Opened anew, it is our own; it
    # stays open, as numbers do.
    try:
        fd = os.open(f"/proc/self/fd/{life_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # without /proc there is only `watch_owner`
        return
    with suppress(OSError):  # some systems refuse it; then, too, there is only `watch_owner`
        fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    # The owner may have died before we asked.
    poll = select.poll()
    poll.register(fd, select.POLLHUP)
    if poll.poll(0):
        os.killpg(0, signal.SIGKILL)


def open_owner(owner: int) -> int:
    """Open a pidfd of the owner, which must be the parent: a dead one's number may be reused.

    It is -1 where the system has none.
    """
    pidfd = pidfd_of(owner)
    if os.getppid() != owner:
        os._exit(1)
    return pidfd


def watch_owner(pidfd: int) -> None:
    """Start a thread that kills this process group when the owner ends, and looks at `loading`.

    For the one case that the life pipe misses: an unrelated fork of the owner still holds its
    other end.
    """
    _thread.start_new_thread(_kill_after, (pidfd,))


def _kill_after(pidfd: int) -> None:
    poll = select.poll()
    if pidfd >= 0:
        poll.register(pidfd, select.POLLIN)
    while not poll.poll(look() * 1e3):
        pass
    os.killpg(0, signal.SIGKILL)
