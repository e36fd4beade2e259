"""Objects that several blocks of items hold, such as a table next to each index.

Blocks of items are pickled one by one. A large object that two of them hold is pickled once, as a
separate part, and blocks name it by `pickle.Pickler.persistent_id`. They also name objects in a
part, so an item that holds a part and an object in it receives one object of each.

::

    caller                                        worker
    pickled_once(blocks)    blocks, parts  ────►  NamedParts(load_part)
                                                  load(block), which requests parts by name

A worker keeps a part as long as the next items name it too. A part with array memory is loaded
again for each block, because items may write to that memory.

Objects that may be repeated are guessed: those near the top of items whose pickles are large. The
guess affects only speed and memory, because picklers recognize named objects by their identity.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.known import LoadedObjects, Memo

LEAST_BYTES = 32 << 10  # size of a part. Smaller objects are cheaper to copy than to find
LARGE_BLOCK = 128 << 10  # size of a block of several items that is searched for parts
MOST_NEAR = 128  # objects of a block that are searched
MOST_INNER = 256  # parts of an object that are searched
DEPTH = 5  # levels of nested objects
SAMPLES = 16  # items of a block that are searched

Name = int | tuple[int, int]  # the number of a part, or also a place in its memo
Names = dict[int, Name]  # by id

_NUMBERS = {bool, int, float, complex, type(None)}
_TEXTS = {str, bytes, bytearray}
_BY_NAME = type, ModuleType, BuiltinFunctionType, CodeType
_CONTAINERS: tuple[Any, ...] = tuple, list, dict, set, frozenset


class Pickled(NamedTuple):
    """A pickle, and the memory next to it."""

    data: bytes
    buffers: list[memoryview]
    copied: list[npt.NDArray[Any]]  # arrays that are copied to the arena


Columns = Sequence[Sequence[Any]]  # values of some items

T = TypeVar("T")


def pickled_once(
    n: int,
    block: Callable[[int], Columns],
    pickle: Callable[[Any, Names, Columns], tuple[Pickled, Callable[[], Memo]]],
    pickle_block: Callable[[int, Columns, Names], Pickled],
    pack: Callable[[Pickled], T],
) -> tuple[list[T], list[tuple[Any, Pickled]]]:
    """Pack the pickles of `n` blocks of items, and pickle large objects that several blocks hold.

    `block` returns the block of a number. `pickle` pickles an object of a block, and also returns a
    function that copies the pickler's memo. `pickle_block` pickles a block with its number. Both
    replace named objects by their names. `pack` packs the final pickle of a block.
    """
    finder = _Finder(block, pickle, pickle_block)
    packed: list[T] = []
    for k in range(n):
        pickled = finder.add(k)
        if not finder.pickles:  # no later block changes it
            packed.append(pack(pickled))
    return [*packed, *map(pack, finder.pickles.values())], finder.parts


class _Finder:
    """Finds the objects that several blocks hold, while it pickles the blocks."""

    def __init__(
        self,
        block: Callable[[int], Columns],
        pickle: Callable[[Any, Names, Columns], tuple[Pickled, Callable[[], Memo]]],
        pickle_block: Callable[[int, Columns, Names], Pickled],
    ) -> None:
        self._block, self._pickle, self._pickle_block = block, pickle, pickle_block
        self.pickles: dict[int, Pickled] = {}  # by block, of those that may be pickled again
        self.parts: list[tuple[Any, Pickled]] = []
        self._names: Names = {}
        self._named: list[Any] = []  # the named objects, kept alive
        self._seen: dict[int, tuple[Any, int]] = {}  # objects by id, and the first block of each
        self._others: set[int] = set()  # ids of the objects that are too small

    def add(self, k: int) -> Pickled:
        """Pickle block `k`, and earlier blocks again if they hold the same large objects."""
        block = self._block(k)
        if self.pickles:  # since a block was large
            self._look(k, block)
        pickled = self._pickle_block(k, block, self._names)
        least = LEAST_BYTES if len(block[0]) == 1 else LARGE_BLOCK
        if self.pickles:
            self.pickles[k] = pickled
        elif _nbytes_beyond(pickled, set()) >= least:
            self.pickles[k] = pickled
            self._look(k, block)
        return pickled

    def _look(self, k: int, block: Columns) -> None:
        """Make parts of the large objects that block `k` shares with earlier blocks."""
        found = {id(obj): obj for obj in _near(block)}
        outdated: set[int] = set()
        for key, obj in found.items():
            if key in self._names or key in self._others:
                continue
            first = self._seen.setdefault(key, (obj, k))[1]
            if first != k and self._make_part(obj, first):
                outdated.add(first)
        for each in outdated:
            self.pickles[each] = self._pickle_block(each, self._block(each), self._names)

    def _make_part(self, obj: Any, first: int) -> bool:
        """Make a part of an object if it is large.

        Return whether it is. Its first block is `first`.
        """
        try:
            pickled, copy_memo = self._pickle(obj, self._names, self._block(first))
        except Exception:  # noqa: BLE001 - its block raises the error
            self._others.add(id(obj))
            return False
        memo = copy_memo()
        placed_once = {*map(_memory_of, _memory_next_to(self.pickles[first]))}
        if _nbytes_beyond(pickled, placed_once) < LEAST_BYTES or id(obj) not in memo:
            self._others |= {id(obj)} | (memo.keys() & self._seen.keys())
            return False
        part = len(self.parts)
        self.parts.append((obj, pickled))
        for key, (place, each) in memo.items():
            # Most of them are strings.
            if (type(each) not in _TEXTS or len(each) >= LEAST_BYTES) and not _is_value(each):
                self._names.setdefault(key, (part, place))
                self._named.append(each)
        self._names[id(obj)] = part
        return True


def _memory_next_to(pickled: Pickled) -> list[Any]:
    """Return the arrays and buffers next to a pickle."""
    return [*pickled.buffers, *pickled.copied]


def _memory_of(part: Any) -> tuple[int, int]:
    """Return the address and size of an array or a buffer."""
    return np.asarray(part).__array_interface__["data"][0], part.nbytes


def _nbytes_beyond(pickled: Pickled, placed_once: set[tuple[int, int]]) -> int:
    """Return the bytes of a pickle and of its arrays, except memory that is placed once anyway."""
    others = _memory_next_to(pickled)
    if placed_once:
        others = [part for part in others if _memory_of(part) not in placed_once]
    nbytes: int = sum(part.nbytes for part in others)
    return len(pickled.data) + nbytes


def _near(columns: Columns) -> Iterator[Any]:
    """Yield objects near the top of some items of a block, outer ones first."""
    met: dict[int, Any] = {}
    step = len(columns[0]) // SAMPLES + 1
    layer = [item for column in columns for item in (*column[::step], column[-1])]
    for _ in range(DEPTH):
        inner = []
        for obj in layer:
            kind = type(obj)
            if kind in _NUMBERS or id(obj) in met or _is_value(obj):
                continue
            met[id(obj)] = obj
            yield obj
            if len(met) == MOST_NEAR:
                return
            is_leaf = kind in _TEXTS or kind is FunctionType
            if not is_leaf and _length(obj) <= MOST_INNER:
                inner.append(obj)
        layer = gc.get_referents(*inner)


def _length(obj: Any) -> int:
    """Return the length of a built-in container, without code of its class, or 0."""
    base = next((base for base in _CONTAINERS if issubclass(type(obj), base)), None)
    return 0 if base is None else base.__len__(obj)


def _is_value(obj: Any) -> bool:
    """Return whether an object is too simple for a name to save space."""
    kind = type(obj)
    if kind in _TEXTS:
        return len(obj) < LEAST_BYTES
    return kind in _NUMBERS or issubclass(kind, _BY_NAME)


class _Loaded(NamedTuple):
    """A part that a worker has loaded."""

    obj: Any
    objects: LoadedObjects  # the objects in it, which may be named too
    named: set[int]  # the parts that it names
    has_memory: bool  # whether it, or a part in it, has array memory


class NamedParts:
    """The worker's side: the parts that blocks name, each loaded on first use.

    Parameters
    ----------
    load : callable
        ``load(number, self)`` loads a part, and returns the part, the objects in it, and whether
        its pickle has memory next to it.
    """

    def __init__(self, load: Callable[[int, NamedParts], tuple[Any, LoadedObjects, bool]]) -> None:
        self._load = load
        self._parts: dict[int, _Loaded] = {}
        self._named = set[int]()  # since the last `drop_others`, or in the part that is loaded now

    def __call__(self, name: Name) -> Any:
        """Return the object of a name."""
        part, place = name if isinstance(name, tuple) else (name, None)
        self._named.add(part)
        if part not in self._parts:
            outer, self._named = self._named, set()
            try:
                obj, objects, has_memory = self._load(part, self)
                has_memory |= any(self._parts[inner].has_memory for inner in self._named)
                self._parts[part] = _Loaded(obj, objects, self._named, has_memory)
            finally:
                self._named = outer
        found = self._parts[part]
        return found.obj if place is None else found.objects[place]

    def begin_block(self) -> None:
        """Drop parts with array memory, because items of an earlier block may have changed it."""
        self._parts = {k: part for k, part in self._parts.items() if not part.has_memory}

    def drop_others(self) -> None:
        """Drop the parts that were not named since the previous call."""
        kept, left = set[int](), [*self._named]
        while left:
            part = left.pop()
            if part in self._parts and part not in kept:
                kept.add(part)
                left += self._parts[part].named
        self._parts = {part: self._parts[part] for part in kept}
        self._named = set()
