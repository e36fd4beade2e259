"""The identity of a process, and whether it is still running."""

from __future__ import annotations

import os
import time

from nbshare.system.descriptors import with_room

Identity = tuple[int, int]  # process number, and start in clock ticks: numbers are used again


_known: Identity = (0, 0)


def identity() -> Identity:
    """Return the identity of this process; the start is 0 without ``/proc``."""
    global _known
    pid = os.getpid()
    if _known[0] != pid:  # the first time, and after a fork
        try:
            _known = (pid, int(_status(pid)[19]))
        except OSError:
            _known = (pid, 0)
    return _known


def begun_ns() -> int:
    """Return when this process began, in ns since 1970, rounded up to a tick; 0 if unknown.

    The interpreter takes longer than a tick, of 10 ms, to start.
    """
    if not (ticks := identity()[1]):
        return 0
    since_boot_ns = (ticks + 1) * 10**9 // os.sysconf("SC_CLK_TCK")
    return time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME) + since_boot_ns


def has_ended(who: Identity) -> bool:
    """Return whether a process, with all its threads, will never touch memory again.

    In doubt False, since the caller will reuse its memory.
    """
    pid, start = who
    try:
        os.kill(pid, 0)
        status = _status(pid)
    except ProcessLookupError:
        return True
    except OSError:  # another user's, no /proc, no descriptor left
        return False
    # A dead process exists until its parent reaps it; its first thread may end before the others.
    is_dead = status[0] in (b"Z", b"X") and int(status[17]) <= 1
    return is_dead or (start != 0 and int(status[19]) != start)


def _status(pid: int) -> list[bytes]:
    """Return the fields of the system's line on a process, from its state on."""
    with with_room(lambda: open(f"/proc/{pid}/stat", "rb")) as file:
        return file.read().rpartition(b")")[2].split()
