"""Processes: identity, memory, CPUs, signals; how workers start, and end with their owner.

Containers, batch systems and systemd slices limit a process by control groups (cgroups).

The system calls that workers need are tried once, before the first worker starts:

===========================  ============================  ========================================
system call                  purpose                       if it is missing or refused
===========================  ============================  ========================================
eventfd, epoll_create1       waking up                     an error that names it
pipe2                        prints, the owner's end       likewise
socketpair, sendmsg          messages with descriptors     likewise
pidfd_open                   awaiting deaths               the end of the worker's channel
fcntl(O_ASYNC, F_SETSIG)     the end of orphans            a thread with the owner's pidfd, and the
                                                           channel's end
membarrier, not on x86-64    the order of memory           likewise
memfd_create, F_ADD_SEALS    memory                        other kinds
EPOLLEXCLUSIVE               waking up one worker          Linux before 4.5 wakes all waiters
===========================  ============================  ========================================

`nbshare.RingBuffer` checks its own system calls.
"""

from __future__ import annotations

import _thread
import ctypes
import fcntl
import math
import os
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import lru_cache

from nbshare._core.system.descriptors import opened, with_room
from nbshare._core.system.linux import waiting
from nbshare._core.system.portable import heed_interrupts
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
    is_readable,
    kill_group,
    kill_group_after,
    limits,
    priority,
    running_timers,
    set_limits,
    set_priority,
    stop_timers,
    user,
    user_in_words,
)

# ---------------------------------------------------------------------------------------- a process

_known: Identity = (0, 0)


def identity() -> Identity:
    """Return the identity of this process. Its start is 0 without ``/proc``."""
    global _known
    pid = os.getpid()
    if _known[0] != pid:  # the first time, and after a fork
        try:
            _known = (pid, int(_status(pid)[19]))
        except OSError:
            _known = (pid, 0)
    return _known


def begun_ns() -> int:
    """Return when this process began, in ns since 1970, rounded up to a tick, 0 if unknown.

    The interpreter takes longer to start than a tick of 10 ms.
    """
    if not (ticks := identity()[1]):
        return 0
    since_boot_ns = (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns


def has_ended(who: Identity) -> bool | None:
    """Return whether a process, with all its threads, can no longer access memory.

    Return None if unknown. Callers that reuse the process's memory treat None as False.
    """
    pid, start = who
    try:
        status = _status(pid)
    except OSError:  # the process has ended or is hidden, or /proc or a free descriptor is missing
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except PermissionError:
            return None
        return False
    # A dead process exists until its parent reaps it, and its first thread may end before the
    # others.
    is_dead = status[0] in (b"Z", b"X") and int(status[17]) <= 1
    return is_dead or (start != 0 and int(status[19]) != start)


def _status(pid: int) -> list[bytes]:
    """Return the fields that the system reports about a process, from its state on."""
    with with_room(lambda: open(f"/proc/{pid}/stat", "rb")) as file:
        return file.read().rpartition(b")")[2].split()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (not swapped out), 0 if unknown."""
    try:
        with with_room(lambda: open(f"/proc/{pid}/statm", "rb", buffering=0)) as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has just ended
        return 0


def private_bytes(pid: int) -> tuple[int, int, int]:
    """Return a process's private memory now and at its peak, and its peak memory in total.

    Private memory is shared with no other process. All values are 0 if unknown.
    """
    try:
        with with_room(lambda: open(f"/proc/{pid}/status")) as file:
            lines = dict(line.split(":", 1) for line in file)
        names = "RssAnon", "RssFile", "RssShmem", "VmHWM"
        now, file_bytes, shared, peak = (int(lines[name].split()[0]) << 10 for name in names)
    except (OSError, LookupError):  # the process has just ended, or the kernel is of another kind
        return 0, 0, 0
    return now, max(now, peak - file_bytes - shared), peak


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    import resource  # late, once a call

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def n_faults() -> int:
    """Return the number of page faults of this process, which grows when new pages are written."""
    import resource  # late, once a call

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


_umask: int | None = None  # the last value seen


def umask() -> int | None:
    """Return the umask, or None if it is not known."""
    global _umask
    if (known := _umask) is None:
        _umask = known = _read_umask()
        return known
    # Reading it from /proc takes 30 µs. Setting the known value changes nothing, unless the user
    # has changed it since: then other threads may see the old one for a microsecond.
    if (present := os.umask(known)) != known:
        os.umask(present)
        _umask = present
    return present


def _read_umask() -> int | None:
    try:
        file = opened(os.open, "/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.read(file.fileno(), 1 << 12)
    file.close()
    _, _, umask = status.partition(b"\nUmask:")  # a name contains no line break
    return int(umask[:6], 8) if umask else None


def number_space() -> int:
    """Return the id of the namespace (of a container) in which process ids are unique.

    Raises
    ------
    OSError
        If there is no ``/proc``.
    """
    return os.stat("/proc/self/ns/pid").st_ino


def boot_id() -> str:
    """Return an id that differs after each start of the machine, empty if unknown."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


# Bound here, because at exit the modules' names may be deleted.
def has_thread(number: int, access: Callable[..., bool] = os.access) -> bool:
    """Return whether this process has a thread with this number."""
    return access(f"/proc/self/task/{number}", 0)


def members_of(session: int) -> list[int]:
    """Return the processes of a session that have not ended."""
    found = []
    with suppress(OSError):  # no /proc
        for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))):
            with suppress(OSError):  # ended just now
                if os.getsid(pid) == session and not has_ended((pid, 0)):
                    found.append(pid)
    return found


def opened_process(pid: int) -> int:
    """Return a descriptor that becomes readable when a process ends, or -1.

    It is -1 if the system lacks the call (Linux before 5.3) or refuses it.
    """
    try:
        return with_room(lambda: os.pidfd_open(pid))
    except (AttributeError, OSError):
        return -1


class Child:
    """A process that leads a group. No other process has its id until it is reaped.

    Attributes
    ----------
    pid : int
        The id of the process, or 0 if it has not started.
    fd : int
        A descriptor that becomes readable when the process ends, or -1 if the system has no such
        descriptors.
    """

    def __init__(self) -> None:
        self.pid, self.fd = 0, -1

    def note(self, pid: int) -> None:
        """Record the id of the started process."""
        self.pid, self.fd = pid, opened_process(pid)

    def kill(self) -> None:
        """Kill the process and its children."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the process runs no code. Return False if it still does."""
        if not self.pid:
            return True
        if self.fd >= 0:
            return is_readable(self.fd, timeout_s)
        until_s = time.monotonic() + timeout_s
        while not (is_dead := bool(has_ended((self.pid, 0)))) and time.monotonic() < until_s:
            time.sleep(1e-3)
        return is_dead

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd >= 0:
            os.close(self.fd)


# ---------------------------------------------------------------------------------- memory and CPUs

QUOTA_S = 5.0  # before the CPU quota is read again: that costs 100 µs, and it rarely changes


def available_bytes() -> int:
    """Return the bytes that can be allocated now, the minimum over the machine and each cgroup."""
    return min([_machine_room(), *(room for _, room in _cgroups())])


def total_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, and the part of it that the cgroups allow."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine, min([machine, *(limit for limit, _ in _cgroups())])


def n_killed() -> int:
    """Return the number of processes that the system has killed for lack of memory."""
    with suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


def _machine_room() -> int:
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62  # unknown, so nothing is refused


def _cgroups() -> Iterator[tuple[int, int]]:
    """Iterate over the memory limits of the cgroups, as (limit, bytes left)."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for version, folder in ancestors("memory"):
        limit, usage, cache = names[version]
        with suppress(OSError, ValueError):  # no such group here, or the limit is "max"
            most = int(_setting(folder, limit))
            room = most - int(_setting(folder, usage))
            entries = dict(map(str.split, _setting(folder, "memory.stat").splitlines()))
            # The kernel drops cached files when a program needs memory.
            yield most, max(0, room + int(entries.get(cache, 0)))


def ancestors(controller: str) -> Iterator[tuple[int, str]]:
    """Iterate over this process's cgroup and those above it, as (cgroup version, folder).

    The limits of all these cgroups apply. In a container the path may be the host's path, so the
    caller skips folders that do not exist.
    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, "/sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, root = 1, f"/sys/fs/cgroup/{controller}"
        else:
            continue
        folder = os.path.join(root, path.strip("/")).rstrip("/")
        yield version, folder
        while len(folder) > len(root):
            folder = os.path.dirname(folder)
            yield version, folder


def _setting(folder: str, name: str) -> str:
    with open(f"{folder}/{name}") as file:
        return file.read().strip()


def usable_cpus() -> int:
    """Return the number of CPUs that the affinity mask and the quotas of cgroups allow."""
    quota = _least_quota(time.monotonic() // QUOTA_S)
    return max(1, math.ceil(min(len(affinity()), quota)))


def affinity() -> set[int]:
    """Return the CPUs that this process may run on."""
    return os.sched_getaffinity(0)


def set_affinity(cpus: set[int]) -> None:
    """Restrict this process to these CPUs."""
    with suppress(OSError):  # the allowed CPUs were changed in between
        os.sched_setaffinity(0, cpus)


@lru_cache(maxsize=1)
def _least_quota(_period: float) -> float:
    """Return the smallest CPU quota of the cgroups, in CPUs, cached for a while."""
    return min(_quotas(), default=math.inf)


def _quotas() -> Iterator[float]:
    for version, folder in ancestors("cpu"):
        with suppress(OSError, ValueError):  # no such group here, or the quota is "max"
            if version == 2:
                quota, period = map(int, _setting(folder, "cpu.max").split())
            else:
                quota = int(_setting(folder, "cpu.cfs_quota_us"))
                period = int(_setting(folder, "cpu.cfs_period_us"))
            if quota > 0:
                yield quota / period


# ------------------------------------------------------------------------------------------ workers

F_SETSIG = 10  # linux/fcntl.h (not in the module fcntl)
# When memory runs out, the system ends the process with the higher score. A worker can be replaced,
# the notebook's kernel cannot.
OOM_SCORE = b"500"
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
KEPT = 64 << 20  # most free bytes that are kept at the end of the heap
LARGEST = 32 << 20  # largest block of the heap in bytes, as much as glibc allows


def _send() -> None:
    ours, theirs = waiting.new_connection()
    with closing(ours), closing(theirs):
        waiting.send(ours, b"1", [ours.fileno()], wait=True)
        os.close(waiting.receive(theirs, 1, wait=True)[1][0])


# The system calls by name, each with a function that tries it.
NEEDED: dict[str, Callable[[], object]] = {
    "eventfd": waiting.WorkerEvent,
    "epoll_create1": select.epoll,
    "pipe2": lambda: list(map(os.close, waiting.pipe())),
    "socketpair or sendmsg": _send,
    "membarrier": waiting.register_fences,
}


def lead_group(owner_fd: int, life_fd: int) -> None:
    """Make this process the leader of a new group, which is killed when the owner ends.

    `owner_fd` is from `opened_owner`.
    """
    os.setpgid(0, 0)
    die_with(life_fd)
    # For the one case that the life pipe misses: an unrelated fork of the owner holds its other
    # end.
    if owner_fd >= 0:
        _thread.start_new_thread(kill_group_after, (owner_fd,))


def die_with(life_fd: int) -> None:
    """Register this process group to be killed when the life pipe's other end closes."""
    # The owner of a descriptor (F_SETOWN) belongs to the open file description. Forked processes
    # share the description, and only the last one to set its owner would be killed. So the pipe is
    # opened again, and kept open.
    try:
        fd = os.open(f"/proc/self/fd/{life_fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:  # without /proc, only `kill_group_after` remains
        return
    with suppress(OSError):  # if the system refuses this, only `kill_group_after` remains
        fcntl.fcntl(fd, F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
    if waiting.is_readable(fd, 0.0):  # the owner had died before
        kill_group()


def opened_owner(owner: int) -> int:
    """Open the owner, and end this process if the owner is no longer its parent.

    A dead owner's id may be reused. Return a descriptor that becomes readable when the owner ends,
    or -1 if the system has no such descriptors.
    """
    fd = opened_process(owner)
    if os.getppid() != owner:
        os._exit(1)
    return fd


def raise_oom_score() -> None:
    """Mark this process as the first to be killed when memory runs out."""
    # Some containers forbid this. Then the kernel chooses by size alone.
    with suppress(OSError), open("/proc/self/oom_score_adj", "wb", buffering=0) as file:
        file.write(OOM_SCORE)


def keep_freed_memory() -> None:
    """Keep freed memory in this process and its forks, unless the user configured malloc.

    By default glibc returns freed memory of some megabytes to the kernel immediately, so that each
    temporary array of a long computation consists of fresh pages. Zeroing and mapping these can
    take twice as long as the computation itself.
    """
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with suppress(AttributeError):  # other C libraries lack these settings
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, LARGEST)
        libc.mallopt(M_TRIM_THRESHOLD, KEPT)


def return_freed_memory() -> None:
    """Return memory that malloc has freed to the system."""
    with suppress(AttributeError):  # other C libraries lack this function
        ctypes.CDLL(None).malloc_trim(0)
