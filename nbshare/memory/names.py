"""The names of segments: random, so that they prove what a descriptor means, and soon gone.

Where there is ``/proc`` a descriptor leads to its segment, so a name is removed from its directory
the moment the file is made: nothing can be left behind. Elsewhere the name is the only way for
other processes, and stands as long as the process that made it holds the segment.
"""

from __future__ import annotations

import atexit
import os
import re
from contextlib import suppress
from typing import Any

from nbshare.memory.descriptors import Descriptor, opened

__all__ = [
    "Standing",
    "drop",
    "has_proc",
    "is_kept",
    "is_ours",
    "keep",
    "name_of",
    "new_name",
    "open_shm",
    "opened_without_name",
    "remove",
    "sweep",
]

# 29 characters and a slash: macOS takes no more than 30. The process number is for `sweep`.
_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"
# On a network file system a removed file that is open gets another name, as unlikely as ours.
_REMOVED = r"\.nfs[0-9a-f]+"

_kept: dict[str, int] = {}  # the names that stand, and whose they are: forks have copies of this
_swept: set[str] = set()


def has_proc() -> bool:
    """Whether descriptors lead to their files here."""
    return os.path.exists("/proc/self/fd")  # asked each time: it may be unmounted


def new_name() -> str:
    """Return a name that nobody else has or guesses."""
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


def name_of(fd: int) -> str:
    """Return the name that the file of a descriptor has, or had; needs ``/proc``."""
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


def open_shm(name: str, flags: int) -> Descriptor:
    """Open POSIX shared memory; never by `multiprocessing`, whose tracker removes others' too."""
    import _posixshmem  # type: ignore[import-not-found]  # late: some systems have none

    return opened(_posixshmem.shm_open, f"/{name}", flags, 0o600)


def opened_without_name(path: str, flags: int, opener: Any, unlink: Any) -> Descriptor:
    """Make a file and remove its name; also if it is interrupted in between.

    `opener` and `unlink` are functions of C: in these lines there is no moment for an interrupt
    that would leave the name.
    """
    try:
        file = opened(opener, path, flags | os.O_CREAT | os.O_EXCL, 0o600)
    finally:
        try:  # noqa: SIM105 - to call anything here would be such a moment
            unlink(path)
        except FileNotFoundError:  # it could not be made, or somebody swept
            pass
    return file


def keep(name: str) -> None:
    """Let the name of POSIX shared memory stand until `drop`, or this process's orderly end."""
    _kept[name] = os.getpid()


def is_kept(name: str) -> bool:
    """Whether a name stands."""
    return name in _kept


def drop(name: str) -> None:
    """Remove a name that this process has kept; others are left alone."""
    if _kept.pop(name, None) == os.getpid():
        remove(name)


class Standing:
    """Whoever holds this holds up a name of this process; it is dropped with the last of them."""

    _drop = staticmethod(drop)  # at exit the module's own may be gone before

    def __init__(self, name: str) -> None:
        self._name = name

    def __del__(self) -> None:
        self._drop(self._name)


def remove(name: str) -> None:
    """Remove the name of POSIX shared memory."""
    import _posixshmem

    with suppress(FileNotFoundError):  # somebody swept
        _posixshmem.shm_unlink(f"/{name}")


@atexit.register
def _drop_all() -> None:
    for name in list(_kept):
        drop(name)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # another user's
        return True
    return True
