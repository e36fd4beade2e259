"""A worker process: waits for calls, claims chunks, runs the function, stores results.

::

    started ──► ready ──► call ──► claim ─► run items ─► claim … nothing left ──► finished ─┐
                  ▲                                                                          │
                  └──────────────────────────────────────────────────────────────────────────┘

It never runs the caller's ``__main__``, and it dies with its owner, however that dies:
the owner alone holds the writing end of a pipe, the *life pipe*. When the owner ends, the kernel
closes that end and signals everyone who asked to be signalled: no Python need run for it, so a
worker deep in C code that holds the interpreter lock is killed as well.
"""

from __future__ import annotations

import _thread
import os
import select
import signal
import sys
from contextlib import suppress
from typing import NamedTuple, NoReturn

from nbshare.functions.freshness import ImportLog, use_snapshot
from nbshare.memory import hush
from nbshare.memory.descriptors import pidfd_of
from nbshare.wire import become_worker
from nbshare.wire.messages import Channel
from nbshare.worker import streams
from nbshare.worker.belongings import Belongings, show_crashes
from nbshare.worker.loading import look
from nbshare.worker.remote import KEEP_S, Mappings, work_on

with suppress(ImportError):  # Windows has none, and no workers yet
    import fcntl

__all__ = ["Endowment", "arm", "open_owner", "run"]

# Of two processes the kernel ends the one with the higher score when memory runs out: a worker
# can be replaced, the notebook's kernel cannot.
OOM_SCORE = b"500"


class Endowment(NamedTuple):
    """The descriptors and facts that a worker is born with."""

    owner_pidfd: int  # or -1
    life_fd: int  # reading end of the owner's life pipe
    channel_fd: int
    lock_fd: int  # where chunks are claimed
    sources_fd: int  # a `Snapshot`
    out_fd: int  # pipes to the owner for what is printed
    err_fd: int


def run(birth: Endowment) -> NoReturn:
    """Live as a worker until the owner ends."""
    try:
        channel = _settle_in(birth)
        # A child that an item forks would keep it open: its end tells of this process's death.
        os.register_at_fork(after_in_child=channel.close)
        channel.send(("ready", os.getpid()))
    except (EOFError, ConnectionError, RuntimeError):
        os._exit(1)  # the owner has given it up, or no thread may be started: it will be told
    belongings, mappings = Belongings(), Mappings()
    imports = ImportLog()
    while True:
        try:
            message, fds = channel.receive(timeout_s=KEEP_S if mappings else None)
        except TimeoutError:
            mappings.drop()
            continue
        except (EOFError, OSError):
            # The owner is gone, which the kernel would tell our group as well, but not if we are
            # faster and close the description of the life pipe that the group is named in.
            os.killpg(0, signal.SIGKILL)
        work_on(message, fds, channel, birth.lock_fd, imports, mappings, belongings)
        streams.tell_dropped()
        channel.send(("finished", message.call, imports.take(), mappings.end_call()))
        # Now: of a next message descriptors may come, and would take the numbers of closed ones.
        belongings.restore_after()


def _settle_in(birth: Endowment) -> Channel:
    """Become a worker: alone in a process group, doomed with the owner, set as the caller is."""
    become_worker()
    hush()  # the owner has told of what is amiss with memory
    has_low = any(0 <= fd <= streams.HIGHEST for fd in birth)
    if not has_low:  # else the owner has no standard streams
        streams.replace((birth.out_fd, birth.err_fd))
    os.setpgid(0, 0)
    arm(birth.life_fd)
    watch_owner(birth.owner_pidfd)
    # Some containers forbid it; then the kernel chooses by size alone.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OOM_SCORE)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    show_crashes()
    channel = Channel.from_fd(birth.channel_fd)
    environ, _ = channel.receive()
    use_snapshot(birth.sources_fd)
    os.environ.clear()
    os.environ.update(environ)
    os.environ["MPLBACKEND"] = "Agg"  # the notebook's own needs a kernel
    if os.environ.get(streams.MARK_PRINTS, "") not in ("", "0"):
        streams.mark()
    if "numpy.random" in sys.modules:  # forked copies would all draw the same numbers
        sys.modules["numpy.random"].seed()
    return channel


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
