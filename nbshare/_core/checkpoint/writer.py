"""The one process that may write to a checkpoint.

The writer holds a lock, which the kernel releases when the process ends, however it ends. Other
hosts may not see the lock, and some file systems refuse locks, so the writer also stores its
identity in a file, the lease, and renews it.
"""

from __future__ import annotations

import errno
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, cast

from nbshare._core.memory import disk
from nbshare._core.messages import warn
from nbshare._core.store import files
from nbshare._core.system import Descriptor, locks, processes
from nbshare._core.system import files as system_files
from nbshare.errors import CheckpointInUseError, CheckpointWarning

# A single run; a process that shares a run, and writes to a part; or such a process that begins the
# run or merges its parts.
Role = Literal["run", "part", "opener"]
# The lease of a writer on another host expires after this time. It is shorter for parts, which are
# never written by two processes: a mistake only repeats a few items.
LEASE_S = {"run": 60.0, "part": 20.0, "opener": 60.0}
RENEWALS = 6  # number of renewals in this time
PARTS = "parts"
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LEASE = "lease.json"

is_driver = False  # whether this process only drives a run, so that others may interrupt it
# By process and folder, because locks belong to processes, and forked ones have a copy of this.
_writers: dict[tuple[int, int, int], Writer] = {}


def part_folders(folder: Path) -> list[Path]:
    """Return the folders of the parts of processes that share a run."""
    files.check_folder(folder / PARTS)
    with suppress(FileNotFoundError):  # the parts were just merged
        leases = files.read_current(lambda parts: [*parts.glob(f"*/{LEASE}")], folder / PARTS)
        parts = sorted(lease.parent for lease in leases)
        for part in parts:
            files.check_folder(part)
        return parts
    return []


def writer_of(folder: Path) -> dict[str, Any] | None:
    """Return the lease of a checkpoint, which describes its last writer, or None."""
    return cast("dict[str, Any] | None", files.read_json(folder / LEASE, None))


def is_alive(folder: Path, other: dict[str, Any]) -> bool:
    """Return whether the writer of a checkpoint is still running, as far as known."""
    if is_here(other):
        with suppress(OSError):
            here = folder.stat().st_ino
            if other.get("folder", here) != here:  # the folder was copied during the run
                return False
        if other["boot"] != processes.boot_id():
            return False
        if (has_ended := _has_ended(other)) is not None:
            return not has_ended
        # The process id belongs to another user, as after a restart of the machine. Only the lease
        # decides, as for a writer on another host.
    with suppress(OSError):
        now_s = time.time()
        with suppress(OSError):  # without the right to write, the local clock must do
            follows = os.utime not in os.supports_follow_symlinks  # Windows only follows links
            os.utime(folder / "lock", follow_symlinks=follows)
            now_s = os.lstat(folder / "lock").st_mtime  # the file system's clock
        if (file := files.opened(folder / LEASE)) is not None:  # by opening, NFS asks its server
            age_s = now_s - os.fstat(file.fileno()).st_mtime
            return age_s < LEASE_S[other.get("role", "run")]
    return False


def _has_ended(other: dict[str, Any]) -> bool | None:
    """Return whether a writer on this host has ended, or None if another user has its id."""
    return processes.has_ended((other["pid"], other["start"]))


def is_of_this_boot(other: dict[str, Any]) -> bool:
    """Return whether the writes of an ended writer cannot be lost by a power failure."""
    # Without boot ids, the machine may have been restarted.
    return bool(processes.boot_id()) and other["boot"] == processes.boot_id()


def is_here(other: dict[str, Any]) -> bool:
    """Return whether the writer of a checkpoint is on this host and in this container."""
    me = this_process()
    return (other["host"], other.get("pids", me["pids"])) == (me["host"], me["pids"])


def this_process() -> dict[str, Any]:
    """Return the identity of this process, unique among all hosts and times."""
    pid, start = processes.identity()
    me: dict[str, Any] = {"host": socket.gethostname(), "boot": processes.boot_id()}
    me |= {"pid": pid, "start": start, "pids": 0}
    with suppress(OSError):  # containers may share a host name, but not process ids
        me["pids"] = processes.number_space()
    return me


def check_free(folder: Path, *, has_lock: bool = False) -> None:
    """Raise CheckpointInUseError if another process writes to a checkpoint or a part of it.

    `has_lock` is whether this process holds the lock of the checkpoint.
    """
    me = this_process()
    for each in (folder, *part_folders(folder)):
        other = running_writer_of(each)
        if other is None or not me.items() - other.items():
            continue
        if has_lock and each == folder and is_here(other) and _has_ended(other) is None:
            continue  # it has ended, because this process has its lock
        raise CheckpointInUseError(_refusal(folder, other))


def running_writer_of(folder: Path) -> dict[str, Any] | None:
    """Return the lease of a checkpoint if its writer is running, else None."""
    other = writer_of(folder)
    return None if other is None or other["ended"] or not is_alive(folder, other) else other


class Writer:
    """The exclusive right of this process to write to a folder.

    Parameters
    ----------
    folder : Path
        The checkpoint.
    role : Role, default "run"
        The purpose of writing.

    Raises
    ------
    CheckpointInUseError
        If another writer is running.
    """

    def __init__(self, folder: Path, role: Role = "run") -> None:
        self._folder, self._renew_s = folder, LEASE_S[role] / RENEWALS
        status = folder.stat()
        self._place = os.getpid(), status.st_dev, status.st_ino
        self._file: Descriptor | None = None
        try:
            if _writers.setdefault(self._place, self) is not self:  # even if of another thread
                raise CheckpointInUseError(f"{folder}: another run of this process writes to it")
            self._file = disk.open_own(folder / "lock", os.O_RDWR | os.O_CREAT)
            check_free(folder, has_lock=self._lock(self._file))
            self._me = this_process() | {"role": role, "is_driver": is_driver}
            self._me |= {"nonce": secrets.token_hex(8)}
            self._me |= {"folder": status.st_ino, "ended": False}
        except BaseException:
            self._release()
            raise
        self._renewed_at = time.monotonic()

    def take(self, **told: Any) -> None:
        """Write the lease. `told` has its contents about the run."""
        self._me |= told
        files.replace_json(self._folder / LEASE, self._me, is_needed=False)

    def _lock(self, file: Descriptor) -> bool:
        """Lock the folder. Return whether the file system supports it."""
        try:
            locks.lock_file(file.fileno())
            return True
        except (BlockingIOError, PermissionError):
            raise CheckpointInUseError(_refusal(self._folder, writer_of(self._folder))) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
            warn(
                f"{self._folder}: the file system refuses locks ({error.strerror}). Do not run two "
                "processes with this checkpoint at the same time.",
                CheckpointWarning,
            )
            return False

    def renew(self) -> bool:
        """Renew the lease at intervals.

        Return whether folder and lease still belong to this writer.
        """
        try:
            status = self._folder.stat()
            if time.monotonic() > self._renewed_at + self._renew_s:
                if not self._has_lease():
                    return False
                self._renewed_at = time.monotonic()
                os.utime(self._folder / LEASE)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._place[1:]

    def _has_lease(self) -> bool:
        """Return whether the lease still belongs to this writer."""
        return bool((writer_of(self._folder) or {}).get("nonce") == self._me["nonce"])

    def close(self, *, is_whole: bool, **told: Any) -> None:
        """Release the lease and the lock. `is_whole` is whether all results were written."""
        if self._has_lease():
            boot = self._me["boot"] if is_whole else None  # None makes readers check all results
            try:
                self.take(ended=time.time(), boot=boot, **told)
            except OSError:
                with suppress(OSError):  # the folder may be writable in the next call
                    system_files.remove(self._folder / LEASE)
        self._release()

    def _release(self) -> None:
        if _writers.get(self._place) is self:
            del _writers[self._place]
        file, self._file = self._file, None
        if file is not None:
            file.close()  # this releases the lock


def _refusal(folder: Path, other: dict[str, Any] | None) -> str:
    name = f"process {other['pid']} on {other['host']}" if other else "another process"
    is_unsure = other is not None and (not is_here(other) or _has_ended(other) is None)
    return (
        f"{folder}: {name} is writing to this checkpoint. Wait until it ends, or stop it. "
        f"nbshare.attach({str(folder)!r}) shows it, and its Stop button ends a detached run."
        f"{' If it was killed, try again in a minute.' if is_unsure else ''}"
    )
