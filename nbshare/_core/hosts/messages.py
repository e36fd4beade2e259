"""The messages of carriers and agents, sent through sockets and clusters."""

from __future__ import annotations

import itertools
import mmap
import os
import socket
import struct
from collections.abc import Sequence
from typing import Any, Union

# A message is a kind and its content, as several buffers: "host" (its name, when the block begins),
# "reply" and "last" (a `protocol.Reply`), "error" (pickled), "lost", "retired" (with the worker of
# the cluster), and "lacks" ("inputs", their "name" or "library", the host, and the error if the
# cluster could not send them).
Message = Union[bytearray, memoryview]  # noqa: UP007 - older Pythons report their version

LARGE = 1 << 20  # bytes. Larger messages are sent as a file in memory, and so copied only once
IN_MEMORY = 0  # instead of the number of buffers


def packed(*parts: Any) -> Message:
    """Return a message that contains buffers, after their number and sizes."""
    return bytearray().join([_head_of(parts), *parts])


def _head_of(parts: Sequence[Any]) -> bytes:
    return struct.pack(f"{1 + len(parts)}q", len(parts), *(memoryview(p).nbytes for p in parts))


def kind_of(message: Message) -> bytes:
    """Return the kind of a message as bytes, without a view of the message."""
    n, nbytes = struct.unpack_from("2q", message)
    start = 8 * (1 + n)
    return bytes(message[start : start + nbytes])


def parts_of(message: Any) -> list[memoryview]:
    """Return the buffers of a message, as views of it."""
    return messages_in(message)[0]


def messages_in(data: Any) -> list[list[memoryview]]:
    """Return the buffers of each of several consecutive messages."""
    found, start = [], 0
    while start < len(data):
        (n,) = struct.unpack_from("q", data, start)
        sizes = struct.unpack_from(f"{n}q", data, start + 8)
        stops = [*itertools.accumulate(sizes, initial=start + 8 * (1 + n))]
        found.append([memoryview(data)[a:b] for a, b in itertools.pairwise(stops)])
        start = stops[-1]
    return found


def send(sock: socket.socket, *parts: Any) -> None:
    """Send buffers as one message."""
    views = [memoryview(part).cast("B") for part in parts]
    sock.settimeout(None)  # whatever socket.setdefaulttimeout has set
    if sum(map(len, views)) < LARGE:
        sock.sendall(_head_of(views))
        for view in filter(None, views):  # the reader may close before an empty last one
            sock.sendall(view)
        return
    with open(os.memfd_create("nbshare"), "wb", buffering=0) as file:
        for view in (memoryview(_head_of(views)), *views):
            while view:
                view = view[file.write(view) :]
        socket.send_fds(sock, [struct.pack("q", IN_MEMORY)], [file.fileno()])


def receive(sock: socket.socket) -> Message:
    """Return the next message.

    Raises
    ------
    EOFError, OSError
        If the other process has closed the connection.
    """
    sock.settimeout(None)
    number, fds, _, _ = socket.recv_fds(sock, 8, 1, socket.MSG_WAITALL | socket.MSG_CMSG_CLOEXEC)
    for fd in fds:
        with open(fd, "rb") as file:
            flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
            return memoryview(mmap.mmap(file.fileno(), 0, flags, mmap.PROT_READ))
    if len(number) < 8:
        raise EOFError("the other process closed the connection")
    _read(sock, memoryview(sizes := bytearray(8 * struct.unpack("q", number)[0])))
    head = number + sizes
    message = bytearray(len(head) + sum(struct.unpack(f"{len(sizes) // 8}q", sizes)))
    message[: len(head)] = head
    with memoryview(message)[len(head) :] as content:
        _read(sock, content)
    return message


def _read(sock: socket.socket, view: memoryview) -> None:
    while view:
        if not (n := sock.recv_into(view)):
            raise EOFError("the other process closed the connection")
        view = view[n:]


def user_of(sock: socket.socket) -> tuple[int, int]:
    """Return the process at the other end, and whether it belongs to this user."""
    data = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid, uid, _ = struct.unpack("3i", data)
    return pid, uid == os.getuid()
