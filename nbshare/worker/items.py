"""The items of a call as a worker gets them, and tiny ones run together."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import Any

import numpy as np

from nbshare.arrays.feed import FedBlocks
from nbshare.arrays.inputs import ArrayReference, Broken, Inputs
from nbshare.functions import MAIN_PART
from nbshare.wire.orders import Seed
from nbshare.wire.results import OUT_OF_BAND

__all__ = ["CLOCK_EVERY", "Source", "gather", "gather_objects", "generator", "indices_of", "seeded"]

CLOCK_EVERY = 64  # items between looks at the clock: tiny ones, so it is late by 1 ms or so
MOST_BYTES = 1 << 20  # of a result's pickle that waits for others
SCALARS = frozenset(
    {
        type(None),
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        *(np.dtype(t).type for t in "?bhilqBHILQfd"),
    }
)


class Source:
    """One of the iterables of a call.

    Parameters
    ----------
    inputs : Inputs
        Of the call.
    kind : {"rows", "plain", "blocks", "feed"}
        Rows of an array, a range or a few simple objects as they are, or pickled ones, all of which
        are there or come by and by.
    *what
        An ArrayReference; the items; how many of them are in a block, and the blocks; or what
        `FedBlocks` takes.
    """

    def __init__(self, inputs: Inputs, kind: str, *what: Any) -> None:
        self._inputs = inputs
        self._rows: Any = None
        self._block: tuple[int, list[Any]] = (-1, [])
        self._has_broken = False  # items in this block
        self.step = 1  # items that are loaded together
        self.feed: FedBlocks | None = None
        if kind == "rows":
            self._rows = inputs.array(ArrayReference(*what))
        elif kind == "plain":
            (self._rows,) = what
        elif kind == "blocks":
            self.step, self._packed = what
        else:
            self._packed = self.feed = FedBlocks(inputs, *what)
            self.step = self.feed.step

    def items(self, indices: range) -> Sequence[Any]:
        """Return the items of a range of indices."""
        if self._rows is not None:
            return self._rows[indices.start : indices.stop]  # type: ignore[no-any-return]
        step, (start, stop) = self.step, (indices.start, indices.stop)
        if step == 1 and stop - start == 1:  # of a task, say, which is quick
            return self._load(start)
        parts: list[list[Any]] = []
        for number in range(start // step, (stop - 1) // step + 1):
            first = number * step
            block = self._load(number)
            is_whole = start <= first and first + len(block) <= stop  # then it is not copied
            parts.append(block if is_whole else block[max(start - first, 0) : stop - first])
            if self._has_broken:
                for broken in (item for item in parts[-1] if type(item) is Broken):
                    self._block = (-1, [])  # another attempt is to load it anew
                    raise broken.error
        return parts[0] if len(parts) == 1 else list(chain.from_iterable(parts))

    def _load(self, number: int) -> list[Any]:
        if number != self._block[0]:
            packed = self._packed[number]
            try:
                items, self._has_broken = self._inputs.load(packed), False
            except BaseException:
                if self.step == 1:
                    raise
                items, self._has_broken = self._inputs.load_items(packed), True
            if isinstance(items, np.ndarray):
                items.flags.writeable = False  # as rows of arrays that are not packed
            self._block = (number, items)
        return self._block[1]


def gather(
    results: Iterable[Any], number: type, values: list[Any], odd: list[Any], until_s: float
) -> bool:
    """Append results to `values` until time is up, or one comes that is no such `number`.

    That one is put into `odd`: it may be an object that the function will change and return again,
    and has to be stored before the next item runs. Returns whether there are no more.
    """
    # All in C: a loop in Python would take as long as the items.
    for kind, group in groupby(results, type):
        if kind is not number:
            odd.append(next(group))
            return False
        if not _take(group, values, until_s):
            return False
    return True


def gather_objects(
    results: Iterable[Any], values: list[Any], odd: list[Any], until_s: float
) -> bool:
    """Append results, frozen, until time is up, or one comes that cannot be frozen quickly.

    That one is put into `odd`. Each is frozen before the next item runs, which may change it, and
    by itself: two items may return the same object. Returns whether there are no more.
    """
    try:
        return _take(map(_frozen, results), values, until_s)
    except _UnfitError as unfit:
        odd += unfit.args
        return False


def _take(results: Iterator[Any], values: list[Any], until_s: float) -> bool:
    """Append results until time is up; returns whether there are no more."""
    while True:
        n_before = len(values)
        values.extend(islice(results, CLOCK_EVERY))
        if len(values) - n_before < CLOCK_EVERY:
            return True
        if time.monotonic() > until_s:
            return False


class _UnfitError(Exception):
    """A result, the only argument, that is to be pickled with more care."""


def _frozen(value: Any) -> Any:
    """Return what nobody can change: a copy of plain values, or a bytearray with the pickle.

    Plain ones may be pickled together: nobody can tell what they share, and all can be unpickled.
    """
    kind = type(value)
    if kind in SCALARS:
        return value
    if kind is dict:
        if SCALARS.issuperset(map(type, value.values())) and SCALARS.issuperset(map(type, value)):
            return value.copy()
    elif (kind is tuple or kind is list) and SCALARS.issuperset(map(type, value)):
        return value[:]
    try:
        data = pickle.dumps(value, 5, buffer_callback=_is_small)
    except Exception:  # noqa: BLE001 - whatever an object's __reduce__ raises
        raise _UnfitError(value) from None
    if len(data) > MOST_BYTES or MAIN_PART in data:  # the latter is to be sent by value
        raise _UnfitError(value)
    return bytearray(data)


def _is_small(buffer: pickle.PickleBuffer) -> bool:
    if buffer.raw().nbytes >= OUT_OF_BAND:
        raise _UnfitError
    return True


def indices_of(indices: range) -> Sequence[int]:
    """Return the items of a source whose items are their indices."""
    return indices


def generator(seed: Seed, i: int) -> np.random.Generator:
    """Return the random generator of item `i`."""
    entropy, key, pool_size = seed
    child = np.random.SeedSequence(entropy, spawn_key=(*key, i), pool_size=pool_size)
    return np.random.Generator(np.random.PCG64(child))


def seeded(task: Callable[..., Any], seed: Seed, first: int, i: int, /, *args: Any) -> Any:
    """Call a task with the random generator of item `i`, counted from the `first`."""
    return task(*args, rng=generator(seed, first + i))
