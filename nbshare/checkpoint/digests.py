"""Digests of values by what they hold: the same in each process, on each machine.

Never of pickles, which differ for equal objects; never of what is random, such as addresses.
Containers, arrays and objects are gone through; functions and classes of own files count by the
source that they reach (`nbshare.checkpoint.code`), those of installed packages by their names.
"""

from __future__ import annotations

import copyreg
import hashlib
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.by_reference import is_masked
from nbshare.arrays.shared_array import SharedArray
from nbshare.errors import CheckpointError, cut

SIZE = 16  # bytes
PIECE_NBYTES = 16 << 20  # of an array: hashed at a time
N_THREADS = 4  # that hash pieces
X87_NMANT = 63  # bits of a long double that takes 10 of its 16 bytes
# Answers that objects keep once they were asked, and what splines leave of their work.
ANSWERS = {
    "_cs_matrix._has_sorted_indices", "_cs_matrix._has_canonical_format", "ExtensionArray._cache",
    "ExtensionArray._readonly", "UnivariateSpline._data",
    "Delaunay._transform", "Delaunay._vertex_to_simplex", "Delaunay._vertex_neighbor_vertices",
}  # fmt: skip

_PLAIN = {type(None), bool, int, float, complex, str, type(Ellipsis), type(NotImplemented), range}
_ARRAYS = {np.ndarray, np.memmap, SharedArray, np.ma.MaskedArray}  # others have attributes


def _new_hash() -> Any:
    return hashlib.sha1(usedforsecurity=False)  # the quickest of those that are good enough


def digest(*parts: Any) -> bytes:
    """Return the digest of some bytes."""
    hashed = _new_hash()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "little"))
        hashed.update(part)
    return bytes(hashed.digest()[:SIZE])


class Digests:
    """What values are like.

    Parameters
    ----------
    definition : callable
        ``definition(obj)`` returns a text for a function, class or module, and notes the code that
        it reaches.
    version : str, optional
        Given by the user; then what has no digest counts by its type alone.
    """

    def __init__(self, definition: Callable[[Any], str], version: str | None) -> None:
        self.definition, self.version = definition, version

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value; `where`: what messages call it.

        Raises
        ------
        CheckpointError
            If there is none that is the same tomorrow.
        """
        try:
            return _Walk(self).of(value, where)
        except RecursionError:
            raise CheckpointError(f"{where} is nested too deeply to have a digest") from None


class _Walk:
    """Goes through a value, and takes each object once."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self._above: dict[int, int] = {}  # the objects that it is in -> how deep they are
        self._highest = sys.maxsize  # depth of those among them that the present one leads to
        self._known: dict[int, tuple[Any, bytes]] = {}  # with the objects, which are kept
        self._n_in_cycles = 0

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value."""
        kind, key = type(value), id(value)
        if kind in _PLAIN:
            return _of_text(kind.__name__, repr(value))
        if kind in (bytes, bytearray, memoryview):
            return digest(b"bytes", value)
        if kind is tuple:  # not kept: it may hold the copy of an array that a pickle would have
            return self._all("tuple", value, where)
        if key in self._known:
            return self._known[key][1]
        depth = len(self._above)
        if key in self._above:
            self._highest = min(self._highest, self._above[key])
            return _of_text("above", str(depth - self._above[key]))
        self._above[key] = depth
        before, self._highest = self._highest, sys.maxsize
        found = self._of_parts(value, kind, where)
        del self._above[key]
        self._known[key] = value, found
        if self._highest < depth:  # the digest depends on how we came here; next time, it is known
            self._n_in_cycles += 1
            self._known[key] = value, _of_text("again", str(self._n_in_cycles))
            before = min(before, self._highest)
        self._highest = before
        return found

    def _of_parts(self, value: Any, kind: type, where: str) -> bytes:
        if kind is list:
            return self._all("list", value, where)
        if kind in (dict, types.MappingProxyType):
            return self._pairs("dict", value, where)
        if isinstance(value, set | frozenset):
            found = sorted(self._digests.of(each, where) for each in value)
            if kind in (set, frozenset):
                return digest(b"set", *found)
            return digest(b"set", *found, self._all("kind", [kind, vars(value)], where))
        if kind in _ARRAYS:
            return self._array(value, where)
        if isinstance(value, np.generic):
            return self._array(np.asarray(value), where)
        if isinstance(value, types.ModuleType | types.FunctionType | type):
            return _of_text(self._digests.definition(value))
        if isinstance(value, types.MethodType):
            return self._all("method", [value.__func__, value.__self__], where)
        if hasattr(value, "__wrapped__") and hasattr(value, "cache_info"):
            return self._all("cached", [value.__wrapped__], where)
        if kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas"):
            # Not its blocks: how columns share them depends on how it was made.
            columns = [column.array for _, column in value.items()]
            return self._all("frame", [value.columns, value.index, value.attrs, *columns], where)
        if kind.__module__.startswith("numba.") and hasattr(value, "py_func"):
            return self._all("compiled", [kind, value.py_func, value.targetoptions], where)
        return self._object(value, kind, where)

    def _all(self, tag: str, values: Iterable[Any], where: str) -> bytes:
        values = list(values)
        if _PLAIN.issuperset(map(type, values)):
            return _of_text(tag, repr(values))
        found = []
        for i, value in enumerate(values):  # no comprehension: it would need one more level
            found.append(self.of(value, f"{where}[{i}]"))
        return digest(tag.encode(), *found)

    def _pairs(self, tag: str, pairs: Mapping[Any, Any], where: str) -> bytes:
        if _PLAIN.issuperset(map(type, (*pairs, *pairs.values()))):
            return _of_text(tag, repr(dict(pairs)))
        found = []
        for key, value in pairs.items():
            name = f".{key}" if tag == "state" else f"[{cut(repr(key))}]"
            found += [self.of(key, where), self.of(value, where + name)]
        return digest(tag.encode(), *found)

    def _array(self, array: Any, where: str) -> bytes:
        if array.dtype.names:  # what is between the fields is anything
            fields = self._all("fields", [array[name] for name in array.dtype.names], where)
            return digest(repr(array.dtype.names).encode(), fields)
        if is_masked(array):
            mask, data = np.ma.getmaskarray(array), np.ma.getdata(array)
            zero = np.zeros((), array.dtype)
            return self._all("masked", [np.where(mask, zero, data), mask], where)
        plain = np.asarray(array)
        if plain.dtype.hasobject or plain.dtype.char == "T":
            return self._all(f"objects {plain.dtype} {plain.shape}", plain.ravel().tolist(), where)
        hashed = _new_hash()
        text = f"array {plain.dtype.name} {plain.dtype.str} {plain.shape}".encode()
        hashed.update(len(text).to_bytes(8, "little") + text)
        pieces = list(_pieces(np.atleast_1d(plain)))
        if len(pieces) == 1:
            hashed.update(_bytes_of(pieces[0]))
        else:
            with ThreadPoolExecutor(N_THREADS) as threads:
                for found in threads.map(lambda piece: digest(_bytes_of(piece)), pieces):
                    hashed.update(found)
        return bytes(hashed.digest()[:SIZE])

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
                'that can be compared. Give the run a version="1", which you change when its '
                "results would change; then such objects count by their type alone."
            ) from error
        if isinstance(reduced, str):
            return _of_text("name", name, str(getattr(value, "__module__", None)), reduced)
        func, args, state, items, pairs = (*reduced, None, None, None)[:5]
        if isinstance(state, dict):
            found = self._pairs("state", _without_answers(state, kind), where)
        elif type(state) is tuple:
            found = self.of(tuple(_without_answers(part, kind) for part in state), where)
        else:
            found = self.of(state, where)
        return digest(
            self._all("object", [func, args], where),
            found,
            self._all("items", items or (), where),
            self._pairs("pairs", dict(pairs or ()), where),
        )


def _of_text(*words: str) -> bytes:
    return digest(" ".join(words).encode("utf8", "surrogatepass"))


def _without_answers(state: Any, kind: type) -> Any:
    """Return attributes without those that follow from others, and are there once asked for."""
    if not isinstance(state, dict):
        return state
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
    """Return the bytes of an array in the order of its items: no copy if it is contiguous."""
    if not array.nbytes:
        return b""
    found = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    if array.dtype.char in "gG" and np.finfo(array.dtype).nmant == X87_NMANT:
        found = np.ascontiguousarray(found.reshape(-1, 16)[:, :10])  # the rest is anything
    return found
