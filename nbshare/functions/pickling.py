"""Pickles that mean the same in another process."""

from __future__ import annotations

import pickle
from typing import Any

__all__ = ["dumps", "names_main"]


def dumps(value: Any) -> bytes:
    """Pickle an object: by reference, or by value what belongs to ``__main__`` or has no name.

    A class of ``__main__`` that has come by value goes back as itself: cloudpickle knows it again.
    """
    try:
        data = pickle.dumps(value, protocol=5)
        if not names_main(data):
            return data
    except Exception:  # noqa: BLE001, S110 - whatever its __reduce__ raises; tried by value below
        pass
    import cloudpickle  # late: most values do without

    return bytes(cloudpickle.dumps(value, protocol=5))


def names_main(data: bytes) -> bool:
    """Whether a pickle may refer to ``__main__`` by name: workers never run the caller's."""
    return b"__main__" in data
