"""How much memory is left, and how many CPUs can be used.

Containers, batch systems and systemd slices limit a process by control groups (cgroups).
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

QUOTA_S = 5.0  # before the CPU quota is read again, which costs 100 µs, and it rarely changes


def available() -> int:
    """Bytes that can be allocated now, the minimum over the machine and each cgroup."""
    return min([_machine_room(), *(room for _, room in _cgroups())])


def total() -> tuple[int, int]:
    """Bytes of the machine's memory, and of those that the cgroups allow."""
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine, min([machine, *(limit for limit, _ in _cgroups())])


def n_killed() -> int:
    """Return how many processes the system has ended for lack of memory."""
    with suppress(OSError), open("/proc/vmstat") as file:
        for line in file:
            if line.startswith("oom_kill "):
                return int(line.split()[1])
    return 0


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
    return 1 << 62  # unknown, so nothing is refused


def _cgroups() -> Iterator[tuple[int, int]]:
    """Iterate over the limits of the cgroups, as (limit, bytes left)."""
    names = {
        1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        2: ("memory.max", "memory.current", "inactive_file"),
    }
    for version, folder in ancestors("memory"):
        limit, usage, cache = names[version]
        with suppress(OSError, ValueError):  # no such group here, or the limit is "max"
            most = int(_setting(folder, limit))
            room = most - int(_setting(folder, usage))
            entries = dict(map(str.split, _setting(folder, "memory.stat").splitlines()))
            # The kernel drops cached files when a program needs memory.
            yield most, max(0, room + int(entries.get(cache, 0)))


def ancestors(controller: str) -> Iterator[tuple[int, str]]:
    """Iterate over this process's cgroup and those above it, as (cgroup version, folder).

    The limits of each apply. In a container the path may be the host's, so the caller skips folders
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
    quota = _least_quota(time.monotonic() // QUOTA_S)
    return max(1, math.ceil(min(len(affinity()), quota)))


def affinity() -> set[int]:
    """Return the CPUs that this process may run on."""
    return os.sched_getaffinity(0)


def set_affinity(cpus: set[int]) -> None:
    """Run on these CPUs only."""
    with suppress(OSError):  # the cpuset was changed in between
        os.sched_setaffinity(0, cpus)


@lru_cache(maxsize=1)
def _least_quota(_period: float) -> float:
    """Return the smallest CPU quota of the cgroups, in CPUs, cached for a while."""
    return min(_quotas(), default=math.inf)


def _quotas() -> Iterator[float]:
    for version, folder in ancestors("cpu"):
        with suppress(OSError, ValueError):  # no such group here, or the quota is "max"
            if version == 2:
                quota, period = map(int, _setting(folder, "cpu.max").split())
            else:
                quota = int(_setting(folder, "cpu.cfs_quota_us"))
                period = int(_setting(folder, "cpu.cfs_period_us"))
            if quota > 0:
                yield quota / period
