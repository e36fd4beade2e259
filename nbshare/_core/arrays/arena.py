"""Packs the inputs of a call, as pickles with their arrays next to them, into one segment.

::

    caller                                     worker
    arena = Arena()
    packed = arena.pack(obj, "shared")
    pool.filled(*arena.contents())  ────────►  inputs = Inputs(segments)
                                               obj = inputs.load(packed)

Arrays are not pickled, except arrays of objects and small ones among the items. An array in a
segment or a mapped file is sent as a reference. The memory of other arrays is copied into the
arena, each byte once (`arrays.copied`). Copies arrive read-only or private, see `arrays.passed`.
"""

from __future__ import annotations

import io
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, cached_property
from types import FunctionType
from typing import Any, Literal, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, WeakValueDictionary

import numpy as np
import numpy.typing as npt

from nbshare._core.arrays.by_reference import PLAIN, ByReference
from nbshare._core.arrays.contents import Contents
from nbshare._core.arrays.inputs import (
    ArrayReference,
    Itself,
    Packed,
    load_known,
    load_reference,
    lock,
    small,
)
from nbshare._core.arrays.known import KnownObjects, Memo
from nbshare._core.arrays.loaded_size import loaded_nbytes
from nbshare._core.arrays.passed import PassedArrays, is_table
from nbshare._core.arrays.reducers import DispatchTables
from nbshare._core.arrays.remedies import OTHERS, remedy_for
from nbshare._core.arrays.repeated import Name, Names, Pickled, pickled_once
from nbshare._core.functions.pickling import (
    TOO_DEEP,
    Keep,
    dumps_apart,
    is_too_deep,
    value_pickler,
)
from nbshare._core.memory import Mode
from nbshare._core.messages import cut, is_interrupt
from nbshare.errors import UnsendableError

IN_BAND = 4096  # bytes. A smaller array is cheaper to copy into the pickle than to refer to
LEAST_ITEMS = 64  # number of items below which each is pickled alone
# Number of blocks of more items. Packing and loading one takes 60 µs, and an item that cannot be
# loaded fails its block.
LEAST_BLOCKS = 24
BLOCK_ITEMS = 4096  # most items of a block, because more would hardly lower the cost of each
MOST_SAMPLES = 8  # most items in the sample that estimates the size of an item
BLOCK_BYTES = 64 << 10  # approximate size of a block, because a worker loads whole blocks


# Classes whose objects cannot be pickled, and hold others.
_HOLDING = threading.local, WeakKeyDictionary, WeakValueDictionary

_REDUCERS: dict[type, Callable[[Any], Any]] = {
    ArrayReference: lambda place: (load_reference, tuple(place)),
}


class _How(NamedTuple):
    """How to pickle an object."""

    passed: Any  # the user's argument: the object, or the items that it is a part of
    writable: bool = True  # whether workers may write to the SharedArrays in it
    names: Names | None = None  # names of objects in other pickles, by id
    starts: dict[int, int] | None = None  # see `Arena.pack`
    is_part: bool = False  # whether several items hold it
    leaves_out: bool = False  # whether parts that cannot be pickled are left out


class Arena(Contents):
    """Pickles the objects that a call sends, for one read-only segment.

    Attributes
    ----------
    known : KnownObjects
        The objects of earlier pickles, which later pickles may name.
    pickled : dict of int
        Estimated bytes of the Python objects that each worker loads, by their names in errors.
    tables : DispatchTables
        The tables of the arena's picklers.

    Parameters
    ----------
    copies_files : bool, default False
        Whether arrays in mapped files are copied too, because the arena may outlive the files.
    stays_here : bool, default False
        Whether only this process reads the arena, so that private memory is referenced, not copied.
    by_handle : bool, default False
        Whether other segments are named by handle, for workers that receive none. `segments` is
        empty then, and the caller keeps the packed objects until the workers have finished.
    by_value : bool, default False
        Whether everything is copied, for another machine. Objects that work on one machine only are
        refused.
    known : KnownObjects, optional
        The objects of another arena, whose pickles are loaded first.
    passed : {"r", "c"}, default "r"
        The mode of the user's arrays on arrival (`arrays.passed`), read-only or private.
    """

    def __init__(
        self,
        *,
        copies_files: bool = False,
        stays_here: bool = False,
        by_handle: bool = False,
        by_value: bool = False,
        known: KnownObjects | None = None,
        passed: Mode = "r",
    ) -> None:
        super().__init__(
            copies_files=copies_files,
            stays_here=stays_here,
            by_handle=by_handle,
            by_value=by_value,
        )
        self.passed = passed
        self.pickled: dict[str, int] = {}
        self.known = KnownObjects() if known is None else known
        self.tables = DispatchTables(_REDUCERS)

    def pack(
        self,
        obj: Any,
        what: str,
        *,
        writable: bool = False,
        is_named: bool = False,
        starts: dict[int, int] | None = None,
    ) -> Packed:
        """Pickle an object. Errors name it `what`.

        `writable` is whether workers may write to the object's SharedArrays, `is_named` whether
        later pickles may name its parts. `starts` contains the ids of the parts that have a user's
        class, and receives their approximate offsets in the pickle, in bytes.

        Raises
        ------
        UnsendableError
            If the object can be pickled neither by reference nor by value.
        """
        pickled, copy_memo = self._pickle(obj, what, _How(obj, writable, starts=starts))
        if is_named:
            self.known.add(copy_memo)
        if starts is None:  # otherwise the caller estimates the parts
            self.pickled[what] = loaded_nbytes(obj, len(pickled.data))
        return self._packed(pickled)

    def _packed(self, pickled: Pickled) -> Packed:
        data, buffers, copied = pickled
        spans: list[Any] = [None] * len(buffers)
        for k, raw in enumerate(buffers):
            self.place_buffer(raw, spans, k)
        return (0, *self.add(data)), spans, self.copy(copied) if copied else None

    def itself(self, obj: Any) -> Itself:
        """Return an object for use in this process without a copy. Pickles may name its parts."""

        def memo() -> Memo:
            made: list[Any] = []
            how = _How(obj, leaves_out=True)
            with suppress(Exception):  # then the parts before it are known
                dumps_apart(obj, IN_BAND, Arena(stays_here=True)._maker(how, made))
            return made[-1].memo.copy()  # type: ignore[no-any-return]

        found = Itself(obj, {})
        self.known.add(memo, found.objects)
        return found

    def pack_items(
        self, columns: Sequence[Sequence[Any]], first: int
    ) -> tuple[int, list[Packed], list[Packed]]:
        """Pickle items in blocks. The index of the first item is `first`.

        Each column has the values of one iterable. Return the number of items per block, the
        blocks, and the large objects that several blocks hold (`arrays.repeated`).
        """
        size = self.block_size(columns)
        starts = range(0, len(columns[0]), size)
        blocks, repeated = pickled_once(
            len(starts),
            # Not a list of all blocks, so that items are pickled while they are in the CPU's cache.
            lambda k: [column[starts[k] : starts[k] + size] for column in columns],
            lambda obj, names, block: self._pickle(
                obj, "item", _How(block, names=names, is_part=True)
            ),
            lambda k, block, names: self._pickle_block(block, first + starts[k], names),
            self._packed,
        )
        if repeated:
            largest = max(loaded_nbytes(obj, len(part.data)) for obj, part in repeated)
            self.pickled["an object of several items"] = largest
        return size, blocks, [self._packed(part) for _, part in repeated]

    def pack_block(self, columns: Sequence[Sequence[Any]], first: int) -> Packed:
        """Pickle items in one block. The index of the first item is `first`, for errors."""
        return self._packed(self._pickle_block(columns, first))

    def _pickle_block(
        self, columns: Sequence[Sequence[Any]], first: int, names: Names | None = None
    ) -> Pickled:
        try:
            return self._pickle(columns, "item", _How(columns, names=names))[0]
        except UnsendableError:
            for i, args in enumerate(zip(*columns, strict=True), start=first):
                for each in args:
                    self._pickle(each, f"item {i}", _How(each))
            raise

    def block_size(self, columns: Sequence[Sequence[Any]]) -> int:
        """Return how many items to pickle together. Each column has the values of one iterable."""
        n = len(columns[0])
        if n < LEAST_ITEMS:
            return 1
        each = sum(map(self._nbytes_each, columns))
        return max(1, min(BLOCK_ITEMS, BLOCK_BYTES // each, n // LEAST_BLOCKS))

    def _nbytes_each(self, items: Sequence[Any]) -> int:
        """Estimate the bytes that each item after the first adds to a pickle of several.

        The first item adds more, such as a class that is sent by value once.
        """
        n = min(MOST_SAMPLES, len(items) // LEAST_BLOCKS)
        sample = [items[k * len(items) // n] for k in range(n)]
        scratch = Arena(known=self.known)
        try:
            one, several = (scratch._pickle(x, "", _How(x))[0].data for x in (sample[:1], sample))
        except UnsendableError:  # the error will name the item when its block is packed
            return BLOCK_BYTES
        n_more = len({*map(id, sample)}) - 1
        return max(1, (len(several) - len(one)) // n_more) if n_more else len(one)

    def contents(self) -> tuple[int, list[tuple[int, Any]]]:
        """Return the size in bytes, and the parts (offset, bytes or array). This ends the arena."""
        self.known = KnownObjects()  # the picklers refer to this arena, which would be a cycle
        return super().contents()

    def _maker(self, how: _How, made: list[Any]) -> Callable[[bool, io.BytesIO, Keep], Any]:
        """Return a function that creates a pickler, and keeps the last pickler in `made`."""

        def make(by_value: bool, file: io.BytesIO, keep: Keep) -> Any:
            kind = _pickler_class(by_value, bool(how.names), by_value and how.leaves_out)
            made.append(kind(self, how, file, keep))
            return made[-1]

        return make

    def _pickle(self, obj: Any, what: str, how: _How) -> tuple[Pickled, Callable[[], Memo]]:
        """Return a pickle, and a function that copies the memo of its pickler."""
        made: list[Any] = []
        try:
            data, buffers = dumps_apart(obj, IN_BAND, self._maker(how, made))
            return Pickled(data, buffers, made[-1].copied), made[-1].memo.copy
        except (UnsendableError, SyntaxError):  # from a function's file, with their own advice
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            from nbshare._core.arrays.culprit import culprit_of  # late, most objects can be sent

            culprit, remedy = culprit_of(obj)
            if remedy is OTHERS and is_too_deep(error):
                remedy = TOO_DEEP
            raise UnsendableError(
                f"{what} cannot be sent to another process: {culprit} cannot be pickled "
                f"({type(error).__name__}: {cut(str(error))}). {remedy}"
            ) from error


def _locked(reduced: Any) -> Any:
    """Return how to pickle an array, with its usual way `reduced`, so that it arrives read-only."""
    if not isinstance(reduced, tuple) or len(reduced) > 3:  # a name, or a way of its own
        return reduced
    return *reduced[:2], reduced[2:], None, None, lock


@cache
def _pickler_class(by_value: bool, is_naming: bool, leaves_out: bool) -> Any:
    """Return the pickler that extracts arrays, on top of pickle's or of cloudpickle's.

    A pickler that names objects is slower, because it calls Python code for every object. Others do
    so only for a few. One that leaves out parts reaches all other objects, for its memo alone.
    """
    base: Any = value_pickler() if by_value else pickle.Pickler

    class CallPickler(base):  # type: ignore[misc]
        def __init__(self, arena: Arena, how: _How, file: io.BytesIO, keep: Keep) -> None:
            self.dispatch_table = arena.tables[by_value]
            super().__init__(file, protocol=5, buffer_callback=keep)
            self.arena, self.file, self.how = arena, file, how
            self.names = how.names or {}
            self.copied: list[npt.NDArray[Any]] = []

        @cached_property
        def passed(self) -> PassedArrays:
            return PassedArrays(self.how.passed)

        def reducer_override(self, obj: Any) -> Any:
            if isinstance(obj, np.ndarray):
                reduced = self._reduce_array(obj)
                if reduced is not None:
                    return reduced
            elif ByReference in type(obj).__bases__:
                if self.arena.by_value and obj._is_tool:
                    raise UnsendableError(
                        f"a {type(obj).__name__} works on one machine only, not on a cluster"
                    )
                rebuild, parts = obj._reduce_by_reference()
                return rebuild, tuple(map(self._unlocked, parts)) if obj._is_tool else parts
            elif (known := self.arena.known).may_have and (
                place := known.place_of(obj)
            ) is not None:
                return load_known, place
            elif (starts := self.how.starts) is not None and id(obj) in starts:
                starts[id(obj)] = self.file.tell()
            elif is_table(type(obj)) and obj in self.passed:
                reduced = self.dispatch_table[type(obj)](obj)
                if isinstance(reduced, tuple):  # not a name
                    self.passed.add_parts(reduced[1:3], of_table=True)
                return reduced
            return super().reducer_override(obj) if by_value else NotImplemented

        def _reduce_array(self, array: npt.NDArray[Any]) -> Any:
            refers = self.arena.refers_to(array)
            known = self.arena.known
            if known.may_have and not refers and (place := known.place_of(array)) is not None:
                return load_known, place
            is_passed = id(array) in self.passed.found or array in self.passed
            arrives = self.arena.passed if is_passed else "c"
            reduced: Any
            if type(array) not in PLAIN:
                reduced = self.dispatch_table[type(array)](array)
                if is_passed and isinstance(reduced, tuple):
                    self.passed.add_parts(reduced[1:3])
                is_locked = arrives == "r" and not array.dtype.hasobject
                return _locked(reduced) if is_locked else reduced
            if array.dtype.hasobject:  # or strings of variable length
                if is_passed and array.dtype.char != "T":
                    self.passed.add_parts(array.ravel().tolist())
                    arrives = arrives if id(array) in self.passed.columns else "c"
                reduced = array.__reduce__()
                return _locked(reduced) if arrives == "r" else reduced
            how = self.how
            # The arrays in objects of several items are all in memory that detects writes.
            keeps_small = how.writable and not how.is_part
            if keeps_small and array.nbytes < IN_BAND and not refers:
                order: Literal["F", "C"] = "F" if array.flags.fnc else "C"
                data: Any = array.tobytes(order)
                data = data if arrives == "r" else bytearray(data)
                return small, (data, array.dtype, array.shape, order)
            return load_reference, self._reference(array, how.writable, arrives)

        def _reference(
            self, array: npt.NDArray[Any], writable: bool, arrives: Mode = "r"
        ) -> tuple[Any, ...]:
            return tuple(self.arena.refer(array, self.copied, writable=writable, arrives=arrives))

        def _unlocked(self, part: Any) -> Any:
            is_array = isinstance(part, np.ndarray)
            return ArrayReference(*self._reference(part, True)) if is_array else part

    class NamingPickler(CallPickler):
        def persistent_id(self, obj: Any) -> Name | None:
            return self.names.get(id(obj))

    class LeavingOutPickler(CallPickler):
        def reducer_override(self, obj: Any) -> Any:
            kind = type(obj)
            if remedy_for(kind):  # threads, files and the like lead to all else in the process
                held = obj() if issubclass(kind, ReferenceType) else None
                return _left_out, (vars(obj) if issubclass(kind, _HOLDING) else held,)
            try:
                reduced = super().reducer_override(obj)
                if reduced is not NotImplemented or issubclass(kind, type | FunctionType):
                    return reduced
                return self.dispatch_table[kind](obj)
            except Exception:  # noqa: BLE001 - from the object's own code
                return _left_out, (getattr(obj, "__dict__", None),)

    return LeavingOutPickler if leaves_out else NamingPickler if is_naming else CallPickler


def _left_out(*_parts: Any) -> None:
    """Stand for an object that cannot be pickled, in a pickle that nobody loads."""
