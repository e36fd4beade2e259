"""Any object in shared memory: its pickle, with its buffers beside it in one segment."""

from __future__ import annotations

from typing import Any

import numpy as np

from nbshare.arrays.arena import Arena
from nbshare.arrays.by_reference import ByReference, Reduced
from nbshare.arrays.inputs import Inputs, Packed
from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.memory import Mode, Segment, View, segment_of

__all__ = ["SharedObject", "place"]


class SharedObject(ByReference):
    """An object in shared memory, to be handed to any process of this machine.

    Made by ``share(obj, wrap=True)``. It travels as a few hundred bytes through nbshare's calls
    and through the picklers of `multiprocessing` and loky/joblib; `get` gives the object.

    Attributes
    ----------
    nbytes : int
        Size of the memory that it lies in, SharedArrays in it included.

    See Also
    --------
    share : put an object into shared memory.

    Examples
    --------
    >>> import numpy as np
    >>> import nbshare
    >>> wrapped = nbshare.share({"a": np.arange(3), "b": "text"}, wrap=True)
    >>> wrapped.get()
    {'a': array([0, 1, 2]), 'b': 'text'}

    Notes
    -----
    Safe in threads, except that two which call `get` for the first time may get two objects, on
    the same memory. Plain `pickle` and `copy` store values.
    """

    def __init__(self, segments: list[Segment], packed: Packed) -> None:
        self._segments = segments
        self._packed = packed
        self._loaded: list[Any] = []

    def get(self) -> Any:
        """Return the object: built once in each process, its arrays read-only views.

        Returns
        -------
        object
            The same one each time.
        """
        if not self._loaded:
            self._loaded.append(Inputs([*map(View, self._segments)]).load(self._packed))
        return self._loaded[0]

    @property
    def nbytes(self) -> int:
        """Size of the memory that it lies in, in bytes."""
        return sum(segment.nbytes for segment in self._segments)

    def __repr__(self) -> str:
        return f"<nbshare.SharedObject of {self.nbytes} bytes>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _share_again, (self.get(),)

    def _reduce_by_reference(self) -> Reduced:
        return _arrive, (self._packed, *map(_whole, self._segments))


def place(obj: Any, mode: Mode) -> SharedObject:
    """Put an object into shared memory that nobody can write to any more.

    Mode ``"c"`` gives each process copies of its own of the pages that it writes to, ``"r"`` none.

    Raises
    ------
    UnsendableError
        If it cannot be pickled.
    OutOfMemoryError
        If it does not fit.
    """
    arena = Arena(copies_files=True)
    packed = arena.pack(obj, "the object")
    segment = Segment.filled(*arena.contents())
    # The mapping that could still write goes.
    segments = [Segment.attach(segment.read_only(), mode)]
    for other, other_mode in arena.segments:
        other.was_kept_elsewhere = True  # by this object, for as long as it lives
        same = other.mode == other_mode
        segments.append(other if same else Segment.attach(other.read_only(), other_mode))
    return SharedObject(segments, packed)


def _share_again(obj: Any) -> SharedObject:
    return place(obj, "r")


def _whole(segment: Segment) -> SharedArray:
    return shared_view(segment.array(np.uint8, (segment.nbytes,)))


def _arrive(packed: Packed, *blocks: SharedArray) -> SharedObject:
    found = [segment_of(block) for block in blocks]
    return SharedObject([segment for segment, _ in filter(None, found)], packed)
