"""Rows of results whose number nobody knows: one array that grows in place."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from nbshare.arrays.shared_array import SharedArray, shared_view
from nbshare.memory import Segment
from nbshare.wire.results import OutputSpec

__all__ = ["GrowingArray"]

GROWTH = 1.5  # from one size to the next: what is not written to takes no memory


class GrowingArray:
    """An array of unknown length in a segment that is made larger, never copied.

    Parameters
    ----------
    spec : OutputSpec
        Of one row, with a dtype.
    """

    def __init__(self, spec: OutputSpec) -> None:
        assert spec.dtype is not None
        self.dtype: np.dtype[Any] = spec.dtype
        self.shape = spec.shape
        self._row_nbytes = math.prod(spec.shape) * spec.dtype.itemsize
        self._segment: Segment | None = None

    def rows(self, start: int, stop: int) -> npt.NDArray[Any]:
        """Return some rows, which are zero if nobody has asked for them before.

        Raises
        ------
        OutOfMemoryError
            If they do not fit.
        """
        nbytes = stop * self._row_nbytes
        segment = self._segment
        if segment is None:
            segment = Segment.create(nbytes)
        elif segment.nbytes < nbytes:
            segment = segment.grown(nbytes, max(nbytes, int(GROWTH * segment.nbytes)))
        self._segment = segment
        shape = (stop - start, *self.shape)
        return segment.array(self.dtype, shape, start * self._row_nbytes)

    def head(self, n: int) -> SharedArray:
        """Return the first `n` rows."""
        return shared_view(self.rows(0, n))
