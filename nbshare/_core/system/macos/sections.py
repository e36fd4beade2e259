"""Memory that processes share, as POSIX shared memory whose name is removed immediately.

The system reports neither an inode nor a name of such an object. The size can be set only once, and
the object can be mapped, but not read, written or locked as a file. Its descriptor here therefore
stores the name and the size, which are sent with it to other processes (`waiting`). Memory that
grows reserves as much as the machine has, because pages take memory only when they are first
touched. Each object is opened twice, the second time read-only, for workers that must not write.

A process that is killed between the call that creates an object and the one that removes its name
leaves that name until the machine is restarted.

Processes such as the readers of a queue request memory by name.

::

    receiver                                        sender of a reference
    connect to the socket of its number  ────────►  accept, in a thread
    number and name of a descriptor      ────────►  is the name still the same?
    descriptor                           ◄────────  send the descriptor, or none
"""

from __future__ import annotations

import _posixshmem  # type: ignore[import-not-found]
import _socket
import _thread
import atexit
import errno
import os
import pickle
import weakref
from contextlib import closing, suppress
from typing import Any, ClassVar, NamedTuple

from nbshare._core.interrupts import uninterrupted
from nbshare._core.system import posix
from nbshare._core.system.descriptors import Descriptor, MemoryFd, OwnedFd, with_room
from nbshare._core.system.macos import library, processes, waiting
from nbshare._core.system.macos.processes import has_ended
from nbshare._core.system.portable import (
    CAN_BE_FILES,
    CAN_WRITE,
    PRIVATE,
    bytes_held,
    free,
    in_folder,
    new_name,
)
from nbshare._core.system.posix import at_fork, file_at, sweep, unnamed_file


class MachMemory(NamedTuple):
    """Memory without a file. Only `open` creates a file, a small one, in `temporary`."""

    setting: str = "shm"  # its name for users
    folder: str = ""
    temporary: str = ""

    def open(self) -> Descriptor:
        """Create an empty file, which grows as it is written."""
        return unnamed_file(self.temporary, has_ended)

    def grow(self, fd: int, nbytes: int) -> None:
        """Use a larger part of the reserved memory."""
        assert isinstance(fd, MemoryFd)
        if nbytes > fd.reserved:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fd.nbytes = nbytes

    def protect(self, fd: int) -> None:
        """No-op, because workers receive a read-only descriptor."""


Shared = MachMemory


class Memory(OwnedFd):
    """A descriptor of shared memory and its read-only twin, which close with this object."""

    all: ClassVar[weakref.WeakValueDictionary[int, Memory]] = weakref.WeakValueDictionary()

    def __init__(self, handle: MemoryFd) -> None:
        super().__init__(handle)
        self._reader = OwnedFd(handle.reader)
        self.all[int(handle)] = self

    def close(self) -> None:
        """Close the memory and its descriptors now."""
        super().close()
        self._reader.close()

    __del__ = close


def kinds(temporary: str) -> dict[str, MachMemory]:
    """Return the kinds by their settings."""
    return {"shm": MachMemory(temporary=temporary)}


def made(_kind: MachMemory, nbytes: int, *, grows: bool) -> Descriptor:
    """Allocate zeroed memory of this size.

    For growing memory, reserve as much as the machine has.
    """
    reserved = max(nbytes, processes.total_bytes()[0]) if grows else nbytes
    name = new_name()
    with uninterrupted():
        memory = with_room(lambda: _opened(name, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        try:
            reader = with_room(lambda: _opened(name, os.O_RDONLY))
        except BaseException:
            os.close(memory)
            raise
        finally:
            _posixshmem.shm_unlink(f"/{name}")
        handle = MemoryFd(memory).of(name, nbytes, reserved)
        handle.reader = reader
        owner = Memory(handle)
        os.ftruncate(memory, reserved)
    return owner


def _opened(name: str, flags: int) -> int:
    fd: int = _posixshmem.shm_open(f"/{name}", flags, mode=0o600)
    return fd


def mapping(fd: int, nbytes: int, mode: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments with which `mmap.mmap` maps memory in a mode of `numpy.memmap`.

    All reserved memory is mapped, so growing memory need not be mapped again.
    """
    most = max(nbytes, fd.reserved) if isinstance(fd, MemoryFd) else nbytes
    return posix.mapping(int(fd), most, mode)


def is_written(_address: int, _nbytes: int) -> bool:
    """Return True, because writes to a copy-on-write mapping are not recorded."""
    return True


def size_of(fd: int) -> int:
    """Return the size of memory, or of a file, in bytes."""
    return fd.nbytes if isinstance(fd, MemoryFd) else os.fstat(fd).st_size


def key_of(fd: int) -> tuple[Any, ...]:
    """Return a tuple that identifies the memory of a descriptor.

    Its last element is the size in bytes.
    """
    return name_of(fd), size_of(fd)


def inode_of(_fd: int) -> int:
    """Return 0, because there is no file under memory, and begin to lend descriptors."""
    lend()
    return 0


def owned(fd: int) -> Descriptor:
    """Wrap a descriptor of memory or of a small file. The descriptor closes with the wrapper."""
    return Memory(fd) if isinstance(fd, MemoryFd) else OwnedFd(fd)


def duplicate(fd: int) -> Descriptor:
    """Open memory again."""
    return _again(fd, fd)


def read_only(fd: int) -> Descriptor:
    """Open a read-only descriptor of shared memory."""
    assert isinstance(fd, MemoryFd)
    return _again(fd, fd if fd.reader < 0 else fd.reader)


def _again(fd: int, number: int) -> Descriptor:
    assert isinstance(fd, MemoryFd)
    return Memory(MemoryFd(with_room(lambda: os.dup(number))).of(*fd.facts()))


def open_of(pid: int, fd: int, _inode: int, name: str, access: int) -> Descriptor:
    """Open memory, or a small file, of another process.

    Raises
    ------
    FileNotFoundError
        If the process has ended, or has closed the section.
    """
    return borrowed(pid, fd, name, access)


def mapped_file(address: int, memmap: Any) -> tuple[str, tuple[int, int], int]:
    """Find the file that `numpy.memmap` has mapped at an address.

    Returns
    -------
    tuple of str, tuple of int, and int
        The file's path, inode and device, and the address at which its first byte would be.

    Raises
    ------
    OSError
        If the array's mapping is copy-on-write, or the file was removed.
    """
    region = library.process(os.getpid(), library.Region, address)
    if memmap.mode == "c" or region is None or region.address > address:
        raise FileNotFoundError
    path = os.fsdecode(region.path)
    identity = file_at(path)
    if identity[0] != region.inode:
        raise FileNotFoundError
    return path, identity, region.address - region.offset


# ------------------------------------------------------------- handles for other processes

USER_TEMPORARY = 65537  # _CS_DARWIN_USER_TEMP_DIR of unistd.h
MOST = 1 << 12  # largest size of a request, in bytes
REPLY_S = 10.0  # time for the other side, which may be paused
FILE = "file-"  # begins the names of files. The rest is the inode.

_listening: list[_socket.socket] = []  # only the last socket can be reached


def folder() -> str:
    """Return a directory to which all processes of this user, and no others, can write."""
    with suppress(OSError, ValueError):  # where tests play macOS
        if found := os.confstr(USER_TEMPORARY):
            return found
    return "/tmp"  # noqa: S108


def _path(pid: int) -> str:
    return os.path.join(folder(), f"nbshare-{pid:x}-{0:014x}")


def lend() -> None:
    """Begin to serve other processes' requests for descriptors.

    The system removes the socket's file after three days without use, so it is created again.
    """
    path = _path(os.getpid())
    if _listening and _touched(path):
        return
    sweep(folder(), has_ended)
    listening = _socket.socket(_socket.AF_UNIX)
    with suppress(FileNotFoundError):
        os.unlink(path)  # left by an earlier process with this id
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen()
    _listening.append(listening)
    atexit.register(_end, os.getpid())
    _thread.start_new_thread(_serve, (listening,))


def _touched(path: str) -> bool:
    """Update the time of a file's last use, and return whether the file exists."""
    with suppress(OSError):
        os.utime(path)
    return os.path.exists(path)


def _end(pid: int) -> None:
    with suppress(FileNotFoundError):
        os.unlink(_path(pid))


def _forget() -> None:
    for listening in _listening:
        listening.close()
    _listening.clear()
    atexit.unregister(_end)


at_fork(after_in_child=_forget)


def _serve(listening: _socket.socket) -> None:
    while True:
        fd, _ = listening._accept()  # type: ignore[attr-defined]  # as in socket.socket
        with suppress(OSError, EOFError), closing(waiting.End(fd)) as end:
            end.settimeout(REPLY_S)
            question, _ = waiting.receive(end, MOST, wait=True)
            number, name, access = pickle.loads(question)
            waiting.send(end, b"1", _wanted(number, name, access), wait=True)
            waiting.receive(end, MOST, wait=True)  # it closes after it has received the descriptor


def _wanted(number: int, name: str, access: int) -> list[int]:
    memory = Memory.all.get(number)
    if memory is not None and isinstance(handle := memory.fileno(), MemoryFd):
        if handle.name != name:
            return []
        if access == os.O_RDONLY and handle.reader >= 0:
            return [MemoryFd(handle.reader).of(*handle.facts())]
        return [handle]
    with suppress(OSError):
        if name == name_of(number):
            return [number]
    return []


def name_of(fd: int) -> str:
    """Return the name of memory, or of a file."""
    return fd.name if isinstance(fd, MemoryFd) else f"{FILE}{os.fstat(fd).st_ino}"


def borrowed(pid: int, number: int, name: str, access: int) -> OwnedFd:
    """Request a descriptor from another process.

    Raises
    ------
    FileNotFoundError
        If the process has ended, or has closed the section.
    """
    with closing(waiting.End(_socket.socket(_socket.AF_UNIX).detach())) as end:
        end.settimeout(REPLY_S)
        try:
            end.connect(_path(pid))
        except ConnectionRefusedError:
            raise FileNotFoundError from None
        waiting.send(end, pickle.dumps((int(number), name, access)), [], wait=True)
        _, fds = waiting.receive(end, MOST, wait=True)
    if not fds:
        raise FileNotFoundError
    (fd,) = fds
    return Memory(fd) if isinstance(fd, MemoryFd) else OwnedFd(fd)
