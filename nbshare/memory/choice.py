"""Which kind of memory is taken: the first that works, or what the user says.

The environment variable ``NBSHARE_MEMORY`` says ``memfd``, ``named``, ``file`` (in the directory
for temporary files) or ``file:/some/directory``, where data may be larger than memory. It is read
whenever memory is made. Without it a memfd is taken; where the system refuses those, a file in
``/dev/shm``, and one in the directory for temporary files for what has no room there; which is said
once.

Linux is tested; other systems are not, and Windows is not built yet.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

from nbshare.errors import MemoryFallbackWarning, NotBuiltYetError, OutOfMemoryError, warn
from nbshare.memory import budget
from nbshare.memory.alignment import aligned
from nbshare.memory.descriptors import Descriptor
from nbshare.memory.kinds import Kind, MappedFile, Memfd

__all__ = ["NewFile", "choice", "hush", "new_file", "reserve", "scratch_file"]

SETTING = "NBSHARE_MEMORY"
_RAW_SETTING = SETTING.encode()  # as the system has it

FULL = {errno.ENOSPC, errno.EDQUOT}
SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # no word against the kind

Choice = tuple[tuple[Kind, ...], tuple[str, ...]]  # and why others are not among them

_told: set[str] = set()
_is_hushed = False


class NewFile(NamedTuple):
    """Fresh zeros, of whole pages."""

    file: Descriptor
    nbytes: int
    kind: Kind


def new_file(nbytes: int) -> NewFile:
    """Make memory of at least `nbytes`, of the first kind that works and has room.

    Raises
    ------
    OutOfMemoryError
        If the machine, its container or the directory has not that much left.
    OSError
        If the kind that was asked for cannot be had here.
    """
    size = aligned(max(nbytes, 1), mmap.PAGESIZE)
    kinds, refusals = _chosen()
    reasons = list(refusals)
    for kind in kinds:
        if reasons:
            _tell(kind, reasons)
        try:
            if not kind.folder or budget.is_memory(kind.folder):
                budget.check_room(size)
            return _make(kind, size)
        except OSError as error:
            if error.errno in SHORT:
                raise
            if error.errno not in FULL:
                raise OSError(
                    error.errno,
                    f"{SETTING}={kind.setting}: no memory of this kind can be made here "
                    f"({error.strerror}). Unset it to have one chosen that works, or set it to "
                    "file:DIRECTORY with a directory that you can write to.",
                ) from error
            free = f", {_free(kind)} are free in {kind.folder}" if kind.folder else ""
            reasons.append(f"{kind.setting}: {error.strerror}{free}")
    raise OutOfMemoryError(
        f"{budget.in_words(size)} of shared memory were asked for, which cannot be had "
        f"({'; '.join(reasons)}). Make room, or set {SETTING}=file:DIRECTORY with a directory "
        "that has more."
    )


def scratch_file() -> Descriptor:
    """Make a small file that grows as it is written, for locks and receipts."""
    kinds, _ = _automatic()  # not the setting: that is where large data lie, maybe on a network
    return kinds[0].open()


def choice() -> tuple[Kind, ...]:
    """Return the kinds to try, in that order, when memory is made now.

    Raises
    ------
    ValueError
        If the setting is none.
    """
    return _chosen()[0]


def hush() -> None:
    """Say nothing of fall-backs in this process: its owner has."""
    global _is_hushed
    _is_hushed = True


def _chosen() -> Choice:
    if os.name == "nt":
        raise NotBuiltYetError(
            "arrays in shared memory are not built for Windows yet. Use nbshare in WSL, the "
            "Windows Subsystem for Linux."
        )
    setting = _setting()
    kind, _, folder = setting.partition(":")
    if not setting:
        return _automatic()
    if setting in _KINDS:
        return (_KINDS[setting](),), ()
    if kind == "file" and os.path.isabs(folder):
        return (MappedFile(folder),), ()
    raise ValueError(
        f"{SETTING}={setting!r}: allowed are memfd, named, file, file:DIRECTORY with an absolute "
        "path, and nothing at all, to have one chosen that works."
    )


def _setting() -> str:
    # Asked for at each call. `os.environ.get` makes and catches a KeyError for what is not there.
    raw = getattr(os.environ, "_data", None)
    if raw is not None and _RAW_SETTING not in raw:
        return ""
    return os.environ.get(SETTING, "")


@cache
def _automatic() -> Choice:
    """Find out what works; after a memfd, whose room is all memory, there is nothing to try."""
    kinds: list[Kind] = []
    refusals: list[str] = []
    for setting, kind_of in _KINDS.items():
        try:
            kind = kind_of()
            new = _make(kind, mmap.PAGESIZE)
            mmap.mmap(new.file.fileno(), new.nbytes).close()  # not every file system allows that
        except OSError as error:
            if error.errno in SHORT:
                raise
            refusals.append(f"{setting}: {error.strerror}")
        else:
            kinds.append(kind)
            if setting == "memfd":
                break
    if not kinds:
        raise OSError(
            errno.ENOTSUP,
            f"no kind of shared memory can be made here ({'; '.join(refusals)}). Set {SETTING}="
            "file:DIRECTORY with a directory that you can write to.",
        )
    return tuple(kinds), tuple(refusals)


def _temporary() -> MappedFile:
    import tempfile  # late: with all it imports, 5 ms that hardly anybody needs

    return MappedFile(os.path.abspath(tempfile.gettempdir()))


# By their settings, the best one first.
_KINDS: dict[str, Callable[[], Kind]] = {
    "memfd": Memfd,
    "named": lambda: MappedFile("/dev/shm", "named"),  # noqa: S108
    "file": _temporary,
}


def _make(kind: Kind, nbytes: int) -> NewFile:
    try:
        file = kind.open()
        reserve(kind, file.fileno(), nbytes)
    except (ImportError, AttributeError) as error:  # this system's Python has not the call
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS)) from error
    return NewFile(file, nbytes, kind)


def reserve(kind: Kind, fd: int, nbytes: int) -> None:
    """Give memory of a kind its size.

    Raises
    ------
    OutOfMemoryError
        If a file may not be so large.
    """
    try:
        kind.reserve(fd, nbytes)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise OutOfMemoryError(
            f"{budget.in_words(nbytes)} of shared memory are more than a file may have here "
            f"({kind.setting}: {error.strerror}). Raise the limit on file size (ulimit -f), which "
            "holds for memory too, or use smaller arrays."
        ) from None


def _free(kind: Kind) -> str:
    return budget.in_words(budget.free_in(kind.folder))


def _tell(kind: Kind, reasons: list[str]) -> None:
    if _is_hushed or kind.setting in _told:
        return
    _told.add(kind.setting)
    warn(
        f"arrays lie in shared memory of the kind {kind.setting!r}, since others cannot be had "
        f"({'; '.join(reasons)}). All works, large arrays may be made more slowly. To choose it "
        f"yourself, without this warning, set {SETTING}={kind.setting}.",
        MemoryFallbackWarning,
    )
