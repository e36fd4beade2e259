"""What workers need of the system: tried once, before the first is started.

===========================  ============================  ========================================
system call                  for                           where it is missing or refused
===========================  ============================  ========================================
eventfd, epoll_create1       waking up                     an error that names it (`check`)
pipe2                        prints, the owner's end       likewise
socketpair, sendmsg          messages with descriptors     likewise
pidfd_open                   hearing of deaths             the end of the worker's channel, and
                                                           ``/proc`` (`nbshare.engine.process`)
fcntl(O_ASYNC, F_SETSIG)     the end of orphans            a thread with the owner's pidfd, and the
                                                           channel's end (`nbshare.worker.orphans`)
memfd_create, F_ADD_SEALS    memory                        other kinds (`nbshare.memory.choice`)
madvise(MADV_COLLAPSE)       huge pages                    small ones (`nbshare.memory.huge`)
EPOLLEXCLUSIVE               waking up one worker          Linux before 4.5 wakes all that wait
===========================  ============================  ========================================

`nbshare.RingBuffer` says by itself what it needs (`nbshare.arrays.futex`).
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Callable
from contextlib import closing

from nbshare import errors
from nbshare.engine.bell import Gong
from nbshare.wire.messages import channel_pair

__all__ = ["check"]

REFUSED = {errno.EPERM, errno.ENOSYS, errno.EINVAL}  # else something is short, and says so


def check() -> None:
    """Try what there is no other way for.

    Raises
    ------
    WorkerDiedError
        If the system refuses it.
    """
    for name, attempt in _ATTEMPTS.items():
        try:
            attempt()
        except (AttributeError, OSError) as error:
            if getattr(error, "errno", errno.ENOSYS) not in REFUSED:
                raise
            raise errors.WorkerDiedError(
                f"no worker can be started: this system refuses {name} ({error}), perhaps by a "
                'seccomp profile of its container. Allow it, or use backend="threads".'
            ) from None


def _send() -> None:
    ours, theirs = channel_pair()
    with closing(ours), closing(theirs):
        ours.send(None, [ours.fileno()])
        os.close(theirs.receive()[1][0])


_ATTEMPTS: dict[str, Callable[[], object]] = {
    "eventfd": Gong,
    "epoll_create1": select.epoll,
    "pipe2": lambda: list(map(os.close, os.pipe2(os.O_CLOEXEC))),
    "socketpair or sendmsg": _send,
}
