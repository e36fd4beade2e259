"""Processes: identity, memory, CPUs, signals; how workers start, and end with their owner.

Workers are new interpreters, each in a job, which ends with its owner. Workers have no console, so
no window flashes up, and no interrupt reaches them.
"""

from __future__ import annotations

import _overlapped
import _thread
import _winapi
import ctypes
import errno
import msvcrt
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from ctypes import byref, wintypes
from functools import cache
from typing import Any, cast

from nbshare._core.system.descriptors import Descriptor, MemoryFd
from nbshare._core.system.portable import (
    affinity,
    at_fork,
    block_signals,
    blocked_signals,
    boot_id,
    buffer_lines,
    has_cpu_limit,
    keep_freed_memory,
    lead_group,
    limits,
    members_of,
    n_killed,
    number_space,
    priority,
    raise_oom_score,
    return_freed_memory,
    running_timers,
    set_affinity,
    set_limits,
    set_priority,
    stop_timers,
    umask,
    user,
)
from nbshare._core.system.windows import handles, waiting
from nbshare._core.system.windows.handles import NO_HANDLE

# ---------------------------------------------------------------------------------------- a process

Identity = tuple[int, int]  # process number, and start in µs since 1970

QUERY = 0x1000  # PROCESS_QUERY_LIMITED_INFORMATION
SYNCHRONIZE = 0x00100000


@cache
def identity() -> Identity:
    """Return the identity of this process."""
    return os.getpid(), _start(os.getpid())


def _start(pid: int) -> int:
    """Return the start time of a process, in µs since 1970.

    Raises
    ------
    ProcessLookupError, PermissionError
        If there is no such process, or it belongs to another user.
    """
    import psutil  # late, because each worker would wait

    try:
        start_s: float = psutil.Process(pid).create_time()
    except psutil.NoSuchProcess:
        raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH)) from None
    except psutil.AccessDenied:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM)) from None
    return round(start_s * 1e6)


def begun_ns() -> int:
    """Return when this process began, in ns since 1970."""
    return identity()[1] * 1000


def opened_process(pid: int) -> handles.OwnedHandle:
    """Open a process to query it and to await its end."""
    return handles.OwnedHandle(_winapi.OpenProcess(QUERY | SYNCHRONIZE, False, pid))


def has_ended(who: Identity) -> bool | None:
    """Return whether a process can no longer access memory, or None if unknown."""
    pid, start = who
    try:
        process = opened_process(pid)
    except PermissionError:  # another user's
        return None
    except OSError:
        return True
    if _winapi.WaitForSingleObject(process.fileno(), 0) == _winapi.WAIT_OBJECT_0:
        return True
    with suppress(ProcessLookupError):  # it is ending just now
        return start != 0 and _start(pid) != start
    return False


def _memory(pid: int) -> Any:
    """Return psutil's data on the memory of a process, or None if it has ended."""
    import psutil

    with suppress(psutil.Error):
        return psutil.Process(pid).memory_info()
    return None


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process (not swapped out), 0 if unknown."""
    memory = _memory(pid)
    return 0 if memory is None else int(memory.rss)


def private_bytes(pid: int) -> tuple[int, int, int]:
    """Return a process's private memory now and at its peak, and its peak memory in total.

    Private memory is shared with no other process. All values are 0 if unknown.
    """
    memory = _memory(pid)
    if memory is None:
        return 0, 0, 0
    return int(memory.pagefile), int(memory.peak_pagefile), int(memory.peak_wset)


def peak_bytes() -> int:
    """Return the peak memory of this process."""
    return int(_memory(os.getpid()).peak_wset)


def n_faults() -> int:
    """Return a new number for each call, because Wine does not report page faults."""
    return time.perf_counter_ns()


def interrupt(pid: int = 0) -> None:
    """Interrupt a process as Ctrl-C does, by default this one. Others must listen."""
    if not pid:
        signal.raise_signal(signal.SIGINT)
        return
    event = _interrupts_of(pid)
    _overlapped.SetEvent(event.fileno())


def heed_interrupts() -> None:
    """Begin to listen for interrupts by other processes, because a console may be missing."""
    event = _interrupts_of(os.getpid())

    def heed() -> None:
        while True:
            _winapi.WaitForSingleObject(event.fileno(), _winapi.INFINITE)
            signal.raise_signal(signal.SIGINT)

    _thread.start_new_thread(heed, ())


def _interrupts_of(pid: int) -> handles.OwnedHandle:
    """Open the event that interrupts a process, even one of another session.

    Raises
    ------
    ProcessLookupError, PermissionError
        If there is no such process, or it belongs to another user.
    """
    # Other users of the machine cannot know the name in advance.
    name = f"Global\\nbshare-interrupts-{pid}-{_start(pid)}"
    return handles.OwnedHandle(_overlapped.CreateEvent(None, False, False, name))


# A job ends all its processes when its last handle closes, at the latest when its owner ends.
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
ENDED = 9  # the exit code of processes that we kill


def new_job() -> handles.OwnedHandle:
    """Create a job that, when it is closed, ends its processes and those that they start."""
    job = handles.OwnedHandle(_new_job(None, None))
    limited = _Limits(flags=KILL_ON_CLOSE)
    _limit_job(job.fileno(), LIMITS, byref(limited), ctypes.sizeof(limited))
    return job


class Child:
    """A process in a job, together with its children.

    Parameters
    ----------
    job : OwnedHandle
        The job in which the process was started.
    process, pid : int
        The handle of the process, and its id, which is unique while the handle is open.

    Attributes
    ----------
    fd : int
        Always -1, because the end of the process's channel shows that the process has ended.
    """

    fd = NO_HANDLE

    def __init__(self, job: handles.OwnedHandle, process: int, pid: int) -> None:
        self._job, self._process, self.pid = job, handles.OwnedHandle(process), pid

    @property
    def handle(self) -> int:
        """The handle of the process."""
        return self._process.fileno()

    def note(self, pid: int) -> None:
        """No-op, because the id is known."""

    def kill(self) -> None:
        """Kill the process and its children."""
        _end_job(self._job.fileno(), ENDED)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the process runs no code. Return False if it still does."""
        ms = round(timeout_s * 1e3)
        return _winapi.WaitForSingleObject(self.handle, ms) == _winapi.WAIT_OBJECT_0

    def status(self) -> int | None:
        """Return the exit code of the process, or None if it still runs."""
        return _winapi.GetExitCodeProcess(self.handle) if self.await_end(0.0) else None

    def close(self) -> None:
        """Close the job, which ends its remaining processes."""
        self._job.close()


# ---------------------------------------------------------------------------------- memory and CPUs


class _Status(ctypes.Structure):
    _fields_ = (
        ("size", handles.DWORD),
        ("load", handles.DWORD),
        *((name, ctypes.c_uint64) for name in ("total", "free", "total_page", "free_page")),
        ("rest", ctypes.c_uint64 * 3),
    )


_read = handles.function("GlobalMemoryStatusEx", handles.BOOL, handles.POINTER)


def _status() -> _Status:
    status = _Status(ctypes.sizeof(_Status))
    _read(byref(status))
    return status


def available_bytes() -> int:
    """Return the bytes that can be allocated now without enlarging the paging file."""
    status = _status()
    return int(min(status.free, status.free_page))


def total_bytes() -> tuple[int, int]:
    """Return the bytes of the machine's memory, twice: all of it is usable."""
    nbytes = int(_status().total)
    return nbytes, nbytes


def usable_cpus() -> int:
    """Return the number of CPUs that this process may run on."""
    count = getattr(os, "process_cpu_count", os.cpu_count)
    return count() or 1


# ------------------------------------------------------------------------------------------ workers

NEEDED: dict[str, Callable[[], object]] = {"order of memory": waiting.register_fences}


class Life:
    """A stub. Workers need no life pipe, because they end with their job."""

    def close(self) -> None:
        """No-op, because the pool has ended the workers."""


def spawned(
    command: Sequence[str],
    environ: Mapping[str, str],
    fds: Sequence[int],
    end: waiting.End,
    life: Life,  # noqa: ARG001
) -> Child:
    """Start an interpreter that receives duplicates of handles through a pipe."""
    from nbshare._core.system.windows.starting import start_in

    job, (reading, writing) = new_job(), os.pipe()
    command, environ = _of_base(command, environ)
    with open(writing, "wb") as ours, open(reading, "rb") as theirs, open(os.devnull, "wb") as null:
        stdin, out = (msvcrt.get_osfhandle(file.fileno()) for file in (theirs, null))
        child = Child(job, *start_in(job.fileno(), command, environ, (stdin, out, out)))
        end.connect(child.handle)
        owner = handles.duplicate(handles.HERE, child.handle)
        pickle.dump([owner, *(handles.duplicate(fd, child.handle) for fd in fds)], ours)
    return child


class Detached:
    """A process that is not a child of this one.

    Parameters
    ----------
    pid : int
        The id of the process, which is unique while this object exists.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._process = pid, opened_process(pid)

    def poll(self) -> int | None:
        """Return the exit code of the process, or None if it still runs."""
        process = self._process.fileno()
        has_ended = _winapi.WaitForSingleObject(process, 0) == _winapi.WAIT_OBJECT_0
        return _winapi.GetExitCodeProcess(process) if has_ended else None

    def terminate(self) -> None:
        """Terminate the process."""
        with suppress(PermissionError):  # the process has ended
            os.kill(self.pid, signal.SIGTERM)


# When a kernel is shut down, Jupyter ends all its descendants, except processes whose starter has
# ended. The job of this process may end its members, too.
START_DETACHED = """
import pickle, subprocess, sys
command, env, flags = pickle.load(sys.stdin.buffer)
for more in (subprocess.CREATE_BREAKAWAY_FROM_JOB, 0):
    try:
        process = subprocess.Popen(
            command, env=env, creationflags=flags | more,
            stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=sys.stderr,
        )
        print(process.pid, flush=True)
        break
    except OSError as error:  # the job may not let it go
        if not more:
            print(error, flush=True)
sys.stdin.buffer.read()  # until its number is known
"""


def detached(command: Sequence[str], env: Mapping[str, str], log: Descriptor) -> Detached:
    """Start an interpreter that outlives this process and its console's signals."""
    import subprocess

    from nbshare._core.system.windows.starting import QUIET

    command, env = _of_base(command, env)
    starter = command[0], "-I", "-S", "-c", START_DETACHED
    with subprocess.Popen(
        starter,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log.fileno(),
        creationflags=QUIET,
    ) as process:
        stdin, stdout = cast("Any", process.stdin), cast("Any", process.stdout)
        pickle.dump((command, dict(env), QUIET), stdin)
        stdin.flush()
        told = stdout.readline().decode().strip()
        if not told.isdecimal():
            raise OSError(f"{command[0]} cannot be started: {told or 'its starter has ended'}")
        return Detached(int(told))


def _of_base(
    command: Sequence[str], environ: Mapping[str, str]
) -> tuple[Sequence[str], Mapping[str, str]]:
    """Return a command and environment that start a virtual environment's base interpreter."""
    executable, *arguments = command
    base = getattr(sys, "_base_executable", executable)
    if executable != base:  # a virtual environment's is a program that starts this one
        environ = {**environ, "__PYVENV_LAUNCHER__": executable}
    return [base, *arguments], environ


def inherited() -> tuple[MemoryFd, list[MemoryFd]]:
    """Return the owner and the handles that were passed to this interpreter at its start."""
    owner, *fds = pickle.load(sys.stdin.buffer)
    return owner, fds


def c_descriptor(fd: int) -> int:
    """Return a descriptor of the C library for a pipe."""
    return msvcrt.open_osfhandle(fd, os.O_WRONLY | os.O_BINARY)


def kill_group() -> None:
    """End this process. The owner's end ends the job with its other processes."""
    os._exit(1)
