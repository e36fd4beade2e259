"""Handles, by which other processes find and verify a segment.

Our own workers receive the descriptor itself. Any other process (another pool's worker, a queue's
reader) receives a handle in a pickle, and opens the sender's descriptor through ``/proc``. By then
the sender may have ended, and the handle's numbers may refer to another file or process. A handle
therefore includes the file's random name and its inode.

A reference in transit must keep its memory alive, because after ``queue.put(nbshare.zeros(...))``
the caller has no reference, and the reader may not even have started. The sender therefore holds
the segment until the receiver writes a byte into the sender's file of receipts.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress
from typing import NamedTuple

from nbshare._core.memory.kinds import scratch_file
from nbshare._core.memory.segment import Mode, Segment, known_segments, sent_segments
from nbshare._core.system import Descriptor, files, processes, sections
from nbshare.errors import StaleReferenceError

HOLD_S = 600.0  # memory of a reference that is not loaded within this time may be freed
RECEIPTS_CHECK_S = 0.25  # interval of checks for receipts, while a segment is held

# Descriptor, inode and name of the sender's file, and the place of the byte in it.
Receipt = tuple[int, int, str, int]


class Receipts:
    """Segments that this process holds until their receivers have mapped them.

    Notes
    -----
    Safe from any thread. A thread checks for receipts while some are expected.
    """

    def __init__(self) -> None:
        self._file: Descriptor | None = None
        self._n_sent = 0
        self._held: dict[int, tuple[float, Segment]] = {}  # by place, with the time of the end
        self._is_looking = False
        self._lock = _thread.allocate_lock()

    def hold(self, segment: Segment) -> Receipt:
        """Hold a segment until the receipt arrives, or for `HOLD_S` seconds."""
        with self._lock:
            if self._file is None:
                self._file = scratch_file()
            fd = self._file.fileno()
            place = self._n_sent
            self._n_sent += 1
            if not self._is_looking:
                # If no more threads are allowed, the next reference tries again.
                with suppress(RuntimeError):
                    _thread.start_new_thread(self._look, ())
                    self._is_looking = True
            self._held[place] = (time.monotonic() + HOLD_S, segment)
        return fd, sections.inode_of(fd), sections.name_of(fd), place

    def acknowledge(self, sender: int, receipt: Receipt) -> None:
        """Acknowledge to the sender that a reference was received."""
        fd, inode, name, place = receipt
        with suppress(OSError):  # if the sender has ended, it needs no receipt
            file = sections.open_of(sender, fd, inode, name, os.O_WRONLY)
            files.write_at(file.fileno(), b"\1", place)

    def forget(self) -> None:
        """Forget the expected receipts in a forked child, because they are the parent's."""
        self.__init__()  # type: ignore[misc]

    def _look(self) -> None:
        while True:
            time.sleep(RECEIPTS_CHECK_S)
            with self._lock:
                assert self._file is not None
                now, fd = time.monotonic(), self._file.fileno()
                for place in list(self._held):  # a variable for the segment would keep it alive
                    if now > self._held[place][0] or files.read_at(fd, 1, place) == b"\1":
                        del self._held[place]
                if not self._held:
                    self._is_looking = False
                    return


receipts = Receipts()
processes.at_fork(after_in_child=receipts.forget)


class Handle(NamedTuple):
    """The place of a segment, and data to verify it."""

    pid: int
    namespace: int  # PID namespace, in which the process id is valid
    fd: int
    inode: int
    name: str  # the segment's random name
    mode: Mode
    receipt: Receipt | None  # None if the sender keeps the segment anyway


def handle_of(segment: Segment, mode: Mode | None = None, *, is_held: bool = True) -> Handle:
    """Return a handle of a segment. With `is_held`, hold the segment until it is received.

    `mode` is the mode of the arrays in the receiver. Default: the mode of the segment.
    """
    if segment.is_sealed or segment.was_sent or (segment.mode == "r+" and mode in ("r", "c")):
        mode = "r"
    else:
        mode = segment.mode
    if segment.is_private:  # only this process can open the segment, and finds it by name
        return Handle(os.getpid(), 0, -1, 0, segment.name, segment.mode, None)
    segment.was_kept_elsewhere = True  # no message reports the end of the last view in the receiver
    return Handle(
        pid=os.getpid(),
        namespace=_namespace(),
        fd=segment.fd,
        inode=sections.inode_of(segment.fd),
        name=segment.name,
        mode=mode,
        receipt=receipts.hold(segment) if is_held else None,
    )


def open_handle(handle: Handle, *, is_private: bool = False) -> Segment:
    """Map a handle's segment, once per process, and notify the sender.

    With `is_private`, a read-only segment is mapped by `Segment.sent`, usually copy-on-write.

    Raises
    ------
    StaleReferenceError
        If the segment cannot be opened, because the sender has ended, has freed it, belongs to
        another user, or runs in another container. Another file is never mapped instead.
    """
    is_private &= handle.mode == "r"
    segment = _known(handle, is_private=is_private)
    if segment is None:
        file = _open(handle)
        segment = Segment.sent(file) if is_private else Segment.open(file, handle.mode)
        segment.was_kept_elsewhere = True
        assert segment.name == handle.name  # reading the name also registers the segment
    if handle.receipt is not None:
        receipts.acknowledge(handle.pid, handle.receipt)
    return segment


def _known(handle: Handle, *, is_private: bool) -> Segment | None:
    segment = known_segments.get(handle.name)
    # Writes through a shared mapping would reach other processes. Memory created here is meant to
    # be shared.
    if segment is not None and is_private and segment.mode == "r+" and segment.kind is None:
        segment = None
    if segment is None and handle.mode == "r":
        segment = sent_segments.get(handle.name)
    return segment


def _open(handle: Handle) -> Descriptor:
    if _namespace() != handle.namespace:
        raise StaleReferenceError(
            "the array belongs to a process of another container (another namespace of process "
            "numbers). References work only within one container. Send a copy: numpy.array(x)."
        )
    try:
        access = os.O_RDWR if handle.mode == "r+" else os.O_RDONLY
        return sections.open_of(handle.pid, handle.fd, handle.inode, handle.name, access)
    except PermissionError:
        raise StaleReferenceError(
            f"the array belongs to process {handle.pid} of another user. Its memory cannot be "
            "opened. Send a copy: numpy.array(x)."
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        raise StaleReferenceError(
            f"the array's owner, process {handle.pid}, has ended or freed it. Keep the array in "
            "the sender until it has been received, or send a copy: numpy.array(x)."
        ) from None


def _namespace() -> int:
    try:
        return processes.number_space()
    except OSError:
        raise StaleReferenceError(
            "references to arrays need /proc, which is not mounted here. Send a copy: "
            "numpy.array(x)."
        ) from None
