"""The ends of workers, which lead groups of processes."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from nbshare._core.system.descriptors import Descriptor
from nbshare._core.system.posix.waiting import is_readable

if TYPE_CHECKING:
    import subprocess  # the owner alone needs it

LINE_BUFFERED = 1  # _IOLBF of stdio.h


def kill_group() -> None:
    """End this process, and those that it has started."""
    os.killpg(0, signal.SIGKILL)


def kill_group_after(owner_fd: int) -> None:
    """End them when a descriptor becomes readable."""
    is_readable(owner_fd)
    kill_group()


def detached(
    command: Sequence[str], env: Mapping[str, str], log: Descriptor
) -> subprocess.Popen[bytes]:
    """Start a process that outlives this one, and gets none of its signals."""
    import subprocess

    return subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=log.fileno(),
        stderr=log.fileno(),
        start_new_session=True,
    )


def stream(fd: int) -> int:
    """Return a descriptor of the C library for a pipe, the same."""
    return fd


def end_lines() -> None:
    """Have C send each line that it prints, because its buffers are lost when a worker is ended."""
    libc = ctypes.CDLL(None)
    for name in ("stdout", "__stdoutp"):  # Linux, macOS
        with suppress(Exception):  # another C library
            stdout = ctypes.c_void_p.in_dll(libc, name)
            libc.setvbuf(stdout, None, LINE_BUFFERED, ctypes.c_size_t())
