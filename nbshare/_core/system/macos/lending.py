"""How processes get memory that they know by name, such as the readers of a queue.

::

    receiver                                        sender of a reference
    connect to the socket of its number  ────────►  accept, in a thread
    number and name of a descriptor      ────────►  is it still that one?
    descriptor                           ◄────────  send it, or none
"""

from __future__ import annotations

import _socket
import _thread
import atexit
import os
import pickle
from contextlib import closing, suppress

from nbshare._core.system.descriptors import File
from nbshare._core.system.macos import waiting
from nbshare._core.system.macos.handles import Handle, Memory
from nbshare._core.system.macos.processes import has_ended
from nbshare._core.system.posix import at_fork, sweep

USER_TEMPORARY = 65537  # _CS_DARWIN_USER_TEMP_DIR of unistd.h
MOST = 1 << 12  # bytes of a question
REPLY_S = 10.0  # for the other side, which may be paused
FILE = "file-"  # begins the names of files, which end with the inode

_listening: list[_socket.socket] = []  # the last one can be reached


def folder() -> str:
    """Return the directory that all processes of this user, and no others, write to."""
    with suppress(OSError, ValueError):  # where tests play macOS
        if found := os.confstr(USER_TEMPORARY):
            return found
    return "/tmp"  # noqa: S108


def _path(pid: int) -> str:
    return os.path.join(folder(), f"nbshare-{pid:x}-{0:014x}")


def lend() -> None:
    """Answer those that ask this process for descriptors, from now on.

    The system removes temporary files that nobody has used for three days.
    """
    path = _path(os.getpid())
    if _listening and _touched(path):
        return
    sweep(folder(), has_ended)
    listening = _socket.socket(_socket.AF_UNIX)
    with suppress(FileNotFoundError):
        os.unlink(path)  # of an earlier process of that number
    listening.bind(path)
    os.chmod(path, 0o600)
    listening.listen()
    _listening.append(listening)
    atexit.register(_end, os.getpid())
    _thread.start_new_thread(_serve, (listening,))


def _touched(path: str) -> bool:
    """Have a file count as used just now. Return whether it exists."""
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
        fd, _ = listening._accept()  # type: ignore[attr-defined]  # as socket.socket does it
        with suppress(OSError, EOFError), closing(waiting.End(fd)) as end:
            end.settimeout(REPLY_S)
            question, _ = waiting.receive(end, MOST, wait=True)
            number, name, access = pickle.loads(question)
            waiting.send(end, b"1", _wanted(number, name, access), wait=True)
            waiting.receive(end, MOST, wait=True)  # it closes when it has the descriptor


def _wanted(number: int, name: str, access: int) -> list[int]:
    memory = Memory.all.get(number)
    if memory is not None and isinstance(handle := memory.fileno(), Handle):
        if handle.name != name:
            return []
        if access == os.O_RDONLY and handle.reader >= 0:
            return [Handle(handle.reader).of(*handle.facts())]
        return [handle]
    with suppress(OSError):
        if name == name_of(number):
            return [number]
    return []


def name_of(fd: int) -> str:
    """Return the name of memory, or of a file."""
    return fd.name if isinstance(fd, Handle) else f"{FILE}{os.fstat(fd).st_ino}"


def borrowed(pid: int, number: int, name: str, access: int) -> File:
    """Get a descriptor of another process.

    Raises
    ------
    FileNotFoundError
        It has ended, or has it no more.
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
    return Memory(fd) if isinstance(fd, Handle) else File(fd)
