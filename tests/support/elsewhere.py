"""A system that is not Linux, played in a new interpreter. Import this before nbshare.

Modules, calls and files that other systems lack are taken away. It shows that nbshare does without
them, and not that it works on any of those systems.
"""

from __future__ import annotations

import builtins
import mmap
import os
import select
import signal
import socket
import sys

MODULES = ("fcntl", "grp", "pty", "pwd", "resource", "syslog", "termios", "_posixshmem")
CALLS = {
    os: """
        fork forkpty memfd_create pidfd_open eventfd eventfd_read eventfd_write pipe2 pread pwrite
        posix_fallocate sched_getaffinity sched_setaffinity register_at_fork mkfifo fchmod getuid
        geteuid getpgid killpg setsid sysconf statvfs uname posix_spawn sendfile waitid
    """,
    select: "poll epoll EPOLLIN EPOLLEXCLUSIVE kqueue",
    signal: "SIGKILL SIGSTOP SIGHUP SIGUSR1 SIGUSR2 SIGCHLD SIGALRM pthread_kill pthread_sigmask",
    socket: "AF_UNIX SCM_RIGHTS CMSG_SPACE CMSG_LEN send_fds recv_fds",
    mmap: "MAP_PRIVATE MAP_SHARED MAP_ANONYMOUS PROT_READ PROT_WRITE MADV_REMOVE MADV_DONTNEED",
}
HIDDEN = ("/proc/", "/sys/", "/dev/shm")


def _without_hidden(function):
    def call(path, *args, **kwargs):
        if str(path).startswith(HIDDEN):
            raise FileNotFoundError(path)
        return function(path, *args, **kwargs)

    return call


for name in MODULES:
    sys.modules[name] = None  # type: ignore[assignment]  # its import fails
for module, names in CALLS.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for where, names in ((builtins, "open"), (os, "open stat listdir scandir readlink")):
    for name in names.split():
        setattr(where, name, _without_hidden(getattr(where, name)))
sys.platform = "elsewhere"
