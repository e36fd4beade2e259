"""How much memory can still be allocated, and how many CPUs can be used.

A memfd never reports that memory is short: the kernel's OOM killer ends a process instead, often an
innocent one, because these pages count in no resident size. So the free memory is read before
anything large is allocated. Containers, batch systems and systemd slices limit a process by control
groups (cgroups).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache

from nbshare.errors import OutOfMemoryError

ALIGNMENT = 64  # bytes: a cache line, and the widest vector load
LARGE = 16 << 20  # bytes; smaller requests are not checked: reading the figures costs 160 µs
QUOTA_S = 5.0  # before the CPU quota is read again: it costs 100 µs, and rarely changes
SHARE = 0.9  # of the available memory may be used; the rest is for small requests

# Called when memory is short, to free caches.
reliefs: list[Callable[[], None]] = []


def check_room(nbytes: int) -> None:
    """Raise `OutOfMemoryError` if `nbytes` more would not fit."""
    if nbytes < LARGE or nbytes <= SHARE * available():
        return
    for relieve in reliefs:
        relieve()
    left = available()
    if nbytes > SHARE * left:
        raise OutOfMemoryError(
            f"{in_words(nbytes)} of shared memory were requested, {in_words(left)} are available "
            "on this machine or in its container. Use a smaller dtype, fewer or smaller results, "
            "process the data in parts, or set NBSHARE_MEMORY=file:DIRECTORY to keep arrays on "
            "disk."
        )


def available() -> int:
    """Bytes that can be allocated now: the minimum over the machine and each cgroup."""
    return min([_machine_room(), *_cgroup_rooms()])


def free_in(folder: str) -> int:
    """Free bytes in a directory."""
    status = os.statvfs(folder)
    # A file system without limits, or on a network, may report no blocks at all.
    return status.f_bavail * status.f_frsize if status.f_blocks else 1 << 62


def _machine_room() -> int:
    with suppress(OSError), open("/proc/meminfo") as file:
        for line in file:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) << 10
    return 1 << 62  # unknown: nothing is refused


def _cgroup_rooms() -> Iterator[int]:
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for version, folder in ancestors("memory"):
        limit, usage, cache = names[version]
        with suppress(OSError, ValueError):  # no such group here; or the limit is "max"
            room = int(_setting(folder, limit)) - int(_setting(folder, usage))
            entries = dict(map(str.split, _setting(folder, "memory.stat").splitlines()))
            # The kernel drops cached files when a program needs memory.
            yield max(0, room + int(entries.get(cache, 0)))


def aligned(nbytes: int, alignment: int = ALIGNMENT) -> int:
    """Return the next multiple of `alignment`."""
    return -(-nbytes // alignment) * alignment


def in_words(nbytes: int) -> str:
    """Format a size in bytes."""
    if nbytes < 1 << 20:
        return f"{nbytes / (1 << 10):.0f} KiB"
    return f"{nbytes / (1 << 30):.2f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.0f} MiB"


def ancestors(controller: str) -> Iterator[tuple[int, str]]:
    """Iterate over this process's cgroup and those above it, as (cgroup version, folder).

    The limits of each apply. In a container the path may be the host's: the caller skips folders
    that do not exist.
    """
    try:
        with open("/proc/self/cgroup") as file:
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, "/sys/fs/cgroup"
        elif controller in controllers.split(","):
            version, root = 1, f"/sys/fs/cgroup/{controller}"
        else:
            continue
        folder = os.path.join(root, path.strip("/")).rstrip("/")
        yield version, folder
        while len(folder) > len(root):
            folder = os.path.dirname(folder)
            yield version, folder


def _setting(folder: str, name: str) -> str:
    with open(f"{folder}/{name}") as file:
        return file.read().strip()


def usable_cpus() -> int:
    """Return the CPUs of the affinity mask, or fewer if a cgroup's quota allows fewer."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    quota = _least_quota(time.monotonic() // QUOTA_S)
    return max(1, math.ceil(min(count, quota)))


@lru_cache(maxsize=1)
def _least_quota(_period: float) -> float:
    """Return the smallest CPU quota of the cgroups, in CPUs; cached for a while."""
    return min(_quotas(), default=math.inf)


def _quotas() -> Iterator[float]:
    for version, folder in ancestors("cpu"):
        with suppress(OSError, ValueError):  # no such group here; or the quota is "max"
            if version == 2:
                quota, period = map(int, _setting(folder, "cpu.max").split())
            else:
                quota = int(_setting(folder, "cpu.cfs_quota_us"))
                period = int(_setting(folder, "cpu.cfs_period_us"))
            if quota > 0:
                yield quota / period
