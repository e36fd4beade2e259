"""The control groups that bound this process: containers, batch systems, systemd slices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

__all__ = ["ancestors"]


def ancestors(controller: str) -> Iterator[tuple[int, Path]]:
    """Iterate over this process's group and those above it, as (cgroup version, folder).

    The limits of each apply. In a container the path may be the host's: folders that do not exist
    are the caller's to pass over.
    """
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            version, root = 2, Path("/sys/fs/cgroup")
        elif controller in controllers.split(","):
            version, root = 1, Path("/sys/fs/cgroup", controller)
        else:
            continue
        folder = root / path.lstrip("/")
        yield version, folder
        while folder != root:
            folder = folder.parent
            yield version, folder
