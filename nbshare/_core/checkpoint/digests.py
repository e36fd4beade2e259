"""Digests of values by what they hold, the same in each process, on each machine.

These are never digests of pickles, which differ for equal objects, nor of anything random, such as
addresses. Containers, arrays and objects are gone through. Functions and classes of own files count
by the source that they reach (`checkpoint.code`), those of installed packages by their names.
"""

from __future__ import annotations

import copyreg
import hashlib
import sys
import types
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import is_masked
from nbshare._core.arrays.shared_array import SharedArray
from nbshare._core.functions.annotations import OF_ANNOTATIONS, parts_of
from nbshare._core.functions.pickling import TOO_DEEP
from nbshare.errors import CheckpointError, cut

SIZE = 16  # bytes
PIECE_NBYTES = 16 << 20  # of an array, hashed at a time
N_THREADS = 4  # that hash pieces
OF_WRAPPERS = "cache_info", "targetoptions"  # of functions with a cache, and of Numba's
# Answers that objects keep once they were asked, and what splines leave of their work.
ANSWERS = {
    "_cs_matrix._has_sorted_indices", "_cs_matrix._has_canonical_format", "ExtensionArray._cache",
    "ExtensionArray._readonly", "UnivariateSpline._data",
    "Delaunay._transform", "Delaunay._vertex_to_simplex", "Delaunay._vertex_neighbor_vertices",
}  # fmt: skip

_PLAIN = {type(None), bool, int, float, complex, str, type(Ellipsis), type(NotImplemented), range}
_OF_NAMED_TUPLES = set(vars(namedtuple("Any", ())))
_ARRAYS = {np.ndarray, np.memmap, SharedArray, np.ma.MaskedArray}  # others have attributes


def digest(*parts: Any) -> bytes:
    """Return the digest of some bytes."""
    hashed = hashlib.sha1(usedforsecurity=False)  # the quickest of those that are good enough
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return bytes(hashed.digest()[:SIZE])


class Digests:
    """Digests of values.

    Parameters
    ----------
    definition : callable
        ``definition(obj)`` returns a text for a function, class or module, and notes the code that
        it reaches.
    version : str, optional
        Given by the user. With it, an object without a digest counts by its type alone.
    """

    def __init__(self, definition: Callable[[Any], str], version: str | None) -> None:
        self.definition, self.version = definition, version

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value, which messages call `where`.

        Raises
        ------
        CheckpointError
            If there is none that is the same tomorrow.
        """
        return self._found(lambda walk: walk.of(value, where), where)

    def of_attributes(self, values: Mapping[str, Any], where: str) -> bytes:
        """Return the digest of the attributes of what messages call `where`."""
        return self._found(lambda walk: walk.pairs("state", values, where), where)

    def _found(self, digest_in: Callable[[_Walk], bytes], where: str) -> bytes:
        try:
            return digest_in(_Walk(self))
        except RecursionError:
            raise CheckpointError(
                f"{where} is nested too deeply to have a digest. {TOO_DEEP}"
            ) from None


class _Walk:
    """Goes through a value, and takes each object once."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the objects, which are kept
        self._in_cycles = set[int]()  # those that are not gone through, or lead to themselves
        self._n_cycles = 0

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value."""
        kind, key = type(value), id(value)
        if kind in _PLAIN:
            return _of_text(kind.__name__, repr(value))
        if kind in (bytes, bytearray, memoryview):
            return digest(kind.__name__.encode(), value)
        if kind is tuple:  # not kept, as it may hold the copy of an array that a pickle would have
            return self._all("tuple", value, where)
        if key in self._known:
            self._n_cycles += key in self._in_cycles
            return self._known[key][1]
        self._known[key] = value, _of_text("again", str(len(self._in_cycles)))
        self._in_cycles.add(key)
        before = self._n_cycles
        found = self._of_parts(value, kind, where)
        if self._n_cycles == before:  # else the digest depends on how we came here
            self._known[key] = value, found
            self._in_cycles.discard(key)
        return found

    def _of_parts(self, value: Any, kind: type, where: str) -> bytes:
        if kind is list:
            return self._all("list", value, where)
        if kind in (dict, types.MappingProxyType):
            return self.pairs(kind.__name__, value, where)
        if isinstance(value, set | frozenset):
            found = sorted(self._digests.of(each, where) for each in value)
            reduce = set.__reduce__ if isinstance(value, set) else frozenset.__reduce__
            return self._all("set", [kind, reduce(value)[2], *found], where)  # with its attributes
        if kind in _ARRAYS or isinstance(value, np.generic):
            return self._array(value, where)
        if isinstance(value, types.ModuleType | types.FunctionType | type):
            return _of_text(self._digests.definition(value))
        if isinstance(value, types.MethodType):
            return self._all("method", [value.__func__, value.__self__], where)
        if hasattr(value, "__wrapped__") and any(hasattr(value, each) for each in OF_WRAPPERS):
            options = getattr(value, "targetoptions", None)
            of_cache = getattr(value, "cache_parameters", lambda: None)()
            return self._all("wrapper", [kind, value.__wrapped__, options, of_cache], where)
        if kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas"):
            # Not its blocks, because how columns share them depends on how it was made.
            columns = [column.array for _, column in value.items()]
            flags = value.flags.allows_duplicate_labels
            parts = [value.columns, value.index, value.attrs, flags, *columns]
            return self._all("frame", parts, where)
        if isinstance(value, OF_ANNOTATIONS):
            return self._all("annotation", [kind.__name__, *parts_of(value)], where)
        if _is_unnamed_tuple(kind):
            return self._all("named tuple", [kind.__name__, value._fields, *value], where)
        return self._object(value, kind, where)

    def _all(self, tag: str, values: Iterable[Any], where: str) -> bytes:
        values = list(values)
        if _PLAIN.issuperset(map(type, values)):
            return _of_text(tag, repr(values))
        found = []
        for i, value in enumerate(values):  # no comprehension, which would need one more level
            found.append(self.of(value, f"{where}[{i}]"))
        return digest(tag.encode(), *found)

    def pairs(self, tag: str, pairs: Mapping[Any, Any], where: str) -> bytes:
        """Return the digest of names or keys with values."""
        if _PLAIN.issuperset(map(type, (*pairs, *pairs.values()))):
            return _of_text(tag, repr(dict(pairs)))
        found = []
        for key, value in pairs.items():
            name = f".{key}" if tag == "state" else f"[{cut(repr(key))}]"
            found += [self.of(key, where), self.of(value, where + name)]
        return digest(tag.encode(), *found)

    def _array(self, array: Any, where: str) -> bytes:
        if array.dtype.names:  # what is between the fields is anything
            fields = [array[name] for name in array.dtype.names]
            return self._all("fields", [repr(array.dtype), array.dtype.metadata, *fields], where)
        if is_masked(array):
            mask, data = np.ma.getmaskarray(array), np.ma.getdata(array)
            zero = np.zeros((), array.dtype)
            parts = [np.where(mask, zero, data), mask, array.fill_value, array.hardmask]
            return self._all("masked", parts, where)
        plain = np.asarray(array)
        kind = "scalar" if isinstance(array, np.generic) else "array"
        text = f"{kind} {plain.dtype.name} {plain.dtype.str} {plain.shape}"
        if metadata := plain.dtype.metadata:  # such as h5py's, of what an array holds
            return self._all(text, [metadata, plain.view(plain.dtype.str)], where)
        if plain.dtype.char in "gG":  # some of the bytes of a long double are anything
            plain = plain.astype("U")
        if plain.dtype.hasobject or plain.dtype.char == "T":
            return self._all(text, plain.ravel().tolist(), where)
        pieces = list(_pieces(np.atleast_1d(plain)))
        if len(pieces) == 1:
            return digest(text.encode(), _bytes_of(pieces[0]))
        with ThreadPoolExecutor(N_THREADS) as threads:
            found = threads.map(lambda piece: digest(_bytes_of(piece)), pieces)
            return digest(text.encode(), *found)

    def _object(self, value: Any, kind: type, where: str) -> bytes:
        name = f"{kind.__module__}.{kind.__qualname__}"
        if kind is np.random.RandomState and value is np.random.mtrand._rand:  # as SciPy keeps it
            return _of_text("NumPy's global random state, which is another one in each process")
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            if self._digests.version is not None:
                return _of_text("object", name)
            raise CheckpointError(
                f"{where} is a {name}, which has no stable digest, as it has no values "
                'that can be compared. Pass checkpoint=nbshare.Checkpoint(path, version="1"), and '
                "another version when results would change: with it such objects count by their "
                "type alone."
            ) from error
        if isinstance(reduced, str):
            return _of_text("name", name, str(getattr(value, "__module__", None)), reduced)
        func, args, state, items, pairs = (*reduced, None, None, None)[:5]
        found = [self._all("object", [func, args, list(items or ())], where)]
        found.append(self.pairs("pairs", dict(pairs or ()), where))
        for each in state if type(state) is tuple else (state,):
            if isinstance(each, dict):
                found.append(self.pairs("state", _without_answers(each, kind), where))
            else:
                found.append(self.of(each, where))
        return digest(*found)


def _is_unnamed_tuple(kind: Any) -> bool:
    """Whether a class is just a named tuple, made on the fly, such as pandas makes for rows.

    Its fields say all. As code it would be new for each table.
    """
    members = vars(kind).keys() - set(getattr(kind, "_fields", ()))
    is_named = getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind
    return kind.__bases__ == (tuple,) and members == _OF_NAMED_TUPLES and not is_named


def _of_text(*words: str) -> bytes:
    return digest(" ".join(words).encode("utf8", "surrogatepass"))


def _without_answers(state: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return attributes without those that follow from others, and are there once asked for."""
    answers = {
        name
        for name in state
        for base in kind.__mro__
        if f"{base.__name__}.{name}" in ANSWERS or isinstance(vars(base).get(name), cached_property)
    }
    return {name: value for name, value in state.items() if name not in answers}


def _pieces(array: npt.NDArray[Any]) -> Iterator[npt.NDArray[Any]]:
    """Yield an array in pieces that depend on its shape and dtype alone."""
    row_nbytes = array[:1].nbytes
    if row_nbytes > PIECE_NBYTES and array.ndim > 1:
        for row in array:
            yield from _pieces(row)
    else:
        step = max(1, PIECE_NBYTES // max(1, row_nbytes))
        for k in range(0, max(1, len(array)), step):
            yield array[k : k + step]


def _bytes_of(array: npt.NDArray[Any]) -> Any:
    """Return the bytes of an array in the order of its items, not copied if it is contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8) if array.nbytes else b""
