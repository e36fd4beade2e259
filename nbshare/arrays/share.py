"""Arrays and objects that exist already, put into shared memory."""

from __future__ import annotations

from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from nbshare.arrays.arena import Arena
from nbshare.arrays.by_reference import PLAIN, ByReference
from nbshare.arrays.create import checked_dtype
from nbshare.arrays.inputs import Inputs, Packed
from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.memory import Mode, Segment, View, pool, segment_of, start_meanwhile
from nbshare.tracebacks import shown_from_the_call

__all__ = ["SharedObject", "share"]

T = TypeVar("T")


class SharedObject(ByReference):
    """An object in shared memory, to be handed to any process of this machine.

    Made by ``share(obj, wrap=True)``. It travels as a few hundred bytes through nbshare's calls
    and through the picklers of `multiprocessing` and loky/joblib; `get` gives the object.

    Attributes
    ----------
    nbytes : int
        Size of its memory, SharedArrays in it included.

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
        """Size of its memory in bytes."""
        return sum(segment.nbytes for segment in self._segments)

    def __repr__(self) -> str:
        return f"<nbshare.SharedObject of {self.nbytes} bytes>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _share_object, (self.get(), "r")

    def _parts(self) -> tuple[Any, ...]:
        return self._packed, *map(_whole, self._segments)

    def _attach(self, packed: Packed, *blocks: SharedArray) -> None:
        found = filter(None, map(segment_of, blocks))
        self.__init__([segment for segment, _ in found], packed)  # type: ignore[misc]


@overload
def share(obj: Any, *, mode: Mode = ..., wrap: Literal[True]) -> SharedObject: ...
@overload
def share(
    obj: npt.NDArray[Any], *, mode: Mode = ..., wrap: Literal[False] = ...
) -> SharedArray: ...
@overload
def share(obj: T, *, mode: Mode = ..., wrap: Literal[False] = ...) -> T: ...
@shown_from_the_call
def share(obj: Any, *, mode: Mode = "r+", wrap: bool = False) -> Any:
    """Put an array, or any object with its arrays, into shared memory.

    Parameters
    ----------
    obj : ndarray or object
        An ndarray of any shape, order and strides, of any dtype without Python objects inside; or
        anything that can be pickled: a DataFrame, an Arrow table, a sparse matrix, a masked
        array, a dict or dataclass of arrays.
    mode : {'r+', 'r', 'c'}, optional
        As in `numpy.memmap`. ``'r+'`` (default): every process that has the array may write to
        it. ``'r'``: read-only, enforced by the kernel. ``'c'``, copy-on-write: each process keeps
        its own changes; others, workers too, start from the values given here. Other objects than
        arrays are read-only also in mode ``'r+'``.
    wrap : bool, optional
        Return a `SharedObject`, which goes through any pool without its buffers. Default False.

    Returns
    -------
    SharedArray
        For an ndarray: one copy of the values, in the memory order of the source. A SharedArray
        of that mode already is returned as it is.
    object
        For any other object: one of its type, equal, whose buffers lie in shared memory, and stay
        there when it goes through nbshare's calls.
    SharedObject
        With ``wrap=True``; its ``get()`` gives the object, in any process.

    Raises
    ------
    TypeError
        If an array's dtype holds Python objects. As `nbshare.errors.UnsendableError`, if an
        object cannot be pickled.
    nbshare.errors.OutOfMemoryError
        If this machine or its container has not that much memory left.

    Examples
    --------
    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.share(np.arange(4, dtype="float16"))
    SharedArray([0., 1., 2., 3.], dtype=float16)
    >>> station = nbshare.share({"name": "Jungfraujoch", "ozone": np.array([31.5, 32.0])})
    >>> station["ozone"].flags.writeable
    False

    Notes
    -----
    Give the result to `parallel_map` as ``shared=`` (read-only there), as an item, or as an
    argument of a `functools.partial` (writable there): it is not copied again. An array that
    changes in the caller while it is being copied is copied as it happens to be. A `numpy.memmap`
    is copied, too; given to a call itself, it goes by its file without a copy.

    Sharing an array first and then using it in one call takes as long as giving the call the array
    itself; each later call saves the copy.

    Of an object, what pickle can hand out goes to shared memory: arrays of any stride, masked
    arrays, subclasses of ndarray that do not pickle in a way of their own, and buffers of
    protocol 5 [1]_. Python objects, such as the strings of an object column, are built anew in
    each process. So are the trees of a scikit-learn forest, whose class copies what it loads; and
    pandas packs columns of Arrow strings anew in each call, but not if they are wrapped.

    References
    ----------
    .. [1] PEP 574, Pickle protocol 5 with out-of-band data, https://peps.python.org/pep-0574/
    """
    if mode not in ("r+", "r", "c"):
        raise ValueError(f"mode={mode!r}: allowed are 'r+', 'r' and 'c'")
    if type(obj) in PLAIN and not wrap:
        return _share_array(obj, mode)
    shared = _share_object(obj, "r" if mode == "r+" else mode)
    return shared if wrap else shared.get()


def _share_array(array: npt.NDArray[Any], mode: Mode) -> SharedArray:
    if isinstance(array, SharedArray) and array.flags.writeable == (mode != "r"):
        found = segment_of(array)
        if found is not None and found[0].mode == mode:
            return array
    plain = np.asarray(array)
    dtype = checked_dtype(plain.dtype)
    if plain.flags.f_contiguous and not plain.flags.c_contiguous:
        return shared_view(_share_array(plain.T, mode).T)
    start_meanwhile(plain.nbytes)
    if mode == "r+":
        lease = pool.filled(plain.nbytes, [(0, plain)], sealed=False)
        return shared_view(np.ndarray(plain.shape, dtype, buffer=lease))
    return shared_view(_filled(plain.nbytes, [(0, plain)], mode).array(dtype, plain.shape))


def _share_object(obj: Any, mode: Mode) -> SharedObject:
    """Put an object into shared memory that nobody can write to any more.

    Mode ``"c"`` gives each process copies of its own of the pages that it writes to, ``"r"`` none.
    """
    arena = Arena(copies_files=True)
    packed = arena.pack(obj, "the object")
    start_meanwhile(arena.nbytes)
    segments = [_filled(*arena.contents(), mode)]
    for other, other_mode in arena.segments:
        other.was_kept_elsewhere = True  # by this object, for as long as it lives
        same = other.mode == other_mode
        segments.append(other if same else Segment.attach(other.read_only(), other_mode))
    return SharedObject(segments, packed)


def _filled(nbytes: int, parts: Any, mode: Mode) -> Segment:
    segment = Segment.filled(nbytes, parts)
    # The mapping that could still write goes.
    return Segment.attach(segment.read_only(), mode)


def _whole(segment: Segment) -> SharedArray:
    return shared_view(segment.array(np.uint8, (segment.nbytes,)))
