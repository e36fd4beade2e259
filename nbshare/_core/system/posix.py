"""Code shared by Linux and macOS. The modules of these systems import names from here."""

from __future__ import annotations

import _socket  # `socket` would take each worker 2 ms to import
import ctypes
import fcntl
import mmap
import os
import re
import select
import signal
import sys
import termios
import time
from _signal import pthread_sigmask  # type: ignore[import-not-found]  # not in an enumeration
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from math import inf
from typing import TYPE_CHECKING, Any

from nbshare._core.interrupts import uninterrupted
from nbshare._core.system.descriptors import Descriptor, opened, too_many, with_room
from nbshare._core.system.portable import new_name

if TYPE_CHECKING:
    import subprocess  # the owner alone needs it


# ------------------------------------------------------------------------------------------ waiting

_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS

# Not socket.send_fds and recv_fds, because up to Python 3.13 they ignore their flags.


def room_for(n: int) -> int:
    """Return the buffer size for descriptors next to a packet, with room for one too many."""
    return _socket.CMSG_SPACE((n + 1) * array("i").itemsize)


def rights_of(fds: Sequence[int]) -> list[Any]:
    """Return the ancillary data that sends descriptors with a packet."""
    return [(*_RIGHTS, array("i", fds))] if fds else []


def given_in(ancillary: Sequence[Any], flags: int) -> list[int]:
    """Return the descriptors that arrived with a packet.

    Raises
    ------
    OSError
        If the descriptors exceed this process's limit. The process then has none of them.
    """
    fds = array("i")
    for level, kind, rights in ancillary:
        if (level, kind) == _RIGHTS:
            fds.frombytes(rights[: len(rights) - len(rights) % fds.itemsize])
    if flags & _socket.MSG_CTRUNC:
        for fd in fds:
            os.close(fd)
        raise too_many()
    return list(fds)


def keep_open(end: _socket.socket) -> None:
    """Keep an end of a connection open until this process has ended."""
    end.detach()


def pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe."""
    return with_room(os.pipe)


def print_pipe() -> tuple[int, int]:
    """Return the reading and the writing end of a new pipe for a worker's prints."""
    ends = pipe()
    os.set_blocking(ends[0], False)  # only the owner's end
    return ends


def has_unread(fd: int) -> bool:
    """Return whether a pipe has bytes that have not been read. Raise OSError if it is closed."""
    fcntl.ioctl(fd, termios.FIONREAD, count := array("i", [0]))
    return count[0] > 0


LONGEST_S = 3600.0  # longest wait (poll accepts some more, but not every time-out of users)


def is_readable(fd: int | _socket.socket, timeout_s: float | None = None) -> bool:
    """Wait until a descriptor is readable or its other end is closed. Return whether it is."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1e3))


class FdWaiter:
    """Waits for several descriptors, each of which stands for an object.

    Notes
    -----
    For one thread.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._watched: dict[int, object] = {}

    def watch(self, fd: int, what: object) -> None:
        """Report `what` when the descriptor is readable or its other end is closed."""
        self._watched[fd] = what
        self._poll.register(fd, select.POLLIN)

    def unwatch(self, fd: int) -> None:
        """Stop watching the descriptor."""
        del self._watched[fd]
        self._poll.unregister(fd)

    def wait(self, until_s: float) -> list[object]:
        """Wait for reports, until a time on the monotonic clock. Return each report once."""
        timeout_ms = min(max(0.0, until_s - time.monotonic()), LONGEST_S) * 1e3 + 1
        return list({self._watched[fd]: None for fd, _ in self._poll.poll(timeout_ms)})


# ---------------------------------------------------------------------------------------- processes

TIMERS = {signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF}

Identity = tuple[int, int]  # process number and start time, because numbers are reused

Limits = list[tuple[int, int]]  # a soft and a hard limit for each resource
LEAST_FILES = 256  # smallest limit of open files, because a message may contain 200


def user_in_words(uid: int) -> str:
    """Return the name and the number of a user, or only the number."""
    import pwd  # late, because few processes need it

    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    return f"user {uid}"


at_fork = os.register_at_fork


def interrupt(pid: int = 0) -> None:
    """Interrupt a process as Ctrl-C does, by default this one."""
    os.kill(pid or os.getpid(), signal.SIGINT)


def blocked_signals() -> set[int]:
    """Return the signals that this thread blocks."""
    return pthread_sigmask(signal.SIG_BLOCK, ())  # type: ignore[no-any-return]


def block_signals(numbers: set[int]) -> None:
    """Block exactly these signals in this thread."""
    pthread_sigmask(signal.SIG_SETMASK, numbers)


def running_timers() -> set[int]:
    """Return the timers of this process that are set."""
    return {timer for timer in TIMERS if any(signal.getitimer(timer))}


def stop_timers(kept: set[int]) -> None:
    """Stop the timers of this process, except for some."""
    for timer in TIMERS - kept:
        signal.setitimer(timer, 0)


def limits() -> Limits | None:
    """Return the limits of this process for the resources of `_resources`."""
    getrlimit, numbers = _resources()
    return [*map(getrlimit, numbers)]


def has_cpu_limit() -> bool:
    """Return whether the CPU time of this process is limited."""
    import resource

    return resource.getrlimit(resource.RLIMIT_CPU)[0] != resource.RLIM_INFINITY


def set_limits(wanted: Limits) -> None:
    """Set these limits, as far as this process is allowed to."""
    from resource import RLIM_INFINITY, RLIMIT_NOFILE, setrlimit

    def size(limit: int) -> float:
        return inf if limit == RLIM_INFINITY else limit

    getrlimit, numbers = _resources()
    for number, (soft, hard) in zip(numbers, wanted, strict=True):
        if number == RLIMIT_NOFILE and size(soft) < LEAST_FILES:
            soft = min(LEAST_FILES, hard, key=size)
        for most in hard, getrlimit(number)[1]:  # only root raises a hard limit
            possible = min(soft, most, key=size), most
            if possible == getrlimit(number):
                break
            with suppress(ValueError, OSError):
                setrlimit(number, possible)
                break


@cache
def _resources() -> tuple[Callable[[int], tuple[int, int]], list[int]]:
    """Return a function that reads a limit in 0.4 µs, and the numbers of the common limits."""
    import resource  # late, because `import nbshare` needs no limits

    names = ["AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK"]
    numbers = (getattr(resource, f"RLIMIT_{name}", None) for name in names)
    return resource.getrlimit, [number for number in numbers if number is not None]


_CAN_SCHEDULE = hasattr(os, "sched_getscheduler")  # not on macOS


def priority() -> tuple[int, int | None] | None:
    """Return niceness and scheduling policy of this thread (on macOS, of this process)."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return niceness, os.sched_getscheduler(0) if _CAN_SCHEDULE else None


def set_priority(wanted: tuple[int, int | None]) -> None:
    """Set niceness and scheduling policy, if this process is allowed to."""
    niceness, policy = wanted
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if policy is not None:
        with suppress(OSError):  # a real-time policy would need its own priority
            os.sched_setscheduler(0, policy, os.sched_param(0))


def user() -> tuple[int, ...] | None:
    """Return the user and the group that this process acts for."""
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid()


LINE_BUFFERED = 1  # _IOLBF of stdio.h


def kill_group() -> None:
    """Kill this process and its children."""
    os.killpg(0, signal.SIGKILL)


def kill_group_after(owner_fd: int) -> None:
    """Kill this process group when a descriptor becomes readable."""
    is_readable(owner_fd)
    kill_group()


def detached(
    command: Sequence[str], env: Mapping[str, str], log: Descriptor
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this process and receives none of its signals."""
    import subprocess

    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log.fileno(),
        stderr=log.fileno(),
        start_new_session=True,
    )


def c_descriptor(fd: int) -> int:
    """Return the descriptor itself, because the C library uses the same one."""
    return fd


def buffer_lines() -> None:
    """Set C's stdout to flush each line, because its buffers are lost when a worker is killed."""
    libc = ctypes.CDLL(None)
    for name in ("stdout", "__stdoutp"):  # Linux, macOS
        with suppress(Exception):  # another C library
            stdout = ctypes.c_void_p.in_dll(libc, name)
            libc.setvbuf(stdout, None, LINE_BUFFERED, ctypes.c_size_t())


# ----------------------------------------------------------------------------------------- sections

# Without this option, as before Python 3.13, a mapping holds a duplicate of its descriptor.
MAP_OPTIONS: dict[str, Any] = {"trackfd": False} if sys.version_info >= (3, 13) else {}

_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"  # names (the process number is for `sweep`)


def mapping(fd: int, nbytes: int, mode: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of `mmap.mmap` that map memory, with the `mode` of `numpy.memmap`."""
    protection = mmap.PROT_READ | (mmap.PROT_WRITE if mode != "r" else 0)
    flags = mmap.MAP_PRIVATE if mode == "c" else mmap.MAP_SHARED
    return (fd, nbytes, flags, protection), MAP_OPTIONS


def file_at(path: str) -> tuple[int, int]:
    """Return the inode and the device of the file that a path leads to."""
    return os.stat(path)[1:3]


def unnamed_file(folder: str, has_ended: Callable[[Identity], bool | None]) -> Descriptor:
    """Create an empty file in a directory, and remove its name immediately."""
    sweep(folder, has_ended)
    path = os.path.join(folder, new_name())
    with uninterrupted():
        file = opened(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
        with suppress(FileNotFoundError):  # swept by another process
            os.unlink(path)
    return file


@cache
def sweep(folder: str, has_ended: Callable[[Identity], bool | None]) -> None:
    """Remove files left by killed processes.

    This is done once per process and folder. If a container or another machine with process numbers
    of its own shares the folder, a name may be removed shortly before its owner would remove it.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = re.fullmatch(_OURS, entry.name)
            if found and has_ended((int(found[1], 16), 0)):
                with suppress(OSError):  # another process sweeps too, or the file is another user's
                    os.unlink(entry.path)


# -------------------------------------------------------------------------------------------- files

CAN_SYNC_FOLDERS = True
TO_SYNC = os.O_RDONLY  # flags for opening a file to fsync
MODE = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # no link is followed, no pipe waited for

read_at, write_at, cut = os.pread, os.pwrite, os.ftruncate
replace, move, remove = os.replace, os.rename, os.unlink
enter = os.chdir  # in any case, because a new folder may have the same name


def open_safely(path: str | os.PathLike[str], flags: int) -> int:
    """Open a file, without following a link, or waiting for the other end of a pipe."""
    return os.open(path, flags | MODE, 0o666)


def is_open(fd: int) -> bool:
    """Return whether a descriptor is open."""
    try:
        os.get_inheritable(fd)
    except OSError:
        return False
    return True


def remove_old(folder: str | os.PathLike[str]) -> None:
    """No-op, because a file can be removed while it is open."""


def free_in(folder: str) -> int:
    """Return the number of free bytes in a directory."""
    status = os.statvfs(folder or os.curdir)
    # A file system without limits, or on a network, may report no blocks at all.
    return status.f_bavail * status.f_frsize if status.f_blocks else 1 << 62


def other_owner(status: os.stat_result) -> int | None:
    """Return the number of the user that owns a file, or None if it is this process's user."""
    return None if status.st_uid == os.geteuid() else status.st_uid


# -------------------------------------------------------------------------------------------- locks


class FileLock:
    """A lock between processes, on a file. The kernel releases it if its holder dies.

    The file is opened once per process, and never mapped or closed, because closing any descriptor
    of the file would release the lock. The lock does not exclude threads of one process.

    Parameters
    ----------
    fd : int
        The descriptor of the file.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __enter__(self) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        fcntl.lockf(self._fd, fcntl.LOCK_UN)


def lock_file(fd: int) -> None:
    """Lock a file until it is closed.

    Raises
    ------
    BlockingIOError, PermissionError
        If another process has locked the file.
    OSError
        If the file system refuses locks.
    """
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
