"""A process: its identity, its memory, and whether it still runs."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress

from nbshare._core.system.descriptors import opened, with_room
from nbshare._core.system.posix import (
    Identity,
    at_fork,
    block_signals,
    blocked_signals,
    heed_interrupts,
    interrupt,
    is_readable,
    limits,
    priority,
    running_timers,
    set_limits,
    set_priority,
    stop_timers,
    user,
    user_in_words,
)

_known: Identity = (0, 0)


def identity() -> Identity:
    """Return the identity of this process, whose start is 0 without ``/proc``."""
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

    The interpreter takes longer than a tick, of 10 ms, to start.
    """
    if not (ticks := identity()[1]):
        return 0
    since_boot_ns = (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns


def has_ended(who: Identity) -> bool | None:
    """Return whether a process, with all its threads, will never touch memory again.

    None if that cannot be known, which callers that reuse its memory take for False.
    """
    pid, start = who
    try:
        status = _status(pid)
    except OSError:  # it has ended, or is hidden; or there is no /proc, or no descriptor left
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
    """Return the fields of the system's line on a process, from its state on."""
    with with_room(lambda: open(f"/proc/{pid}/stat", "rb")) as file:
        return file.read().rpartition(b")")[2].split()


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is not swapped out, 0 if unknown."""
    try:
        return int(_status(pid)[21]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # it has just ended
        return 0


def private_bytes(pid: int) -> tuple[int, int, int]:
    """Return the memory of a process that it shares with none, now and at its peak, and that peak.

    The last one includes shared memory, as `peak_bytes`. All are 0 if they are not known.
    """
    try:
        with with_room(lambda: open(f"/proc/{pid}/status")) as file:
            lines = dict(line.split(":", 1) for line in file)
        names = "RssAnon", "RssFile", "RssShmem", "VmHWM"
        now, file_bytes, shared, peak = (int(lines[name].split()[0]) << 10 for name in names)
    except (OSError, LookupError):  # it has just ended, or a kernel of another kind
        return 0, 0, 0
    return now, max(now, peak - file_bytes - shared), peak


def peak_bytes() -> int:
    """Return the most memory that this process has had at a time."""
    import resource  # late, once a call

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def n_faults() -> int:
    """Return how often this process has accessed a page that it did not have, to write to it."""
    import resource  # late, once a call

    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_minflt + usage.ru_majflt


def umask() -> int | None:
    """Return the umask, or None if only a call that sets it would tell it."""
    try:
        file = opened(os.open, "/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    status = os.read(file.fileno(), 1 << 12)
    file.close()
    _, _, umask = status.partition(b"\nUmask:")  # not in a name, where lines do not break
    return int(umask[:6], 8) if umask else None


def number_space() -> int:
    """Return what tells in which container (namespace) process numbers mean the same processes.

    Raises
    ------
    OSError
        There is no ``/proc``.
    """
    return os.stat("/proc/self/ns/pid").st_ino


def boot_id() -> str:
    """Return what differs after each start of the machine, empty if the system does not tell."""
    with suppress(OSError), open("/proc/sys/kernel/random/boot_id") as file:
        return file.read().strip()
    return ""


# Bound here, because at exit the modules' names may be gone.
def has_thread(number: int, access: Callable[..., bool] = os.access) -> bool:
    """Return whether this process has a thread of that number."""
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
    """Return a descriptor that becomes readable when a process ends.

    Return -1 where the system has none (Linux before 5.3), or refuses it.
    """
    try:
        return with_room(lambda: os.pidfd_open(pid))
    except (AttributeError, OSError):
        return -1


class Child:
    """A process that leads a group, and whose number means no other one until it is reaped.

    Attributes
    ----------
    pid : int
        Its number, or 0 if it has not started.
    fd : int
        A descriptor that becomes readable when it ends, or -1 if the system has none.
    """

    def __init__(self) -> None:
        self.pid, self.fd = 0, -1

    def note(self, pid: int) -> None:
        """Note the number of the process, which has started."""
        self.pid, self.fd = pid, opened_process(pid)

    def kill(self) -> None:
        """End it and the processes that it has started."""
        if self.pid:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until it runs nothing. Return whether that is so."""
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
