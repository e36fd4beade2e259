"""The items of a call as a worker loads them, and batches of tiny items."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

from nbshare._core.arrays.inputs import ArrayReference, Inputs
from nbshare._core.functions.pickling import may_name_main
from nbshare._core.store.logs import OUT_OF_BAND
from nbshare._core.wire.feed import FedItems
from nbshare._core.wire.folding import Blocks
from nbshare._core.wire.kept import SCALARS
from nbshare._core.wire.orders import Seed, generator

MOST_UNSEEN = 64  # items of a batch between looks whether to go on
MOST_BYTES = 1 << 20  # of a result's pickle that is stored with others


class ItemSource:
    """One of the iterables of a call.

    Parameters
    ----------
    inputs : Inputs
        The call's inputs.
    fed : FedItems or None
        Items that arrive during the call.
    kind : {"rows", "plain", "whole", "blocks", "fed", "folded"}
        Rows of an array; a range or a few simple objects; a sequence that is pickled as a whole;
        pickled objects; pickled objects that arrive during the call; or, for ``reduce=``, blocks of
        items.
    *what
        One set for each kind: an ArrayReference; the items; their place; the size of a block, and
        the blocks; the column of the feed; or the number of items, and the source of each iterable.

    Attributes
    ----------
    block_of : callable or None
        Returns the items that are loaded together with one. None if each is loaded alone.
    """

    def __init__(self, inputs: Inputs, fed: FedItems | None, kind: str, *what: Any) -> None:
        self._inputs, self._fed = inputs, fed if kind == "fed" else None
        self._rows: Any = None
        self._block: tuple[range, list[Any]] = (range(0), [])
        self.block_of: Callable[[int], range] | None = None
        if kind == "rows":
            self._rows = inputs.array(ArrayReference(*what))
        elif kind == "plain":
            (self._rows,) = what
        elif kind == "whole":
            self._rows = inputs.load(*what)
        elif kind == "folded":
            n, columns = what
            self._rows = Blocks([ItemSource(inputs, fed, *column) for column in columns], n)
        elif kind == "blocks":
            self._step, self._packed = step, _ = what
            self.block_of = lambda i: range(i - i % step, i - i % step + step)
        else:
            assert fed is not None
            (self._column,) = what
            self.block_of = fed.block_of

    def __getitem__(self, part: slice) -> Sequence[Any]:
        return self.items(range(part.start, part.stop))

    def items(self, indices: range) -> Sequence[Any]:
        """Return the items of a range of indices."""
        if self._rows is not None:
            return self._rows[indices.start : indices.stop]  # type: ignore[no-any-return]
        start, stop = indices.start, indices.stop
        parts: list[list[Any]] = []
        while start < stop:
            block, items = self._load(start)
            is_whole = start == block.start and block.stop <= stop  # then it is not copied
            parts.append(items if is_whole else items[start - block.start : stop - block.start])
            start = block.stop
        return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))

    def _load(self, i: int) -> tuple[range, list[Any]]:
        """Return the items that are loaded together with item `i`, and their indices."""
        if i not in self._block[0]:
            self.rest()
            assert self.block_of is not None
            if self._fed is not None:
                inputs, packed = self._fed.packed(i, self._column)
            else:
                inputs, packed = self._inputs, self._packed[i // self._step]
            block = self.block_of(i)
            try:
                items = inputs.load(packed)
            except BaseException as error:
                if len(block) > 1:
                    error.add_note(
                        f"Item {block.start} and up to {len(block) - 1} after it are pickled "
                        "together, and one of them cannot be loaded. Pass what the object is made "
                        "from, and build it in the function."
                    )
                raise
            self._block = block, items
        return self._block

    def rest(self) -> None:
        """Release the loaded items, when none is running now."""
        self._block = range(0), []


def gather(
    parts: Iterator[Iterable[Any]],
    values: list[Any],
    odd: list[Any],
    every: int,
    goes_on: Callable[[], bool],
) -> bool:
    """Append the results of `numbers` or `frozen` to `values`. Return whether no items are left.

    After `every` so many it is asked whether it `goes_on`. A result that they refuse is put into
    `odd`, because it must be stored before the next item runs, since the function may change it and
    return it again.
    """
    results = chain.from_iterable(parts)
    try:
        while True:
            n_before = len(values)
            values.extend(islice(results, every))
            if len(values) - n_before < every:
                return True
            if not goes_on():
                return False
    except _UnfitError as unfit:
        odd += unfit.args
        return False


class _UnfitError(Exception):
    """A result, the only argument, that must be stored with more care."""


# Both group results in C, because a look in Python at each would take as long as the items.


def numbers(results: Iterable[Any], number: type | None) -> Iterator[Iterable[Any]]:
    """Yield results, several at a time, while they are numbers of this class."""
    for kind, same in groupby(results, type):
        if kind is not number:
            raise _UnfitError(next(same))
        yield same  # noqa: B031 - once


def frozen(results: Iterable[Any]) -> Iterator[Iterable[Any]]:
    """Yield results frozen, several at a time, as values that cannot change, or their pickles.

    Plain values can be pickled together, because shared parts make no difference, and all can be
    unpickled. Each is frozen before the next item runs, because two items may return the same
    object, and change it.
    """
    for kind, same in groupby(results, type):
        if kind in SCALARS:
            yield same
        elif kind is dict:
            yield _frozen_dicts(same)
        elif kind is tuple or kind is list:
            yield (x[:] if SCALARS.issuperset(map(type, x)) else _pickled(x) for x in same)
        else:
            yield map(_pickled, same)


def _frozen_dicts(dicts: Iterable[dict[Any, Any]]) -> Iterator[Any]:
    plain = SCALARS
    for value in dicts:
        for key, part in value.items():
            if type(part) not in plain or (type(key) is not str and type(key) not in plain):
                yield _pickled(value)
                break
        else:
            yield value.copy()


def _pickled(value: Any) -> bytearray:
    try:
        data = pickle.dumps(value, 5, buffer_callback=_is_small)
    except Exception:  # noqa: BLE001 - whatever an object's __reduce__ raises
        raise _UnfitError(value) from None
    if len(data) > MOST_BYTES or may_name_main(data):  # the latter must be sent by value
        raise _UnfitError(value)
    return bytearray(data)


def _is_small(buffer: pickle.PickleBuffer) -> bool:
    if buffer.raw().nbytes >= OUT_OF_BAND:
        raise _UnfitError
    return True


def indices_of(first: int, items: range) -> Sequence[int]:
    """Return the items of a source whose items are their indices, from the `first` on."""
    return range(first + items.start, first + items.stop)


def seeded(task: Callable[..., Any], seed: Seed, i: int, /, *args: Any) -> Any:
    """Call a task with the random generator of item `i`."""
    return task(*args, rng=generator(seed, i))
