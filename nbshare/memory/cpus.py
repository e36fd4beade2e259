"""How many CPUs this process may really use."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator

from nbshare.memory import ancestors, group_setting

__all__ = ["usable_cpus"]

QUOTA_S = 5.0  # a reading costs 100 µs, and quotas hardly ever change

_reading = (0.0, math.inf)  # until when, CPUs


def usable_cpus() -> int:
    """Return the CPUs of the affinity mask, or fewer if a cgroup's quota allows fewer."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min(count, _quota())))


def _quota() -> float:
    """Return the least quota of the cgroups, in CPUs, as of some seconds ago."""
    global _reading
    now = time.monotonic()
    if now >= _reading[0]:
        _reading = now + QUOTA_S, min(_quotas(), default=math.inf)
    return _reading[1]


def _quotas() -> Iterator[float]:
    for version, folder in ancestors("cpu"):
        try:
            if version == 2:
                quota, period = group_setting(folder, "cpu.max").split()
            else:
                quota = group_setting(folder, "cpu.cfs_quota_us")
                period = group_setting(folder, "cpu.cfs_period_us")
            if quota != "max" and int(quota) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError):
            continue
