"""What the processes of other people's pools do with arrays that travel by reference."""

from __future__ import annotations

from typing import Any

import numpy as np

import nbshare


def facts(array: np.ndarray) -> tuple[Any, ...]:
    """Return what must survive the way."""
    return (
        type(array).__name__,
        array.shape,
        array.strides,
        array.dtype.str,
        array.flags.writeable,
        array.tolist(),
    )


def fill(array: np.ndarray, value: float) -> None:
    """Write into the sender's memory."""
    array[...] = value


def make(value: float) -> nbshare.SharedArray:
    """Return a new array, of which this process keeps nothing."""
    return nbshare.full((100, 100), value)


def put(queue: Any, value: float, received: Any) -> None:
    """Send a new array and stay until it has been received."""
    queue.put(nbshare.full(1000, value))
    received.wait(20)
