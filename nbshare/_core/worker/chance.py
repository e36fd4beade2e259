"""Detects items that draw from the global random numbers of NumPy or of `random`.

Such numbers differ in each run, because each worker has a random state of its own. Both generators
are a Mersenne Twister, whose states before and after a chunk are compared. That takes two copies of
2.5 KB, each in less than a microsecond.

These do not count as draws: a new seed, such as ``np.random.seed(i)`` in the function, because the
old state cannot lead to it; draws by modules during their import; and separate generators.
"""

from __future__ import annotations

import sys
import time
from array import array
from typing import Any, NamedTuple

import numpy as np

from nbshare._core.functions.freshness import n_executed
from nbshare._core.wire.board import NUMPY, PYTHON

N_WORDS = 624  # words of a Mersenne Twister, 4 bytes each
KEY_BYTES, STATE_BYTES = 4 * N_WORDS, 4 * N_WORDS + 4

# A changed state is searched among the successors of the previous one, at most once in a call. That
# takes as long as drawing these numbers, so no longer than the chunk, unless other programs run.
LEAST_S, MOST_S, SHARE = 2e-3, 0.25, 2  # the last is of the chunk's time
UNTIMED = 16  # states between two reads of the clock, each of which may take longer than a state


class State(NamedTuple):
    """The state of a generator: its words and the index of the next word."""

    key: bytes
    place: int


class Watched(NamedTuple):
    """The memory of a generator's state."""

    which: int  # NUMPY or PYTHON
    memory: memoryview
    key: slice
    place: slice
    owner: object  # owns the memory
    # The state at the last `note`, copied in place, because a new object could keep an item from
    # reusing memory of the heap.
    before: bytearray

    def state(self, words: bytes) -> State:
        """Return the state in a copy of the memory."""
        return State(words[self.key], int.from_bytes(words[self.place], sys.byteorder))


_found: set[int] = set()  # NUMPY and PYTHON, if found
_watched: list[Watched] = []  # the verified ones


class Draws:
    """Detects draws from the global generators since the last `note`."""

    def __init__(self) -> None:
        self._modules = 0, 0
        self._since = 0.0

    def note(self) -> None:
        """Record the states of the generators."""
        if len(_found) < 2:
            _find()
        for each in _watched:
            memoryview(each.before)[:] = each.memory
        self._modules = len(sys.modules), n_executed[0]
        self._since = time.monotonic()

    def may_be(self) -> bool:
        """Return whether a state has changed, and no module was imported."""
        is_changed = any(each.before != each.memory for each in _watched)
        return is_changed and self._modules == (len(sys.modules), n_executed[0])

    def drawn(self) -> int:
        """Return which generators were drawn from, as a sum of NUMPY and PYTHON."""
        took_s = time.monotonic() - self._since
        limit_s = max(LEAST_S, min(SHARE * took_s, MOST_S))
        return sum(
            each.which
            for each in _watched
            if each.before != each.memory
            and follows(each.state(bytes(each.before)), each.state(bytes(each.memory)), limit_s)
        )


def _find() -> None:
    """Find the states of the generators that are loaded."""
    numpy: Any = sys.modules.get("numpy.random.mtrand")
    if NUMPY not in _found and hasattr(numpy, "_rand"):
        _found.add(NUMPY)
        generator = numpy._rand._bit_generator
        if type(generator).__name__ == "MT19937":
            known = generator.state["state"]
            place = generator.ctypes.state_address, slice(KEY_BYTES), slice(KEY_BYTES, None)
            _watch(NUMPY, generator, *place, State(known["key"].tobytes(), known["pos"]))
    python: Any = sys.modules.get("random")
    if PYTHON not in _found and hasattr(python, "_inst"):
        _found.add(PYTHON)
        if sys.implementation.name == "cpython":
            *key, next_word = python._inst.getstate()[1]
            place = id(python._inst) + object.__basicsize__, slice(4, None), slice(4)
            _watch(PYTHON, python._inst, *place, State(array("I", key).tobytes(), next_word))


def _watch(which: int, owner: object, address: int, key: slice, place: slice, known: State) -> None:
    """Watch the state of a generator if it is where it is expected, because versions differ."""
    found = Watched(which, _memory(address), key, place, owner, bytearray(STATE_BYTES))
    if found.state(bytes(found.memory)) == known:
        _watched.append(found)


class _Place:
    """Memory at an address, with NumPy's array interface."""

    def __init__(self, address: int) -> None:
        words = {"shape": (STATE_BYTES,), "typestr": "|u1", "data": (address, False)}
        self.__array_interface__ = {"version": 3, **words}


def _memory(address: int) -> memoryview:
    return np.asarray(_Place(address)).data


def follows(old: State, new: State, limit_s: float) -> bool:
    """Return whether draws lead from one state to another. False if the search takes too long."""
    if old.key == new.key:
        return new.place > old.place  # otherwise an earlier state was restored
    from numpy.random import MT19937

    generator = MT19937(0)
    words = _memory(generator.ctypes.state_address)
    words[:] = old.key + N_WORDS.to_bytes(4, sys.byteorder)
    generator.random_raw()  # generates the next words, and draws one
    until_s = time.thread_time() + limit_s  # CPU time, without that of other programs
    while time.thread_time() <= until_s:
        for _ in range(UNTIMED):
            if words[:KEY_BYTES] == new.key:
                return True
            generator.random_raw(N_WORDS)  # without its output NumPy 2.5 takes twice as long
    return False
