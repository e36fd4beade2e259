"""References under way keep their memory: the sender holds it until the receiver has it.

``queue.put(nbshare.zeros(...))`` leaves the caller without a reference before the reader has even
started. So whoever pickles a reference holds the segment, and whoever has arrived at it writes a
byte into the sender's file of receipts.
"""

from __future__ import annotations

import _thread
import os
import time
from contextlib import suppress
from typing import Any

from nbshare.memory.choice import scratch_file
from nbshare.memory.descriptors import Descriptor, opened
from nbshare.memory.segment import Segment

__all__ = ["HOLD_S", "Receipt", "receipts"]

HOLD_S = 600.0  # a reference that nobody has loaded after that time may find its memory gone
LOOK_S = 0.25  # between looks for receipts, while something is held

Receipt = tuple[int, int, int]  # descriptor and inode of the file in the sender, place in it


class Receipts:
    """The segments that this process holds for receivers under way.

    Notes
    -----
    Safe from any thread. A thread looks for receipts while there is something to wait for.
    """

    def __init__(self) -> None:
        self._file: Descriptor | None = None
        self._inode = 0
        self._n_sent = 0
        self._held: dict[int, tuple[float, Segment]] = {}  # by place: until when
        self._last: tuple[Any, Descriptor | None] = None, None  # whose file, opened
        self._is_looking = False
        self._lock = _thread.allocate_lock()

    def hold(self, segment: Segment) -> Receipt:
        """Hold a segment until the receipt comes, or for `HOLD_S` seconds."""
        with self._lock:
            if self._file is None:
                self._file = scratch_file()
                self._inode = os.fstat(self._file.fileno()).st_ino
            fd = self._file.fileno()
            place = self._n_sent
            self._n_sent += 1
            if not self._is_looking:
                # If no more threads are allowed, the next reference tries again.
                with suppress(RuntimeError):
                    _thread.start_new_thread(self._look, ())
                    self._is_looking = True
            self._held[place] = (time.monotonic() + HOLD_S, segment)
        return fd, self._inode, place

    def acknowledge(self, sender: int, receipt: Receipt) -> None:
        """Tell the sender of a reference that it has arrived."""
        fd, inode, place = receipt
        # If the sender is gone nobody waits for it.
        with suppress(OSError), self._lock:
            file = self._file_of(sender, fd, inode)
            if file is not None:
                os.pwrite(file.fileno(), b"\1", place)

    def _file_of(self, sender: int, fd: int, inode: int) -> Descriptor | None:
        """Open a sender's file of receipts, unless it is another file now; the last one is kept.

        Opening it takes a third of the time that a reference takes to arrive.
        """
        if self._last[0] != (sender, fd, inode):
            found = opened(os.open, f"/proc/{sender}/fd/{fd}", os.O_PATH | os.O_CLOEXEC)
            if os.fstat(found.fileno()).st_ino != inode:
                return None
            path = f"/proc/self/fd/{found.fileno()}"
            self._last = (sender, fd, inode), opened(os.open, path, os.O_WRONLY | os.O_CLOEXEC)
        return self._last[1]

    def forget(self) -> None:
        """In a forked child: what is under way is the parent's."""
        self.__init__()  # type: ignore[misc]

    def _look(self) -> None:
        while True:
            time.sleep(LOOK_S)
            with self._lock:
                assert self._file is not None
                now, fd = time.monotonic(), self._file.fileno()
                for place in list(self._held):  # not the segment: the name would hold it
                    if now > self._held[place][0] or os.pread(fd, 1, place) == b"\1":
                        del self._held[place]
                if not self._held:
                    self._is_looking = False
                    return


receipts = Receipts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=receipts.forget)
