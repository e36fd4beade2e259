"""How much memory may still be allocated.

A memfd never reports that memory is short: the kernel's OOM killer ends a process instead, and
since the pages count in nobody's resident size it is often a bystander. So the room is read
before anything large is allocated.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import cache

from nbshare.errors import OutOfMemoryError
from nbshare.memory.cgroup import ancestors, group_setting

__all__ = ["available", "check_room", "free_in", "in_words", "is_memory", "reliefs"]

LARGE = 16 << 20  # bytes; smaller requests are not checked: reading the figures costs 160 µs
MAX_AGE = 0.25  # seconds that a reading is used again, less what was allocated since
SHARE = 0.9  # of what is available may be used; the rest is for everyone's next small request

# Called when memory is short, to give back what is kept for convenience only.
reliefs: list[Callable[[], None]] = []

_reading = (-1.0, 0)  # (when, bytes left); a race between threads costs one reading too many


def check_room(nbytes: int) -> None:
    """Raise `OutOfMemoryError` if `nbytes` more would not fit."""
    global _reading
    if nbytes < LARGE:
        return
    when, left = _reading
    now = time.monotonic()
    if now - when > MAX_AGE:
        when, left = now, available()
    if nbytes > SHARE * left:
        for relieve in reliefs:
            relieve()
        left = available()
    if nbytes > SHARE * left:
        raise OutOfMemoryError(
            f"{in_words(nbytes)} of shared memory were asked for, {in_words(left)} are available "
            "on this machine or in its container. Use a smaller dtype, fewer or smaller results, "
            "process the data in parts, or set NBSHARE_MEMORY=file:DIRECTORY to have arrays on a "
            "disk."
        )
    _reading = (when, left - nbytes)


def available() -> int:
    """Bytes that can be allocated now: the least of the machine's and of each cgroup's room."""
    return min([_machine_room(), *_cgroup_rooms()])


def free_in(folder: str) -> int:
    """Bytes that can still be had in a directory."""
    status = os.statvfs(folder)
    # A file system without bounds, or on a network, may say that it has no blocks at all.
    return status.f_bavail * status.f_frsize if status.f_blocks else 1 << 62


@cache
def is_memory(folder: str) -> bool:
    """Whether what lies in a directory takes memory."""
    device = os.stat(folder).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    with suppress(OSError), open("/proc/self/mountinfo") as file:
        for line in file:
            mount, _, system = line.partition(" - ")
            if mount.split()[2] == number:
                return system.split()[0] in ("tmpfs", "ramfs")
    return False


def _machine_room() -> int:
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62  # unknown: nothing is refused


def _cgroup_rooms() -> Iterator[int]:
    for version, folder in ancestors("memory"):
        names = {
            1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
            2: ("memory.max", "memory.current", "inactive_file"),
        }
        limit_name, usage_name, cache_name = names[version]
        try:
            limit = group_setting(folder, limit_name)
            if limit == "max":
                continue
            usage = int(group_setting(folder, usage_name))
            entries = dict(map(str.split, group_setting(folder, "memory.stat").splitlines()))
            # A cache of files gives way to a program's memory.
            yield max(0, int(limit) - usage + int(entries.get(cache_name, 0)))
        except (OSError, ValueError):
            continue


def in_words(nbytes: int) -> str:
    """Return a size for people."""
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.0f} KiB"
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"
