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

LEAST = 2_000_000  # bytes of a pickle. Smaller ones hardly become 100 MB
SAMPLES = 300  # objects to look at in each layer
DEPTH = 12  # layers of objects in objects
GRAIN = 16  # bytes by which Python allocates. Objects that hold others have as many more

_BY_NAME = type, ModuleType, BuiltinFunctionType
_TEXTS = str, bytes, bytearray
_SEQUENCES: tuple[Any, ...] = list, tuple, set, frozenset, deque


def loaded_nbytes(obj: Any, n_pickled: int) -> int:
    """Estimate the bytes of the Python objects that the pickle of an object becomes.

    Arrays and other memory next to the pickle do not count. Large containers are sampled, and the
    other objects in them count as alike.
    """
    nbytes: float = n_pickled  # of its texts, and more
    if n_pickled >= LEAST:
        from random import Random  # late, as it is rarely needed

        with suppress(Exception):  # a dict may change meanwhile, and classes may do anything
            nbytes += _nbytes(obj, Random(0))  # noqa: S311 - nothing secret
    return round(nbytes)


def _nbytes(obj: Any, random: Random) -> float:
    """Return the bytes of an object and of the objects in it, except texts."""
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
    """Return the size of an object alone.

    Classes of other packages may report memory that is not pickled, so their base class is used.
    """
    if isinstance(obj, np.ndarray):
        return obj.nbytes if obj.dtype.hasobject else 0
    known = sys.stdlib_module_names
    bases: Iterable[Any] = type(obj).__mro__
    base = next(base for base in bases if base.__module__.partition(".")[0] in known)
    nbytes: int = base.__sizeof__(obj)
    return nbytes - len(obj) if issubclass(base, _TEXTS) else nbytes


def _parts_of(obj: Any) -> list[tuple[int, Any]]:
    """Return the objects in an object, in groups of similar objects, each after its count."""
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
    """Estimate how many of `n` objects are distinct, as in the birthday problem."""
    n_again = n_sampled - n_new
    if n_sampled == n or n_new < n_again:
        return n_new
    return min(n, n_sampled**2 / (2 * n_again)) if n_again else n
