"""A pickled list, some items of which cannot be loaded: the others, and errors in their places.

An unpickler gives all or nothing, and an object of one item may be defined in another. So Python's
own unpickler carries out the pickle one opcode after the other: what fails, and what is made of it,
is `Broken`.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable
from typing import Any

from nbshare.arrays.inputs import Broken

__all__ = ["load_items"]

FILLING = {"APPEND", "APPENDS", "SETITEM", "SETITEMS", "ADDITEMS", "BUILD"}


def load_items(data: bytes, buffers: Iterable[Any]) -> list[Any]:
    """Load a pickled list, with a `Broken` for each item that fails."""
    return _Salvager(data, buffers).load()  # type: ignore[no-any-return]


# typeshed knows it as the one in C, which has no parts to replace.
_Unpickler: Any = pickle._Unpickler


class _Salvager(_Unpickler):  # type: ignore[misc]
    def __init__(self, data: bytes, buffers: Iterable[Any]) -> None:
        file = io.BytesIO(data)
        super().__init__(file, buffers=buffers)
        self._data, self._file = data, file
        # What the base class sets when its load begins, but for frames: all can be read at once.
        self.read, self.readinto, self.readline = file.read, file.readinto, file.readline
        self.metastack: list[list[Any]] = []  # of what lies below marks
        self.stack: list[Any] = []
        self.append = self.stack.append
        self.proto = 0

    def load(self) -> Any:
        for code, _, start in pickletools.genops(self._data):
            if code.name not in ("FRAME", "STOP"):
                self._carry_out(code, start)
        return self.stack[0]

    def _carry_out(self, code: pickletools.OpcodeInfo, start: Any) -> None:
        """Carry out an opcode; if that fails, or takes what is broken, it gives what is broken."""
        takes = code.stack_before
        if pickletools.markobject in takes:
            n, above_mark = takes.index(pickletools.markobject), self.stack
            depth, below = len(self.metastack) - 1, self.metastack[-1]
        else:
            n, above_mark = len(takes), []
            depth, below = len(self.metastack), self.stack
        height = len(below) - n
        taken = [*below[height:], *above_mark]
        is_of_list = depth == height == 0
        try:
            if not is_of_list and code.name != "MEMOIZE":
                for broken in (x for x in taken if type(x) is Broken):
                    raise broken.error
            self._file.seek(start + 1)
            self.dispatch[self._data[start]](self)
        except BaseException as error:
            if is_of_list:
                raise
            if code.name in FILLING:  # later items may refer to it
                for number in [k for k, x in self.memo.items() if x is taken[0]]:
                    self.memo[number] = Broken(error)
            del self.metastack[depth:], below[height:]
            self.stack, self.append = below, below.append
            below += [Broken(error) for _ in code.stack_after]
