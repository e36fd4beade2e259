"""Descriptors of shared memory, which know what the system does not tell of it."""

from __future__ import annotations

import weakref
from typing import ClassVar

from nbshare._core.system.descriptors import File


class Handle(int):
    """The number of a descriptor of shared memory.

    Attributes
    ----------
    name : str
        The name of the memory, which no other has.
    nbytes : int
        Its size.
    reserved : int
        The size to which it may grow.
    reader : int
        The number of a descriptor through which it can only be read, or -1 if this is one.
    """

    name: str
    nbytes: int
    reserved: int
    reader = -1

    def of(self, name: str, nbytes: int, reserved: int) -> Handle:
        """Return it with a name and sizes."""
        self.name, self.nbytes, self.reserved = name, nbytes, reserved
        return self

    def facts(self) -> tuple[str, int, int]:
        """Return the name and the sizes, as `of` takes them."""
        return self.name, self.nbytes, self.reserved


class Memory(File):
    """A descriptor of shared memory, and the one that only reads, closed with this object."""

    all: ClassVar[weakref.WeakValueDictionary[int, Memory]] = weakref.WeakValueDictionary()

    def __init__(self, handle: Handle) -> None:
        super().__init__(handle)
        self._reader = File(handle.reader)
        self.all[int(handle)] = self

    def close(self) -> None:
        """Close them now."""
        super().close()
        self._reader.close()

    __del__ = close
