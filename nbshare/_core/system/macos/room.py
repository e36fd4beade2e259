"""How much memory is left, and how many CPUs can be used."""

from __future__ import annotations

import os
import shutil

from nbshare._core.system.macos import library


def available() -> int:
    """Bytes that can be allocated now, without compressing what others have."""
    pages = library.pages()
    if pages is None:
        return 1 << 62  # unknown, so nothing is refused
    return int(pages.free + pages.inactive) * os.sysconf("SC_PAGE_SIZE")


def total() -> tuple[int, int]:
    """Bytes of the machine's memory, and of those that can be used."""
    nbytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return nbytes, nbytes


def n_killed() -> int:
    """Return how many processes the system has ended for lack of memory, which it does not tell."""
    return 0


def free_in(folder: str) -> int:
    """Free bytes in a directory."""
    return shutil.disk_usage(folder or os.curdir).free


def usable_cpus() -> int:
    """Return the CPUs of the machine."""
    return os.cpu_count() or 1


def affinity() -> set[int] | None:
    """Return None, because the system chooses the CPUs of a process."""
    return None


def set_affinity(cpus: object) -> None:
    """Do nothing (see `affinity`)."""
