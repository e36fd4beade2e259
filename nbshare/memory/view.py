"""A look at memory, and at whether anybody still looks."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["View"]


class View:
    """Arrays of a piece of memory, all of which hold its `root`.

    Parameters
    ----------
    memory : buffer
        A segment, or bytes.

    Attributes
    ----------
    root : ndarray
        All of it, as bytes. A weak reference to it tells when nobody sees the memory any more
        through this view.
    """

    def __init__(self, memory: Any) -> None:
        # frombuffer takes a buffer of a mapping, which ndarray(buffer=mmap) does not.
        self.root = np.frombuffer(memory, np.uint8)

    def array(
        self,
        dtype: npt.DTypeLike,
        shape: tuple[int, ...],
        offset: int = 0,
        strides: tuple[int, ...] | None = None,
    ) -> npt.NDArray[Any]:
        """Return a part as a plain ndarray; `offset` and `strides` in bytes."""
        if 0 in shape:
            offset = 0  # of a view without elements NumPy may set it beyond the memory
        return np.ndarray(shape, dtype, buffer=self.root, offset=offset, strides=strides)
