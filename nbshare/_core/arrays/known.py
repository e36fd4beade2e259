"""Objects that occur in several pickles of a call, and arrive as one object.

Function, shared objects and items are pickled one by one. An item that is, or contains, an object
of the function or of ``shared=`` names this object by the number of the pickle and the place in its
pickler's memo. The memo of the unpickler has the same places, as the protocol requires.

::

    caller                                          worker
    known.add(pickler.memo.copy)  of each           loaded.append(LoadedObjects(unpickler))
    known.place_of(obj)           in later ones ►   loaded[part][place]

Built-in containers, strings and numbers are values, and are copied. Arrays in shared memory are
references, which may be writable in one place and read-only in another.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from operator import itemgetter
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from nbshare._core.functions.pickling import is_by_value

Place = tuple[int, int]  # the number of a pickle, and an object's place in its memo
Entries = Collection[tuple[int, Any]]  # a memo's places and objects
Memo = Mapping[int, tuple[int, Any]]  # a pickler's memo: place and object, by id

_TEXTS = str, bytes, bytearray  # and subclasses
_CONTAINERS = {tuple, list, dict, set, frozenset}
_BY_NAME = type, ModuleType, BuiltinFunctionType  # pickled by name, so the same in all pickles


def _told_apart(entries: Entries) -> dict[int, Any]:
    """Return the objects of a memo whose identity matters, not just their value."""
    kinds = {*map(type, map(itemgetter(1), entries))}  # few, even for a million strings
    kinds = {k for k in kinds - _CONTAINERS if not issubclass(k, (*_TEXTS, *_BY_NAME))}
    if not kinds:
        return {}
    return {
        place: obj
        for place, obj in entries
        if type(obj) in kinds and (type(obj) is not FunctionType or is_by_value(obj))
    }


class KnownObjects:
    """The caller's side: finds the objects of earlier pickles.

    Attributes
    ----------
    is_used : bool
        Whether an object was found.
    may_have : bool
        Whether an object may be found. If not, picklers skip the search, for each of many objects.

    Notes
    -----
    Not thread-safe. Memos are read only when a pickle reaches an object that may be in one, because
    most items are arrays or plain values.
    """

    def __init__(self) -> None:
        self.is_used = self.may_have = False
        self._memos: list[tuple[int, Callable[[], Memo], dict[int, Any]]] = []  # not read so far
        self._n = 0  # pickles
        self._places: dict[int, tuple[Place, Any]] = {}  # by id, of objects that are kept alive

    def add(self, memo: Callable[[], Memo], objects: dict[int, Any] | None = None) -> None:
        """Add a pickle, by a function that returns the memo of its pickler.

        If `objects` is given, the objects of the memo are stored there, by their places.
        """
        self._memos.append((self._n, memo, {} if objects is None else objects))
        self._n += 1
        self.may_have = True

    def place_of(self, obj: Any) -> Place | None:
        """Return the place of an object, or None if no pickle holds it."""
        while self._memos:
            part, memo, objects = self._memos.pop()
            found = _told_apart(memo().values())
            objects.update(found)
            self._places |= {id(each): ((part, place), each) for place, each in found.items()}
            self.may_have = bool(self._places)
        if (known := self._places.get(id(obj))) is None:
            return None
        self.is_used = True
        return known[0]


class LoadedObjects:
    """The worker's side: the objects of a pickle that later pickles may name, by their places.

    Parameters
    ----------
    unpickler : pickle.Unpickler
        The unpickler of the pickle. Its memo, which also contains all strings, is read when an
        object is named.
    read : callable, optional
        Selects the objects that may be named, from the places and objects of the memo. Default:
        those whose identity matters.
    """

    def __init__(
        self, unpickler: Any, read: Callable[[Entries], dict[int, Any]] = _told_apart
    ) -> None:
        self._unpickler, self._read = unpickler, read

    def __getitem__(self, place: int) -> Any:
        return self._objects[place]

    @cached_property
    def _objects(self) -> dict[int, Any]:
        unpickler, self._unpickler = self._unpickler, None
        return self._read(unpickler.memo.copy().items())
