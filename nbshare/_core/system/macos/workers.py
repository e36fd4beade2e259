"""The needs of worker processes on macOS, new interpreters, each the leader of a group.

A fork without exec is unsafe on macOS, because the framework that NumPy uses, Accelerate, may have
threads, and one of them may hold a lock.

A shell beside each worker reads a pipe, the *life pipe*, whose other end only the owner has. When
the owner ends, the kernel closes that end, and the shell kills the group. So a worker in C code
that holds the interpreter lock ends, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence

from nbshare._core.system.descriptors import File, raise_limit
from nbshare._core.system.macos import waiting
from nbshare._core.system.macos.processes import Child
from nbshare._core.system.posix import detached, end_lines, kill_group, stream

# In the background, so that it is no child of the worker, which may wait for all of its own.
WATCH = "exec 3<&0; (read _ <&3; kill -9 0) &"

NEEDED: dict[str, Callable[[], object]] = {}


class Life:
    """A life pipe. Workers end when it is closed, or when this process ends."""

    def __init__(self) -> None:
        self.reading, self._writing = map(File, waiting.pipe())

    def close(self) -> None:
        """Close it. In a forked child, which has inherited it, that ends nobody."""
        self._writing.close()
        self.reading.close()


def spawned(
    command: Sequence[str],
    environ: Mapping[str, str],
    fds: Sequence[int],
    end: waiting.End,  # noqa: ARG001
    life: Life,
) -> Child:
    """Start an interpreter that takes over duplicates of descriptors (see `given`)."""
    raise_limit()
    fds = life.reading.fileno(), *fds
    process = subprocess.Popen(
        [*command, *map(str, fds)],
        pass_fds=fds,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environ,
        process_group=0,  # the terminal's and the kernel's interrupt are not for workers
    )
    return Child(process)


def given() -> tuple[int, list[int]]:
    """Return the life pipe and the descriptors that this interpreter was started with."""
    life, *fds = map(int, sys.argv[1:])
    del sys.argv[1:]
    for fd in (life, *fds):
        os.set_inheritable(fd, False)
    return life, fds


def lead_group(owner_fd: int, life_fd: int) -> None:  # noqa: ARG001
    """Have this process and those that it will start end with the owner."""
    raise_limit()  # descriptors beyond the limit are lost
    stdin = os.POSIX_SPAWN_DUP2, owner_fd, 0
    os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", WATCH], {}, file_actions=[stdin]), 0)


def end_first() -> None:
    """Do nothing, because the system has no such choice."""


def keep_freed() -> None:
    """Do nothing, because the C library has no such settings."""


def return_freed() -> None:
    """Close what has arrived (see `waiting`)."""
    waiting.End.forget_all()
