"""The needs of worker processes on Windows, new interpreters in a job that ends with its owner.

No console is there, so none flashes up, and no interrupt reaches a worker. Its owner ends it.
"""

from __future__ import annotations

import _winapi
import msvcrt
import os
import pickle
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

from nbshare._core.system.descriptors import Descriptor
from nbshare._core.system.windows import handles, processes, waiting
from nbshare._core.system.windows.handles import Handle
from nbshare._core.system.windows.processes import Child

NEEDED: dict[str, Callable[[], object]] = {"order of memory": waiting.register_fences}


class Life:
    """The end of workers with their job, so that this has nothing to do."""

    def close(self) -> None:
        """Do nothing, because the pool has ended them."""


def spawned(
    command: Sequence[str],
    environ: Mapping[str, str],
    fds: Sequence[int],
    end: waiting.End,
    life: Life,  # noqa: ARG001
) -> Child:
    """Start an interpreter that takes over duplicates of handles, to which a connection leads."""
    from nbshare._core.system.windows.starting import start_in

    job, (reading, writing) = processes.new_job(), os.pipe()
    command, environ = _of_base(command, environ)
    with open(writing, "wb") as ours, open(reading, "rb") as theirs, open(os.devnull, "wb") as null:
        stdin, out = (msvcrt.get_osfhandle(file.fileno()) for file in (theirs, null))
        child = Child(job, *start_in(job.fileno(), command, environ, (stdin, out, out)))
        end.connect(child.handle)
        owner = handles.duplicate(handles.HERE, child.handle)
        pickle.dump([owner, *(handles.duplicate(fd, child.handle) for fd in fds)], ours)
    return child


class Detached:
    """A process that is no child of this one.

    Parameters
    ----------
    pid : int
        Its number, which no other process has while this object holds it.
    """

    def __init__(self, pid: int) -> None:
        self.pid, self._process = pid, processes.opened_process(pid)

    def poll(self) -> int | None:
        """Return its exit code, or None if it has not ended."""
        process = self._process.fileno()
        has_ended = _winapi.WaitForSingleObject(process, 0) == _winapi.WAIT_OBJECT_0
        return _winapi.GetExitCodeProcess(process) if has_ended else None

    def terminate(self) -> None:
        """End it."""
        with suppress(PermissionError):  # it has ended
            os.kill(self.pid, signal.SIGTERM)


# Jupyter ends all children of a kernel that is shut down, and theirs. A process that a program
# started which has ended is none of them. The job of this process may end what is in it, too.
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
    """Start an interpreter that outlives this process, and gets none of its console's signals."""
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
    """Return what starts an interpreter of a virtual environment without one in between."""
    executable, *arguments = command
    base = getattr(sys, "_base_executable", executable)
    if executable != base:  # that of a virtual environment is a program that starts this one
        environ = {**environ, "__PYVENV_LAUNCHER__": executable}
    return [base, *arguments], environ


def given() -> tuple[Handle, list[Handle]]:
    """Return the owner and the handles that this interpreter was started with."""
    owner, *fds = pickle.load(sys.stdin.buffer)
    return owner, fds


def stream(fd: int) -> int:
    """Return a descriptor of the C library for a pipe."""
    return msvcrt.open_osfhandle(fd, os.O_WRONLY | os.O_BINARY)


def kill_group() -> None:
    """End this process, and those that it has started. Its job ends with the owner."""
    os._exit(1)


def lead_group(owner_fd: int, life_fd: int) -> None:
    """Do nothing, because this process is in a job already."""


def end_first() -> None:
    """Do nothing, because the system has no such choice."""


def keep_freed() -> None:
    """Do nothing, because the C library has no such settings."""


def return_freed() -> None:
    """Do nothing, because the C library returns it."""


def end_lines() -> None:
    """Do nothing, because C sends what it prints immediately, as its buffers have no lines here."""
