"""The results that a loop over a job has taken, which are then not kept."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from nbshare._core.store.pages import Page


class Given:
    """The results that a loop has taken.

    Attributes
    ----------
    n : int
        Their number.
    is_iterated : bool
        Whether a loop takes results. Pages of an open board are freed when all theirs are taken.

    Notes
    -----
    One thread at a time takes results. Any may read.
    """

    def __init__(self) -> None:
        self.n = 0
        self.is_iterated = False
        self._by_page: dict[int, npt.NDArray[np.bool_]] = {}
        self._reader_s = 0.0  # what the reader took for one of the results of the last look
        self._reading: tuple[float, int] | None = None  # since when, and from which on, at a look

    def of(self, page: Page) -> npt.NDArray[np.bool_]:
        """Return which results of a page have been taken."""
        given = self._by_page.get(page.first)
        if given is None:  # in one step, because any thread may be the first to ask
            given = self._by_page.setdefault(page.first, np.zeros(page.n, np.bool_))
        return given

    def add(self, page: Page, i: int) -> None:
        """Note that the result of an item is taken, and will not be asked for again."""
        self.of(page)[i - page.first] = True
        self.n += 1

    def has_all_of(self, page: Page) -> bool:
        """Whether the results of all items of a page are taken."""
        given = self._by_page.get(page.first)
        return given is not None and bool(given.all())

    def forget(self, page: Page) -> None:
        """Forget a page that is freed."""
        self._by_page.pop(page.first, None)

    @contextmanager
    def look(self) -> Iterator[None]:
        """Measure how long the reader takes for the results of a look."""
        self.is_iterated = True
        self._reading = time.monotonic(), self.n
        yield
        self._reader_s, self._reading = self.reader_s(), None

    def reader_s(self) -> float:
        """Return how long the reader takes for a result, 0 if unknown."""
        if (reading := self._reading) is None or self.n == reading[1]:
            return self._reader_s
        return (time.monotonic() - reading[0]) / (self.n - reading[1])
