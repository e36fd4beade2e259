"""What a worker has mapped, kept from one call to the next.

A new mapping of 1 GiB that is there already costs 0.2 s of page faults. So a worker keeps those of
a call, and the next call that uses the same segments has them at once; any other call drops them.
So does an idle worker after `KEEP_S`, since a mapping keeps memory that its owner may have freed.
"""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from nbshare.memory import Mode, Segment, View

__all__ = ["KEEP_S", "Mappings", "Seen", "are_gone"]

KEEP_S = 0.5  # what is freed is to be free within a second

# Device and inode, which are not used again while we hold them; a size that may grow.
Key = tuple[int, int, int, Mode]

Seen = list[weakref.ref[Any]]  # the roots of views


class Mappings:
    """The mappings of one worker process.

    Notes
    -----
    For one thread.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, Segment] = {}
        self._used: dict[Key, Segment] = {}  # in this call
        self._seen: Seen = []
        self._board: tuple[Key, Segment] | None = None

    def __bool__(self) -> bool:
        return bool(self._kept)

    def board(self, fd: int) -> Segment:
        """Map the segment of a board; boards of small calls lie in one."""
        key = _key(fd, "r+")
        if self._board is None or self._board[0] != key:
            self._board = None
            self._board = key, Segment.attach(fd, "r+")
        else:
            os.close(fd)
        return self._board[1]

    def inputs(self, fds: Iterable[int], modes: Sequence[Mode]) -> list[View]:
        """Map the segments of inputs or outputs."""
        views = [View(self._attach(fd, mode)) for fd, mode in zip(fds, modes, strict=True)]
        self._seen += [weakref.ref(view.root) for view in views]
        return views

    def end_call(self) -> bool:
        """Keep what the call has used; returns whether no view of it is left."""
        self._kept, self._used = self._used, {}
        seen, self._seen = self._seen, []
        return are_gone(seen)

    def drop(self, *, but_outputs: bool = False) -> None:
        """Drop what this call does not use, but for the board: that is small."""
        self._kept = {k: s for k, s in self._kept.items() if but_outputs and s.mode == "r+"}

    def _attach(self, fd: int, mode: Mode) -> Segment:
        key = _key(fd, mode)
        segment = self._kept.get(key) or self._used.get(key)
        if segment is None:
            segment = Segment.attach(fd, mode)
        else:
            os.close(fd)
        self._used[key] = segment
        return segment


def are_gone(seen: Seen) -> bool:
    """Whether no view is left in this process of what a call has seen."""
    if any(ref() is not None for ref in seen):
        gc.collect()  # a cycle, such as a function with its globals, may hold one
    return all(ref() is None for ref in seen)


def _key(fd: int, mode: Mode) -> Key:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino, status.st_size, mode
