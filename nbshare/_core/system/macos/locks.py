"""Locks between processes, which the kernel releases if their holder dies.

macOS has no mutexes that outlive their holder. A `nbshare.SharedLock` is therefore a byte at a
random offset of an empty file, which all processes of the user open. The kernel allows one process
at a time to lock the byte, and a table records the thread that holds it.

If the file is removed and created again, processes that open the new file do not exclude the
others. The memory of a lock therefore records the lock's file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
import threading
import time
import weakref
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from nbshare._core.system.descriptors import NOT_MINE, Descriptor, opened
from nbshare._core.system.macos.sections import folder
from nbshare._core.system.posix import FileLock, lock_file
from nbshare.errors import StaleReferenceError

PLACE_AT, FILE_AT = 8, 16  # offsets of the place and the inode, after the number of the holder
PLACES = 1 << 62
SHORT_S, LONG_S = 1e-4, 5e-3  # intervals of a waiting thread's checks
FLOCK = "qqihh"  # from sys/fcntl.h (start, length, process, type, whence)

_BUSY = (BlockingIOError, PermissionError)
SUPPORT = "Library", "Application Support", "nbshare"  # a folder in the user's home
GONE = (
    "this SharedLock cannot exclude this process from those that hold it open, because the file "
    f"~/{'/'.join(SUPPORT)}/locks, or nbshare-{os.geteuid()}.locks in the folder for temporary "
    "files, was removed since it was made. Restart this notebook's kernel, and all programs that "
    "share the lock, and keep the file while they run."
)


class _Thread:
    """An object that lives as long as its thread."""


class _Mutex(NamedTuple):
    place: int
    holder: ctypes.c_uint32  # a dead holder stays until the next thread acquires the mutex

    @property
    def value(self) -> int:
        """The number of the live thread that holds the lock, or 0."""
        holder = self.holder.value
        return holder if holder and mutexes().is_held(self.place) else 0


class _Mutexes:
    """Functions for mutexes in shared memory. Each takes a lock and returns an errno.

    The memory stores the number of the thread that holds the mutex, and its place in the file.
    """

    HOLDER = 0xFFFFFFFF

    def __init__(self) -> None:
        self._file = _file()
        self._inode = os.fstat(self._file.fileno()).st_ino
        self._local = threading.local()
        self._begin()
        os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        self._guard = threading.Lock()
        self._held: dict[int, weakref.ref[_Thread]] = {}  # by place, in this process
        self._asked: dict[int, float] = {}  # by place, the last check of a waiting thread

    def initialise(self, address: int) -> None:
        """Create a mutex in zeroed memory."""
        place = int.from_bytes(os.urandom(8), "little") % PLACES
        ctypes.c_uint64.from_address(address + PLACE_AT).value = place
        ctypes.c_uint64.from_address(address + FILE_AT).value = self._inode

    def at(self, address: int) -> tuple[_Mutex, _Mutex]:
        """Return the mutex at an address twice: as an argument for the functions, and as the word.

        Raises
        ------
        StaleReferenceError
            If the lock was created with a file other than this process's.
        """
        if ctypes.c_uint64.from_address(address + FILE_AT).value != self._inode:
            raise StaleReferenceError(GONE)
        word = ctypes.c_uint32.from_address(address)
        mutex = _Mutex(ctypes.c_uint64.from_address(address + PLACE_AT).value, word)
        return mutex, mutex

    def is_held(self, place: int) -> bool:
        """Return whether a live thread holds a mutex, without acquiring it."""
        if (holder := self._held.get(place)) is not None:
            return holder() is not None
        wanted = struct.pack(FLOCK, place, 1, 0, fcntl.F_WRLCK, os.SEEK_SET)
        found = fcntl.fcntl(self._file.fileno(), fcntl.F_GETLK, wanted)
        return struct.unpack(FLOCK, found)[3] != fcntl.F_UNLCK  # type: ignore[no-any-return]

    def _me(self) -> weakref.ref[_Thread]:
        if not hasattr(self._local, "me"):
            self._local.me = _Thread()
        return weakref.ref(self._local.me)

    # An interrupt may arrive between any two of the steps below. Afterwards the thread that the
    # table names may acquire the lock again, as long as the word is 0.

    def trylock(self, lock: Any) -> int:
        """Acquire a lock if it is free."""
        mutex: _Mutex = lock._as_parameter_
        with self._guard:
            if not self._lock(mutex):
                return errno.EBUSY
            was_held, mutex.holder.value = mutex.holder.value, threading.get_native_id()
            return errno.EOWNERDEAD if was_held else 0

    def _lock(self, mutex: _Mutex) -> bool:
        me = self._me()
        if (holder := self._held.get(mutex.place, me)) != me and holder() is not None:
            return False
        self._held[mutex.place] = me
        try:
            fcntl.lockf(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, mutex.place)
        except _BUSY:
            del self._held[mutex.place]
            return False
        return True

    def _unlock(self, mutex: _Mutex) -> None:
        fcntl.lockf(self._file.fileno(), fcntl.LOCK_UN, 1, mutex.place)
        del self._held[mutex.place]

    def timedlock(self, lock: Any, until: float) -> int:
        """Acquire a lock, waiting at most until the system clock reaches `until`."""
        place, wait_s = lock._as_parameter_.place, SHORT_S
        while (code := self.trylock(lock)) == errno.EBUSY and time.time() < until:
            self._asked[place] = time.monotonic()
            time.sleep(wait_s)
            wait_s = SHORT_S if place in self._held else min(2 * wait_s, LONG_S)
        self._asked.pop(place, None)
        return code

    def consistent(self, lock: Any) -> None:
        """No-op, because a dead holder leaves nothing to repair in a mutex."""

    def unlock(self, lock: Any) -> None:
        """Release a lock.

        Raises
        ------
        RuntimeError
            If this thread does not hold the lock.
        """
        mutex: _Mutex = lock._as_parameter_
        with self._guard:
            if self._held.get(mutex.place) != self._me():
                raise RuntimeError(NOT_MINE)
            if mutex.holder.value == threading.get_native_id():
                mutex.holder.value = 0
            self._unlock(mutex)
        if time.monotonic() < self._asked.get(mutex.place, 0.0) + LONG_S:
            time.sleep(0)  # yield to the other thread, because this one may soon acquire it again

    def has_thread(self, number: int) -> bool:  # noqa: ARG002
        """Return False, because a held lock here does not need its memory."""
        return False


mutexes = cache(_Mutexes)


def _file() -> Descriptor:
    """Open the file that contains all locks of this user.

    The file is in a folder where the system removes no files. If the home folder is missing, or is
    on a server that refuses locks, a temporary folder is used, where the system removes files that
    were unused for three days.
    """
    with suppress(OSError, KeyError):
        os.makedirs(support := _support(), exist_ok=True)
        file = _opened(os.path.join(support, "locks"))
        with suppress(*_BUSY):
            fcntl.lockf(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, PLACES)
            fcntl.lockf(file.fileno(), fcntl.LOCK_UN, 1, PLACES)
        return file
    return _opened(os.path.join(folder(), f"nbshare-{os.geteuid()}.locks"))


def _support() -> str:
    """Return the folder for nbshare's permanent files of this user, whatever HOME is."""
    import pwd  # late, because few processes need it

    return os.path.join(pwd.getpwuid(os.geteuid()).pw_dir, *SUPPORT)


def _opened(path: str) -> Descriptor:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    return opened(os.open, path, flags, 0o600)


def timespec(until: float) -> float:
    """Return the time for `timedlock` unchanged."""
    return until
