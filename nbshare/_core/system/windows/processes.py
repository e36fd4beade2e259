"""A process: its identity, its memory, and whether it still runs."""

from __future__ import annotations

import _overlapped
import _thread
import _winapi
import ctypes
import errno
import os
import signal
import time
from ctypes import byref, wintypes
from functools import cache
from typing import Any

from nbshare._core.system.windows import handles
from nbshare._core.system.windows.handles import NO_HANDLE

Identity = tuple[int, int]  # process number, and start in units of 100 ns

QUERY = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
SYNCHRONIZE = 0x00100000

_times = handles.function(
    *("GetProcessTimes", handles.BOOL, handles.HANDLE),
    *[ctypes.POINTER(wintypes.FILETIME)] * 4,
)


class _Counters(ctypes.Structure):
    _fields_ = (
        ("size", handles.DWORD),
        ("faults", handles.DWORD),
        ("peak", handles.SIZE),
        ("resident", handles.SIZE),
        ("pools", handles.SIZE * 4),
        ("private", handles.SIZE),
        ("private_peak", handles.SIZE),
    )


_counters = handles.function(
    "K32GetProcessMemoryInfo", handles.BOOL, handles.HANDLE, ctypes.c_void_p, handles.DWORD
)


@cache
def identity() -> Identity:
    """Return the identity of this process."""
    return os.getpid(), _start(handles.HERE)


def _start(process: int) -> int:
    times = [wintypes.FILETIME() for _ in range(4)]
    _times(process, *map(byref, times))
    return times[0].dwHighDateTime << 32 | times[0].dwLowDateTime


def begun_ns() -> int:
    """Return when this process began, in ns since 1970."""
    return handles.unix_ns(identity()[1])


def opened_process(pid: int) -> handles.OwnedHandle:
    """Open a process, to ask about it and await its end."""
    return handles.OwnedHandle(_winapi.OpenProcess(QUERY | SYNCHRONIZE, False, pid))


def has_ended(who: Identity) -> bool | None:
    """Return whether a process will never touch memory again, None if that cannot be known."""
    pid, start = who
    try:
        process = opened_process(pid)
    except PermissionError:  # another user's
        return None
    except OSError:
        return True
    is_ended = _winapi.WaitForSingleObject(process.fileno(), 0) == _winapi.WAIT_OBJECT_0
    return is_ended or (start != 0 and _start(process.fileno()) != start)


def _memory(process: int) -> _Counters:
    counters = _Counters(ctypes.sizeof(_Counters))
    _counters(process, byref(counters), counters.size)
    return counters


def _memory_of(pid: int) -> _Counters:
    process = opened_process(pid)  # until it has been asked
    return _memory(process.fileno())


def resident_bytes(pid: int) -> int:
    """Return the memory of a process that is not swapped out, 0 if unknown."""
    try:
        return int(_memory_of(pid).resident)
    except OSError:  # it has just ended
        return 0


def private_bytes(pid: int) -> tuple[int, int, int]:
    """Return the memory of a process that it shares with none, now and at its peak, and that peak.

    The last one includes shared memory, as `peak_bytes`. All are 0 if they are not known.
    """
    try:
        counters = _memory_of(pid)
    except OSError:  # it has just ended
        return 0, 0, 0
    return int(counters.private), int(counters.private_peak), int(counters.peak)


def peak_bytes() -> int:
    """Return the most memory that this process has had at a time."""
    return int(_memory(handles.HERE).peak)


def n_faults() -> int:
    """Return another number each time, as Wine does not tell how many page faults there were."""
    return time.perf_counter_ns()


def umask() -> int | None:
    """Return None, because files have no modes here."""
    return None


def limits() -> list[tuple[int, int]] | None:
    """Return None, because a process has no resource limits here."""
    return None


def set_limits(wanted: object) -> None:
    """Do nothing (see `limits`)."""


def priority() -> tuple[int, int | None] | None:
    """Return None, because workers inherit the priority class."""
    return None


def set_priority(wanted: object) -> None:
    """Do nothing (see `priority`)."""


def user() -> tuple[int, ...] | None:
    """Return None, because a process cannot become another user's here."""
    return None


def number_space() -> int:
    """Return a constant, because process numbers mean the same processes everywhere here."""
    return 0


def boot_id() -> str:
    """Return what differs after each start of the machine, which this system does not tell."""
    return ""


def has_thread(number: int) -> bool:  # noqa: ARG001
    """Return whether this process has a thread of that number. In doubt it has."""
    return True


def members_of(session: int) -> list[int]:  # noqa: ARG001
    """Return the processes of a session. There are none here."""
    return []


def user_in_words(uid: int) -> str:
    """Return the name of a user."""
    return f"user {uid}"


def at_fork(**_: Any) -> None:
    """Do nothing, because processes do not fork here."""


def interrupt(pid: int = 0) -> None:
    """Interrupt a process as Ctrl-C does, by default this one. Another one has to heed it."""
    if not pid:
        signal.raise_signal(signal.SIGINT)
        return
    event = _interrupts_of(pid)
    _overlapped.SetEvent(event.fileno())


def heed_interrupts() -> None:
    """Heed interrupts of other processes from now on. There may be no console to send them."""
    event = _interrupts_of(os.getpid())

    def heed() -> None:
        while True:
            _winapi.WaitForSingleObject(event.fileno(), _winapi.INFINITE)
            signal.raise_signal(signal.SIGINT)

    _thread.start_new_thread(heed, ())


def _interrupts_of(pid: int) -> handles.OwnedHandle:
    """Open the event by which a process is interrupted, also one of another session.

    Raises
    ------
    ProcessLookupError
        There is no such process.
    """
    try:
        process = opened_process(pid)
    except PermissionError:  # another user's
        raise
    except OSError:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    # Other users of the machine cannot know the name before.
    name = f"Global\\nbshare-interrupts-{pid}-{_start(process.fileno())}"
    return handles.OwnedHandle(_overlapped.CreateEvent(None, False, False, name))


def blocked_signals() -> set[int]:
    """Return the signals that this thread blocks. None can be blocked here."""
    return set()


def block_signals(numbers: set[int]) -> None:
    """Do nothing (see `blocked_signals`)."""


def running_timers() -> set[int]:
    """Return the timers of this process that are set. There are none here."""
    return set()


def stop_timers(kept: set[int]) -> None:
    """Do nothing (see `running_timers`)."""


# A job ends all its processes when its last handle closes, as at the end of its owner.
KILL_ON_CLOSE = 0x2000
LIMITS = 9  # JobObjectExtendedLimitInformation


class _Limits(ctypes.Structure):
    _fields_ = (
        ("times", ctypes.c_int64 * 2),
        ("flags", handles.DWORD),
        ("rest", handles.SIZE * 15),
    )


_new_job = handles.function("CreateJobObjectW", handles.HANDLE, handles.POINTER, handles.POINTER)
_limit_job = handles.function(
    *("SetInformationJobObject", handles.BOOL, handles.HANDLE),
    *(ctypes.c_int, handles.POINTER, handles.DWORD),
)
_end_job = handles.function("TerminateJobObject", handles.BOOL, handles.HANDLE, wintypes.UINT)
ENDED = 9  # the exit code of what we end


def new_job() -> handles.OwnedHandle:
    """Return a job that ends its processes, and those that they start, when it is closed."""
    job = handles.OwnedHandle(_new_job(None, None))
    limits = _Limits(flags=KILL_ON_CLOSE)
    _limit_job(job.fileno(), LIMITS, byref(limits), ctypes.sizeof(limits))
    return job


class Child:
    """A process in a job, which holds what it starts, too.

    Parameters
    ----------
    job : OwnedHandle
        The job in which it has started.
    process, pid : int
        The handle of the process, and its number, which no other has while it is held.

    Attributes
    ----------
    fd : int
        Always -1, because the end of its channel tells that it has ended.
    """

    fd = NO_HANDLE

    def __init__(self, job: handles.OwnedHandle, process: int, pid: int) -> None:
        self._job, self._process, self.pid = job, handles.OwnedHandle(process), pid

    @property
    def handle(self) -> int:
        """The handle of the process."""
        return self._process.fileno()

    def note(self, pid: int) -> None:
        """Do nothing, because the number is known."""

    def kill(self) -> None:
        """End it and the processes that it has started."""
        _end_job(self._job.fileno(), ENDED)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until it runs nothing. Return whether that is so."""
        ms = round(timeout_s * 1e3)
        return _winapi.WaitForSingleObject(self.handle, ms) == _winapi.WAIT_OBJECT_0

    def status(self) -> int | None:
        """Return the exit code of a process that has ended."""
        return _winapi.GetExitCodeProcess(self.handle) if self.await_end(0.0) else None

    def close(self) -> None:
        """Close the job, which ends what is left in it."""
        self._job.close()
