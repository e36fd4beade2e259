"""Loads the objects that an `Arena` packed, in a worker, from the call's segments."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.copied import Places, Span
from nbshare._core.arrays.known import LoadedObjects
from nbshare._core.arrays.repeated import Name, NamedParts
from nbshare._core.arrays.shared_array import SharedArray, extent, shared_view
from nbshare._core.memory import (
    FileView,
    Handle,
    Mode,
    Segment,
    UserFile,
    View,
    open_handle,
    segment_of,
)
from nbshare._core.system import processes, sections

# The places of a pickle, of its buffers, and of the table of its arrays in the arena. Plain tuples,
# because every message contains them, and a class takes longer to pickle than all its fields.
Packed = tuple[Span, list[Span], Span | None]

PLACED = -1  # instead of a segment: the offset is an index into the pickle's table


Known = LoadedObjects | dict[int, Any]


class Itself(NamedTuple):
    """An object that this process uses as it is, not a copy of it."""

    value: Any
    objects: dict[int, Any]  # parts that pickles may name, see `arrays.known`


class ArrayReference(NamedTuple):
    """The place of an array: in a segment of the call, another segment, or a user's file."""

    segment: int | UserFile | Handle  # index, as in Span, or PLACED
    offset: int  # bytes, or the number of the place
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None  # bytes, or None if C-contiguous
    dtype: np.dtype[Any]
    is_shared: bool  # arrives as a SharedArray
    mode: Mode  # read-only, shared and writable, or writable with writes that stay in the worker


def reference_to(
    array: npt.NDArray[Any], segment: int | Handle, offset: int, mode: Mode
) -> ArrayReference:
    """Return a reference to an array in a segment."""
    is_shared = isinstance(array, SharedArray)
    form = array.shape, array.strides, array.dtype
    return ArrayReference(segment, offset, *form, is_shared, mode)


class _Reader:
    """Reads memory as a file. `io.BytesIO` would copy all of it."""

    def __init__(self, memory: memoryview) -> None:
        self._left = memory

    def read(self, n: int) -> bytes:
        part, self._left = self._left[:n], self._left[n:]
        return bytes(part)

    def readinto(self, buffer: memoryview) -> int:
        n = min(len(buffer), len(self._left))
        buffer[:n], self._left = self._left[:n], self._left[n:]
        return n

    def readline(self) -> bytes:
        raise NotImplementedError  # for protocol 0 only


class _Unpickler(pickle.Unpickler):
    """An unpickler of pickles that name parts of other pickles."""

    parts: NamedParts | None

    def persistent_load(self, name: Name) -> Any:
        assert self.parts is not None
        return self.parts(name)


class Inputs:
    """The worker's side: loads the packed objects of an `Arena` from the call's segments.

    Parameters
    ----------
    segments : sequence of View
        The segments in the arena's order, the arena itself first.
    known : list, optional
        The objects that later pickles may name, by their places: a `LoadedObjects` or a dict for
        each earlier pickle.

    Attributes
    ----------
    has_come_again : bool
        Whether the last item uses private memory that an earlier item has also used.
    """

    def __init__(self, segments: Sequence[View], known: list[Known] | None = None) -> None:
        self._segments = list(segments)
        self._ends: dict[Any, int] = {}  # ends of the places of items, by segment
        self._is_item = self.has_come_again = False
        self._private: View | None = None  # private view of the first segment
        self._private_end = 0  # end of its used part
        self._n_faults = 0  # earlier page faults of this process
        self.known: list[Known] = [] if known is None else known

    def load(
        self,
        packed: Packed | Itself,
        parts: NamedParts | None = None,
        *,
        is_named: bool = False,
        is_item: bool = False,
    ) -> Any:
        """Load an object. Its arrays are views of the segments.

        `parts` are the parts that the object may name. `is_named` is whether later pickles may name
        objects in it. `is_item` is whether it must not show changes that earlier items made to
        shared memory.
        """
        if isinstance(packed, Itself):
            if is_named:
                self.known.append(packed.objects)
            return packed.value
        self._is_item, self.has_come_again = is_item, False
        obj, unpickler = self._unpickled(packed, parts, is_asked=is_named)
        if is_named:
            self.known.append(LoadedObjects(unpickler))
        return obj

    def part(self, packed: Packed, parts: NamedParts) -> tuple[Any, LoadedObjects, bool]:
        """Return a part, the objects in it, and whether its pickle has memory next to it."""
        obj, unpickler = self._unpickled(packed, parts, is_asked=True)
        return obj, LoadedObjects(unpickler, dict), bool(packed[1] or packed[2])

    def _unpickled(
        self, packed: Packed, parts: NamedParts | None, *, is_asked: bool
    ) -> tuple[Any, Any]:
        """Return an object, and its unpickler if later pickles may name objects in it."""
        pickled, spans, places = packed
        buffers = [self._buffer(span) for span in spans]
        for segment, _, _ in spans:
            if (found := segment_of(self._segments[segment].root)) is not None:
                lenders[id(found[0])] = found[0]
        before = _loading.inputs, _loading.places
        _loading.inputs = self
        if places is not None:
            _loading.places = self._bytes(places).cast("q")
        try:
            if parts is None and not is_asked:
                return pickle.loads(self._bytes(pickled), buffers=buffers), None
            unpickler = _Unpickler(_Reader(self._bytes(pickled)), buffers=buffers)
            unpickler.parts = parts
            obj = unpickler.load()
            unpickler.parts = None  # or a cycle would keep the inputs
            return obj, unpickler
        except Exception as error:
            from nbshare._core.arrays.replay import name_object  # late, because it is rarely needed

            name_object(error, self._bytes(pickled), buffers, parts)
            raise
        finally:
            _loading.inputs, _loading.places = before

    def array(self, reference: ArrayReference) -> npt.NDArray[Any]:
        """Return the array that a reference names."""
        segment, offset, shape, strides, dtype, is_shared, mode = reference
        view: View
        if isinstance(segment, UserFile):
            view = FileView(segment, is_shared=mode == "r+")
        elif isinstance(segment, Handle):
            view = View(found := open_handle(segment, is_private=True))
            if segment.receipt is None:
                opened.append(found)
        else:
            if segment == PLACED:
                segment, offset = 0, int(_loading.places[offset])
                if offset < 0:
                    offset, strides = ~offset, None
            view = self._segments[segment]
        array = view.array(dtype, shape, offset, strides, is_read_only=mode == "r")
        if self._is_item and view.is_private:
            place = (offset, array.nbytes) if strides is None else extent(offset, array)
            clean = self._unwritten(segment, view, *place)
            if clean is not view:
                array = clean.array(dtype, shape, offset, strides, is_read_only=mode == "r")
        if mode == "c" and not view.is_private:
            return array.copy("K")  # its memory is shared or read-only
        return shared_view(array) if is_shared else array

    @property
    def has_memory(self) -> bool:
        """Whether an item has used private memory."""
        return bool(self._ends)

    def bytes(self, offset: int, nbytes: int) -> memoryview:
        """Return a part of the first segment."""
        return self._bytes((0, offset, nbytes))

    def private(self, offset: int, nbytes: int) -> View:
        """Return a view of a part of the first segment, with its owner's data.

        The view is private if the system supports it.
        """
        found = segment_of(self._segments[0].root)
        assert found is not None
        if found[0].is_private:
            return View(self.bytes(offset, nbytes))
        view, stop = self._private, offset + nbytes
        # A page written here is a copy, and lacks data that its owner wrote later. It may hold the
        # end of the last part and the beginning of this one.
        n_faults = processes.n_faults()
        is_used = offset < self._private_end or n_faults != self._n_faults
        if view is None or view.root.nbytes < stop or (is_used and view.is_written(offset, nbytes)):
            view = self._private = View(Segment.sent(sections.duplicate(found[0].fd), stop))
            self._private_end = 0
        self._private_end, self._n_faults = max(self._private_end, stop), n_faults
        return view.part(offset, nbytes)

    def turn_to(self, view: View) -> None:
        """Load from `view` instead of the first segment in later calls."""
        self._segments[:1] = [view]
        self._ends.pop(0, None)

    def reach(self, nbytes: int, *, is_private: bool) -> None:
        """Map the first segment again if it has outgrown the mapping.

        Private memory is copied when it grows, and only the copy has new parts, wherever they
        begin.
        """
        view = self._segments[0]
        if nbytes > view.root.nbytes or is_private:
            found = segment_of(view.root)
            assert found is not None
            self._segments[0] = View(found[0].whole("r"), is_read_only=True)

    def _buffer(self, span: Span) -> memoryview:
        segment, offset, nbytes = span
        view = self._segments[segment]
        if self._is_item and view.is_private:
            view = self._unwritten(segment, view, offset, nbytes)
        return view.root.data[offset : offset + nbytes]

    def _unwritten(self, segment: Any, view: View, offset: int, nbytes: int) -> View:
        """Return a view of memory without the changes that an earlier item may have made."""
        end = self._ends.get(segment, 0)
        self.has_come_again |= (is_again := offset < end)
        if (is_again or not isinstance(segment, int)) and view.is_written(offset, nbytes):
            view, end = view.again(), 0
            if isinstance(segment, int):
                self._segments[segment] = view
            elif isinstance(segment, Handle):
                found = segment_of(view.root)
                assert found is not None
                assert found[0].name == segment.name  # the next reference finds it by this
                opened.append(found[0])
        self._ends[segment] = max(end, offset + nbytes)
        return view

    def _bytes(self, span: Span) -> memoryview:
        segment, offset, nbytes = span
        return self._segments[segment].root.data[offset : offset + nbytes]


# Segments of other processes, kept mapped for the next object that refers to them.
opened: deque[Segment] = deque(maxlen=8)

# Segments with buffers of objects that are not NumPy arrays, such as Arrow's. The segment of such a
# buffer is found by its address. A dict by id, because a thread cannot list a WeakSet while another
# one adds to it.
lenders: weakref.WeakValueDictionary[int, Segment] = weakref.WeakValueDictionary()


class _Loading(threading.local):
    """The inputs that this thread is loading, for the functions that pickles call."""

    inputs = Inputs(())
    places: Places = memoryview(b"")  # places of the pickle's arrays


_loading = _Loading()


def small(data: bytes | bytearray, *form: Any) -> npt.NDArray[Any]:
    """Return a small array, from its bytes, dtype, shape and order.

    An array on `bytes` is read-only.
    """
    dtype, shape, order = form
    return np.ndarray(shape, dtype, data, order=order)


def lock(array: npt.NDArray[Any], states: tuple[Any, ...]) -> None:
    """Make an array read-only, after it was given its state from the pickle, if any."""
    for state in states:
        if state is not None:
            array.__setstate__(state)
    if isinstance(array, np.ndarray):  # `copyreg` may have put another object in its place
        array.flags.writeable = False


def load_reference(*reference: Any) -> npt.NDArray[Any]:
    """Return the array of a reference in the pickle that this thread is loading."""
    return _loading.inputs.array(ArrayReference(*reference))


def load_known(part: int, place: int) -> Any:
    """Return an object of a pickle that was loaded earlier."""
    return _loading.inputs.known[part][place]
