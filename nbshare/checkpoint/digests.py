"""Digests of values by what they hold: the same in each process, on each machine.

Never of pickles, which differ for equal objects; never of what is random, such as addresses.
Containers, arrays and objects are gone through; functions and classes of own files count by the
source that they reach (`nbshare.checkpoint.code`), those of installed packages by their names.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import struct
import types
from collections.abc import Callable, Iterable
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.by_reference import is_masked
from nbshare.errors import CheckpointError, cut

__all__ = ["SIZE", "Digests", "digest"]

SIZE = 16  # bytes
BLOCK_NBYTES = 16 << 20  # of an array that is not contiguous: copied at a time

_PLAIN = {type(None), bool, int, complex, str, type(Ellipsis), type(NotImplemented), range}
_NAMED = types.BuiltinFunctionType | types.MethodDescriptorType | types.WrapperDescriptorType
_NAMED |= types.MethodWrapperType | types.ClassMethodDescriptorType | np.ufunc


def _new_hash() -> Any:
    return hashlib.sha1(usedforsecurity=False)  # the quickest of those that are good enough


def digest(*parts: bytes) -> bytes:
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
        ``definition(obj)`` returns a text for a function, class or module, and notes the
        code that it reaches.
    version : str, optional
        Given by the user; then what has no digest counts by its type alone.
    """

    def __init__(self, definition: Callable[[Any], str], version: str | None) -> None:
        self._definition, self._version = definition, version

    def of(self, value: Any, where: str) -> bytes:
        """Return the digest of a value; `where`: what messages call it.

        Raises
        ------
        CheckpointError
            If there is none that is the same tomorrow.
        """
        hashed = _new_hash()
        self._put(hashed.update, value, where, ())
        return bytes(hashed.digest()[:SIZE])

    def _put(
        self, put: Callable[[Any], None], value: Any, where: str, path: tuple[int, ...]
    ) -> None:
        kind = type(value)
        if kind is float:
            put(b"float" + struct.pack("<d", value))
        elif kind in _PLAIN:
            text = f"{kind.__name__} {value!r}".encode("utf8", "surrogatepass")
            put(len(text).to_bytes(8, "little") + text)
        elif kind in (bytes, bytearray, memoryview):
            put(f"bytes {len(value)} ".encode() + bytes(value))
        elif id(value) in path:
            put(f"above {len(path) - path.index(id(value))}".encode())
        else:
            self._put_parts(put, value, where, (*path, id(value)))

    def _put_parts(
        self, put: Callable[[Any], None], value: Any, where: str, path: tuple[int, ...]
    ) -> None:
        kind = type(value)
        if kind in (list, tuple):
            self._put_all(put, kind.__name__, value, where, path)
        elif kind is dict:
            self._put_pairs(put, "dict", value, where, path)
        elif kind in (set, frozenset):
            put(f"set {len(value)} ".encode() + b"".join(sorted(self.of(v, where) for v in value)))
        elif isinstance(value, np.ndarray):
            self._put_array(put, value, where, path)
        elif isinstance(value, np.generic):
            self._put_array(put, np.asarray(value), where, path)
        elif isinstance(value, Enum | PurePath):
            put(f"{kind.__module__}.{kind.__qualname__} {value!s}".encode("utf8", "replace"))
        elif isinstance(value, np.dtype):
            put(f"dtype {value.name} {value.str} {value.fields and value.descr}".encode())
        elif isinstance(value, types.ModuleType | types.FunctionType | type):
            put(self._definition(value).encode())
        elif kind is functools.partial:
            self._put_all(put, "partial", [value.func, value.args, value.keywords], where, path)
        elif isinstance(value, types.MethodType):
            name = value.__func__.__qualname__
            self._put_all(put, f"method {name}", [value.__func__, value.__self__], where, path)
        elif isinstance(value, _NAMED):
            owner = getattr(value, "__self__", None)
            put(f"builtin {value!r}".split(" at 0x")[0].split(" object")[0].encode())
            if owner is not None and not isinstance(owner, types.ModuleType):
                self._put(put, owner, where, path)
        elif hasattr(value, "__wrapped__") and hasattr(value, "cache_info"):
            self._put_all(put, "cached", [value.__wrapped__], where, path)
        elif (parts := _parts_of_table(value)) is not None:
            self._put_all(put, f"{kind.__module__}.{kind.__qualname__}", parts, where, path)
        else:
            self._put_object(put, value, where, path)

    def _put_all(
        self,
        put: Callable[[Any], None],
        tag: str,
        values: Iterable[Any],
        where: str,
        path: tuple[int, ...],
    ) -> None:
        values = list(values)
        put(f"{tag} {len(values)} ".encode())
        for i, value in enumerate(values):
            self._put(put, value, f"{where}[{i}]", path)

    def _put_pairs(
        self, put: Callable[[Any], None], tag: str, pairs: Any, where: str, path: tuple[int, ...]
    ) -> None:
        put(f"{tag} {len(pairs)} ".encode())
        for key, value in pairs.items():
            self._put(put, key, where, path)
            name = f"{where}.{key}" if tag == "attributes" else f"{where}[{cut(repr(key))}]"
            self._put(put, value, name, path)

    def _put_array(
        self,
        put: Callable[[Any], None],
        array: npt.NDArray[Any],
        where: str,
        path: tuple[int, ...],
    ) -> None:
        if is_masked(array):
            mask = np.ma.getmaskarray(array)
            data = np.where(mask, np.zeros((), array.dtype), np.ma.getdata(array))
            return self._put_all(put, "masked", [data, mask], where, path)
        plain = np.asarray(array)
        if plain.dtype.hasobject or plain.dtype.char == "T":
            return self._put_all(put, f"objects {plain.shape}", plain.ravel().tolist(), where, path)
        if plain.dtype.names:  # what is between the fields is anything
            fields = {name: plain[name] for name in plain.dtype.names}
            return self._put_pairs(put, f"records {plain.shape}", fields, where, path)
        put(f"array {plain.dtype.name} {plain.dtype.str} {plain.shape} ".encode())
        if plain.flags.c_contiguous:
            return put(plain.reshape(-1).view(np.uint8)) if plain.nbytes else None
        step = max(1, BLOCK_NBYTES * len(plain) // max(plain.nbytes, 1))
        for k in range(0, len(plain), step):
            block = np.ascontiguousarray(plain[k : k + step]).reshape(-1)
            if block.nbytes:
                put(block.view(np.uint8))
        return None

    def _put_object(
        self, put: Callable[[Any], None], value: Any, where: str, path: tuple[int, ...]
    ) -> None:
        kind = type(value)
        try:
            reduce = copyreg.dispatch_table.get(kind)
            reduced = reduce(value) if reduce is not None else value.__reduce_ex__(4)
        except Exception as error:
            if self._version is not None:
                return put(f"object {kind.__module__}.{kind.__qualname__}".encode())
            raise CheckpointError(
                f"{where} is a {kind.__module__}.{kind.__qualname__}, and nobody can tell whether "
                "it is the same tomorrow: it has no stable digest. Give the run a "
                'version="1", which you change when its results would be others; then such '
                "objects count by their type alone."
            ) from error
        if isinstance(reduced, str):
            return put(f"name {kind.__module__}.{reduced}".encode())
        func, args, state, items, pairs = (*reduced, None, None, None)[:5]
        self._put_all(put, "object", [func, args], where, path)
        if (
            isinstance(state, tuple)
            and len(state) == 2
            and all(part is None or isinstance(part, dict) for part in state)
        ):  # attributes and slots
            state = {**(state[0] or {}), **(state[1] or {})}
        if isinstance(state, dict):
            self._put_pairs(put, "attributes", state, where, path)
        elif state is not None:
            self._put(put, state, where, path)
        if items is not None:
            self._put_all(put, "items", items, where, path)
        if pairs is not None:
            self._put_pairs(put, "pairs", dict(pairs), where, path)
        return None


def _parts_of_table(value: Any) -> list[Any] | None:
    """Return what a table or matrix of a library that we know consists of; None for others.

    As objects they differ by what was asked of them before.
    """
    library = type(value).__module__.partition(".")[0]
    if library == "pandas":
        return _parts_of_pandas(value)
    if library == "pyarrow" and hasattr(value, "schema"):
        return [str(value.schema), *(column.to_pylist() for column in value.columns)]
    if library == "pyarrow" and hasattr(value, "to_pylist"):
        return [str(value.type), value.to_pylist()]
    if library == "scipy" and hasattr(value, "tocoo"):
        names = ("data", "indices", "indptr", "row", "col", "offsets")
        there = [getattr(value, name) for name in names if hasattr(value, name)]
        return [value.shape, *there] if there else None
    return None


def _parts_of_pandas(value: Any) -> list[Any] | None:
    if hasattr(value, "columns") and hasattr(value, "items"):
        columns = [value.iloc[:, k] for k in range(value.shape[1])]
        return [value.columns, value.index, *map(_values_of, columns)]
    if hasattr(value, "array") and hasattr(value, "index") and hasattr(value, "name"):
        return [value.name, value.index, _values_of(value)]
    if hasattr(value, "array") and hasattr(value, "names"):  # an index
        return [list(value.names), str(value.dtype), _values_of(value)]
    return None


def _values_of(column: Any) -> Any:
    """Return the values of a column as an array, or as a list if NumPy has no dtype for them."""
    if isinstance(column.dtype, np.dtype) and not column.dtype.hasobject:
        return column.to_numpy()
    return [str(column.dtype), np.asarray(column, object).tolist()]
