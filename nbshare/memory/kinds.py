"""The kinds of memory, and the choice of one. Processes share unnamed files.

=======  ======================  ====================  ===================================
kind     made of                 room                  others cannot write to it because of
=======  ======================  ====================  ===================================
memfd    anonymous memory        memory                a seal
named    a file in ``/dev/shm``  memory, ``/dev/shm``  read-only descriptors
file     a file in a directory   the directory's       read-only descriptors
private  memory without a file   memory                no other process can map it
=======  ======================  ====================  ===================================

Without a seal, a process of the same user can still write on purpose: it changes the file's mode
and opens the descriptor again through ``/proc``. A bug does not do that. Read-only descriptors are
opened through ``/proc``, so without it a memfd is the only kind.

A file in a directory loses its name immediately, so nothing can be left behind: other processes get
its descriptor, or open it through ``/proc``. Names are random, and so identify a file.

The environment variable ``NBSHARE_MEMORY`` is ``memfd``, ``named``, ``file`` (in the directory for
temporary files) or ``file:/some/directory``, where data may be larger than memory. It is read
whenever memory is made. Without it, the first kind in the table that the system allows is used,
with one warning if it is not the first.

Private memory is for calls whose items run in this process. Systems other than Linux have no other
kind: there SharedArrays are private too, and go to other processes by value.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import sys
from contextlib import suppress
from functools import cache
from typing import NamedTuple

from nbshare.errors import NotBuiltYetError, OutOfMemoryError, warn
from nbshare.interrupts import uninterrupted
from nbshare.memory import budget
from nbshare.system import processes, room
from nbshare.system.descriptors import Descriptor, opened

SETTING = "NBSHARE_MEMORY"

FULL = {errno.ENOSPC, errno.EDQUOT}
SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # does not mean that the kind fails

# From linux/fcntl.h: the module fcntl lacks the last one, and some systems lack the module.
F_ADD_SEALS = 1033
F_SEAL_SHRINK, F_SEAL_FUTURE_WRITE = 0x0002, 0x0010

# Bytes per allocation: a signal undoes the present one, and a timer's signals could undo a large
# one for ever.
PIECE = 64 << 20

_OURS = r"nbshare-([0-9a-f]{1,6})-[0-9a-f]{14}"  # names; the process number is for `_sweep`

_is_silent = False


class Memfd(NamedTuple):
    """Anonymous memory: it never has a name, and can be sealed."""

    setting: str = "memfd"  # what a user calls it
    folder: str = ""  # whose space it takes

    def open(self) -> Descriptor:
        """Make an empty file."""
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        return opened(os.memfd_create, new_name(), flags)

    def reserve(self, fd: int, nbytes: int) -> None:
        """Give it a fixed size, so that no access can fail."""
        import fcntl  # late: not on every system

        os.ftruncate(fd, nbytes)
        fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK)

    def protect(self, fd: int) -> None:
        """Make it read-only for other processes."""
        import fcntl

        with suppress(OSError):  # Linux before 5.1 has no such seal
            fcntl.fcntl(fd, F_ADD_SEALS, F_SEAL_FUTURE_WRITE)


class MappedFile(NamedTuple):
    """An unnamed file; its space is allocated, and its writers can change its size."""

    setting: str
    folder: str

    def open(self) -> Descriptor:
        """Make an empty file."""
        if not has_proc():
            raise OSError(errno.ENOTSUP, "needs /proc, which is not mounted here")
        _sweep(self.folder)
        path = os.path.join(self.folder, new_name())
        with uninterrupted():
            file = opened(os.open, path, os.O_RDWR | os.O_CLOEXEC | os.O_CREAT | os.O_EXCL, 0o600)
            with suppress(FileNotFoundError):  # swept by another process
                os.unlink(path)
        return file

    def reserve(self, fd: int, nbytes: int) -> None:
        """Give it a size, and allocate its space."""
        if nbytes > room.free_in(self.folder):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        os.ftruncate(fd, nbytes)
        # Without this, touching a page in a full directory would kill the process (SIGBUS).
        for start in range(0, nbytes, PIECE):
            os.posix_fallocate(fd, start, min(PIECE, nbytes - start))

    def protect(self, fd: int) -> None:
        """Make it read-only for other processes, except on purpose."""
        with suppress(OSError):  # some file systems have no modes
            os.fchmod(fd, 0o400)


class Private(NamedTuple):
    """Memory without a file, made by its mapping."""

    setting: str = "private"
    folder: str = ""


Shared = Memfd | MappedFile
MemoryKind = Shared | Private


def can_share() -> bool:
    """Return whether processes can share memory on this system."""
    return sys.platform == "linux"


def need_linux(what: str, instead: str) -> None:
    """Raise NotBuiltYetError on other systems: what needs it, and what to do instead."""
    if not can_share():
        raise NotBuiltYetError(
            f"{what} needs Linux: use nbshare in WSL 2 (on Windows) or in a Linux container, or "
            f"{instead}."
        )


def new_memory(nbytes: int, *, is_private: bool) -> tuple[MemoryKind, Descriptor | None, int]:
    """Make memory of at least `nbytes`.

    Returns
    -------
    tuple of MemoryKind, Descriptor or None, and int
        The kind, fresh zeroed memory in whole pages, and its size in bytes. Private memory has no
        descriptor: it is made by its mapping.

    Raises
    ------
    OutOfMemoryError
        The machine, its container or the directory has too little left.
    OSError
        No kind works here, or not the requested one.
    """
    size = budget.aligned(max(nbytes, 1), mmap.PAGESIZE)
    is_shared = can_share() and not is_private
    kind = _chosen(os.environ.get(SETTING, ""), _temporary()) if is_shared else Private()
    if not kind.setting.startswith("file"):  # the room of a directory is checked by `reserve`
        budget.check_room(size)
    if isinstance(kind, Private):
        return kind, None, size
    file = kind.open()
    reserve(kind, file.fileno(), size)
    return kind, file, size


def scratch_file() -> Descriptor:
    """Make a small file that grows as it is written, for locks and receipts."""
    # Not by the setting: that is for large data, maybe on a network.
    return _chosen("", _temporary()).open()


@cache
def _chosen(setting: str, temporary: str) -> Shared:
    """Return the first kind that both the setting and the system allow."""
    reasons: list[str] = []
    code = 0
    for kind in _allowed(setting, temporary):
        try:
            file = kind.open()
            reserve(kind, file.fileno(), mmap.PAGESIZE)
        except (OSError, ImportError, AttributeError) as error:
            code = getattr(error, "errno", errno.ENOSYS)  # Python lacks the call on this system
            if code in SHORT:
                raise
            reasons.append(f"{kind.setting}: {getattr(error, 'strerror', os.strerror(code))}")
        else:
            if reasons and not _is_silent:
                warn(
                    f"arrays use shared memory of the kind {kind.setting!r}, because others "
                    f"do not work here ({'; '.join(reasons)}). Creating large arrays may be "
                    "slower. To choose it yourself, without this warning, set "
                    f"{SETTING}={kind.setting}.",
                    UserWarning,
                )
            return kind
    remedy = "Unset it to use one that works, or set it" if setting else f"Set {SETTING}"
    raise OSError(
        code,
        f"{SETTING}={setting}: no memory of this kind can be made here ({'; '.join(reasons)}). "
        f"{remedy} to file:DIRECTORY with a directory that you can write to.",
    )


def silence_warnings() -> None:
    """Do not warn of fallbacks in this process: its owner has."""
    global _is_silent
    _is_silent = True


def is_chosen(kind: MemoryKind | None) -> bool:
    """Return whether the present setting allows memory of a kind."""
    setting = os.environ.get(SETTING, "")
    return kind is not None and setting in ("", kind.setting, kind.setting.partition(":")[0])


def _temporary() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def _allowed(setting: str, temporary: str) -> list[Shared]:
    """Return the kinds that a setting allows, the best one first."""
    known: dict[str, Shared] = {
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
            "absolute path, or leave it unset to use one that works."
        )
    return [known[setting]] if setting else list(known.values())


def reserve(kind: Shared, fd: int, nbytes: int) -> None:
    """Give memory of a kind its size.

    Raises
    ------
    OutOfMemoryError
        There is no room, or a file may not be so large.
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
            free = budget.in_words(room.free_in(kind.folder))
            why = (
                f"were requested, {free} are free in {kind.folder}. Make room, or set "
                f"{SETTING}=file:DIRECTORY with a directory that has more"
            )
        else:
            raise
        raise OutOfMemoryError(f"{budget.in_words(nbytes)} of shared memory {why}.") from None


def has_proc() -> bool:
    """Return whether ``/proc`` leads from descriptors to files here."""
    return os.path.exists("/proc/self/fd")  # checked each time: it may be unmounted


def name_of(fd: int) -> str:
    """Return the name that the file of a descriptor had; needs ``/proc``."""
    link = os.readlink(f"/proc/self/fd/{fd}").removesuffix(" (deleted)")
    return os.path.basename(link).removeprefix("memfd:")


def new_name() -> str:
    """Return a random name."""
    return f"nbshare-{os.getpid():x}-{os.urandom(7).hex()}"


@cache
def _sweep(folder: str) -> None:
    """Remove files of processes that were killed before they could do it.

    Once per process and folder. Another process number space (a container's, another machine's)
    may share the folder: at worst, a name is removed that was about to be.
    """
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            found = re.fullmatch(_OURS, entry.name)
            if found and processes.has_ended((int(found[1], 16), 0)):
                with suppress(OSError):  # another process sweeps too, or the file is another user's
                    os.unlink(entry.path)
