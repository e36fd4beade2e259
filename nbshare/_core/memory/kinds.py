"""The kinds of memory, and the choice of a kind. Processes share unnamed files.

=======  ======================  ====================  ===================================
kind     made of                 room                  protected from other writers by
=======  ======================  ====================  ===================================
memfd    anonymous memory        memory                a seal
named    a file in ``/dev/shm``  memory, ``/dev/shm``  read-only descriptors
file     a file in a directory   the directory's       read-only descriptors
private  memory without a file   memory                being mapped by no other process
=======  ======================  ====================  ===================================

Without a seal, a process of the same user can still write on purpose: it can change the file's mode
and open the descriptor again through ``/proc``, which no bug does by chance. Read-only descriptors
are opened through ``/proc``. Without ``/proc``, a memfd is therefore the only kind.

A file in a directory loses its name immediately, so no file can be left behind. Other processes
receive its descriptor, or open it through ``/proc``. Names are random, so a name identifies a file.

The environment variable ``NBSHARE_MEMORY`` is ``memfd``, ``named``, ``file`` (in the directory for
temporary files) or ``file:/some/directory``, where data may be larger than memory. The variable is
read whenever memory is created. If it is unset, the first kind in the table that the system allows
is used, with one warning if that is not the first of all.

On Windows the only kind is ``section``, memory of the paging file under a random name, which the
system frees with the last process that has it open. On macOS it is ``shm``, memory of ``shm_open``,
which loses its name immediately.

Private memory is for calls whose items run in this process. On other systems it is the only kind,
so SharedArrays are private, too, and are sent to other processes by value.
"""

from __future__ import annotations

import errno
import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple, TypeAlias

from nbshare._core.memory import budget
from nbshare._core.messages import warn
from nbshare._core.system import SYSTEM, Descriptor, files, sections
from nbshare.errors import NotBuiltYetError, OutOfMemoryError

SETTING = "NBSHARE_MEMORY"

FULL = {errno.ENOSPC, errno.EDQUOT}
SHORT = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}  # temporary shortages: the kind works

_is_silent = False


class Private(NamedTuple):
    """Memory without a file, created by its mapping."""

    setting: str = "private"
    folder: str = ""


MemoryKind: TypeAlias = "sections.Shared | Private"


def can_share() -> bool:
    """Return whether processes can share memory on this system."""
    return SYSTEM != "elsewhere"


def need_shared(what: str, instead: str) -> None:
    """Raise NotBuiltYetError if processes cannot share memory here."""
    if not can_share():
        raise NotBuiltYetError(
            f"{what} needs Linux, macOS or Windows: use nbshare in a Linux container, or {instead}"
        )


def new_memory(
    nbytes: int, *, is_private: bool, grows: bool
) -> tuple[MemoryKind, Descriptor | None, int]:
    """Allocate memory of at least `nbytes`.

    Returns
    -------
    tuple of MemoryKind, Descriptor or None, and int
        The kind, fresh zeroed memory in whole pages, and its size in bytes. Private memory has no
        descriptor, because its mapping creates it.

    Raises
    ------
    OutOfMemoryError
        If the machine, its container or the directory has too little left.
    OSError
        If no kind of memory works here, or the requested kind does not.
    """
    size = budget.aligned(max(nbytes, 1), mmap.PAGESIZE)
    is_shared = can_share() and not is_private
    kind = _chosen(os.environ.get(SETTING, ""), _temporary()) if is_shared else Private()
    if not kind.setting.startswith("file"):  # `made` checks the room of a directory
        budget.check_room(size)
    if isinstance(kind, Private):
        return kind, None, size
    with _words_for_full(kind, size):
        return kind, sections.made(kind, size, grows=grows), size


def scratch_file() -> Descriptor:
    """Create a small file that grows as it is written, for locks and receipts."""
    # The setting does not apply, because it is for large data, maybe on a network disk.
    return _chosen("", _temporary()).open()


@cache
def _chosen(setting: str, temporary: str) -> sections.Shared:
    """Return the first kind that both the setting and the system allow."""
    reasons: list[str] = []
    code = 0
    for kind in _allowed(setting, temporary):
        try:
            with _words_for_full(kind, mmap.PAGESIZE):
                sections.made(kind, mmap.PAGESIZE, grows=False)
        except (OSError, ImportError, AttributeError) as error:
            code = getattr(error, "errno", errno.ENOSYS)  # Python lacks the call on this system
            if code in SHORT:
                raise
            reasons.append(f"{kind.setting}: {getattr(error, 'strerror', os.strerror(code))}")
        else:
            if reasons and not _is_silent:
                warn(
                    f"arrays use shared memory of the kind {kind.setting!r}, because other kinds "
                    f"do not work here ({'; '.join(reasons)}). Creating large arrays may be "
                    "slower. To choose it yourself, without this warning, set "
                    f"{SETTING}={kind.setting}.",
                    UserWarning,
                )
            return kind
    remedies = ["Unset it to use a kind that works"] if setting else []
    if sections.CAN_BE_FILES:
        remedies.append(f"Set {SETTING}=file:DIRECTORY, with a directory that you can write to")
    remedies.append('Use backend="threads" or "serial", which need no shared memory')
    raise OSError(
        code,
        f"{SETTING}={setting}: no memory of this kind can be made here ({'; '.join(reasons)}). "
        f"{'. Or '.join(remedies)}.",
    )


def silence_warnings() -> None:
    """Suppress warnings of fallbacks in this process, because its owner has shown them."""
    global _is_silent
    _is_silent = True


def is_chosen(kind: MemoryKind | None) -> bool:
    """Return whether the current setting allows memory of this kind."""
    setting = os.environ.get(SETTING, "")
    return kind is not None and setting in ("", kind.setting, kind.setting.partition(":")[0])


def _temporary() -> str:
    return os.path.abspath(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def _allowed(setting: str, temporary: str) -> list[sections.Shared]:
    """Return the kinds that a setting allows, the best kind first."""
    known = sections.kinds(temporary)
    word, _, folder = setting.partition(":")
    if word == "file" and os.path.isabs(folder):
        return [sections.in_folder(setting, folder)]
    if setting and setting not in known:
        files = ", file:DIRECTORY with an absolute path" if sections.CAN_BE_FILES else ""
        raise ValueError(
            f"{SETTING}={setting!r} is not allowed: set {', '.join(known)}{files}, or leave it "
            "unset to use a kind that works"
        )
    return [known[setting]] if setting else list(known.values())


def grow(kind: sections.Shared, fd: int, nbytes: int) -> None:
    """Enlarge memory of a kind.

    Raises
    ------
    OutOfMemoryError
        If there is no room, or the size exceeds the limit for files.
    """
    with _words_for_full(kind, nbytes):
        kind.grow(fd, nbytes)


@contextmanager
def _words_for_full(kind: sections.Shared, nbytes: int) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno == errno.EFBIG:
            why = (
                f"exceeds the size limit of files here ({kind.setting}: {error.strerror}). Raise "
                "the limit (ulimit -f), which applies to memory, too, or use smaller arrays"
            )
        elif error.errno in FULL:
            free = budget.in_words(files.free_in(kind.folder))
            why = f"was requested, but only {free} is free in {kind.folder}. Make room"
            if sections.CAN_BE_FILES:
                why += f", or set {SETTING}=file:DIRECTORY with a directory that has more space"
        else:
            raise
        raise OutOfMemoryError(f"{budget.in_words(nbytes)} of shared memory {why}.") from None
