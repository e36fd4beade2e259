"""The one process that may write to a checkpoint, known by who it is and not by a file it leaves.

A lock of the kernel's goes with its process, however that ends. It may not reach other hosts, and
some file systems refuse it; so the writer also says in a file who it is, and renews that.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from nbshare.checkpoint import files
from nbshare.errors import CheckpointInUseError, CheckpointWarning, warn
from nbshare.memory import has_ended, identity

__all__ = ["Writer", "boot_id", "writer_of"]

LEASE_S = 60.0  # a writer on another host that has not been heard of for so long is gone
RENEW_S = 10.0
NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
LEASE = "lease.json"

_held: set[tuple[int, int]] = set()  # folders that this process writes to: locks are per process


def boot_id() -> str:
    """Return what is another one after each start of the machine; empty where nobody knows."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def writer_of(folder: Path) -> dict[str, Any] | None:
    """Return who has written to a checkpoint last; None if nobody has."""
    try:
        return dict(json.loads((folder / LEASE).read_text()))
    except (OSError, ValueError):
        return None


class Writer:
    """Who alone may write to a folder: this process.

    Parameters
    ----------
    folder : Path
        The checkpoint.

    Attributes
    ----------
    is_new_boot : bool
        Whether the writer before ended in the middle, and the machine was started since: what was
        written may not have reached the disk.

    Raises
    ------
    CheckpointInUseError
        If another one lives.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        status = folder.stat()
        self._place = status.st_dev, status.st_ino
        if self._place in _held:
            raise CheckpointInUseError(f"{folder}: another run of this process writes to it")
        self._fd = files.system.open(folder / "lock", os.O_RDWR)
        try:
            self._lock()
            before = writer_of(folder)
            if before is not None and not before["ended"]:
                self._refuse_if_alive(before)
            self.is_new_boot = bool(before and not before["ended"] and before["boot"] != boot_id())
            pid, start = identity()
            self._me = {
                "host": socket.gethostname(),
                "boot": boot_id(),
                "pid": pid,
                "start": start,
                "nonce": secrets.token_hex(8),
                "ended": False,
            }
            self._say()
        except BaseException:
            os.close(self._fd)
            raise
        _held.add(self._place)
        self._renewed_at = time.monotonic()

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in NO_LOCKS:
                warn(
                    f"{self._folder}: the file system refuses locks ({error.strerror}); do not "
                    "run two processes with this checkpoint at the same time",
                    CheckpointWarning,
                )
                return
            if error.errno not in (errno.EACCES, errno.EAGAIN):
                raise
            raise CheckpointInUseError(_refusal(self._folder, writer_of(self._folder))) from None

    def _refuse_if_alive(self, before: dict[str, Any]) -> None:
        if before["host"] == socket.gethostname():
            who = before["pid"], before["start"]
            is_other = who[0] != os.getpid()
            is_alive = is_other and before["boot"] == boot_id() and not has_ended(who)
        else:
            is_alive = self._age_s() < LEASE_S
        if is_alive:
            raise CheckpointInUseError(_refusal(self._folder, before))

    def _age_s(self) -> float:
        """Return how old the lease is by the clock of the file system."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_mtime - (self._folder / LEASE).stat().st_mtime

    def _say(self) -> None:
        files.replace(self._folder / LEASE, json.dumps(self._me).encode())

    def renew(self) -> bool:
        """Say that this process lives, now and then; returns whether the folder is still there."""
        if time.monotonic() < self._renewed_at + RENEW_S:
            return True
        self._renewed_at = time.monotonic()
        try:
            status = self._folder.stat()
            os.utime(self._folder / LEASE)
        except OSError:
            return False
        return (status.st_dev, status.st_ino) == self._place

    def close(self, *, is_whole: bool) -> None:
        """Let others write; `is_whole`: whether all that was stored is on its way to the disk."""
        if self._place not in _held:
            return
        try:
            if is_whole:
                self._me["ended"] = True
                self._say()
        finally:
            _held.discard(self._place)
            os.close(self._fd)  # which drops the lock


def _refusal(folder: Path, who: dict[str, Any] | None) -> str:
    name = f"process {who['pid']} on {who['host']}" if who else "another process"
    return (
        f"{folder}: {name} is writing to this checkpoint. Wait for its end or stop it; "
        f"nbshare.open_checkpoint({str(folder)!r}) shows how far it is."
    )
