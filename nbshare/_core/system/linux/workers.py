"""The needs of worker processes on Linux.

The system calls that have no substitute are tried once, before the first worker starts:

===========================  ============================  ========================================
system call                  for                           where it is missing or refused
===========================  ============================  ========================================
eventfd, epoll_create1       waking up                     an error that names it
pipe2                        prints, the owner's end       likewise
socketpair, sendmsg          messages with descriptors     likewise
pidfd_open                   awaiting deaths               the end of the worker's channel
fcntl(O_ASYNC, F_SETSIG)     the end of orphans            a thread with the owner's pidfd, and the
                                                           channel's end
membarrier, not on x86-64    the order of memory           likewise
memfd_create, F_ADD_SEALS    memory                        other kinds
EPOLLEXCLUSIVE               waking up one worker          Linux before 4.5 wakes all that wait
===========================  ============================  ========================================

`nbshare.RingBuffer` checks itself what it needs.
"""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import os
import select
import signal
from collections.abc import Callable
from contextlib import closing, suppress

from nbshare._core.system.linux import processes, waiting
from nbshare._core.system.posix import detached, end_lines, kill_group, kill_group_after, stream

F_SETSIG = 10  # linux/fcntl.h (not in the module fcntl)
# When memory runs out, the system ends the process with the higher score. A worker can be replaced,
# the notebook's kernel cannot.
OOM_SCORE = b"500"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
KEPT = 64 << 20  # bytes free at the end of the heap, by which it may exceed what a worker uses
LARGEST = 32 << 20  # bytes of a block that is part of the heap, the most that glibc allows


def _send() -> None:
    ours, theirs = waiting.new_connection()
    with closing(ours), closing(theirs):
        waiting.send(ours, b"1", [ours.fileno()], wait=True)
        os.close(waiting.receive(theirs, 1, wait=True)[1][0])


# By the name of the call.
NEEDED: dict[str, Callable[[], object]] = {
    "eventfd": waiting.WorkerEvent,
    "epoll_create1": select.epoll,
    "pipe2": lambda: list(map(os.close, waiting.pipe())),
    "socketpair or sendmsg": _send,
    "membarrier": waiting.register_fences,
}


def lead_group(owner_fd: int, life_fd: int) -> None:
    """Make a group of this process and those that it will start. It dies with the owner.

    `owner_fd` comes from `opened_owner`.
    """
    os.setpgid(0, 0)
    die_with(life_fd)
    # For the one case that the life pipe misses, when an unrelated fork of the owner has its other
    # end.
    if owner_fd >= 0:
        _thread.start_new_thread(kill_group_after, (owner_fd,))


def die_with(life_fd: int) -> None:
    """Make the kernel kill this process group when the life pipe's other end closes."""
    # The owner of a descriptor (F_SETOWN) belongs to the open file description, which forked
    # processes share, and only the last one to set it would be killed. So we open it again, and
    # keep it open.
    try:
        fd = os.open(f"/proc/self/fd/{life_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # without /proc there is only `_kill_after`
        return
    with suppress(OSError):  # some systems refuse it, and then there is only `_kill_after`
        fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if waiting.is_readable(fd, 0.0):  # the owner had died before we asked
        kill_group()


def opened_owner(owner: int) -> int:
    """Open the owner, which must be the parent, because a dead process's number may be reused.

    Return a descriptor that becomes readable when it ends, or -1 if the system has none.
    """
    fd = processes.opened_process(owner)
    if os.getppid() != owner:
        os._exit(1)
    return fd


def end_first() -> None:
    """Have the system end this process before others, when memory runs out."""
    # Some containers forbid it. Then the kernel chooses by size alone.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OOM_SCORE)


def keep_freed() -> None:
    """Keep freed memory in this process and its forks, unless the user has configured malloc.

    By default glibc returns freed memory of some megabytes to the kernel immediately, so that each
    temporary array of a long computation is made of fresh pages. Zeroing and mapping these can take
    twice as long as the computation itself.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(AttributeError):  # other C libraries have no such settings
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)


def return_freed() -> None:
    """Return freed memory to the system."""
    with suppress(AttributeError):  # other C libraries have no such function
        ctypes.CDLL(None).malloc_trim(0)
