"""Digests of values by what they hold: the same in each process, on each machine.

Never of pickles, which differ for equal objects; never of what is random, such as addresses.
Containers, arrays and objects are gone through; functions and classes of own files count by the
source that they reach (`nbshare.checkpoint.code`), those of installed packages by their names.
"""

from __future__ import annotations

import copyreg
import hashlib
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
# Answers that sparse matrices keep once they were asked.
ANSWERS = {"_has_sorted_indices", "_has_canonical_format"}

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
        walk = _Walk(self)
        walk.put(value, where)
        return bytes(walk.hashed.digest()[:SIZE])


class _Walk:
    """Goes through a value, and feeds a hash with all that it holds."""

    def __init__(self, digests: Digests) -> None:
        self._digests = digests
        self.hashed = _new_hash()
        self._above: list[int] = []  # the objects that it is in

    def _tag(self, *words: Any) -> None:
        text = " ".join(map(str, words)).encode("utf8", "surrogatepass")
        self.hashed.update(len(text).to_bytes(8, "little") + text)

    def put(self, value: Any, where: str) -> None:
        """Take a value."""
        kind = type(value)
        if kind in _PLAIN:
            self._tag(kind.__name__, repr(value))
        elif kind in (bytes, bytearray, memoryview):
            self._tag("bytes", len(value))
            self.hashed.update(value)
        elif id(value) in self._above:
            self._tag("above", len(self._above) - self._above.index(id(value)))
        else:
            self._above.append(id(value))
            self._put_parts(value, kind, where)
            self._above.pop()

    def _put_parts(self, value: Any, kind: type, where: str) -> None:
        if kind in (list, tuple):
            self._put_all(kind.__name__, value, where)
        elif kind in (dict, types.MappingProxyType):
            self._put_pairs("dict", value, where)
        elif kind in (set, frozenset):
            self._tag("set", sorted(self._digests.of(each, where) for each in value))
        elif kind in _ARRAYS:
            self._put_array(value, where)
        elif isinstance(value, np.generic):
            self._put_array(np.asarray(value), where)
        elif isinstance(value, types.ModuleType | types.FunctionType | type):
            self._tag(self._digests.definition(value))
        elif isinstance(value, types.MethodType):
            self._put_all("method", [value.__func__, value.__self__], where)
        elif hasattr(value, "__wrapped__") and hasattr(value, "cache_info"):
            self._put_all("cached", [value.__wrapped__], where)
        elif kind.__name__ == "DataFrame" and kind.__module__.startswith("pandas"):
            # Not its blocks: how columns share them depends on how it was made.
            columns = [column.array for _, column in value.items()]
            self._put_all("frame", [value.columns, value.index, value.attrs, *columns], where)
        else:
            self._put_object(value, kind, where)

    def _put_all(self, tag: str, values: Iterable[Any], where: str) -> None:
        values = list(values)
        self._tag(tag, len(values))
        for i, value in enumerate(values):
            self.put(value, f"{where}[{i}]")

    def _put_pairs(self, tag: str, pairs: Mapping[Any, Any], where: str) -> None:
        self._tag(tag, len(pairs))
        for key, value in pairs.items():
            self.put(key, where)
            self.put(value, f"{where}.{key}" if tag == "state" else f"{where}[{cut(repr(key))}]")

    def _put_array(self, array: Any, where: str) -> None:
        if is_masked(array):
            mask, data = np.ma.getmaskarray(array), np.ma.getdata(array)
            zero = np.zeros((), array.dtype)
            return self._put_all("masked", [np.where(mask, zero, data), mask], where)
        plain = np.asarray(array)
        self._tag("array", plain.dtype.name, plain.dtype.str, plain.shape)
        if plain.dtype.hasobject or plain.dtype.char == "T":
            return self._put_all("objects", plain.ravel().tolist(), where)
        if plain.dtype.names:  # what is between the fields is anything
            return self._put_pairs("fields", {n: plain[n] for n in plain.dtype.names}, where)
        pieces = list(_pieces(np.atleast_1d(plain)))
        if len(pieces) == 1:
            self.hashed.update(_bytes_of(pieces[0]))
        else:
            with ThreadPoolExecutor(N_THREADS) as threads:
                for hashed in threads.map(lambda piece: digest(_bytes_of(piece)), pieces):
                    self.hashed.update(hashed)
        return None

    def _put_object(self, value: Any, kind: type, where: str) -> None:
        name = f"{kind.__module__}.{kind.__qualname__}"
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception as error:
            if self._digests.version is not None:
                return self._tag("object", name)
            raise CheckpointError(
                f"{where} is a {name}, which has no stable digest, as it has no values "
                'that can be compared. Give the run a version="1", which you change when its '
                "results would change; then such objects count by their type alone."
            ) from error
        if isinstance(reduced, str):
            return self._tag("name", name, getattr(value, "__module__", None), reduced)
        func, args, state, items, pairs = (*reduced, None, None, None)[:5]
        self._put_all("object", [func, args], where)
        if isinstance(state, dict):
            kept = {k: v for k, v in state.items() if not _is_answer(kind, k)}
            self._put_pairs("state", kept, where)
        else:
            self.put(state, where)
        self._put_all("items", items or (), where)
        return self._put_pairs("pairs", dict(pairs or ()), where)


def _is_answer(kind: type, name: Any) -> bool:
    """Whether an attribute follows from the others, and is there once it was asked for."""
    return name in ANSWERS or any(
        isinstance(vars(base).get(name), cached_property) for base in kind.__mro__
    )


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
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)
