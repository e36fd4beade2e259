"""macOS, played on Linux in each interpreter that starts with this folder on ``PYTHONPATH``.

The parts that macOS lacks are taken away, from Python and from nbshare, and those that it has and
Linux lacks are played: functions of its library, shared memory whose size is set once and that is
no file. It shows that nbshare does with a Mac's calls, and not that it works on a Mac.
"""

from __future__ import annotations

import _socket
import builtins
import ctypes
import errno
import fcntl
import io
import mmap
import os
import select
import signal
import struct
import sys
import time

CALLS = {
    os: """
        memfd_create MFD_CLOEXEC MFD_ALLOW_SEALING pidfd_open eventfd eventfd_read eventfd_write
        EFD_CLOEXEC EFD_NONBLOCK EFD_SEMAPHORE pipe2 posix_fallocate posix_fadvise fdatasync
        sched_getaffinity sched_setaffinity waitid getrandom copy_file_range splice O_PATH O_TMPFILE
        O_DIRECT getxattr setxattr listxattr removexattr getresuid setresuid
    """,
    select: """
        epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP EPOLLET EPOLLONESHOT EPOLLEXCLUSIVE EPOLL_CLOEXEC
    """,
    signal: "sigtimedwait sigwaitinfo SIGRTMIN SIGRTMAX SIGPWR SIGSTKFLT SIGCLD SIGPOLL",
    _socket: """
        SOCK_SEQPACKET SOCK_CLOEXEC SOCK_NONBLOCK MSG_NOSIGNAL MSG_CMSG_CLOEXEC SO_PASSCRED
        SO_PEERCRED
    """,
    mmap: "MADV_REMOVE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MAP_POPULATE MAP_NORESERVE",
    fcntl: "F_ADD_SEALS F_GET_SEALS F_SETPIPE_SZ F_GETPIPE_SZ F_OFD_SETLK F_OFD_SETLKW F_NOTIFY",
    time: "CLOCK_BOOTTIME CLOCK_TAI",
}
HIDDEN = ("/proc/", "/sys/", "/dev/shm")
LIBRARY = "/usr/lib/libSystem.B.dylib"
FLOCK = "hhqqi4x"  # Linux's
TICK_US = 10**6 // os.sysconf("SC_CLK_TCK")
NO_SHM = os.stat("/dev/shm").st_dev if os.path.exists("/dev/shm") else -1

_fstat = os.fstat
_open = builtins.open
# The same in each process, with more digits than /proc/stat has.
_boot_s = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
_boot_us = int(os.environ.setdefault("PLAYED_BOOT_US", f"{1e6 * _boot_s:.0f}"))


def _asks_nbshare() -> bool:
    return sys._getframe(2).f_globals.get("__name__", "").startswith("nbshare.")


def _without_hidden(function):
    def call(path=".", *args, **kwargs):
        if str(path).startswith(HIDDEN) and _asks_nbshare():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return function(path, *args, **kwargs)

    return call


def _is_shared(fd) -> bool:
    return isinstance(fd, int) and fd >= 0 and _fstat(fd).st_dev == NO_SHM


def _not_for_shared(function):
    """Refuse what shared memory has not, as it can only be mapped."""

    def call(fd, *args, **kwargs):
        if _asks_nbshare() and _is_shared(fd):
            raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
        return function(fd, *args, **kwargs)

    return call


def _once(ftruncate):
    def call(fd, nbytes):
        if _asks_nbshare() and _is_shared(fd) and _fstat(fd).st_size:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return ftruncate(fd, nbytes)

    return call


def _fstat_of_macos(fd):
    if _asks_nbshare() and _is_shared(fd):
        return os.stat_result((0o600, 0, 0, 0, 0, 0, _fstat(fd).st_size, 0, 0, 0))
    return _fstat(fd)


def _with_flock_of_macos(function):
    def call(fd, command, argument=0):
        if command != fcntl.F_GETLK or not _asks_nbshare():
            return function(fd, command, argument)
        *place, pid, kind, whence = struct.unpack("qqihh", argument)
        found = function(fd, command, struct.pack(FLOCK, kind, whence, *place, pid))
        kind, whence, *place, pid = struct.unpack(FLOCK, found)
        return struct.pack("qqihh", *place, pid, kind, whence)

    return call


def _without_name(shm_open):
    def call(path, flags, mode=0o777):
        if len(path) > 31:
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        return shm_open(path, flags, mode=mode)

    return call


class _Library:
    """Functions of macOS's library, by Linux's files."""

    def __getattr__(self, name):
        raise AttributeError(name)

    class proc_pidinfo:
        argtypes = None

        def __new__(cls, pid, flavor, address, place, size):
            try:
                with _open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                return 0
            if fields[0] in b"ZX":
                return 0
            info = place._obj
            if flavor == 3:
                since_us = _boot_us + (int(fields[19]) + 1) * TICK_US  # rounded up
                info.pid, info.start_s, info.start_us = pid, *divmod(since_us, 10**6)
            elif flavor == 8:
                with _open(f"/proc/{pid}/maps", "rb") as file:
                    rows = [line.rstrip(b"\n").split(maxsplit=5) for line in file]
                for span, _, offset, _, inode, *path in rows:
                    first, end = (int(x, 16) for x in span.split(b"-"))
                    if address < end:
                        info.address, info.size, info.offset = first, end - first, int(offset, 16)
                        info.inode, info.path = int(inode), b"".join(path)
                        break
            return size

    n_fences = 0

    def OSMemoryBarrier(self):
        type(self).n_fences += 1


class _CDLL(ctypes.CDLL):
    def __new__(cls, name, *_, **__):
        return _Library() if name == LIBRARY else super().__new__(cls)


ctypes.CDLL = _CDLL

import _posixshmem  # noqa: E402

_posixshmem.shm_open = _without_name(_posixshmem.shm_open)
for module, names in CALLS.items():
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
for where, names in ((builtins, "open"), (io, "open"), (os, "open stat listdir scandir readlink")):
    for name in names.split():
        setattr(where, name, _without_hidden(getattr(where, name)))
for where, names in ((os, "read write pread pwrite"), (fcntl, "lockf flock")):
    for name in names.split():
        setattr(where, name, _not_for_shared(getattr(where, name)))
os.ftruncate = _once(os.ftruncate)
os.fstat = _fstat_of_macos
fcntl.fcntl = _with_flock_of_macos(fcntl.fcntl)
