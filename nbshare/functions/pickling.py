"""Pickles that mean the same in another process."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["dumps", "dumps_apart", "names_main"]


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
    try:
        data = pickle.dumps(value, protocol=5, buffer_callback=callback)
        if not names_main(data):
            return data
    except Exception:  # noqa: BLE001, S110 - whatever its __reduce__ raises; tried by value below
        pass
    import cloudpickle  # late: most values do without

    if apart is not None:
        apart[0].clear()  # those of the first attempt
    return bytes(cloudpickle.dumps(value, protocol=5, buffer_callback=callback))


def names_main(data: bytes) -> bool:
    """Whether a pickle may refer to ``__main__`` by name: workers never run the caller's."""
    return b"__main__" in data
