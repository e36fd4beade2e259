"""The needs of worker processes on Windows, new interpreters in a job that ends with its owner.

No console is there, so none flashes up, and no interrupt reaches a worker. Its owner ends it.
"""

from __future__ import annotations

import msvcrt
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nbshare._core.system.windows import channels, handles, order
from nbshare._core.system.windows.handles import Handle
from nbshare._core.system.windows.processes import Child

if TYPE_CHECKING:
    import subprocess  # the owner alone needs it

# Before a worker imports anything. Until its owner says something, it is in no job yet, and if the
# owner has ended, it never will be.
FIRST = "import sys; sys.stdin.buffer.peek() or sys.exit()\n"

NEEDED: dict[str, Callable[[], object]] = {"order of memory": order.register}


class Life:
    """The end of workers with their job, so that this has nothing to do."""

    def close(self) -> None:
        """Do nothing, because the pool has ended them."""


def spawned(
    command: Sequence[str],
    environ: Mapping[str, str],
    fds: Sequence[int],
    end: channels.End,
    life: Life,  # noqa: ARG001
) -> Child:
    """Start an interpreter that takes over duplicates of handles, to which a connection leads."""
    import subprocess

    *command, code = command
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    command = *command, FIRST + code
    process = detached(command, stdin=subprocess.PIPE, env=environ, **quiet)
    child = Child(process)
    end.connect(child.handle)
    owner = handles.duplicate(handles.HERE, child.handle)
    message = [owner, *(handles.duplicate(fd, child.handle) for fd in fds)]
    assert process.stdin is not None
    with process.stdin:
        pickle.dump(message, process.stdin)
    return child


def detached(
    command: Sequence[str], *, env: Mapping[str, str], **options: Any
) -> subprocess.Popen[bytes]:
    """Start an interpreter that outlives this process, and gets none of its console's signals."""
    import subprocess

    executable, *arguments = command
    base = getattr(sys, "_base_executable", executable)
    if executable != base:  # that of a virtual environment is a program that starts this one
        env = {**env, "__PYVENV_LAUNCHER__": executable}
    flags = subprocess.CREATE_NO_WINDOW | subprocess.CREATE_NEW_PROCESS_GROUP
    return subprocess.Popen([base, *arguments], env=env, creationflags=flags, **options)


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
