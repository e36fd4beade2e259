"""A process: its signals and timers, and its identity."""

from __future__ import annotations

import os
import signal
from _signal import pthread_sigmask  # type: ignore[import-not-found]  # not in an enumeration
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from math import inf

TIMERS = {signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF}

Identity = tuple[int, int]  # process number, and start, as numbers are used again

Limits = list[tuple[int, int]]  # a soft and a hard limit for each resource
LEAST_FILES = 256  # that may be open, as a message brings up to 200


def user_in_words(uid: int) -> str:
    """Return the name of a user, and the number."""
    import pwd  # late, as few processes need it

    with suppress(KeyError):
        return f"{pwd.getpwuid(uid).pw_name} (user {uid})"
    return f"user {uid}"


at_fork = os.register_at_fork


def interrupt(pid: int = 0) -> None:
    """Interrupt a process as Ctrl-C does, by default this one."""
    os.kill(pid or os.getpid(), signal.SIGINT)


def heed_interrupts() -> None:
    """Do nothing, because each process heeds those of others."""


def blocked_signals() -> set[int]:
    """Return the signals that this thread blocks."""
    return pthread_sigmask(signal.SIG_BLOCK, ())  # type: ignore[no-any-return]


def block_signals(numbers: set[int]) -> None:
    """Block these signals in this thread, and no others."""
    pthread_sigmask(signal.SIG_SETMASK, numbers)


def running_timers() -> set[int]:
    """Return the timers of this process that are set."""
    return {timer for timer in TIMERS if any(signal.getitimer(timer))}


def stop_timers(kept: set[int]) -> None:
    """Stop the timers of this process, except some."""
    for timer in TIMERS - kept:
        signal.setitimer(timer, 0)


def limits() -> Limits | None:
    """Return the limits of this process for the resources of `_resources`."""
    getrlimit, numbers = _resources()
    return [*map(getrlimit, numbers)]


def set_limits(wanted: Limits) -> None:
    """Set these limits, as far as this process may."""
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
    """Return what asks for a limit, in 0.4 µs, and the numbers of those that programs meet."""
    import resource  # late, because `import nbshare` needs no limits

    names = ["AS", "CORE", "CPU", "DATA", "FSIZE", "MEMLOCK", "NOFILE", "NPROC", "STACK"]
    numbers = (getattr(resource, f"RLIMIT_{name}", None) for name in names)
    return resource.getrlimit, [number for number in numbers if number is not None]


_CAN_SCHEDULE = hasattr(os, "sched_getscheduler")  # not on macOS


def priority() -> tuple[int, int | None] | None:
    """Return the niceness and the scheduling policy of this thread, on macOS of this process."""
    niceness = os.getpriority(os.PRIO_PROCESS, 0)
    return niceness, os.sched_getscheduler(0) if _CAN_SCHEDULE else None


def set_priority(wanted: tuple[int, int | None]) -> None:
    """Set them, if this process may."""
    niceness, policy = wanted
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, niceness)
    if policy is not None:
        with suppress(OSError):  # a real-time policy would need a priority of its own
            os.sched_setscheduler(0, policy, os.sched_param(0))


def user() -> tuple[int, ...] | None:
    """Return the user and the group that this process acts for."""
    return os.getuid(), os.geteuid(), os.getgid(), os.getegid()
