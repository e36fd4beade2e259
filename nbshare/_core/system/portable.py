"""Code for any system: plain Python, and stubs for functions that a system lacks.

The modules of the systems import names from here. A system without worker processes uses this
module alone, for calls within this process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import time
from collections.abc import Callable
from typing import Any, NoReturn

from nbshare.errors import NotBuiltYetError

# ------------------------------------------------------------------------------------ plain Python

CAN_BE_FILES = CAN_WRITE = False  # shared memory is not a file

# For memory that is not shared with forked processes. Windows has neither flags nor forks.
PRIVATE: dict[str, Any] = (
    {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
)
POLL_S = 1e-3


def usable_cpus() -> int:
    """Return the number of CPUs of the machine."""
    return os.cpu_count() or 1


def interrupt(_pid: int = 0) -> None:
    """Interrupt this process as Ctrl-C does."""
    signal.raise_signal(signal.SIGINT)


def stamp(path: str) -> tuple[int, int, int, int]:
    """Return metadata that change with an edit or replacement (mtime, size, inode, ctime)."""
    status = os.stat(path)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns


def new_name() -> str:
    """Return a random name for shared memory."""
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


def interruptible(wait: Callable[[Any], bool], timeout_s: float | None) -> bool:
    """Call a function that waits for a limited time or forever. An interrupt ends any wait."""
    return wait(timeout_s)


def sleep_while(address: int, value: int, timeout_s: float) -> None:
    """Sleep while a word of shared memory has this value, at most for the timeout.

    The word is checked every millisecond, at a few per cent of a CPU, because a process cannot wake
    a sleeper of another process (on macOS before 14.4, and with WaitOnAddress on Windows).
    """
    word, until_s = ctypes.c_uint32.from_address(address), time.monotonic() + timeout_s
    while word.value == value and time.monotonic() < until_s:
        time.sleep(POLL_S)


# -------------------------------------------------------- stubs for functions a system lacks

IS_WEAKLY_ORDERED = False  # one process needs no order of memory between processes
Waiter = object  # no waiter exists


def _nothing(*_: object, **__: object) -> None:
    """No-op."""


def _unknown(*_: object) -> Any:
    """Return None."""


def _no_figure(*_: object) -> int:
    """Return 0, for a figure that is unknown or does not exist."""
    return 0


def _no_figures(*_: object) -> Any:
    """Return an empty tuple, for no figures."""
    return ()


at_fork = heed_interrupts = set_limits = set_priority = block_signals = stop_timers = _nothing
lead_group = raise_oom_score = keep_freed_memory = return_freed_memory = buffer_lines = _nothing
set_affinity = before_marks = after_marks = futex = wake_all = has_cpu_limit = _nothing
affinity = umask = limits = priority = user = other_owner = _unknown
begun_ns = resident_bytes = peak_bytes = n_faults = n_killed = number_space = _no_figure
bytes_held = inode_of = _no_figure
members_of = blocked_signals = running_timers = _no_figures
replace = os.replace


def boot_id() -> str:
    """Return "", because the id of the machine's start is unknown."""
    return ""


def private_bytes(_pid: int) -> tuple[int, int, int]:
    """Return zeros, because a process's private memory and peak are unknown."""
    return 0, 0, 0


def available_bytes() -> int:
    """Return a huge number, so that no allocation is refused."""
    return 1 << 62


def total_bytes() -> tuple[int, int]:
    """Return zeros, because the machine's memory and its usable part are unknown."""
    return 0, 0


def is_written(_address: int, _nbytes: int) -> bool:
    """Return False, because no other process depends on writes to private memory."""
    return False


def free(*_: object) -> NoReturn:
    """Raise OSError, because no part of shared memory can be freed."""
    raise OSError


def in_folder(setting: str, _folder: str) -> NoReturn:
    """Refuse to store arrays as files of a directory, because this needs Linux."""
    raise NotBuiltYetError(f"NBSHARE_MEMORY={setting} needs Linux. Unset it.")


def mapped_file(_address: int, _memmap: object) -> NoReturn:
    """Raise OSError, because the file mapped at an address is unknown."""
    raise FileNotFoundError
