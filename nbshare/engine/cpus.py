"""How many CPUs this process may really use."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator

from nbshare.memory import ancestors

__all__ = ["usable_cpus"]


def usable_cpus() -> int:
    """Return the CPUs of the affinity mask, or fewer if a cgroup's quota allows fewer."""
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    else:
        count = os.cpu_count() or 1
    return max(1, math.ceil(min([count, *_quotas()])))


def _quotas() -> Iterator[float]:
    for version, folder in ancestors("cpu"):
        try:
            if version == 2:
                quota, period = (folder / "cpu.max").read_text().split()
            else:
                quota = (folder / "cpu.cfs_quota_us").read_text()
                period = (folder / "cpu.cfs_period_us").read_text()
            if quota != "max" and int(quota) > 0:
                yield int(quota) / int(period)
        except (OSError, ValueError):
            continue
