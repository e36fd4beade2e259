"""A process: its signals and timers, and its identity."""

from __future__ import annotations

import os
import signal
from _signal import pthread_sigmask  # type: ignore[import-not-found]  # not in an enumeration
from contextlib import suppress

TIMERS = {signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF}

Identity = tuple[int, int]  # process number, and start, as numbers are used again


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
