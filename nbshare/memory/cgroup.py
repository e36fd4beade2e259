"""The control groups that bound this process: containers, batch systems, systemd slices."""

from __future__ import annotations

import os
from collections.abc import Iterator

__all__ = ["ancestors", "group_setting"]


def ancestors(controller: str) -> Iterator[tuple[int, str]]:
    """Iterate over this process's group and those above it, as (cgroup version, folder).

    The limits of each apply. In a container the path may be the host's: folders that do not exist
    are the caller's to pass over.
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


def group_setting(folder: str, name: str) -> str:
    """Return what a file of a group says."""
    with open(f"{folder}/{name}") as file:
        return file.read().strip()
