"""A handle: how a process that is not ours finds a segment, and makes sure it is the right one.

Our own workers are sent the descriptor itself. Anybody else (another pool's worker, a queue's
reader) gets a handle in a pickle, and opens the sender's descriptor through ``/proc``. By then the
sender may have ended, its descriptor number may mean another file and its process number another
process, so a handle says everything that can be compared.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from nbshare.errors import StaleReferenceError
from nbshare.memory.descriptors import Descriptor, opened
from nbshare.memory.names import name_of
from nbshare.memory.processes import start_of
from nbshare.memory.receipts import Receipt, receipts
from nbshare.memory.segment import Mode, Segment, known_segment

__all__ = ["Handle", "handle_of", "open_handle"]


class Handle(NamedTuple):
    """Where a segment can be found, and what it must look like."""

    pid: int
    started: int  # clock ticks since boot: process numbers are used again
    namespace: int  # of process numbers: in another one they mean other processes
    fd: int
    device: int
    inode: int
    nbytes: int
    name: str  # of the file: random, so that it proves the rest
    mode: Mode
    receipt: Receipt


def handle_of(segment: Segment) -> Handle:
    """Return a handle, and hold the segment here until its receiver has arrived."""
    segment.was_kept_elsewhere = True  # nobody will tell when the last view is gone there
    status = os.fstat(segment.fd)
    return Handle(
        pid=os.getpid(),
        namespace=_namespace(),
        started=start_of(os.getpid()),
        fd=segment.fd,
        device=status.st_dev,
        inode=status.st_ino,
        nbytes=segment.nbytes,
        name=segment.name,
        mode="r" if segment.is_sealed else segment.mode,
        receipt=receipts.hold(segment),
    )


def open_handle(handle: Handle) -> Segment:
    """Map the segment, once per process, and tell the sender.

    Raises
    ------
    StaleReferenceError
        If it cannot be had: the sender has ended or let go of it, belongs to another user, or
        lives in another container. Never another file in its place.
    """
    segment = known_segment(handle.name)
    if segment is None:
        segment = Segment.attach(_open(handle), handle.mode)
        segment.was_kept_elsewhere = True
        assert segment.name == handle.name  # asking makes it known here
    receipts.acknowledge(handle.pid, handle.receipt)
    return segment


def _open(handle: Handle) -> Descriptor:
    try:
        found = _find(handle)
    except PermissionError:
        raise StaleReferenceError(
            f"the array belongs to process {handle.pid} of another user, whose memory cannot be "
            "opened. Send a copy: numpy.array(x)."
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        raise StaleReferenceError(
            f"the array's owner, process {handle.pid}, has ended or let go of it. Keep the array "
            "in the sender until it has been received, or send a copy: numpy.array(x)."
        ) from None
    status = os.fstat(found.fileno())
    proof = (status.st_dev, status.st_ino, status.st_size, name_of(found.fileno()))
    expected = (handle.device, handle.inode, handle.nbytes, handle.name)
    if not stat.S_ISREG(status.st_mode) or proof != expected:
        raise StaleReferenceError(
            f"process {handle.pid} has let go of the array. Keep it there until it has been "
            "received, or send a copy: numpy.array(x)."
        )
    access = (os.O_RDWR if handle.mode == "r+" else os.O_RDONLY) | os.O_CLOEXEC
    return opened(os.open, f"/proc/self/fd/{found.fileno()}", access)


def _find(handle: Handle) -> Descriptor:
    if _namespace() != handle.namespace:
        raise StaleReferenceError(
            "the array belongs to a process of another container (another namespace of process "
            "numbers); references work within one. Send a copy: numpy.array(x)."
        )
    if start_of(handle.pid) != handle.started:
        raise FileNotFoundError
    # O_PATH first: a plain open of a descriptor number that means a pipe now could block.
    return opened(os.open, f"/proc/{handle.pid}/fd/{handle.fd}", os.O_PATH | os.O_CLOEXEC)


def _namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        raise StaleReferenceError(
            "references to arrays need /proc, which is not mounted here. Send a copy: "
            "numpy.array(x)."
        ) from None
