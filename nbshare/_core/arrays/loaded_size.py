"""Estimates how much memory an object takes in a worker that has loaded it."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice, pairwise
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from nbshare._core.arrays.passed import variables_of
from nbshare._core.functions.pickling import is_by_value
from nbshare._core.memory import aligned

if TYPE_CHECKING:
    from random import Random

LEAST = 2_000_000  # bytes. The objects of a smaller pickle hardly take 100 MB
SAMPLES = 300  # objects to measure in each layer
DEPTH = 12  # layers of objects in objects
GRAIN = 16  # bytes in which Python allocates, and of the header of objects that hold others

_BY_NAME = type, ModuleType, BuiltinFunctionType
_TEXTS = str, bytes, bytearray
_SEQUENCES: tuple[Any, ...] = list, tuple, set, frozenset, deque


def loaded_nbytes(obj: Any, n_pickled: int) -> int:
    """Estimate the bytes of the Python objects that a worker creates from an object's pickle.

    Arrays and other memory next to the pickle do not count. Large containers are sampled, and their
    other objects are assumed to be similar.
    """
    nbytes: float = n_pickled  # strings and other contents
    if n_pickled >= LEAST:
        from random import Random  # late, because it is rarely needed

        with suppress(Exception):  # a dict may change meanwhile, and classes may do anything
            nbytes += _nbytes(obj, Random(0))  # noqa: S311 - nothing secret
    return round(nbytes)


def _nbytes(obj: Any, random: Random) -> float:
    """Return the bytes of an object and of the objects in it, except the contents of strings."""
    nbytes = 0.0
    met = set[int]()
    layer = [(obj, 1.0)]  # objects, and how many each one stands for
    for _ in range(DEPTH):
        n_samples = max(1, SAMPLES // max(1, len(layer)))
        inner: list[tuple[Any, float]] = []
        for each, weight in layer:
            if id(each) in met or issubclass(type(each), _BY_NAME):
                continue
            met.add(id(each))
            parts = _parts_of(each)
            nbytes += weight * aligned(_own_nbytes(each) + GRAIN * bool(parts), GRAIN)
            for n, alike in parts:
                sample = _sample(alike, n, n_samples, random)
                if n_new := len({*map(id, sample)} - met):
                    stands_for = weight * _n_distinct(n, len(sample), n_new) / n_new
                    inner += [(part, stands_for) for part in sample]
        layer = inner
    return nbytes


def _own_nbytes(obj: Any) -> int:
    """Return the size of an object without the objects in it.

    Classes of packages may report memory that is not pickled, so the size is that of the first base
    class in the standard library.
    """
    if isinstance(obj, np.ndarray):
        return obj.nbytes if obj.dtype.hasobject else 0
    known = sys.stdlib_module_names
    bases: Iterable[Any] = type(obj).__mro__
    base = next(base for base in bases if base.__module__.partition(".")[0] in known)
    nbytes: int = base.__sizeof__(obj)
    return nbytes - len(obj) if issubclass(base, _TEXTS) else nbytes


def _parts_of(obj: Any) -> list[tuple[int, Any]]:
    """Return the objects in an object, as groups of similar objects, each after its length."""
    kind = type(obj)
    parts: list[tuple[int, Any]]
    if issubclass(kind, dict):
        parts = [(dict.__len__(obj), part) for part in (dict.keys(obj), dict.values(obj))]
    elif base := next((base for base in _SEQUENCES if issubclass(kind, base)), None):
        parts = [(base.__len__(obj), base.__iter__(obj))]
    elif issubclass(kind, np.ndarray):
        parts = [(obj.size, obj.flat)] if obj.dtype.hasobject else []
    elif kind is FunctionType:
        parts = [(1, [part]) for part in variables_of(obj)] if is_by_value(obj) else []
    else:
        parts = [(len(held), held) for held in [gc.get_referents(obj)]]
    return [(n, part) for n, part in parts if n]


def _sample(parts: Iterable[Any], n: int, n_samples: int, random: Random) -> list[Any]:
    if n <= n_samples:
        return [*parts]
    places = sorted(random.sample(range(n), n_samples))
    left = iter(parts)
    return [next(islice(left, b - a - 1, None)) for a, b in pairwise([-1, *places])]


def _n_distinct(n: int, n_sampled: int, n_new: int) -> float:
    """Estimate how many of `n` objects are distinct from the repetitions in a sample."""
    n_again = n_sampled - n_new
    if n_sampled == n or n_new < n_again:
        return n_new
    return min(n, n_sampled**2 / (2 * n_again)) if n_again else n
