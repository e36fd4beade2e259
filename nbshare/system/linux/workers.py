"""What worker processes need of Linux.

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
memfd_create, F_ADD_SEALS    memory                        other kinds
EPOLLEXCLUSIVE               waking up one worker          Linux before 4.5 wakes all that wait
===========================  ============================  ========================================

`nbshare.RingBuffer` checks itself what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import closing

from nbshare.system.linux import channels, waiting


def _send() -> None:
    ours, theirs = channels.pair()
    with closing(ours), closing(theirs):
        ours.send(b"1", [ours.fileno()], wait=True)
        os.close(theirs.receive(1, wait=True)[1][0])


# By the name of the call.
NEEDED: dict[str, Callable[[], object]] = {
    "eventfd": waiting.WorkerEvent,
    "epoll_create1": waiting.NewData,
    "pipe2": lambda: list(map(os.close, channels.pipe())),
    "socketpair or sendmsg": _send,
}
