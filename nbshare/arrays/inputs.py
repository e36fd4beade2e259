"""What an `Arena` packed, as a worker loads it from the call's segments."""

from __future__ import annotations

import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import shared_view
from nbshare.memory import Segment, UserFile, View, segment_of

__all__ = [
    "ArrayReference",
    "Broken",
    "Inputs",
    "Packed",
    "Span",
    "attach",
    "attach_parts",
    "lenders",
]


class Span(NamedTuple):
    """Bytes in one of the call's segments."""

    segment: int  # index in the call's list; 0 is the arena
    offset: int  # bytes
    nbytes: int


class Packed(NamedTuple):
    """Where a pickle and its buffers lie."""

    pickle: Span
    buffers: tuple[Span, ...]


class ArrayReference(NamedTuple):
    """An array in one of the call's segments, or in a file of the user."""

    segment: int | UserFile  # index, as in Span
    offset: int  # bytes
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    dtype: np.dtype[Any]
    is_shared: bool  # arrives as a SharedArray
    is_writable: bool  # if its segment is


class Broken(NamedTuple):
    """In the place of an item that cannot be loaded."""

    error: BaseException


class Inputs:
    """The worker's side: loads what an `Arena` packed from the call's segments.

    Parameters
    ----------
    segments : sequence of View
        In the arena's order, the arena itself first.
    """

    def __init__(self, segments: Sequence[View]) -> None:
        self._segments = list(segments)

    def load(self, packed: Packed) -> Any:
        """Load an object; arrays in it are views of the segments."""
        return self._load(packed, lambda data, buffers: pickle.loads(data, buffers=buffers))

    def load_items(self, packed: Packed) -> list[Any]:
        """Load a list, with a `Broken` for each item that fails; takes a hundred times as long."""
        from nbshare.arrays.salvage import load_items  # late: hardly anybody needs it

        return self._load(packed, lambda data, buffers: load_items(data.tobytes(), buffers))  # type: ignore[no-any-return]

    def _load(self, packed: Packed, load: Callable[..., Any]) -> Any:
        global _current
        buffers = [self._bytes(span) for span in packed.buffers]
        for span in packed.buffers:
            if (found := segment_of(self._segments[span.segment].root)) is not None:
                lenders.add(found[0])
        before, _current = _current, self._segments
        try:
            return load(self._bytes(packed.pickle), buffers)
        finally:
            _current = before

    def array(self, reference: ArrayReference) -> npt.NDArray[Any]:
        """Return the array that a reference means."""
        segment, offset, shape, strides, dtype, is_shared, is_writable = reference
        view = View(segment.mapped()) if isinstance(segment, UserFile) else self._segments[segment]
        array = view.array(dtype, shape, offset, strides)
        if not is_writable:
            array.flags.writeable = False
        return shared_view(array) if is_shared else array

    def words(self, segment: int) -> memoryview:
        """Return a segment as words of 8 bytes; its last bytes may be left out."""
        data = self._segments[segment].root.data
        return data[: data.nbytes // 8 * 8].cast("q")

    def packed(self, span: Span) -> Packed:
        """Return what says where a pickle and its buffers lie, and is a pickle itself."""
        return pickle.loads(self._bytes(span))  # type: ignore[no-any-return]

    def reach(self, segment: int, nbytes: int) -> None:
        """Map a segment anew if it has become larger than what is mapped of it."""
        view = self._segments[segment]
        if nbytes > view.root.nbytes:
            found = segment_of(view.root)
            assert found is not None
            self._segments[segment] = View(Segment.attach(os.dup(found[0].fd), "r"))

    def _bytes(self, span: Span) -> memoryview:
        return self._segments[span.segment].root.data[span.offset : span.offset + span.nbytes]


# Segments that objects without arrays of NumPy's (Arrow's, say) have buffers in. Whose memory such
# a buffer is can be told by its address only.
lenders: weakref.WeakSet[Segment] = weakref.WeakSet()

# The segments of the pickle that is being loaded: it can name functions only. A worker loads in
# one thread.
_current: Sequence[View] = ()


def attach(*reference: Any) -> npt.NDArray[Any]:
    """Return the array that a reference in a pickle means; while `Inputs` loads it."""
    return Inputs(_current).array(ArrayReference(*reference))


def attach_parts(rebuild: Callable[..., Any], parts: list[Any]) -> Any:
    """Return an object of several arrays, likewise."""
    return rebuild(*(attach(*part) if isinstance(part, ArrayReference) else part for part in parts))
