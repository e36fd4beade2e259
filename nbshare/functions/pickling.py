"""Pickles that mean the same in another process."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

__all__ = ["MAINS", "dumps", "dumps_apart", "plainly_or_by_value"]

# The names of the caller's script; it has the second too in a process that multiprocessing spawned.
MAIN, SPAWNED_MAIN = MAINS = "__main__", "__mp_main__"


def dumps(value: Any) -> bytes:
    """Pickle an object: by reference, or by value what belongs to ``__main__`` or has no name.

    A class of ``__main__`` that has come by value goes back as itself: cloudpickle knows it again.
    """
    return _dumps(value, None)


def dumps_apart(value: Any, threshold: int) -> tuple[bytes, list[memoryview]]:
    """Pickle an object as `dumps` does, without its buffers of `threshold` bytes and more."""
    buffers: list[memoryview] = []
    return _dumps(value, (buffers, threshold)), buffers


def _dumps(value: Any, apart: tuple[list[memoryview], int] | None) -> bytes:
    def keep(buffer: pickle.PickleBuffer) -> bool:
        assert apart is not None
        buffers, threshold = apart
        raw = buffer.raw()
        if raw.nbytes < threshold:
            return True  # in the pickle
        buffers.append(raw)
        return False

    callback = keep if apart is not None else None

    def attempt(by_value: bool) -> bytes:
        if apart is not None:
            apart[0].clear()  # those of the first attempt
        if not by_value:
            return pickle.dumps(value, protocol=5, buffer_callback=callback)
        import cloudpickle  # late: most values do without

        return bytes(cloudpickle.dumps(value, protocol=5, buffer_callback=callback))

    return plainly_or_by_value(attempt)


def plainly_or_by_value(attempt: Callable[[bool], bytes]) -> bytes:
    """Return the pickle that ``attempt(by_value)`` makes: by reference, if that will do.

    It will not if it fails, or if it may refer to ``__main__`` by name: workers never run the
    caller's. By value what belongs to that, or has no name, can be sent, but all takes longer.
    """
    data = MAIN.encode()
    with suppress(Exception):  # whatever an object's __reduce__ raises
        data = attempt(False)
    is_spawned = SPAWNED_MAIN in sys.modules  # else one look through what may be long will do
    if MAIN.encode() not in data and not (is_spawned and SPAWNED_MAIN.encode() in data):
        return data
    if is_spawned:
        import cloudpickle

        cloudpickle.register_pickle_by_value(sys.modules[SPAWNED_MAIN])
    return attempt(True)
