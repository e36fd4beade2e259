"""Loads the items of a call in a worker, and runs batches of tiny items."""

from __future__ import annotations

import io
import pickle
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from datetime import datetime, time
from itertools import chain, groupby, islice
from operator import attrgetter
from typing import Any

from nbshare._core.arrays.inputs import Inputs, Packed
from nbshare._core.arrays.repeated import NamedParts
from nbshare._core.functions.pickling import may_name_unknown
from nbshare._core.memory import View
from nbshare._core.store.apart import MakePickler
from nbshare._core.store.logs import OUT_OF_BAND
from nbshare._core.store.pages import KEPT, LEFT, SEEN, UNSEEN, Page
from nbshare._core.system import waiting
from nbshare._core.wire.board import Board
from nbshare._core.wire.kept import SCALARS, is_of_values, is_value
from nbshare._core.wire.orders import FeedHeader, Seed, Sources, generator

MOST_UNSEEN = 64  # most items of a batch between checks for a stop
MOST_BYTES = 64 << 10  # limit of a pickle that is stored with others
ZONE = attrgetter("tzinfo")


class ItemBlocks:
    """The pickled items of a call, in blocks that hold the values of all iterables.

    Parameters
    ----------
    block_of : callable
        Returns the items in the block of an item.
    packed : callable
        Returns the inputs that load the block of an item, and its place in them.
    parts : NamedParts, optional
        The objects that blocks may name.

    Attributes
    ----------
    share_memory : bool
        Whether blocks share memory, to which items may write privately. A block is then loaded only
        after the previous block is done, without the writes of that block.
    """

    share_memory = False

    def __init__(
        self,
        block_of: Callable[[int], range],
        packed: Callable[[int], tuple[Inputs, Packed]],
        parts: NamedParts | None = None,
    ) -> None:
        self.block_of, self._packed, self._parts = block_of, packed, parts
        self._newest = -1  # the first item of the last block that was loaded
        self._may_share = True  # whether fewer than two blocks have been loaded, if with memory
        self.rest()

    def rest(self) -> None:
        """Release the loaded items. None of them may be running."""
        self._block: tuple[range, list[Sequence[Any]]] = (range(0), [])
        self._found = self._block  # for the last range

    def apart(self, items: range) -> range:
        """Return the first of some items, up to the end of their block if blocks share memory.

        Two blocks that are loaded one after the other show whether they do.
        """
        if self.share_memory or self._may_share:
            return items[: self.block_of(items.start).stop - items.start]
        return items

    def columns(self, indices: range) -> list[Sequence[Any]]:
        """Return each iterable's values for some items.

        The values are loaded only once, because the iterables request them one after the other and
        may share objects.
        """
        if indices != self._found[0]:
            self._found = range(0), []
            self._found = indices, self._gathered(indices)
        return self._found[1]

    def _gathered(self, indices: range) -> list[Sequence[Any]]:
        start, stop = indices.start, indices.stop
        parts: list[list[Sequence[Any]]] = []
        while start < stop:
            block, columns = self._load(start)
            is_whole = start == block.start and block.stop <= stop  # then it is not copied
            part = slice(start - block.start, stop - block.start)
            parts.append(columns if is_whole else [column[part] for column in columns])
            start = block.stop
        if self._parts is not None:
            self._parts.drop_others()
        return parts[0] if len(parts) == 1 else [list(chain(*x)) for x in zip(*parts, strict=True)]

    def _load(self, i: int) -> tuple[range, list[Sequence[Any]]]:
        """Return the items that are pickled together with item `i`, and their indices."""
        if i not in self._block[0]:
            self._block = range(0), []
            inputs, packed = self._packed(i)
            items = self.block_of(i)
            if self._parts is not None:
                self._parts.begin_block()
            try:
                columns = inputs.load(packed, self._parts, is_item=True)
            except BaseException as error:
                if len(items) > 1:
                    error.add_note(
                        f"Item {items.start} and up to {len(items) - 1} items after it were "
                        "pickled together, and one of them cannot be loaded. Pass the data from "
                        "which its object is made, and create the object in the function."
                    )
                raise
            if items.start > self._newest:
                self._may_share = self._newest < 0 and inputs.has_memory
                self._newest = items.start
                self.share_memory |= inputs.has_come_again
            self._block = items, columns
        return self._block


class FedItems:
    """Loads the items of blocks that an `engine.feed.ItemFeed` packed while the call runs.

    Parameters
    ----------
    inputs : Inputs
        The inputs with the feed's segment.
    board : Board
        The call's board.
    """

    def __init__(self, inputs: Inputs, board: Board) -> None:
        self._inputs, self._board = inputs, board
        self._known: tuple[range, int, FeedHeader] | None = None  # the last header, and where it is
        self._block = range(0)
        self._packed: Packed | None = None  # the block
        self._of_block = Inputs([])  # the inputs that load it
        self._may_be_seen: list[tuple[weakref.ref[Any], Page, int]] = []

    def block_of(self, i: int) -> range:
        """Return the items in the block of item `i`."""
        return self._header_of(i)[0]

    def packed(self, i: int) -> tuple[Inputs, Packed]:
        """Return the inputs that load the block of item `i`, and the block's place in them."""
        if i not in self._block:
            self._turn_to(i)
        assert self._packed is not None
        return self._of_block, self._packed

    def _turn_to(self, i: int) -> None:
        block, start, (first, _, has_views, offset, packed) = self._header_of(i)
        inputs = self._inputs
        view = (
            inputs.private(start - offset, offset)
            if has_views
            else View(inputs.bytes(start - offset, offset))
        )
        self._block, self._packed = block, packed
        self._of_block.known = inputs.known
        self._of_block.turn_to(view)
        self._note_views()
        if has_views:
            page, place = self._board.page(first), first % self._board.page_items
            page.views[place] = SEEN if page.views[place] == UNSEEN else KEPT
            self._may_be_seen.append((weakref.ref(view.root), page, place))

    def rest(self) -> None:
        """Release the block. None of its items may be running."""
        self._block, self._packed = range(0), None
        self._of_block.turn_to(View(b""))
        self._note_views()

    def _note_views(self) -> None:
        """Mark the blocks of which this worker has no views any more."""
        seen = self._may_be_seen
        self._may_be_seen = []
        for ref, page, place in seen:
            if ref() is not None:
                self._may_be_seen.append((ref, page, place))
            elif page.views[place] == SEEN:
                if waiting.IS_WEAKLY_ORDERED:
                    waiting.before_marks()
                page.views[place] = LEFT

    def _header_of(self, i: int) -> tuple[range, int, FeedHeader]:
        """Return the items in the block of an item, and the offset and contents of its header."""
        if self._known is None or i not in self._known[0]:
            start, nbytes = self._board.page(i).place_of_block(i)
            self._inputs.reach(start + nbytes, is_private=self._board.segment.is_private)
            header: FeedHeader = pickle.loads(self._inputs.bytes(start, nbytes))
            first, n, *_ = header
            self._known = range(first, first + n), start, header
        return self._known


def blocks_of(inputs: Inputs, sources: Sources, fed: FedItems | None) -> ItemBlocks | None:
    """Return the pickled items of a call, or None if there are none."""
    if fed is not None:
        return ItemBlocks(fed.block_of, fed.packed)
    if not sources.blocks:
        return None
    step, blocks, repeated = sources.step, sources.blocks, sources.repeated
    return ItemBlocks(
        lambda i: range(i - i % step, i - i % step + step),
        lambda i: (inputs, blocks[i // step]),
        NamedParts(lambda part, parts: inputs.part(repeated[part], parts)) if repeated else None,
    )


class ItemSource:
    """The items of one iterable of a call, in a worker.

    Parameters
    ----------
    inputs : Inputs
        The call's inputs.
    blocks : ItemBlocks or None
        The items that are pickled.
    kind : {"plain", "whole", "packed", "fed", "folded"}
        The kind of items: a range or a few simple objects; an array or a sequence that is pickled
        as a whole; pickled objects; pickled objects that arrive during the call; or, with
        ``reduce=``, blocks of items.
    *what
        The arguments of this kind: the items for "plain", their place for "whole", the column of
        the blocks for "packed" and "fed", and the number of items and the sources of the iterables
        for "folded".
    """

    def __init__(self, inputs: Inputs, blocks: ItemBlocks | None, kind: str, *what: Any) -> None:
        self._rows: Any = None
        if kind == "plain":
            (self._rows,) = what
        elif kind == "whole":
            self._rows = inputs.load(*what)
        elif kind == "folded":
            n, iterables = what
            from nbshare._core.wire.folding import FoldBlocks  # late, only reduce= needs it

            self._rows = FoldBlocks([ItemSource(inputs, blocks, *each) for each in iterables], n)
        else:
            assert blocks is not None
            self._blocks = blocks
            (self._column,) = what

    def __getitem__(self, part: slice) -> Sequence[Any]:
        return self.items(range(part.start, part.stop))

    def items(self, indices: range) -> Sequence[Any]:
        """Return the items of a range of indices."""
        if self._rows is not None:
            return self._rows[indices.start : indices.stop]  # type: ignore[no-any-return]
        found: Sequence[Any] = self._blocks.columns(indices)[self._column]
        return found


def gather(
    parts: Iterator[Iterable[Any]],
    values: list[Any],
    odd: list[Any],
    every: int,
    goes_on: Callable[[], bool],
) -> bool:
    """Append results from `numbers` or `frozen` to `values`. Return whether no items are left.

    `goes_on` is checked after every `every` items. A result that `numbers` or `frozen` refuses is
    put into `odd`, because it must be stored before the next item runs, which may change and return
    the same object.
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
    """Raised with a result that cannot be stored in a batch."""


# Both functions group results in C, because checking each in Python would take as long as the
# items.


def numbers(results: Iterable[Any], number: type | None) -> Iterator[Iterable[Any]]:
    """Yield results, several at a time, while they are numbers of this class."""
    for kind, same in groupby(results, type):
        if kind is not number:
            raise _UnfitError(next(same))
        yield same  # noqa: B031 - once


def frozen(results: Iterable[Any], make: MakePickler) -> Iterator[Iterable[Any]]:
    """Yield results, several at a time, as values that cannot change, or as pickles.

    `make` returns the picklers of results. Plain values can be pickled together, because it does
    not matter whether they share parts, and all can be unpickled. Each result is frozen before the
    next item runs, because two items may return the same object, and change it.
    """
    pickled = _small_pickler(make)
    for kind, same in groupby(results, type):
        if kind is dict:
            yield _frozen_dicts(same, pickled)
        elif kind is tuple or kind is list:
            yield (x[:] if _are_values(x) else pickled(x) for x in same)
        elif is_of_values(kind):
            yield same
        elif kind is datetime or kind is time:
            for zone, some in groupby(same, ZONE):
                yield some if is_value(zone) else map(pickled, some)  # noqa: B031 - once
        else:
            yield map(pickled, same)


def _are_values(parts: Collection[Any]) -> bool:
    return SCALARS.issuperset(map(type, parts)) or all(map(is_value, parts))


def _frozen_dicts(
    dicts: Iterable[dict[Any, Any]], pickled: Callable[[Any], bytearray]
) -> Iterator[Any]:
    plain = SCALARS
    for value in dicts:
        for key, part in value.items():
            if not (
                (type(part) in plain or is_value(part)) and (type(key) is str or is_value(key))
            ):
                yield pickled(value)
                break
        else:
            yield value.copy()


def _small_pickler(make: MakePickler) -> Callable[[Any], bytearray]:
    """Return a function that pickles results, with one pickler, which takes half the time."""
    pickler = make(False, file := io.BytesIO(), _is_small)

    def pickled(value: Any) -> bytearray:
        file.seek(0)
        file.truncate()
        try:
            pickler.dump(value)
        except Exception:  # noqa: BLE001 - whatever an object's __reduce__ raises
            raise _UnfitError(value) from None
        finally:
            pickler.clear_memo()
        data = file.getvalue()
        if len(data) > MOST_BYTES or may_name_unknown(data):  # unknown classes are sent by value
            raise _UnfitError(value)
        return bytearray(data)

    return pickled


def _is_small(buffer: pickle.PickleBuffer) -> bool:
    if buffer.raw().nbytes >= OUT_OF_BAND:
        raise _UnfitError
    return True


def indices_of(first: int, items: range) -> Sequence[int]:
    """Return the indices of items, as the values of an iterable. The first index is `first`."""
    return range(first + items.start, first + items.stop)


def seeded(task: Callable[..., Any], seed: Seed, i: int, /, *args: Any) -> Any:
    """Call a task with the random generator of item `i`."""
    return task(*args, rng=generator(seed, i))
