"""The names of segments: random, so that they prove what a descriptor means, and soon gone.

A file in a directory loses its name the moment it is made, so nothing can be left behind: other
processes get its descriptor, or open it through ``/proc``.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress

from nbshare.memory.descriptors import Descriptor, opened

__all__ = [
    "has_proc",
    "is_ours",
    "name_of",
    "new_name",
    "opened_without_name",
    "sweep",
]

# The process number is for `sweep`.
_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"
# On a network file system a removed file that is open gets another name, as unlikely as ours.
_REMOVED = r"\.nfs[0-9a-f]+"

_swept: set[str] = set()


def has_proc() -> bool:
    """Whether descriptors lead to their files here."""
    return os.path.exists("/proc/self/fd")  # asked each time: it may be unmounted


def new_name() -> str:
    """Return a name that nobody else has or guesses."""
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


def name_of(fd: int) -> str:
    """Return the name that the file of a descriptor had; needs ``/proc``."""
    link = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    return os.path.basename(link).removeprefix("memfd:")


def is_ours(name: str) -> bool:
    """Whether `name_of` a segment can be so, made in any process."""
    return bool(re.fullmatch(_OURS, name) or re.fullmatch(_REMOVED, name))


def sweep(folder: str) -> None:
    """Remove what processes have left that are gone: killed before they could do it themselves.

    Once per process and folder. Another process number space (a container's, another machine's)
    may share the folder: at worst a name goes that was about to go.
    """
    if folder in _swept:
        return
    _swept.add(folder)
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = re.fullmatch(_OURS, entry.name)
            if found and not _is_alive(int(found[1], 16)):
                with suppress(OSError):  # another process sweeps too
                    if entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                        os.unlink(entry.path)


def opened_without_name(path: str) -> Descriptor:
    """Make a file and remove its name; also if it is interrupted in between."""
    unlink = os.unlink
    try:
        file = opened(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        # No call but that of a function of C: an interrupt before it would leave the name.
        try:  # noqa: SIM105
            unlink(path)
        except FileNotFoundError:  # it could not be made, or somebody swept
            pass
    return file


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
