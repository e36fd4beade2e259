"""Copies existing arrays and objects to shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, TypeVar, overload

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.arena import Arena
from nbshare._core.arrays.by_reference import PLAIN, ByReference
from nbshare._core.arrays.create import checked_dtype
from nbshare._core.arrays.inputs import Inputs, Packed
from nbshare._core.arrays.shared_array import SharedArray, shared_view
from nbshare._core.memory import Segment, View, pool, segment_of
from nbshare._core.memory.segment import Mode
from nbshare._core.tracebacks import shown_from_its_calls, shown_from_the_call

T = TypeVar("T")


@shown_from_its_calls
class SharedObject(ByReference):
    """An object in shared memory that any process of this machine can use.

    Created by ``share(obj, wrap=True)``. It is sent as a few hundred bytes by nbshare's calls and
    by the picklers of `multiprocessing` and joblib. `get` returns the object.

    Examples
    --------
    A dict with an array, once in memory:

    >>> import numpy as np
    >>> import nbshare
    >>> wrapped = nbshare.share({"a": np.arange(3), "b": "text"}, wrap=True)
    >>> wrapped.get()
    {'a': array([0, 1, 2]), 'b': 'text'}

    The pools and queues of `multiprocessing` send a reference, whatever the size:

    >>> from multiprocessing.reduction import ForkingPickler
    >>> survey = nbshare.share({"map": np.zeros((1000, 1000)), "band": "V"}, wrap=True)
    >>> sent = ForkingPickler.dumps(survey)
    >>> len(sent) < 1000, survey.nbytes >= 8_000_000
    (True, True)
    >>> ForkingPickler.loads(sent).get()["band"]
    'V'

    See Also
    --------
    share : copy an object to shared memory.

    Notes
    -----
    Several threads may use it. Plain `pickle` and `copy` copy the values.
    """

    __module__ = "nbshare"

    def __init__(self, segments: Sequence[Any], packed: Packed, kind: str) -> None:
        self._segments = segments  # or arrays that are all of one
        self._packed, self._kind = packed, kind
        self._loaded: list[Any] = []

    def get(self) -> Any:
        """Return the object. It is built once in each process, and its arrays are views.

        Returns
        -------
        object
            The same object each time.
        """
        if not self._loaded:
            self._loaded.append(Inputs([*map(View, self._segments)]).load(self._packed))
        return self._loaded[0]

    @property
    def nbytes(self) -> int:
        """Size of its shared memory in bytes (int), including SharedArrays in it."""
        return sum(segment.nbytes for segment in self._segments)

    def __repr__(self) -> str:
        return f"<SharedObject: {self._kind}, {self.nbytes:,} bytes in shared memory>"

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _share_object, (self.get(), "r")

    def _parts(self) -> tuple[Any, ...]:
        blocks = (shared_view(View(segment).root) for segment in self._segments)
        return self._packed, self._kind, *blocks

    def _attach(self, packed: Packed, kind: str, *blocks: SharedArray) -> None:
        self.__init__(blocks, packed, kind)  # type: ignore[misc]


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
    """Copy an array, or any object with its arrays, to shared memory.

    Examples
    --------
    An array, and a dict with one:

    >>> import numpy as np
    >>> import nbshare
    >>> nbshare.share(np.arange(4, dtype="float16"))
    SharedArray([0., 1., 2., 3.], dtype=float16)
    >>> station = nbshare.share({"name": "Jungfraujoch", "ozone": np.array([31.5, 32.0])})
    >>> station["ozone"].flags.writeable
    False

    Copied once, and used in several calls:

    >>> data = nbshare.share(np.arange(1000.0))
    >>> def mean_of_every(k, data):
    ...     return data[::k].mean()
    >>> nbshare.parallel_map(mean_of_every, [1, 10], shared={"data": data})
    SharedArray([499.5, 495. ])
    >>> nbshare.parallel_map(np.sum, [data[:500], data[500:]])  # views are sent by reference
    SharedArray([124750., 374750.])

    Parameters
    ----------
    obj : ndarray or object
        An ndarray of any shape, order and strides, of any dtype without Python objects. Or
        anything that can be pickled, such as a DataFrame, an Arrow table, a sparse matrix, a masked
        array, a dict or dataclass of arrays.
    mode : {'r+', 'r', 'c'}, optional
        The access, as in `numpy.memmap`. With ``'r+'`` (default), every process may write to the
        array. With ``'r'``, it is read-only in all processes, enforced by the kernel. With ``'c'``,
        copy-on-write, each process may write, but sees only its own changes. In other objects, even
        in mode ``'r+'``, arrays in lists, dicts and tables are read-only, and those inside objects,
        such as a model, are as in mode ``'c'``.
    wrap : bool, optional
        Return a `SharedObject`, which any pool sends by reference. Default False.

    Returns
    -------
    SharedArray
        If `obj` is an ndarray, a copy in the memory order of the source. A SharedArray of this mode
        is returned as it is.
    object
        If `obj` is any other object, an equal one of its type whose buffers are in shared memory,
        and stay there when nbshare's calls send it.
    SharedObject
        If `wrap` is True. Its ``get()`` returns the object in any process.

    Raises
    ------
    TypeError
        If the dtype of an array holds Python objects, or an object cannot be pickled (an
        `nbshare.errors.UnsendableError`).
    ValueError
        If `mode` is unknown.
    nbshare.errors.OutOfMemoryError
        If the copy needs more memory than this machine or container has left. A `MemoryError`.

    See Also
    --------
    empty, zeros, ones, full : new arrays in shared memory.
    register_type : hold the memory of your own types once.

    Notes
    -----
    Pass the result to `parallel_map` in ``shared=`` (read-only there), as an item, or in a
    `functools.partial` (writable there). It is not copied again. Safe to call from any thread. An
    array that another thread changes during the copy may be a mixture of both states. A
    `numpy.memmap` is copied too. If it is passed to a call directly, its file is mapped instead.

    Sharing an array and using it in one call takes as long as passing the array to the call. Each
    later call saves the copy.

    Of other objects, these parts are copied to shared memory: arrays of any stride, masked arrays,
    subclasses of ndarray without a pickle of their own, buffers of `pickle protocol 5
    <https://peps.python.org/pep-0574/>`_, and the other types that `register_type` names. Python
    objects, such as the strings of an object column, are rebuilt in each process. So are the trees
    of a scikit-learn forest, because its class copies its data. Writes to a tensor stay in this
    process, and each call copies it again, unless it is wrapped.
    """
    if mode not in ("r+", "r", "c"):
        raise ValueError(f"mode={mode!r} is not allowed: pass 'r+', 'r' or 'c'")
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
    if mode == "r+":
        memory = pool.filled(plain.nbytes, [(0, plain)], sealed=False)
        return shared_view(np.ndarray(plain.shape, dtype, buffer=memory))
    return shared_view(View(_filled(plain.nbytes, [(0, plain)], mode)).array(dtype, plain.shape))


def _share_object(obj: Any, mode: Mode) -> SharedObject:
    """Copy an object to read-only shared memory.

    Arrays that the user passed are read-only in mode ``"r"``. In ``"c"``, each process has its own
    copies of the pages that it writes to.
    """
    arena = Arena(copies_files=True, passed=mode)
    packed = arena.pack(obj, "the object")
    segments = [_filled(*arena.contents(), "c")]
    for other, other_mode in arena.segments:
        other.was_kept_elsewhere = True  # by this object, for as long as it lives
        same = other.mode == other_mode
        segments.append(other if same else other.again(other_mode))
    segments[0].was_sent = mode == "r" and not segments[0].is_private
    return SharedObject(segments, packed, type(obj).__name__)


def _filled(nbytes: int, parts: Any, mode: Mode) -> Segment:
    return Segment.filled(nbytes, parts).again(mode)  # drops the mapping that could still write
