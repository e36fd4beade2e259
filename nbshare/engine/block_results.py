"""What the last stage of a pipeline has returned, by block."""

from __future__ import annotations

import _thread
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import shared_view
from nbshare.engine.collect import collect, masked
from nbshare.engine.growing import GrowingArray
from nbshare.engine.results import MISSING
from nbshare.wire.results import OutputSpec, spec_for

__all__ = ["BlockResults"]


class BlockResults:
    """The results of the last stage by block: rows of one array as long as they fit."""

    def __init__(self) -> None:
        self._spec: OutputSpec | None = None  # of the first
        self._rows: GrowingArray | None = None
        self._others: dict[int, Any] = {}  # that are no rows of the array
        self._order: list[int] = []  # blocks, as they came
        self._n = 0  # blocks up to the last that has come
        self._lock = _thread.allocate_lock()  # the array is made larger by one at a time

    def __len__(self) -> int:
        return len(self._order)

    def put(self, block: int, value: Any) -> None:
        """Keep a result."""
        if self._spec is None:
            self._spec = spec = spec_for(value)
            self._rows = GrowingArray(spec) if spec.dtype is not None else None
        if self._rows is not None and self._spec.holds(value):
            self._array(block, block + 1)[0] = value
        else:
            self._others[block] = value
        self._n = max(self._n, block + 1)
        self._order.append(block)  # last: others may look in between

    def newest(self, n: int) -> list[int]:
        """Return the blocks that have come after the first `n`, in the order in which they came."""
        return self._order[n:]

    def get(self, block: int) -> Any:
        """Return the result of a block that has come."""
        if self._rows is None or block in self._others:
            return self._others[block]
        assert self._spec is not None
        value = self._array(block, block + 1)[0]
        if isinstance(value, np.ndarray):
            return value.copy()
        return value.item() if self._spec.number else value

    def present(self, n: int | None) -> npt.NDArray[np.bool_]:
        """Return of which blocks results are there."""
        order = list(self._order)
        present = np.zeros(n if n is not None else max(order, default=-1) + 1, np.bool_)
        present[order] = True
        return present

    def partial(self, n: int | None) -> Any:
        """Return what is there: a masked array, or a list with gaps; None before the first."""
        if self._spec is None:
            return None
        present = self.present(n)
        if self._rows is None or self._others:
            return [self.get(i) if is_there else MISSING for i, is_there in enumerate(present)]
        return masked(self._array(0, len(present)), ~present)

    def final(self) -> Any:
        """Return all results: one array if they fit, else a list."""
        if self._rows is None or self._others:
            return collect([self.get(i) for i in range(self._n)])
        return shared_view(self._array(0, self._n))

    def _array(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return rows of the array, and make it larger if need be; the collector writes to it."""
        assert self._rows is not None
        with self._lock:
            return self._rows.rows(start, stop)
