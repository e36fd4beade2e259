"""The kinds of memory that processes can share, and which is taken. Each is a file without a name.

======  ======================  ====================  ===================================
kind    made of                 room                  others cannot write to it because of
======  ======================  ====================  ===================================
memfd   anonymous memory        memory                a seal
named   a file in ``/dev/shm``  memory, ``/dev/shm``  read-only descriptors
file    a file in a directory   the directory's       read-only descriptors
======  ======================  ====================  ===================================

Without a seal, a process of the same user that means to can still write: it changes the file's
mode and opens the descriptor anew through ``/proc``. A bug will not, malice may. Read-only
descriptors are opened through ``/proc``, so without it a memfd is the only kind.

A file in a directory loses its name the moment it is made, so nothing can be left behind: other
processes get its descriptor, or open it through ``/proc``. Names are random, so that they prove
what a descriptor means.

The environment variable ``NBSHARE_MEMORY`` says ``memfd``, ``named``, ``file`` (in the directory
for temporary files) or ``file:/some/directory``, where data may be larger than memory. It is read
whenever memory is made. Without it the first kind is taken that the system allows, in the order of
the table; which is said once, if it is not the first.

Linux is tested; other systems are not, and Windows is not built yet.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from nbshare.errors import MemoryFallbackWarning, NotBuiltYetError, OutOfMemoryError, warn
from nbshare.interrupts import uninterrupted
from nbshare.memory import budget
from nbshare.memory.descriptors import Descriptor, opened
from nbshare.memory.processes import has_ended

__all__ = [
    "Kind",
    "MappedFile",
    "Memfd",
    "has_proc",
    "hush",
    "is_chosen",
    "name_of",
    "new_file",
    "reserve",
    "scratch_file",
]

SETTING = "NBSHARE_MEMORY"

FULL = {errno.ENOSPC, errno.EDQUOT}
SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # no word against the kind

# From linux/fcntl.h: the module fcntl lacks the last one, and is not on every system.
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE = 0x0002, 0x0010

# Bytes allocated at once: a signal undoes the allocation under way, and a timer's signals would
# keep a large one from ever being done.
PIECE = 64 << 20

_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"  # names; the process number is for `_sweep`

_is_hushed = False


class Memfd(NamedTuple):
    """Anonymous memory: never has a name, and can be sealed."""

    setting: str = "memfd"  # what a user calls it
    folder: str = ""  # whose room it takes

    def open(self) -> Descriptor:
        """Make an empty file."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return opened(os.memfd_create, _new_name(), flags)

    def reserve(self, fd: int, nbytes: int) -> None:
        """Give it a size that nobody can take from it, so that no access to it can fail."""
        import fcntl  # late: not on every system

        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)

    def protect(self, fd: int) -> None:
        """Let no other process write to it from now on."""
        import fcntl

        with suppress(OSError):  # Linux before 5.1 has no such seal
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)


class MappedFile(NamedTuple):
    """A file without a name; its room is its own, and whoever may write may change its size."""

    setting: str
    folder: str

    def open(self) -> Descriptor:
        """Make an empty file."""
        if not has_proc():
            raise OSError(errno.ENOTSUP, "needs /proc, which is not mounted here")
        _sweep(self.folder)
        path = os.path.join(self.folder, _new_name())
        with uninterrupted():
            file = opened(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
            with suppress(FileNotFoundError):  # somebody swept
                os.unlink(path)
        return file

    def reserve(self, fd: int, nbytes: int) -> None:
        """Give it a size, and have its room."""
        if nbytes > budget.free_in(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, nbytes)
        if hasattr(os, "posix_fallocate"):
            # Without it a full directory would kill whoever touches a page (SIGBUS).
            for start in range(0, nbytes, PIECE):
                os.posix_fallocate(fd, start, min(PIECE, nbytes - start))

    def protect(self, fd: int) -> None:
        """Let no other process write to it from now on, unless it means to."""
        with suppress(OSError):  # not every file system has modes
            os.fchmod(fd, 0o400)


Kind = Memfd | MappedFile


def new_file(nbytes: int) -> tuple[Kind, Descriptor, int]:
    """Make memory of at least `nbytes`.

    Returns
    -------
    tuple of Kind, Descriptor and int
        Fresh zeros, of whole pages, and how many bytes they are.

    Raises
    ------
    OutOfMemoryError
        If the machine, its container or the directory has not that much left.
    OSError
        If no kind, or not the one that was asked for, can be had here.
    """
    size = budget.aligned(max(nbytes, 1), mmap.PAGESIZE)
    kind = _chosen(os.environ.get(SETTING, ""), _temporary())
    if not kind.folder or budget.is_memory(kind.folder):
        budget.check_room(size)
    file = kind.open()
    reserve(kind, file.fileno(), size)
    return kind, file, size


def scratch_file() -> Descriptor:
    """Make a small file that grows as it is written, for locks and receipts."""
    # Not by the setting: that is where large data lie, maybe on a network.
    return _chosen("", _temporary()).open()


@cache
def _chosen(setting: str, temporary: str) -> Kind:
    """Return the first kind that a setting allows, and the system too."""
    reasons: list[str] = []
    code = 0
    for kind in _allowed(setting, temporary):
        try:
            file = kind.open()
            reserve(kind, file.fileno(), mmap.PAGESIZE)
        except (OSError, ImportError, AttributeError) as error:
            code = getattr(error, "errno", errno.ENOSYS)  # this system's Python has not the call
            if code in SHORT:
                raise
            reasons.append(f"{kind.setting}: {getattr(error, 'strerror', os.strerror(code))}")
        else:
            if reasons and not _is_hushed:
                warn(
                    f"arrays lie in shared memory of the kind {kind.setting!r}, since others "
                    f"cannot be had ({'; '.join(reasons)}). All works, large arrays may be made "
                    "more slowly. To choose it yourself, without this warning, set "
                    f"{SETTING}={kind.setting}.",
                    MemoryFallbackWarning,
                )
            return kind
    remedy = "Unset it to have one chosen that works, or set it" if setting else f"Set {SETTING}"
    raise OSError(
        code,
        f"{SETTING}={setting}: no memory of this kind can be made here ({'; '.join(reasons)}). "
        f"{remedy} to file:DIRECTORY with a directory that you can write to.",
    )


def hush() -> None:
    """Say nothing of fall-backs in this process: its owner has."""
    global _is_hushed
    _is_hushed = True


def is_chosen(kind: Kind | None) -> bool:
    """Whether memory of a kind may be used where some is made now: the setting may have changed."""
    setting = os.environ.get(SETTING, "")
    return kind is not None and setting in ("", kind.setting, kind.setting.partition(":")[0])


def _temporary() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def _allowed(setting: str, temporary: str) -> list[Kind]:
    """Return the kinds that a setting allows, the best one first."""
    if os.name == "nt":
        raise NotBuiltYetError(
            "arrays in shared memory are not built for Windows yet. Use nbshare in WSL, the "
            "Windows Subsystem for Linux."
        )
    known: dict[str, Kind] = {
        "memfd": Memfd(),
        "named": MappedFile("named", "/dev/shm"),  # noqa: S108
        "file": MappedFile(f"file:{temporary}", temporary),
    }
    word, _, folder = setting.partition(":")
    if word == "file" and os.path.isabs(folder):
        return [MappedFile(setting, folder)]
    if setting and setting not in known:
        raise ValueError(
            f"{SETTING}={setting!r}: allowed are memfd, named, file, file:DIRECTORY with an "
            "absolute path, and nothing at all, to have one chosen that works."
        )
    return [known[setting]] if setting else list(known.values())


def reserve(kind: Kind, fd: int, nbytes: int) -> None:
    """Give memory of a kind its size.

    Raises
    ------
    OutOfMemoryError
        If there is no room, or if a file may not be so large.
    """
    try:
        kind.reserve(fd, nbytes)
    except OSError as error:
        if error.errno == errno.EFBIG:
            why = (
                f"are more than a file may have here ({kind.setting}: {error.strerror}). Raise the "
                "limit on file size (ulimit -f), which holds for memory too, or use smaller arrays"
            )
        elif error.errno in FULL:
            free = budget.in_words(budget.free_in(kind.folder))
            why = (
                f"were asked for, {free} are free in {kind.folder}. Make room, or set "
                f"{SETTING}=file:DIRECTORY with a directory that has more"
            )
        else:
            raise
        raise OutOfMemoryError(f"{budget.in_words(nbytes)} of shared memory {why}.") from None


def has_proc() -> bool:
    """Whether descriptors lead to their files here."""
    return os.path.exists("/proc/self/fd")  # asked each time: it may be unmounted


def name_of(fd: int) -> str:
    """Return the name that the file of a descriptor had; needs ``/proc``."""
    link = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    return os.path.basename(link).removeprefix("memfd:")


def _new_name() -> str:
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


@cache
def _sweep(folder: str) -> None:
    """Remove what processes have left that are gone: killed before they could do it themselves.

    Once per process and folder. Another process number space (a container's, another machine's)
    may share the folder: at worst a name goes that was about to go.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = re.fullmatch(_OURS, entry.name)
            if found and has_ended((int(found[1], 16), 0)):
                with suppress(OSError):  # another process sweeps too, or the file is another user's
                    os.unlink(entry.path)
