"""Processes: identity, memory, CPUs, signals; how workers start, and end with their owner.

Workers are new interpreters, each the leader of a process group. A fork without exec is unsafe on
macOS, because NumPy uses the framework Accelerate, and a thread of Accelerate may hold a lock.

A shell next to each worker reads a pipe, the *life pipe*. Only the owner holds the other end. When
the owner ends, the kernel closes that end, and the shell kills the group. Even a worker in C code
that holds the interpreter lock therefore ends.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbshare._core.system.descriptors import OwnedFd, raise_limit
from nbshare._core.system.macos import library, waiting
from nbshare._core.system.portable import (
    affinity,
    boot_id,
    heed_interrupts,
    keep_freed_memory,
    members_of,
    n_killed,
    number_space,
    private_bytes,
    raise_oom_score,
    set_affinity,
    umask,
    usable_cpus,
)
from nbshare._core.system.posix import (
    Identity,
    at_fork,
    block_signals,
    blocked_signals,
    buffer_lines,
    c_descriptor,
    detached,
    has_cpu_limit,
    interrupt,
    kill_group,
    limits,
    priority,
    running_timers,
    set_limits,
    set_priority,
    stop_timers,
    user,
    user_in_words,
)

if TYPE_CHECKING:
    import subprocess  # the owner alone needs it

# ---------------------------------------------------------------------------------------- a process

ZOMBIE = 5  # SZOMB of sys/proc.h
PAUSE_S = 1e-3

_known: Identity = (0, 0)


def identity() -> Identity:
    """Return the identity of this process."""
    global _known
    pid = os.getpid()
    if _known[0] != pid:  # the first time, and after a fork
        _known = pid, _start(library.process(pid, library.ProcessInfo))
    return _known


def _start(info: library.ProcessInfo | None) -> int:
    """Return the start time of a process, in µs since 1970, 0 if unknown."""
    return 0 if info is None else info.start_s * 10**6 + info.start_us


def begun_ns() -> int:
    """Return when this process began, in ns since 1970, 0 if unknown."""
    return identity()[1] * 1000


def has_ended(who: Identity) -> bool | None:
    """Return whether a process can no longer access memory, or None if unknown."""
    pid, start = who
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return None
    # A dead process exists until its parent reaps it. Its data are missing or say ZOMBIE.
    info = library.process(pid, library.ProcessInfo)
    return info is None or info.status == ZOMBIE or (start != 0 and _start(info) != start)


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (not swapped out), 0 if unknown."""
    import psutil  # imported late: few calls need it

    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:  # it has just ended
        return 0


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    import resource  # late, once a call

    unit = 1 if sys.platform == "darwin" else 1 << 10  # where tests play macOS
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def n_faults() -> int:
    """Return the number of page faults of this process, which grows when new pages are written."""
    import resource  # late, once a call

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


class Child:
    """A process that leads a group.

    Parameters
    ----------
    process : Popen, optional
        The process, or None if it has not started.

    Attributes
    ----------
    pid : int
        The id of the process, or 0 if it has not started.
    fd : int
        Always -1, because the end of the process's channel shows that the process has ended.
    """

    fd = -1

    def __init__(self, process: subprocess.Popen[bytes] | None = None) -> None:
        self._process = process
        self.pid = 0 if process is None else process.pid

    def note(self, pid: int) -> None:
        """No-op, because the id is known."""

    def kill(self) -> None:
        """Kill the process and its children."""
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):  # it and the group have ended
                os.killpg(self.pid, signal.SIGKILL)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the process runs no code. Return False if it still does."""
        until_s = time.monotonic() + timeout_s
        while self.status() is None:
            if time.monotonic() >= until_s:
                return False
            time.sleep(PAUSE_S)
        return True

    def status(self) -> int | None:
        """Return the exit status of the process (negative for a signal), or None if it runs."""
        if self._process is None:
            return 0
        if self._process.returncode is None and has_ended((self.pid, 0)):
            # Until the process is reaped, its id and its group's id are not reused.
            self.kill()
            self._process.wait()
        return self._process.returncode

    def close(self) -> None:
        """No-op, because the process has been reaped."""


# ---------------------------------------------------------------------------------- memory and CPUs


def available_bytes() -> int:
    """Return the bytes that can be allocated now without compressing others' memory."""
    import psutil  # imported late: few calls need it

    return int(psutil.virtual_memory().available)


def total_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, twice: all of it is usable."""
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return nbytes, nbytes


# ------------------------------------------------------------------------------------------ workers

# In the background, so that the shell is not a child of the worker, which may wait for all its
# children.
WATCH = "exec 3<&0; (read _ <&3; kill -9 0) &"

NEEDED: dict[str, Callable[[], object]] = {}


class Life:
    """A life pipe. When it is closed, or this process ends, the workers end."""

    def __init__(self) -> None:
        self.reading, self._writing = map(OwnedFd, waiting.pipe())

    def close(self) -> None:
        """Close the pipe, which ends the workers. A forked child's close ends no process."""
        self._writing.close()
        self.reading.close()


def spawned(
    command: Sequence[str],
    environ: Mapping[str, str],
    fds: Sequence[int],
    end: waiting.End,  # noqa: ARG001
    life: Life,
) -> Child:
    """Start an interpreter that inherits duplicates of descriptors (see `inherited`)."""
    import subprocess

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


def inherited() -> tuple[int, list[int]]:
    """Return the life pipe and the descriptors that this interpreter was started with."""
    life, *fds = map(int, sys.argv[1:])
    del sys.argv[1:]
    for fd in (life, *fds):
        os.set_inheritable(fd, False)
    return life, fds


def lead_group(owner_fd: int, life_fd: int) -> None:  # noqa: ARG001
    """Arrange that this process and its later children end when the owner ends."""
    raise_limit()  # descriptors beyond the limit are lost
    stdin = os.POSIX_SPAWN_DUP2, owner_fd, 0
    os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", WATCH], {}, file_actions=[stdin]), 0)


def return_freed_memory() -> None:
    """Close arrived descriptors (see `waiting`)."""
    waiting.End.forget_all()
