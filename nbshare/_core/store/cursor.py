"""Records which results a reader has taken, so that it takes each one once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt


class Cursor:
    """The results that one reader has taken.

    Parameters
    ----------
    n : int
        Number of results. More may follow.

    Attributes
    ----------
    taken : ndarray of bool
        A flag per result, True if the reader has taken it.

    Notes
    -----
    One thread at a time takes results. Any thread may read the flags.
    """

    def __init__(self, n: int) -> None:
        self.taken = np.zeros(n, np.bool_)

    def new(self, present: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
        """Return a flag per result, True if it is present and the reader has not taken it."""
        n_more = len(present) - len(self.taken)
        if n_more > 0:
            self.taken = np.append(self.taken, np.zeros(n_more, np.bool_))
        return np.asarray(present & ~self.taken[: len(present)])

    def take(self, results: Any) -> None:
        """Record that the reader has taken results, by index, indices or flags."""
        self.taken[results] = True
